//! What can go wrong: kinds, not texts. [`Error::code`] is the stable public name of each.

use cabana_model::{Code, ExecId, ParseIdError, PathError, SandboxId, SandboxPath, SnapshotId, User, VolumeId};

pub type Result<T, E = Error> = std::result::Result<T, E>;
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} does not exist")]
    NotFound(SandboxPath),
    #[error("{0} exists already")]
    Exists(SandboxPath),
    #[error("{0}: permission denied")]
    Denied(SandboxPath),
    #[error("{0} is a directory")]
    IsDirectory(SandboxPath),
    #[error("{0} is not a directory")]
    NotDirectory(SandboxPath),
    #[error("{0} is not empty")]
    NotEmpty(SandboxPath),
    #[error("{0} is no regular file")]
    NotRegular(SandboxPath),
    #[error("{0} is held by a lease of a process inside")]
    Busy(SandboxPath),
    #[error("{0}: as many directories are watched as can be")]
    TooManyWatches(SandboxPath),
    #[error("{0} runs through too many symbolic links")]
    Loop(SandboxPath),
    #[error("larger than the limit of {cap} bytes")]
    TooLarge { cap: u64 },
    #[error("path: {0}")]
    Path(#[from] PathError),
    #[error("{field}: {why}")]
    Invalid { field: &'static str, why: String },
    #[error("the archive is not valid: {0}")]
    Archive(String),
    #[error("the provider {provider} cannot do this: {what}")]
    Unsupported { provider: &'static str, what: &'static str },
    #[error("exec id {0} was used already")]
    Duplicate(ExecId),
    #[error("there is no user {0} in this sandbox")]
    UnknownUser(User),
    /// Its own files name it, with a number that no user of it can have.
    #[error("the user {user} has the id {id}, which is beyond the ids of this sandbox")]
    UserBeyondIds { user: User, id: u32 },
    #[error("the working directory {0} does not exist or is no directory")]
    NoWorkdir(SandboxPath),
    #[error("cannot run {program}: {why}")]
    NoProgram { program: String, why: NotRun },
    #[error("nothing listens on port {0} of the sandbox")]
    PortClosed(u16),
    #[error("what listens on port {0} of the sandbox ended the connection at once")]
    PortReset(u16),
    #[error("there is no sandbox {0}")]
    NoSandbox(SandboxId),
    #[error("sandbox {0} is in the hands of another process")]
    InUse(SandboxId),
    #[error("there is no template {0}")]
    NoTemplate(String),
    #[error("template {name}: {why}")]
    BadTemplate { name: String, why: String },
    #[error("there is a template {0} already: remove it first or choose another name")]
    TemplateExists(String),
    #[error("template {0} is in use: delete the sandboxes made from it first")]
    TemplateInUse(String),
    #[error("there is no snapshot {0}")]
    NoSnapshot(SnapshotId),
    #[error("there is no volume {0}")]
    NoVolume(VolumeId),
    #[error("volume {0} is in use: sandboxes have it among their views")]
    VolumeInUse(VolumeId),
    /// Who is inside could do more to the machine with it than to its files.
    #[error("mounts: {0}")]
    MountDenied(String),
    /// Nothing of the change was made.
    #[error("{at}: {why}")]
    MountBusy { at: String, why: &'static str },
    /// What was under way there was ended for it.
    #[error("{0}: a mount there was taken away or made read-only meanwhile")]
    MountChanged(SandboxPath),
    /// The kernel or its settings forbid what a sandbox needs.
    #[error("this host cannot run sandboxes: {0}")]
    Host(String),
    /// It comes back when others let go.
    #[error("this host has run out of what all sandboxes share: {0}")]
    Exhausted(&'static str),
    /// Of the sandbox's own limit: it comes back when some of them end.
    #[error(
        "the sandbox has as many processes and threads as its limit allows ({limit}): end some, or raise limits.pids"
    )]
    TooManyProcesses { limit: u32 },
    #[error("no space left")]
    NoSpace,
    #[error("timed out: {0}")]
    TimedOut(&'static str),
    /// It will not come back by itself.
    #[error("the sandbox is gone")]
    Gone,
    #[error("the sandbox is paused")]
    Paused,
    /// It may come back; what was asked may have happened.
    #[error("the provider cannot be reached")]
    Offline(#[source] Cause),
    #[error("{step} failed: {cause}")]
    Failed {
        step: &'static str,
        #[source]
        cause: Cause,
    },
}

/// Why a program could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRun {
    #[error("there is no such program")]
    Missing,
    #[error("the user may not execute it")]
    Forbidden,
    #[error("it is in no format that this machine can run")]
    Format,
    #[error("it lies behind too many links")]
    Links,
    #[error("its name is longer than that of a file can be")]
    LongName,
    #[error("something has it open for writing")]
    Written,
}

impl Error {
    pub fn invalid(field: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { field, why: why.into() }
    }

    pub fn failed(step: &'static str, cause: impl Into<Cause>) -> Self {
        Self::Failed { step, cause: cause.into() }
    }

    pub fn code(&self) -> Code {
        match self {
            Self::NotFound(_) | Self::MountChanged(_) => Code::NotFound,
            Self::Exists(_) => Code::AlreadyExists,
            Self::Denied(_) => Code::PermissionDenied,
            Self::IsDirectory(_) => Code::IsDirectory,
            Self::NotDirectory(_) => Code::NotDirectory,
            Self::NotEmpty(_) => Code::NotEmpty,
            Self::NotRegular(_) => Code::NotRegular,
            Self::Busy(_) => Code::FileBusy,
            Self::TooManyWatches(_) => Code::TooManyWatches,
            Self::Loop(_) => Code::TooManyLinks,
            Self::TooLarge { .. } => Code::TooLarge,
            Self::Path(_) => Code::InvalidPath,
            Self::Invalid { .. } => Code::BadRequest,
            Self::Archive(_) => Code::ArchiveInvalid,
            Self::Unsupported { .. } => Code::Unsupported,
            Self::Duplicate(_) => Code::DuplicateExec,
            Self::UnknownUser(_) | Self::UserBeyondIds { .. } => Code::UnknownUser,
            Self::NoWorkdir(_) => Code::WorkdirNotFound,
            Self::NoProgram { .. } => Code::ProgramNotFound,
            Self::PortClosed(_) => Code::PortClosed,
            Self::PortReset(_) => Code::PortFailed,
            Self::NoSandbox(_) => Code::SandboxNotFound,
            Self::InUse(_) => Code::SandboxInUse,
            Self::NoTemplate(_) => Code::TemplateNotFound,
            Self::BadTemplate { .. } => Code::TemplateInvalid,
            Self::TemplateExists(_) => Code::TemplateExists,
            Self::TemplateInUse(_) => Code::TemplateInUse,
            Self::NoSnapshot(_) => Code::SnapshotNotFound,
            Self::NoVolume(_) => Code::VolumeNotFound,
            Self::VolumeInUse(_) => Code::VolumeInUse,
            Self::MountDenied(_) => Code::MountDenied,
            Self::MountBusy { .. } => Code::MountBusy,
            Self::Host(_) => Code::HostUnsupported,
            Self::Exhausted(_) => Code::HostExhausted,
            Self::TooManyProcesses { .. } => Code::QuotaExceeded,
            Self::NoSpace => Code::NoSpace,
            Self::TimedOut(_) => Code::TimedOut,
            Self::Gone => Code::SandboxGone,
            Self::Paused => Code::SandboxPaused,
            Self::Offline(_) => Code::ProviderOffline,
            Self::Failed { .. } => Code::Internal,
        }
    }
}

impl From<ParseIdError> for Error {
    fn from(error: ParseIdError) -> Self {
        Self::invalid("id", error.to_string())
    }
}
