//! Archives whose own links lead their later entries out, unpacked into a sandbox and made into a template.

use cabana_engine::TemplateSource;
use cabana_sandbox::{Base, Overrides, Provider, SandboxId, SandboxSpec};
use tar::EntryType;

use super::stage::Canary;
use crate::{
    archives::{EVIL, Evil, believed, engine_with, root_tar, unpack},
    inside::{Inside, passing},
};

/// Unpacks it by the file API as root and as the user, and makes a template of it: the host's files stay as they are.
async fn reaches_nothing(canary: &Canary, entries: impl Fn(&mut Evil)) {
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        inside.root("rm -rf /home/user/into && install -d -o user -g user /home/user/into").await.ok();
        let mut tar = Evil::new();
        entries(&mut tar);
        let _ = unpack(&inside, user, tar.end()).await;
        canary.is_untouched("unpacked by the file API");
        assert_eq!(inside.root("stat -c %F /home/user/into").await.ok(), "directory");
        assert!(
            unpack(&inside, user, crate::archives::tar_of(&[("plain", "made")])).await,
            "what is plain is unpacked"
        );
    }
    inside.end().await;
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("template.tar");
    std::fs::write(&file, root_tar(work.path(), |tar| entries(tar))).unwrap();
    if let Some(engine) = engine_with(work.path(), &TemplateSource::Tar(file), &Overrides::default()).await {
        canary.is_untouched("made into a template");
        let id = SandboxId::random();
        let _ = engine.create(&id, &SandboxSpec { base: Base::Named(EVIL.into()), ..passing() }).await;
        engine.destroy(&id).await.unwrap();
        engine.close().await;
    }
    canary.is_untouched("started from a template");
}

/// The control: a reader that believes such an archive is led out.
fn believer_is_led_out(canary: &Canary, entries: impl Fn(&mut Evil)) {
    let work = tempfile::tempdir().unwrap();
    let mut tar = Evil::new();
    entries(&mut tar);
    let ran = believed(&tar.end(), &work.path().join("into"));
    canary.is_touched(&format!("{ran:?}"));
}

/// CVE-2021-32760, CVE-2025-47290: the mode of an entry is set on what an earlier link of that name leads to.
#[tokio::test(flavor = "multi_thread")]
async fn chmod_through_an_archived_symlink_changes_nothing_outside() {
    let canary = Canary::new();
    let (dir, file) = (canary.dir().to_owned(), canary.file());
    let entries = |tar: &mut Evil| {
        tar.entry(EntryType::Symlink, "d", &dir, 0o777, b"").entry(EntryType::Directory, "d/", "", 0o6700, b"");
        tar.entry(EntryType::Symlink, "f", &file, 0o777, b"").entry(EntryType::Regular, "f", "", 0o4700, b"");
        tar.entry(EntryType::Symlink, "e", &dir, 0o777, b"").entry(EntryType::Directory, "e/sub/", "", 0o700, b"");
        tar.entry(EntryType::Regular, "e/f", "", 0o4777, b"changed");
    };
    reaches_nothing(&canary, entries).await;
    believer_is_led_out(&canary, entries);
}

/// CVE-2021-29136: the root of what is unpacked, as an entry.
#[tokio::test(flavor = "multi_thread")]
async fn archive_cannot_replace_its_own_root() {
    let canary = Canary::new();
    let dir = canary.dir().to_owned();
    for root in [".", "./", "a/.."] {
        reaches_nothing(&canary, |tar| {
            tar.entry(EntryType::Symlink, root, &dir, 0o777, b"").file("f", "changed").file("new", "made");
            tar.entry(EntryType::Regular, root, "", 0o600, b"a file");
        })
        .await;
    }
    // Where the root is a link, everything that is unpacked after it is led out.
    let work = tempfile::tempdir().unwrap();
    let into = work.path().join("into");
    std::os::unix::fs::symlink(&dir, &into).unwrap();
    believed(&crate::archives::tar_of(&[("new", "made")]), &into).ok();
    canary.is_touched("through the root");
}

/// CVE-2024-0406: a hard link whose target lies behind a link of the archive.
#[tokio::test(flavor = "multi_thread")]
async fn hardlink_through_an_archived_symlink_reaches_nothing_outside() {
    let canary = Canary::new();
    let dir = canary.dir().to_owned();
    let entries = |tar: &mut Evil| {
        tar.entry(EntryType::Symlink, "d", &dir, 0o777, b"");
        tar.entry(EntryType::Link, "h", "d/f", 0o644, b"").file("h", "changed");
        tar.entry(EntryType::Symlink, "s", &format!("{dir}/f"), 0o777, b"");
        tar.entry(EntryType::Link, "t", "s", 0o644, b"").file("t", "changed");
        tar.file("own", "own").entry(EntryType::Link, "d/linked", "own", 0o644, b"");
    };
    reaches_nothing(&canary, entries).await;
    believer_is_led_out(&canary, entries);
}

/// CVE-2019-11251: each of the links is harmless, and together they lead out.
#[tokio::test(flavor = "multi_thread")]
async fn chain_of_archived_symlinks_does_not_lead_out() {
    let canary = Canary::new();
    let dir = canary.dir().to_owned();
    let entries = |tar: &mut Evil| {
        tar.entry(EntryType::Directory, "one/", "", 0o755, b"").entry(EntryType::Directory, "one/two/", "", 0o755, b"");
        tar.entry(EntryType::Symlink, "one/two/up", "..", 0o777, b"");
        tar.entry(EntryType::Symlink, "one/further", "two/up/..", 0o777, b"");
        tar.entry(EntryType::Symlink, "out", &format!("one/further/../../../../../../..{dir}"), 0o777, b"");
        tar.file("out/f", "changed").file("out/new", "made");
        tar.entry(EntryType::Symlink, "x", "out", 0o777, b"").file("x/f", "changed");
        tar.entry(EntryType::Directory, "x/", "", 0o700, b"").entry(EntryType::Symlink, "x/link", "/", 0o777, b"");
    };
    reaches_nothing(&canary, entries).await;
    believer_is_led_out(&canary, entries);
}
