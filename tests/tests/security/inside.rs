//! A sandbox to attack from, and short words for what the tests do with it.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use cabana_engine::{Config, Engine};
use cabana_sandbox::{
    Base, Event, ExecSpec, Files, Kept, Lifetime, Process, Provider, Read, Sandbox, SandboxId, SandboxPath,
    SandboxSpec, Status, Stdio, TermSize, User, Write, WriteMode, run,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::attacks::{Attack, Ran};

/// Far more than anything here takes: what hangs fails instead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What an operation of the server may take while a guest tries to hold it up. A held-up one takes 30 s and more.
pub(crate) const SOON: Duration = Duration::from_secs(15);

/// One sandbox with the engine that made it. It ends with the test, also with one that fails.
pub(crate) struct Inside {
    pub(crate) engine: Arc<Engine>,
    pub(crate) sandbox: Arc<dyn Sandbox>,
}

pub(crate) fn config(data: PathBuf) -> Config {
    Config { helper: env!("CARGO_BIN_EXE_cabana-tests-spawner").into(), ..Config::new(data) }
}

/// One data directory for all tests, as for the processes of one machine: the host base is made once.
pub(crate) async fn engine() -> Arc<Engine> {
    Engine::open(config(data())).await.expect("an engine on this host")
}

/// One whose commands are kept together by a supervisor each.
async fn engine_without_cgroups() -> Arc<Engine> {
    Engine::open(Config { cgroups: false, ..config(data()) }).await.expect("an engine on this host")
}

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("data")
}

/// A sandbox that ends with its owner, on the host base.
pub(crate) fn passing() -> SandboxSpec {
    SandboxSpec { lifetime: Lifetime::Ephemeral, ..SandboxSpec::new(Base::Host) }
}

impl Inside {
    pub(crate) async fn new() -> Self {
        Self::with(passing()).await
    }

    pub(crate) async fn with(spec: SandboxSpec) -> Self {
        Self::of(engine().await, &spec).await
    }

    pub(crate) async fn without_cgroups() -> Self {
        Self::of(engine_without_cgroups().await, &passing()).await
    }

    pub(crate) async fn of(engine: Arc<Engine>, spec: &SandboxSpec) -> Self {
        let sandbox = engine.create(&SandboxId::random(), spec).await.expect("a sandbox");
        Self { engine, sandbox }
    }

    pub(crate) async fn user(&self, script: &str) -> Ran {
        self.command("user", ExecSpec::shell(script, SandboxPath::root())).await
    }

    pub(crate) async fn root(&self, script: &str) -> Ran {
        self.command("root", ExecSpec::shell(script, SandboxPath::root())).await
    }

    pub(crate) async fn command(&self, user: &str, mut spec: ExecSpec) -> Ran {
        spec.user = Some(named(user));
        spec.timeout = Some(PATIENCE);
        let outcome = run(&*self.sandbox, spec, 4 << 20).await.expect("the command starts");
        let text =
            |kept: Kept| String::from_utf8_lossy(&kept.whole().expect("no more output than is kept")).into_owned();
        Ran { status: outcome.exit.status, out: text(outcome.stdout), err: text(outcome.stderr) }
    }

    /// Puts the attack inside and says with which words it is started.
    pub(crate) async fn bring(&self, attack: &Attack) -> Vec<String> {
        let place = format!("/tmp/{}", attack.name());
        let how = Write { perm: Some(0o755), ..Write::new(WriteMode::Replace) };
        let program = attack.program();
        let body = stream::once(async move { Ok(program.into()) }).boxed();
        self.files("root").write(&path(&place), how, body).await.expect("the attack is put inside");
        attack.words(&place)
    }

    pub(crate) async fn attack(&self, user: &str, attack: &Attack, arguments: &[&str]) -> Ran {
        let words = self.bring(attack).await;
        self.command(user, spec_of(words, arguments)).await
    }

    /// The same with a terminal for the attack.
    pub(crate) async fn attack_in_terminal(&self, user: &str, attack: &Attack, arguments: &[&str]) -> Ran {
        let words = self.bring(attack).await;
        let stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });
        self.command(user, ExecSpec { stdio, ..spec_of(words, arguments) }).await
    }

    /// Starts an attack that goes on, and waits for its first output.
    pub(crate) async fn start(&self, user: &str, attack: &Attack, arguments: &[&str]) -> Process {
        let words = self.bring(attack).await;
        let mut spec = spec_of(words, arguments);
        spec.user = Some(named(user));
        spec.timeout = Some(2 * PATIENCE);
        let mut process = self.sandbox.exec(spec).await.expect("the attack starts");
        match process.events.next().await {
            Some(Ok(Event::Output(_))) => process,
            other => panic!("the attack did not begin: {other:?}"),
        }
    }

    pub(crate) fn files(&self, user: &str) -> Arc<dyn Files> {
        self.sandbox.files(Some(&named(user)))
    }

    /// What a client gets that reads this; `None` when it is refused.
    pub(crate) async fn read(&self, user: &str, name: &str) -> Option<Vec<u8>> {
        let (_, body) = self.files(user).read(&path(name), Read::default()).await.ok()?;
        let chunks: Vec<_> = body.try_collect().await.ok()?;
        Some(chunks.concat())
    }

    /// Whether commands still run, and soon: what an attack on init would end.
    pub(crate) async fn still_works(&self) {
        let answer = tokio::time::timeout(SOON, self.user("echo works")).await.expect("an answer in time");
        assert_eq!(answer.ok(), "works");
    }

    pub(crate) async fn end(self) {
        self.engine.destroy(self.sandbox.id()).await.expect("it goes away");
        self.engine.close().await;
    }
}

fn spec_of(words: Vec<String>, arguments: &[&str]) -> ExecSpec {
    ExecSpec::argv(words.into_iter().chain(arguments.iter().map(|word| (*word).to_owned())), SandboxPath::root())
}

pub(crate) fn named(user: &str) -> User {
    User::new(user).expect("a name")
}

pub(crate) fn path(text: &str) -> SandboxPath {
    text.parse().expect("a path")
}

/// Something that nothing else on this machine is called.
pub(crate) fn unique(what: &str) -> String {
    format!("{what}-{}", SandboxId::random())
}

/// Fails when the server is held up.
pub(crate) async fn soon<T>(what: &str, act: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, act).await.unwrap_or_else(|_| panic!("the server is held up: {what}"))
}

/// The processes of the machine that have this word among theirs. One whose first thread has ended says nothing of itself;
/// its other threads do.
pub(crate) fn marked(mark: &str) -> Vec<i32> {
    let has_mark = |thread: std::fs::DirEntry| {
        let line = std::fs::read(thread.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").expect("the host has /proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().any(has_mark))
        .collect()
}

pub(crate) fn living(mark: &str) -> usize {
    marked(mark).len()
}

/// Asks again until it holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "this did not come: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// How the rest of a started command went.
pub(crate) async fn rest(mut process: Process) -> (String, Status) {
    let mut text = Vec::new();
    while let Some(event) = process.events.next().await {
        match event.expect("its output can be read") {
            Event::Output(output) => text.extend_from_slice(&output.bytes),
            Event::Exit(exit) => return (String::from_utf8_lossy(&text).into_owned(), exit.status),
        }
    }
    panic!("its output ended without an exit")
}
