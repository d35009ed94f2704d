//! The bodies of the control plane: what creates, finds, changes and ends sandboxes.
//!
//! Three generations of clients speak to it at once ([`crate::Generation`]); what differs between them has types of its own
//! ([`NewSandbox`] and [`NewSandboxV2`], [`ConnectSandbox`] and [`ConnectSandboxV2`]), and all else is shared. `null` means the
//! same as nothing, and unknown fields are ignored.

mod create;
mod error;
mod log;
mod metric;
mod network;
mod query;
mod sandbox;
mod snapshot;
mod template;
mod verbs;

pub use self::{
    create::{AutoResume, Iam, IamToken, NewSandbox, NewSandboxV2, VolumeMount, Wanted},
    error::ApiError,
    log::{LogEntry, LogLevel, LogLine, SandboxLogs, SandboxLogsV2},
    metric::{SandboxMetric, SandboxesWithMetrics},
    network::{EgressProxy, NetworkConfig, NetworkRule, NetworkTransform, NetworkUpdate},
    query::{BuildStatusQuery, Direction, ListSandboxes, ListSnapshots, LogsQuery, MetricsQuery, Order, States},
    sandbox::{Lifecycle, ListedSandbox, OnTimeout, PauseMode, Sandbox, SandboxDetail, SandboxState},
    snapshot::{NewSnapshot, SnapshotInfo},
    template::{
        AssignTags, AssignedTags, BuildInfo, BuildLogEntry, BuildReason, BuildStart, BuildStatus, FileUpload,
        ImageRegistry, NewTemplate, NewTemplateAnswer, RemoveTags, Step, Template, TemplateAlias, TemplateBuild,
        TemplateTag, TemplateWithBuilds,
    },
    verbs::{
        ConnectSandbox, ConnectSandboxV2, ForkResult, ForkSandbox, PauseSandbox, RefreshSandbox, ResumeSandbox,
        SetTimeout,
    },
};
