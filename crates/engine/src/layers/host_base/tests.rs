//! The base of a host that the test makes: what is shown of it and what is not.

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::PathBuf,
};

use tempfile::TempDir;

use super::*;

const IDS: IdMap = IdMap { base: 0x7ffe_0000, count: 65_536 };

struct Fixture {
    dir: TempDir,
    data: DataDir,
    store: Store,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path().join("data")).unwrap();
        let store = Store::open(&data, IDS).unwrap();
        let host = Self { dir, data, store };
        host.file("usr/bin/tool", 0o755, "tool");
        host.file("etc/passwd", 0o644, "root:x:0:0:Boss:/root:/bin/sh\n_apt:x:42:65534::/nonexistent:/bin/sh\nana:x:1000:1000:Ana:/home/ana:/bin/sh\n");
        host.file("etc/group", 0o644, "root:x:0:\nshadow:x:77:ana\nana:x:1000:\n");
        symlink("usr/bin", host.host().join("bin")).unwrap();
        host
    }

    fn host(&self) -> PathBuf {
        self.dir.path().join("host")
    }

    fn file(&self, path: &str, mode: u32, text: &str) {
        let at = self.host().join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&at, text).unwrap();
        fs::set_permissions(&at, Permissions::from_mode(mode)).unwrap();
    }

    fn prepare(&self) -> HostBase {
        prepare_from(&self.host(), &self.data, &self.store).unwrap()
    }

    /// Where a path of the generated root lies.
    fn root(&self, base: &HostBase, path: &str) -> PathBuf {
        self.store.path(base.root_layers[0]).join(path)
    }
}

#[test]
fn what_not_everybody_may_read_is_hidden() {
    let host = Fixture::new();
    host.file("usr/lib/a/secret.key", 0o640, "");
    host.file("usr/lib/a/public", 0o644, "");
    host.file("usr/lib/closed/inside", 0o644, "");
    fs::set_permissions(host.host().join("usr/lib/closed"), Permissions::from_mode(0o750)).unwrap();
    fs::set_permissions(host.host().join("usr/lib/a"), Permissions::from_mode(0o775)).unwrap();
    let _socket = UnixListener::bind(host.host().join("usr/lib/socket")).unwrap();
    let base = host.prepare();

    assert_eq!(base.trees.iter().map(|tree| tree.at.as_str()).collect::<Vec<_>>(), ["/usr"]);
    let mask = host.store.path(base.trees[0].mask.unwrap());
    for hidden in ["lib/a/secret.key", "lib/closed", "lib/socket"] {
        let entry = fs::symlink_metadata(mask.join(hidden)).unwrap();
        assert!(entry.file_type().is_char_device() && entry.rdev() == 0, "{hidden}");
    }
    assert!(!mask.join("lib/a/public").exists() && !mask.join("bin").exists());
    let covering = fs::metadata(mask.join("lib/a")).unwrap();
    assert_eq!((covering.mode() & 0o7777, covering.uid()), (0o775, IDS.base), "a mask changes no directory");
}

#[test]
fn a_host_with_nothing_to_hide_has_no_mask() {
    let host = Fixture::new();
    assert_eq!(host.prepare().trees, [HostTree { at: "/usr".into(), host: host.host().join("usr"), mask: None }]);
}

#[test]
fn program_directories_that_are_no_links_are_shown_as_trees() {
    let host = Fixture::new();
    host.file("sbin/init", 0o700, "");
    let base = host.prepare();
    assert_eq!(fs::read_link(host.root(&base, "bin")).unwrap(), Path::new("usr/bin"));
    assert!(host.root(&base, "sbin").is_dir());
    assert_eq!(base.trees[1].at, "/sbin");
    assert!(base.trees[1].mask.is_some());
}

#[test]
fn secrets_of_etc_stay_outside() {
    let host = Fixture::new();
    host.file("etc/shadow", 0o640, "root:$6$hash:1::::::\n");
    host.file("etc/environment", 0o644, "TOKEN=x");
    host.file("etc/npmrc", 0o644, "//r/:_authToken=x");
    host.file("etc/ssl/private/key.pem", 0o644, "key");
    host.file("etc/ssl/certs/ca.pem", 0o644, "cert");
    host.file("etc/ssl/certs/mine.pem", 0o600, "key");
    host.file("etc/profile.d/proxy.sh", 0o644, "export https_proxy=x");
    host.file("etc/apt/auth.conf", 0o644, "password x");
    host.file("etc/apt/sources.list", 0o644, "deb https://one.test/debian one main");
    host.file("etc/apt/sources.list.d/paid.list", 0o644, "deb https://me:pw@paid.test/debian one main");
    host.file("etc/apt/apt.conf.d/proxy", 0o644, "Acquire::http::Proxy \"http://me:pw@proxy.test\";");
    host.file("root/.ssh/id", 0o644, "key");
    host.file("home/ana/notes", 0o644, "private");
    let base = host.prepare();
    for absent in
        ["etc/npmrc", "etc/ssl/private", "etc/ssl/certs/mine.pem", "etc/profile.d/proxy.sh", "etc/apt/auth.conf"]
    {
        assert!(!host.root(&base, absent).exists(), "{absent}");
    }
    for absent in [
        "etc/apt/sources.list.d/paid.list",
        "etc/apt/apt.conf.d/proxy",
        "root/.ssh",
        "home/ana",
        "etc/resolv.conf",
        "etc/machine-id",
    ] {
        assert!(!host.root(&base, absent).exists(), "{absent}");
    }
    assert_eq!(fs::read(host.root(&base, "etc/environment")).unwrap(), b"");
    assert!(host.root(&base, "etc/ssl/certs/ca.pem").exists());
    assert!(host.root(&base, "etc/apt/sources.list").exists());
}

#[test]
fn accounts_have_no_people_and_no_passwords() {
    let host = Fixture::new();
    let base = host.prepare();
    let read = |path: &str| fs::read_to_string(host.root(&base, path)).unwrap();
    assert_eq!(
        read("etc/passwd"),
        "root:x:0:0::/root:/bin/sh\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n\
         nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\nuser:x:1000:1000::/home/user:/bin/sh\n"
    );
    assert_eq!(read("etc/group"), "root:x:0:\nshadow:x:77:\nnogroup:x:65534:\nuser:x:1000:\n");
    let shadow = fs::metadata(host.root(&base, "etc/shadow")).unwrap();
    assert_eq!((shadow.mode() & 0o7777, shadow.uid(), shadow.gid()), (0o640, IDS.base, IDS.base + 77));
    let owner = |path: &str| {
        fs::metadata(host.root(&base, path)).map(|entry| (entry.mode() & 0o7777, entry.uid() - IDS.base)).unwrap()
    };
    assert_eq!(owner("home/user"), (0o755, 1000));
    assert_eq!(owner("workspace"), (0o755, 1000));
    assert_eq!(owner("tmp"), (0o1777, 0));
    assert_eq!(owner("root"), (0o700, 0));
    assert_eq!(owner("var/cache/apt/archives/partial"), (0o700, 42));
}

#[test]
fn a_base_is_reused_until_the_host_changes() {
    let host = Fixture::new();
    let first = host.prepare();
    let made = fs::metadata(host.data.templates().join(".host.json")).unwrap().ino();
    assert_eq!(host.prepare(), first);
    assert_eq!(fs::metadata(host.data.templates().join(".host.json")).unwrap().ino(), made, "made again");
    host.file("usr/bin/new", 0o755, "");
    let second = host.prepare();
    assert_ne!(second.fingerprint, first.fingerprint);
    assert_eq!(second.root_layers, first.root_layers, "the root is the same, and so is its layer");
}

#[test]
fn a_damaged_record_and_a_lost_layer_are_made_again() {
    let host = Fixture::new();
    let first = host.prepare();
    fs::write(host.data.templates().join(".host.json"), "{").unwrap();
    assert_eq!(host.prepare(), first);
    fs::remove_dir_all(host.store.path(first.root_layers[0]).parent().unwrap()).unwrap();
    assert_eq!(host.prepare(), first);
    assert!(host.root(&first, "etc/passwd").exists());
}

#[test]
fn two_at_once_end_with_one_base() {
    let host = Fixture::new();
    let bases = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| host.prepare())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(bases.iter().all(|base| *base == bases[0]));
    assert_eq!(host.store.all().unwrap().len(), 1);
}

#[test]
fn the_defaults_can_be_read() {
    assert_eq!(host_defaults().user.as_str(), "user");
    assert_eq!(host_defaults().workdir.to_string(), "/home/user");
}
