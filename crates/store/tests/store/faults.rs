//! A disk that is full or read-only, a database that somebody else holds. Each in a mount namespace of its own.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use cabana_store::{Durability, Error, NewCall, Store, Stream, ledger::verify};
use futures_util::{StreamExt, TryStreamExt, future::join_all};
use rustix::mount::{MountFlags, mount, mount_remount};
use uuid::Uuid;

use crate::stage::{Stage, assert_passed, call, chain, claim, done, entry, open, rerun, tenant, told};

fn alone(test: &str) {
    let dir = tempfile::tempdir().unwrap();
    let run = rerun(&["unshare", "--mount", "--propagation", "private"], test, dir.path()).output().unwrap();
    assert_passed(&run);
}

fn small_disk(dir: &Path) {
    mount("small", dir, "tmpfs", MountFlags::empty(), c"size=2m").unwrap();
}

#[tokio::test]
async fn a_full_disk_inside() {
    let Some(dir) = told() else { return };
    small_disk(&dir);
    let us = tenant("a");
    let store = open(&dir);
    let before = call(&us);
    store.reserve(before.clone()).await.unwrap();
    std::fs::write(dir.join("filler"), vec![0; 4 << 20]).unwrap_err();
    let mut acknowledged = 0;
    let refused = loop {
        match store.note(entry(&call(&us))).await {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
    assert!(matches!(store.record(done(&before)).await, Err(Error::Unavailable(_))), "while it lasts");
    // Many at once: some may still find room in the log of the database.
    let many: Vec<NewCall> = (0..300).map(|_| call(&us)).collect();
    let answers = join_all(many.iter().map(|call| store.note(entry(call)))).await;
    assert!(answers.iter().any(Result::is_err));
    acknowledged += answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(chain(&store, &us).await.len(), acknowledged, "what is there can be read");
    assert_eq!(store.open_calls().await.unwrap().len(), 1);

    std::fs::remove_file(dir.join("filler")).unwrap();
    store.record(done(&before)).await.unwrap();
    let rows = chain(&store, &us).await;
    assert_eq!(rows.len(), acknowledged + 1);
    verify(rows.into_iter(), None, None).unwrap();
    store.close().await;
    assert!(open(&dir).open_calls().await.unwrap().is_empty());
}

#[test]
fn a_full_disk_is_an_error_while_it_lasts_and_correct_after() {
    alone("faults::a_full_disk_inside");
}

#[tokio::test]
async fn a_full_disk_and_an_output_inside() {
    let Some(dir) = told() else { return };
    small_disk(&dir);
    let store = open(&dir);
    let log = store.outputs().begin(Uuid::now_v7(), 1 << 30);
    let piece = Bytes::from(vec![b'x'; 50_000]);
    let (mut pushed, mut refused) = (0, None);
    while pushed < 60 {
        pushed += 1;
        if let Err(error) = log.push(Stream::Stdout, piece.clone()).await {
            assert!(refused.replace(error).is_none(), "it is said once");
        }
    }
    assert!(matches!(refused, Some(Error::Unavailable(_))));
    let mut follower = std::pin::pin!(log.follow(0, 0));
    let mut read = 0;
    let told = loop {
        match follower.next().await.expect("it says why it ends") {
            Ok(chunk) => {
                assert_eq!(chunk.offset, read);
                read += chunk.bytes.len() as u64;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(Some(told), refused);
    assert!(follower.next().await.is_none());
    let ended = log.end();
    assert_eq!((ended.stdout, ended.left_out), (60 * 50_000, 60 * 50_000 - read));

    // Another one that comes to a full disk keeps what fits in memory, and no file.
    std::fs::write(dir.join("filler"), vec![0; 4 << 20]).unwrap_err();
    let (id, small) = (Uuid::now_v7(), Bytes::from(vec![b'y'; 20_000]));
    let log = store.outputs().begin(id, 1 << 30);
    log.push(Stream::Stdout, small.clone()).await.unwrap();
    log.push(Stream::Stderr, small.clone()).await.unwrap_err();
    assert_eq!(log.end().inline.unwrap().stdout, small);
    assert!(store.outputs().ended(id, ()).await.unwrap().is_none());
}

#[test]
fn a_full_disk_ends_what_is_kept_of_an_output_and_followers_hear_why() {
    alone("faults::a_full_disk_and_an_output_inside");
}

#[tokio::test]
async fn a_full_disk_and_an_output_that_is_pushed_again_inside() {
    let Some(dir) = told() else { return };
    small_disk(&dir);
    let store = open(&dir);
    let filler = dir.join("filler");
    let (id, mut whole) = (Uuid::now_v7(), Vec::new());
    let log = store.outputs().begin(id, 1 << 20);
    // The first piece is in memory, and the second is the one that needs the files.
    for (n, length) in [20_000, 30_000, 40_000, 50_000].into_iter().enumerate() {
        let piece = Bytes::from(vec![b'a' + n as u8; length]);
        let stream = if n == 2 { Stream::Stderr } else { Stream::Stdout };
        std::fs::write(&filler, vec![0; 4 << 20]).unwrap_err();
        let mut pushed = log.push(stream, piece.clone()).await;
        assert_eq!(pushed.is_ok(), n == 0, "{n}");
        if pushed.is_err() {
            assert!(log.push_again(stream, piece.clone()).await.is_err(), "while it lasts");
        }
        std::fs::remove_file(&filler).unwrap();
        if pushed.is_err() {
            pushed = log.push_again(stream, piece.clone()).await;
        }
        pushed.unwrap();
        whole.extend((0..length).map(|_| (stream, piece[0])));
    }
    let ended = log.end();
    assert_eq!((ended.stdout, ended.stderr, ended.left_out), (100_000, 40_000, 0));
    // Nothing lost, doubled or out of order, also for whoever comes later.
    for log in [log, store.outputs().ended(id, ()).await.unwrap().unwrap()] {
        let said: Vec<_> = log.follow(0, 0).map(Result::unwrap).collect().await;
        let said: Vec<_> = said.iter().flat_map(|chunk| chunk.bytes.iter().map(|byte| (chunk.stream, *byte))).collect();
        assert!(said == whole);
    }
}

#[test]
fn what_a_full_disk_did_not_keep_of_an_output_is_kept_when_it_is_pushed_again() {
    alone("faults::a_full_disk_and_an_output_that_is_pushed_again_inside");
}

#[tokio::test]
async fn a_read_only_disk_inside() {
    let Some(dir) = told() else { return };
    small_disk(&dir);
    let us = tenant("a");
    let store = open(&dir);
    store.note(entry(&call(&us))).await.unwrap();
    let (id, bytes) = (Uuid::now_v7(), Bytes::from(vec![b'x'; 100_000]));
    let log = store.outputs().begin(id, 1 << 20);
    log.push(Stream::Stdout, bytes.clone()).await.unwrap();
    log.end();
    drop(log);
    store.close().await;

    let absent = dir.join("absent");
    mount_remount(&dir, MountFlags::RDONLY, "").unwrap();
    let refused = Store::open(&absent, Durability::Kill).err().unwrap();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
    let refused = Store::open(&dir, Durability::Kill).err().unwrap();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");

    mount_remount(&dir, MountFlags::empty(), "").unwrap();
    let store = open(&dir);
    assert_eq!(chain(&store, &us).await.len(), 1);
    store.note(entry(&call(&us))).await.unwrap();
    let log = store.outputs().ended(id, ()).await.unwrap().unwrap();
    assert_eq!(log.lengths(), (100_000, 0));
    assert_eq!(log.read(Stream::Stdout, 99_990..200_000).await.unwrap(), bytes.slice(99_990..));
}

#[test]
fn a_read_only_disk_is_an_error_while_it_lasts_and_correct_after() {
    alone("faults::a_read_only_disk_inside");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_waits_for_somebody_else_who_holds_the_database_and_is_correct_after() {
    let Stage { store, dir } = Stage::new();
    let us = tenant("a");
    store.note(entry(&call(&us))).await.unwrap();
    let other = rusqlite::Connection::open(dir.path().join("db/cabana.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waiting = join_all((0..20).map(|_| store.claim(claim(&us, 0))));
    let freed = async {
        assert_eq!(chain(&store, &us).await.len(), 1, "readers wait for nobody");
        other.execute_batch("ROLLBACK").unwrap();
    };
    let (claimed, ()) = tokio::join!(waiting, freed);
    assert!(claimed.iter().all(Result::is_ok));
    assert_eq!(store.restless_sandboxes().try_collect::<Vec<_>>().await.unwrap().len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_gives_up_on_somebody_who_keeps_the_database_and_leaves_no_trace() {
    let Stage { store, dir } = Stage::new();
    let us = tenant("a");
    let ours = call(&us);
    store.reserve(ours.clone()).await.unwrap();
    let other = rusqlite::Connection::open(dir.path().join("db/cabana.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(matches!(store.record(done(&ours)).await, Err(Error::Unavailable(_))));
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(chain(&store, &us).await.len(), 0);
    store.record(done(&ours)).await.unwrap();
    assert_eq!(verify(chain(&store, &us).await.into_iter(), None, None).unwrap().seq, 1);
}

#[tokio::test]
async fn a_database_of_a_later_version_is_left_alone() {
    let Stage { store, dir } = Stage::new();
    store.close().await;
    let path = dir.path().join("db/cabana.db");
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let refused = Store::open(dir.path(), Durability::Full).err().unwrap();
    assert!(matches!(refused, Error::Schema { found: 99, .. }), "{refused:?}");
    assert_eq!(refused.code(), cabana_model::Code::DataDirVersion);
}

#[tokio::test]
async fn nobody_else_may_read_what_is_stored() {
    let Stage { store, dir } = Stage::new();
    store.note(entry(&call(&tenant("a")))).await.unwrap();
    let log = store.outputs().begin(Uuid::now_v7(), 1 << 20);
    log.push(Stream::Stdout, Bytes::from(vec![0; 40_000])).await.unwrap();
    let mut seen = 0;
    for entry in walk(dir.path()) {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        // The folders inside are behind the one that nobody else enters.
        let inner = entry.is_dir() && entry.parent() != Some(dir.path());
        assert!(inner || matches!(mode, 0o600 | 0o700), "{mode:o} {entry:?}");
        seen += 1;
    }
    assert!(seen >= 9, "both folders, the database and its log, and the three files of an output");
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            paths.extend(walk(&path));
        }
        paths.push(path);
    }
    paths
}

#[tokio::test]
async fn what_is_no_database_is_said_to_be_damaged() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("db")).unwrap();
    std::fs::write(dir.path().join("db/cabana.db"), vec![b'x'; 8192]).unwrap();
    let refused = Store::open(dir.path(), Durability::Kill).err().unwrap();
    assert!(matches!(refused, Error::Corrupt(_)), "{refused:?}");
}

#[tokio::test]
async fn a_ledger_row_that_was_edited_in_the_database_is_found() {
    let Stage { store, dir } = Stage::new();
    let us = tenant("a");
    for _ in 0..5 {
        store.note(entry(&call(&us))).await.unwrap();
    }
    let other = rusqlite::Connection::open(dir.path().join("db/cabana.db")).unwrap();
    other.execute("UPDATE ledger SET row = replace(row, '\"exit\":0', '\"exit\":1') WHERE seq = 3", []).unwrap();
    let found = verify(chain(&store, &us).await.into_iter(), None, None);
    assert_eq!(found, Err(cabana_store::ledger::Broken::Changed { seq: 3 }));
    other.execute("UPDATE ledger SET row = 'x' WHERE seq = 3", []).unwrap();
    assert!(matches!(store.ledger(&us, 0, 9).await, Err(Error::Corrupt(_))));
    other.execute("UPDATE ledger SET tenant = 'b'", []).unwrap();
    assert!(matches!(store.ledger(&tenant("b"), 0, 9).await, Err(Error::Corrupt(_))), "the chain of another tenant");
}
