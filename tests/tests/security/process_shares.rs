//! Taking all processes that sandboxes may have, with several sandboxes that have no limits. Nobody ends for it: so a tenant that had all of
//! them would keep the others from running a command.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use cabana_engine::{Config, Engine};
use cabana_sandbox::{Code, Error, ExecSpec, Process, Provider, SandboxPath, SandboxSpec, Status, run};

use crate::inside::{Inside, PATIENCE, config, data, passing, soon, unique, until};

/// For all sandboxes of a test. Far more than what begins before it is looked at, and little enough for a small machine.
const MOST: u64 = 4000;

/// Takes threads until there are no more, and each that becomes free. No faster than a machine on which much runs can look at.
const FILL: &str = "
import threading, time
threading.stack_size(65536)
hold = threading.Event()
while True:
    try:
        for _ in range(20): threading.Thread(target=hold.wait, daemon=True).start()
        time.sleep(0.002)
    except RuntimeError: time.sleep(0.01)
";

/// What ordinary work starts at once.
const WORK: &str = "for i in 1 2 3 4 5; do sleep 0 & done; true | true; wait; echo works";

/// A machine's group for sandboxes, as small as an operator can make it.
struct SmallGroup {
    name: String,
}

impl SmallGroup {
    fn new() -> Self {
        Self { name: unique("cabana-few") }
    }

    async fn open(&self) -> Arc<Engine> {
        let config = Config { group: self.name.clone(), ..config(data()) };
        let engine = Engine::open(config).await.expect("an engine on this host");
        self.allow(MOST);
        engine
    }

    /// In each hierarchy that has it.
    fn places(&self) -> impl Iterator<Item = PathBuf> {
        let root = Path::new("/sys/fs/cgroup");
        let below = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        let name = self.name.clone();
        below.chain([root.to_owned()]).map(move |place| place.join(&name)).filter(|place| place.is_dir())
    }

    fn counts(&self) -> PathBuf {
        self.places().find(|place| place.join("pids.max").exists()).expect("this host counts processes")
    }

    fn allow(&self, most: u64) {
        fs::write(self.counts().join("pids.max"), most.to_string()).unwrap();
    }

    fn taken(&self) -> u64 {
        fs::read_to_string(self.counts().join("pids.current")).unwrap().trim().parse().unwrap()
    }
}

/// What is in it ends before, and may take a moment to be gone.
impl Drop for SmallGroup {
    fn drop(&mut self) {
        let begun = Instant::now();
        while self.places().next().is_some() && begun.elapsed() < PATIENCE {
            self.places().for_each(|place| remove(&place));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Lowest first.
fn remove(group: &Path) {
    let below = fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path());
    below.filter(|path| path.is_dir()).for_each(|group| remove(&group));
    let _ = fs::remove_dir(group); // something in it may be dying yet
}

async fn sandbox_of(engine: &Arc<Engine>, tenant: &str) -> Inside {
    Inside::of(engine.clone(), &SandboxSpec { tenant: Some(tenant.to_owned()), ..passing() }).await
}

async fn fill(inside: &Inside) -> Process {
    let spec = ExecSpec::argv(["python3", "-c", FILL], SandboxPath::root());
    inside.sandbox.exec(spec).await.expect("there are some yet")
}

async fn work(inside: &Inside) -> Result<String, Error> {
    let spec = ExecSpec::shell(WORK, SandboxPath::root());
    let ran = soon("a command", run(&*inside.sandbox, spec, 1 << 16)).await?;
    let said = String::from_utf8_lossy(&ran.stdout.whole().expect("little output")).trim().to_owned();
    Ok(if ran.exit.status == Status::Code(0) { said } else { format!("{:?}", ran.exit.status) })
}

/// Why no command begins.
async fn refusal(inside: &Inside) -> Option<String> {
    let error = inside.sandbox.exec(ExecSpec::argv(["true"], SandboxPath::root())).await.err()?;
    assert_eq!(error.code(), Code::HostExhausted, "{error}");
    Some(error.to_string())
}

/// Whether it is refused for what its tenant has.
async fn has_its_share(inside: &Inside) -> bool {
    refusal(inside).await.is_some_and(|why| why.contains("its tenant has its share"))
}

#[tokio::test(flavor = "multi_thread")]
async fn taking_all_processes_with_several_sandboxes_of_one_tenant() {
    let group = SmallGroup::new();
    let engine = group.open().await;
    let (one, other) = (sandbox_of(&engine, "greedy").await, sandbox_of(&engine, "greedy").await);
    let neighbour = sandbox_of(&engine, "modest").await;
    assert_eq!(work(&neighbour).await.unwrap(), "works");
    let _attacks = [fill(&one).await, fill(&other).await];
    until("the greedy ones have what they may have", async || group.taken() > MOST * 9 / 20).await;
    until("they get no more", async || has_its_share(&one).await && has_its_share(&other).await).await;
    for _ in 0..30 {
        assert_eq!(work(&neighbour).await.unwrap(), "works");
    }
    assert!(group.taken() < MOST * 7 / 8, "{}", group.taken());
    // The control: where all that there are are taken, the neighbour could not begin anything.
    until("nothing is left", async || {
        group.allow(group.taken());
        refusal(&neighbour).await.is_some_and(|why| why.contains("kernel.pid_max"))
    })
    .await;
    group.allow(MOST);
    until("there is room", async || work(&neighbour).await.is_ok_and(|said| said == "works")).await;
    // What was lowered does not stay so when there is room.
    engine.destroy(one.sandbox.id()).await.unwrap();
    until("the other one takes what has become free", async || group.taken() > MOST * 9 / 20).await;
    engine.destroy(other.sandbox.id()).await.unwrap();
    engine.destroy(neighbour.sandbox.id()).await.unwrap();
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_alone_may_have_nearly_all_processes_and_leaves_some_to_who_comes() {
    let group = SmallGroup::new();
    let engine = group.open().await;
    let greedy = [sandbox_of(&engine, "greedy").await, sandbox_of(&engine, "greedy").await];
    let _attacks = [fill(&greedy[0]).await, fill(&greedy[1]).await];
    until("they have more than half of all", async || group.taken() > MOST * 3 / 4).await;
    until("they get no more", async || has_its_share(&greedy[0]).await && has_its_share(&greedy[1]).await).await;
    let modest = sandbox_of(&engine, "modest").await;
    for _ in 0..10 {
        assert_eq!(work(&modest).await.unwrap(), "works");
    }
    for inside in greedy.iter().chain([&modest]) {
        engine.destroy(inside.sandbox.id()).await.unwrap();
    }
    engine.close().await;
}
