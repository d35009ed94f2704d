//! Places at which a test lets this process be killed, to see that nothing is lost or half done.
//!
//! `CABANA_FAULT=name@3` kills it when it passes `name` for the third time. Only tests build with this.

macro_rules! points {
    ($($name:ident = $text:literal: $why:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Point { $(#[doc = $why] $name,)* }

        impl Point {
            #[cfg(feature = "faults")]
            fn name(self) -> &'static str {
                match self { $(Point::$name => $text,)* }
            }
        }

        /// The names of all places.
        #[cfg(feature = "faults")]
        pub const ALL: &[&str] = &[$($text,)*];
    };
}

points! {
    HomeDrafted = "home.drafted": "The record is written, and the directory has no name yet.",
    HomeNamed = "home.named": "The directory has the sandbox's name, and nothing runs in it.",
    RecordDrafted = "record.drafted": "The changed record lies beside the old one.",
    RecordChanged = "record.changed": "The record is changed, and what it says is not in force.",
    InitTold = "init.told": "Init has its plan, and will end with us.",
    InitAnnounced = "init.announced": "The note says where init is, and it has not been told to stay.",
    InitKept = "init.kept": "Init was told to stay, and is not ready.",
    InitReady = "init.ready": "The sandbox lives, and nobody has been told.",
    ExecSent = "exec.sent": "Init was asked to run a command.",
    ExecStarted = "exec.started": "The command runs, and nobody has been told.",
    OutputMarked = "output.marked": "The channel is noted, and its bytes are not taken.",
    OutputTaken = "output.taken": "Bytes were taken, and nobody has seen them.",
    OutputSealed = "output.sealed": "All output was taken, and the exit was not told.",
    PauseTold = "pause.told": "Init knows of the pause, and nothing stands still.",
    PauseFrozen = "pause.frozen": "All stands still, and nobody has been told.",
    ResumeThawed = "resume.thawed": "All goes on, and init believes that it stands still.",
    SnapshotHeld = "snapshot.held": "The commands stand still for a snapshot, which is not begun.",
    SnapshotCopied = "snapshot.copied": "The copy is made, has no name, and the commands stand still.",
    SnapshotReserved = "snapshot.reserved": "Names of layers are reserved, and no record says so.",
    SnapshotRecorded = "snapshot.recorded": "The sandbox stands on layers that have not come yet.",
    SnapshotCleared = "snapshot.cleared": "The work directory is gone, and the layer has not moved.",
    SnapshotMoved = "snapshot.moved": "The layer has moved, and the sandbox has none of its own.",
    SnapshotSettled = "snapshot.settled": "All layers are where they belong, and the snapshot has no name.",
    StopEnded = "stop.ended": "Nothing runs any more, and the note still says so.",
    DestroyEnded = "destroy.ended": "Nothing runs any more, and the directory is there.",
    DestroyUnnamed = "destroy.unnamed": "The directory has no name any more, and is there.",
    FoundGreeted = "found.greeted": "Init has told all that it knows of a sandbox that was found.",
    FoundLeased = "found.leased": "Its ids and limits are ours again, and nobody listens to init.",
}

/// Ends this process if the test asked for it.
#[cfg(feature = "faults")]
pub(crate) fn at(point: Point) {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    };
    static ASKED: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static PASSED: AtomicU32 = AtomicU32::new(0);
    let asked = ASKED.get_or_init(|| {
        let asked = std::env::var("CABANA_FAULT").ok()?;
        let (name, time) = asked.split_once('@')?;
        Some((name.to_owned(), time.parse().ok()?))
    });
    let Some((name, time)) = asked else { return };
    if name == point.name() && PASSED.fetch_add(1, Ordering::AcqRel) + 1 == *time {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park(); // the signal is on its way
        }
    }
}

#[cfg(not(feature = "faults"))]
pub(crate) fn at(_: Point) {}

/// The protocol that a server says it speaks: `CABANA_FAULT_PROTOCOL` makes it one of another time.
pub(crate) fn protocol() -> u32 {
    #[cfg(feature = "faults")]
    if let Some(other) = std::env::var("CABANA_FAULT_PROTOCOL").ok().and_then(|text| text.parse().ok()) {
        return other;
    }
    crate::wire::PROTOCOL
}
