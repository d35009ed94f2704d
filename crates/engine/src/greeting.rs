//! The first words between an init that outlived its server and the next one.

use std::{collections::HashSet, io, os::fd::OwnedFd, time::Duration};

use cabana_sandbox::ExecId;
use rustix::fs::FileType;

use crate::{
    channel::Channel,
    fault,
    init::ENDED,
    live::check_inside,
    places,
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
    // Each is some descriptors of ours: no more than init remembers and than there can be at once.
    if count as usize > ENDED + places::most_commands() || check_inside(&root, &terminals).is_err() {
        return Ok(None);
    }
    let (mut execs, mut numbers, mut ids) = (Vec::new(), HashSet::new(), HashSet::new());
    for _ in 0..count {
        let Some((bytes, fds)) = channel.receive().await? else { return Ok(None) };
        let Ok(FromInit::Kept(kept)) = FromInit::decode(&bytes) else { return Ok(None) };
        let are_as_told = fds.iter().map(kind_of).eq(kept.kinds().map(Some));
        if !are_as_told || !numbers.insert(kept.exec) || !ids.insert(kept.id) {
            return Ok(None);
        }
        execs.push((kept, fds));
    }
    Ok(Some(Found { root, terminals, lock: Some(lock), stillness, last, used, execs }))
}

fn kind_of(file: &OwnedFd) -> Option<FileType> {
    rustix::fs::fstat(file).ok().map(|about| FileType::from_raw_mode(about.st_mode))
}

/// As many as init remembers, and not more, whatever it passes.
fn used_ids(file: &OwnedFd) -> Option<Vec<ExecId>> {
    const MOST: usize = 4096 * 16;
    if kind_of(file) != Some(FileType::RegularFile) {
        return None;
    }
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::{
        fs::{MemfdFlags, Mode, OFlags, memfd_create, open},
        pipe::{PipeFlags, pipe_with},
    };

    use super::*;
    use crate::kernel::fdpass;

    fn memory() -> OwnedFd {
        memfd_create(c"kept", MemfdFlags::CLOEXEC).unwrap()
    }

    fn pipe() -> OwnedFd {
        pipe_with(PipeFlags::CLOEXEC).unwrap().0
    }

    fn directory(path: &str) -> OwnedFd {
        open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn welcome(execs: u32) -> (FromInit, Vec<OwnedFd>) {
        let fds = vec![directory("/"), directory("/dev/pts"), memory(), memory()];
        (FromInit::Welcome { protocol: PROTOCOL, stillness: Stillness::Going, last: 9, execs }, fds)
    }

    /// It writes to its standard output, and has an input.
    fn kept(exec: u64, fds: Vec<OwnedFd>) -> (FromInit, Vec<OwnedFd>) {
        let (id, none) = (u128::from(exec), false);
        let (stdout, stdin) = (true, true);
        let kept =
            KeptExec { exec, id, pid: 2, stdout, stderr: none, terminal: none, master: none, stdin, ended: None };
        (FromInit::Kept(kept), fds)
    }

    fn whole(exec: u64) -> (FromInit, Vec<OwnedFd>) {
        kept(exec, vec![memory(), pipe(), pipe()])
    }

    async fn greeted(said: Vec<(FromInit, Vec<OwnedFd>)>) -> Option<usize> {
        let (ours, theirs) = fdpass::pair().unwrap();
        for (message, fds) in said {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            fdpass::send(theirs.as_fd(), &message.encode(), &fds).unwrap();
        }
        let found = greet(&Channel::new(ours).unwrap(), 7).await.unwrap();
        drop(theirs);
        found.map(|found| found.execs.len())
    }

    #[tokio::test]
    async fn an_init_that_says_what_it_has_is_believed() {
        assert_eq!(greeted(vec![welcome(2), whole(1), whole(2)]).await, Some(2));
    }

    /// Nothing that it says later is waited for.
    #[tokio::test]
    async fn an_init_that_announces_more_than_there_can_be_is_of_no_use() {
        assert_eq!(greeted(vec![welcome(u32::MAX)]).await, None);
    }

    #[tokio::test]
    async fn an_init_that_passes_other_things_than_it_says_is_of_no_use() {
        let others = [
            vec![pipe(), pipe(), pipe()],
            vec![memory(), memory(), pipe()],
            vec![memory(), pipe(), directory("/")],
            vec![memory(), pipe()],
            vec![memory(), pipe(), pipe(), pipe()],
        ];
        for (number, fds) in others.into_iter().enumerate() {
            assert_eq!(greeted(vec![welcome(1), kept(1, fds)]).await, None, "{number}");
        }
        for other in 0..4 {
            let (message, mut fds) = welcome(0);
            fds[other] = pipe();
            let known = if other == 2 { Some(0) } else { None }; // the lock is known by its inode, later
            assert_eq!(greeted(vec![(message, fds)]).await, known, "{other}");
        }
    }

    #[tokio::test]
    async fn an_init_that_has_one_command_twice_is_of_no_use() {
        assert_eq!(greeted(vec![welcome(2), whole(1), whole(1)]).await, None);
    }
}
