//! What init keeps, so that a sandbox outlives its server: how commands ended, and what they say while nobody listens.
//!
//! Init holds a second descriptor of everything that the server holds of a command. As long as there is a server, it does
//! not touch them. When the server is gone, a child of init moves the output on into the command's memory file; the next server
//! knocks, and is handed all of it. A guest can hold the lock of a pipe for as long as its disk is slow, and who waits for it
//! cannot be interrupted: so that is a child, and init goes on holding commands to their time. It can die at any moment and
//! takes nothing along, since all that it knows is in those files; there is another at once.
#![allow(unsafe_code)]

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
};

use cabana_sandbox::Channel;
use rustix::fs::MemfdFlags;

use crate::{
    feed::Feed,
    kernel::sys::{self, Secret, Waited},
    spool::Spool,
    wire::{Ended, ExecPlan, FromInit, KeptExec, PROTOCOL, Stillness},
};

/// How many ended commands are remembered with their output. The server remembers as many.
pub(crate) const ENDED: usize = 128;

/// How many ids of commands are remembered, so that a server that comes back runs none a second time.
const USED: usize = 4096;

/// How long a server may take to read the last of what a command said.
const SETTLED_NS: u64 = 20_000_000;

pub(super) struct Keeper {
    /// For the server: it opens files and terminals itself.
    root: OwnedFd,
    terminals: OwnedFd,
    null: OwnedFd,
    secret: Secret,
    /// Since when the sandbox outlives its server, and by what the next one knocks.
    door: Option<Door>,
    execs: BTreeMap<u64, Kept>,
    ended: VecDeque<u64>,
    /// Moves output on while there is no server.
    drainer: Option<i32>,
    /// Whether the last one found that nothing can come any more.
    drained: bool,
    /// When to look after what ended last: by then the server has taken what it said.
    tidy_at: Option<u64>,
    used: VecDeque<u128>,
    last: u64,
    /// What is to be closed, and by a child, where there could be none yet.
    unclosed: Vec<OwnedFd>,
}

struct Door {
    token: u128,
    listener: OwnedFd,
    /// Held, never used: the range of ids is ours as long as this is open somewhere.
    lock: OwnedFd,
}

struct Kept {
    id: u128,
    pid: u32,
    memory: OwnedFd,
    limit: u64,
    feed: Feed<OwnedFd, OwnedFd>,
    stdin: Option<OwnedFd>,
    ended: Option<Ended>,
}

impl Keeper {
    pub(super) fn new(root: OwnedFd, terminals: OwnedFd, null: OwnedFd, secret: Secret) -> Self {
        let (execs, ended, used) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        Self {
            root,
            terminals,
            null,
            secret,
            door: None,
            execs,
            ended,
            drainer: None,
            drained: false,
            tidy_at: None,
            used,
            last: 0,
            unclosed: Vec::new(),
        }
    }

    /// From here on the sandbox outlives its server.
    pub(super) fn keep(&mut self, token: u128, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        if let (Some(listener), Some(lock)) = (fds.next(), fds.next()) {
            self.door = Some(Door { token, listener, lock });
        }
    }

    pub(super) fn door(&self) -> Option<&OwnedFd> {
        self.door.as_ref().map(|door| &door.listener)
    }

    pub(super) fn knows(&self, token: u128) -> bool {
        self.door.as_ref().is_some_and(|door| door.token == token)
    }

    /// A command begins. `fds` are those that are kept of it.
    pub(super) fn begin(&mut self, plan: &ExecPlan<'_>, fds: Vec<OwnedFd>) {
        self.last = self.last.max(plan.exec);
        self.used.push_back(plan.id);
        if self.used.len() > USED {
            self.used.pop_front();
        }
        if plan.kept == 0 || fds.len() != plan.kept_descriptors() {
            return;
        }
        let mut fds = fds.into_iter();
        let mut next = || fds.next();
        let Some(memory) = next() else { return };
        let feed = match plan.terminal {
            true => Feed {
                pipes: next().map(|pipe| (Channel::Terminal, pipe)).into_iter().collect(),
                terminal: next().and_then(|into| Some((next()?, into))),
            },
            false => {
                let pipes = [Channel::Stdout, Channel::Stderr].map(|channel| next().map(|pipe| (channel, pipe)));
                Feed { pipes: pipes.into_iter().flatten().collect(), terminal: None }
            }
        };
        let stdin = if plan.stdin && !plan.terminal { next() } else { None };
        let (id, limit) = (plan.id, plan.kept);
        self.execs.insert(plan.exec, Kept { id, pid: 0, memory, limit, feed, stdin, ended: None });
    }

    /// Whatever the server is told, it may be told again.
    pub(super) fn note(&mut self, message: &FromInit) {
        match *message {
            FromInit::Started { exec, pid } => {
                if let Some(kept) = self.execs.get_mut(&exec) {
                    kept.pid = pid;
                }
            }
            FromInit::NotStarted { exec, .. } => {
                if let Some(kept) = self.execs.remove(&exec) {
                    self.used.retain(|id| *id != kept.id); // nothing ran: the id is free again
                }
            }
            FromInit::Exited { exec, ended } => {
                let Some(kept) = self.execs.get_mut(&exec) else { return };
                kept.ended = Some(ended);
                // A daemon that was left behind may be reading it. Where nobody is, nobody has its lock.
                let input = kept.stdin.take().filter(has_reader);
                self.close_apart(input);
                self.tidy_at = Some(sys::monotonic_ns() + SETTLED_NS);
                self.drained = false;
                self.stop_draining(); // the next one knows of this end
                self.ended.push_back(exec);
                if self.ended.len() > ENDED
                    && let Some(oldest) = self.ended.pop_front()
                {
                    self.remove(oldest);
                }
            }
            _ => {}
        }
    }

    pub(super) fn forget(&mut self, exec: u64) {
        if self.execs.get(&exec).is_some_and(|kept| kept.ended.is_some()) {
            self.remove(exec);
            self.ended.retain(|ended| *ended != exec);
        }
    }

    fn remove(&mut self, exec: u64) {
        let Some(Kept { feed: Feed { pipes, terminal }, .. }) = self.execs.remove(&exec) else { return };
        let terminal = terminal.into_iter().flat_map(|(master, into)| [master, into]);
        // What a daemon that was left behind can still write to.
        let used = pipes.into_iter().map(|(_, pipe)| pipe).chain(terminal).filter(|pipe| !is_over(pipe));
        self.close_apart(used);
    }

    pub(super) fn close_input(&mut self, exec: u64) {
        let input = self.execs.get_mut(&exec).and_then(|kept| kept.stdin.take());
        self.close_apart(input);
    }

    /// Closes what a guest may be using, without waiting for it: who closes a pipe last takes its lock. So that is a child, which ends
    /// when this process has closed its own. A guest can see to it that there can be none: then it is tried again later.
    fn close_apart(&mut self, fds: impl IntoIterator<Item = OwnedFd>) {
        self.unclosed.extend(fds);
        if self.unclosed.is_empty() {
            return;
        }
        let made = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(errno);
        // SAFETY: this process has one thread, and the child does not return.
        let forked = made.and_then(|pipe| Ok((unsafe { sys::fork_self() }?, pipe)));
        match forked {
            Ok((None, (closed, _))) => close_with_parent(&self.unclosed, &closed),
            Ok((Some(_), (_, closing))) => {
                self.unclosed.clear();
                drop(closing);
            }
            Err(_) => self.tidy_at = Some(sys::monotonic_ns() + SETTLED_NS),
        }
    }

    pub(super) fn next_deadline(&self, now: u64) -> Option<u64> {
        self.tidy_at.map(|at| at.saturating_sub(now))
    }

    /// Lets go of pipes and terminals that hold nothing and that no process can write to: each takes some KiB. After a while, and when
    /// something may have ended that could write to them.
    pub(super) fn tidy(&mut self, now: u64, may_have_ended: bool) {
        if self.tidy_at.take_if(|at| *at <= now).is_none() && !may_have_ended {
            return;
        }
        self.close_apart(None);
        for exec in &self.ended {
            let Some(Kept { feed, .. }) = self.execs.get_mut(exec) else { continue };
            feed.terminal.take_if(|(master, _)| is_over(master));
            feed.pipes.retain(|(_, pipe)| !is_over(pipe));
        }
    }

    /// There is no server: what commands say is taken by a child, if there is none yet. Where there can be no child now, it is
    /// tried again with whatever happens next.
    pub(super) fn drain(&mut self) {
        if self.drainer.is_some() || self.drained || self.execs.values().all(|kept| kept.feed.is_over()) {
            return;
        }
        // SAFETY: this process has one thread, and the child does not return.
        match unsafe { sys::fork_self() } {
            Ok(Some(pid)) => self.drainer = Some(pid),
            Ok(None) => self.run_drainer(),
            Err(_) => self.tidy_at = Some(sys::monotonic_ns() + SETTLED_NS),
        }
    }

    /// Whether nobody drains any more. One that a guest holds up ends when the guest lets go.
    pub(super) fn stop_draining(&self) -> bool {
        let Some(drainer) = self.drainer else { return true };
        sys::kill(drainer, libc::SIGKILL).unwrap_or_default();
        false
    }

    /// A child was waited for. One that ended by itself has nothing more to do.
    pub(super) fn ended(&mut self, waited: &Waited) {
        if self.drainer.take_if(|drainer| *drainer == waited.pid).is_some() {
            self.drained = waited.status == 0;
        }
    }

    /// There is no server any more.
    pub(super) fn take_over(&mut self) {
        self.drained = false;
    }

    /// The child begins here, and is killed if it does not end before.
    fn run_drainer(&mut self) -> ! {
        sys::set_name(c"cabana-drain");
        let mut execs = std::mem::take(&mut self.execs);
        // The control socket, the door and the commands' groups are init's alone.
        let mut kept: Vec<_> = execs.values().flat_map(Kept::drained).chain([self.null.as_raw_fd()]).collect();
        kept.sort_unstable();
        if sys::close_all_but(&kept).is_err() {
            sys::exit(1);
        }
        let spool = |kept: &Kept| kept.memory.try_clone().and_then(|memory| Spool::open(memory, kept.limit)).ok();
        let mut all: Vec<_> = execs.values_mut().filter_map(|kept| Some((spool(kept)?, kept))).collect();
        loop {
            let took = all.iter_mut().fold(false, |took, (spool, kept)| kept.drain(spool, &self.null) || took);
            let poll = |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            if all.iter().all(|(_, kept)| kept.feed.is_over()) {
                sys::exit(0);
            }
            let mut fds: Vec<_> = all.iter().flat_map(|(_, kept)| kept.feed.descriptors().map(poll)).collect();
            // What is ready and cannot be taken waits for memory.
            let ready = sys::poll_many(self.secret, &mut fds, Some(0)).map(|ready| ready > 0);
            if ready == Ok(false) && sys::poll_many(self.secret, &mut fds, None).is_ok() {
                continue;
            }
            if ready != Ok(true) || !took {
                let _ = sys::poll(&mut [], Some(SETTLED_NS));
            }
        }
    }

    /// All that a server needs that comes back, with the descriptors beside each message. It is the one who writes from here
    /// on.
    pub(super) fn hand_over(&mut self, stillness: Stillness) -> io::Result<Vec<(FromInit, Vec<OwnedFd>)>> {
        let Some(door) = &self.door else { return Err(io::ErrorKind::NotFound.into()) };
        let welcome =
            FromInit::Welcome { protocol: PROTOCOL, stillness, last: self.last, execs: self.execs.len() as u32 };
        let fds = vec![self.root.try_clone()?, self.terminals.try_clone()?, door.lock.try_clone()?, self.used()?];
        let mut all = vec![(welcome, fds)];
        for (exec, kept) in &self.execs {
            all.push(kept.hand_over(*exec)?);
        }
        Ok(all)
    }

    fn used(&self) -> io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create(c"used", MemfdFlags::CLOEXEC)?;
        let bytes: Vec<u8> = self.used.iter().flat_map(|id| id.to_le_bytes()).collect();
        let mut written = 0;
        while written < bytes.len() {
            written += rustix::io::pwrite(&file, &bytes[written..], written as u64)?;
        }
        Ok(file)
    }
}

impl Kept {
    /// Whether there was anything to take.
    fn drain(&mut self, spool: &mut Spool, null: &OwnedFd) -> bool {
        if spool.is_sealed() {
            // A daemon that was left behind writes on: nobody listens, but a closed pipe would kill it.
            return self.feed.pour_away(null);
        }
        // As long as there is something, but not for ever: others have something to say, too.
        for round in 0..16 {
            if self.feed.take(spool) {
                continue;
            }
            // What a terminal was written to before comes later, so it is left open.
            if self.ended.is_some() && self.feed.terminal.is_none() {
                let _ = spool.seal();
            }
            return round > 0;
        }
        true
    }

    /// What a drainer needs of it.
    fn drained(&self) -> impl Iterator<Item = RawFd> {
        let into = self.feed.terminal.iter().map(|(_, into)| into);
        self.feed.descriptors().chain(into).chain([&self.memory]).map(AsRawFd::as_raw_fd)
    }

    fn hand_over(&self, exec: u64) -> io::Result<(FromInit, Vec<OwnedFd>)> {
        let open = |channel| self.feed.pipes.iter().find(|(of, _)| *of == channel).map(|(_, pipe)| pipe);
        let [stdout, stderr, terminal] = [Channel::Stdout, Channel::Stderr, Channel::Terminal].map(open);
        let pipes = [Some(&self.memory), stdout, stderr, terminal].into_iter().flatten();
        let master = self.feed.terminal.iter().flat_map(|(master, into)| [into, master]);
        let fds = pipes.chain(master).chain(&self.stdin);
        let kept = KeptExec {
            exec,
            id: self.id,
            pid: self.pid,
            stdout: stdout.is_some(),
            stderr: stderr.is_some(),
            terminal: terminal.is_some(),
            master: self.feed.terminal.is_some(),
            stdin: self.stdin.is_some(),
            ended: self.ended,
        };
        Ok((FromInit::Kept(kept), fds.map(|fd| fd.as_fd().try_clone_to_owned()).collect::<io::Result<_>>()?))
    }
}

/// Closed at the other end, and empty.
fn is_over(pipe: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::new(pipe, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())) == Ok(1) && !asked[0].revents().contains(PollFlags::IN)
}

/// Of the end of a pipe that is written to.
fn has_reader(pipe: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::new(pipe, PollFlags::OUT)];
    poll(&mut asked, Some(&Timespec::default())).is_err() || !asked[0].revents().contains(PollFlags::ERR)
}

/// The child begins here. The pipe ends when its parent has closed its own.
fn close_with_parent(fds: &[OwnedFd], closed: &OwnedFd) -> ! {
    sys::set_name(c"cabana-close");
    let mut kept: Vec<_> = fds.iter().chain([closed]).map(AsRawFd::as_raw_fd).collect();
    kept.sort_unstable();
    if sys::close_all_but(&kept).is_ok() {
        let _ = sys::read(closed.as_raw_fd(), &mut [0]);
    }
    sys::exit(0)
}

fn errno(errno: rustix::io::Errno) -> sys::Errno {
    sys::Errno(errno.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_has_a_reader_until_the_last_one_closes_it() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let other = read.try_clone().unwrap();
        drop(read);
        assert!(has_reader(&write));
        drop(other);
        assert!(!has_reader(&write));
    }
}
