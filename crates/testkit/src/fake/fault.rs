//! One thing each that a provider may get wrong.

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a [`broken`](crate::Fake::broken) fake does wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Fault { $($(#[$doc])* $name,)* }

        impl Fault {
            pub const ALL: &'static [Fault] = &[$(Fault::$name,)*];
        }
    };
}

faults! {
    // States.
    /// A second create with one id makes a new sandbox in place of the first.
    CreateAgainStartsAfresh,
    /// Two creates at once both find nothing and both make one.
    ConcurrentCreatesRace,
    /// A create with a stopped one's id wakes it, whatever the spec says.
    CreateWakesAStoppedOne,
    /// A create that was refused leaves a sandbox behind.
    RefusedCreateLeavesOne,
    /// Two sandboxes have the same files.
    FilesAreShared,
    /// A template that is not there is taken for an empty one.
    EveryTemplateIsThere,
    /// The handle says another id than was asked for.
    HandleHasAnotherId,
    /// Without a user, files are root's.
    DefaultUserIsRoot,
    /// The spec's user does not become the default.
    SpecUserIsIgnored,
    /// Attach to a stopped one starts it.
    AttachWakes,
    /// Attach to one that is not there is an error.
    AttachToAbsentFails,
    /// Start makes what is not there.
    StartMakesAnAbsentOne,
    /// Start of a running one is an error.
    StartOfARunningOneFails,
    /// The second stop is an error.
    StopTwiceFails,
    /// Stop empties files.
    StopLosesContent,
    /// Stop drops odd permission bits.
    StopLosesModes,
    /// After a stop everything is root's.
    StopLosesOwners,
    /// After a stop links are empty files.
    StopLosesLinks,
    /// Stop drops tags.
    StopLosesTags,
    /// Destroy keeps the files.
    DestroyOnlyStops,
    /// The second destroy is an error.
    DestroyTwiceFails,
    /// A handle from before the stop goes on working.
    OldHandlesWork,
    /// List says that running ones are stopped.
    ListSaysStopped,
    /// List shows running ones alone.
    ListOmitsStoppedOnes,
    /// Limits that nothing enforces are accepted.
    LimitsArePretended,
    /// Network modes that nothing enforces are accepted.
    NetworkIsPretended,
    /// Pause says Ok and does nothing.
    PauseIsPretended,
    /// The second pause is an error.
    PauseTwiceFails,
    /// What is stopped, or not there, can be paused.
    AnythingCanBePaused,
    /// A pause ends what handles hold.
    PauseEndsTheSession,
    /// Start leaves a paused one paused.
    StartLeavesItPaused,
    /// A paused one cannot be stopped.
    PausedOnesDoNotStop,

    // Limits.
    /// Numbers with which nothing could run are taken.
    AbsurdLimitsAreTaken,
    /// What cannot be kept is refused at create, and accepted at run time.
    UpdateIsPretended,
    /// Update says Ok and changes no limit.
    UpdateChangesNothing,
    /// After a stop nothing is limited.
    StopLosesLimits,
    /// Files may take more than the limit.
    DiskLimitIsIgnored,
    /// What was refused is written nevertheless.
    NoSpaceIsWritten,
    /// What was once written counts for ever.
    RemovingMakesNoRoom,
    /// There may be more files than the limit.
    InodeLimitIsIgnored,

    // Looking.
    /// A missing path is an internal error.
    MissingIsAFailure,
    /// A path through a file is said to be missing.
    ThroughAFileIsNotFound,
    /// `..` at the root is an error, where it is the root.
    DotDotAtTheRootFails,
    /// A circle of links is said to be missing.
    LoopIsNotFound,
    /// Stat looks through links.
    StatFollowsLinks,
    /// A link that leads nowhere cannot be looked at.
    DanglingLinkIsNotFound,
    /// A link's target is the next link, not the end.
    LinkTargetIsOneStep,
    /// A link's text comes back tidied.
    LinkTextIsNormalised,
    /// Sizes are what they take on disk.
    SizeIsRounded,
    /// Modes carry the file's type.
    ModeHasTypeBits,
    /// Owners have no names.
    OwnerIsANumber,
    /// Nothing has a time.
    TimeIsTheEpoch,
    /// List leaves out what begins with a dot.
    ListOmitsHiddenFiles,
    /// List shows links as what they lead to.
    ListFollowsLinks,
    /// A link to a directory cannot be listed.
    ListRefusesLinks,
    /// List ends after a thousand entries.
    ListIsCutOff,
    /// List shows an entry twice where a batch begins.
    ListRepeatsAtBatches,
    /// A file is listed as an empty directory.
    ListOfAFileIsEmpty,
    /// Names are made UTF-8.
    NamesAreText,
    /// Names of more than 200 bytes are refused.
    NamesAreShort,

    // Reading.
    /// The last byte is missing.
    ReadLosesTheLastByte,
    /// A span begins at the beginning.
    SpanIgnoresFrom,
    /// A span ends at the end.
    SpanIgnoresLen,
    /// A span beyond the end is an error.
    BeyondTheEndFails,
    /// Too large a file is read.
    ReadIgnoresTheCap,
    /// A file of exactly the cap is refused.
    CapIsOneTooSmall,
    /// A directory reads as an empty file.
    ReadOfADirectoryIsEmpty,
    /// Read does not follow links.
    ReadRefusesLinks,
    /// A reader gets bytes of the file that replaced the one it opened.
    ReadSeesWhatCameLater,

    // Writing.
    /// A write makes the directories above it.
    WriteMakesParents,
    /// New files cannot be read by others.
    NewFilesAreSecret,
    /// The mode asked for is not set.
    PermIsIgnored,
    /// Replace gives the old file's mode up.
    ReplaceResetsTheMode,
    /// Replace makes the file the writer's.
    ReplaceTakesOwnership,
    /// Replace puts a file in the place of a link.
    ReplaceReplacesLinks,
    /// A reader sees half of a replace.
    ReplaceShowsItsMiddle,
    /// A body that breaks off replaces the file.
    ReplaceKeepsHalf,
    /// An append whose body breaks off empties the file.
    AppendLosesTheFile,
    /// Append replaces.
    AppendReplaces,
    /// A write that failed leaves its temporary file.
    TemporaryIsLeft,
    /// InPlace leaves the end of a longer file.
    InPlaceDoesNotTruncate,
    /// InPlace gives the file's mode up.
    InPlaceResetsTheMode,
    /// InPlace makes a new file under the name.
    InPlaceMakesANewFile,
    /// CreateNew replaces what is there.
    CreateNewReplaces,
    /// A write onto a directory is a question of permission.
    WriteOntoADirectoryIsDenied,
    /// Too large a body is written.
    WriteIgnoresTheCap,
    /// Of too large a body the beginning is written, and all is well.
    WriteCutsAtTheCap,
    /// A body of another length than promised is written.
    LengthIsNotChecked,
    /// An empty chunk ends the body.
    EmptyChunkIsTheEnd,
    /// An empty body makes no file.
    EmptyBodyWritesNothing,
    /// The answer to a write shows the file as it was.
    WriteSaysTheOldSize,

    // Altering.
    /// A directory that is there is made again.
    MakeDirAgainIsOk,
    /// MakeDir makes the directories above it.
    MakeDirMakesParents,
    /// New directories are 0755.
    MakeDirIgnoresTheMode,
    /// Rename copies.
    RenameLeavesTheSource,
    /// Rename refuses to replace a file.
    RenameRefusesToReplace,
    /// Rename replaces a directory that is not empty.
    RenameReplacesDirectories,
    /// Rename of a directory into itself makes it unreachable.
    RenameIntoItselfLosesIt,
    /// Rename moves what a link leads to.
    RenameFollowsLinks,
    /// Remove takes what a link leads to.
    RemoveFollowsLinks,
    /// Remove takes a directory that is not empty.
    RemoveTakesTheTree,
    /// Remove of what is not there is Ok.
    RemoveOfNothingIsOk,
    /// RemoveAll empties the directories that links lead to.
    RemoveAllFollowsLinks,
    /// RemoveAll of what is not there is Ok.
    RemoveAllOfNothingIsOk,
    /// RemoveAll refuses files.
    RemoveAllWantsADirectory,
    /// SetMode keeps bits that are no permissions.
    SetModeKeepsHighBits,
    /// SetMode drops setuid, setgid and sticky.
    SetModeLosesSpecialBits,
    /// SetOwner says Ok and does nothing.
    SetOwnerDoesNothing,
    /// Symlink replaces what is there.
    SymlinkReplaces,
    /// SetTags keeps the tags that it does not name.
    TagsAreAdded,

    // Who may.
    /// Anybody reads and writes any file.
    FilesAreOpen,
    /// Anybody enters and changes any directory.
    DirectoriesAreOpen,
    /// Root is stopped by modes.
    RootIsLikeAnybody,
    /// Anybody sets any mode.
    ModesAreAnybodys,
    /// Anybody gives any file away.
    OwnersAreAnybodys,
    /// New files are root's, whoever makes them.
    FilesBelongToRoot,
    /// A user who does not exist acts as root.
    UnknownUserIsRoot,
    /// A user's number is no user.
    UsersHaveNoNumbers,
    /// In a sticky directory anybody removes anything.
    StickyIsIgnored,

    // Watching.
    /// What happens right after watch returned is missed.
    WatchIsArmedLate,
    /// Changes of mode are not told.
    WatchMissesChmod,
    /// Removals are not told.
    WatchMissesRemove,
    /// What happens in directories made later is not told.
    WatchMissesNewDirectories,
    /// A rename is told as a removal and a creation.
    WatchSplitsRenames,
    /// Depth::Here tells of everything below.
    WatchHereSeesBelow,
    /// The temporary file of a replace is told.
    WatchShowsTheTemporary,
    /// A directory that is not there can be watched.
    WatchOfNothingIsQuiet,
    /// A watch hangs when its sandbox is stopped.
    WatchOutlivesItsSandbox,

    // Snapshots.
    /// A fork begins with nothing.
    SnapshotIsEmpty,
    /// A fork begins with what the original is by then.
    SnapshotFollowsItsSandbox,
    /// All forks have the same files.
    ForksShareFiles,
    /// A snapshot goes when its sandbox does.
    SnapshotEndsWithItsSandbox,
    /// A snapshot wakes what is stopped.
    SnapshotWakes,
    /// A snapshot of what is not there is an empty one.
    SnapshotOfNothingIsEmpty,
    /// A second snapshot of one name takes the place of the first.
    SnapshotIsTakenAgain,
    /// The list of snapshots is empty.
    SnapshotsAreNotListed,
    /// A snapshot that was removed is there.
    SnapshotRemovalIsPretended,
    /// To remove what is not there is an error.
    SnapshotRemovedTwiceFails,
    /// What is restored has no files.
    RestoreLosesFiles,
    /// What is restored runs.
    RestoreWakes,
    /// What is restored takes the place of what is there.
    RestoreReplaces,
    /// Half a stream is restored as if it were whole.
    RestoreTakesHalfAStream,
    /// One that runs is shelved.
    RunningOnesAreShelved,
    /// One that is shelved is there.
    ShelvingIsPretended,
    /// To shelve one that is shelved is an error.
    ShelvingTwiceFails,
    /// What a shelved one stands on is not kept.
    ShelvedBaseIsForgotten,

    // Templates.
    /// A template has nothing of its archive.
    TemplateIsEmpty,
    /// What its maker wanted is not in it.
    TemplateForgetsWishes,
    /// The list of templates is empty.
    TemplatesAreNotListed,
    /// A name that is taken is made again.
    TemplateIsReplaced,
    /// Of an archive that breaks off a template is made.
    TemplateIsHalfMade,
    /// Too large an archive is taken.
    TemplateIgnoresTheBound,
    /// A template that was removed is there.
    TemplateRemovalIsPretended,
    /// A template goes while sandboxes stand on it.
    UsedTemplateIsRemoved,

    // Volumes.
    /// The list of volumes is empty.
    VolumesAreNotListed,
    /// A volume that was removed is there.
    VolumeRemovalIsPretended,
    /// What a volume takes is told of one that is not there.
    AbsentVolumeIsMeasured,

    // Trees.
    /// Search finds everything.
    SearchIgnoresGlobs,
    /// Search forgets globs that begin with `!`.
    SearchForgetsExclusions,
    /// Search finds what .gitignore leaves out.
    SearchIgnoresIgnoreFiles,
    /// Search does not end at its limit.
    SearchIgnoresMaxHits,
    /// The first line of a file has the number 0.
    SearchCountsLinesFromZero,
    /// The archive has no end.
    PackIsCutOff,
    /// A bad archive is Ok.
    UnpackAcceptsAnything,
    /// Unpack makes the directory that it unpacks to.
    UnpackMakesItsDirectory,
}
