//! The server's side of commands: what is asked of init, and what is known of each command afterwards.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    ffi::CString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use async_trait::async_trait;
use cabana_guest::Account;
use cabana_sandbox::{
    Command, Control, Error, ExecId, ExecSpec, Exit, NotRun, Position, Process, Reattached, Result, Status, Stdin,
    Stdio, Target, TermSize,
};
use tokio::{
    io::{AsyncWrite, unix::AsyncFd},
    net::unix::pipe,
    sync::{oneshot, watch},
};

use crate::{
    kernel::readiness,
    live::Live,
    output::{Log, Source},
    wire::{ExecPlan, Failure, MAX_LONG, Step},
};

/// How many ended commands are remembered with their output, and how many by their id alone, so that none runs twice.
const ENDED: usize = 128;
const USED: usize = 65_536;

const TOO_LONG: &str = "arguments and environment are longer than the kernel takes";

/// How long init may take to start a program: longer than any lease that a guest can hold on it.
const START: Duration = Duration::from_secs(90);

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
    closed: bool,
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
    terminal: Option<Arc<AsyncFd<OwnedFd>>>,
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

    pub(crate) fn exited(&self, number: u64, exit: Exit) {
        let mut table = self.table();
        let Some(exec) = table.by_number.remove(&number) else { return };
        let _ = exec.exited.send(Some(exit));
        table.ended.push_back(exec.id);
        if table.ended.len() > ENDED
            && let Some(oldest) = table.ended.pop_front()
        {
            table.by_id.remove(&oldest);
        }
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
            exec.starting.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// Which one it is, and how often memory had run out before it began.
    pub(crate) fn began(&self, number: u64) -> Option<(ExecId, u64)> {
        self.table().by_number.get(&number).map(|exec| (exec.id, exec.ooms_before))
    }

    pub(crate) fn running(&self) -> Vec<(ExecId, u32)> {
        let table = self.table();
        let pid = |exec: &Exec| *exec.pid.lock().unwrap_or_else(PoisonError::into_inner);
        let running = table.by_id.iter().filter(|(_, exec)| exec.exited.borrow().is_none());
        running.filter_map(|(id, exec)| Some((*id, pid(exec)?))).collect()
    }

    pub(crate) fn forget(&self, id: &ExecId) {
        let mut table = self.table();
        let ended = table.by_id.get(id).is_some_and(|exec| exec.exited.borrow().is_some());
        if ended {
            table.by_id.remove(id);
            table.ended.retain(|known| known != id);
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
    let account = live.account(spec.user.as_ref())?;
    let (exited, has_exited) = watch::channel(None);
    let Io { ours, stdin, terminal, theirs } = open_stdio(live, spec.stdio, &account).await?;
    let (starting, started) = oneshot::channel();
    let log = Log::new(ours, has_exited, live.tasks.clone());
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
        terminal,
    })?;
    let message = match plan(live, &spec, &account, exec.number) {
        Ok(message) => message,
        Err(error) => {
            live.execs.drop_exec(exec.number); // nothing ran: the id is free again
            return Err(error);
        }
    };
    let fds: Vec<BorrowedFd<'_>> = theirs.iter().map(AsFd::as_fd).collect();
    if let Err(error) = live.send(&message, &fds).await {
        live.execs.drop_exec(exec.number);
        return Err(error);
    }
    drop(fds);
    drop(theirs);
    let started = match tokio::time::timeout(START, started).await {
        Ok(started) => started.map_err(|_| Error::Gone)?,
        Err(_) => {
            live.kill();
            return Err(Error::TimedOut("init did not start the program, and the sandbox was ended"));
        }
    };
    let pid = started.map_err(|failure| refused(failure, &spec))?;
    let control = Arc::new(ExecControl { live: Arc::downgrade(live), exec });
    Ok(Process { pid: Some(pid), stdin, events: reader.events(), control })
}

pub(crate) fn reattach(live: &Arc<Live>, id: &ExecId, from: Position) -> Reattached {
    let Some(exec) = live.execs.table().by_id.get(id).cloned() else { return Reattached::Missing };
    let pid = *exec.pid.lock().unwrap_or_else(PoisonError::into_inner);
    let reader = exec.log.read(from);
    if let Some(exit) = exec.log.exit() {
        return Reattached::Exited(exit, reader.outputs());
    }
    let control = Arc::new(ExecControl { live: Arc::downgrade(live), exec });
    Reattached::Running(Process { pid, stdin: None, events: reader.events(), control })
}

struct Io {
    ours: Source,
    stdin: Option<Stdin>,
    terminal: Option<Arc<AsyncFd<OwnedFd>>>,
    /// For init, in the order of [`ExecPlan`].
    theirs: Vec<OwnedFd>,
}

async fn open_stdio(live: &Arc<Live>, stdio: Stdio, account: &Account) -> Result<Io> {
    let failed = |error: io::Error| Error::failed("opening the command's stdio", error);
    if let Stdio::Terminal(size) = stdio {
        let (master, slave) = live.terminal(account, size).await?;
        let master = Arc::new(readiness::watch(master).map_err(failed)?);
        let stdin: Stdin = Box::pin(TerminalInput(master.clone()));
        return Ok(Io {
            ours: Source::Terminal(Some(master.clone())),
            stdin: Some(stdin),
            terminal: Some(master),
            theirs: vec![slave],
        });
    }
    let (mut theirs, mut stdin) = (Vec::with_capacity(3), None);
    if stdio == Stdio::InputOutput {
        let (read, write) = crate::output::pipe()?;
        live.own(&read).map_err(failed)?;
        let write = pipe::Sender::from_owned_fd(write).map_err(failed)?;
        stdin = Some(Box::pin(PipeInput(Some(write))) as Stdin);
        theirs.push(read);
    }
    let mut output = || -> Result<Option<pipe::Receiver>> {
        let (read, write) = crate::output::pipe()?;
        live.own(&write).map_err(failed)?;
        theirs.push(write);
        pipe::Receiver::from_owned_fd(read).map(Some).map_err(failed)
    };
    let ours = Source::Pipes { stdout: output()?, stderr: output()? };
    Ok(Io { ours, stdin, terminal: None, theirs })
}

fn plan(live: &Live, spec: &ExecSpec, account: &Account, number: u64) -> Result<Vec<u8>> {
    let text = |text: &[u8]| CString::new(text).map_err(|_| Error::invalid("command", "holds a NUL byte"));
    let env = environment(live, spec, account);
    let (programs, argv) = match &spec.command {
        Command::Shell(script) => {
            let shell = live.shell();
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
        uid: account.uid,
        gid: account.gid,
        groups: account.groups.clone(),
        terminal: matches!(spec.stdio, Stdio::Terminal(_)),
        stdin: spec.stdio == Stdio::InputOutput,
        timeout_ns: spec.timeout.map_or(0, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)),
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

fn refused(failure: Failure, spec: &ExecSpec) -> Error {
    let program = match &spec.command {
        Command::Argv(argv) => argv[0].clone(),
        Command::Shell(_) => "the shell".to_owned(),
    };
    match (failure.step, failure.errno) {
        (Step::Workdir, _) => Error::NoWorkdir(spec.cwd.clone()),
        (Step::Exec, libc::ENOENT | libc::ENOTDIR) => Error::NoProgram { program, why: NotRun::Missing },
        (Step::Exec, libc::EACCES | libc::EPERM) => Error::NoProgram { program, why: NotRun::Forbidden },
        (Step::Exec, libc::ENOEXEC) => Error::NoProgram { program, why: NotRun::Format },
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
        if self.exec.exited.borrow().is_some() {
            return Ok(());
        }
        let Some(live) = self.live.upgrade() else { return Ok(()) };
        let message = crate::wire::ToInit::signal(self.exec.number, signal as u32, to == Target::Tree);
        live.send(&message, &[]).await
    }

    async fn resize(&self, size: TermSize) -> Result<()> {
        let Some(terminal) = &self.exec.terminal else {
            return Err(Error::invalid("size", "the command has no terminal"));
        };
        set_size(terminal.get_ref().as_fd(), size).map_err(|error| Error::failed("resizing the terminal", error))
    }
}

pub(crate) fn set_size(terminal: BorrowedFd<'_>, size: TermSize) -> io::Result<()> {
    let size = rustix::termios::Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

/// A pipe whose shutdown is the end of the file.
struct PipeInput(Option<pipe::Sender>);

impl AsyncWrite for PipeInput {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Some(pipe) => Pin::new(pipe).poll_write(context, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0 = None;
        Poll::Ready(Ok(()))
    }
}

/// Typing. The end of the file is what a person types for it.
struct TerminalInput(Arc<AsyncFd<OwnedFd>>);

impl AsyncWrite for TerminalInput {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(context))?;
            if let Ok(done) = guard.try_io(|master| Ok(rustix::io::write(master.get_ref(), bytes)?)) {
                return Poll::Ready(done);
            }
        }
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        const END_OF_TRANSMISSION: &[u8] = &[4];
        self.poll_write(context, END_OF_TRANSMISSION).map_ok(drop)
    }
}
