//! What the server, the spawner and init say to each other.
//!
//! Little-endian numbers and length-prefixed bytes, each message one packet. Every decoder takes untrusted bytes: init is
//! trusted by nobody, and trusts nobody. A message that is not understood is an error, never a guess.

use std::ffi::CStr;

use rustix::fs::FileType;

/// Said by both when a server comes back to an init, which may be of an older binary: who does not speak the other's ends it.
pub(crate) const PROTOCOL: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of the engine is malformed")]
pub(crate) struct Malformed;

type Result<T> = std::result::Result<T, Malformed>;

#[derive(Default)]
pub(crate) struct Encoder(Vec<u8>);

impl Encoder {
    fn kind(kind: u8) -> Self {
        Self(vec![kind])
    }
    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    fn u128(mut self, value: u128) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    fn bytes(mut self, value: &[u8]) -> Self {
        self = self.u32(value.len() as u32);
        self.0.extend_from_slice(value);
        self
    }
    fn list<T: AsRef<[u8]>>(mut self, values: &[T]) -> Self {
        self = self.u32(values.len() as u32);
        for value in values {
            self = self.bytes(value.as_ref());
        }
        self
    }
    fn done(self) -> Vec<u8> {
        self.0
    }
}

struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(head)
    }
    fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }
    fn u32(&mut self) -> Result<u32> {
        self.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| Malformed)
    }
    fn u64(&mut self) -> Result<u64> {
        self.take(8)?.try_into().map(u64::from_le_bytes).map_err(|_| Malformed)
    }
    fn u128(&mut self) -> Result<u128> {
        self.take(16)?.try_into().map(u128::from_le_bytes).map_err(|_| Malformed)
    }
    fn bool(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
    fn bytes(&mut self) -> Result<&'a [u8]> {
        let count = self.u32()? as usize;
        self.take(count)
    }
    /// Bytes that end in their only NUL.
    fn text(&mut self) -> Result<&'a CStr> {
        CStr::from_bytes_with_nul(self.bytes()?).map_err(|_| Malformed)
    }
    /// How many elements follow, each at least `size` bytes long: a huge count allocates nothing.
    fn count(&mut self, size: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count > self.0.len() / size { Err(Malformed) } else { Ok(count) }
    }
    fn list<T>(&mut self, size: usize, each: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.count(size)?;
        (0..count).map(|_| each(self)).collect()
    }
    fn end<T>(self, value: T) -> Result<T> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed) }
    }
}

// ── server → spawner ─────────────────────────────────────────────────────────────────────────────────────────────────

/// Ranges of ids as they are on disk, and as they are shown: of users, and of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdsShown {
    pub(crate) from: Ids,
    pub(crate) to: Ids,
    pub(crate) count: u32,
}

/// A user and a group, or the first of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ids {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl Ids {
    pub(crate) fn both(id: u32) -> Self {
        Self { user: id, group: id }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToSpawner {
    /// An init in namespaces of its own, with a range of ids; it waits for its [`SetupPlan`]. Beside it: init's end of the
    /// control socket, and a cgroup if there is one.
    Clone { tag: u64, ids_base: u32, ids_count: u32, cgroup: bool, hostname: Vec<u8> },
    /// A user namespace that is nothing but an id map, for mounts.
    Map { tag: u64, ids: IdsShown },
}

impl ToSpawner {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Clone { tag, ids_base, ids_count, cgroup, hostname } => {
                let head = Encoder::kind(1).u64(*tag).u32(*ids_base).u32(*ids_count).u32(u32::from(*cgroup));
                head.bytes(hostname).done()
            }
            Self::Map { tag, ids: IdsShown { from, to, count } } => {
                let head = Encoder::kind(3).u64(*tag).u32(from.user).u32(from.group);
                head.u32(to.user).u32(to.group).u32(*count).done()
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder(bytes);
        let message = match from.u8()? {
            1 => Self::Clone {
                tag: from.u64()?,
                ids_base: from.u32()?,
                ids_count: from.u32()?,
                cgroup: from.u32()? != 0,
                hostname: from.bytes()?.to_vec(),
            },
            3 => {
                let tag = from.u64()?;
                let mut ids = || Ok(Ids { user: from.u32()?, group: from.u32()? });
                let (disk, shown) = (ids()?, ids()?);
                Self::Map { tag, ids: IdsShown { from: disk, to: shown, count: from.u32()? } }
            }
            _ => return Err(Malformed),
        };
        from.end(message)
    }

    pub(crate) fn tag(&self) -> u64 {
        match self {
            Self::Clone { tag, .. } | Self::Map { tag, .. } => *tag,
        }
    }
}

/// The spawner's answer. Beside it, unless it failed, the descriptor of the process or of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spawned {
    pub(crate) tag: u64,
    pub(crate) failure: Option<Failure>,
}

impl Spawned {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let failure = self.failure.unwrap_or(Failure { step: Step::Clone, errno: 0 });
        Encoder::kind(2).u64(self.tag).u32(failure.step as u32).u32(failure.errno as u32).done()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder(bytes);
        if from.u8()? != 2 {
            return Err(Malformed);
        }
        let tag = from.u64()?;
        let failure = Failure { step: Step::from_number(from.u32()?)?, errno: from.u32()? as i32 };
        from.end(Self { tag, failure: (failure.errno != 0).then_some(failure) })
    }
}

macro_rules! steps {
    ($($name:ident = $text:literal,)*) => {
        /// What was being done when the kernel said no. The text goes into the error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Step { $($name,)* }
        impl Step {
            const ALL: &[Step] = &[$(Step::$name,)*];
            pub(crate) fn text(self) -> &'static str {
                match self { $(Step::$name => $text,)* }
            }
            fn from_number(number: u32) -> Result<Self> {
                Self::ALL.get(number as usize).copied().ok_or(Malformed)
            }
        }
    };
}

steps! {
    Clone = "making the namespaces",
    IdMap = "writing the id map",
    MountIds = "mapping the ids of a layer",
    Request = "reading the request",
    BecomeRoot = "becoming root inside",
    Attach = "attaching a layer",
    Overlay = "mounting the overlay",
    View = "mounting a view",
    ReadOnly = "making the root read-only",
    Proc = "mounting a fresh /proc",
    Mask = "masking a part of /proc",
    Dev = "making /dev",
    Pivot = "changing the root",
    Network = "bringing the loopback up",
    Hostname = "setting the host name",
    Cgroup = "entering the cgroup namespace",
    Walls = "raising the walls",
    Session = "starting a session",
    Terminal = "taking the terminal",
    Descriptors = "placing the descriptors",
    Identity = "becoming the user",
    Workdir = "entering the working directory",
    Exec = "starting the program",
    Fork = "making the process",
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) errno: i32,
}

// ── server → init ────────────────────────────────────────────────────────────────────────────────────────────────────

/// Where a mount of a new sandbox goes. Its descriptor travels beside the message, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The sandbox's own directory: holds the upper and work directories of all its overlays.
    Own,
    /// A read-only layer of overlay number `overlay`; the highest layer comes first.
    Lower { overlay: u32 },
    /// A directory or file of the host, or a layer, seen at this path inside.
    View { at: Vec<u8>, directory: bool },
}

/// What init makes of itself: said once, before anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetupPlan {
    /// Where each overlay is mounted inside; the first is the root.
    pub(crate) overlays: Vec<Vec<u8>>,
    pub(crate) mounts: Vec<Place>,
    /// Writes need not reach the disk: the sandbox ends with its owner.
    pub(crate) volatile: bool,
    pub(crate) sudo: bool,
    /// There where the root can only be read: the directories inside that can be written all the same.
    pub(crate) writable: Option<Vec<Vec<u8>>>,
    /// Bytes that `/dev/shm` takes: they are memory, and a full one must leave some for the commands that empty it.
    pub(crate) shared_memory: u64,
}

impl SetupPlan {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::kind(13).list(&self.overlays).u32(self.mounts.len() as u32);
        for place in &self.mounts {
            out = match place {
                Place::Own => out.u32(0).u32(0).bytes(b""),
                Place::Lower { overlay } => out.u32(1).u32(*overlay).bytes(b""),
                Place::View { at, directory } => out.u32(2).u32(u32::from(*directory)).bytes(at),
            };
        }
        let read_only = self.writable.is_some();
        let flags = u32::from(self.volatile) | u32::from(self.sudo) << 1 | u32::from(read_only) << 2;
        out.u32(flags).u64(self.shared_memory).list(self.writable.as_deref().unwrap_or_default()).done()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder(bytes);
        if from.u8()? != 13 {
            return Err(Malformed);
        }
        let overlays = from.list(4, |from| Ok(from.bytes()?.to_vec()))?;
        let mounts = from.list(12, |from| {
            let (kind, number, at) = (from.u32()?, from.u32()?, from.bytes()?);
            match kind {
                0 => Ok(Place::Own),
                1 => Ok(Place::Lower { overlay: number }),
                2 => Ok(Place::View { at: at.to_vec(), directory: number != 0 }),
                _ => Err(Malformed),
            }
        })?;
        let flags = from.u32()?;
        let shared_memory = from.u64()?;
        let writable = from.list(4, |from| Ok(from.bytes()?.to_vec()))?;
        let writable = (flags & 4 != 0).then_some(writable);
        from.end(Self { overlays, mounts, volatile: flags & 1 != 0, sudo: flags & 2 != 0, writable, shared_memory })
    }
}

/// Whether the commands of a sandbox stand still, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stillness {
    Going,
    /// Until somebody lets them go on.
    Paused,
    /// For the time of a snapshot: a server that comes back lets them go on.
    Held,
}

impl Stillness {
    fn from_number(number: u32) -> Result<Self> {
        [Self::Going, Self::Paused, Self::Held].get(number as usize).copied().ok_or(Malformed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToInit<'a> {
    /// Descriptors beside it: stdin unless absent, stdout, stderr; or the terminal alone. Then what is kept, if it is: the
    /// output so far, the other ends of stdout and stderr; or both ends of the terminal's pipe and its master; then that of
    /// stdin. A long one travels in a memory file (see [`LONG`]).
    Exec(&'a [u8]),
    Signal {
        exec: u64,
        signal: u32,
        tree: bool,
    },
    /// An unconnected TCP socket of the sandbox's network.
    Socket {
        tag: u64,
        v6: bool,
    },
    /// The commands stand still from here on, or go on: no time passes for them in between.
    Still(Stillness),
    /// Outlive the server. Beside it: where the next one will knock, and the lock of the range of ids.
    Keep {
        token: u128,
    },
    /// The first word of a server that comes back.
    Hello {
        protocol: u32,
        token: u128,
    },
    /// No more input comes.
    CloseInput {
        exec: u64,
    },
    /// Nobody will ask what became of it.
    Forget {
        exec: u64,
    },
    /// Ends every process of the sandbox but init.
    EndAll,
}

/// Announces that the message proper is the content of the memory file that is the first descriptor.
pub(crate) const LONG: &[u8] = &[19];

/// The longest message that travels so: more than any kernel takes as a command line.
pub(crate) const MAX_LONG: usize = 8 * 1024 * 1024;

impl<'a> ToInit<'a> {
    pub(crate) fn signal(exec: u64, signal: u32, tree: bool) -> Vec<u8> {
        Encoder::kind(11).u64(exec).u32(signal).u32(u32::from(tree)).done()
    }
    pub(crate) fn socket(tag: u64, v6: bool) -> Vec<u8> {
        Encoder::kind(12).u64(tag).u32(u32::from(v6)).done()
    }
    pub(crate) fn still(stillness: Stillness) -> Vec<u8> {
        Encoder::kind(14).u32(stillness as u32).done()
    }
    pub(crate) fn keep(token: u128) -> Vec<u8> {
        Encoder::kind(15).u128(token).done()
    }
    pub(crate) fn hello(protocol: u32, token: u128) -> Vec<u8> {
        Encoder::kind(16).u32(protocol).u128(token).done()
    }
    pub(crate) fn close_input(exec: u64) -> Vec<u8> {
        Encoder::kind(17).u64(exec).done()
    }
    pub(crate) fn forget(exec: u64) -> Vec<u8> {
        Encoder::kind(18).u64(exec).done()
    }
    pub(crate) fn end_all() -> Vec<u8> {
        Encoder::kind(9).done()
    }
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut from = Decoder(bytes);
        match from.u8()? {
            10 => Ok(Self::Exec(from.0)),
            11 => {
                let (exec, signal, tree) = (from.u64()?, from.u32()?, from.u32()? != 0);
                from.end(Self::Signal { exec, signal, tree })
            }
            12 => {
                let (tag, v6) = (from.u64()?, from.u32()? != 0);
                from.end(Self::Socket { tag, v6 })
            }
            14 => {
                let stillness = Stillness::from_number(from.u32()?)?;
                from.end(Self::Still(stillness))
            }
            9 => from.end(Self::EndAll),
            15 => {
                let token = from.u128()?;
                from.end(Self::Keep { token })
            }
            16 => {
                let (protocol, token) = (from.u32()?, from.u128()?);
                from.end(Self::Hello { protocol, token })
            }
            17 => {
                let exec = from.u64()?;
                from.end(Self::CloseInput { exec })
            }
            18 => {
                let exec = from.u64()?;
                from.end(Self::Forget { exec })
            }
            _ => Err(Malformed),
        }
    }
}

/// A command as init runs it: everything is decided, nothing is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExecPlan<'a> {
    pub(crate) exec: u64,
    pub(crate) id: u128,
    /// How many bytes of its output are kept by whoever reads it; zero: init keeps nothing of this command.
    pub(crate) kept: u64,
    /// Ended ones that nobody asks for any more: told on this occasion, since each message wakes init.
    pub(crate) forgotten: Vec<u64>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) terminal: bool,
    pub(crate) stdin: bool,
    /// Zero: none.
    pub(crate) timeout_ns: u64,
    /// How many files a process of it may have open. Zero: as many as init may give.
    pub(crate) open_files: u32,
    pub(crate) cwd: &'a CStr,
    /// Tried in turn until one is there.
    pub(crate) programs: Vec<&'a CStr>,
    pub(crate) argv: Vec<&'a CStr>,
    pub(crate) env: Vec<&'a CStr>,
}

impl<'a> ExecPlan<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::kind(10).u64(self.exec).u128(self.id).u64(self.kept).u32(self.forgotten.len() as u32);
        for exec in &self.forgotten {
            out = out.u64(*exec);
        }
        out = out.u32(self.uid).u32(self.gid).u32(self.groups.len() as u32);
        for group in &self.groups {
            out = out.u32(*group);
        }
        out.0.extend([u8::from(self.terminal), u8::from(self.stdin)]);
        out = out.u64(self.timeout_ns).u32(self.open_files).bytes(self.cwd.to_bytes_with_nul());
        for list in [&self.programs, &self.argv, &self.env] {
            out = out.u32(list.len() as u32);
            for text in list {
                out = out.bytes(text.to_bytes_with_nul());
            }
        }
        out.done()
    }

    pub(crate) fn decode(body: &'a [u8]) -> Result<Self> {
        let mut from = Decoder(body);
        let (exec, id, kept, forgotten) = (from.u64()?, from.u128()?, from.u64()?, from.list(8, Decoder::u64)?);
        let (uid, gid) = (from.u32()?, from.u32()?);
        let groups = from.list(4, Decoder::u32)?;
        let (terminal, stdin) = (from.bool()?, from.bool()?);
        let (timeout_ns, open_files, cwd) = (from.u64()?, from.u32()?, from.text()?);
        let (programs, argv, env) =
            (from.list(4, Decoder::text)?, from.list(4, Decoder::text)?, from.list(4, Decoder::text)?);
        if programs.is_empty() || argv.is_empty() {
            return Err(Malformed);
        }
        from.end(Self {
            exec,
            id,
            kept,
            forgotten,
            uid,
            gid,
            groups,
            terminal,
            stdin,
            timeout_ns,
            open_files,
            cwd,
            programs,
            argv,
            env,
        })
    }

    /// How many descriptors beside it are the command's.
    pub(crate) fn descriptors(&self) -> usize {
        if self.terminal { 1 } else { 2 + usize::from(self.stdin) }
    }

    /// How many are init's to keep.
    pub(crate) fn kept_descriptors(&self) -> usize {
        match (self.kept, self.terminal) {
            (0, _) => 0,
            (_, true) => 4,
            (_, false) => 3 + usize::from(self.stdin),
        }
    }
}

// ── init → server ────────────────────────────────────────────────────────────────────────────────────────────────────

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FromInit {
    /// Set up. Beside it: the root directory and the directory of the terminals.
    Ready {
        protocol: u32,
    },
    SetupFailed(Failure),
    Started {
        exec: u64,
        pid: u32,
    },
    NotStarted {
        exec: u64,
        failure: Failure,
    },
    Exited {
        exec: u64,
        ended: Ended,
    },
    /// The descriptor is beside it unless there is an errno.
    Socket {
        tag: u64,
        errno: u32,
    },
    /// To a server that comes back. Beside it: the root directory, the directory of the terminals, the lock of the range of
    /// ids, and a file with the ids that were used. As many [`KeptExec`] follow as it says.
    Welcome {
        protocol: u32,
        stillness: Stillness,
        /// The last number that a command had.
        last: u64,
        execs: u32,
    },
    Kept(KeptExec),
}

/// A command as a server finds it that comes back. Beside it: its output so far, then what is open of: stdout, stderr, the
/// terminal's pipe; the pipe's other end and the terminal's master; its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptExec {
    pub(crate) exec: u64,
    pub(crate) id: u128,
    /// As the sandbox numbers it.
    pub(crate) pid: u32,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    pub(crate) terminal: bool,
    pub(crate) master: bool,
    pub(crate) stdin: bool,
    pub(crate) ended: Option<Ended>,
}

impl KeptExec {
    /// What the descriptors beside it are of.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = FileType> + use<> {
        let (pipe, device) = (FileType::Fifo, FileType::CharacterDevice);
        let pipes = [self.stdout, self.stderr, self.terminal, self.master].map(|is_there| (is_there, pipe));
        let rest = [(self.master, device), (self.stdin, pipe)];
        let all = [(true, FileType::RegularFile)].into_iter().chain(pipes).chain(rest);
        all.filter_map(|(is_there, kind)| is_there.then_some(kind))
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// As wait reports it.
    pub(crate) status: u32,
    pub(crate) timed_out: bool,
    pub(crate) wall_ns: u64,
    pub(crate) cpu_us: u64,
    pub(crate) peak_kib: u64,
}

impl Ended {
    fn encode(&self, out: Encoder) -> Encoder {
        let out = out.u32(self.status).u32(u32::from(self.timed_out));
        out.u64(self.wall_ns).u64(self.cpu_us).u64(self.peak_kib)
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let (status, timed_out) = (from.u32()?, from.u32()? != 0);
        Ok(Self { status, timed_out, wall_ns: from.u64()?, cpu_us: from.u64()?, peak_kib: from.u64()? })
    }
}

impl FromInit {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match *self {
            Self::Ready { protocol } => Encoder::kind(20).u32(protocol).done(),
            Self::SetupFailed(failure) => Encoder::kind(21).u32(failure.step as u32).u32(failure.errno as u32).done(),
            Self::Started { exec, pid } => Encoder::kind(22).u64(exec).u32(pid).done(),
            Self::NotStarted { exec, failure } => {
                Encoder::kind(23).u64(exec).u32(failure.step as u32).u32(failure.errno as u32).done()
            }
            Self::Exited { exec, ended } => ended.encode(Encoder::kind(24).u64(exec)).done(),
            Self::Socket { tag, errno } => Encoder::kind(25).u64(tag).u32(errno).done(),
            Self::Welcome { protocol, stillness, last, execs } => {
                Encoder::kind(26).u32(protocol).u32(stillness as u32).u64(last).u32(execs).done()
            }
            Self::Kept(KeptExec { exec, id, pid, stdout, stderr, terminal, master, stdin, ended }) => {
                let open = [stdout, stderr, terminal, master, stdin, ended.is_some()];
                let open = open.iter().rev().fold(0, |bits, bit| bits << 1 | u32::from(*bit));
                let out = Encoder::kind(27).u64(exec).u128(id).u32(pid).u32(open);
                match ended {
                    Some(ended) => ended.encode(out).done(),
                    None => out.done(),
                }
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder(bytes);
        let failure =
            |from: &mut Decoder<'_>| Ok(Failure { step: Step::from_number(from.u32()?)?, errno: from.u32()? as i32 });
        let message = match from.u8()? {
            20 => Self::Ready { protocol: from.u32()? },
            21 => Self::SetupFailed(failure(&mut from)?),
            22 => Self::Started { exec: from.u64()?, pid: from.u32()? },
            23 => Self::NotStarted { exec: from.u64()?, failure: failure(&mut from)? },
            24 => Self::Exited { exec: from.u64()?, ended: Ended::decode(&mut from)? },
            25 => Self::Socket { tag: from.u64()?, errno: from.u32()? },
            26 => {
                let (protocol, stillness) = (from.u32()?, Stillness::from_number(from.u32()?)?);
                Self::Welcome { protocol, stillness, last: from.u64()?, execs: from.u32()? }
            }
            27 => {
                let (exec, id, pid, open) = (from.u64()?, from.u128()?, from.u32()?, from.u32()?);
                let is = |bit: u32| open & (1 << bit) != 0;
                let ended = if is(5) { Some(Ended::decode(&mut from)?) } else { None };
                Self::Kept(KeptExec {
                    exec,
                    id,
                    pid,
                    stdout: is(0),
                    stderr: is(1),
                    terminal: is(2),
                    master: is(3),
                    stdin: is(4),
                    ended,
                })
            }
            _ => return Err(Malformed),
        };
        from.end(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn setup() -> SetupPlan {
        SetupPlan {
            overlays: vec![b"/".to_vec(), b"/usr".to_vec()],
            mounts: vec![
                Place::Own,
                Place::Lower { overlay: 1 },
                Place::View { at: b"/mnt".to_vec(), directory: true },
            ],
            shared_memory: 1 << 33,
            volatile: true,
            sudo: false,
            writable: Some(vec![b"/workspace".to_vec()]),
        }
    }

    fn plan() -> ExecPlan<'static> {
        ExecPlan {
            exec: 3,
            id: 1 << 100,
            kept: 4096,
            forgotten: vec![3, 1 << 40],
            uid: 1000,
            gid: 1000,
            groups: vec![4, 5],
            terminal: false,
            stdin: true,
            timeout_ns: 9,
            open_files: 99,
            cwd: c"/home",
            programs: vec![c"/bin/bash", c"/bin/sh"],
            argv: vec![c"sh", c"-c", c""],
            env: vec![c"A=1"],
        }
    }

    #[test]
    fn what_is_said_is_what_is_heard() {
        assert_eq!(SetupPlan::decode(&setup().encode()), Ok(setup()));
        for said in [
            ToSpawner::Clone { tag: 7, ids_base: 100, ids_count: 65536, cgroup: true, hostname: b"cabana".to_vec() },
            ToSpawner::Map {
                tag: 8,
                ids: IdsShown { from: Ids { user: 1, group: 2 }, to: Ids { user: 3, group: 4 }, count: 5 },
            },
        ] {
            assert_eq!(ToSpawner::decode(&said.encode()), Ok(said));
        }
        for failure in [None, Some(Failure { step: Step::Overlay, errno: 5 })] {
            let said = Spawned { tag: 1, failure };
            assert_eq!(Spawned::decode(&said.encode()), Ok(said));
        }
        let bytes = plan().encode();
        let Ok(ToInit::Exec(body)) = ToInit::decode(&bytes) else { panic!("an exec") };
        assert_eq!(ExecPlan::decode(body), Ok(plan()));
        assert_eq!(
            ToInit::decode(&ToInit::signal(1, 15, true)),
            Ok(ToInit::Signal { exec: 1, signal: 15, tree: true })
        );
        for stillness in [Stillness::Going, Stillness::Paused, Stillness::Held] {
            assert_eq!(ToInit::decode(&ToInit::still(stillness)), Ok(ToInit::Still(stillness)));
        }
        assert_eq!(ToInit::decode(&ToInit::socket(8, false)), Ok(ToInit::Socket { tag: 8, v6: false }));
        let (token, exec) = (u128::MAX - 1, 5);
        assert_eq!(ToInit::decode(&ToInit::keep(token)), Ok(ToInit::Keep { token }));
        assert_eq!(ToInit::decode(&ToInit::hello(7, token)), Ok(ToInit::Hello { protocol: 7, token }));
        assert_eq!(ToInit::decode(&ToInit::close_input(exec)), Ok(ToInit::CloseInput { exec }));
        assert_eq!(ToInit::decode(&ToInit::forget(exec)), Ok(ToInit::Forget { exec }));
        let failure = Failure { step: Step::Workdir, errno: 2 };
        let ended = Ended { status: 256, timed_out: true, wall_ns: 3, cpu_us: 4, peak_kib: 5 };
        let kept = KeptExec {
            exec,
            id: 1 << 90,
            pid: 6,
            stdout: true,
            stderr: false,
            terminal: false,
            master: false,
            stdin: true,
            ended: None,
        };
        for said in [
            FromInit::Ready { protocol: PROTOCOL },
            FromInit::SetupFailed(failure),
            FromInit::Started { exec: 1, pid: 2 },
            FromInit::NotStarted { exec: 1, failure },
            FromInit::Exited { exec: 1, ended },
            FromInit::Socket { tag: 1, errno: 0 },
            FromInit::Welcome { protocol: PROTOCOL, stillness: Stillness::Held, last: 9, execs: 3 },
            FromInit::Kept(kept),
            FromInit::Kept(KeptExec { ended: Some(ended), terminal: true, master: true, stdout: false, ..kept }),
        ] {
            assert_eq!(FromInit::decode(&said.encode()), Ok(said));
        }
    }

    #[test]
    fn a_message_cut_anywhere_is_malformed() {
        let whole = setup().encode();
        for cut in 0..whole.len() {
            assert_eq!(SetupPlan::decode(&whole[..cut]), Err(Malformed), "cut at {cut}");
        }
        let whole = plan().encode();
        for cut in 1..whole.len() {
            assert_eq!(ExecPlan::decode(&whole[1..cut]), Err(Malformed), "cut at {cut}");
        }
    }

    #[test]
    fn a_huge_count_allocates_nothing() {
        let mut bytes = vec![13];
        bytes.extend(u32::MAX.to_le_bytes());
        assert_eq!(SetupPlan::decode(&bytes), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..30) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() { *first = kind; }
            let _ = (SetupPlan::decode(&bytes), ToSpawner::decode(&bytes), Spawned::decode(&bytes), ToInit::decode(&bytes), FromInit::decode(&bytes), ExecPlan::decode(&bytes));
        }

        #[test]
        fn a_changed_byte_never_panics(at in 0usize..200, byte in any::<u8>()) {
            for mut bytes in [setup().encode(), plan().encode()] {
                let at = at % bytes.len();
                bytes[at] = byte;
                let _ = (SetupPlan::decode(&bytes), ExecPlan::decode(&bytes[1..]));
            }
        }
    }
}
