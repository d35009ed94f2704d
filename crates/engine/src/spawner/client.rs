//! The server's side of the spawner: starts it, asks it, replaces it.

use std::{
    collections::HashMap,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use cabana_guest::IdMap;
use rustix::fs::{MemfdFlags, SealFlags};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::{
    SPAWNER_NAME,
    cgroup::Controllers,
    channel::Channel,
    wire::{Failure, IdsShown, Spawned, ToSpawner},
};

pub(crate) enum LaunchError {
    Refused(Failure),
    /// None has answered anything before it ended: this host lacks what it needs. What, it said on standard error.
    NeverWorked(String),
    Unreachable(io::Error),
}

impl From<io::Error> for LaunchError {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error)
    }
}

pub(crate) struct Spawner {
    /// What is executed: the binary itself, unless a test names its helper.
    program: PathBuf,
    /// Made at the first start and kept: a replacement must be the same program, whatever happened to the file.
    image: Mutex<Option<Arc<OwnedFd>>>,
    current: tokio::sync::Mutex<Option<Arc<Connection>>>,
    controllers: Option<Controllers>,
    tasks: TaskTracker,
    next_tag: AtomicU64,
    closed: AtomicBool,
    /// Whether one has ever answered: then this host has what they need.
    worked: Arc<AtomicBool>,
}

/// One life of the spawner process.
struct Connection {
    requests: Requests,
    child: Mutex<Child>,
}

/// What a spawner is asked, and answers: in any order, by the tags of the requests.
pub(super) struct Requests {
    channel: Channel,
    waiting: Mutex<Waiting>,
    worked: Arc<AtomicBool>,
}

#[derive(Default)]
struct Waiting {
    closed: bool,
    answers: HashMap<u64, oneshot::Sender<(Spawned, Option<OwnedFd>)>>,
}

impl Spawner {
    pub(crate) fn new(program: PathBuf, controllers: Option<Controllers>, tasks: TaskTracker) -> Self {
        Self {
            program,
            controllers,
            image: Mutex::default(),
            current: tokio::sync::Mutex::default(),
            tasks,
            next_tag: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            worked: Arc::default(),
        }
    }

    /// An init in namespaces of its own, which waits for its plan. Gives its pidfd.
    pub(crate) async fn clone_init(
        &self,
        ids: IdMap,
        control: BorrowedFd<'_>,
        cgroup: Option<BorrowedFd<'_>>,
    ) -> Result<OwnedFd, LaunchError> {
        let asked = ToSpawner::Clone {
            tag: self.next_tag.fetch_add(1, Ordering::Relaxed),
            ids_base: ids.base,
            ids_count: ids.count,
            cgroup: cgroup.is_some(),
            hostname: b"cabana".to_vec(),
        };
        let fds: Vec<BorrowedFd<'_>> = [Some(control), cgroup].into_iter().flatten().collect();
        self.ask(&asked, &fds).await
    }

    /// A user namespace that maps ids for mounts.
    pub(crate) async fn map(&self, ids: IdsShown) -> Result<OwnedFd, LaunchError> {
        self.ask(&ToSpawner::Map { tag: self.next_tag.fetch_add(1, Ordering::Relaxed), ids }, &[]).await
    }

    async fn ask(&self, asked: &ToSpawner, fds: &[BorrowedFd<'_>]) -> Result<OwnedFd, LaunchError> {
        self.connection().await?.requests.ask(asked, fds).await
    }

    /// The living spawner, or a new one.
    async fn connection(&self) -> io::Result<Arc<Connection>> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| connection.requests.is_open()) {
            return Ok(connection.clone());
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(io::Error::other("the engine is closed"));
        }
        let (ours, theirs) = crate::kernel::fdpass::pair()?;
        let image = self.image()?;
        let mut child = start(&image, theirs)?;
        let counted = self.controllers.as_ref().map_or(Ok(()), |all| all.count_processes_of(child.id()));
        if let Err(error) = counted {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        let requests = Requests::new(ours, self.worked.clone())?;
        let connection = Arc::new(Connection { requests, child: Mutex::new(child) });
        self.tasks.spawn(accompany(connection.clone()));
        *current = Some(connection.clone());
        Ok(connection)
    }

    fn image(&self) -> io::Result<Arc<OwnedFd>> {
        let mut image = self.image.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = image.as_ref() {
            return Ok(image.clone());
        }
        let made = Arc::new(sealed_copy(&self.program)?);
        *image = Some(made.clone());
        Ok(made)
    }

    /// Ends the spawner; sandboxes that it made do not notice.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(connection) = self.current.lock().await.take() {
            connection.requests.channel.close();
        }
    }
}

const IMAGE_MODE: rustix::fs::Mode = rustix::fs::Mode::RUSR.union(rustix::fs::Mode::XUSR);

/// The program in memory that nobody can change: a guest that got at init's executable could otherwise overwrite the
/// host's binary through it.
fn sealed_copy(program: &std::path::Path) -> io::Result<OwnedFd> {
    let mut from = std::fs::File::open(program)?;
    let memory = rustix::fs::memfd_create(c"cabana", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut into = std::fs::File::from(memory);
    io::copy(&mut from, &mut into)?;
    // It is one file to all sandboxes: nobody inside may run it, nor leave attributes on it, which no seal forbids.
    rustix::fs::fchmod(&into, IMAGE_MODE)?;
    seal(&into)?;
    Ok(into.into())
}

/// The kernel refuses as long as anybody holds a page of it, which it does itself when it moves memory about. It waits
/// a while before it refuses, so there is no need to wait here.
fn seal(file: &std::fs::File) -> io::Result<()> {
    const TRIES: u32 = 20;
    /// That it can be executed stays, too: where there is a single id, a guest owns the file. Since Linux 6.3.
    const EXEC: SealFlags = SealFlags::from_bits_retain(0x20);
    let mut seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | EXEC;
    let mut tried = 0;
    loop {
        match rustix::fs::fcntl_add_seals(file, seals) {
            Err(rustix::io::Errno::BUSY) if tried < TRIES => tried += 1,
            Err(rustix::io::Errno::INVAL) if seals.contains(EXEC) => seals.remove(EXEC),
            done => return Ok(done?),
        }
    }
}

fn start(image: &OwnedFd, socket: OwnedFd) -> io::Result<Child> {
    use std::os::fd::AsRawFd;
    // Where there is one id alone it is a guest's too, who may have closed it.
    rustix::fs::fchmod(image, IMAGE_MODE)?;
    // std uses posix_spawn here: nothing of this process runs in the child, and only the three standard descriptors are
    // passed on, since every other is close-on-exec.
    Command::new(format!("/proc/self/fd/{}", image.as_fd().as_raw_fd()))
        .arg0(SPAWNER_NAME)
        .env_clear()
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
}

impl Requests {
    pub(super) fn new(socket: OwnedFd, worked: Arc<AtomicBool>) -> io::Result<Self> {
        Ok(Self { channel: Channel::new(socket)?, waiting: Mutex::default(), worked })
    }

    pub(super) async fn ask(&self, asked: &ToSpawner, fds: &[BorrowedFd<'_>]) -> Result<OwnedFd, LaunchError> {
        let (answer, answered) = oneshot::channel();
        if !self.expect(asked.tag(), answer) {
            return Err(io::Error::other("the spawner has ended").into());
        }
        if self.channel.send(&asked.encode(), fds).await.is_err() {
            return Err(self.lost());
        }
        let Ok((spawned, fd)) = answered.await else { return Err(self.lost()) };
        match (spawned.failure, fd) {
            (None, Some(fd)) => Ok(fd),
            (Some(failure), _) => Err(LaunchError::Refused(failure)),
            (None, None) => Err(io::Error::other("the spawner's answer lacks its descriptor").into()),
        }
    }

    /// Until the spawner ends, or says what cannot be understood.
    pub(super) async fn read_answers(&self) {
        while let Ok(Some((bytes, fds))) = self.channel.receive().await {
            let Ok(spawned) = Spawned::decode(&bytes) else { break };
            self.worked.store(true, Ordering::Relaxed);
            let answer = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).answers.remove(&spawned.tag);
            if let Some(answer) = answer {
                let _ = answer.send((spawned, fds.into_iter().next()));
            }
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.closed = true;
        waiting.answers.clear(); // whoever waits hears that nobody will answer
        drop(waiting);
        self.channel.close();
    }

    fn is_open(&self) -> bool {
        !self.waiting.lock().unwrap_or_else(PoisonError::into_inner).closed
    }

    fn lost(&self) -> LaunchError {
        match self.worked.load(Ordering::Relaxed) {
            true => io::Error::other("the spawner ended before it answered").into(),
            false => LaunchError::NeverWorked("its spawner could not start, and said why on standard error".to_owned()),
        }
    }

    fn expect(&self, tag: u64, answer: oneshot::Sender<(Spawned, Option<OwnedFd>)>) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.closed {
            waiting.answers.insert(tag, answer);
        }
        !waiting.closed
    }
}

/// Through its life, and ends it.
async fn accompany(connection: Arc<Connection>) {
    connection.requests.read_answers().await;
    let mut child = connection.child.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = child.kill();
    let _ = child.wait();
}
