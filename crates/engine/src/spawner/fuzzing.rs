//! What the spawner makes of a server that says whatever it likes, and the server of such a spawner. Nothing is cloned here.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use futures_util::future::join_all;
use tokio::task::yield_now;

use super::{
    client::Requests,
    process::{Request, answer_requests},
};
use crate::{
    fuzzing::script::{Script, borrowed, leave_nothing_open, runtime},
    kernel::fdpass,
    wire::{Failure, Ids, IdsShown, Spawned, Step, ToSpawner},
};

/// Every request has one answer, with its own tag, and with a descriptor if it was not refused.
pub fn spawner(bytes: &[u8]) {
    leave_nothing_open(|| serve(Script(bytes)));
}

fn serve(mut script: Script<'_>) {
    const MAX_REQUESTS: usize = 16; // their answers fit into the socket: nobody reads them meanwhile
    let Ok((ours, theirs)) = fdpass::pair() else { return };
    let mut tags = Vec::new();
    while !script.is_over() && tags.len() < MAX_REQUESTS {
        let (message, fds) = request(&mut script);
        if message.is_empty() || fdpass::send(theirs.as_fd(), &message, &borrowed(&fds)).is_err() {
            break;
        }
        tags.push(ToSpawner::decode(&message).map_or(0, |asked| asked.tag()));
    }
    if rustix::net::shutdown(&theirs, rustix::net::Shutdown::Write).is_err() {
        return;
    }
    let act = |request| match request {
        Request::Clone { control, .. } => Ok(control),
        Request::Map(_) => Err(Failure { step: Step::MountIds, errno: libc::EPERM }),
    };
    answer_requests(ours.as_fd(), act).expect("a server that is gone is no failure");
    let mut buffer = vec![0; fdpass::MAX_MESSAGE];
    for tag in tags {
        let (length, fds) = fdpass::receive(theirs.as_fd(), &mut buffer).expect("an answer to each");
        let spawned = Spawned::decode(&buffer[..length]).expect("an answer that the server understands");
        assert_eq!((spawned.tag, spawned.failure.is_none()), (tag, fds.len() == 1));
    }
    assert!(fdpass::receive(theirs.as_fd(), &mut buffer).is_err(), "an answer that nobody asked for");
}

fn request(script: &mut Script<'_>) -> (Vec<u8>, Vec<OwnedFd>) {
    let message = match script.byte() % 3 {
        0 => ToSpawner::Clone {
            tag: script.number(),
            ids_base: script.number() as u32,
            ids_count: script.number() as u32,
            cgroup: script.byte() % 2 == 1,
            hostname: script.text().to_vec(),
        }
        .encode(),
        1 => ToSpawner::Map { tag: script.number(), ids: SOME_IDS }.encode(),
        _ => script.text().to_vec(),
    };
    (message, script.descriptors())
}

/// Whoever waits is answered, or hears that there will be no answer; and gets only what was an answer to it.
pub fn hostile_spawner(bytes: &[u8]) {
    leave_nothing_open(|| runtime().block_on(ask(Script(bytes))));
}

async fn ask(mut script: Script<'_>) {
    let Ok((ours, theirs)) = fdpass::pair() else { return };
    let Ok(requests) = &Requests::new(ours, Arc::default()) else { return };
    let granted = &RefCell::new(BTreeSet::new());
    let asked = (1..=u64::from(script.byte() % 5)).map(|tag| async move {
        let answer = requests.ask(&ToSpawner::Map { tag, ids: SOME_IDS }, &[]).await;
        assert!(answer.is_err() || granted.borrow().contains(&tag), "request {tag} was not granted");
    });
    let talk = async {
        while !script.is_over() {
            let (message, fds) = answer(&mut script);
            if let Ok(Spawned { tag, failure: None }) = Spawned::decode(&message) {
                granted.borrow_mut().insert(tag);
            }
            let _ = fdpass::send(theirs.as_fd(), &message, &borrowed(&fds)); // what does not fit is not said
            yield_now().await;
        }
        drop(theirs);
    };
    tokio::join!(join_all(asked), talk, requests.read_answers());
    assert!(requests.ask(&ToSpawner::Map { tag: 9, ids: SOME_IDS }, &[]).await.is_err(), "it has ended");
}

fn answer(script: &mut Script<'_>) -> (Vec<u8>, Vec<OwnedFd>) {
    let message = match script.byte() % 4 {
        0 => Spawned { tag: script.number(), failure: None }.encode(),
        1 => {
            let failure = Failure { step: Step::Clone, errno: script.number() as i32 };
            Spawned { tag: script.number(), failure: Some(failure) }.encode()
        }
        _ => script.text().to_vec(),
    };
    (message, script.descriptors())
}

const SOME_IDS: IdsShown =
    IdsShown { from: Ids { user: 0, group: 0 }, to: Ids { user: 100_000, group: 100_000 }, count: 1 };
