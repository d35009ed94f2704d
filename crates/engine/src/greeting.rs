//! The first words between an init that outlived its server and the next one.

use std::{io, os::fd::OwnedFd, time::Duration};

use cabana_sandbox::ExecId;

use crate::{
    channel::Channel,
    fault,
    wire::{FromInit, KeptExec, PROTOCOL, Stillness, ToInit},
};

/// How long init may take to tell all that it knows.
const ANSWER: Duration = Duration::from_secs(30);

/// What init tells a server that comes back.
pub(crate) struct Found {
    pub(crate) root: OwnedFd,
    pub(crate) terminals: OwnedFd,
    pub(crate) lock: Option<OwnedFd>,
    pub(crate) stillness: Stillness,
    pub(crate) last: u64,
    pub(crate) used: Vec<ExecId>,
    pub(crate) execs: Vec<(KeptExec, Vec<OwnedFd>)>,
}

/// Says who we are to an init that outlived its server. `None`: it speaks another protocol, does not answer, or says
/// something else than it should, and is of no use. An error is ours.
pub(crate) async fn greet(channel: &Channel, token: u128) -> io::Result<Option<Found>> {
    match tokio::time::timeout(ANSWER, ask_for_all(channel, token)).await {
        Ok(Err(error)) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(None)
        }
        Ok(answered) => answered,
        Err(_) => Ok(None),
    }
}

async fn ask_for_all(channel: &Channel, token: u128) -> io::Result<Option<Found>> {
    channel.send(&ToInit::hello(fault::protocol(), token), &[]).await?;
    let Some((bytes, fds)) = channel.receive().await? else { return Ok(None) };
    let Ok(FromInit::Welcome { protocol: PROTOCOL, stillness, last, execs: count }) = FromInit::decode(&bytes) else {
        return Ok(None);
    };
    let Ok([root, terminals, lock, used]) = <[OwnedFd; 4]>::try_from(fds) else { return Ok(None) };
    let Some(used) = used_ids(&used) else { return Ok(None) };
    let mut execs = Vec::new();
    for _ in 0..count {
        let Some((bytes, fds)) = channel.receive().await? else { return Ok(None) };
        let Ok(FromInit::Kept(kept)) = FromInit::decode(&bytes) else { return Ok(None) };
        execs.push((kept, fds));
    }
    Ok(Some(Found { root, terminals, lock: Some(lock), stillness, last, used, execs }))
}

/// As many as init remembers, and not more, whatever it passes.
fn used_ids(file: &OwnedFd) -> Option<Vec<ExecId>> {
    const MOST: usize = 4096 * 16;
    let (mut bytes, mut filled) = (vec![0; MOST], 0);
    while filled < MOST {
        match rustix::io::pread(file, &mut bytes[filled..], filled as u64).ok()? {
            0 => break,
            count => filled += count,
        }
    }
    let ids = bytes[..filled].chunks_exact(16).map(|id| {
        let number = id.iter().rev().fold(0, |number: u128, byte| number << 8 | u128::from(*byte));
        ExecId::from(uuid::Uuid::from_u128(number))
    });
    Some(ids.collect())
}
