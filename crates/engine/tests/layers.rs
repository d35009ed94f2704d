//! The data directory, the layer store, templates and the host base, with real trees and real damage. Run as root.
#![allow(clippy::unwrap_used)] // helpers of tests are tests

use std::{
    collections::BTreeSet,
    fs::{self, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use cabana_engine::{DataDir, HostBase, OpenError, Progress, Store, TemplateSource, Templates};
use cabana_guest::IdMap;
use cabana_sandbox::{Code, Error, LayerId, Overrides, Template, User};
use tempfile::TempDir;

#[path = "layers/images.rs"]
mod images;

const IDS: IdMap = IdMap { base: 0x7ffe_0000, count: 65_536 };

fn run(program: &str, args: &[&str]) {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A file system of its own, gone with the test.
struct Disk(TempDir);

impl Disk {
    fn new(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        run("mount", &["-t", "tmpfs", "-o", options, "cabana-test", text(dir.path())]);
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["-l", text(self.0.path())]);
    }
}

struct House {
    dir: TempDir,
    data: DataDir,
    store: Store,
}

impl House {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (data, store) = open(&dir.path().join("data"));
        Self { dir, data, store }
    }

    fn templates(&self) -> Templates<'_> {
        Templates::new(&self.data, &self.store)
    }

    /// A root file system as small as can be.
    fn rootfs(&self) -> PathBuf {
        let root = self.dir.path().join("rootfs");
        make_rootfs(&root);
        root
    }

    fn add(&self, name: &str, from: &Path) -> Result<Template, Error> {
        let source = text(from).parse().unwrap();
        self.templates().add(name, &source, &Overrides::default(), &mut |_| {})
    }

    fn tar(&self, args: &[&str]) -> PathBuf {
        let file = self.dir.path().join("made.tar");
        let root = self.rootfs();
        run("tar", &[&["-cf", text(&file), "-C", text(&root)], args, &["."]].concat());
        file
    }

    /// What the store holds: nothing, and no draft either.
    fn assert_empty(&self) {
        let left: Vec<_> = fs::read_dir(self.data.layers()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{left:?}");
        let left: Vec<_> =
            fs::read_dir(self.data.templates()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn open(path: &Path) -> (DataDir, Store) {
    let data = DataDir::open(path).unwrap();
    let store = Store::open(&data, IDS).unwrap();
    (data, store)
}

fn make_rootfs(root: &Path) {
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(root.join("usr/bin/dash"), "a shell").unwrap();
    fs::set_permissions(root.join("usr/bin/dash"), Permissions::from_mode(0o755)).unwrap();
    if !root.join("bin").exists() {
        symlink("usr/bin", root.join("bin")).unwrap();
        symlink("/usr/bin/dash", root.join("usr/bin/sh")).unwrap(); // absolute: it leads to the tree's own
    }
}

fn stat(path: impl AsRef<Path>) -> fs::Metadata {
    fs::symlink_metadata(path).unwrap()
}

mod data_directory {
    use super::*;

    #[test]
    fn a_new_one_is_private_and_opens_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("some/where/data");
        for _ in 0..2 {
            DataDir::open(&path).unwrap();
            assert_eq!(stat(&path).mode() & 0o7777, 0o700);
            assert_eq!(fs::read(path.join("version")).unwrap(), b"1\n");
            assert!(["layers", "templates", "sandboxes"].iter().all(|part| path.join(part).is_dir()));
        }
    }

    #[test]
    fn an_empty_directory_becomes_ours_and_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        DataDir::open(dir.path()).unwrap();
        assert_eq!(stat(dir.path()).mode() & 0o7777, 0o700);
    }

    #[test]
    fn many_at_once_open_one_that_is_not_there_yet() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a/data");
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| DataDir::open(&path).map(drop))).collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
            });
        }
    }

    #[test]
    fn a_directory_with_other_content_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "mine").unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let error = DataDir::open(dir.path()).unwrap_err();
        assert!(matches!(error, OpenError::NotOurs { .. }), "{error}");
        assert!(error.to_string().contains("thesis.txt"), "{error}");
        assert_eq!(error.code(), Code::DataDirNotOurs);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(stat(dir.path()).mode() & 0o7777, 0o755);
    }

    #[test]
    fn somebody_elses_is_not_ours() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        DataDir::open(&path).unwrap();
        chown(&path, Some(1234), None).unwrap();
        let error = DataDir::open(&path).unwrap_err();
        assert_eq!(error.code(), Code::DataDirNotOurs);
        assert!(error.to_string().contains("user 1234"), "{error}");
    }

    #[test]
    fn an_unknown_version_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        DataDir::open(&path).unwrap();
        fs::write(path.join("version"), "2\n").unwrap();
        let error = DataDir::open(&path).unwrap_err();
        assert_eq!(error.code(), Code::DataDirVersion);
        assert!(error.to_string().contains("\"2\""), "{error}");
        assert_eq!(fs::read(path.join("version")).unwrap(), b"2\n");
    }

    #[test]
    fn a_read_only_one_is_said_to_be_so() {
        let disk = Disk::new("size=1m");
        DataDir::open(disk.path()).unwrap();
        run("mount", &["-o", "remount,ro", text(disk.path())]);
        for path in [disk.path().to_path_buf(), disk.path().join("new")] {
            let error = DataDir::open(&path).unwrap_err();
            assert_eq!(error.code(), Code::DataDirReadOnly, "{error}");
        }
    }

    #[test]
    fn a_file_is_no_data_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("below")] {
            let error = DataDir::open(&path).unwrap_err();
            assert!(matches!(error, OpenError::NotDirectory { .. }), "{error:?}");
            assert_eq!(error.code(), Code::DataDirNotOurs);
        }
    }
}

mod store {
    use super::*;

    #[test]
    fn a_layer_holds_all_that_a_tar_holds() {
        let house = House::new();
        let root = house.rootfs();
        let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
        fs::create_dir(root.join("d".repeat(200))).unwrap();
        fs::write(root.join(&long), "long").unwrap();
        fs::write(root.join("one"), "linked").unwrap();
        fs::hard_link(root.join("one"), root.join("two")).unwrap();
        let sparse = fs::File::create(root.join("sparse")).unwrap();
        sparse.write_all_at(b"end", 64 << 20).unwrap();
        fs::write(root.join("suid"), "").unwrap();
        chown(root.join("suid"), Some(33), Some(44)).unwrap();
        fs::set_permissions(root.join("suid"), Permissions::from_mode(0o6751)).unwrap();
        run("setfattr", &["-n", "user.note", "-v", "kept", text(&root.join("one"))]);
        let odd = std::ffi::OsStr::new(unsafe_name());
        fs::write(root.join(odd), "odd").unwrap();
        let tar = house.tar(&["--sparse", "--xattrs"]);

        let id = house.store.import_tar(&mut fs::File::open(tar).unwrap(), &mut |_| {}).unwrap();
        let tree = house.store.path(id);
        assert_eq!(fs::read(tree.join(&long)).unwrap(), b"long");
        assert_eq!(stat(tree.join("one")).ino(), stat(tree.join("two")).ino());
        assert!(stat(tree.join("sparse")).blocks() < 2048 && stat(tree.join("sparse")).len() == (64 << 20) + 3);
        let suid = stat(tree.join("suid"));
        assert_eq!((suid.mode() & 0o7777, suid.uid(), suid.gid()), (0o6751, IDS.base + 33, IDS.base + 44));
        run("getfattr", &["-n", "user.note", text(&tree.join("one"))]);
        assert_eq!(fs::read(tree.join(odd)).unwrap(), b"odd");
        assert_eq!((stat(&tree).mode() & 0o7777, stat(&tree).uid()), (0o755, IDS.base));
    }

    fn unsafe_name() -> &'static std::ffi::OsStr {
        use std::os::unix::ffi::OsStrExt;
        std::ffi::OsStr::from_bytes(b"not\xff utf-8\n")
    }

    #[test]
    fn the_same_content_is_the_same_layer() {
        let house = House::new();
        let tar = house.tar(&[]);
        let import = || house.store.import_tar(&mut fs::File::open(&tar).unwrap(), &mut |_| {}).unwrap();
        let id = import();
        assert_eq!(import(), id);
        assert_eq!(house.store.import_dir(&house.rootfs(), &mut |_| {}).unwrap(), id);
        assert_eq!(house.store.all().unwrap(), [id.into()]);
        assert_eq!(fs::read_dir(house.data.layers()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_archive_leaves_nothing() {
        let house = House::new();
        let whole = fs::read(house.tar(&[])).unwrap();
        let cut = &whole[..1400]; // within the second header
        for bad in [cut, b"this is not an archive, and long enough to look like one".repeat(40).as_slice()] {
            let error = house.store.import_tar(&mut &*bad, &mut |_| {}).unwrap_err();
            assert_eq!(error.code(), Code::ArchiveInvalid, "{error}");
        }
        house.assert_empty();
    }

    #[test]
    fn content_of_another_digest_is_refused() {
        let house = House::new();
        let tar = fs::read(house.tar(&[])).unwrap();
        let wrong = LayerId::from_digest([7; 32]);
        let error = house.store.import_checked(&wrong, &mut tar.as_slice()).unwrap_err();
        assert!(matches!(error, Error::Archive(_)), "{error}");
        house.assert_empty();
        let right = house.store.import_tar(&mut tar.as_slice(), &mut |_| {}).unwrap();
        house.store.import_checked(&right, &mut Unread).unwrap();
    }

    /// A tar that nobody may pull.
    struct Unread;
    impl Read for Unread {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("the layer is there: its tar must not be read")
        }
    }

    #[test]
    fn a_full_disk_is_said_and_leaves_nothing() {
        let disk = Disk::new("size=2m");
        let (data, store) = open(disk.path());
        let house = House::new();
        fs::write(house.rootfs().join("big"), vec![7; 4 << 20]).unwrap();
        let error = store.import_tar(&mut fs::File::open(house.tar(&[])).unwrap(), &mut |_| {}).unwrap_err();
        assert_eq!(error.code(), Code::NoSpace, "{error}");
        let error = store.import_dir(&house.rootfs(), &mut |_| {}).unwrap_err();
        assert_eq!(error.code(), Code::NoSpace, "{error}");
        assert_eq!(fs::read_dir(data.layers()).unwrap().count(), 0);
        let error = Templates::new(&data, &store)
            .add("big", &TemplateSource::Directory(house.rootfs()), &Overrides::default(), &mut |_| {})
            .unwrap_err();
        assert_eq!(error.code(), Code::NoSpace, "{error}");
        assert_eq!(fs::read_dir(data.layers()).unwrap().count(), 0);
        assert_eq!(fs::read_dir(data.templates()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_dead_process_left_is_swept_and_a_living_ones_work_is_not() {
        let house = House::new();
        let dead = house.data.layers().join(".tmp-dead/tree/deep");
        fs::create_dir_all(&dead).unwrap();
        let tar = fs::read(house.tar(&[])).unwrap();
        let drafts = || fs::read_dir(house.data.layers()).unwrap().count();
        let mut opener = Opener {
            tar: tar.as_slice(),
            between: || {
                Store::open(&house.data, IDS).unwrap();
                assert_eq!(drafts(), 1, "the living one's draft");
            },
        };
        house.store.import_tar(&mut opener, &mut |_| {}).unwrap();
        assert!(!dead.exists());
    }

    /// Does something else in the middle of an import.
    struct Opener<'a, F> {
        tar: &'a [u8],
        between: F,
    }
    impl<F: Fn()> Read for Opener<'_, F> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            (self.between)();
            self.tar.read(into)
        }
    }

    #[test]
    fn only_unused_layers_are_removed_and_none_while_the_store_is_held() {
        let house = House::new();
        let import = |name: &str| {
            let root = house.rootfs();
            fs::write(root.join("name"), name).unwrap();
            house.store.import_dir(&root, &mut |_| {}).unwrap()
        };
        let (used, unused) = (import("used"), import("unused"));
        let keep = || Ok(BTreeSet::from([used.into()]));
        let hold = house.store.hold().unwrap();
        assert_eq!(house.store.remove_unused(&mut { keep }).unwrap(), None);
        assert!(house.store.has(unused));
        drop(hold);
        assert_eq!(house.store.remove_unused(&mut { keep }).unwrap(), Some(1));
        assert!(house.store.has(used) && !house.store.has(unused));
        assert_eq!(fs::read_dir(house.data.layers()).unwrap().count(), 1);
    }

    #[test]
    fn a_layer_that_cannot_be_removed_keeps_no_other() {
        let house = House::new();
        let import = |name: &str| {
            let root = house.rootfs();
            fs::write(root.join("name"), name).unwrap();
            house.store.import_dir(&root, &mut |_| {}).unwrap()
        };
        let layers = ["one", "two", "three"].map(import);
        let stuck = house.data.layers().join(layers[1].to_string());
        run("mount", &["-t", "tmpfs", "cabana-test", text(&stuck)]); // a mount point has no other name
        let removed = house.store.remove_unused(&mut || Ok(BTreeSet::new()));
        let left: Vec<_> = fs::read_dir(house.data.layers()).unwrap().map(|entry| entry.unwrap().path()).collect();
        run("umount", &["-l", text(&stuck)]);
        assert!(removed.is_err(), "{removed:?}");
        assert_eq!(left, [stuck]);
        assert_eq!(house.store.remove_unused(&mut || Ok(BTreeSet::new())).unwrap(), Some(1));
        house.assert_empty();
    }

    /// At each moment somebody holds it, and none of them for long.
    #[test]
    fn holds_that_overlap_do_not_keep_unused_layers() {
        let house = House::new();
        let unused = house.store.import_dir(&house.rootfs(), &mut |_| {}).unwrap();
        let ends = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                        let hold = house.store.hold().unwrap();
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        drop(hold);
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            let removed = (0..20).find_map(|_| house.store.remove_unused(&mut || Ok(BTreeSet::new())).unwrap());
            ends.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(removed, Some(1));
        });
        assert!(!house.store.has(unused));
    }
}

mod templates {
    use super::*;

    #[test]
    fn a_directory_becomes_a_template_with_what_a_sandbox_needs() {
        let house = House::new();
        let root = house.rootfs();
        fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh").unwrap();
        fs::set_permissions(root.join("etc"), Permissions::from_mode(0o751)).unwrap();
        let mut copied = 0;
        let source = text(&root).parse().unwrap();
        let made = house.templates().add("tiny", &source, &Overrides::default(), &mut |p| {
            if let Progress::Copied(bytes) = p {
                copied = bytes;
            }
        });
        let made = made.unwrap();
        assert!(copied > 0);
        assert_eq!(house.templates().get("tiny").unwrap(), made);
        assert_eq!((made.defaults.user.as_str(), made.defaults.workdir.to_string().as_str()), ("user", "/home/user"));
        assert_eq!(made.defaults.env["LANG"], "C.UTF-8");
        let [tree, top] = made.layers[..] else { panic!("{:?}", made.layers) };
        assert_eq!(fs::read(house.store.path(tree).join("usr/bin/dash")).unwrap(), b"a shell");

        let top = house.store.path(top);
        let read = |name: &str| fs::read_to_string(top.join(name)).unwrap();
        assert_eq!(read("etc/passwd"), "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n");
        assert!(read("etc/group").contains("\nuser:x:1000:\n"));
        assert!(read("etc/hosts").contains("127.0.0.1 localhost"));
        assert_eq!(stat(top.join("etc")).mode() & 0o7777, 0o751, "the tree's own /etc shines through");
        for (dir, mode, owner) in [
            ("home/user", 0o755, 1000),
            ("workspace", 0o755, 1000),
            ("tmp", 0o1777, 0),
            ("proc", 0o555, 0),
            ("run", 0o755, 0),
        ] {
            let entry = stat(top.join(dir));
            assert_eq!((entry.is_dir(), entry.mode() & 0o7777, entry.uid()), (true, mode, IDS.base + owner), "{dir}");
        }
    }

    #[test]
    fn a_trees_own_user_is_the_default() {
        let house = House::new();
        let root = house.rootfs();
        fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/srv/node:/bin/sh\n").unwrap();
        let made = house.add("node", &root).unwrap();
        assert_eq!((made.defaults.user.as_str(), made.defaults.workdir.to_string().as_str()), ("node", "/srv/node"));
        let top = house.store.path(made.layers[1]);
        assert!(!top.join("etc/passwd").exists(), "the accounts are left as they are");
        assert_eq!(stat(top.join("srv/node")).uid(), IDS.base + 1000);
    }

    #[test]
    fn a_user_that_no_sandbox_can_have_is_no_default() {
        let house = House::new();
        let root = house.rootfs();
        for line in ["user:x:131072:5::/home/user:/bin/sh", "user:x:5:65536::/home/user:/bin/sh"] {
            fs::write(root.join("etc/passwd"), format!("root:x:0:0::/root:/bin/sh\n{line}\n")).unwrap();
            let error = house.add("far", &root).unwrap_err();
            assert_eq!(error.code(), Code::TemplateInvalid, "{line}");
            assert!(error.to_string().contains("user") && error.to_string().contains("65535"), "{error}");
        }
        fs::write(root.join("etc/passwd"), "user:x:65535:65535::/home/user:/bin/sh\n").unwrap();
        assert_eq!(house.add("near", &root).unwrap().defaults.user.as_str(), "user");
    }

    #[test]
    fn links_to_directories_are_followed_and_not_covered() {
        let house = House::new();
        let root = house.rootfs();
        fs::rename(root.join("etc"), root.join("system")).unwrap();
        symlink("/system", root.join("etc")).unwrap();
        symlink("/proc/self/root", root.join("home")).unwrap(); // leads out, were it followed here
        let made = house.add("linked", &root).unwrap();
        let top = house.store.path(made.layers[1]);
        assert!(top.join("system/passwd").exists());
        assert!(
            fs::symlink_metadata(top.join("etc")).is_err(),
            "a directory here would hide the link and all behind it"
        );
    }

    #[test]
    fn wishes_come_before_what_the_tree_suggests() {
        let house = House::new();
        let source = TemplateSource::Directory(house.rootfs());
        let mut wishes =
            Overrides { user: Some(User::root()), workdir: Some("/srv/app".parse().unwrap()), ..Overrides::default() };
        wishes.env.insert("TZ".into(), "Europe/Berlin".into());
        fs::write(house.rootfs().join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
        let made = house.templates().add("wished", &source, &wishes, &mut |_| {}).unwrap();
        assert_eq!((made.defaults.user.as_str(), made.defaults.workdir.to_string().as_str()), ("root", "/srv/app"));
        assert_eq!(made.defaults.env["TZ"], "Europe/Berlin");
        assert!(house.store.path(made.layers[1]).join("srv/app").is_dir());

        wishes.user = Some(User::new("nobody-here").unwrap());
        let error = house.templates().add("other", &source, &wishes, &mut |_| {}).unwrap_err();
        assert_eq!(error.code(), Code::TemplateInvalid);
        assert!(error.to_string().contains("nobody-here"), "{error}");
    }

    #[test]
    fn a_tar_is_read_however_it_is_packed() {
        let house = House::new();
        let plain = fs::read(house.tar(&[])).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let packed = [plain.clone(), gzip.finish().unwrap(), zstd::encode_all(plain.as_slice(), 1).unwrap()];
        let layers: BTreeSet<_> = packed
            .iter()
            .enumerate()
            .map(|(n, bytes)| {
                let file = house.dir.path().join("misnamed");
                fs::write(&file, bytes).unwrap();
                house.add(&format!("t{n}"), &file).unwrap().layers
            })
            .collect();
        assert_eq!(layers.len(), 1, "one content, one stack");

        for (bad, why) in [
            (&packed[1][..packed[1].len() - 20], ""),
            (&packed[2][..packed[2].len() / 2], ""),
            (b"\xfd7zXZ\0more".as_slice(), "xz"),
            (b"BZh9".as_slice(), "bzip2"),
        ] {
            let file = house.dir.path().join("bad");
            fs::write(&file, bad).unwrap();
            let error = house.add("bad", &file).unwrap_err();
            assert_eq!(error.code(), Code::ArchiveInvalid, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        assert_eq!(house.store.all().unwrap().len(), 2);
    }

    #[test]
    fn what_is_no_root_file_system_is_refused_and_not_kept() {
        let house = House::new();
        let root = house.dir.path().join("poor");
        for (path, why) in [("other", "/etc"), ("etc/x", "/bin/sh"), ("bin/sh/dir", "/bin/sh"), ("oci-layout", "oci:")]
        {
            fs::create_dir_all(root.join(path)).unwrap();
            let error = house.add("poor", &root).unwrap_err();
            assert_eq!(error.code(), Code::TemplateInvalid);
            assert!(error.to_string().contains(why), "{error}");
        }
        house.assert_empty();
    }

    #[test]
    fn a_shell_that_is_a_link_out_of_the_tree_is_no_shell() {
        let house = House::new();
        let root = house.rootfs();
        fs::remove_file(root.join("usr/bin/sh")).unwrap();
        symlink("../../../../../../../../../../../../../../bin/sh", root.join("usr/bin/sh")).unwrap(); // the host has one, in a circle here
        let error = house.add("out", &root).unwrap_err();
        assert_eq!(error.code(), Code::TemplateInvalid, "{error}");
        house.assert_empty();
    }

    #[test]
    fn a_source_that_is_not_there_or_no_source_is_said() {
        for bad in ["/nowhere/at/all", "debian:", "debian:Bookworm", "debian:bookworm,--hook=x", "debian:bookworm,"] {
            let error = bad.parse::<TemplateSource>().unwrap_err();
            assert_eq!(error.code(), Code::BadRequest, "{bad}: {error}");
        }
        let set = TemplateSource::Debian { suite: "bookworm".into(), packages: vec!["git".into(), "g++".into()] };
        assert_eq!("debian:bookworm,git,g++".parse::<TemplateSource>().unwrap(), set);
        assert_eq!("-".parse::<TemplateSource>().unwrap(), TemplateSource::Stdin);
    }

    #[test]
    fn a_name_is_given_once_and_freed_by_rm() {
        let house = House::new();
        let made = house.add("tiny", &house.rootfs()).unwrap();
        let error = house.add("tiny", &house.rootfs()).unwrap_err();
        assert_eq!(error.code(), Code::TemplateExists, "{error}");
        assert_eq!(house.add("host", &house.rootfs()).unwrap_err().code(), Code::BadRequest);

        let error = house.templates().rm("tiny", &|name| name == "tiny").unwrap_err();
        assert_eq!(error.code(), Code::TemplateInUse, "{error}");
        assert_eq!(house.templates().layers(&[]).unwrap(), made.layers.iter().map(Into::into).collect());
        house.templates().rm("tiny", &|_| false).unwrap();
        assert_eq!(house.templates().rm("tiny", &|_| false).unwrap_err().code(), Code::TemplateNotFound);
        assert_eq!(house.templates().get("tiny").unwrap_err().code(), Code::TemplateNotFound);
        assert_eq!(house.store.remove_unused(&mut || house.templates().layers(&[])).unwrap(), Some(2));
        house.assert_empty();
    }

    #[test]
    fn two_that_make_one_name_at_once_make_one_template() {
        let house = House::new();
        let root = house.rootfs();
        let outcomes = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| house.add("tiny", &root).map(drop))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        assert!(
            outcomes
                .iter()
                .all(|o| o.as_ref().map_err(Error::code).map_or_else(|c| c == Code::TemplateExists, |()| true))
        );
        assert!(house.templates().get("tiny").is_ok());
    }

    #[test]
    fn a_damaged_template_names_its_file_and_hides_no_other() {
        let house = House::new();
        house.add("good", &house.rootfs()).unwrap();
        let file = house.data.templates().join("bad.json");
        for damage in
            ["", "{}", "[1]", r#"{"layers":[],"user":"u","workdir":"/","env":{},"made":"","source":"","more":1}"#]
        {
            fs::write(&file, damage).unwrap();
            let error = house.templates().get("bad").unwrap_err();
            assert_eq!(error.code(), Code::TemplateInvalid);
            assert!(error.to_string().contains(text(&file)), "{error}");
        }
        let listed = house.templates().ls().unwrap();
        assert_eq!(
            listed.iter().map(|(name, found)| (name.as_str(), found.is_ok())).collect::<Vec<_>>(),
            [("bad", false), ("good", true)]
        );
        let unused = house.store.remove_unused(&mut || house.templates().layers(&[]));
        assert_eq!(
            unused.unwrap_err().code(),
            Code::TemplateInvalid,
            "what it used is not known, so nothing is removed"
        );
        house.templates().rm("bad", &|_| false).unwrap();
        assert_eq!(house.templates().ls().unwrap().len(), 1);
    }

    #[test]
    fn a_debian_set_is_made_from_the_machines_own_sources() {
        let house = House::new();
        let (mut said, mut copied) = (Vec::new(), 0);
        let source = "debian:bookworm".parse().unwrap();
        let made = house.templates().add("debian", &source, &Overrides::default(), &mut |progress| match progress {
            Progress::Says(line) => said.push(line.to_owned()),
            Progress::Copied(bytes) => copied = bytes,
            Progress::Checking => {}
        });
        let made = made.unwrap();
        assert!(!said.is_empty() && copied > 50 << 20, "{said:?} {copied}");
        let tree = house.store.path(made.layers[0]);
        assert!(tree.join("usr/bin/apt-get").exists());
        assert!(!tree.join("etc/resolv.conf").exists() && !tree.join("etc/hostname").exists(), "the host's own");
        assert_eq!(made.source, "debian:bookworm");
        let out =
            Command::new("chroot").arg(&tree).args(["/bin/sh", "-c", "dpkg -s apt | grep ^Status"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), "Status: install ok installed\n");
    }

    #[test]
    fn a_failed_debian_set_is_told_in_its_own_words() {
        let house = House::new();
        let source = "debian:no-such-suite".parse().unwrap();
        let error = house.templates().add("debian", &source, &Overrides::default(), &mut |_| {}).unwrap_err();
        assert_eq!(error.code(), Code::TemplateInvalid, "{error}");
        assert!(error.to_string().contains("no-such-suite"), "{error}");
        house.assert_empty();
    }
}

mod host_base {
    use super::*;

    /// The base as a sandbox mounts it, in a mount namespace of the script's own.
    const INSIDE: &str = r#"set -e
        mount --make-rprivate /
        mount -t tmpfs none "$WORK" && mkdir "$WORK/root" "$WORK/u1" "$WORK/w1" "$WORK/u2" "$WORK/w2"
        mount -t overlay -o "lowerdir=$ROOT,upperdir=$WORK/u1,workdir=$WORK/w1" none "$WORK/root"
        mount -t overlay -o "lowerdir=$USR,upperdir=$WORK/u2,workdir=$WORK/w2" none "$WORK/root/usr"
        mount -t proc none "$WORK/root/proc"
        mount --bind /dev/null "$(touch "$WORK/root/dev/null"; echo "$WORK/root/dev/null")"
        exec chroot "$WORK/root" /bin/sh -c "$SCRIPT""#;

    #[test]
    fn the_machines_programs_run_on_it_and_its_secrets_are_not_there() {
        let house = House::new();
        let base = HostBase::prepare(&house.data, &house.store).unwrap();
        assert_eq!(base.fingerprint, HostBase::current_fingerprint());
        assert_eq!(HostBase::prepare(&house.data, &house.store).unwrap(), base);
        assert_eq!(house.templates().layers(&[]).unwrap(), base.layers().map(Into::into).collect());
        let work = house.dir.path().join("work");
        fs::create_dir(&work).unwrap();
        let usr = &base.trees[0];
        let mask = usr.mask.map(|mask| format!("{}:", house.store.path(mask).display())).unwrap_or_default();
        let script = r#"set -e
            awk 'BEGIN { print "awk" }'
            id -un 1000; getent passwd root | cut -d: -f7
            dpkg -s dash | grep ^Status; apt-get --version >/dev/null
            test ! -s /etc/environment; test ! -e /etc/ssh; test ! -e /root/.bashrc
            find /usr -xdev -type f ! -perm -o+r | wc -l"#;
        let out = Command::new("unshare")
            .args(["--mount", "/bin/sh", "-c", INSIDE])
            .env("WORK", &work)
            .env("ROOT", house.store.path(base.root_layers[0]))
            .env("USR", format!("{mask}{}", usr.host.display()))
            .env("SCRIPT", script)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert_eq!(
            said,
            "awk\nuser\n/bin/bash\nStatus: install ok installed\n0\n",
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}
