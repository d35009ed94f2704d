//! Commands: started in init's own memory, without waiting for their exec.
//!
//! A vfork would stop init until the exec is through, and a guest can hold up an exec for as long as a lease lasts. So
//! the child shares init's memory like after a vfork, on a stack of its own, while init goes on; a pipe that the exec
//! closes tells when the stack is free again.
#![allow(unsafe_code)]

use std::{
    collections::HashMap,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    ptr,
    sync::atomic::{AtomicI32, AtomicU32, Ordering},
};

use super::{
    Polled,
    chase::{Chase, LOOK_AGAIN_NS},
    supervisor::{Supervised, kill_strays},
    tree::{Forest, Tree},
};
use crate::{
    kernel::sys::{self, Stack},
    walls,
    wire::{Ended, ExecPlan, Failure, FromInit, Step, Stillness},
};

pub(super) struct Execs {
    null: OwnedFd,
    forest: Forest,
    secret: sys::Secret,
    /// What a program may open: soft as programs that use select expect it, hard for those that know better.
    open_files: (u64, u64),
    starting: Vec<Starting>,
    running: HashMap<i32, Running>,
    /// Ended, but something of their tree may live on.
    lingering: Vec<(u64, Tree)>,
    /// One stack is kept: commands mostly come one after the other.
    stack: Option<Stack>,
    /// Since when they stand still.
    still: Option<u64>,
    stillness: Stillness,
    /// Whether a supervisor was killed, whose orphans are ours now.
    strays: bool,
    chase_of_strays: Chase,
}

/// How long a tracer may take to wait for a command that has ended, before it is killed. Nobody hears of the end meanwhile.
const TRACER_NS: u64 = 2_000_000_000;

/// What a process may have open where its limits do not say. Each descriptor can stand for memory of the kernel that no limit counts: a
/// list of a directory's names, an entry of whoever waits for it.
const OPEN_FILES: u64 = 8192;

struct Starting {
    pid: i32,
    exec: u64,
    /// Closed by the exec, or by the end.
    done: OwnedFd,
    child: Box<Child>,
    stack: Stack,
}

struct Running {
    exec: u64,
    tree: Tree,
    began: u64,
    deadline: Option<u64>,
    timed_out: bool,
    /// Since when nothing of it runs, or should, though nobody was told of its end.
    withheld: Option<u64>,
    /// Whether the server has heard of it: an exit comes after a start, always.
    told: bool,
    ended: Option<FromInit>,
}

impl Execs {
    pub(super) fn new(null: OwnedFd, forest: Forest, secret: sys::Secret) -> Self {
        let own = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
        // The kernel counts descriptors that lie in Unix sockets for each user, and lets nobody send more than its own limit says. Init
        // is root's, as its commands may be, and without ids of its own it is the server's user: half of them is for those.
        let hard = own / 2;
        let open_files = (hard.min(1024), hard);
        Self {
            null,
            forest,
            secret,
            open_files,
            starting: Vec::new(),
            running: HashMap::new(),
            lingering: Vec::new(),
            stack: None,
            still: None,
            stillness: Stillness::Going,
            strays: false,
            chase_of_strays: Chase::default(),
        }
    }

    pub(super) fn secret(&self) -> sys::Secret {
        self.secret
    }

    /// An answer now is a refusal; otherwise it comes when the exec is through.
    pub(super) fn start(&mut self, plan: &ExecPlan<'_>, fds: &[OwnedFd]) -> Option<FromInit> {
        let exec = plan.exec;
        if fds.len() != plan.descriptors() {
            return Some(refuse(exec, Step::Request, libc::EINVAL));
        }
        match self.try_start(plan, fds) {
            Ok(()) => None,
            Err((step, errno)) => Some(refuse(exec, step, errno.0)),
        }
    }

    fn try_start(&mut self, plan: &ExecPlan<'_>, fds: &[OwnedFd]) -> Result<(), (Step, sys::Errno)> {
        let (done, closed_by_exec) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|errno| (Step::Fork, sys::Errno(errno.raw_os_error())))?;
        // The pipes were made by the server: the user must own them, or it could not open its own /dev/stdout.
        for fd in fds.iter().filter(|_| !plan.terminal && plan.uid != 0) {
            let _ = rustix::fs::fchown(fd, Some(rustix::process::Uid::from_raw(plan.uid)), None);
        }
        let child = Box::new(Child::new(plan, fds, &self.null, &closed_by_exec, self.open_files(plan.open_files)));
        let stack = match self.stack.take() {
            Some(stack) => stack,
            None => Stack::new().map_err(|errno| (Step::Fork, errno))?,
        };
        let (began, argument) = (sys::monotonic_ns(), ptr::from_ref::<Child>(&child) as usize);
        let needed = child.descriptors();
        // SAFETY: `run` makes raw calls only and ends in exec or exit; child and stack are kept until `done` says so.
        let planted = unsafe { self.forest.plant(self.secret, &stack, run, argument, needed) };
        drop(closed_by_exec);
        let (pid, tree) = match planted {
            Ok(planted) => planted,
            Err(errno) => {
                self.stack = Some(stack);
                return Err((Step::Fork, errno));
            }
        };
        let deadline = (plan.timeout_ns > 0).then(|| began.saturating_add(plan.timeout_ns));
        let running = Running {
            exec: plan.exec,
            tree,
            began,
            deadline,
            timed_out: false,
            withheld: None,
            told: false,
            ended: None,
        };
        self.running.insert(pid, running);
        self.starting.push(Starting { pid, exec: plan.exec, done, child, stack });
        Ok(())
    }

    fn open_files(&self, most: u32) -> (u64, u64) {
        let (soft, hard) = self.open_files;
        let most = hard.min(if most == 0 { OPEN_FILES } else { most.into() });
        (soft.min(most), most)
    }

    pub(super) fn add_polled(&self, fds: &mut Vec<libc::pollfd>) {
        let poll =
            |starting: &Starting| libc::pollfd { fd: starting.done.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        fds.extend(self.starting.iter().map(poll));
        let reports = self.running.values().filter_map(|running| running.tree.supervised());
        fds.extend(reports.map(|tree| libc::pollfd { fd: tree.report(), events: libc::POLLIN, revents: 0 }));
        let leaves = self.running.values().filter_map(|running| running.tree.events());
        fds.extend(leaves.map(|fd| libc::pollfd { fd, events: libc::POLLPRI, revents: 0 }));
    }

    /// Of what was polled: notes commands of which nothing is left. Mostly init hears of their end at the same time.
    pub(super) fn note_emptied(&mut self, polled: &Polled, now: u64) {
        for running in self.running.values_mut() {
            if running.tree.events().is_some_and(|fd| polled.has(fd)) && running.tree.is_empty() {
                running.withheld.get_or_insert(now);
            }
        }
    }

    /// Whether one that was starting has its exec behind it, or failed.
    pub(super) fn is_through(&self, polled: &Polled) -> bool {
        self.starting.iter().any(|starting| polled.has(starting.done.as_raw_fd()))
    }

    /// Those whose exec is through, or failed.
    pub(super) fn started(&mut self) -> Vec<FromInit> {
        let mut answers = Vec::new();
        let mut place = 0;
        while place < self.starting.len() {
            let mut poll =
                [libc::pollfd { fd: self.starting[place].done.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            if !matches!(sys::poll(&mut poll, Some(0)), Ok(1)) {
                place += 1;
                continue;
            }
            let Starting { pid, exec, child, stack, .. } = self.starting.swap_remove(place);
            self.stack = Some(stack);
            match child.failure() {
                Some(failure) => {
                    if let Some(running) = self.running.remove(&pid) {
                        self.lingering.push((exec, running.tree));
                    }
                    answers.push(FromInit::NotStarted { exec, failure });
                }
                None => {
                    let leader = self.running.get(&pid).map_or(pid, |running| running.tree.leader(pid));
                    answers.push(FromInit::Started { exec, pid: leader as u32 });
                    if let Some(running) = self.running.get_mut(&pid) {
                        running.told = true;
                        if running.ended.is_some() {
                            answers.extend(self.finish(pid));
                        }
                    }
                }
            }
        }
        answers
    }

    /// Commands that are not our children: what their supervisors report.
    pub(super) fn reported(&mut self) -> Vec<FromInit> {
        let reports = self.running.values().filter_map(|running| running.tree.supervised()?.ended());
        let reports: Vec<_> = reports.collect();
        reports.iter().flat_map(|waited| self.ended(waited)).collect()
    }

    /// A child was waited for.
    pub(super) fn ended(&mut self, waited: &sys::Waited) -> Vec<FromInit> {
        self.strays |= waited.was_killed() && self.trees().any(|tree| tree.pid() == waited.pid);
        let Some(running) = self.running.get_mut(&waited.pid) else { return Vec::new() };
        // A supervisor that is gone may have reported just before: the command's end is what it said, not its own.
        let report = running.tree.supervised().and_then(Supervised::ended);
        let waited = report.as_ref().unwrap_or(waited);
        running.ended = Some(FromInit::Exited {
            exec: running.exec,
            ended: Ended {
                status: waited.status as u32,
                timed_out: running.timed_out,
                wall_ns: sys::monotonic_ns().saturating_sub(running.began),
                cpu_us: waited.cpu_us,
                peak_kib: waited.peak_kib,
            },
        });
        if running.told { self.finish(waited.pid) } else { self.started() }
    }

    fn finish(&mut self, pid: i32) -> Vec<FromInit> {
        let Some(running) = self.running.remove(&pid) else { return Vec::new() };
        self.lingering.push((running.exec, running.tree));
        running.ended.into_iter().collect()
    }

    /// To a tree, also to what a command left behind that has ended itself.
    pub(super) fn signal(&self, exec: u64, signal: i32, tree: bool) {
        let running = self.running.iter().find(|(_, running)| running.exec == exec);
        let left = self.lingering.iter().find(|(ended, _)| *ended == exec).map(|(_, left)| left);
        match (tree, running, left) {
            (true, Some((_, Running { tree, .. })), _) | (true, None, Some(tree)) => tree.signal(signal),
            (false, Some((pid, running)), _) => sys::kill(running.tree.leader(*pid), signal).unwrap_or_default(),
            _ => {}
        }
    }

    pub(super) fn stillness(&self) -> Stillness {
        self.stillness
    }

    /// The server is gone, which measures the traffic with the disk: commands that it froze for that go on.
    pub(super) fn go_on_alone(&self) {
        if self.stillness == Stillness::Going {
            self.forest.thaw();
        }
    }

    /// No time passes for what stands still.
    pub(super) fn stand_still(&mut self, stillness: Stillness, now: u64) {
        self.stillness = stillness;
        match (self.still, stillness != Stillness::Going) {
            (None, true) => self.still = Some(now),
            (Some(since), false) => {
                self.still = None;
                for deadline in self.running.values_mut().filter_map(|running| running.deadline.as_mut()) {
                    *deadline = deadline.saturating_add(now.saturating_sub(since));
                }
            }
            _ => {}
        }
    }

    pub(super) fn next_deadline(&self, now: u64) -> Option<u64> {
        if self.still.is_some() {
            return None;
        }
        let deadline_of = |running: &Running| match running.withheld {
            Some(since) => Some(since.saturating_add(TRACER_NS)),
            None => running.deadline,
        };
        let deadlines = self.running.values().filter(|running| running.ended.is_none()).filter_map(deadline_of);
        let again =
            (self.strays || self.trees().any(|tree| tree.chase().goes_on())).then(|| now.saturating_add(LOOK_AGAIN_NS));
        deadlines.chain(again).min().map(|deadline| deadline.saturating_sub(now))
    }

    pub(super) fn enforce_timeouts(&mut self, now: u64) {
        if self.still.is_some() {
            return;
        }
        // Nobody who is frozen can wait for anybody.
        let frozen = self.running.values().any(|running| running.withheld.is_some()) && self.forest.is_frozen();
        for (child, running) in &mut self.running {
            if !running.timed_out && running.deadline.is_some_and(|deadline| deadline <= now) {
                running.timed_out = true;
                running.withheld.get_or_insert(now);
                running.tree.signal(libc::SIGKILL);
            }
            if running.ended.is_none() && running.withheld.is_some_and(|since| since.saturating_add(TRACER_NS) <= now) {
                running.withheld = Some(now);
                if !frozen {
                    running.tree.let_go_of(*child);
                }
            }
        }
        self.go_on_killing(now);
    }

    /// What was killed, and may not be gone.
    fn go_on_killing(&mut self, now: u64) {
        for tree in self.trees().filter(|tree| tree.chase().goes_on()) {
            tree.signal(libc::SIGKILL);
        }
        if self.strays {
            let known = |pid| self.running.contains_key(&pid) || self.trees().any(|tree| tree.pid() == pid);
            self.strays = kill_strays(&self.chase_of_strays, known);
        }
        let mut chases = self.trees().map(Supervised::chase).chain([&self.chase_of_strays]);
        if chases.any(|chase| chase.is_hopeless(now)) {
            sys::kill_all_others();
        }
    }

    /// Where no cgroup keeps them together.
    fn trees(&self) -> impl Iterator<Item = &Supervised> {
        let running = self.running.values().map(|running| &running.tree);
        running.chain(self.lingering.iter().map(|(_, tree)| tree)).filter_map(Tree::supervised)
    }

    /// Takes back the trees in which nothing lives any more.
    pub(super) fn tidy(&mut self) {
        let mut place = 0;
        while place < self.lingering.len() {
            if self.lingering[place].1.is_empty() {
                self.forest.fell(self.lingering.swap_remove(place).1);
            } else {
                place += 1;
            }
        }
    }
}

fn refuse(exec: u64, step: Step, errno: i32) -> FromInit {
    FromInit::NotStarted { exec, failure: Failure { step, errno } }
}

/// All that the child needs, ready to be handed to the kernel: it can neither allocate nor look anything up.
struct Child {
    uid: u32,
    gid: u32,
    /// With its own: a program that changes it, by a set-gid bit, must not leave it, where a file may be closed to that group.
    groups: Vec<u32>,
    terminal: bool,
    stdio: [RawFd; 3],
    /// The pipe whose end tells init that the exec is through.
    status: RawFd,
    open_files: (u64, u64),
    cwd: *const libc::c_char,
    programs: Vec<*const libc::c_char>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    step: AtomicU32,
    errno: AtomicI32,
    /// What the pointers point into.
    _texts: Vec<std::ffi::CString>,
}

impl Child {
    fn new(plan: &ExecPlan<'_>, fds: &[OwnedFd], null: &OwnedFd, status: &OwnedFd, open_files: (u64, u64)) -> Self {
        let mut texts = Vec::new();
        let mut keep = |text: &std::ffi::CStr| {
            texts.push(text.to_owned());
            texts.last().map_or(ptr::null(), |text: &std::ffi::CString| text.as_ptr())
        };
        let mut keep_all = |list: &[&std::ffi::CStr]| list.iter().map(|text| keep(text)).collect::<Vec<_>>();
        let programs = keep_all(&plan.programs);
        let mut argv = keep_all(&plan.argv);
        let mut env = keep_all(&plan.env);
        argv.push(ptr::null());
        env.push(ptr::null());
        let cwd = keep(plan.cwd);
        let mut groups = plan.groups.clone();
        if !groups.contains(&plan.gid) {
            groups.push(plan.gid);
        }
        let stdio = match (plan.terminal, plan.stdin) {
            (true, _) => [fds[0].as_raw_fd(); 3],
            (false, true) => [fds[0].as_raw_fd(), fds[1].as_raw_fd(), fds[2].as_raw_fd()],
            (false, false) => [null.as_raw_fd(), fds[0].as_raw_fd(), fds[1].as_raw_fd()],
        };
        Self {
            uid: plan.uid,
            gid: plan.gid,
            groups,
            terminal: plan.terminal,
            stdio,
            status: status.as_raw_fd(),
            open_files,
            cwd,
            programs,
            argv,
            env,
            step: AtomicU32::new(0),
            errno: AtomicI32::new(0),
            _texts: texts,
        }
    }

    /// All that it needs of init's.
    fn descriptors(&self) -> [RawFd; 4] {
        [self.stdio[0], self.stdio[1], self.stdio[2], self.status]
    }

    fn failure(&self) -> Option<Failure> {
        let errno = self.errno.load(Ordering::Acquire);
        let step = match self.step.load(Ordering::Acquire) {
            0 => Step::Session,
            1 => Step::Terminal,
            2 => Step::Descriptors,
            3 => Step::Identity,
            4 => Step::Workdir,
            _ => Step::Exec,
        };
        (errno != 0).then_some(Failure { step, errno })
    }

    fn give_up_capabilities(&self) -> sys::Result<()> {
        sys::set_capabilities(&sys::capabilities()?.only(walls::kept_mask()))
    }

    /// In the child. The steps are counted, so that a failure names its own.
    fn become_command(&self) -> sys::Errno {
        let count = |step: u32| self.step.store(step, Ordering::Release);
        macro_rules! attempt {
            ($step:literal, $call:expr) => {
                count($step);
                if let Err(errno) = $call {
                    return errno;
                }
            };
        }
        attempt!(0, sys::setsid());
        attempt!(2, sys::dup3(self.stdio[0], 0, 0));
        attempt!(2, sys::dup3(self.stdio[1], 1, 0));
        attempt!(2, sys::dup3(self.stdio[2], 2, 0));
        // Closed now, not by the exec: every path below may lead through /proc/self/fd, and what is open there is a way to
        // it. What stays is the pipe to init, which the exec closes.
        attempt!(2, sys::close_all_but(&[self.status]));
        if self.terminal {
            attempt!(1, sys::ioctl(0, libc::TIOCSCTTY, 0));
        }
        let _ = sys::set_rlimit(libc::RLIMIT_NOFILE, self.open_files.0, self.open_files.1);
        // Refused where there is a single id, and then there are no groups to have.
        let groups = sys::setgroups(&self.groups);
        if self.groups != [self.gid] {
            attempt!(3, groups);
        }
        attempt!(3, sys::setresgid(self.gid, self.gid, self.gid));
        attempt!(3, sys::setresuid(self.uid, self.uid, self.uid));
        // Where fs.suid_dumpable is 1, a change of user opens the memory to that user, and until the exec it is init's.
        let _ = sys::prctl(libc::PR_SET_DUMPABLE, 0);
        // Root's child has init's capabilities until its exec, and by them /proc/1 would be open to the paths below. In
        // effect are only those that root inside has; the others stay permitted, so that root inside may not trace it.
        attempt!(3, self.give_up_capabilities());
        // As the user: a directory that it may not enter is no working directory for it.
        attempt!(4, sys::chdir(self.cwd));
        attempt!(4, sys::check_workdir());
        count(5);
        sys::set_blocked_signals(0); // init has a default action for each
        let mut first = None;
        for program in &self.programs {
            // SAFETY: null-terminated arrays of NUL-terminated strings, kept by init until this is through.
            let errno = unsafe { sys::execve(*program, self.argv.as_ptr(), self.env.as_ptr()) };
            // As a shell does it: what is there but may not be run says more than what is not there.
            if first.is_none() || first == Some(sys::Errno(libc::ENOENT)) {
                first = Some(errno);
            }
            if !matches!(errno.0, libc::ENOENT | libc::ENOTDIR | libc::EACCES) {
                break;
            }
        }
        first.unwrap_or(sys::Errno(libc::ENOENT))
    }
}

extern "C" fn run(child: usize) -> ! {
    // SAFETY: init keeps the box until the pipe is closed, which happens after the last use of it here.
    let child = unsafe { &*(child as *const Child) };
    let errno = child.become_command();
    child.errno.store(errno.0, Ordering::Release);
    sys::exit(127)
}
