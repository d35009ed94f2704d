//! Places at which a test lets the owner of sandboxes be killed.

cabana_fault::points! {
    HomeDrafted = "home.drafted": "The record is written, and the directory has no name yet.",
    HomeNamed = "home.named": "The directory has the sandbox's name, and nothing runs in it.",
    HomeTakenOut = "home.taken_out": "What was put away is there again, and nothing is mounted.",
    HomeCleared = "home.cleared": "A work directory of a stopped sandbox is gone.",
    HomePutAway = "home.put_away": "What a stopped sandbox does not need is gone, and nobody has been told.",
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
    ViewsRecorded = "views.recorded": "The record says what is to be seen, and what was is still seen.",
    ViewsHeld = "views.held": "The commands stand still for a change of views, which is not begun.",
    ViewsTaken = "views.taken": "Views that go are gone, and what is to come is not there.",
    ViewsChanged = "views.changed": "What is seen is as wanted, the commands stand still, and the record does not know.",
    StopEnded = "stop.ended": "Nothing runs any more, and the note still says so.",
    ShelfNoted = "shelf.noted": "What it stands on is noted, and its files are there.",
    ShelfRestored = "shelf.restored": "Its files are back, and what it stood on is noted still.",
    DestroyEnded = "destroy.ended": "Nothing runs any more, and the directory is there.",
    DestroyUnnamed = "destroy.unnamed": "The directory has no name any more, and is there.",
    FoundGreeted = "found.greeted": "Init has told all that it knows of a sandbox that was found.",
    FoundLeased = "found.leased": "Its ids and limits are ours again, and nobody listens to init.",
}

/// The protocol that a server says it speaks: a test can make it one of another time.
pub(crate) fn protocol() -> u32 {
    cabana_fault::protocol().unwrap_or(crate::wire::PROTOCOL)
}
