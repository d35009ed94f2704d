//! What a kill -9 leaves.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
    str::FromStr,
};

use bytes::Bytes;
use cabana_model::CallId;
use cabana_store::{Stream, ledger::verify};
use futures_util::{StreamExt, future::join_all};
use uuid::Uuid;

use crate::stage::{call, chain, done, open, rerun, tenant, told};

const CAP: u64 = 1 << 20;

/// Says what was acknowledged, until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_will_be_killed() {
    let Some(dir) = told() else { return };
    let store = open(&dir);
    let us = tenant("a");
    let writers = (0..8).map(|n| {
        let (store, us) = (store.clone(), us.clone());
        async move {
            loop {
                let call = call(&us);
                store.reserve(call.clone()).await.unwrap();
                println!("\nreserved {}", call.id);
                // Some stay open.
                if n > 0 {
                    store.record(done(&call)).await.unwrap();
                    println!("\nrecorded {}", call.id);
                }
            }
        }
    });
    join_all(writers).await;
}

/// What it said that was acknowledged, before it was killed after so many of them.
fn kill_after(lines: usize, test: &str, dir: &Path) -> Vec<(String, String)> {
    let mut server = rerun(&[], test, dir).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap());
    let mut heard = Vec::new();
    let mut line = String::new();
    while said.read_line(&mut line).unwrap() > 0 {
        let told = line.strip_suffix('\n').and_then(|line| line.split_once(' '));
        // A line without its end was cut by the kill.
        if let Some((what @ ("reserved" | "recorded" | "safe"), value)) = told {
            heard.push((what.to_owned(), value.to_owned()));
            if heard.len() == lines {
                server.kill().unwrap();
            }
        }
        line.clear();
    }
    server.wait().unwrap();
    assert!(heard.len() >= lines);
    heard
}

#[tokio::test]
async fn every_acknowledged_call_survives_a_kill_and_the_chain_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let us = tenant("a");
    let mut heard = Vec::new();
    for lines in [1, 40, 700] {
        heard.extend(kill_after(lines, "kills::a_server_that_will_be_killed", dir.path()));
        let store = open(dir.path());
        let rows = chain(&store, &us).await;
        verify(rows.clone().into_iter(), None, None).unwrap();
        let open: Vec<CallId> = store.open_calls().await.unwrap().into_iter().map(|call| call.id).collect();
        for (what, id) in &heard {
            let id = CallId::from_str(id).unwrap();
            let call = store.call(&us, id).await.unwrap().expect("an acknowledged call is there");
            let noted = rows.iter().filter(|row| row.call == id).count();
            assert_eq!(call.outcome.is_some(), noted == 1, "outcome and ledger row come together: {call:?}");
            assert_eq!(call.outcome.is_none(), open.contains(&id));
            assert!(what == "reserved" || noted == 1, "an acknowledged record is there");
        }
        assert!(!open.is_empty(), "one was between reserve and record");
        store.close().await;
    }
}

/// Says after each push what is safe by then.
#[tokio::test]
async fn a_writer_that_will_be_killed() {
    let Some(dir) = told() else { return };
    let log = open(&dir).outputs().begin(Uuid::from_u128(7), CAP);
    for n in 0_u64.. {
        let (stream, bytes) = piece(n);
        log.push(stream, bytes).await.unwrap();
        println!("\nsafe {}", log.position());
    }
}

fn piece(n: u64) -> (Stream, Bytes) {
    let stream = if n.is_multiple_of(3) { Stream::Stderr } else { Stream::Stdout };
    (stream, Bytes::from(vec![n as u8; 1 + (n as usize * 37) % 900]))
}

#[tokio::test]
async fn what_a_kill_leaves_of_an_output_is_a_beginning_of_it_with_all_that_was_safe() {
    for lines in [60, 250, 3000] {
        let dir = tempfile::tempdir().unwrap();
        let heard = kill_after(lines, "kills::a_writer_that_will_be_killed", dir.path());
        let safe: u64 = heard.last().unwrap().1.parse().unwrap();
        let store = open(dir.path());
        let log = store.outputs().resume(Uuid::from_u128(7), CAP).unwrap();
        let position = log.position();
        assert!(position >= safe, "{position} of {safe}");
        // It goes on where it was, and nobody can tell.
        let (mut n, mut said) = (0, 0);
        while said < position + 100_000 {
            let (stream, bytes) = piece(n);
            let known = position.saturating_sub(said).min(bytes.len() as u64);
            said += bytes.len() as u64;
            n += 1;
            log.push(stream, bytes.slice(known as usize..)).await.unwrap();
        }
        let ended = log.end();
        assert_eq!(ended.stdout + ended.stderr, said);
        let (mut streams, mut expected) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        (0..n).map(piece).for_each(|(stream, bytes)| expected[stream as usize].extend_from_slice(&bytes));
        let mut follower = std::pin::pin!(log.follow(0, 0));
        while let Some(chunk) = follower.next().await {
            let chunk = chunk.unwrap();
            assert_eq!(chunk.offset, streams[chunk.stream as usize].len() as u64);
            streams[chunk.stream as usize].extend_from_slice(&chunk.bytes);
        }
        for (read, expected) in streams.iter().zip(&expected) {
            assert_eq!(read[..], expected[..read.len()]);
        }
        assert_eq!((streams[0].len() + streams[1].len()) as u64, said.min(CAP));
        assert_eq!(ended.left_out, said - said.min(CAP));
    }
}
