//! The same attacks on sandboxes of every kind: of root and of ordinary users, with control groups of each version and
//! without, made from the host's programs, a template, an image, a snapshot or an archive. Every day a selection in which
//! each pair of such properties occurs; with `CABANA_SOAK_ROUNDS`, as many combinations as that, up to all of them.

mod combination;
mod escapes;
mod inside;
mod others;
mod pairwise;
mod sources;
mod stage;

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Mutex,
};

use cabana_sandbox::{ExecSpec, SandboxPath, SandboxSpec, Source, Stdio, TermSize, View};
use cabana_tests::remote::{Answer, Refusal, Request};

use self::{
    combination::{Combination, SIZES},
    stage::Remote,
};
use crate::{
    attacks::{Attack, Ran},
    inside::{PATIENCE, named, path},
};

/// Runs the attack on a sandbox of each chosen combination. All are tried; the test fails with all that fell.
fn attack_all(name: &str, attack: impl Fn(&mut Target<'_>) + Sync) {
    let mut owners: BTreeMap<_, Vec<Combination>> = BTreeMap::new();
    for combination in chosen(name) {
        owners.entry((combination.identity, combination.cgroups)).or_default().push(combination);
    }
    let (owners, fallen) = (Mutex::new(owners.into_iter()), Mutex::new(Vec::new()));
    let work = || {
        while let Some(((identity, cgroups), combinations)) = next(&owners) {
            let mut remote = Remote::start(identity, cgroups);
            for combination in combinations {
                let tried = catch_unwind(AssertUnwindSafe(|| {
                    let mut target = Target::new(&mut remote, combination, 0);
                    attack(&mut target);
                    target.destroy();
                }));
                if let Err(panic) = tried {
                    let what = format!("{combination:?}: {}", message(&*panic));
                    fallen.lock().expect("a list").push(what);
                    remote = Remote::start(identity, cgroups); // whatever the other one was in the middle of
                }
            }
        }
    };
    std::thread::scope(|threads| (0..at_once()).for_each(|_| drop(threads.spawn(work))));
    let fallen = fallen.into_inner().expect("a list");
    assert!(fallen.is_empty(), "{} combinations fell to {name}:\n{}", fallen.len(), fallen.join("\n"));
}

fn next<T>(list: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    list.lock().expect("a list").next()
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

fn rounds() -> Option<usize> {
    std::env::var("CABANA_SOAK_ROUNDS").ok().and_then(|text| text.parse().ok())
}

/// A soak test has the machine for itself; the others run two at a time.
fn at_once() -> usize {
    if rounds().is_some() { 2 } else { 1 }
}

/// Another selection for each attack, and the same every day.
fn chosen(name: &str) -> Vec<Combination> {
    let seed = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut rows = pairwise::pairwise(&SIZES, seed);
    if let Some(rounds) = rounds() {
        let more: Vec<_> = pairwise::all(&SIZES, seed).into_iter().filter(|row| !rows.contains(row)).collect();
        rows.extend(more);
        rows.truncate(rounds);
    }
    rows.iter().map(|row| Combination::of(row)).collect()
}

/// An attack and its name.
type NamedAttack = (&'static str, fn(&mut Target<'_>));

/// Several attacks, one after the other on the same sandbox: making it takes longer than any of them.
fn attack_all_with(name: &str, attacks: &[NamedAttack]) {
    attack_all(name, |target| {
        for (part, attack) in attacks {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| attack(target))) {
                panic!("{part}: {}", message(&*panic));
            }
        }
    });
}

/// Tests of several attacks each, of which none changes what another one meets.
macro_rules! together {
    ($($(#[$on:meta])* $test:ident { $($(#[$about:meta])* $name:ident($target:ident) $attack:block)* })*) => {
        $($($(#[$about])* fn $name($target: &mut $crate::soak_matrix::Target<'_>) $attack)*
        $(#[$on])*
        #[test]
        fn $test() {
            $crate::soak_matrix::attack_all_with(stringify!($test), &[$((stringify!($name), $name)),*]);
        })*
    };
}
use together;

/// A sandbox of one combination.
struct Target<'a> {
    remote: &'a mut Remote,
    combination: Combination,
    number: usize,
    installed: BTreeSet<String>,
}

impl<'a> Target<'a> {
    fn new(remote: &'a mut Remote, combination: Combination, number: usize) -> Self {
        let mut target = Self::made(remote, combination, number);
        target.create(Vec::new());
        target
    }

    /// One that is there.
    fn made(remote: &'a mut Remote, combination: Combination, number: usize) -> Self {
        Self { remote, combination, number, installed: BTreeSet::new() }
    }

    fn create(&mut self, views: Vec<View>) {
        let (origin, limited) = (self.combination.origin, self.combination.is_limited());
        let spec = Box::new(SandboxSpec { views, ..self.combination.spec() });
        self.expect_done(&Request::Create { sandbox: self.number, origin, limited, spec });
    }

    /// The same once more, with a directory of its owner's that others may see as well.
    fn create_again_with_shared(&mut self, at: &str) {
        self.destroy();
        self.installed.clear();
        self.create(vec![View { source: Source::Host(stage::shared()), at: path(at), writable: true }]);
    }

    /// Another one like it, of the same owner.
    fn neighbour(&mut self) -> Target<'_> {
        Target::new(self.remote, self.combination, self.number + 1)
    }

    fn destroy(&mut self) {
        self.expect_done(&Request::Destroy { sandbox: self.number });
    }

    fn ask(&mut self, request: &Request) -> Answer {
        self.remote.ask(request)
    }

    #[track_caller]
    fn expect_done(&mut self, request: &Request) {
        let answer = self.ask(request);
        assert!(matches!(answer, Answer::Done), "{request:?}: {answer:?}");
    }

    fn users(&self) -> &'static [&'static str] {
        self.combination.users()
    }

    /// Puts the attack inside, and says where it lies.
    fn install(&mut self, attack: &Attack) -> String {
        self.install_file(&attack.on_host(), attack.name())
    }

    fn install_file(&mut self, file: &Path, name: &str) -> String {
        let at = format!("/tmp/{name}");
        if self.installed.insert(at.clone()) {
            let from = stage::seen(file);
            self.expect_done(&Request::Install { sandbox: self.number, from, at: path(&at) });
        }
        at
    }

    /// All of them; of each how it went, or how it was refused before it was started.
    fn exec(&mut self, commands: Vec<ExecSpec>) -> Vec<Result<Ran, Refusal>> {
        let commands = commands.into_iter().map(|spec| ExecSpec { timeout: Some(PATIENCE), ..spec }).collect();
        match self.ask(&Request::Exec { sandbox: self.number, commands }) {
            Answer::Ran(all) => all
                .into_iter()
                .map(|ran| ran.map(|ran| Ran { status: ran.status, out: ran.out.replace('\r', ""), err: ran.err }))
                .collect(),
            other => panic!("no commands were run: {other:?}"),
        }
    }

    #[track_caller]
    fn run(&mut self, spec: ExecSpec) -> Ran {
        self.exec(vec![spec]).remove(0).unwrap_or_else(|refusal| panic!("it was not started: {refusal:?}"))
    }

    #[track_caller]
    fn attack(&mut self, user: &str, attack: &Attack, arguments: &[&str]) -> Ran {
        let program = self.install(attack);
        self.run(command(user, &program, arguments))
    }

    #[track_caller]
    fn attack_in_terminal(&mut self, user: &str, attack: &Attack, arguments: &[&str]) -> Ran {
        let program = self.install(attack);
        self.run(in_terminal(command(user, &program, arguments)))
    }

    /// Whether it still does what sandboxes are for: what an attack on init would end.
    fn still_works(&mut self) {
        let mut spec = ExecSpec::shell("echo works", SandboxPath::root());
        spec.user = Some(named("root"));
        assert_eq!(self.run(spec).ok(), "works");
    }
}

fn command(user: &str, program: &str, arguments: &[&str]) -> ExecSpec {
    let words = [program].into_iter().chain(arguments.iter().copied());
    let mut spec = ExecSpec::argv(words, SandboxPath::root());
    spec.user = Some(named(user));
    spec
}

fn in_terminal(spec: ExecSpec) -> ExecSpec {
    ExecSpec { stdio: Stdio::Terminal(TermSize { cols: 200, rows: 50 }), ..spec }
}
