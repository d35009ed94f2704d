//! Files that take next to nothing where they lie, and a great deal when they are copied.

use std::{fs, path::Path};

use bytes::Bytes;
use cabana_sandbox::{Base, Provider, SandboxSpec, SnapshotId};
use futures_util::TryStreamExt;

use crate::inside::{Inside, soon};

fn taken(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut seen = std::collections::HashSet::new();
    let mut sum = 0;
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(about) = entry.metadata() else { continue };
            if about.is_dir() {
                open.push(entry.path());
            } else if seen.insert(about.ino()) {
                sum += about.blocks() * 512;
            }
        }
    }
    sum
}

/// A snapshot of the running sandbox, and one as a stream: how many bytes each takes.
async fn sizes(script: &str) -> (u64, u64) {
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let engine = cabana_engine::Engine::open(crate::inside::config(data.path().to_owned())).await.unwrap();
    let inside = Inside::of(engine.clone(), &SandboxSpec::new(Base::Host)).await;
    inside.user(script).await.ok();
    let before = taken(&data.path().join("layers"));
    let base = soon("a snapshot", engine.snapshot(inside.sandbox.id(), SnapshotId::now())).await.unwrap();
    let copied = taken(&data.path().join("layers")) - before;
    let stream = engine.save(inside.sandbox.id()).await.unwrap();
    let saved = stream.try_fold(0, |sum, part: Bytes| async move { Ok(sum + part.len() as u64) });
    let saved = soon("a stream of it", saved).await.unwrap();
    let fork = Inside::of(engine.clone(), &SandboxSpec::new(base)).await;
    assert_eq!(fork.user("cat /home/user/mark").await.ok(), "here");
    engine.destroy(fork.sandbox.id()).await.unwrap();
    inside.end().await;
    (copied, saved)
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_terabytes_without_content() {
    let script = "cd /home/user && echo here > mark && for i in 1 2 3; do truncate -s 4T $i && printf x | dd of=$i bs=1 seek=3T conv=notrunc status=none; done && [ $(du -BG --apparent-size -s . | cut -dG -f1) -gt 10000 ]";
    let (copied, saved) = sizes(script).await;
    assert!(copied < 4 << 20 && saved < 4 << 20, "{copied} bytes copied, {saved} saved");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_file_with_a_thousand_names() {
    let script = "cd /home/user && echo here > mark && head -c 8M /dev/urandom > 0 && python3 -c 'import os; [os.link(\"0\", str(i)) for i in range(1, 1001)]'";
    let (copied, saved) = sizes(script).await;
    assert!((8 << 20..12 << 20).contains(&copied), "{copied} bytes copied");
    assert!((8 << 20..12 << 20).contains(&saved), "{saved} bytes saved");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_all_holes_and_islands() {
    let script = "echo here > /home/user/mark && python3 -c \"
import os
file = os.open('/home/user/islands', os.O_RDWR | os.O_CREAT)
for island in range(400): os.pwrite(file, b'x', island << 24)
print(os.fstat(file).st_size >> 30)\"";
    let (copied, saved) = sizes(script).await;
    assert!(copied < 32 << 20 && saved < 32 << 20, "{copied} bytes copied, {saved} saved");
}
