//! Public error codes. Each is stable and has a page in `docs/errors/`: what happened, why, what to do.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal: $hint:literal,)*) => {
        /// A stable public error code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.as_str() == text)
            }

            /// What to do about it, in one sentence.
            pub fn hint(self) -> &'static str {
                match self { $(Code::$name => $hint,)* }
            }
        }
    };
}

codes! {
    AlreadyExists = "already_exists": "Choose another name, or write with a mode that replaces.",
    ArchiveInvalid = "archive_invalid": "Make the archive again and check that the transfer was complete.",
    BadRequest = "bad_request": "Correct the named field and send it again.",
    CallNotFound = "call_not_found": "Check the id; calls of other tenants and calls that are no longer kept are not found.",
    Cancelled = "cancelled": "It was ended on request; ask again under another Idempotency-Key.",
    DataDirNotOurs = "data_dir_not_ours": "Point --data or CABANA_DATA to a new or empty directory of your own.",
    DataDirReadOnly = "data_dir_read_only": "Point --data or CABANA_DATA to a directory that you may write to.",
    DataDirVersion = "data_dir_version": "Use the cabana that wrote it, or point --data to a new directory.",
    Draining = "draining": "Ask again in a moment: another server, or the next one here, takes new work.",
    DuplicateExec = "duplicate_exec": "Choose a fresh exec id for each command, or reattach to the one that ran.",
    FileBusy = "file_busy": "A process inside holds a lease on the file: end it or try again.",
    Forbidden = "forbidden": "Use a key whose role allows it: `use` changes sandboxes, `admin` manages keys and templates.",
    HostExhausted = "host_exhausted": "Try again later; if it stays, end sandboxes that take too much of it, or have the operator raise the setting.",
    HostUnsupported = "host_unsupported": "Run `cabana doctor`: it says what this host lacks and how to get it.",
    IdempotencyMismatch = "idempotency_mismatch": "Use a fresh Idempotency-Key for each different request.",
    Internal = "internal": "Run again with the same input; if it stays, report it with the message.",
    InvalidPath = "invalid_path": "Give an absolute path without NUL, `.`, `..` or empty parts.",
    IsDirectory = "is_directory": "Name a file, or use the operation for directories.",
    KeyNotFound = "key_not_found": "`cabana key ls` shows the keys that there are.",
    LeaseLost = "lease_lost": "Take the lease again and look at what is there, before you go on.",
    MountBusy = "mount_busy": "End what uses the mount inside, or stop the sandbox, and change its mounts then.",
    MountDenied = "mount_denied": "Name a directory that the operator's `mounts.allow` lists, or use a volume.",
    NoSpace = "no_space": "Free space on the disk or raise the sandbox's disk limit.",
    NotDirectory = "not_directory": "Name a directory: a part of the path is a file.",
    NotEmpty = "not_empty": "Remove what is inside first, or remove the whole tree.",
    NotFound = "not_found": "Check the path; parents are not made by a write.",
    NotRegular = "not_regular": "Only regular files can be read and written: this is a pipe, socket or device.",
    OutcomeUnknown = "outcome_unknown": "Look at what is there, then ask again under another Idempotency-Key.",
    OutputGone = "output_gone": "Read outputs before `retention.outputs` has passed, or have the operator keep them longer.",
    PermissionDenied = "permission_denied": "Act as a user who may, or change the mode first.",
    PortClosed = "port_closed": "Start the service inside and wait until it listens on 127.0.0.1 or ::1.",
    PortFailed = "port_failed": "Look at what the service inside says of the request, or ask it from inside with curl.",
    ProgramNotFound = "program_not_found": "Check the name and PATH inside; run it through a shell if it is a built-in.",
    ProviderOffline = "provider_offline": "Try again; what was asked may have happened, so ask by its id first.",
    QuotaBelowUse = "quota_below_use": "Stop or delete what is too much first, or set it by force: then nothing more begins until enough has gone.",
    QuotaExceeded = "quota_exceeded": "Stop or delete what is not needed, or have the operator raise the quota: `cabana quota show`.",
    RateLimited = "rate_limited": "Wait as long as Retry-After says, and send fewer calls a second.",
    SandboxBusy = "sandbox_busy": "Try again when the lease has ended, or let wait_ms wait for it.",
    SandboxGone = "sandbox_gone": "Create or start it again; its files are there unless it was deleted.",
    SandboxInUse = "sandbox_in_use": "Ask the process that has it, or end that process: the sandbox lives on.",
    SandboxNotFound = "sandbox_not_found": "Check the id with `list`; a deleted sandbox does not come back.",
    SandboxPaused = "sandbox_paused": "Start it: it goes on where it was.",
    SandboxRecovering = "sandbox_recovering": "Try again in a few seconds; if it stays, stop or delete the sandbox.",
    ScopeConflict = "scope_conflict": "Name the parts so that no hyphen moves from one to the next, or delete the sandbox that has the id.",
    ServerBusy = "server_busy": "Read the answers that are under way, end commands that do not read, ask for less at once, or try again later.",
    ServerRunning = "server_running": "Use the server that runs, or give this one a data directory of its own.",
    SnapshotNotFound = "snapshot_not_found": "`cabana snapshot ls` shows those that there are; a deleted one does not come back.",
    StoreUnavailable = "store_unavailable": "Try again; if it stays, look at the disk and the log of the server.",
    TaskNotFound = "task_not_found": "List the tasks; those of other tenants are not found.",
    TemplateExists = "template_exists": "Remove the template first or choose another name.",
    TemplateInUse = "template_in_use": "Delete the sandboxes made from it first.",
    TemplateInvalid = "template_invalid": "A template needs a root file system with a shell; check what --from names.",
    TemplateNotFound = "template_not_found": "`cabana template ls` shows the names; `cabana template add` makes one.",
    TimedOut = "timed_out": "Try again or give it more time.",
    TooLarge = "too_large": "Send less, or raise the limit.",
    TooManyConnections = "too_many_connections": "Close connections that nobody needs, or try again later; `max_connections` is the limit.",
    TooManyLinks = "too_many_links": "The path runs through too many symbolic links, or in a circle: name the target.",
    TooManySearches = "too_many_searches": "Wait for searches that are under way, give this one more time (`timeout_ms`), or try again later.",
    TooManyStreams = "too_many_streams": "End streams and terminals that nobody needs, or try again later; `max_streams` is the limit.",
    TooManyWatches = "too_many_watches": "End watches that nobody needs, or watch a directory above with all that is below it.",
    TooManyWebhooks = "too_many_webhooks": "Remove webhooks that nobody needs; one can hear of all events.",
    Unauthorized = "unauthorized": "Send a valid key: `Authorization: Bearer KEY` or `X-API-KEY: KEY`.",
    UnknownUser = "unknown_user": "Name a user of the sandbox's own /etc/passwd, or give a number.",
    Unsupported = "unsupported": "Ask for what the provider's capabilities list.",
    UserRequired = "user_required": "Name the user in the header Cabana-User, or use a key that has a subject.",
    WebhookNotFound = "webhook_not_found": "`cabana webhook ls` shows those that there are.",
    VolumeExists = "volume_exists": "Use the volume that is there, or choose another name.",
    VolumeInUse = "volume_in_use": "Take it out of the mounts of the sandboxes that have it, or delete them, first.",
    VolumeNotFound = "volume_not_found": "`cabana volume ls` shows the names; `cabana volume create` makes one.",
    WorkdirNotFound = "workdir_not_found": "Make the working directory first or name another.",
}

impl Code {
    /// Whether it is we or our machine that failed, and not what was asked for: the operator wants to know. What a tenant can
    /// bring about at will is none, such as a sandbox whose disk is full: nobody fills the log of all.
    pub fn is_fault(self) -> bool {
        matches!(
            self,
            Self::DataDirNotOurs
                | Self::DataDirReadOnly
                | Self::DataDirVersion
                | Self::HostExhausted
                | Self::HostUnsupported
                | Self::Internal
                | Self::ProviderOffline
                | Self::ServerRunning
                | Self::StoreUnavailable
                | Self::TimedOut
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
