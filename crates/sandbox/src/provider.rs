//! Where sandboxes live, and one of them.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait; // 13 ns a call, against 500 µs for an exec
use bytes::Bytes;
use futures_util::stream::BoxStream; // not `async fn next`: a stream keeps its half-done read when a select! drops it
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    Base, Capabilities, Defaults, ExecId, ExecSpec, Files, LayerId, Limits, NetworkPolicy, Overrides, Position,
    Process, Reattached, Result, SandboxId, SandboxSpec, SnapshotId, Template, User, View, VolumeId,
};

pub type Stream<T> = BoxStream<'static, Result<T>>;

pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

#[async_trait]
pub trait Provider: Send + Sync {
    fn capabilities(&self) -> Capabilities;
    /// Whether a sandbox with this policy could reach this machine itself, or networks that only it is in. Whoever cannot tell
    /// says so of every list.
    fn reaches_inside(&self, network: &NetworkPolicy) -> Result<bool> {
        Ok(!matches!(network, NetworkPolicy::Off | NetworkPolicy::Public | NetworkPolicy::PublicBut { .. }))
    }
    /// There already, running: that one. There already, stopped: an error, since it has another spec: `start` it.
    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>>;
    /// After a restart: what became of it.
    async fn attach(&self, id: &SandboxId) -> Result<Found>;
    /// From stopped or paused; running already is Ok.
    async fn start(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>>;
    /// Memory is kept.
    async fn pause(&self, id: &SandboxId) -> Result<()>;
    /// Files are kept. Stopped already is Ok.
    async fn stop(&self, id: &SandboxId) -> Result<()>;
    /// Absent is Ok.
    async fn destroy(&self, id: &SandboxId) -> Result<()>;
    /// Only our own: what reconcile believes.
    async fn list(&self) -> Result<Stream<(SandboxId, State)>>;
    /// Its files as they are at one moment, for `create` to begin from. It outlives the sandbox, which goes on as it was.
    /// There already: as it is.
    async fn snapshot(&self, id: &SandboxId, name: SnapshotId) -> Result<Base>;
    /// Also those that are damaged.
    async fn snapshots(&self) -> Result<Stream<SnapshotId>>;
    /// What was made from it stays. Absent is Ok.
    async fn remove_snapshot(&self, name: SnapshotId) -> Result<()>;
    /// By name. A damaged one comes with its error, and hides no other.
    async fn templates(&self) -> Result<Vec<(String, Result<Template>)>>;
    async fn template(&self, name: &str) -> Result<Template>;
    /// From a tar of a root file system, plain or packed with gzip or zstd. One that holds more than `most` bytes, once it is
    /// unpacked, is `TooLarge`. Whatever fails makes nothing; a name that is taken is `TemplateExists`.
    async fn add_template(&self, name: &str, wishes: &Overrides, most: u64, tar: Stream<Bytes>) -> Result<Template>;
    /// One that sandboxes were made from is `TemplateInUse`.
    async fn remove_template(&self, name: &str) -> Result<()>;
    /// What it sees from its next start on; of one that runs, from now on, as [`Sandbox::update`] does. So one whose views cannot
    /// be had any more has a way out.
    async fn set_views(&self, id: &SandboxId, views: &[View]) -> Result<()>;
    /// A directory that outlives the sandboxes which see it. There already is Ok.
    async fn make_volume(&self, name: VolumeId) -> Result<()>;
    async fn volumes(&self) -> Result<Stream<VolumeId>>;
    /// In bytes on the disk.
    async fn volume_usage(&self, name: VolumeId) -> Result<u64>;
    /// With all that is in it. Absent is Ok; one that is among the views of a sandbox is `VolumeInUse`.
    async fn remove_volume(&self, name: VolumeId) -> Result<()>;
    /// Gives the space back that nothing needs any more. False while something is being made that may need it: ask again.
    async fn tidy(&self) -> Result<bool>;
    /// What `tidy` would give back, once these templates and snapshots were gone: each by its name, with what it takes.
    async fn unused(&self, without: &[Base]) -> Result<Vec<(String, u64)>>;
    /// For the archive, in this provider's own format.
    async fn save(&self, id: &SandboxId) -> Result<Stream<Bytes>>;
    /// Makes a stopped one of what was saved. There already: an error. A stream that is not whole is `Archive`, and makes
    /// nothing. Says what of it the file system here cannot have.
    async fn restore(&self, id: &SandboxId, spec: &SandboxSpec, saved: Stream<Bytes>) -> Result<Vec<String>>;
    /// Its files are saved elsewhere: lets go of them, and keeps what they stand on. For everybody but `restore` and `destroy`
    /// it is absent then. One that is not stopped is refused; done already is Ok.
    async fn shelve(&self, id: &SandboxId) -> Result<()>;
    /// All persistent sandboxes, each as it is at one moment, with all templates and snapshots. In this provider's own format.
    /// What goes meanwhile may be in it or not. What cannot be saved keeps nothing else out, and is told.
    async fn save_all(&self, left_out: Tell) -> Result<Stream<Bytes>>;
    /// Into a provider that has nothing yet: every sandbox is stopped then. Says what was left out, and why. A stream that is
    /// not whole is `Archive`; what came before its damage may be there then.
    async fn restore_all(&self, saved: Stream<Bytes>) -> Result<Vec<String>>;
    /// There already: the body is not pulled. Content that does not match the id is `Archive`.
    async fn import(&self, layer: &LayerId, tar: Stream<Bytes>) -> Result<()>;
    /// One reader: the runtime.
    fn events(&self) -> Stream<(SandboxId, SandboxEvent)>;
}

/// Hears what is left out of something, and why.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

pub enum Found {
    Running(Arc<dyn Sandbox>),
    /// Its commands stand still. They can be found again, and nothing else can be asked of it.
    Paused(Arc<dyn Sandbox>),
    Stopped,
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    Paused,
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxEvent {
    /// It ended without being asked to.
    Died,
    OutOfMemory(Option<ExecId>),
    DiskFull,
    /// What lies below the sandbox's own layer is not what it was when the sandbox was made.
    BaseChanged {
        was: String,
        now: String,
    },
    Network {
        host: String,
        port: u16,
        allowed: bool,
        /// As it was written, or the mode where no rule spoke.
        rule: String,
        reason: String,
    },
}

#[async_trait]
pub trait Sandbox: Send + Sync {
    fn id(&self) -> &SandboxId;
    /// What its template gives: the default user, working directory and environment.
    fn defaults(&self) -> &Defaults;
    /// A second exec with one id is `Duplicate`, never a second run.
    async fn exec(&self, spec: ExecSpec) -> Result<Process>;
    async fn reattach(&self, id: &ExecId, from: Position) -> Result<Reattached>;
    /// Its outcome is recorded: let it go.
    async fn forget(&self, id: &ExecId) -> Result<()>;
    /// Those made by `exec` that still run; the pid as seen inside.
    async fn processes(&self) -> Result<Vec<(ExecId, u32)>>;
    /// No file operation without an identity; `None` is the default user.
    fn files(&self, user: Option<&User>) -> Arc<dyn Files>;
    /// The same with the rights that root inside has over files. What is made belongs to the user all the same.
    fn files_by_root(&self, user: Option<&User>) -> Arc<dyn Files>;
    /// A byte stream to a TCP port on its loopback.
    async fn connect(&self, port: u16) -> Result<Box<dyn Duplex>>;
    /// At run time, without making it again.
    async fn update(&self, wanted: Wanted) -> Result<()>;
    async fn usage(&self) -> Result<Usage>;
    /// What its own layer takes, and what the volumes take that it may write to. Its commands stand still where it takes long to find
    /// that out.
    async fn stored(&self) -> Result<StoredParts>;
    /// Ends its commands as at its own limit of the disk: there is no room for what they write. One that stands still writes nothing.
    async fn end_for_want_of_room(&self) -> Result<()>;
}

/// The whole wanted state, not a step to it.
#[derive(Clone, Debug)]
pub enum Wanted {
    Limits(Limits),
    Network(NetworkPolicy),
    Views(Vec<View>),
}

/// What files take of a disk, also those that have no name any more and are still open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    pub bytes: u64,
    pub inodes: u64,
}

/// What a sandbox takes of a disk, each part by itself: others may write to its volumes too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredParts {
    pub own: Stored,
    pub volumes: Vec<(VolumeId, Stored)>,
    /// Another number where it has run since.
    pub run: u64,
    /// It has run since this was measured, and it takes too long to find out what it takes now.
    pub is_late: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory: u64,
    pub cpu: Duration,
    pub disk: u64,
    pub pids: u32,
}
