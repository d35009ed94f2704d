use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use cabana_store::{Chunk, Durability, Inline, Log, Store, Stream};
use futures_util::{Stream as Reading, StreamExt, future::join_all};
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::stage::Stage;

const CAP: u64 = 256 << 20;
const SMALL: usize = 32 << 10;

/// Both streams, and the order in which their bytes came.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    streams: [Vec<u8>; 2],
    order: Vec<Stream>,
}

impl Said {
    fn add(&mut self, stream: Stream, bytes: &[u8]) {
        self.streams[stream as usize].extend_from_slice(bytes);
        self.order.extend(std::iter::repeat_n(stream, bytes.len()));
    }

    /// What is left behind these offsets.
    fn behind(&self, stdout: usize, stderr: usize) -> Self {
        let mut seen = [0, 0];
        let order = self.order.iter().copied().filter(|stream| {
            seen[*stream as usize] += 1;
            seen[*stream as usize] > [stdout, stderr][*stream as usize]
        });
        let order = order.collect();
        let rest = |n: usize, from: usize| self.streams[n].get(from..).unwrap_or_default().to_vec();
        Self { streams: [rest(0, stdout), rest(1, stderr)], order }
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest([Sha256::digest(&self.streams[0]), Sha256::digest(&self.streams[1])].concat()).into()
    }
}

/// All that comes, each piece where the last one ended.
async fn read_all(reader: impl Reading<Item = cabana_store::Result<Chunk>>, from: [u64; 2]) -> Said {
    let (mut said, mut at, mut reader) = (Said::default(), from, pin!(reader));
    while let Some(chunk) = reader.next().await {
        let Chunk { stream, offset, bytes } = chunk.unwrap();
        assert_eq!(offset, at[stream as usize], "nothing is lost or doubled");
        assert!(!bytes.is_empty() && bytes.len() <= 8 << 10, "a reader holds no more than a piece");
        at[stream as usize] += bytes.len() as u64;
        said.add(stream, &bytes);
    }
    said
}

async fn push(log: &Log, pieces: &[(Stream, Vec<u8>)]) -> Said {
    let mut said = Said::default();
    for (stream, bytes) in pieces {
        log.push(*stream, Bytes::copy_from_slice(bytes)).await.unwrap();
        said.add(*stream, bytes);
    }
    said
}

fn files(stage: &Stage) -> usize {
    let folders = std::fs::read_dir(stage.dir.path().join("outputs")).unwrap();
    folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count()).sum()
}

#[tokio::test]
async fn a_small_output_stays_in_memory_and_one_byte_more_goes_to_files() {
    let stage = Stage::new();
    let log = stage.store.outputs().begin(Uuid::now_v7(), CAP);
    push(&log, &[(Stream::Stdout, vec![b'o'; SMALL - 9]), (Stream::Stderr, vec![b'e'; 9])]).await;
    assert_eq!((log.lengths(), log.position(), files(&stage)), ((SMALL as u64 - 9, 9), 0, 0));
    let ended = log.end();
    let inline = Inline { stdout: vec![b'o'; SMALL - 9].into(), stderr: vec![b'e'; 9].into() };
    assert_eq!((ended.inline, ended.stdout, ended.stderr, ended.left_out), (Some(inline), SMALL as u64 - 9, 9, 0));

    let log = stage.store.outputs().begin(Uuid::now_v7(), CAP);
    push(&log, &[(Stream::Stdout, vec![b'o'; SMALL]), (Stream::Stdout, vec![b'o'])]).await;
    assert_eq!((log.position(), files(&stage)), (SMALL as u64 + 1, 3));
    assert_eq!(log.end().inline, None);
}

#[tokio::test]
async fn streams_that_take_turns_at_every_byte_are_no_small_output() {
    let stage = Stage::new();
    let log = stage.store.outputs().begin(Uuid::now_v7(), CAP);
    let pieces: Vec<_> =
        (0..3000_u32).map(|n| (if n % 2 == 0 { Stream::Stdout } else { Stream::Stderr }, vec![n as u8])).collect();
    let said = push(&log, &pieces).await;
    assert_eq!(files(&stage), 3);
    log.end();
    assert_eq!(read_all(log.follow(0, 0), [0, 0]).await, said);
}

#[tokio::test]
async fn an_ended_output_is_read_by_range_and_followed_in_its_order() {
    let stage = Stage::new();
    let id = Uuid::now_v7();
    let log = stage.store.outputs().begin(id, CAP);
    let pieces: Vec<_> = (0..40_u32)
        .map(|n| (if n % 3 == 0 { Stream::Stderr } else { Stream::Stdout }, vec![n as u8; 30_000 + n as usize]))
        .collect();
    let said = push(&log, &pieces).await;
    assert_eq!(log.head(Stream::Stdout, 5).await.unwrap(), said.streams[0][..5]);
    assert_eq!(log.tail(Stream::Stderr, 70_000).await.unwrap(), said.streams[1][said.streams[1].len() - 70_000..]);
    assert_eq!(log.read(Stream::Stdout, 29_000..31_000).await.unwrap(), said.streams[0][29_000..31_000]);
    assert_eq!(log.end().digest, said.digest());
    drop(log);

    let stage = stage.again().await;
    let outputs = stage.store.outputs();
    let log = outputs.ended(id, ()).await.unwrap().unwrap();
    for (stream, whole) in [Stream::Stdout, Stream::Stderr].into_iter().zip(&said.streams) {
        let length = whole.len() as u64;
        for range in [0..u64::MAX, 0..0, 5..6, 100_000..400_001, u64::MAX - 1..u64::MAX] {
            let (start, end) = (range.start.min(length) as usize, range.end.min(length) as usize);
            assert_eq!(log.read(stream, range.clone()).await.unwrap(), whole[start..end], "{range:?}");
        }
    }
    assert_eq!(read_all(log.follow(0, 0), [0, 0]).await, said);
    assert_eq!(read_all(log.follow(700_000, 1), [700_000, 1]).await, said.behind(700_000, 1));
    assert_eq!(log.tail(Stream::Stdout, 3).await.unwrap(), said.streams[0][said.streams[0].len() - 3..]);
    assert_eq!(log.lengths(), (said.streams[0].len() as u64, said.streams[1].len() as u64));
    assert!(log.push(Stream::Stdout, Bytes::from_static(b"x")).await.is_err(), "it has ended");
    outputs.remove(id).await.unwrap();
    outputs.remove(id).await.unwrap();
    assert!(outputs.ended(id, ()).await.unwrap().is_none());
    assert_eq!(files(&stage), 0);
}

#[tokio::test]
async fn beyond_the_cap_output_is_counted_and_the_count_survives() {
    let stage = Stage::new();
    let id = Uuid::now_v7();
    let log = stage.store.outputs().begin(id, 100_000);
    let said = push(&log, &[(Stream::Stdout, vec![1; 90_000]), (Stream::Stderr, vec![2; 20_000])]).await;
    push(&log, &[(Stream::Stdout, vec![3; 5_000])]).await;
    assert_eq!((log.lengths(), log.position()), ((95_000, 20_000), 115_000));
    drop(log);

    let log = stage.store.outputs().resume(id, 100_000).unwrap();
    assert_eq!((log.lengths(), log.position()), ((95_000, 20_000), 115_000));
    push(&log, &[(Stream::Stderr, vec![4; 1])]).await;
    let ended = log.end();
    assert_eq!((ended.stdout, ended.stderr, ended.left_out), (95_000, 20_001, 15_001));
    let again = stage.store.outputs().ended(id, ()).await.unwrap().unwrap();
    assert_eq!((again.lengths(), again.end().left_out), ((95_000, 20_001), 15_001));
    let mut kept = said.clone();
    kept.streams[1].truncate(10_000);
    kept.order.truncate(100_000);
    assert_eq!(ended.digest, kept.digest());
    assert_eq!(read_all(log.follow(0, 0), [0, 0]).await, kept);
}

#[tokio::test]
async fn while_the_disk_has_no_room_output_is_counted_and_not_kept() {
    let stage = Stage::new();
    let is_left = Arc::new(AtomicBool::new(true));
    let seen = is_left.clone();
    stage.store.outputs().keep_while(move || seen.load(Ordering::Relaxed));
    let log = stage.store.outputs().begin(Uuid::now_v7(), CAP);
    log.push(Stream::Stdout, Bytes::from(vec![b'a'; 100_000])).await.unwrap();
    is_left.store(false, Ordering::Relaxed);
    log.push(Stream::Stdout, Bytes::from(vec![b'b'; 50_000])).await.unwrap();
    // What is kept has no holes.
    is_left.store(true, Ordering::Relaxed);
    log.push(Stream::Stdout, Bytes::from(vec![b'c'; 10])).await.unwrap();
    let ended = log.end();
    assert_eq!((ended.stdout, ended.left_out), (150_010, 50_010));
}

#[tokio::test]
async fn turns_beyond_the_cap_are_counted_too() {
    let stage = Stage::new();
    let log = stage.store.outputs().begin(Uuid::now_v7(), 64 << 10);
    for n in 0..8_000_u32 {
        let stream = if n % 2 == 0 { Stream::Stdout } else { Stream::Stderr };
        log.push(stream, Bytes::from_static(b"x")).await.unwrap();
    }
    let ended = log.end();
    assert_eq!((ended.stdout, ended.stderr), (4_000, 4_000));
    assert_eq!(ended.left_out, 8_000 - (64 << 10) / 32, "the runs of what is kept take as much room as the cap gives");
}

#[tokio::test]
async fn what_was_lost_on_the_way_moves_the_position_and_no_offset() {
    let stage = Stage::new();
    let id = Uuid::now_v7();
    let log = stage.store.outputs().begin(id, CAP);
    let mut said = push(&log, &[(Stream::Stdout, vec![1; 40_000])]).await;
    log.lost(1_000);
    let more = push(&log, &[(Stream::Stdout, vec![2; 10])]).await;
    said.add(Stream::Stdout, &more.streams[0]);
    assert_eq!((log.lengths(), log.position()), ((40_010, 0), 41_010));
    drop(log);
    let log = stage.store.outputs().resume(id, CAP).unwrap();
    assert_eq!((log.lengths(), log.position()), ((40_010, 0), 41_010));
    assert_eq!(log.end().left_out, 1_000);
    assert_eq!(read_all(log.follow(0, 0), [0, 0]).await, said);
}

#[tokio::test]
async fn an_output_that_nothing_is_left_of_begins_anew() {
    let stage = Stage::new();
    let log = stage.store.outputs().resume(Uuid::now_v7(), CAP).unwrap();
    assert_eq!((log.position(), log.lengths()), (0, (0, 0)));
    push(&log, &[(Stream::Stdout, vec![1; 10])]).await;
    assert_eq!(log.end().inline.unwrap().stdout.len(), 10);
    assert!(log.push(Stream::Stdout, Bytes::from_static(b"x")).await.is_err(), "it has ended");
}

#[tokio::test]
async fn with_full_durability_an_output_is_settled_before_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Durability::Full).unwrap();
    let log = store.outputs().begin(Uuid::now_v7(), CAP);
    for length in [10, SMALL] {
        push(&log, &[(Stream::Stdout, vec![1; length])]).await;
        assert_eq!(log.settle().await, Ok(()));
    }
    assert_eq!(log.end().stdout as usize, 10 + SMALL);
}

#[tokio::test]
async fn followers_of_a_log_that_is_dropped_end() {
    let stage = Stage::new();
    let log = stage.store.outputs().begin(Uuid::now_v7(), CAP);
    let said = push(&log, &[(Stream::Stdout, vec![1; 10])]).await;
    let reader = log.follow(0, 0);
    drop(log);
    assert_eq!(read_all(reader, [0, 0]).await, said);
}

#[tokio::test]
async fn a_follower_that_stands_still_holds_nobody_up() {
    let stage = Stage::new();
    let log = stage.store.outputs().begin(Uuid::now_v7(), CAP);
    let mut slow = pin!(log.follow(0, 0));
    let pieces = vec![(Stream::Stdout, vec![7; 200_000]); 20];
    push(&log, &pieces[..1]).await;
    let first = slow.next().await.unwrap().unwrap();
    push(&log, &pieces[1..]).await;
    log.end();
    let all = read_all(log.follow(0, 0), [0, 0]).await;
    assert_eq!(all.streams[0].len(), 4_000_000);
    let from = first.bytes.len() as u64;
    assert_eq!(read_all(slow, [from, 0]).await, all.behind(from as usize, 0));
}

fn pieces() -> impl Strategy<Value = Vec<(Stream, Vec<u8>)>> {
    let stream = prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)];
    // Some stay in memory, some do not, some have many turns.
    let length = prop_oneof![4 => 0..200_usize, 2 => 200..9_000_usize, 1 => 60_000..70_000_usize];
    let piece = (stream, length, any::<u8>());
    prop::collection::vec(
        piece.prop_map(|(stream, length, seed)| (stream, (0..length).map(|n| seed.wrapping_add(n as u8)).collect())),
        0..60,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]
    #[test]
    fn any_number_of_readers_from_anywhere_miss_nothing_and_see_nothing_twice(
        before in pieces(),
        during in pieces(),
        starts in prop::collection::vec((0..60_000_usize, 0..60_000_usize), 1..6),
        restart in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(async move {
            let stage = Stage::new();
            let id = Uuid::now_v7();
            let mut log = stage.store.outputs().begin(id, CAP);
            let mut said = push(&log, &before).await;
            if restart && log.position() > 0 {
                // As after a kill: what is on disk is all that there is.
                drop(log);
                log = stage.store.outputs().resume(id, CAP).unwrap();
                assert_eq!(log.position(), said.order.len() as u64);
            }
            let readers: Vec<_> = starts.iter().map(|&(stdout, stderr)| {
                let reader = log.follow(stdout as u64, stderr as u64);
                async move { read_all(reader, [stdout as u64, stderr as u64]).await }
            }).collect();
            let writer = async {
                let more = push(&log, &during).await;
                (more, log.end())
            };
            let (seen, (more, ended)) = tokio::join!(join_all(readers), writer);
            more.order.iter().for_each(|stream| said.order.push(*stream));
            for (whole, more) in said.streams.iter_mut().zip(more.streams) {
                whole.extend(more);
            }
            for (seen, &(stdout, stderr)) in seen.iter().zip(&starts) {
                assert_eq!(*seen, said.behind(stdout, stderr));
            }
            assert_eq!(read_all(log.follow(0, 0), [0, 0]).await, said, "after the end too");
            assert_eq!((ended.stdout as usize, ended.stderr as usize), (said.streams[0].len(), said.streams[1].len()));
            assert_eq!((ended.digest, ended.left_out), (said.digest(), 0));
            assert_eq!(ended.inline.is_some(), files(&stage) == 0);
        });
    }

    /// Whatever length each file has: a kill may come between any two writes.
    #[test]
    fn torn_files_are_read_as_a_beginning_of_what_was_said(
        pieces in pieces(),
        (runs, stdout, stderr) in (0..100_u64, 0..100_u64, 0..100_u64),
        which in 0..4_u8,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async move {
            let stage = Stage::new();
            let id = Uuid::now_v7();
            let log = stage.store.outputs().begin(id, CAP);
            let mut all = pieces;
            all.push((Stream::Stdout, vec![9; 40_000]));
            let said = push(&log, &all).await;
            drop(log);
            let cut = |ending: &str, percent: u64| {
                let folder = stage.dir.path().join("outputs").join(format!("{:02x}", id.as_bytes()[15]));
                let path = folder.join(format!("{}.{ending}", id.simple()));
                let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
                file.set_len(file.metadata().unwrap().len() * percent / 100).unwrap();
            };
            // A turn is noted before its bytes are there, so runs are torn only by themselves.
            match which {
                0 => cut("runs", runs),
                1 => cut("out", stdout),
                2 => cut("err", stderr),
                _ => (cut("out", stdout), cut("err", stderr)).0,
            }
            let left = stage.store.outputs().ended(id, ()).await.unwrap().unwrap();
            let replayed = read_all(left.follow(0, 0), [0, 0]).await;
            let log = stage.store.outputs().resume(id, CAP).unwrap();
            let position = log.position() as usize;
            if which > 0 {
                assert_eq!(replayed.order[..], said.order[..replayed.order.len()], "a beginning");
                assert_eq!(replayed.order.len(), position);
                // It goes on where it was, and nobody can tell.
                let mut at = [0, 0];
                for (n, stream) in said.order.iter().enumerate() {
                    let of = *stream as usize;
                    at[of] += 1;
                    // A byte at a time for a while, then the rest of the turn.
                    if n >= position && n < position + 50 {
                        log.push(*stream, Bytes::copy_from_slice(&said.streams[of][at[of] - 1..at[of]])).await.unwrap();
                    }
                }
                let whole = (position + 50).min(said.order.len());
                log.end();
                let read = read_all(log.follow(0, 0), [0, 0]).await;
                assert_eq!(read.order[..], said.order[..whole]);
                assert!(read.streams.iter().zip(&said.streams).all(|(read, said)| *read == said[..read.len()]));
            }
        });
    }
}

#[tokio::test]
async fn memory_stays_bounded_whatever_is_said_and_whoever_listens() {
    let stage = Stage::new();
    let log: Arc<Log> = stage.store.outputs().begin(Uuid::now_v7(), CAP);
    let readers: Vec<_> = (0..200).map(|_| Box::pin(log.follow(0, 0))).collect();
    let before = resident();
    let piece = Bytes::from(vec![b'x'; 64 << 10]);
    for n in 0..1_600_u32 {
        let stream = if n % 2 == 0 { Stream::Stdout } else { Stream::Stderr };
        log.push(stream, piece.clone()).await.unwrap();
    }
    // A hundred MiB were said, and each reader took a piece.
    let mut held = Vec::new();
    for mut reader in readers {
        held.push(reader.next().await.unwrap().unwrap().bytes.len());
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 40 << 20, "{grown} bytes more");
    assert_eq!(held.len(), 200);
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
