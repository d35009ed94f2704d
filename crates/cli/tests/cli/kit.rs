//! What the cases share: starting the binary, waiting for conditions, looking for processes.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

pub(crate) use rustix::process::Signal;

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_cabana")
}

/// Kept between the cases: making the host base again for each would take most of the time.
pub(crate) fn data() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-data")
}

pub(crate) fn cabana() -> Command {
    let mut command = Command::new(binary());
    command.env("CABANA_DATA", data()).env_remove("CABANA_URL").stdin(Stdio::null());
    command
}

/// `cabana run` with these words.
pub(crate) fn run(words: &[&str]) -> Command {
    let mut command = cabana();
    command.arg("run").args(words);
    command
}

/// A script in a sandbox.
pub(crate) fn sh(script: &str) -> Command {
    run(&["--", "sh", "-c", script])
}

pub(crate) trait Ends {
    fn ends(&mut self) -> Ended;
}

impl Ends for Command {
    fn ends(&mut self) -> Ended {
        Ended::from(self.output().unwrap())
    }
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Ended {
    #[track_caller]
    pub(crate) fn well(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// A failure of ours, with all its parts.
    #[track_caller]
    pub(crate) fn fails(self, exit: i32, code: &str) -> String {
        assert_eq!(self.code, exit, "{self:?}");
        assert!(self.stderr.starts_with("error: "), "{self:?}");
        assert!(self.stderr.contains("\nhint: "), "{self:?}");
        assert!(self.stderr.contains(&format!("\ncode: {code} (docs/errors/{code}.md)")), "{self:?}");
        assert!(!self.stderr.contains("os error"), "a bare error number: {self:?}");
        self.stderr
    }
}

/// A command that was started and said its first line.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Once it has said `ready`.
    pub(crate) fn ready(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if line.trim() != "ready" {
            let ended = Ended::from(child.wait_with_output().unwrap());
            panic!("said {line:?} instead of ready: {ended:?}");
        }
        Self { child, stdout }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn ends(mut self) -> Ended {
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout).unwrap();
        let ended = Ended::from(self.child.wait_with_output().unwrap());
        Ended { stdout, ..ended }
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A time to sleep that no other process has: it is known by it.
pub(crate) fn mark() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("9{:05}.{:07}", COUNT.fetch_add(1, Ordering::Relaxed), std::process::id())
}

/// Whether a process with this word among its arguments lives anywhere on the machine, sandboxes included.
pub(crate) fn lives(mark: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok()).any(|line| {
        let mut words = line.split(|byte| *byte == 0);
        words.next().is_some_and(|program| program.ends_with(b"sleep")) && words.any(|word| word == mark.as_bytes())
    })
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
