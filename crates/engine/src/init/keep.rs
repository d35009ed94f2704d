//! What init keeps, so that a sandbox outlives its server: how commands ended, and what they say while nobody listens.
//!
//! Init holds a second descriptor of everything that the server holds of a command. As long as there is a server, it does
//! not touch them. When the server is gone, it moves the output on into the command's memory file; the next server knocks,
//! and is handed all of it. So there is no process beside init that could die and take the output along.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use cabana_sandbox::Channel;
use rustix::fs::MemfdFlags;

use crate::{
    feed::Feed,
    kernel::sys,
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
    /// Since when the sandbox outlives its server, and by what the next one knocks.
    door: Option<Door>,
    execs: BTreeMap<u64, Kept>,
    ended: VecDeque<u64>,
    /// When to look after what ended last: by then the server has taken what it said.
    tidy_at: Option<u64>,
    used: VecDeque<u128>,
    last: u64,
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
    /// Only while there is no server: it is the server's to write otherwise.
    spool: Option<Spool>,
}

impl Keeper {
    pub(super) fn new(root: OwnedFd, terminals: OwnedFd, null: OwnedFd) -> Self {
        let (execs, ended, used) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        Self { root, terminals, null, door: None, execs, ended, tidy_at: None, used, last: 0 }
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
        self.execs.insert(plan.exec, Kept { id, pid: 0, memory, limit, feed, stdin, ended: None, spool: None });
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
                kept.stdin = None;
                self.tidy_at = Some(sys::monotonic_ns() + SETTLED_NS);
                self.ended.push_back(exec);
                if self.ended.len() > ENDED
                    && let Some(oldest) = self.ended.pop_front()
                {
                    self.execs.remove(&oldest);
                }
            }
            _ => {}
        }
    }

    pub(super) fn forget(&mut self, exec: u64) {
        if self.execs.get(&exec).is_some_and(|kept| kept.ended.is_some()) {
            self.execs.remove(&exec);
            self.ended.retain(|ended| *ended != exec);
        }
    }

    pub(super) fn close_input(&mut self, exec: u64) {
        if let Some(kept) = self.execs.get_mut(&exec) {
            kept.stdin = None;
        }
    }

    pub(super) fn next_deadline(&self, now: u64) -> Option<u64> {
        self.tidy_at.map(|at| at.saturating_sub(now))
    }

    /// Lets go of pipes and terminals that hold nothing and that nobody can write to: each takes some KiB.
    pub(super) fn tidy(&mut self, now: u64) {
        self.tidy_at.take_if(|at| *at <= now);
        for exec in &self.ended {
            let Some(Kept { feed, .. }) = self.execs.get_mut(exec) else { continue };
            feed.terminal.take_if(|(master, _)| is_over(master));
            feed.pipes.retain(|(_, pipe)| !is_over(pipe));
        }
    }

    /// There is no server any more: what commands say is taken from here on.
    pub(super) fn take_over(&mut self) {
        for kept in self.execs.values_mut() {
            kept.spool = kept.memory.try_clone().and_then(|memory| Spool::open(memory, kept.limit)).ok();
        }
        self.drain();
    }

    pub(super) fn add_polled(&self, fds: &mut Vec<libc::pollfd>) {
        let poll = |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        for kept in self.execs.values().filter(|kept| kept.spool.is_some()) {
            fds.extend(kept.feed.pipes.iter().map(|(_, pipe)| poll(pipe)));
            fds.extend(kept.feed.terminal.iter().map(|(master, _)| poll(master)));
        }
    }

    /// Moves on what the commands have said.
    pub(super) fn drain(&mut self) {
        for kept in self.execs.values_mut() {
            kept.drain(&self.null);
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
        for (exec, kept) in &mut self.execs {
            kept.spool = None;
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
    fn drain(&mut self, null: &OwnedFd) {
        let Some(spool) = &mut self.spool else { return };
        if spool.is_sealed() {
            // A daemon that was left behind writes on: nobody listens, but a closed pipe would kill it.
            self.feed.pour_away(null);
            return;
        }
        // As long as there is something, but not for ever: others have something to say, too.
        for _ in 0..16 {
            if self.feed.take(spool) {
                continue;
            }
            // What a terminal was written to before comes later, so it is left open.
            if self.ended.is_some() && self.feed.terminal.is_none() {
                let _ = spool.seal();
            }
            return;
        }
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
