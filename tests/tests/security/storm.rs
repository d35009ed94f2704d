//! A storm of system calls from inside: every number, with arguments drawn by chance from a seed. The host is the same
//! afterwards, as is the data directory, init answers, and the neighbour has noticed nothing. A seed for every ten rounds of
//! `CABANA_SOAK_ROUNDS`; `CABANA_SEED` is the first of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
};

use cabana_engine::Engine;
use cabana_sandbox::{
    Code, Enforced, ExecSpec, Found, Limits, NetworkPolicy, Provider, SandboxPath, SandboxSpec, Status,
};

use crate::{
    attacks::{Ran, STORM},
    bystander::Bystander,
    host_process::HostProcess,
    host_state::HostState,
    inside::{Inside, config, named, passing, soon, unique, until},
};

const LAST_CALL: u32 = 600;

/// How many calls of each number a round makes.
const CALLS: &str = "24";

/// Each makes every call, as root and as user, and takes some seconds.
fn seeds() -> std::ops::Range<u64> {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = setting("CABANA_SEED").unwrap_or(1);
    first..first + setting("CABANA_SOAK_ROUNDS").unwrap_or(1).div_ceil(10)
}

/// What a round came to. A storm may end itself by a call that nobody foresaw: then it goes on behind that.
#[derive(Debug, Default)]
struct Coverage {
    numbers: BTreeSet<u32>,
    answered: u32,
    other_tables: u32,
    killed: u32,
}

impl Coverage {
    /// Adds what one run of the program said. Gives where the next one goes on, or nothing at the end.
    fn add(&mut self, ran: &Ran) -> Option<u32> {
        let mut last = 0;
        for line in ran.out.lines() {
            let Some((what, number)) = line.split_once(' ') else { continue };
            let Ok(number) = number.parse() else { continue };
            match what {
                "at" => {
                    last = number;
                    self.numbers.insert(number);
                }
                "answered" => self.answered += number,
                "other-tables" => self.other_tables += number,
                "killed" => self.killed += number,
                _ => {}
            }
        }
        (!ran.out.ends_with("done\n")).then_some(last + 1)
    }
}

/// All numbers, in as many sandboxes as it takes: root of one may move its own programs away.
async fn storm(engine: &Arc<Engine>, spec: &SandboxSpec, user: &str, seed: u64) -> Coverage {
    const MOST_SANDBOXES: u32 = 64;
    let mut coverage = Coverage::default();
    let mut from = 0;
    for _ in 0..MOST_SANDBOXES {
        let inside = Inside::of(engine.clone(), spec).await;
        let before = Standing::of(&inside).await;
        let ran = inside.attack(user, &STORM, &[&seed.to_string(), &from.to_string(), CALLS]).await;
        assert_ne!(ran.status, Status::Code(3), "it would not run: {ran:?}");
        before.still_holds(&inside, user).await;
        soon("the end of a sandbox", engine.destroy(inside.sandbox.id())).await.unwrap();
        assert!(matches!(engine.attach(inside.sandbox.id()).await, Ok(Found::Absent)), "nothing is left");
        match coverage.add(&ran) {
            None => return coverage,
            Some(next) => from = next,
        }
    }
    panic!("the storm ended itself {MOST_SANDBOXES} times: {coverage:?}")
}

/// A sandbox's init as the host knows it, and whose ids are its own.
struct Standing {
    init: HostProcess,
    began: String,
    namespace: String,
    ids: std::ops::Range<u32>,
}

impl Standing {
    async fn of(inside: &Inside) -> Self {
        let init = HostProcess::all_of(inside).await.into_iter().find(HostProcess::is_init).expect("an init");
        let base: u32 = inside.user("awk '{ print $2 }' /proc/1/uid_map").await.ok().parse().unwrap();
        Self { began: init.began(), namespace: init.link("ns/pid"), init, ids: base..base + 65_536 }
    }

    /// Init is the same, and answers; nobody with an id of the sandbox is anywhere else.
    async fn still_holds(&self, inside: &Inside, user: &str) {
        assert_eq!(self.init.began(), self.began, "init is the same");
        match user {
            "root" => {
                // Its own root may have closed or moved everything: but init says so, and at once.
                let mut spec = ExecSpec::argv(["/bin/true"], SandboxPath::root());
                spec.user = Some(named("root"));
                let answer = soon("a command after a storm", inside.sandbox.exec(spec)).await;
                let refused = answer.err().map(|error| error.code());
                assert!(
                    matches!(refused, None | Some(Code::ProgramNotFound | Code::WorkdirNotFound | Code::UnknownUser)),
                    "{refused:?}"
                );
            }
            _ => inside.still_works().await,
        }
        let outside = HostProcess::all().filter(|process| {
            let has_id = |id: &str| id.parse().is_ok_and(|id| self.ids.contains(&id));
            process.status("Uid").split(' ').any(has_id) && process.link("ns/pid") != self.namespace
        });
        assert_eq!(outside.map(|process| process.0).collect::<Vec<_>>(), Vec::<u32>::new(), "outside of the sandbox");
    }
}

/// What a neighbour has, and what it says as long as it is well.
struct Neighbour {
    inside: Inside,
    content: String,
}

impl Neighbour {
    async fn new(inside: Inside) -> Self {
        let content = unique("neighbour");
        inside.user(&format!("echo {content} > /home/user/mine && mkdir /home/user/dir")).await.ok();
        let mut stays = ExecSpec::shell("exec sleep 36000", SandboxPath::root());
        stays.user = Some(named("user"));
        inside.sandbox.exec(stays).await.unwrap();
        Self { inside, content }
    }

    async fn is_as_before(&self) {
        let said = self
            .inside
            .user("cat /home/user/mine; ls /home/user; pgrep -c -x sleep; ls /proc | grep -c '^[0-9]'")
            .await
            .ok();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(&lines[..4], [self.content.as_str(), "dir", "mine", "1"], "{said}");
        self.inside.still_works().await;
    }
}

/// Ranges of ids that an engine may hold: those that rest, and those that are in use here.
const RANGES: usize = 40;

/// How many of each kind this process, the server, has open; but for the output of the neighbour's commands, which is kept. Of ranges
/// of ids more than may be held are seen.
fn open_descriptors() -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default().display().to_string();
        let kind: String = target.chars().filter(|character| !character.is_ascii_digit()).collect();
        *kinds.entry(kind).or_default() += 1;
    }
    kinds.remove("/memfd:output (deleted)");
    // Each with its lock and its cgroup.
    let of_ranges = kinds.iter_mut().filter(|(kind, _)| *kind == "/run/cabana/leases/" || kind.ends_with("/cabana/r"));
    of_ranges.for_each(|(_, count)| *count = RANGES.max(*count));
    kinds
}

/// What there is more of than there was.
fn more_than(before: &BTreeMap<String, usize>) -> Vec<String> {
    let now = open_descriptors();
    let more = now.iter().filter(|(kind, count)| before.get(*kind).copied().unwrap_or_default() < **count);
    more.map(|(kind, count)| format!("{count} of {kind}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn soak_a_storm_of_system_calls_changes_nothing_of_the_host() {
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let engine = Engine::open(config(data.path().into())).await.unwrap();
    let limits = Limits {
        memory: Some(512 << 20),
        pids: Some(128),
        disk: Some(512 << 20),
        inodes: Some(100_000),
        ..Limits::default()
    };
    let limits = if has_limits(&engine) { limits } else { Limits::default() };
    let spec = SandboxSpec { limits, network: NetworkPolicy::Public, ..passing() };
    let neighbour = Neighbour::new(Inside::of(engine.clone(), &spec).await).await;
    // As many as there will be at once came and went: what is made once, or kept for the next, is there.
    tokio::join!(make_and_remove_one(&engine, &spec), make_and_remove_one(&engine, &spec));
    let mut bystander = Bystander::new("bystander");
    let before = HostState::take_with(data.path());
    let open_before = open_descriptors();
    for seed in seeds() {
        let (root, user) = tokio::join!(storm(&engine, &spec, "root", seed), storm(&engine, &spec, "user", seed));
        for (who, coverage) in [("root", root), ("user", user)] {
            assert_eq!(coverage.numbers.len() as u32, LAST_CALL + 1, "every number, as {who}, seed {seed}");
            assert!(coverage.answered > 80, "{} got through as {who}, seed {seed}", coverage.answered);
            assert_eq!(coverage.killed, coverage.other_tables, "of other tables, as {who}, seed {seed}");
        }
        neighbour.is_as_before().await;
        assert!(bystander.lives(), "a process of the host ended, seed {seed}");
        before.assert_unchanged();
    }
    until("the server holds no more than before", async || more_than(&open_before).is_empty()).await;
    neighbour.inside.end().await;
}

async fn make_and_remove_one(engine: &Arc<Engine>, spec: &SandboxSpec) {
    let inside = Inside::of(engine.clone(), spec).await;
    inside.still_works().await;
    engine.destroy(inside.sandbox.id()).await.unwrap();
}

/// Whether this host can hold the limits that keep a storm small.
fn has_limits(engine: &Engine) -> bool {
    let can = engine.capabilities();
    [can.memory, can.pids].iter().all(|enforced| *enforced == Enforced::ByKernel)
}
