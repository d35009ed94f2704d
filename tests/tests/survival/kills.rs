//! Owners that are killed, at random and at each named place: nothing is lost, doubled or left over.

use std::{collections::BTreeSet, time::Duration};

use cabana_engine::FAULT_POINTS;
use cabana_sandbox::{ExecId, ExecSpec, Found, Provider, SandboxId, SandboxPath, Status, VolumeId, run};

use crate::{
    owner::{Owner, exec_line},
    stage::{all_of, data, engine, found, until},
};

/// What the test knows of a sandbox. What it asked for and got no answer to may have happened or not.
struct Known {
    id: SandboxId,
    may_be: BTreeSet<State>,
    commands: Vec<Counting>,
    /// What they wrote, as far as they are known to have.
    files: BTreeSet<String>,
    /// Where the volume may be seen.
    shown: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Absent,
    Stopped,
    Paused,
    Running,
}

/// A command that leaves a file and counts on both channels, so that a byte too many or too few shows.
struct Counting {
    exec: ExecId,
    lines: u32,
    answered: bool,
}

impl Counting {
    fn script(&self) -> String {
        let pace = "if [ $((i % 40)) -eq 0 ]; then sleep 0.01; fi";
        let Self { lines, .. } = self;
        format!(
            "echo {lines} > /tmp/{}; i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo out $i; echo err $i >&2; {pace}; done; exit {}",
            self.file(),
            lines % 100
        )
    }

    fn file(&self) -> String {
        format!("counted-{:032x}", self.exec.as_u128())
    }

    /// Whether it ran.
    async fn check(&self, sandbox: &dyn cabana_sandbox::Sandbox, place: &str) -> bool {
        let Some(said) = all_of(sandbox, self.exec).await else {
            assert!(!self.answered, "{place}: a command is lost");
            return false;
        };
        let lines = |word: &str| (1..=self.lines).map(|i| format!("{word} {i}\n")).collect::<String>();
        assert_eq!(said.gaps, 0, "{place}");
        assert_eq!(said.exit.unwrap().status, Status::Code((self.lines % 100) as i32), "{place}");
        assert!(said.out == lines("out").as_bytes(), "{place}: other output\n{}", said.out());
        assert!(said.err == lines("err").as_bytes(), "{place}: other errors\n{}", String::from_utf8_lossy(&said.err));
        true
    }
}

/// All that happens in a run follows from its seed, but for the moment of a kill.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

struct World {
    sandboxes: Vec<Known>,
    volume: VolumeId,
    /// Of every init that was ever seen.
    inits: BTreeSet<(u64, u64)>,
}

impl World {
    fn new() -> Self {
        Self { sandboxes: Vec::new(), volume: VolumeId::now(), inits: BTreeSet::new() }
    }

    fn create(&mut self, owner: &mut Owner) -> bool {
        let id = SandboxId::random();
        let asked = format!("create {id} persistent");
        self.sandboxes.push(Known {
            id,
            may_be: [State::Absent, State::Stopped, State::Running].into(),
            commands: Vec::new(),
            files: BTreeSet::new(),
            shown: [String::new()].into(),
        });
        self.settle(owner.ask(&asked), self.sandboxes.len() - 1, State::Running)
    }

    /// Asks for a change, after which the sandbox is in that state.
    fn change(&mut self, owner: &mut Owner, number: usize, word: &str, to: State) -> bool {
        let known = &mut self.sandboxes[number];
        known.may_be.insert(to);
        if to == State::Absent {
            known.may_be.insert(State::Stopped); // its processes end first
        }
        if word == "archive" {
            known.may_be.insert(State::Absent); // what it is saved as is in the owner's memory
            known.shown.insert(String::new()); // it is brought back by a spec that shows nothing
        }
        let asked = format!("{word} {}", known.id);
        self.settle(owner.ask(&asked), number, to)
    }

    fn settle(&mut self, answer: Option<String>, number: usize, to: State) -> bool {
        let Some(answer) = answer else { return false };
        assert_eq!(answer, "done");
        let known = &mut self.sandboxes[number];
        known.may_be = [to].into();
        if matches!(to, State::Stopped | State::Absent) {
            known.commands.clear();
        }
        true
    }

    fn limit(&self, owner: &mut Owner, number: usize, pids: u64) -> bool {
        owner.ask(&format!("limit {} {pids}", self.sandboxes[number].id)).is_some_and(|answer| answer == "done")
    }

    fn show(&mut self, owner: &mut Owner, number: usize, at: &str) -> bool {
        let volume = self.volume;
        let known = &mut self.sandboxes[number];
        known.shown.insert(at.to_owned());
        let done = owner.ask(&format!("show {} {volume} {at}", known.id)).is_some_and(|answer| answer == "done");
        if done {
            known.shown = [at.to_owned()].into();
        }
        done
    }

    fn snapshot(&self, owner: &mut Owner, number: usize) -> bool {
        owner.ask(&format!("snapshot {}", self.sandboxes[number].id)).is_some_and(|answer| answer == "done")
    }

    fn exec(&mut self, owner: &mut Owner, number: usize, lines: u32) -> bool {
        let known = &mut self.sandboxes[number];
        let command = Counting { exec: ExecId::now(), lines, answered: false };
        let asked = exec_line(&known.id, command.exec, "output", &command.script());
        known.commands.push(command);
        let Some(answer) = owner.ask(&asked) else { return false };
        assert_eq!(answer, "done");
        known.commands.last_mut().unwrap().answered = true;
        true
    }

    /// What is left is what the test knows of, and every command says all that it has to say.
    async fn check(&mut self, place: &str) {
        let engine = engine().await;
        let mut left = Vec::new();
        for mut known in std::mem::take(&mut self.sandboxes) {
            self.note_init(&known.id);
            let state = match engine.attach(&known.id).await.unwrap_or_else(|error| panic!("{place}: {error}")) {
                Found::Running(_) => State::Running,
                Found::Paused(_) => State::Paused,
                Found::Stopped => State::Stopped,
                Found::Absent => State::Absent,
            };
            assert!(known.may_be.contains(&state), "{place}: it is {state:?} and may be {:?}", known.may_be);
            match state {
                State::Absent => {
                    // What one stood on that was being archived is let go, too.
                    engine.destroy(&known.id).await.unwrap();
                    continue;
                }
                State::Stopped => {
                    known.commands.clear();
                    drop(engine.start(&known.id).await.unwrap());
                }
                State::Paused => drop(engine.start(&known.id).await.unwrap()),
                State::Running => {}
            }
            let sandbox = found(&engine, &known.id).await;
            for command in &known.commands {
                if command.check(&*sandbox, place).await {
                    known.files.insert(command.file());
                }
            }
            let listed = run(&*sandbox, ExecSpec::shell("ls /tmp", SandboxPath::root()), 1 << 20).await.unwrap();
            let listed = String::from_utf8(listed.stdout.whole().unwrap()).unwrap();
            let there: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
            assert!(known.files.is_subset(&there), "{place}: files are lost: {:?}", known.files.difference(&there));
            // All of a change or nothing; and what it is now stays so.
            let script = "awk '$5 ~ \"^/srv/\" { print $5 }' /proc/self/mountinfo";
            let seen = run(&*sandbox, ExecSpec::shell(script, SandboxPath::root()), 1 << 16).await.unwrap();
            let seen = String::from_utf8(seen.stdout.whole().unwrap()).unwrap().trim().to_owned();
            assert!(known.shown.contains(&seen), "{place}: {seen:?} is seen, and may be {:?}", known.shown);
            known.shown = [seen].into();
            known.may_be = [State::Running].into();
            left.push(known);
        }
        self.sandboxes = left;
        engine.leave().await;
    }

    fn note_init(&mut self, id: &SandboxId) {
        let note = data().join("sandboxes").join(id.as_str()).join("live.json");
        let Some(note) =
            std::fs::read(note).ok().and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok())
        else {
            return;
        };
        self.inits.insert((note["pid"].as_u64().unwrap(), note["started"].as_u64().unwrap()));
    }

    async fn end(mut self) {
        let engine = engine().await;
        for known in &self.sandboxes {
            engine.destroy(&known.id).await.unwrap();
            assert!(!data().join("sandboxes").join(known.id.as_str()).exists());
        }
        engine.remove_volume(self.volume).await.unwrap();
        assert!(!data().join("volumes").join(self.volume.to_string()).exists());
        engine.close().await;
        for (pid, started) in std::mem::take(&mut self.inits) {
            until("its init is gone", async || !lives(pid, started)).await;
        }
        nothing_is_left();
    }
}

fn lives(pid: u64, started: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ticks = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse::<u64>().ok());
    ticks == Some(started) && !stat.contains(") Z ")
}

/// Directories of owners that are gone are removed by whoever comes next.
fn nothing_is_left() {
    for owner in std::fs::read_dir(data().join("ephemeral")).unwrap().flatten() {
        let Ok(dir) = std::fs::File::open(owner.path()) else { continue };
        let free = rustix::fs::flock(&dir, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok();
        // One that was made just now by a neighbour, and not locked yet, is empty.
        let empty = std::fs::read_dir(owner.path()).map_or(true, |mut entries| entries.next().is_none());
        assert!(!free || empty, "{:?} is left over", owner.path());
    }
}

#[tokio::test]
async fn a_kill_at_each_named_place_loses_nothing() {
    let mut world = World::new();
    let mut owner = Owner::start(&data());
    assert!(world.create(&mut owner) && world.exec(&mut owner, 0, 100));
    owner.kill();
    for place in FAULT_POINTS {
        let mut owner = Owner::start_with(&data(), &[("CABANA_FAULT", &format!("{place}@1"))]);
        let survived = work(&mut world, &mut owner);
        assert!(owner.was_killed(), "{place} was never passed");
        assert!(!survived || place.starts_with("output"), "{place}");
        world.check(place).await;
    }
    world.end().await;
}

/// Passes every place. False when the owner is gone.
fn work(world: &mut World, owner: &mut Owner) -> bool {
    let number = world.sandboxes.len();
    let Some(answer) = owner.ask(&format!("attach {}", world.sandboxes[0].id)) else { return false };
    assert_eq!(answer, "running");
    world.create(owner)
        && world.exec(owner, number, 60)
        && world.limit(owner, number, 200)
        && world.show(owner, number, "/srv/here")
        && world.show(owner, number, "/srv/there")
        && world.exec(owner, 0, 30)
        && world.snapshot(owner, number)
        && world.change(owner, number, "pause", State::Paused)
        && world.change(owner, number, "start", State::Running)
        && world.change(owner, number, "stop", State::Stopped)
        && world.snapshot(owner, number)
        && world.change(owner, number, "archive", State::Stopped)
        && world.change(owner, number, "start", State::Running)
        && world.exec(owner, number, 90)
        && owner.ask(&format!("attach {}", world.sandboxes[0].id)).is_some()
        && world.change(owner, number, "destroy", State::Absent)
}

#[tokio::test]
async fn soak_kills_at_random_lose_nothing() {
    let seed = std::env::var("CABANA_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_116);
    let rounds: u32 = std::env::var("CABANA_SOAK_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let (mut chance, mut world) = (Chance(seed), World::new());
    for round in 0..rounds.min(400) {
        let mut owner = Owner::start(&data());
        let killer = owner.kill_in(Duration::from_micros(chance.below(400_000)));
        while act(&mut world, &mut owner, &mut chance) {}
        killer.join().unwrap();
        owner.kill();
        world.check(&format!("seed {seed}, round {round}")).await;
    }
    world.end().await;
}

/// One thing by chance. False when the owner is gone.
fn act(world: &mut World, owner: &mut Owner, chance: &mut Chance) -> bool {
    let there: Vec<usize> = (0..world.sandboxes.len()).collect();
    if there.is_empty() || (there.len() < 4 && chance.below(4) == 0) {
        return world.create(owner);
    }
    let number = chance.below(there.len() as u64) as usize;
    let state = world.sandboxes[number].may_be.iter().next_back().copied().unwrap();
    match (state, chance.below(12)) {
        (State::Absent, _) => {
            world.sandboxes.remove(number);
            true
        }
        (_, 4) => world.snapshot(owner, number),
        (State::Stopped | State::Paused, _) => world.change(owner, number, "start", State::Running),
        (State::Running, 0) => world.change(owner, number, "destroy", State::Absent),
        (State::Running, 1) => world.change(owner, number, "stop", State::Stopped),
        (State::Running, 2) => world.change(owner, number, "pause", State::Paused),
        (State::Running, 3) => owner.ask(&format!("attach {}", world.sandboxes[number].id)).is_some(),
        (State::Running, _) => {
            let lines = 20 + chance.below(300) as u32;
            // A sandbox of a former owner has to be taken up first.
            owner.ask(&format!("attach {}", world.sandboxes[number].id)).is_some() && world.exec(owner, number, lines)
        }
    }
}
