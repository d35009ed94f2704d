//! Archives that want more than to be unpacked: through the files interface, and as templates.

use std::{fs, path::Path, sync::Arc};

use cabana_engine::{Engine, TemplateSource};
use cabana_sandbox::{Base, Overrides, SandboxSpec};
use futures_util::{StreamExt, stream};
use tar::{Builder, EntryType, Header};

use crate::{
    attacks::Ran,
    inside::{Inside, config, passing, path, unique},
};

/// Plain files with their content.
pub(crate) fn tar_of(files: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = Evil::new();
    for (name, content) in files {
        tar.file(name, content);
    }
    tar.end()
}

/// Writes what a good tool would refuse to write.
pub(crate) struct Evil(Builder<Vec<u8>>);

impl Evil {
    pub(crate) fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    pub(crate) fn entry(&mut self, kind: EntryType, name: &str, link: &str, mode: u32, content: &[u8]) -> &mut Self {
        let mut header = Header::new_gnu();
        let fields = header.as_gnu_mut().unwrap();
        fields.name[..name.len()].copy_from_slice(name.as_bytes());
        fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(content.len() as u64);
        if matches!(kind, EntryType::Char | EntryType::Block) {
            header.set_device_major(1).unwrap();
            header.set_device_minor(5).unwrap();
        }
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    pub(crate) fn file(&mut self, name: &str, content: &str) -> &mut Self {
        self.entry(EntryType::Regular, name, "", 0o644, content.as_bytes())
    }

    /// The next entry gets this extended attribute.
    fn attribute(&mut self, name: &str, value: &str) -> &mut Self {
        self.record(&format!("SCHILY.xattr.{name}"), value)
    }

    /// What the next entry's header cannot say.
    fn record(&mut self, key: &str, value: &str) -> &mut Self {
        let bare = format!(" {key}={value}\n").len();
        let length = (bare..).find(|total| total - total.to_string().len() == bare).unwrap();
        let record = format!("{length} {key}={value}\n");
        self.entry(EntryType::XHeader, "pax", "", 0o644, record.as_bytes())
    }

    pub(crate) fn end(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// What a reader that believes the archive makes of it, on the host: so that it is the wall that stops it inside, and not an
/// archive that would do nothing.
pub(crate) fn believed(tar: &[u8], into: &Path) -> Ran {
    fs::create_dir_all(into).unwrap();
    let file = into.with_extension("tar");
    fs::write(&file, tar).unwrap();
    let script = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter='fully_trusted')";
    Ran::of(std::process::Command::new("python3").args(["-c", script]).arg(file).arg(into))
}

/// Unpacks into a directory of the user's, and says whether it was taken.
pub(crate) async fn unpack(inside: &Inside, user: &str, tar: Vec<u8>) -> bool {
    let body = stream::once(async move { Ok(tar.into()) }).boxed();
    inside.files(user).unpack(&path("/home/user/into"), body).await.is_ok()
}

#[tokio::test]
async fn names_that_lead_out_of_the_directory() {
    let inside = Inside::new().await;
    inside.user("mkdir -p /home/user/into && echo mine > /home/user/precious").await.ok();
    let canary = tempfile::NamedTempFile::new().unwrap();
    fs::write(canary.path(), "of the host").unwrap();
    let host = canary.path().to_str().unwrap();
    let up = format!("../../../../../../..{host}");
    let (work, naive) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
    believed(&tar_of(&[(naive.path().to_str().unwrap(), "changed")]), &work.path().join("into")).ok();
    believed(&tar_of(&[("../beside", "changed")]), &work.path().join("into")).ok();
    for changed in [naive.path(), &work.path().join("beside")] {
        assert_eq!(fs::read_to_string(changed).unwrap(), "changed", "a reader that believes it writes there");
    }
    for user in ["root", "user"] {
        for name in [host, &up, "../precious", "a/../../precious", "./../precious", "/home/user/precious", ".."] {
            unpack(&inside, user, tar_of(&[(name, "changed")])).await;
            assert_eq!(inside.user("cat /home/user/precious").await.ok(), "mine", "{name} as {user}");
            assert_eq!(fs::read_to_string(canary.path()).unwrap(), "of the host", "{name} as {user}");
        }
        assert!(unpack(&inside, user, tar_of(&[("plain", "made")])).await, "what is plain is unpacked");
    }
    inside.end().await;
}

#[tokio::test]
async fn an_archive_that_makes_a_link_and_then_writes_through_it() {
    let inside = Inside::new().await;
    inside.user("mkdir -p /home/user/into /home/user/target && echo mine > /home/user/target/f").await.ok();
    let work = tempfile::tempdir().unwrap();
    let (target, into) = (work.path().join("target"), work.path().join("into"));
    fs::create_dir(&target).unwrap();
    let mut tar = Evil::new();
    tar.entry(EntryType::Symlink, "l", target.to_str().unwrap(), 0o777, b"").file("l/f", "changed");
    believed(&tar.end(), &into).ok();
    assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "changed", "a reader that believes it follows the link");
    for user in ["root", "user"] {
        for link in
            ["/home/user/target", "../target", "/proc/self/cwd/home/user/target", "/proc/1/root/home/user/target"]
        {
            let mut tar = Evil::new();
            tar.entry(EntryType::Symlink, "l", link, 0o777, b"").file("l/f", "changed").file("l/new", "made");
            unpack(&inside, user, tar.end()).await;
            let mut tar = Evil::new();
            tar.entry(EntryType::Symlink, "f", &format!("{link}/f"), 0o777, b"").file("f", "changed");
            unpack(&inside, user, tar.end()).await;
            assert_eq!(inside.user("cat /home/user/target/*").await.ok(), "mine", "{link} as {user}");
            inside.root("rm -rf /home/user/into/*").await.ok();
        }
    }
    inside.end().await;
}

#[tokio::test]
async fn an_archive_whose_hard_link_names_a_file_outside_of_it() {
    let inside = Inside::new().await;
    inside.user("mkdir -p /home/user/into && echo mine > /home/user/precious").await.ok();
    let work = tempfile::tempdir().unwrap();
    fs::write(work.path().join("precious"), "mine").unwrap();
    let mut tar = Evil::new();
    tar.entry(EntryType::Link, "hard", "../precious", 0o644, b"");
    believed(&tar.end(), &work.path().join("into")).ok();
    assert_eq!(
        fs::read_to_string(work.path().join("into/hard")).unwrap(),
        "mine",
        "a reader that believes it links it"
    );
    for user in ["root", "user"] {
        for target in ["../precious", "/home/user/precious", "/etc/shadow", "../../../etc/shadow"] {
            let mut tar = Evil::new();
            tar.entry(EntryType::Link, "hard", target, 0o644, b"").file("hard", "changed");
            unpack(&inside, user, tar.end()).await;
            assert_eq!(inside.user("cat /home/user/precious").await.ok(), "mine", "{target} as {user}");
            let links = inside.root("stat -c %h /home/user/precious /etc/shadow | sort -u").await.ok();
            assert_eq!(links, "1", "{target} as {user}");
            inside.root("rm -rf /home/user/into/*").await.ok();
        }
    }
    inside.end().await;
}

#[tokio::test]
async fn an_archive_with_devices() {
    let inside = Inside::new().await;
    inside.user("mkdir -p /home/user/into").await.ok();
    let work = tempfile::tempdir().unwrap();
    let mut tar = Evil::new();
    tar.entry(EntryType::Char, "device", "", 0o666, b"");
    believed(&tar.end(), &work.path().join("into")).ok();
    use std::os::unix::fs::FileTypeExt;
    let made = fs::metadata(work.path().join("into/device")).unwrap().file_type();
    assert!(made.is_char_device(), "root of the host makes it");
    for user in ["root", "user"] {
        for kind in [EntryType::Char, EntryType::Block] {
            let mut tar = Evil::new();
            tar.entry(kind, "device", "", 0o666, b"");
            unpack(&inside, user, tar.end()).await;
            inside.root("test -c /home/user/into/device || test -b /home/user/into/device").await.refused();
        }
    }
    inside.end().await;
}

/// The kernel has one such directory for all: whoever may change it in one `/proc` changes it in every other.
#[tokio::test]
async fn an_archive_that_takes_over_directories_of_the_kernel() {
    use std::os::unix::fs::MetadataExt;
    let theirs = Path::new("/proc/tty/driver");
    let whose = || fs::metadata(theirs).map(|meta| (meta.uid(), meta.gid(), meta.mode() & 0o7777)).unwrap();
    let before = whose();
    let inside = Inside::new().await;
    let mut tar = Evil::new();
    // The mode that it has: were it taken over, nobody would gain by that but the new owner.
    tar.entry(EntryType::Directory, "proc/tty/driver/", "", before.2, b"");
    let body = tar.end();
    let body = stream::once(async move { Ok(body.into()) }).boxed();
    let _ = inside.files("root").unpack(&path("/"), body).await;
    let after = whose();
    if after != before {
        std::os::unix::fs::chown(theirs, Some(before.0), Some(before.1)).unwrap();
    }
    assert_eq!(after, before);
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn an_archive_that_promises_more_than_there_is() {
    let inside = Inside::new().await;
    inside.user("mkdir -p /home/user/into").await.ok();
    let mut header = Header::new_gnu();
    header.set_path("huge").unwrap();
    header.set_size(u64::MAX >> 2);
    header.set_mode(0o644);
    header.set_cksum();
    let tar = header.as_bytes().to_vec();
    assert!(unpack(&inside, "user", tar_of(&[("plain", "made")])).await, "one that is whole is taken");
    for tar in [tar.clone(), tar[..300].to_vec(), [tar, vec![0xff; 4096]].concat(), vec![0xff; 10240]] {
        let taken = crate::inside::soon("a broken archive", unpack(&inside, "user", tar)).await;
        assert!(!taken, "a broken archive is an error");
    }
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn an_archive_with_numbers_out_of_bounds() {
    let inside = Inside::new().await;
    inside.user("mkdir -p /home/user/into").await.ok();
    let numbers = ["-1", "9223372036854775807", "18446744073709551615", "99999999999999999999999", "1e400", "nan", ""];
    for key in ["mtime", "atime", "size", "uid", "gid", "GNU.sparse.realsize", "GNU.sparse.size", "GNU.sparse.map"] {
        for value in numbers {
            for user in ["user", "root"] {
                let mut tar = Evil::new();
                tar.record("GNU.sparse.name", "f").record(key, value).file("f", "content");
                let _ = crate::inside::soon(key, unpack(&inside, user, tar.end())).await;
                let mut tar = Evil::new();
                tar.record(key, value).file("f", "content");
                let _ = crate::inside::soon(key, unpack(&inside, user, tar.end())).await;
            }
        }
    }
    // Whatever was made of them belongs to somebody inside.
    inside.root("find /home/user/into -uid +65535 -o -gid +65535 | grep .").await.refused();
    assert!(unpack(&inside, "user", tar_of(&[("plain", "made")])).await, "it still unpacks");
    inside.end().await;
}

/// Shells with what they need, and a few tools: enough to be a template.
pub(crate) fn small_root(at: &Path) {
    for dir in ["etc", "bin", "tmp"] {
        fs::create_dir_all(at.join(dir)).unwrap();
    }
    for tool in ["sh", "bash", "cat", "id", "ls", "stat"] {
        let program = Path::new("/usr/bin").join(tool);
        copy(&program, &at.join("bin").join(tool));
        let said = std::process::Command::new("ldd").arg(&program).output().unwrap();
        let libraries = String::from_utf8(said.stdout).unwrap();
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            copy(Path::new(library), &at.join(&library[1..]));
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

/// The small root as a tar, with more in it.
pub(crate) fn root_tar(work: &Path, more: impl FnOnce(&mut Evil)) -> Vec<u8> {
    let root = work.join("root");
    small_root(&root);
    let mut tar = Evil::new();
    tar.0.append_dir_all(".", &root).unwrap();
    more(&mut tar);
    tar.end()
}

/// The name of the template that the tests make.
pub(crate) const EVIL: &str = "evil";

/// An engine with a template from a source, or `None` when the template is refused.
pub(crate) async fn engine_with(work: &Path, source: &TemplateSource, wishes: &Overrides) -> Option<Arc<Engine>> {
    let engine = Engine::open(config(work.join("data"))).await.unwrap();
    let added = tokio::task::block_in_place(|| engine.templates().add(EVIL, source, wishes, &mut |_| {}));
    if added.is_err() {
        engine.close().await;
        return None;
    }
    Some(engine)
}

/// A sandbox from a template whose tar has more in it than a small root. `None` when the template is refused.
async fn from_template(work: &Path, more: impl FnOnce(&mut Evil), sudo: bool) -> Option<Inside> {
    let file = work.join("template.tar");
    fs::write(&file, root_tar(work, more)).unwrap();
    let engine = engine_with(work, &TemplateSource::Tar(file), &Overrides::default()).await?;
    let spec = SandboxSpec { base: Base::Named(EVIL.into()), sudo, ..passing() };
    Some(Inside::of(engine, &spec).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_with_names_and_links_that_lead_out() {
    let work = tempfile::tempdir().unwrap();
    let outside = work.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let content = unique("canary");
    fs::write(outside.join("canary"), &content).unwrap();
    let host = outside.to_str().unwrap().to_owned();
    let up = format!("../../../../../../../../..{host}");
    let ways: [(EntryType, String, String); 6] = [
        (EntryType::Regular, format!("{up}/new"), String::new()),
        (EntryType::Regular, format!("{host}/new"), String::new()),
        (EntryType::Link, "hard".into(), format!("{host}/canary")),
        (EntryType::Link, "hard".into(), format!("{up}/canary")),
        (EntryType::Symlink, "soft".into(), host.clone()),
        (EntryType::Symlink, "soft".into(), up.clone()),
    ];
    let plain = work.path().join("plain");
    fs::create_dir(&plain).unwrap();
    from_template(&plain, |_| {}, false).await.expect("without them it is a template").end().await;
    for (number, (kind, name, link)) in ways.into_iter().enumerate() {
        let work = work.path().join(number.to_string());
        fs::create_dir(&work).unwrap();
        let more = |tar: &mut Evil| {
            tar.entry(kind, &name, &link, 0o644, b"");
            tar.file("soft/new", "made");
        };
        if let Some(inside) = from_template(&work, more, false).await {
            let said = inside.root("cat /hard /soft/canary 2>&1; true").await.ok();
            assert!(!said.contains(&content), "{name} to {link}: {said}");
            inside.end().await;
        }
        let left: Vec<_> = fs::read_dir(&outside).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["canary"], "{name} to {link}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_with_devices_and_set_uid_programs() {
    let work = tempfile::tempdir().unwrap();
    let id = fs::read("/usr/bin/id").unwrap();
    let more = |tar: &mut Evil| {
        tar.entry(EntryType::Char, "zero", "", 0o666, b"").entry(EntryType::Block, "disk", "", 0o666, b"");
        tar.entry(EntryType::Regular, "raised", "", 0o6755, &id);
        tar.file("etc/passwd", "root:x:0:0::/:/bin/bash\nuser:x:1000:1000::/:/bin/bash\n");
    };
    let inside = from_template(work.path(), more, false).await.expect("it is a template without them");
    for user in ["root", "user"] {
        for node in ["/zero", "/disk"] {
            let script = format!("exec 3<{node} && read -r -n 1 -u 3");
            let ran = inside.command(user, cabana_sandbox::ExecSpec::shell(script, path("/"))).await;
            assert_ne!(ran.status, cabana_sandbox::Status::Code(0), "{node} as {user}");
        }
    }
    assert_eq!(inside.user("/raised -u").await.ok(), "1000");
    inside.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_speaks_to_the_overlay() {
    let work = tempfile::tempdir().unwrap();
    let content = unique("canary");
    fs::write(work.path().join("canary"), &content).unwrap();
    let host = work.path().to_str().unwrap().to_owned();
    let more = |tar: &mut Evil| {
        for (number, prefix) in ["user.overlay", "trusted.overlay"].iter().enumerate() {
            tar.attribute(&format!("{prefix}.redirect"), &host);
            tar.entry(EntryType::Directory, &format!("redirected{number}/"), "", 0o755, b"");
            tar.attribute(&format!("{prefix}.redirect"), &format!("{host}/canary"));
            tar.file(&format!("copied{number}"), "");
            tar.attribute(&format!("{prefix}.metacopy"), "");
            tar.file(&format!("thin{number}"), "");
            tar.attribute(&format!("{prefix}.opaque"), "y");
            tar.entry(EntryType::Directory, &format!("opaque{number}/"), "", 0o755, b"");
        }
        tar.file(".wh.bin", "").file(".wh..wh..opq", "").file("etc/.wh.passwd", "");
    };
    let inside = from_template(work.path(), more, false).await.expect("it is a template without them");
    let said = inside.root("cat /redirected*/* /copied* /thin* /opaque*/* 2>/dev/null; ls /; true").await.ok();
    assert!(!said.contains(&content) && !said.contains("data"), "{said}");
    assert!(said.lines().any(|line| line == "bin"), "a name is a name: {said}");
    inside.end().await;
    assert_eq!(fs::read_to_string(work.path().join("canary")).unwrap(), content);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_whose_mount_points_are_links() {
    let work = tempfile::tempdir().unwrap();
    for (number, name) in ["proc", "dev", "etc"].iter().enumerate() {
        let (outside, work) = (work.path().join(format!("out{number}")), work.path().join(number.to_string()));
        fs::create_dir(&outside).unwrap();
        fs::create_dir(&work).unwrap();
        let host = outside.to_str().unwrap().to_owned();
        let root = work.join("root");
        small_root(&root);
        if *name == "etc" {
            fs::remove_dir_all(root.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(&host, root.join(name)).unwrap();
        let engine = Engine::open(config(work.join("data"))).await.unwrap();
        let added = tokio::task::block_in_place(|| {
            engine.templates().add("links", &TemplateSource::Directory(root), &Overrides::default(), &mut |_| {})
        });
        assert_eq!(added.is_ok(), *name != "etc", "without its /etc it is no template: {name}");
        if added.is_ok() {
            let spec = SandboxSpec { base: Base::Named("links".into()), ..passing() };
            let id = cabana_sandbox::SandboxId::random();
            // Made with a mount point of its own: nothing is done where the link leads.
            cabana_sandbox::Provider::create(&*engine, &id, &spec).await.unwrap();
            cabana_sandbox::Provider::destroy(&*engine, &id).await.unwrap();
        }
        engine.close().await;
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{name}");
    }
}
