//! A sandbox to try things in, and short words for what tests do with it.

use std::{
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use cabana_engine::Engine;
use cabana_sandbox::{
    Base, ExecSpec, Files, Lifetime, Provider, Sandbox, SandboxId, SandboxPath, SandboxSpec, Status, Stdio, User, run,
};

use crate::stage;

/// Far more than anything here takes: what hangs fails instead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One sandbox with the engine that made it. It ends with the test, also with one that fails.
pub(crate) struct Inside {
    pub(crate) engine: Arc<Engine>,
    pub(crate) sandbox: Arc<dyn Sandbox>,
}

impl Inside {
    /// On the host base.
    pub(crate) async fn new() -> Self {
        Self::with(passing()).await
    }

    pub(crate) async fn with(spec: SandboxSpec) -> Self {
        let engine = stage::engine().await;
        let sandbox = engine.create(&SandboxId::random(), &spec).await.expect("a sandbox");
        Self { engine, sandbox }
    }

    pub(crate) async fn user(&self, script: &str) -> Ran {
        shell(&*self.sandbox, "user", script).await
    }

    pub(crate) async fn root(&self, script: &str) -> Ran {
        shell(&*self.sandbox, "root", script).await
    }

    pub(crate) async fn python(&self, user: &str, code: &str) -> Ran {
        python(&*self.sandbox, user, code).await
    }

    pub(crate) fn files(&self, user: &str) -> Arc<dyn Files> {
        self.sandbox.files(Some(&named(user)))
    }

    pub(crate) async fn end(self) {
        self.engine.destroy(self.sandbox.id()).await.expect("it goes away");
        self.engine.close().await;
    }
}

/// A sandbox that ends with its owner.
pub(crate) fn passing() -> SandboxSpec {
    SandboxSpec { lifetime: Lifetime::Ephemeral, ..SandboxSpec::new(Base::Host) }
}

/// How a command ended and what it said.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: Status,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// What it wrote, without white space around it; it must have succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.status, Status::Code(0), "{}{}", self.out, self.err);
        self.out.trim().to_owned()
    }

    /// What it wrote to stderr; it must have failed by itself.
    #[track_caller]
    pub(crate) fn refused(self) -> String {
        assert!(matches!(self.status, Status::Code(code) if code != 0), "it was not refused: {self:?}");
        self.err.trim().to_owned()
    }
}

pub(crate) async fn shell(sandbox: &dyn Sandbox, user: &str, script: &str) -> Ran {
    command(sandbox, user, ExecSpec::shell(script, SandboxPath::root())).await
}

pub(crate) async fn python(sandbox: &dyn Sandbox, user: &str, code: &str) -> Ran {
    command(sandbox, user, ExecSpec::argv(["/usr/bin/python3", "-c", code], SandboxPath::root())).await
}

pub(crate) async fn in_terminal(sandbox: &dyn Sandbox, user: &str, code: &str) -> Ran {
    let mut spec = ExecSpec::argv(["/usr/bin/python3", "-c", code], SandboxPath::root());
    spec.stdio = Stdio::Terminal(cabana_sandbox::TermSize { cols: 80, rows: 24 });
    command(sandbox, user, spec).await
}

pub(crate) async fn command(sandbox: &dyn Sandbox, user: &str, mut spec: ExecSpec) -> Ran {
    spec.user = Some(named(user));
    spec.timeout = Some(PATIENCE);
    let outcome = run(sandbox, spec, 4 << 20).await.expect("the command starts");
    let text = |kept: cabana_sandbox::Kept| {
        String::from_utf8_lossy(&kept.whole().expect("no more output than is kept")).into_owned()
    };
    Ran { status: outcome.exit.status, out: text(outcome.stdout), err: text(outcome.stderr) }
}

pub(crate) fn named(user: &str) -> User {
    User::new(user).expect("a name")
}

pub(crate) fn path(text: &str) -> SandboxPath {
    text.parse().expect("a path")
}

/// Asks again until it holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "this did not come: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Something that nothing else on this machine is called.
pub(crate) fn unique(what: &str) -> String {
    format!("{what}-{}", SandboxId::random())
}

/// A time to sleep that no other process sleeps for: the mark of one.
pub(crate) fn unique_sleep() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos();
    format!("31337.{}{now}", std::process::id())
}

/// A program of the host, for preparing something; it must succeed.
#[track_caller]
pub(crate) fn host(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("the program is on the host");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A root file system of a few megabytes: bash as the shell, and a handful of tools.
pub(crate) fn tiny_root(at: &Path) {
    for dir in ["etc", "bin", "tmp"] {
        std::fs::create_dir_all(at.join(dir)).expect("a directory");
    }
    for tool in ["bash", "cat", "chmod", "dd", "env", "id", "ls", "mkdir", "rm", "sleep", "stat", "touch"] {
        let program = Path::new("/usr/bin").join(tool);
        copy(&program, &at.join("bin").join(tool));
        let libraries = host("ldd", &[program.to_str().expect("plain text")]);
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            copy(Path::new(library), &at.join(&library[1..]));
        }
    }
    std::os::unix::fs::symlink("bash", at.join("bin/sh")).expect("a link");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().expect("it has a parent")).expect("a directory");
    std::fs::copy(from, to).expect("a copy");
}

/// What is said by `/proc` of a process of the host, if it lives.
pub(crate) fn proc_file(pid: u32, name: &str) -> Option<String> {
    std::fs::read(format!("/proc/{pid}/{name}")).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// All processes that this one can see: on the host, all of them.
pub(crate) fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("the host has /proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Those that were started with this word as an argument, and live.
pub(crate) fn marked(marker: &str) -> Vec<u32> {
    let has = |pid: &u32| {
        proc_file(*pid, "cmdline").is_some_and(|line| line.split('\0').any(|word| word == marker))
            && field(*pid, "State").is_some_and(|state| !state.starts_with('Z'))
    };
    processes().into_iter().filter(has).collect()
}

/// A line of a process's status.
pub(crate) fn field(pid: u32, name: &str) -> Option<String> {
    let status = proc_file(pid, "status")?;
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    field(pid, "PPid")?.parse().ok()
}

pub(crate) fn spawners() -> Vec<u32> {
    let ours = |pid: &u32| {
        parent_of(*pid) == Some(std::process::id())
            && proc_file(*pid, "cmdline").is_some_and(|line| line.starts_with("cabana-spawner"))
    };
    processes().into_iter().filter(ours).collect()
}

/// How many rounds a soak test makes.
pub(crate) fn rounds(few: u32) -> u32 {
    std::env::var("CABANA_SOAK_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
}
