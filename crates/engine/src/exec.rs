//! The server's side of commands: what is asked of init, and what is known of each command afterwards.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    ffi::CString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use cabana_guest::Account;
use cabana_sandbox::{
    Channel, Command, Control, Error, ExecId, ExecSpec, Exit, NotRun, Place, Position, Process, Reattached, Result,
    Status, Stdin, Stdio, Target, TermSize,
};
use tokio::{
    io::unix::AsyncFd,
    sync::{oneshot, watch},
};

use crate::{
    fault::{self, Point},
    init::ENDED,
    input,
    lane::SharedFd,
    live::Live,
    output::{Log, Source},
    places,
    spool::Spool,
    wire::{ExecPlan, Failure, KeptExec, MAX_LONG, Step, ToInit},
};

/// How many commands are remembered by their id alone, so that none runs twice.
const USED: usize = 65_536;

const TOO_LONG: &str = "arguments and environment are longer than the kernel takes";

/// How long init may take to start a program: longer than any lease that a guest can hold on it.
const START: Duration = Duration::from_secs(90);

/// How much the output of all ended commands of one sandbox may take: it is the server's memory.
const ENDED_OUTPUT: u64 = 16 << 20;

/// How many forgotten commands init may keep for a while, and how much each of them may have said.
const FORGOTTEN: usize = 8;
const LITTLE: u64 = 4 << 10;

/// The end of a command whose sandbox ended under it.
pub(crate) fn killed() -> Exit {
    Exit { status: Status::Signal(libc::SIGKILL), wall: Duration::ZERO, cpu: Duration::ZERO, peak_rss: 0 }
}

/// All commands of one sandbox, by id and by the number that init knows.
#[derive(Default)]
pub(crate) struct Execs {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    by_id: HashMap<ExecId, Arc<Exec>>,
    by_number: HashMap<u64, Arc<Exec>>,
    ended: VecDeque<ExecId>,
    used: HashSet<ExecId>,
    used_in_order: VecDeque<ExecId>,
    /// Init has not heard of it yet.
    forgotten: Vec<u64>,
    closed: bool,
}

impl Table {
    /// Init forgets by number as we do; of those that were too large it has to be told.
    fn forget_the_oldest(&mut self) -> Vec<u64> {
        if self.ended.len() > ENDED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        let size = |id: &ExecId| self.by_id.get(id).map_or(0, |exec| exec.log.size());
        let mut sizes: VecDeque<u64> = self.ended.iter().map(size).collect();
        let mut total: u64 = sizes.iter().sum();
        let mut forgotten = Vec::new();
        while total > ENDED_OUTPUT
            && self.ended.len() > 1
            && let Some(oldest) = self.ended.pop_front()
        {
            total -= sizes.pop_front().unwrap_or(0);
            forgotten.extend(self.by_id.remove(&oldest).map(|exec| exec.number));
        }
        forgotten
    }
}

struct Exec {
    id: ExecId,
    number: u64,
    /// How often memory had run out before it began.
    ooms_before: u64,
    log: Arc<Log>,
    exited: watch::Sender<Option<Exit>>,
    starting: Mutex<Option<oneshot::Sender<std::result::Result<u32, Failure>>>>,
    pid: Mutex<Option<u32>>,
    terminal: Option<Arc<AsyncFd<SharedFd>>>,
    /// Of one that was found: for the first who asks.
    stdin: Mutex<Option<Stdin>>,
    /// Until it has ended. One that was found has its own, also where there is none left: it is not ended for it.
    place: Mutex<Option<Place>>,
}

impl Exec {
    fn give_place_back(&self) {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Execs {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn started(&self, number: u64, outcome: std::result::Result<u32, Failure>) {
        let exec = self.table().by_number.get(&number).cloned();
        let Some(exec) = exec else { return };
        if let Ok(pid) = outcome {
            *exec.pid.lock().unwrap_or_else(PoisonError::into_inner) = Some(pid);
        }
        let waiting = exec.starting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if outcome.is_err() {
            self.drop_exec(number);
        }
        if let Some(waiting) = waiting {
            let _ = waiting.send(outcome);
        }
    }

    /// Gives the numbers of those that init has to forget for it.
    pub(crate) fn exited(&self, number: u64, exit: Exit) -> Vec<u64> {
        let mut table = self.table();
        let Some(exec) = table.by_number.remove(&number) else { return Vec::new() };
        let _ = exec.exited.send(Some(exit));
        exec.give_place_back();
        table.ended.push_back(exec.id);
        table.forget_the_oldest()
    }

    fn drop_exec(&self, number: u64) {
        let mut table = self.table();
        if let Some(exec) = table.by_number.remove(&number) {
            table.by_id.remove(&exec.id);
            table.used.remove(&exec.id);
        }
    }

    /// The sandbox has ended: whatever ran in it has, too.
    pub(crate) fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        let running: Vec<_> = table.by_number.drain().collect();
        drop(table);
        for (_, exec) in running {
            let _ = exec.exited.send(Some(killed()));
            exec.give_place_back();
            exec.starting.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// The sandbox lives on without us: nothing is known of its commands any more.
    pub(crate) async fn leave(&self) {
        let execs: Vec<_> = {
            let mut table = self.table();
            table.closed = true;
            table.by_number.clear();
            table.by_id.drain().map(|(_, exec)| exec).collect()
        };
        for exec in execs {
            exec.starting.lock().unwrap_or_else(PoisonError::into_inner).take();
            exec.log.leave().await;
        }
    }

    /// Commands of a sandbox that was found, and the ids that must not be used again.
    pub(crate) fn found(&self, last: u64, used: Vec<ExecId>) {
        let mut table = self.table();
        table.next = table.next.max(last);
        for id in used {
            if table.used.insert(id) {
                table.used_in_order.push_back(id);
            }
        }
    }

    /// Which one it is, and how often memory had run out before it began.
    pub(crate) fn began(&self, number: u64) -> Option<(ExecId, u64)> {
        self.table().by_number.get(&number).map(|exec| (exec.id, exec.ooms_before))
    }

    /// Those that have not ended, by the numbers that init knows.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.table().by_number.keys().copied().collect()
    }

    pub(crate) fn running(&self) -> Vec<(ExecId, u32)> {
        let table = self.table();
        let pid = |exec: &Exec| *exec.pid.lock().unwrap_or_else(PoisonError::into_inner);
        let running = table.by_id.iter().filter(|(_, exec)| exec.exited.borrow().is_none());
        running.filter_map(|(id, exec)| Some((*id, pid(exec)?))).collect()
    }

    /// Gives the numbers that init has to be told now, if it keeps any. Of a command that said little it hears with the
    /// next one.
    pub(crate) fn forget(&self, id: &ExecId, kept: bool) -> Vec<u64> {
        let mut table = self.table();
        let Some(exec) = table.by_id.get(id).filter(|exec| exec.exited.borrow().is_some()).cloned() else {
            return Vec::new();
        };
        table.ended.retain(|known| known != id);
        table.by_id.remove(id);
        if !kept {
            return Vec::new();
        }
        table.forgotten.push(exec.number);
        match table.forgotten.len() >= FORGOTTEN || exec.log.size() > LITTLE {
            true => std::mem::take(&mut table.forgotten),
            false => Vec::new(),
        }
    }

    fn add(&self, id: ExecId, make: impl FnOnce(u64) -> Exec) -> Result<Arc<Exec>> {
        let mut table = self.table();
        if table.closed {
            return Err(Error::Gone);
        }
        if !table.used.insert(id) {
            return Err(Error::Duplicate(id));
        }
        table.used_in_order.push_back(id);
        if table.used_in_order.len() > USED
            && let Some(oldest) = table.used_in_order.pop_front()
            && !table.by_id.contains_key(&oldest)
        {
            table.used.remove(&oldest);
        }
        table.next += 1;
        let exec = Arc::new(make(table.next));
        table.by_id.insert(id, exec.clone());
        table.by_number.insert(exec.number, exec.clone());
        Ok(exec)
    }
}

/// Runs a command: everything is decided here, and init only does it.
pub(crate) async fn exec(live: &Arc<Live>, spec: ExecSpec) -> Result<Process> {
    spec.check()?;
    let place = places::COMMANDS.take(&live.holder);
    let place = place.ok_or(Error::Exhausted("descriptors of the server, for the commands of all sandboxes"))?;
    let account = live.account_of(spec.user.as_ref()).await?;
    let shell = match spec.command {
        Command::Shell(_) => live.shell().await?,
        Command::Argv(_) => "",
    };
    let (exited, has_exited) = watch::channel(None);
    let io = open_stdio(live, spec.stdio, &account).await?;
    // Of our own: what is kept goes to init in the same message, and the log owns the rest by then.
    let kept = if live.is_kept() {
        io.kept().map_err(|error| Error::failed("keeping the output", error))?
    } else {
        Vec::new()
    };
    let Io { ours, spool, stdin, terminal, theirs } = io;
    let (starting, started) = oneshot::channel();
    let log = Log::new(ours, spool, has_exited, live);
    let reader = log.read(0);
    let ooms_before = live.oom_kills();
    let exec = live.execs.add(spec.id, |number| Exec {
        id: spec.id,
        number,
        ooms_before,
        log,
        exited,
        starting: Mutex::new(Some(starting)),
        pid: Mutex::default(),
        terminal: terminal.clone(),
        stdin: Mutex::default(),
        place: Mutex::new(Some(place)),
    })?;
    let message = match plan(live, &spec, &account, shell, exec.number) {
        Ok(message) => message,
        Err(error) => {
            live.execs.drop_exec(exec.number); // nothing ran: the id is free again
            return Err(error);
        }
    };
    let fds: Vec<BorrowedFd<'_>> = theirs.iter().chain(&kept).map(AsFd::as_fd).collect();
    if let Err(error) = live.send(&message, &fds).await {
        live.execs.drop_exec(exec.number);
        return Err(error);
    }
    fault::at(Point::ExecSent);
    drop(fds);
    live.lane.close((theirs, kept));
    let stdin = typed(live, exec.number, stdin, terminal.as_ref());
    let started = match until_started(live, started).await {
        Some(started) => started.map_err(|_| Error::Gone)?,
        None => {
            live.kill();
            return Err(Error::TimedOut("init did not start the program, and the sandbox was ended"));
        }
    };
    let pid = started.map_err(|failure| refused(live, failure, &spec))?;
    fault::at(Point::ExecStarted);
    let control = Arc::new(ExecControl { live: Arc::downgrade(live), exec });
    Ok(Process { pid: Some(pid), stdin, events: reader.events(), control })
}

/// `None` when it took too long. Time in which nothing can start, since the commands are frozen, does not count.
async fn until_started<T>(live: &Live, started: impl Future<Output = T>) -> Option<T> {
    let (begun, frozen_before) = (Instant::now(), live.freezer.frozen_for());
    let mut started = pin!(started);
    loop {
        let frozen_for = live.freezer.frozen_for() - frozen_before;
        let left = (START + frozen_for).checked_sub(begun.elapsed())?;
        if let Ok(started) = tokio::time::timeout(left, &mut started).await {
            return Some(started);
        }
    }
}

pub(crate) fn reattach(live: &Arc<Live>, id: &ExecId, from: Position) -> Reattached {
    let Some(exec) = live.execs.table().by_id.get(id).cloned() else { return Reattached::Missing };
    let pid = *exec.pid.lock().unwrap_or_else(PoisonError::into_inner);
    let reader = exec.log.read(from);
    if let Some(exit) = exec.log.exit() {
        return Reattached::Exited(exit, reader.outputs());
    }
    let stdin = exec.stdin.lock().unwrap_or_else(PoisonError::into_inner).take();
    let control = Arc::new(ExecControl { live: Arc::downgrade(live), exec });
    Reattached::Running(Process { pid, stdin, events: reader.events(), control })
}

/// A command that init tells of: it was started by a server that is gone.
pub(crate) fn take_up(live: &Arc<Live>, kept: &KeptExec, exit: Option<Exit>, fds: Vec<OwnedFd>) -> io::Result<()> {
    let mut fds = fds.into_iter();
    let mut next = |there: bool| if there { fds.next() } else { None };
    let watched = |fd: Option<OwnedFd>| fd.map(|fd| live.lane.watch(fd)).transpose();
    let spool = next(true).ok_or(io::ErrorKind::InvalidData)?;
    let spool = Spool::open(spool, live.output_kept())?;
    let mut pipes = Vec::new();
    for (channel, there) in
        [(Channel::Stdout, kept.stdout), (Channel::Stderr, kept.stderr), (Channel::Terminal, kept.terminal)]
    {
        pipes.extend(watched(next(there))?.map(|pipe| (channel, pipe)));
    }
    let (into, master) = (next(kept.master), watched(next(kept.master))?.map(Arc::new));
    let stdin = watched(next(kept.stdin))?;
    let (exited, has_exited) = watch::channel(exit);
    let source = Source { pipes, terminal: master.clone().zip(into) };
    let log = Log::new(source, spool, has_exited, live);
    let id = ExecId::from(uuid::Uuid::from_u128(kept.id));
    let stdin = typed(live, kept.exec, stdin, master.as_ref());
    let exec = Arc::new(Exec {
        id,
        number: kept.exec,
        ooms_before: live.oom_kills(),
        log: log.clone(),
        exited,
        starting: Mutex::default(),
        pid: Mutex::new(Some(kept.pid)),
        terminal: master,
        stdin: Mutex::new(stdin),
        place: Mutex::new(exit.is_none().then(|| places::COMMANDS.hold(&live.holder))),
    });
    let mut table = live.execs.table();
    table.by_id.insert(id, exec.clone());
    match exit {
        Some(_) => table.ended.push_back(id),
        None => drop(table.by_number.insert(exec.number, exec)),
    }
    drop(table);
    log.keep_going();
    Ok(())
}

fn typed(
    live: &Arc<Live>,
    exec: u64,
    pipe: Option<AsyncFd<SharedFd>>,
    terminal: Option<&Arc<AsyncFd<SharedFd>>>,
) -> Option<Stdin> {
    let pipe = pipe.map(|pipe| input::pipe(pipe, live, exec));
    pipe.or_else(|| terminal.map(|master| input::terminal(master.clone(), &live.lane)))
}

struct Io {
    ours: Source,
    spool: Spool,
    stdin: Option<AsyncFd<SharedFd>>,
    terminal: Option<Arc<AsyncFd<SharedFd>>>,
    /// For the command, in the order of [`ExecPlan`].
    theirs: Vec<OwnedFd>,
}

async fn open_stdio(live: &Arc<Live>, stdio: Stdio, account: &Account) -> Result<Io> {
    let failed = |error: io::Error| Error::failed("opening the command's stdio", error);
    let spool = Spool::new(live.output_kept()).map_err(failed)?;
    if let Stdio::Terminal(size) = stdio {
        let (master, slave) = live.terminal(account, size).await?;
        let (read, write) = crate::output::pipe()?;
        let master = Arc::new(live.lane.watch(master).map_err(failed)?);
        let pipes = vec![(Channel::Terminal, live.lane.watch(read).map_err(failed)?)];
        let ours = Source { pipes, terminal: Some((master.clone(), write)) };
        return Ok(Io { ours, spool, stdin: None, terminal: Some(master), theirs: vec![slave] });
    }
    let (mut theirs, mut stdin) = (Vec::with_capacity(3), None);
    if stdio == Stdio::InputOutput {
        let (read, write) = crate::output::pipe()?;
        live.own(&read).map_err(failed)?;
        rustix::io::ioctl_fionbio(&write, true).map_err(|errno| failed(errno.into()))?;
        stdin = Some(live.lane.watch(write).map_err(failed)?);
        theirs.push(read);
    }
    let mut pipes = Vec::with_capacity(2);
    for channel in [Channel::Stdout, Channel::Stderr] {
        let (read, write) = crate::output::pipe()?;
        live.own(&write).map_err(failed)?;
        theirs.push(write);
        pipes.push((channel, live.lane.watch(read).map_err(failed)?));
    }
    Ok(Io { ours: Source { pipes, terminal: None }, spool, stdin, terminal: None, theirs })
}

impl Io {
    /// What init keeps of a command, so that it outlives the server: in the order of [`ExecPlan`].
    fn kept(&self) -> io::Result<Vec<OwnedFd>> {
        let pipes = self.ours.pipes.iter().map(|(_, pipe)| pipe.as_fd());
        let terminal = self.ours.terminal.iter().flat_map(|(master, into)| [into.as_fd(), master.as_fd()]);
        let stdin = self.stdin.iter().map(AsFd::as_fd);
        let all = [self.spool.memory()].into_iter().chain(pipes).chain(terminal).chain(stdin);
        all.map(|fd| fd.try_clone_to_owned()).collect()
    }
}

fn plan(live: &Live, spec: &ExecSpec, account: &Account, shell: &str, number: u64) -> Result<Vec<u8>> {
    let text = |text: &[u8]| CString::new(text).map_err(|_| Error::invalid("command", "holds a NUL byte"));
    let env = environment(live, spec, account);
    let (programs, argv) = match &spec.command {
        Command::Shell(script) => {
            let argv = vec![text(shell.as_bytes())?, text(b"-c")?, text(script.as_bytes())?];
            (vec![text(shell.as_bytes())?, c"/bin/sh".to_owned()], argv)
        }
        Command::Argv(argv) => {
            let path = env.get("PATH").map_or("", String::as_str);
            let programs =
                candidates(&argv[0], path).iter().map(|program| text(program.as_bytes())).collect::<Result<_>>()?;
            (programs, argv.iter().map(|arg| text(arg.as_bytes())).collect::<Result<_>>()?)
        }
    };
    let env: Vec<CString> =
        env.iter().map(|(name, value)| text(format!("{name}={value}").as_bytes())).collect::<Result<_>>()?;
    let cwd = text(spec.cwd.as_bytes())?;
    let plan = ExecPlan {
        exec: number,
        id: spec.id.as_u128(),
        kept: if live.is_kept() { live.output_kept() } else { 0 },
        forgotten: std::mem::take(&mut live.execs.table().forgotten),
        uid: account.uid,
        gid: account.gid,
        groups: account.groups.clone(),
        terminal: matches!(spec.stdio, Stdio::Terminal(_)),
        stdin: spec.stdio == Stdio::InputOutput,
        timeout_ns: spec.timeout.map_or(0, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)),
        open_files: live.limits().open_files.unwrap_or(0),
        cwd: &cwd,
        programs: programs.iter().map(CString::as_c_str).collect(),
        argv: argv.iter().map(CString::as_c_str).collect(),
        env: env.iter().map(CString::as_c_str).collect(),
    };
    let message = plan.encode();
    match message.len() > MAX_LONG {
        true => Err(Error::invalid("command", TOO_LONG)),
        false => Ok(message),
    }
}

/// What the sandbox gives, then what the template gives, then what the call gives.
fn environment(live: &Live, spec: &ExecSpec, account: &Account) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([
        ("HOME", account.home.as_str()),
        ("LOGNAME", &account.name),
        ("PATH", crate::layers::DEFAULT_PATH),
        ("SHELL", &account.shell),
        ("USER", &account.name),
    ]);
    if let Stdio::Terminal(_) = spec.stdio {
        env.insert("TERM", "xterm-256color");
    }
    let mut env: BTreeMap<String, String> =
        env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    env.extend(live.defaults.env.clone());
    env.extend(spec.env.clone());
    env
}

/// Where a program may be, as a shell would look for it.
fn candidates(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    let dirs = path.split(':').map(|dir| if dir.is_empty() { "." } else { dir });
    let found: Vec<String> = dirs.map(|dir| format!("{dir}/{program}")).collect();
    if found.is_empty() { vec![program.to_owned()] } else { found }
}

fn refused(live: &Live, failure: Failure, spec: &ExecSpec) -> Error {
    let program = match &spec.command {
        Command::Argv(argv) => argv[0].clone(),
        Command::Shell(_) => "the shell".to_owned(),
    };
    match (failure.step, failure.errno) {
        (Step::Fork, libc::EAGAIN) => match live.limits().pids.filter(|_| live.is_full_of_processes()) {
            Some(limit) => Error::TooManyProcesses { limit },
            None => Error::Exhausted("processes (kernel.pid_max, kernel.threads-max)"),
        },
        (Step::Workdir, _) => Error::NoWorkdir(spec.cwd.clone()),
        (Step::Exec, libc::ENOENT | libc::ENOTDIR) => Error::NoProgram { program, why: NotRun::Missing },
        (Step::Exec, libc::EACCES | libc::EPERM) => Error::NoProgram { program, why: NotRun::Forbidden },
        (Step::Exec, libc::ENOEXEC | libc::EINVAL | libc::EISDIR | libc::ELIBBAD) => {
            Error::NoProgram { program, why: NotRun::Format }
        }
        (Step::Exec, libc::ENAMETOOLONG) => Error::NoProgram { program, why: NotRun::LongName },
        (Step::Exec, libc::ETXTBSY) => Error::NoProgram { program, why: NotRun::Written },
        (Step::Exec, libc::E2BIG) => Error::invalid("command", TOO_LONG),
        (Step::Exec, libc::ELOOP) => Error::NoProgram { program, why: NotRun::Links },
        (step, errno) => Error::failed(step.text(), io::Error::from_raw_os_error(errno)),
    }
}

struct ExecControl {
    /// Weak: a handle on a command keeps no sandbox alive.
    live: Weak<Live>,
    exec: Arc<Exec>,
}

#[async_trait]
impl Control for ExecControl {
    async fn signal(&self, signal: i32, to: Target) -> Result<()> {
        if !(1..=64).contains(&signal) {
            return Err(Error::invalid("signal", "is a number from 1 to 64"));
        }
        if to == Target::Leader && self.exec.exited.borrow().is_some() {
            return Ok(());
        }
        let Some(live) = self.live.upgrade() else { return Ok(()) };
        let message = ToInit::signal(self.exec.number, signal as u32, to == Target::Tree);
        live.send(&message, &[]).await
    }

    async fn resize(&self, size: TermSize) -> Result<()> {
        let Some(terminal) = self.exec.terminal.clone() else {
            return Err(Error::invalid("size", "the command has no terminal"));
        };
        let live = self.live.upgrade().ok_or(Error::Gone)?;
        // Who asks for the size inside holds its lock until the answer is in its memory.
        let resize = move || {
            set_size(terminal.get_ref().as_fd(), size).map_err(|error| Error::failed("resizing the terminal", error))
        };
        live.lane.step(resize).await
    }
}

pub(crate) fn set_size(terminal: BorrowedFd<'_>, size: TermSize) -> io::Result<()> {
    let size = rustix::termios::Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}
