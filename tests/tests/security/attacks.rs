//! The attacking programs, and how they are run on the host to show that they work where nothing stops them.

use std::{
    collections::BTreeMap,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use cabana_sandbox::Status;

/// A program of the folder `attacks`.
pub(crate) struct Attack(&'static str);

macro_rules! attacks {
    ($($constant:ident = $file:literal),+ $(,)?) => {
        $(pub(crate) const $constant: Attack = Attack($file);)+
    };
}

attacks! {
    ALIASES = "aliases.py",
    BITS = "bits.c",
    BITS_EXEC = "bits_exec.c",
    BITS_HOLD = "bits_hold.c",
    BITS_RACE = "bits_race.c",
    BROKER = "broker.c",
    CALLS = "calls.c",
    CHASE = "chase.c",
    CHROOT = "chroot.c",
    CLIMB = "climb.c",
    COMMON_LOCKS = "common_locks.c",
    CONTACT = "contact.c",
    CRAWL = "crawl.c",
    CRAWL_CALLS = "crawl_calls.c",
    DEVICES = "devices.c",
    EAVESDROP = "eavesdrop.py",
    EXHAUST = "exhaust.py",
    FAMILIES = "families.c",
    FILTER = "filter.c",
    FLOOD = "flood.c",
    FORGE = "forge.py",
    GATE = "gate.c",
    HALVES = "halves.c",
    HANDED = "handed.py",
    HANDLES = "handles.c",
    HOLD = "hold.py",
    HOLD_DISK = "hold_disk.c",
    HOLD_LOCK = "hold_lock.c",
    HUGE = "huge.c",
    HUNT = "hunt.py",
    IDS = "ids.c",
    IOCTLS = "ioctls.c",
    IPC = "ipc.c",
    LANDLOCK = "landlock.c",
    LEASE = "lease.c",
    LINKED = "linked.c",
    LINGER = "linger.c",
    MASQUERADE = "masquerade.py",
    MOUNTING = "mounting.c",
    MOVING = "moving.c",
    NAMED = "named.c",
    NAMED_SOCKETS = "named_sockets.py",
    NAMELESS = "nameless.c",
    NAMESPACES = "namespaces.c",
    NEIGHBOUR = "neighbour.py",
    NSFS = "nsfs.c",
    OTHER_ABI = "other_abi.c",
    OUTLIVE = "outlive.c",
    OUTSIDE = "outside.c",
    OWN_CONNECTIONS = "own_connections.py",
    OWN_FILTERS = "own_filters.py",
    PAGE_CACHE = "page_cache.c",
    PEER = "peer.c",
    PIDFD = "pidfd.c",
    PLANT = "plant.c",
    PRIORITY = "priority.c",
    PRLIMIT = "prlimit.c",
    QUEUES = "queues.py",
    REACH = "reach.py",
    RELAY = "relay.py",
    RTNETLINK = "rtnetlink.py",
    SAY = "say.c",
    SETTINGS = "settings.c",
    SHARED_TABLE = "shared_table.c",
    SIGNALS = "signals.c",
    SLAUGHTER = "slaughter.c",
    SOCKETS = "sockets.py",
    SOCKOPTS = "sockopts.py",
    STANDING = "standing.c",
    STORM = "storm.c",
    SWAP = "swap.c",
    TERMINAL = "terminal.py",
    TTY = "tty.c",
    TYPING = "typing.c",
    UNCHARGED = "uncharged.c",
    UNMAPPED = "unmapped.c",
}

impl Attack {
    pub(crate) fn name(&self) -> &'static str {
        self.0.rsplit_once('.').expect("an extension").0
    }

    fn source(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/security/attacks").join(self.0)
    }

    fn is_c(&self) -> bool {
        self.0.ends_with(".c")
    }

    /// What is put inside: a program of the machine, or a script.
    pub(crate) fn program(&self) -> Vec<u8> {
        fs::read(self.on_host()).expect("the attack can be read")
    }

    /// Where it lies outside. Compiled once for each state of its source.
    pub(crate) fn on_host(&self) -> PathBuf {
        let source = self.source();
        if !self.is_c() {
            return source;
        }
        let mut hasher = DefaultHasher::new();
        (fs::read(&source).expect("the attack is there"), self.flags()).hash(&mut hasher);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("attacks");
        fs::create_dir_all(&dir).expect("a directory for attacks");
        let program = dir.join(format!("{}-{:016x}", self.name(), hasher.finish()));
        if !program.exists() {
            let draft = tempfile::NamedTempFile::new_in(&dir).expect("a draft").into_temp_path();
            let mut cc = Command::new("cc");
            cc.args(["-O1", "-Wall", "-Wextra", "-Werror"]).args(self.flags()).arg("-o").arg(&draft).arg(&source);
            let said = cc.output().expect("there is a C compiler");
            assert!(said.status.success(), "{}: {}", self.0, String::from_utf8_lossy(&said.stderr));
            // Ordinary users bring it to their sandboxes, too.
            fs::set_permissions(&draft, PermissionsExt::from_mode(0o755)).expect("a mode");
            draft.persist(&program).expect("the attack takes its place");
        }
        program
    }

    /// Static, so that it runs where there is no library; but for those that are about being linked.
    fn flags(&self) -> Vec<String> {
        let flags = match self.name() {
            "gate" => "-shared -fPIC",
            // With room for the name of another interpreter.
            "linked" => return vec![format!("-Wl,--dynamic-linker=/interpreter/{}", "_".repeat(180))],
            "say" => "-nostdlib -ffreestanding -fno-stack-protector -fPIE -static-pie",
            _ => "-static -pthread",
        };
        flags.split(' ').map(str::to_owned).collect()
    }

    pub(crate) fn words(&self, place: &str) -> Vec<String> {
        match self.is_c() {
            true => vec![place.to_owned()],
            false => vec!["/usr/bin/python3".to_owned(), place.to_owned()],
        }
    }

    /// As root of the host, where nothing stops it.
    pub(crate) fn run_on_host(&self, arguments: &[&str]) -> Ran {
        self.run_in(&[], arguments)
    }

    /// The same in a mount namespace of its own, which is all that lies between it and the host: what it mounts goes with it.
    pub(crate) fn run_in_own_mounts(&self, arguments: &[&str]) -> Ran {
        self.run_in(&["unshare", "--mount", "--propagation", "private"], arguments)
    }

    fn run_in(&self, wrapper: &[&str], arguments: &[&str]) -> Ran {
        let program = self.words(self.on_host().to_str().expect("plain text"));
        let words: Vec<&str> = wrapper.iter().copied().chain(program.iter().map(String::as_str)).collect();
        Ran::of(Command::new(words[0]).args(&words[1..]).args(arguments))
    }
}

/// A program of the host at a socket in a directory that sandboxes see, which hands descriptors from one to the other: what they
/// cannot do by themselves.
pub(crate) struct Relay(std::process::Child);

impl Relay {
    pub(crate) fn start(door: &Path) -> Self {
        use std::io::BufRead;
        let words = RELAY.words(RELAY.on_host().to_str().expect("plain text"));
        let mut relay = Command::new(&words[0]);
        relay.args(&words[1..]).arg(door).stdout(std::process::Stdio::piped());
        let mut relay = relay.spawn().expect("it starts");
        let mut line = String::new();
        let out = relay.stdout.take().expect("it is piped");
        std::io::BufReader::new(out).read_line(&mut line).expect("it can be read");
        assert_eq!(line.trim(), "listens");
        Self(relay)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A script of the host's shell, as root: the control of one that is run inside.
pub(crate) fn on_host(script: &str) -> Ran {
    Ran::of(Command::new("bash").args(["-c", script]))
}

/// The same in namespaces of its own (`--mount`, `--net`, …) and behind no other wall: what it does there goes with it.
pub(crate) fn in_own(namespaces: &[&str], script: &str) -> Ran {
    Ran::of(Command::new("unshare").args(namespaces).args(["bash", "-c", script]))
}

/// How a program ended and what it said.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: Status,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Of a program of the host.
    pub(crate) fn of(command: &mut Command) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let said = command.output().expect("it starts");
        let status = said
            .status
            .code()
            .map_or_else(|| Status::Signal(said.status.signal().expect("it has ended")), Status::Code);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { status, out: text(said.stdout), err: text(said.stderr) }
    }

    /// What it wrote, without white space around it; it must have succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.status, Status::Code(0), "{}{}", self.out, self.err);
        self.out.trim().to_owned()
    }

    /// What it wrote to stderr; it must have failed by itself, and not because the tool is missing.
    #[track_caller]
    pub(crate) fn refused(self) -> String {
        assert!(matches!(self.status, Status::Code(code) if code != 0 && code != 127), "not refused: {self:?}");
        self.err.trim().to_owned()
    }

    /// The report of an attack: lines of what was tried, and what came of it.
    #[track_caller]
    pub(crate) fn report(self) -> Report {
        let text = self.ok();
        let lines = text.lines().map(|line| line.rsplit_once(' ').unwrap_or_else(|| panic!("no report: {text}")));
        Report(lines.map(|(what, came)| (what.to_owned(), came.to_owned())).collect())
    }
}

/// What was tried, and `done` or the name of the error.
#[derive(Debug)]
pub(crate) struct Report(BTreeMap<String, String>);

impl Report {
    #[track_caller]
    pub(crate) fn of(&self, what: &str) -> &str {
        self.0.get(what).unwrap_or_else(|| panic!("{what} was not tried: {self:?}"))
    }

    pub(crate) fn has(&self, beginning: &str) -> bool {
        self.0.keys().any(|what| what.starts_with(beginning))
    }

    /// Whether nothing came to this.
    pub(crate) fn is_without(&self, came: &str) -> bool {
        self.0.values().all(|answer| answer != came)
    }

    /// How many of the things that were tried begin so.
    pub(crate) fn count(&self, beginning: &str) -> usize {
        self.0.keys().filter(|what| what.starts_with(beginning)).count()
    }

    /// Of an attack: nothing of it succeeded.
    #[track_caller]
    pub(crate) fn nothing_done(&self) {
        self.nothing_done_but(&[]);
    }

    #[track_caller]
    pub(crate) fn nothing_done_but(&self, open: &[&str]) {
        assert!(!self.0.is_empty(), "nothing was tried");
        let is_done = |(what, came): &(&String, &String)| *came == "done" && !open.contains(&what.as_str());
        let done: Vec<_> = self.0.iter().filter(is_done).collect();
        assert!(done.is_empty(), "done: {done:?}");
    }

    /// Of a control: all of it succeeded.
    #[track_caller]
    pub(crate) fn all_done(&self) {
        assert!(!self.0.is_empty(), "nothing was tried");
        let refused: Vec<_> = self.0.iter().filter(|(_, came)| *came != "done").collect();
        assert!(refused.is_empty(), "the control does not get through: {refused:?}");
    }

    /// Everything was refused, with one of these answers.
    #[track_caller]
    pub(crate) fn all_refused(&self, answers: &[&str]) {
        assert!(!self.0.is_empty(), "nothing was tried");
        let through: Vec<_> = self.0.iter().filter(|(_, came)| !answers.contains(&came.as_str())).collect();
        assert!(through.is_empty(), "not refused: {through:?}");
    }

    /// Of a control: nothing of it was refused for want of a right.
    #[track_caller]
    pub(crate) fn none_refused(&self, answers: &[&str]) {
        assert!(!self.0.is_empty(), "nothing was tried");
        let refused: Vec<_> = self.0.iter().filter(|(_, came)| answers.contains(&came.as_str())).collect();
        assert!(refused.is_empty(), "the control does not get through: {refused:?}");
    }
}
