//! Saved sandboxes: what comes back, where, and what does not.

use bytes::Bytes;
use cabana_engine::Engine;
use cabana_sandbox::{
    Base, Code, Error, Found, Provider, Result, SandboxEvent, SandboxId, SandboxSpec, SnapshotId, Stream, User,
};
use futures_util::{StreamExt, TryStreamExt};

use crate::{
    inside::{PATIENCE, python, shell},
    persistence::{MAKE, assert_same, manifest},
    snapshots::{Alone, from, name},
    stage,
};

pub(crate) async fn save(engine: &Engine, id: &SandboxId) -> Vec<u8> {
    let parts: Vec<Bytes> = engine.save(id).await.unwrap().try_collect().await.unwrap();
    parts.concat()
}

/// In pieces that fit no frame.
pub(crate) fn stream(saved: &[u8]) -> Stream<Bytes> {
    let parts: Vec<_> = saved.chunks(10_007).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
    futures_util::stream::iter(parts).boxed()
}

/// What a stream of frames says, with digests that fit: what somebody would send who means harm.
fn forged(sections: &[&[u8]]) -> Vec<u8> {
    let mut all = b"cabana sandbox 1\n".to_vec();
    let mut digest = [0; 32];
    let mut frame = |bytes: &[u8]| {
        let length = (bytes.len() as u32).to_le_bytes();
        let mut hasher = blake3::Hasher::new();
        digest = *hasher.update(&digest).update(&length).update(bytes).finalize().as_bytes();
        all.extend([&length[..], bytes, &digest].concat());
    };
    for section in sections {
        section.chunks(100_000).for_each(&mut frame);
        frame(b"");
    }
    all
}

/// The head of one that stands on the template, with so many layers to come.
fn head(alone: &Alone, kept: usize) -> serde_json::Value {
    let template = alone.engine.templates().get("tiny").unwrap();
    let defaults = serde_json::to_value(&template.defaults).unwrap();
    serde_json::json!({
        "layers": template.layers, "kept": kept, "trees": [], "defaults": defaults, "fingerprint": null,
    })
}

async fn refused(alone: &Alone, saved: &[u8]) -> Error {
    let before = left(alone);
    let id = SandboxId::random();
    let error = alone.engine.restore(&id, &alone.spec(), stream(saved)).await.expect_err("it is refused");
    assert!(matches!(alone.engine.attach(&id).await.unwrap(), Found::Absent));
    assert_eq!(left(alone), before, "something is left behind after: {error}");
    error
}

/// Every name in the store and among the sandboxes.
fn left(alone: &Alone) -> Vec<std::ffi::OsString> {
    let dirs = ["layers", "sandboxes", "snapshots"].map(|part| alone.data().join(part));
    let mut names: Vec<_> = dirs.iter().flat_map(|dir| stage::entries_in(dir)).collect();
    names.sort();
    names
}

#[tokio::test]
async fn what_is_restored_is_as_it_was() {
    let engine = stage::engine().await;
    let spec = SandboxSpec::new(Base::Host);
    let sandbox = engine.create(&SandboxId::random(), &spec).await.unwrap();
    python(&*sandbox, "root", MAKE).await.ok();
    // A socket is nothing without who listens, and is not saved.
    shell(&*sandbox, "root", "rm /home/user/kept/socket; touch -d @7 /home/user/kept; chmod 711 /").await.ok();
    let was = manifest(&*sandbox).await;
    let running = save(&engine, sandbox.id()).await;
    assert!(running.len() < 32 << 20, "holes are not data: {}", running.len());
    engine.stop(sandbox.id()).await.unwrap();
    let stopped = save(&engine, sandbox.id()).await;
    let original = engine.start(sandbox.id()).await.unwrap();
    assert_same(&was, &manifest(&*original).await, "the original, which goes on");
    engine.destroy(sandbox.id()).await.unwrap();
    for (saved, when) in [(running, "running"), (stopped, "stopped")] {
        let id = SandboxId::random();
        engine.restore(&id, &spec, stream(&saved)).await.unwrap();
        assert!(matches!(engine.attach(&id).await.unwrap(), Found::Stopped));
        let restored = engine.start(&id).await.unwrap();
        assert_same(&was, &manifest(&*restored).await, when);
        assert_eq!(shell(&*restored, "root", "stat -c %a /").await.ok(), "711");
        engine.destroy(&id).await.unwrap();
    }
    engine.close().await;
}

#[tokio::test]
async fn a_sandbox_moves_to_another_data_directory_with_the_same_base() {
    let (one, two) = (Alone::new().await, Alone::new().await);
    let spec = SandboxSpec { user: Some(User::root()), ..one.spec() };
    let sandbox = one.create(&spec).await;
    shell(&*sandbox, "root", "echo first > /home/user/note && rm /etc/brought").await.ok();
    one.engine.stop(sandbox.id()).await.unwrap();
    let base = one.engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    let fork = one.create(&SandboxSpec { user: Some(User::root()), ..from(&base) }).await;
    shell(&*fork, "root", "echo second >> /home/user/note && echo mine > /etc/mine").await.ok();
    let saved = save(&one.engine, fork.id()).await;
    two.engine.restore(fork.id(), &spec, stream(&saved)).await.unwrap();
    let moved = two.engine.start(fork.id()).await.unwrap();
    assert_eq!(moved.defaults(), fork.defaults());
    let said = shell(&*moved, "root", "cat /home/user/note /etc/mine; ls /etc/brought 2>&1").await;
    assert_eq!(said.out, "first\nsecond\nmine\nls: cannot access '/etc/brought': No such file or directory\n");
    // And back, again and again: it does not pile up.
    let mut id = fork.id().clone();
    for round in 0..20 {
        let saved = save(&two.engine, &id).await;
        two.engine.destroy(&id).await.unwrap();
        id = SandboxId::random();
        two.engine.restore(&id, &spec, stream(&saved)).await.unwrap();
        two.engine.remove_unused_layers().unwrap();
        assert!(two.kept().len() <= 17);
        let again = two.engine.start(&id).await.unwrap();
        shell(&*again, "root", &format!("echo {round} >> /home/user/note")).await.ok();
    }
    let last = two.engine.start(&id).await.unwrap();
    assert!(shell(&*last, "root", "cat /home/user/note").await.ok().starts_with("first\nsecond\n0\n1\n"));
    one.engine.close().await;
    two.engine.close().await;
}

#[tokio::test]
async fn a_sandbox_on_the_host_base_moves_and_is_told_of_another_host() {
    let engine = stage::engine().await;
    let spec = SandboxSpec::new(Base::Host);
    let sandbox = engine.create(&SandboxId::random(), &spec).await.unwrap();
    shell(&*sandbox, "root", "echo mine > /usr/local/mine; echo note > /home/user/note; rm /usr/bin/tac").await.ok();
    let saved = save(&engine, sandbox.id()).await;
    engine.destroy(sandbox.id()).await.unwrap();
    engine.close().await;

    let elsewhere = Alone::new().await;
    let mut events = elsewhere.engine.events();
    elsewhere.engine.restore(sandbox.id(), &spec, stream(&saved)).await.unwrap();
    // As if the host had been another one when it was saved.
    let file = elsewhere.data().join("sandboxes").join(sandbox.id().as_str()).join("record.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    record["plan"]["fingerprint"] = "another".into();
    std::fs::write(&file, record.to_string()).unwrap();
    let moved = elsewhere.engine.start(sandbox.id()).await.unwrap();
    let told = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(&told.1, SandboxEvent::BaseChanged { was, .. } if was == "another"), "{told:?}");
    assert_eq!(
        shell(&*moved, "user", "cat /usr/local/mine /home/user/note; ls /usr/bin/tac").await.out,
        "mine\nnote\n"
    );
    elsewhere.engine.close().await;
}

#[tokio::test]
async fn layers_that_are_missing_are_named() {
    let (one, two) = (Alone::new().await, Alone::new().await);
    let sandbox = one.create(&one.spec()).await;
    shell(&*sandbox, "user", "echo note > /home/user/note").await.ok();
    let saved = save(&one.engine, sandbox.id()).await;
    two.engine.templates().rm("tiny", &|_| false).unwrap();
    two.engine.remove_unused_layers().unwrap();
    let error = refused(&two, &saved).await;
    assert_eq!(error.code(), Code::BadRequest);
    for layer in one.engine.templates().get("tiny").unwrap().layers {
        assert!(error.to_string().contains(&layer.to_string()), "{error}");
    }
    one.engine.close().await;
    two.engine.close().await;
}

#[tokio::test]
async fn nothing_is_restored_onto_a_sandbox_that_is_there() {
    let alone = Alone::new().await;
    let sandbox = alone.create(&alone.spec()).await;
    shell(&*sandbox, "user", "echo note > /home/user/note").await.ok();
    let saved = save(&alone.engine, sandbox.id()).await;
    for _ in ["running", "stopped"] {
        let error = alone.engine.restore(sandbox.id(), &alone.spec(), stream(&saved)).await.unwrap_err();
        assert!(error.code() == Code::BadRequest && error.to_string().contains("there already"), "{error}");
        alone.engine.stop(sandbox.id()).await.unwrap();
    }
    let again = alone.engine.start(sandbox.id()).await.unwrap();
    assert_eq!(shell(&*again, "user", "cat /home/user/note").await.ok(), "note");
    alone.engine.close().await;
}

#[tokio::test]
async fn a_stream_that_was_cut_or_damaged_leaves_nothing() {
    let alone = Alone::new().await;
    let sandbox = alone.create(&alone.spec()).await;
    shell(&*sandbox, "user", "cd /home/user && dd if=/dev/urandom of=large bs=1M count=1 2>/dev/null && ls > note")
        .await
        .ok();
    let saved = save(&alone.engine, sandbox.id()).await;
    let step = saved.len() / 29;
    for cut in (0..64).chain((64..saved.len()).step_by(step)).chain([saved.len() - 1]) {
        assert_eq!(refused(&alone, &saved[..cut]).await.code(), Code::ArchiveInvalid, "cut after {cut}");
    }
    for at in (0..64).chain((64..saved.len()).step_by(step)).chain([saved.len() - 1]) {
        let mut damaged = saved.clone();
        damaged[at] ^= 0x10;
        assert_eq!(refused(&alone, &damaged).await.code(), Code::ArchiveInvalid, "damaged at {at}");
    }
    assert_eq!(refused(&alone, &[&saved[..], b"more"].concat()).await.code(), Code::ArchiveInvalid);
    let newer = [b"cabana sandbox 2\n", &saved[17..]].concat();
    assert!(refused(&alone, &newer).await.to_string().contains("version"));

    // One that breaks off says what its own error was.
    let parts: Vec<Result<Bytes>> =
        vec![Ok(Bytes::copy_from_slice(&saved[..1000])), Err(Error::Offline("away".into()))];
    let id = SandboxId::random();
    let broken = alone.engine.restore(&id, &alone.spec(), futures_util::stream::iter(parts).boxed()).await.unwrap_err();
    assert_eq!(broken.code(), Code::ProviderOffline);
    assert!(matches!(alone.engine.attach(&id).await.unwrap(), Found::Absent));
    alone.engine.close().await;
}

/// One entry of a tar, whatever it claims.
fn entry(kind: u8, name: &[u8], link: &[u8], data: &[u8], device: (u32, u32)) -> Vec<u8> {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name);
    block[157..157 + link.len()].copy_from_slice(link);
    let octal = |block: &mut [u8; 512], at: usize, digits: usize, number: u64| {
        block[at..at + digits].copy_from_slice(format!("{number:0digits$o}").as_bytes());
    };
    octal(&mut block, 100, 7, 0o4755);
    octal(&mut block, 108, 7, 0);
    octal(&mut block, 116, 7, 0);
    octal(&mut block, 124, 11, data.len() as u64);
    octal(&mut block, 136, 11, 0);
    octal(&mut block, 329, 7, device.0.into());
    octal(&mut block, 337, 7, device.1.into());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    octal(&mut block, 148, 6, sum);
    block[154] = 0;
    let mut all = block.to_vec();
    all.extend_from_slice(data);
    all.resize(all.len().next_multiple_of(512), 0);
    all
}

fn tar(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 1024]].concat()
}

fn plain(kind: u8, name: &str, link: &str) -> Vec<u8> {
    entry(kind, name.as_bytes(), link.as_bytes(), b"", (0, 0))
}

/// A PAX record for the next entry.
fn records(all: &[(&str, &str)]) -> Vec<u8> {
    let mut text = Vec::new();
    for (key, value) in all {
        let mut length = key.len() + value.len() + 5;
        while format!("{length} {key}={value}\n").len() != length {
            length = format!("{length} {key}={value}\n").len();
        }
        text.extend(format!("{length} {key}={value}\n").into_bytes());
    }
    entry(b'x', b"pax", b"", &text, (0, 0))
}

#[tokio::test]
async fn a_hostile_stream_is_an_invalid_archive_and_leaves_nothing() {
    let alone = Alone::new().await;
    let outside = alone.data().join("escaped");
    let absolute = outside.to_str().unwrap().to_owned();
    let head = |kept| head(&alone, kept).to_string().into_bytes();
    let link = |to: &str| plain(b'2', "way", to);
    let huge = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9000000000000000000")];
    let hostile: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("a name that leads upwards", vec![plain(b'0', "../escaped", "")]),
        ("a name that leads upwards further down", vec![plain(b'0', "a/../../escaped", "")]),
        ("an absolute name", vec![plain(b'0', &absolute[..absolute.len().min(99)], "")]),
        ("through a link upwards", vec![link("../../.."), plain(b'0', "way/escaped", "")]),
        ("through an absolute link", vec![link("/"), plain(b'0', "way/escaped", "")]),
        ("a hard link out", vec![plain(b'1', "shadow", "../../../../../../etc/shadow")]),
        ("an absolute hard link", vec![plain(b'1', "shadow", "/etc/shadow")]),
        ("a hard link through a link", vec![link("/etc"), plain(b'1', "shadow", "way/shadow")]),
        ("a hard link to nothing", vec![plain(b'1', "one", "two")]),
        ("a device", vec![entry(b'3', b"null", b"", b"", (1, 3))]),
        ("a disk", vec![entry(b'4', b"disk", b"", b"", (0, 0))]),
        ("two entries of a name", vec![plain(b'0', "one", ""), plain(b'0', "one", "")]),
        ("a file where a directory is", vec![plain(b'0', "one/two", ""), plain(b'0', "one", "")]),
        ("a directory where a file is", vec![plain(b'0', "one", ""), plain(b'5', "one/", "")]),
        ("a file below a whiteout", vec![plain(b'3', "one", ""), plain(b'0', "one/two", "")]),
        ("a name with a NUL", vec![records(&[("path", "a\0b")]), plain(b'0', "x", "")]),
        ("a name that is too long", vec![records(&[("path", &"a/".repeat(4000))]), plain(b'0', "x", "")]),
        ("a part that is too long", vec![records(&[("path", &"a".repeat(300))]), plain(b'0', "x", "")]),
        ("a size beyond all", vec![records(&[("size", "9000000000000000000")]), plain(b'0', "x", "")]),
        (
            "rights of a program that are none",
            vec![records(&[("SCHILY.xattr.security.capability", "all")]), plain(b'0', "x", "")],
        ),
        ("an unknown kind", vec![plain(b'Q', "x", "")]),
    ];
    for (what, entries) in hostile {
        let error = refused(&alone, &forged(&[&head(1), &tar(&entries)])).await;
        assert_eq!(error.code(), Code::ArchiveInvalid, "{what}: {error:?}");
        assert!(!outside.exists(), "{what}");
    }

    let changed = |key: &str, value: serde_json::Value| {
        let mut head = self::head(&alone, 0);
        head[key] = value;
        head.to_string().into_bytes()
    };
    let heads: Vec<(&str, Vec<u8>)> = vec![
        ("no head", b"".to_vec()),
        ("no JSON", b"{".to_vec()),
        ("more layers than bytes", head(3)),
        ("more layers than can be", changed("kept", u32::MAX.into())),
        (
            "a sum beyond all",
            changed("trees", serde_json::json!([{"at": "/usr", "kept": u64::MAX}, {"at": "/bin", "kept": 7}])),
        ),
        ("a path of the host", changed("trees", serde_json::json!([{"at": "/usr", "host": "/root", "kept": 0}]))),
        ("a kept layer of somebody else", changed("layers", serde_json::json!([format!("kept-{}", "0".repeat(32))]))),
        ("no layer at all", changed("layers", serde_json::json!([]))),
        ("a user that is none", changed("defaults", serde_json::json!({"user": "../root", "workdir": "/", "env": {}}))),
        ("a long head", vec![b' '; 3 << 20]),
    ];
    for (what, head) in heads {
        let error = refused(&alone, &forged(&[&head])).await;
        assert_eq!(error.code(), Code::ArchiveInvalid, "{what}: {error:?}");
    }
    // What a file system cannot have is told, and nothing else of it is lost.
    let entries = [records(&huge), entry(b'0', b"x", b"", b"0\n", (0, 0)), plain(b'0', "y", "")];
    let saved = forged(&[&self::head(&alone, 1).to_string().into_bytes(), &tar(&entries)]);
    let id = SandboxId::random();
    let lost = alone.engine.restore(&id, &alone.spec(), stream(&saved)).await.unwrap();
    assert_eq!(lost, ["\"x\": it is larger than a file can be here"]);
    let layer = alone.kept().pop_first().unwrap().join("tree");
    assert!(layer.join("y").exists() && !layer.join("x").exists());
    alone.engine.destroy(&id).await.unwrap();
    // Frames that lie about their length.
    let mut long = b"cabana sandbox 1\n".to_vec();
    long.extend([0xff; 100]);
    assert_eq!(refused(&alone, &long).await.code(), Code::ArchiveInvalid);
    assert_eq!(refused(&alone, &[7; 100_000]).await.code(), Code::ArchiveInvalid);
    alone.engine.close().await;
}

#[tokio::test]
async fn what_a_stream_claims_of_overlays_and_owners_means_nothing_outside() {
    let alone = Alone::new().await;
    let attribute =
        |name: &str, value: &str| records(&[(&format!("SCHILY.xattr.{name}"), value), ("uid", "4000000000")]);
    let entries = [
        attribute("user.overlay.redirect", "/etc"),
        plain(b'5', "redirected/", ""),
        attribute("user.overlay.metacopy", ""),
        plain(b'0', "metacopy", ""),
        attribute("trusted.overlay.opaque", "y"),
        plain(b'5', "opaque/", ""),
        plain(b'5', "etc/", ""),
        plain(b'3', "etc/brought", ""),
    ];
    let saved = forged(&[head(&alone, 1).to_string().as_bytes(), &tar(&entries)]);
    let id = SandboxId::random();
    alone.engine.restore(&id, &alone.spec(), stream(&saved)).await.unwrap();
    let layer = alone.kept().pop_first().unwrap().join("tree");
    for name in ["redirected", "metacopy", "opaque"] {
        let path = layer.join(name);
        let mut list = [0_u8; 1024];
        assert_eq!(rustix::fs::listxattr(&path, &mut list).unwrap(), 0, "{name}");
        let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&path).unwrap());
        assert_eq!(owner, 0x7ffe_0000 + 65_534, "who has no number here is nobody");
    }
    let sandbox = alone.engine.start(&id).await.unwrap();
    assert_eq!(shell(&*sandbox, "root", "ls /redirected; ls /etc/brought").await.out, "");
    assert_eq!(shell(&*sandbox, "user", "stat -c %a /metacopy").await.ok(), "4755");
    alone.engine.close().await;
}

/// A client that does not read on what is saved keeps its own layers, and those alone.
#[tokio::test]
async fn what_is_saved_slowly_keeps_no_other_layers() {
    let alone = Alone::new().await;
    let (slow, other) = (alone.create(&alone.spec()).await, alone.create(&alone.spec()).await);
    for sandbox in [&slow, &other] {
        shell(&**sandbox, "user", "for i in {1..200}; do printf %100000s $i; done > /home/user/large").await.ok();
        alone.engine.stop(sandbox.id()).await.unwrap();
    }
    let base = alone.engine.snapshot(other.id(), SnapshotId::now()).await.unwrap();
    let saved = alone.engine.save(slow.id()).await.unwrap();
    for id in [slow.id(), other.id()] {
        alone.engine.destroy(id).await.unwrap();
    }
    alone.engine.remove_snapshot(name(&base)).await.unwrap();
    assert_eq!(alone.kept().len(), 2);
    assert!(!alone.engine.tidy().await.unwrap(), "there is one to come back for");
    assert_eq!(alone.kept().len(), 1, "the one that is being saved");
    let parts: Vec<Bytes> = saved.try_collect().await.unwrap();
    let id = SandboxId::random();
    alone.engine.restore(&id, &alone.spec(), stream(&parts.concat())).await.unwrap();
    let again = alone.engine.start(&id).await.unwrap();
    assert_eq!(shell(&*again, "user", "stat -c %s /home/user/large").await.ok(), "20000000");
    assert!(alone.engine.tidy().await.unwrap());
    assert_eq!(alone.kept().len(), 1);
    alone.engine.close().await;
}

/// What no archive holds stays in the layer of the snapshot when it is removed.
#[tokio::test]
async fn who_has_removed_what_no_archive_holds_can_be_saved_whatever_a_snapshot_has() {
    const DEEP: &str = "
import os
os.chdir('/home/user')
for _ in range(30):
    os.mkdir('d' * 200)
    os.chdir('d' * 200)
open('f', 'w')";
    let (alone, spec) = (Alone::new().await, SandboxSpec::new(Base::Host));
    let sandbox = alone.create(&spec).await;
    shell(&*sandbox, "user", "cd /home/user && echo first > note && echo gone > old").await.ok();
    python(&*sandbox, "user", DEEP).await.ok();
    let refused = async |id: &SandboxId| {
        let saved: Result<Vec<Bytes>> = alone.engine.save(id).await.unwrap().try_collect().await;
        let error = saved.expect_err("it has a path that no archive holds");
        assert!(error.to_string().contains("longer than 4095 bytes"), "{error}");
    };
    refused(sandbox.id()).await;
    alone.engine.stop(sandbox.id()).await.unwrap();
    let base = alone.engine.snapshot(sandbox.id(), SnapshotId::now()).await.unwrap();
    let fork = alone.create(&from(&base)).await;
    for id in [sandbox.id(), fork.id()] {
        refused(id).await;
        let running = alone.engine.start(id).await.unwrap();
        shell(&*running, "user", "cd /home/user && rm -r d* old && echo second >> note").await.ok();
        let before = alone.kept();
        let saved = save(&alone.engine, id).await;
        assert_eq!(alone.kept(), before, "what was merged for it is gone");
        let restored = SandboxId::random();
        alone.engine.restore(&restored, &spec, stream(&saved)).await.unwrap();
        let restored = alone.engine.start(&restored).await.unwrap();
        assert_eq!(shell(&*restored, "user", "cd /home/user && ls && cat note").await.ok(), "note\nfirst\nsecond");
        alone.engine.destroy(restored.id()).await.unwrap();
    }
    let again = alone.engine.start(sandbox.id()).await.unwrap();
    assert_eq!(shell(&*again, "user", "cat /home/user/note").await.ok(), "first\nsecond", "it goes on");
    alone.engine.close().await;
}
