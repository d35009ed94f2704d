//! Why something was not done. Knows nothing of HTTP.

use cabana_model::{
    BOUNDLESS, BuildId, CallId, Code, Exceeded, KeyId, LifecycleError, ParseIdError, PathError, Role, SandboxId,
    ScopeError, SnapshotId, TaskId, TemplateId, Time, VolumeName, WebhookId,
};

const LOW_DISK: &str = ": delete what nobody needs any more, or tell the operator";

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the request has no valid key")]
    Unauthorized,
    #[error("this needs a key with the role {needs}: this one has the role {has}", needs = name(*needs), has = name(*has))]
    Forbidden { needs: Role, has: Role },
    #[error("this key stands for the user {0:?} alone: it names no other")]
    OtherUser(String),
    #[error("this key stands for the user {0:?} alone: what tells of all users of the tenant is not for it")]
    AllUsers(String),
    #[error(
        "this network would reach the server's own machine or its inner networks: list what is public, or have the \
         operator set it with a key of the role admin"
    )]
    Inside,
    #[error("the sandbox {0} does not run, and a key with the role read starts none")]
    Asleep(SandboxId),
    #[error("there is no sandbox {0}")]
    NoSandbox(SandboxId),
    #[error("the server was started again, and the sandbox has not answered it yet")]
    Recovering,
    #[error("{}", .text.clone().unwrap_or_else(|| format!("{holder} has a lease on the sandbox until {until}")))]
    Busy {
        holder: String,
        until: Time,
        /// As its dialect says it.
        text: Option<String>,
    },
    #[error("the server ends, and was to stop all sandboxes: it starts none any more")]
    Ending,
    #[error("these run still, since they could not be stopped: {}", .0.iter().map(SandboxId::as_str).collect::<Vec<_>>().join(", "))]
    NotStopped(Vec<SandboxId>),
    #[error("the lease has ended, or was never this one")]
    LeaseLost,
    #[error("there is no call {0}")]
    NoCall(CallId),
    #[error("there is no task {0}")]
    NoTask(TaskId),
    #[error("there is no snapshot {0}")]
    NoSnapshot(SnapshotId),
    #[error("there is no template {0}")]
    NoOwnTemplate(TemplateId),
    #[error("there is no build {0}")]
    NoBuild(BuildId),
    #[error("the tenant has as many templates as it may: {0}. Delete what nobody needs any more")]
    TooManyTemplates(u32),
    #[error("the template would have more tags than it may: {0}. Remove what nobody needs any more")]
    TooManyTags(usize),
    #[error("there is no webhook {0}")]
    NoWebhook(WebhookId),
    #[error("the tenant has as many webhooks as it may: {0}")]
    TooManyWebhooks(usize),
    #[error("there is no volume {0}")]
    NoVolume(VolumeName),
    #[error("there is a volume {0} already")]
    VolumeExists(VolumeName),
    #[error("volume {0} is in use: sandboxes have it among their mounts")]
    VolumeInUse(VolumeName),
    #[error("mounts: {0}")]
    Mount(#[from] cabana_model::MountRefused),
    #[error("there is no key {0}")]
    NoKey(KeyId),
    #[error("the link has ended or was taken back, or it is none of this server's")]
    NoLink,
    #[error("the Idempotency-Key belongs to another request")]
    KeyReused,
    #[error("the user of this chat is not known: it has no sandbox yet, or several users have a chat of this name")]
    UserRequired,
    #[error("the parts of this scope give the id {0}, which the sandbox of a scope with other parts has")]
    ScopeConflict(SandboxId),
    #[error("the answers that are under way take all the memory that there is for them")]
    ListsTooLarge,
    #[error("calls that wait, and commands that have not read their input, hold all the memory that there is for them")]
    HeldTooLarge,
    #[error("files that are read, and not taken by their clients, hold all the memory that there is for them")]
    ReadingTooLarge,
    #[error("uploads that are under way (files, archives, templates) hold all the memory that there is for them")]
    IncomingTooLarge,
    #[error("reads and uploads by signed URLs that are under way hold all the memory that there is for them")]
    ByUrlTooLarge,
    #[error("as many calls wait for the command to read its input as may: {0}")]
    TooManyInputs(usize),
    #[error("as many calls are under way as may be at once, of this tenant or of all")]
    TooManyCalls,
    #[error("as many requests wait for their answers as may at once, of this tenant or of all")]
    TooManyRequests,
    #[error("as many tries of webhooks are under way as one tenant may ask for at once: {0}")]
    TooManyTests(usize),
    #[error("as many connections to ports are open as there may be, of this sandbox or of all")]
    TooManyPortConnections,
    #[error("as many streams of events are open as one tenant may have: {0}")]
    TooManyListeners(usize),
    #[error("as many files and outputs are being read as may be at once, by this tenant or by all")]
    TooManyReaders,
    #[error("as many uploads are under way as may be at once, of this tenant or of all")]
    TooManyUploads,
    #[error("as many searches are under way as one tenant may have: {0}")]
    TooManySearches(usize),
    #[error("as many directories are watched as can be")]
    TooManyWatches,
    #[error("the disk of the server is nearly full, and nothing new is made{}", about.as_deref().unwrap_or(LOW_DISK))]
    LowDisk {
        /// How full it is of what: the operator's to know.
        about: Option<String>,
    },
    #[error(
        "the disk of the server is nearly full, and commands of this tenant took the most of what was left: remove files, volumes or sandboxes"
    )]
    TookTheDisk,
    #[error("what it said is not kept any more")]
    OutputGone,
    #[error("{0}")]
    Exceeded(Exceeded),
    #[error("the quota calls_per_sec is {limit}, and so many calls came within a second")]
    RateLimited { limit: u64 },
    #[error("so many calls by signed URLs came to this sandbox within a second: {limit} may")]
    UrlRateLimited { limit: u64 },
    #[error("as many files of this sandbox are being written by signed URLs as may be at once: {0}")]
    TooManyUrlWrites(usize),
    #[error("the quota {name} would be {limit}, and {used} is in use", name = .0.quota.as_str(), limit = .0.limit, used = in_use(.0))]
    BelowUse(Exceeded),
    #[error("the call was cancelled")]
    Cancelled,
    #[error("a crash took the call: it may have happened, in part or as a whole")]
    Unknown,
    /// Nothing is recorded of it: the next server finds the command.
    #[error("the server ends, and the command goes on")]
    Left,
    #[error("{field}: {why}")]
    Invalid { field: &'static str, why: String },
    /// As it was told the first time.
    #[error("{message}")]
    Recorded { code: Code, message: String },
    #[error(transparent)]
    Sandbox(#[from] cabana_sandbox::Error),
    #[error(transparent)]
    Store(#[from] cabana_store::Error),
}

impl Error {
    pub fn invalid(field: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { field, why: why.into() }
    }

    /// What is left of it for whoever has this role: one tenant hears nothing of others.
    pub(crate) fn told_to(self, role: Role) -> Self {
        match self {
            Self::LowDisk { .. } if role != Role::Admin => Self::LowDisk { about: None },
            error => error,
        }
    }

    pub fn code(&self) -> Code {
        match self {
            Self::Unauthorized | Self::NoLink => Code::Unauthorized,
            Self::Forbidden { .. } | Self::OtherUser(_) | Self::AllUsers(_) | Self::Inside | Self::Asleep(_) => {
                Code::Forbidden
            }
            Self::NoSandbox(_) => Code::SandboxNotFound,
            Self::Recovering => Code::SandboxRecovering,
            Self::Busy { .. } => Code::SandboxBusy,
            Self::LeaseLost => Code::LeaseLost,
            Self::NoCall(_) => Code::CallNotFound,
            Self::NoTask(_) => Code::TaskNotFound,
            Self::NoSnapshot(_) => Code::SnapshotNotFound,
            Self::NoOwnTemplate(_) | Self::NoBuild(_) => Code::TemplateNotFound,
            Self::TooManyTemplates(_) | Self::TooManyTags(_) => Code::QuotaExceeded,
            Self::NoWebhook(_) => Code::WebhookNotFound,
            Self::TooManyWebhooks(_) => Code::TooManyWebhooks,
            Self::NoVolume(_) => Code::VolumeNotFound,
            Self::VolumeExists(_) => Code::VolumeExists,
            Self::VolumeInUse(_) => Code::VolumeInUse,
            Self::Mount(refused) if refused.is_odd() => Code::BadRequest,
            Self::Mount(_) => Code::MountDenied,
            Self::NoKey(_) => Code::KeyNotFound,
            Self::KeyReused => Code::IdempotencyMismatch,
            Self::Ending => Code::Draining,
            Self::NotStopped(_) => Code::Internal,
            Self::UserRequired => Code::UserRequired,
            Self::ScopeConflict(_) => Code::ScopeConflict,
            Self::ListsTooLarge
            | Self::HeldTooLarge
            | Self::ReadingTooLarge
            | Self::IncomingTooLarge
            | Self::ByUrlTooLarge
            | Self::TooManyInputs(_)
            | Self::TooManyCalls
            | Self::TooManyTests(_)
            | Self::TooManyRequests => Code::ServerBusy,
            Self::TooManyPortConnections => Code::TooManyConnections,
            Self::TooManyReaders | Self::TooManyUploads | Self::TooManyListeners(_) => Code::TooManyStreams,
            Self::TooManySearches(_) => Code::TooManySearches,
            Self::TooManyWatches => Code::TooManyWatches,
            Self::LowDisk { .. } | Self::TookTheDisk => Code::NoSpace,
            Self::OutputGone => Code::OutputGone,
            Self::Exceeded(_) => Code::QuotaExceeded,
            Self::RateLimited { .. } | Self::UrlRateLimited { .. } | Self::TooManyUrlWrites(_) => Code::RateLimited,
            Self::BelowUse(_) => Code::QuotaBelowUse,
            Self::Cancelled => Code::Cancelled,
            Self::Unknown => Code::OutcomeUnknown,
            Self::Left => Code::ProviderOffline,
            Self::Invalid { .. } => Code::BadRequest,
            Self::Recorded { code, .. } => *code,
            Self::Sandbox(error) => error.code(),
            Self::Store(error) => error.code(),
        }
    }
}

fn in_use(exceeded: &Exceeded) -> String {
    match exceeded.used {
        used if used >= BOUNDLESS => "a sandbox without a limit of its own".into(),
        used => used.to_string(),
    }
}

pub(crate) fn name(role: Role) -> &'static str {
    match role {
        Role::Read => "read",
        Role::Use => "use",
        Role::Admin => "admin",
    }
}

impl From<ScopeError> for Error {
    fn from(error: ScopeError) -> Self {
        Self::invalid("scope", error.to_string())
    }
}

impl From<LifecycleError> for Error {
    fn from(error: LifecycleError) -> Self {
        Self::invalid("lifecycle", error.to_string())
    }
}

impl From<ParseIdError> for Error {
    fn from(error: ParseIdError) -> Self {
        Self::invalid("id", error.to_string())
    }
}

impl From<PathError> for Error {
    fn from(error: PathError) -> Self {
        Self::Sandbox(error.into())
    }
}
