//! One running sandbox as the server knows it: its init, its root, its commands.

mod users;

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use cabana_guest::{Account, IdMap, Rooted};
use cabana_sandbox::{
    Defaults, Error, Exit, Holder, Limits, NetworkPolicy, Place, Result, SandboxEvent, SandboxId, Status, TermSize,
};
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, ResolveFlags};
use tokio::{
    io::unix::AsyncFd,
    net::{TcpSocket, TcpStream},
    sync::{mpsc, oneshot, watch},
    task::spawn_blocking,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    cgroup::Cgroup,
    channel::Channel,
    disk::{Disk, StoredOnce},
    disk_rate::DiskRate,
    exec::{self, Execs, set_size},
    fault::{self, Point},
    freezer::{Freezer, Reason},
    greeting::Found,
    home::Owned,
    identity::Lease,
    kernel::{
        mounts, readiness,
        shortage::{is_shortage, told_apart},
        sys,
        thread_identity::ActingAs,
    },
    lane::Lane,
    left_behind::LeftBehind,
    network::{Namespace, Network, Outlet, Ways},
    open_files::{OpenFile, OpenFiles},
    output_memory::OutputMemory,
    output_rate::OutputRate,
    spool,
    uncharged::Uncharged,
    watch_time::WatchTime,
    wire::{Ended, Failure, FromInit, LONG, PROTOCOL, Stillness, ToInit},
};

/// The longest message that init takes from the socket itself.
const INLINE: usize = 8192;

/// How long init may take to answer what needs no waiting.
const ANSWER: Duration = Duration::from_secs(30);

/// How long a command that memory ran out for may take to end: then it is its own, and not somebody's in the sandbox.
const UNCLAIMED: Duration = Duration::from_secs(2);

/// How soon a lease that somebody has hold of is tried again.
const LEASE_RETRY: Duration = Duration::from_millis(10);

/// How often the commands of a sandbox are made to let go of what holds up this process's end.
const FREEING: usize = 20;

pub(crate) struct Live {
    pub(crate) id: SandboxId,
    /// Of what all sandboxes share.
    pub(crate) holder: Holder,
    pub(crate) defaults: Defaults,
    pub(crate) ids: IdMap,
    pub(crate) execs: Execs,
    pub(crate) tasks: TaskTracker,
    pub(crate) lane: Lane,
    pub(crate) walk_lane: Lane,
    pub(crate) output_rate: Arc<OutputRate>,
    pub(crate) output_memory: Arc<OutputMemory>,
    pub(crate) watch_time: WatchTime,
    pub(crate) left_behind: Arc<LeftBehind>,
    channel: Channel,
    pidfd: AsyncFd<OwnedFd>,
    /// Until the sandbox ends: a descriptor of the root keeps everything mounted.
    inside: Mutex<Option<Inside>>,
    /// What is in the hands of clients, which would keep it mounted just so.
    pub(crate) open_files: OpenFiles,
    sockets: Mutex<Vec<(u64, oneshot::Sender<io::Result<OwnedFd>>)>>,
    next_tag: AtomicU64,
    shell: OnceLock<&'static str>,
    /// Whether somebody asked for its end: then it did not die.
    asked: AtomicBool,
    ended: watch::Sender<bool>,
    holds: Mutex<Option<Holds>>,
    /// Whether it outlives us.
    kept: bool,
    left: CancellationToken,
    paused: AtomicBool,
    pub(crate) freezer: Freezer,
    /// As they were last asked for, and hold.
    limits: Mutex<Limits>,
    pub(crate) disk: Disk,
    pub(crate) disk_rate: DiskRate,
    pub(crate) stored: StoredOnce,
    network: tokio::sync::Mutex<Option<Network>>,
    /// Held by whoever changes what it is asked to be: the record and what is in force change together.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// How many processes ended for want of memory, as far as it was told, and by commands' own ends.
    told_ooms: AtomicU64,
    claimed_ooms: AtomicU64,
    watches_memory: AtomicBool,
    /// The commands that were ended for memory that no limit counts, by their numbers.
    ended_for_memory: Mutex<HashSet<u64>>,
    uncharged: Arc<Uncharged>,
    happened: mpsc::Sender<(SandboxId, SandboxEvent)>,
}

#[derive(Clone)]
struct Inside {
    root: Rooted,
    terminals: Arc<OwnedFd>,
}

/// What is the sandbox's alone, for as long as it lives here.
pub(crate) struct Holds {
    pub(crate) lease: Lease,
    pub(crate) home: Owned,
    /// Of all sandboxes that may live.
    pub(crate) place: Place,
}

/// What a new sandbox is made of.
pub(crate) struct Parts {
    pub(crate) id: SandboxId,
    pub(crate) holder: Holder,
    pub(crate) defaults: Defaults,
    pub(crate) limits: Limits,
    pub(crate) holds: Holds,
    pub(crate) kept: bool,
    /// Its own directory.
    pub(crate) own: PathBuf,
    /// Where its overlays are inside.
    pub(crate) overlays: Vec<Vec<u8>>,
    pub(crate) channel: Channel,
    pub(crate) pidfd: AsyncFd<OwnedFd>,
    pub(crate) tasks: TaskTracker,
    pub(crate) uncharged: Arc<Uncharged>,
    pub(crate) happened: mpsc::Sender<(SandboxId, SandboxEvent)>,
}

impl Parts {
    fn inside(&self, root: OwnedFd, terminals: OwnedFd) -> io::Result<Inside> {
        check_inside(&root, &terminals)?;
        let root = Rooted::of_sandbox(root, self.holds.lease.ids, self.overlays.iter().map(Vec::as_slice));
        Ok(Inside { root, terminals: Arc::new(terminals) })
    }
}

pub(crate) enum SetupError {
    Refused(Failure),
    Lost(io::Error),
}

impl Live {
    /// Waits for init to say that it is ready. If it never is, nothing of it is left, and what it held comes back.
    pub(crate) async fn new(parts: Parts) -> std::result::Result<Arc<Self>, (SetupError, Holds)> {
        match tokio::time::timeout(ANSWER, until_ready(&parts)).await {
            Ok(Ok(inside)) => Ok(Self::with(parts, inside)),
            failed => {
                end_of(&parts.pidfd).await;
                let error = match failed {
                    Ok(Err(error)) => error,
                    _ => SetupError::Lost(io::ErrorKind::TimedOut.into()),
                };
                Err((error, parts.holds))
            }
        }
    }

    fn with(parts: Parts, inside: Inside) -> Arc<Self> {
        let Parts {
            id, holder, defaults, limits, own, holds, kept, channel, pidfd, tasks, uncharged, happened, ..
        } = parts;
        let disk_rate = DiskRate::default();
        disk_rate.set(limits.io);
        Arc::new(Self {
            id,
            holder,
            defaults,
            ids: holds.lease.ids,
            execs: Execs::default(),
            tasks,
            lane: Lane::new(),
            walk_lane: Lane::of_walks(),
            output_rate: Arc::new(OutputRate::new(&limits)),
            output_memory: Arc::default(),
            watch_time: WatchTime::new(),
            left_behind: Arc::default(),
            channel,
            pidfd,
            inside: Mutex::new(Some(inside)),
            open_files: OpenFiles::default(),
            sockets: Mutex::default(),
            next_tag: AtomicU64::new(1),
            shell: OnceLock::new(),
            asked: AtomicBool::new(false),
            ended: watch::channel(false).0,
            told_ooms: AtomicU64::new(holds.lease.oom_kills()),
            claimed_ooms: AtomicU64::new(0),
            watches_memory: AtomicBool::new(false),
            ended_for_memory: Mutex::default(),
            uncharged,
            paused: AtomicBool::new(false),
            freezer: Freezer::new(holds.lease.cgroup.clone()),
            limits: Mutex::new(limits),
            disk: Disk::new(own),
            disk_rate,
            stored: StoredOnce::default(),
            network: tokio::sync::Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            holds: Mutex::new(Some(holds)),
            kept,
            left: CancellationToken::new(),
            happened,
        })
    }

    /// A sandbox that outlived its server, as its init tells of it.
    pub(crate) fn found(parts: Parts, found: Found) -> Result<Arc<Self>> {
        let Found { root, terminals, last, used, execs, .. } = found;
        let failed = |error: io::Error| Error::failed("taking the sandbox up again", error);
        let inside = parts.inside(root, terminals).map_err(failed)?;
        let live = Self::with(parts, inside);
        live.execs.found(last, used);
        for (kept, fds) in execs {
            let exit = kept.ended.map(|ended| live.exit_of(kept.exec, &ended));
            exec::take_up(&live, &kept, exit, fds).map_err(failed)?;
        }
        Ok(live)
    }

    /// Hears what init says until it ends. True when nobody had asked for the end.
    pub(crate) async fn listen(self: &Arc<Self>) -> bool {
        while let Some(received) = self.left.run_until_cancelled(self.channel.receive()).await {
            match received {
                Ok(Some((bytes, fds))) => match FromInit::decode(&bytes) {
                    Ok(message) => self.heard(message, fds),
                    Err(_) => break, // not our init any more
                },
                // Ours to have room for, and no fault of the sandbox. Nothing but sockets comes so.
                Err(error) if is_shortage(&error) => self.lose_sockets(&error),
                Ok(None) | Err(_) => break,
            }
        }
        if self.left.is_cancelled() {
            self.execs.leave().await;
            self.channel.close();
        } else {
            self.kill_now();
            drop(self.pidfd.readable().await);
        }
        self.inside.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.network.lock().await.take();
        self.execs.close();
        self.open_files.close_all();
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.ended.send_replace(true);
        !self.asked.load(Ordering::Acquire)
    }

    /// It is not known which of them it was.
    fn lose_sockets(&self, why: &io::Error) {
        for (_, waiting) in self.sockets.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ =
                waiting.send(Err(why.raw_os_error().map_or(io::ErrorKind::Other.into(), io::Error::from_raw_os_error)));
        }
    }

    /// Lets go of it: it lives on. Waits until nothing here has a hand in it.
    pub(crate) async fn leave(&self) {
        self.asked.store(true, Ordering::Release);
        self.left.cancel();
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    fn heard(self: &Arc<Self>, message: FromInit, fds: Vec<OwnedFd>) {
        match message {
            FromInit::Started { exec, pid } => {
                self.disk.touch();
                self.disk_rate.wake();
                self.uncharged.wake();
                self.execs.started(exec, Ok(pid));
            }
            FromInit::NotStarted { exec, failure } => self.execs.started(exec, Err(failure)),
            FromInit::Exited { exec, ended } => {
                let forgotten = self.execs.exited(exec, self.exit_of(exec, &ended));
                self.forget_inside(forgotten);
            }
            FromInit::Socket { tag, errno } => {
                let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(place) = sockets.iter().position(|(waiting, _)| *waiting == tag) else { return };
                let socket = match (errno, fds.into_iter().next()) {
                    (0, Some(socket)) => Ok(socket),
                    (errno, _) => Err(io::Error::from_raw_os_error(errno as i32)),
                };
                let _ = sockets.swap_remove(place).1.send(socket);
            }
            FromInit::Ready { .. } | FromInit::SetupFailed(_) | FromInit::Welcome { .. } | FromInit::Kept(_) => {}
        }
    }

    /// Init need not keep them either.
    fn forget_inside(self: &Arc<Self>, forgotten: Vec<u64>) {
        if forgotten.is_empty() || !self.kept {
            return;
        }
        let live = self.clone();
        self.tasks.spawn(async move {
            for exec in forgotten {
                let _ = live.send(&ToInit::forget(exec), &[]).await;
            }
        });
    }

    fn exit_of(&self, exec: u64, ended: &Ended) -> Exit {
        let status = match status_of(ended.status) {
            _ if ended.timed_out => Status::TimedOut,
            status => self.with_cause(status, exec),
        };
        let (wall, cpu) = (Duration::from_nanos(ended.wall_ns), Duration::from_micros(ended.cpu_us));
        Exit { status, wall, cpu, peak_rss: ended.peak_kib.saturating_mul(1024) }
    }

    /// A command that was killed, or whose last child was, may have been the kernel's choice when memory ran out: so it is
    /// taken if that happened since the command began, and no other command has been told so.
    fn with_cause(&self, status: Status, exec: u64) -> Status {
        const CHILD_WAS_KILLED: i32 = 128 + libc::SIGKILL;
        let killed = matches!(status, Status::Signal(libc::SIGKILL));
        if self.disk.has_ended(exec) && killed {
            return Status::DiskFull;
        }
        let Some((id, before)) = self.execs.began(exec) else { return status };
        if self.ended_for_memory.lock().unwrap_or_else(PoisonError::into_inner).remove(&exec) && killed {
            self.tell(SandboxEvent::OutOfMemory(Some(id)));
            return Status::OutOfMemory;
        }
        let kills = self.oom_kills();
        let told = self.claimed_ooms.load(Ordering::Acquire).max(before);
        if !(killed || status == Status::Code(CHILD_WAS_KILLED)) || kills <= told {
            return status;
        }
        self.claimed_ooms.store(told + 1, Ordering::Release); // there is one listener
        self.told_ooms.fetch_max(kills, Ordering::AcqRel);
        self.tell(SandboxEvent::OutOfMemory(Some(id)));
        if killed { Status::OutOfMemory } else { status }
    }

    /// Ends its commands: it has too much of what no limit counts.
    pub(crate) async fn end_for_memory(&self) {
        let numbers = self.execs.numbers();
        if numbers.is_empty() {
            self.tell(SandboxEvent::OutOfMemory(None)); // what a command has left runs on
        }
        self.ended_for_memory.lock().unwrap_or_else(PoisonError::into_inner).extend(numbers);
        let _ = self.send(&ToInit::end_all(), &[]).await; // if it is gone, so are they
    }

    /// How many processes ended for want of memory; none where it is not limited.
    pub(crate) fn oom_kills(&self) -> u64 {
        self.with_lease(Lease::oom_kills).unwrap_or(0)
    }

    /// Tells of processes that ended for want of memory though no command did. Ends with the sandbox.
    pub(crate) async fn watch_memory(self: Arc<Self>) {
        if self.watches_memory.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(Ok(notices)) = self.with_lease(|lease| lease.limiter.oom_notices()) else { return };
        let Ok(notices) = readiness::watch(notices) else { return };
        let mut ended = self.ended.subscribe();
        loop {
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => return,
                ready = notices.readable() => match ready {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => return,
                },
            }
            let _ = rustix::io::read(notices.get_ref(), &mut [0_u8; 4096]);
            // A sandbox that ends first is not waited out.
            let _ = tokio::time::timeout(UNCLAIMED, ended.wait_for(|ended| *ended)).await;
            let kills = self.oom_kills();
            if self.told_ooms.fetch_max(kills, Ordering::AcqRel) < kills {
                self.tell(SandboxEvent::OutOfMemory(None));
            }
        }
    }

    pub(crate) fn tell(&self, event: SandboxEvent) {
        let _ = self.happened.try_send((self.id.clone(), event));
    }

    /// Becomes true with its end.
    pub(crate) fn ends(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Whether nothing runs in it but init: until a command starts, nothing happens inside.
    pub(crate) fn is_empty(&self) -> bool {
        let commands = self.with_lease(|lease| lease.cgroup.as_ref().is_none_or(Cgroup::has_commands));
        self.execs.numbers().is_empty() && commands == Some(false)
    }

    /// Processor time of all that ever ran in it; `None` where nobody counts it.
    pub(crate) fn cpu_us(&self) -> Option<u64> {
        let cpu = self.with_lease(|lease| lease.cgroup.as_ref().map(Cgroup::cpu_us)).flatten();
        cpu.filter(|cpu| *cpu > 0) // init has used some
    }

    /// Its processes as the host numbers them; none where nobody knows them.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.with_lease(|lease| lease.cgroup.as_ref().map(Cgroup::pids)).flatten().unwrap_or_default()
    }

    /// Whether its own limit leaves no process to start.
    pub(crate) fn is_full_of_processes(&self) -> bool {
        self.with_lease(|lease| lease.limiter.is_full_of_processes()).unwrap_or(false)
    }

    /// Those of its commands alone.
    pub(crate) fn commands(&self) -> Vec<u32> {
        self.with_lease(|lease| lease.cgroup.as_ref().map(Cgroup::commands)).flatten().unwrap_or_default()
    }

    /// Ends it, and waits until nothing of it lives.
    pub(crate) async fn stop(&self) {
        self.asked.store(true, Ordering::Release);
        self.kill_now();
        let mut ended = self.ended.subscribe();
        // Who just looks at the lease is done soon, and who sets a limit in a while.
        while !self.hurry() && tokio::time::timeout(LEASE_RETRY, ended.wait_for(|ended| *ended)).await.is_err() {}
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Where steps of this process are in the kernel: a guest can hold the lock of a pipe for as long as it likes, by a splice into it from
    /// where nothing comes, and no signal ends who waits for that, which keeps this process from ending. Whoever is frozen lets go of it.
    pub(crate) async fn free_steps(self: &Arc<Self>) {
        for _ in 0..FREEING {
            if self.lane.is_idle() && self.walk_lane.is_idle() {
                return;
            }
            let live = self.clone();
            let _ = spawn_blocking(move || live.freezer.shake()).await;
            tokio::time::sleep(LEASE_RETRY).await;
        }
    }

    /// Ends it because it no longer does what it should.
    pub(crate) fn kill(&self) {
        self.kill_now();
    }

    fn kill_now(&self) {
        let _ = sys::pidfd_kill(self.pidfd.get_ref().as_raw_fd());
        // Init closes what it has open before its end takes the others along, and one of them can hold the lock of a pipe for ever.
        let _ = self.freezer.kill();
        self.hurry();
    }

    /// Who is in the kernel with something that is slow by its limits ends when that is done. Where the sandbox has no lease any more, the
    /// limits go with it. False: somebody has hold of the lease, and it was not waited for.
    fn hurry(&self) -> bool {
        match self.holds.try_lock() {
            Ok(mut holds) => {
                holds.iter_mut().for_each(|holds| holds.lease.hurry());
                true
            }
            Err(TryLockError::Poisoned(_)) => true,
            Err(TryLockError::WouldBlock) => false,
        }
    }

    /// Its process 1.
    pub(crate) fn init(&self) -> &OwnedFd {
        self.pidfd.get_ref()
    }

    pub(crate) fn take_holds(&self) -> Option<Holds> {
        self.freezer.close(); // the next one who has the group freezes and thaws it
        self.holds.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn with_lease<T>(&self, look: impl FnOnce(&Lease) -> T) -> Option<T> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|holds| look(&holds.lease))
    }

    pub(crate) fn with_lease_mut<T>(&self, act: impl FnOnce(&mut Lease) -> T) -> Option<T> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(|holds| act(&mut holds.lease))
    }

    /// Whether it outlives us.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept
    }

    /// How much of the output of each command is kept.
    pub(crate) fn output_kept(&self) -> u64 {
        self.limits().output.unwrap_or(spool::KEPT)
    }

    /// Lets the commands stand still, or go on. No time passes for them in between, so init is told: before, and after.
    pub(crate) async fn pause(self: &Arc<Self>, paused: bool) -> Result<()> {
        if self.is_paused() == paused {
            return Ok(());
        }
        if !paused {
            return self.resume().await;
        }
        self.paused.store(true, Ordering::Release);
        self.send(&ToInit::still(Stillness::Paused), &[]).await?;
        fault::at(Point::PauseTold);
        let done = self.freeze(Reason::Pause).await;
        fault::at(Point::PauseFrozen);
        if done.is_err() {
            self.resume().await?;
        }
        done
    }

    /// After its server was killed, maybe half-way: it is paused if init was told so and the kernel made it so.
    pub(crate) async fn settle(self: &Arc<Self>, stillness: Stillness) -> Result<()> {
        match (stillness, self.freezer.is_frozen()) {
            (Stillness::Going, false) => Ok(()),
            (Stillness::Paused, true) => {
                self.freeze(Reason::Pause).await?;
                self.paused.store(true, Ordering::Release);
                Ok(())
            }
            _ => self.resume().await,
        }
    }

    /// What cannot be resumed is still paused.
    async fn resume(self: &Arc<Self>) -> Result<()> {
        self.thaw(Reason::Pause).await?;
        fault::at(Point::ResumeThawed);
        self.send(&ToInit::still(Stillness::Going), &[]).await?;
        self.paused.store(false, Ordering::Release);
        Ok(())
    }

    /// For the time of a snapshot: nobody sees it paused, and it takes commands meanwhile, which begin when it goes on.
    pub(crate) async fn hold_still(self: &Arc<Self>) -> Result<()> {
        self.send(&ToInit::still(Stillness::Held), &[]).await?;
        let held = self.freeze(Reason::Hold).await;
        if held.is_err() {
            self.let_go().await?;
        }
        held
    }

    pub(crate) async fn let_go(self: &Arc<Self>) -> Result<()> {
        self.thaw_at_last(Reason::Hold).await?;
        self.send(&ToInit::still(Stillness::Going), &[]).await
    }

    async fn freeze(self: &Arc<Self>, reason: Reason) -> Result<()> {
        let live = self.clone();
        let frozen = spawn_blocking(move || live.freezer.freeze(reason)).await;
        frozen.map_err(io::Error::other).flatten().map_err(|error| freezer_error("pausing", error))
    }

    async fn thaw(self: &Arc<Self>, reason: Reason) -> Result<()> {
        self.try_to_thaw(reason).await.map_err(|error| freezer_error("resuming", error))
    }

    /// Tries again for as long as it may work: without it, nobody would let them go on.
    pub(crate) async fn thaw_at_last(self: &Arc<Self>, reason: Reason) -> Result<()> {
        const AGAIN: Duration = Duration::from_millis(100);
        loop {
            match self.try_to_thaw(reason).await {
                Ok(()) => return Ok(()),
                Err(error) if is_shortage(&error) && !*self.ended.borrow() => tokio::time::sleep(AGAIN).await,
                Err(error) => return Err(freezer_error("resuming", error)),
            }
        }
    }

    async fn try_to_thaw(self: &Arc<Self>, reason: Reason) -> io::Result<()> {
        let live = self.clone();
        spawn_blocking(move || live.freezer.thaw(reason)).await.map_err(io::Error::other).flatten()
    }

    /// Made when the first policy asks for one, and kept: `Off` refuses everything then.
    pub(crate) async fn set_network(&self, ways: &Ways, wanted: &NetworkPolicy) -> Result<()> {
        let mut network = self.network.lock().await;
        match (network.as_ref(), wanted) {
            (Some(network), wanted) => network.set_policy(ways, wanted).await,
            (None, NetworkPolicy::Off) => Ok(()),
            (None, wanted) => {
                let outlet = Outlet::Bare(Namespace::of(self.pidfd.get_ref().as_fd())?);
                let (id, holder) = (self.id.clone(), self.holder.clone());
                *network = Some(Network::open(ways, outlet, wanted, id, holder, self.happened.clone()).await?);
                Ok(())
            }
        }
    }

    /// What was opened while this was set up.
    pub(crate) async fn give_network(&self, network: Option<Network>) {
        *self.network.lock().await = network;
    }

    pub(crate) fn limits(&self) -> Limits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_limits(&self, limits: Limits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        self.output_rate.set(&limits);
        self.disk_rate.set(limits.io);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// What needs a process inside to answer.
    pub(crate) fn awake(&self) -> Result<()> {
        if self.is_paused() { Err(Error::Paused) } else { Ok(()) }
    }

    pub(crate) async fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let lost = |error: io::Error| told_apart(error, |_| Error::Gone);
        if message.len() <= INLINE {
            return self.channel.send(message, fds).await.map_err(lost);
        }
        let failed = |error: io::Error| Error::failed("passing a long command on", error);
        let memory = rustix::fs::memfd_create(c"command", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let mut written = 0;
        while written < message.len() {
            written += rustix::io::write(&memory, &message[written..]).map_err(|errno| failed(errno.into()))?;
        }
        let mut all = vec![memory.as_fd()];
        all.extend_from_slice(fds);
        self.channel.send(LONG, &all).await.map_err(lost)
    }

    pub(crate) fn root(&self) -> Result<Rooted> {
        let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.as_ref().map(|inside| inside.root.clone()).ok_or(Error::Gone)
    }

    /// What a client holds is closed when the sandbox ends; at once if it has.
    pub(crate) fn hold(&self, file: &Arc<dyn OpenFile>) {
        self.open_files.add(file, || self.inside.lock().unwrap_or_else(PoisonError::into_inner).is_some());
    }

    /// Closes what the server has open on a mount, or for writing there. Whether a client had it.
    pub(crate) fn close_files_on(&self, mount: u64, writing: bool) -> bool {
        if let Ok(root) = self.root() {
            root.close_cached();
        }
        self.open_files.close_on(mount, writing)
    }

    /// A descriptor of ours that goes inside belongs to root inside, who hands it on.
    pub(crate) fn own(&self, fd: &OwnedFd) -> io::Result<()> {
        use rustix::fs::{Gid, Uid, fchown};
        let base = self.ids.base;
        Ok(fchown(fd, Some(Uid::from_raw(base)), Some(Gid::from_raw(base)))?)
    }

    /// A terminal of the sandbox's own, owned by the user: the master is opened by us, so that nobody inside shares it.
    pub(crate) async fn terminal(&self, account: &Account, size: TermSize) -> Result<(OwnedFd, OwnedFd)> {
        let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Error::Gone)?;
        let identity = self.identity_of(account)?;
        let open = move || -> io::Result<(OwnedFd, OwnedFd)> {
            let _acting = ActingAs::new(&identity);
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            let master = rustix::fs::openat2(&*inside.terminals, c"ptmx", flags, Mode::empty(), resolve)?;
            rustix::pty::unlockpt(&master)?;
            set_size(master.as_fd(), size)?;
            let slave = mounts::pty_peer(master.as_fd())?;
            Ok((master, slave))
        };
        self.lane.step(move || open().map_err(|error| Error::failed("opening a terminal", error))).await
    }

    /// A connection to a port on its loopback. The socket is made inside, and connected here.
    pub(crate) async fn connect(&self, port: u16) -> Result<TcpStream> {
        let connect = async {
            match self.connect_over(port, false).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => self.connect_over(port, true).await,
                done => done,
            }
        };
        let done = tokio::time::timeout(ANSWER, connect)
            .await
            .map_err(|_| Error::TimedOut("connecting to a port of the sandbox"))?;
        done.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => Error::PortClosed(port),
            io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => Error::PortReset(port),
            io::ErrorKind::NotConnected => Error::Gone,
            _ => told_apart(error, |error| Error::failed("connecting to a port of the sandbox", error)),
        })
    }

    async fn connect_over(&self, port: u16, v6: bool) -> io::Result<TcpStream> {
        let loopback = if v6 { IpAddr::from(Ipv6Addr::LOCALHOST) } else { Ipv4Addr::LOCALHOST.into() };
        let address = SocketAddr::new(loopback, port);
        // A port that visitors may come to is no proxy for them.
        if self.network.lock().await.as_ref().is_some_and(|network| network.is_way_out(address)) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let tag = self.next_tag.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            sockets.retain(|(_, waiting)| !waiting.is_closed()); // those that nobody waits for any more
            sockets.push((tag, answer));
        }
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let sent = self.channel.send(&ToInit::socket(tag, v6), &[]).await;
        sent.map_err(|error| if is_shortage(&error) { error } else { gone() })?;
        let socket = answered.await.map_err(|_| gone())??;
        check_socket(&socket, v6)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        TcpSocket::from_std_stream(socket.into()).connect(address).await
    }
}

/// Init is not trusted with what it passes: paths are resolved from the one, and a name is opened in the other.
pub(crate) fn check_inside(root: &OwnedFd, terminals: &OwnedFd) -> io::Result<()> {
    const DEVPTS: u64 = 0x1cd1;
    let is_directory = |fd: &OwnedFd| -> io::Result<bool> {
        Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) == FileType::Directory)
    };
    let are_terminals = rustix::fs::fstatfs(terminals)?.f_type as u64 == DEVPTS;
    match is_directory(root)? && is_directory(terminals)? && are_terminals {
        true => Ok(()),
        false => Err(io::Error::other("init passed something else than its root and its terminals")),
    }
}

/// Init is not trusted with what it passes: only a socket of the kind that was asked for is used as one.
fn check_socket(socket: &OwnedFd, v6: bool) -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketType, sockopt};
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let fits = sockopt::socket_domain(socket)? == family && sockopt::socket_type(socket)? == SocketType::STREAM;
    if fits { Ok(()) } else { Err(io::Error::other("init passed something else than a socket")) }
}

async fn until_ready(parts: &Parts) -> std::result::Result<Inside, SetupError> {
    let lost = || SetupError::Lost(io::Error::other("init ended during its setup"));
    let received = match parts.channel.receive().await {
        // It has ended before it heard all that it was told: the kernel says that first, and then what it said itself.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => parts.channel.receive().await,
        received => received,
    };
    let (bytes, fds) = received.map_err(SetupError::Lost)?.ok_or_else(lost)?;
    match FromInit::decode(&bytes) {
        Ok(FromInit::Ready { protocol: PROTOCOL }) => {}
        Ok(FromInit::SetupFailed(failure)) => return Err(SetupError::Refused(failure)),
        _ => return Err(SetupError::Lost(io::Error::other("init speaks another protocol"))),
    }
    let mut fds = fds.into_iter();
    let (Some(root), Some(terminals)) = (fds.next(), fds.next()) else { return Err(lost()) };
    parts.inside(root, terminals).map_err(SetupError::Lost)
}

/// Ends a process, and waits for its end.
pub(crate) async fn end_of(pidfd: &AsyncFd<OwnedFd>) {
    let _ = sys::pidfd_kill(pidfd.as_raw_fd());
    drop(pidfd.readable().await);
}

fn freezer_error(step: &'static str, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotConnected => Error::Gone,
        _ => Error::failed(step, error),
    }
}

fn status_of(status: u32) -> Status {
    let status = status as i32;
    if libc::WIFSIGNALED(status) {
        Status::Signal(libc::WTERMSIG(status))
    } else {
        Status::Code(libc::WEXITSTATUS(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_of_terminals_is_taken_for_one() {
        let open = |path: &str| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert!(check_inside(&open("/"), &open("/dev/pts")).is_ok());
        for (root, terminals) in [("/", "/"), ("/", "/dev/null"), ("/dev/null", "/dev/pts"), ("/", "/proc/self")] {
            assert!(check_inside(&open(root), &open(terminals)).is_err(), "{root} and {terminals}");
        }
    }
}
