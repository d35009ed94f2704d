//! What several routes speak of.

use std::collections::BTreeMap;

use cabana_runtime::{
    Clamped, Mounts, Page, Record, Runtime, SandboxId, SandboxState, Scope, ScopeTemplate, Settings, SnapshotId, Told,
    Wanted, Wish,
};
use cabana_sandbox::{Base, Limits, NetworkPolicy, User};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{lifecycle::LifecycleBody, mounts::MountBody};
use crate::{
    error::{Answer, Refused},
    extract::maybe_object,
};

/// What decides which sandbox is meant.
#[derive(Clone, Deserialize, ToSchema)]
#[serde(tag = "scheme", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ScopeBody {
    /// One for each chat of an app's user.
    Chat {
        app: String,
        user: String,
        chat: String,
    },
    /// What the template gives with these variables; one without a value is `unknown`.
    Template {
        #[serde(default = "usual_template")]
        #[schema(example = "{launcher_type}_{launcher_id}")]
        template: String,
        #[serde(default)]
        variables: BTreeMap<String, String>,
    },
    ProjectAgent {
        project: String,
        agent: String,
    },
    User {
        user: String,
    },
    /// A plain name.
    Fixed {
        name: String,
    },
}

/// One sandbox for each chat or group, whoever speaks there (LB-3).
fn usual_template() -> String {
    "{launcher_type}_{launcher_id}".to_owned()
}

impl ScopeBody {
    pub(super) fn scope(&self) -> Answer<Scope> {
        let scope = match self {
            Self::Chat { app, user, chat } => Scope::chat_of(app, user, chat),
            Self::Template { template, variables } => {
                ScopeTemplate::new(template.as_str()).and_then(|template| template.fill(variables))
            }
            Self::ProjectAgent { project, agent } => Scope::project_agent(project, agent),
            Self::User { user } => Scope::user(user),
            Self::Fixed { name } => Scope::fixed(name),
        };
        scope.map_err(|error| Refused::invalid("scope", error))
    }
}

/// What a sandbox is to be. What is not said is as the server's settings have it.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SpecBody {
    /// A template's name; `host` is the machine's own programs, read-only.
    template: Option<String>,
    /// In the place of a template: the snapshot that it begins with.
    snapshot: Option<String>,
    #[serde(default, deserialize_with = "maybe_object")]
    limits: Option<LimitsBody>,
    #[serde(default, deserialize_with = "maybe_object")]
    network: Option<NetworkBody>,
    /// For every command. Kept out of the ledger and of all answers.
    env: BTreeMap<String, String>,
    /// Who commands run as, unless they say otherwise.
    user: Option<String>,
    /// Whether setuid programs such as sudo gain anything inside.
    sudo: Option<bool>,
    /// Whether its root can only be read. Its working directory and `/tmp` can be written.
    read_only_root: Option<bool>,
    /// What makes it behave as another system expects. Without one, the server's own.
    dialect: Option<String>,
    /// Defaults by name, some of them locked, and the most that may be asked for. What was asked and not given is in `clamped` of
    /// the answer.
    profile: Option<String>,
    /// Names and values of yours, to know it by: at most 64, and 32 KiB in all as JSON.
    labels: BTreeMap<String, String>,
    /// What is seen at `/workspace`, if it names no other place.
    #[serde(default, deserialize_with = "maybe_object")]
    mount: Option<MountBody>,
    /// What is seen elsewhere.
    extra_mounts: Vec<MountBody>,
    #[serde(default, deserialize_with = "maybe_object")]
    lifecycle: Option<LifecycleBody>,
}

/// Something was asked for, and a profile gave something else.
#[derive(Clone, Serialize, ToSchema)]
pub(super) struct ClampedBody {
    #[schema(example = "memory_bytes")]
    field: &'static str,
    asked: String,
    given: String,
}

impl ClampedBody {
    pub(super) fn all(clamped: Vec<Clamped>) -> Vec<Self> {
        clamped
            .into_iter()
            .map(|Clamped { field, asked, given }| Self { field: field.as_str(), asked, given })
            .collect()
    }
}

/// What a sandbox may use. What is not said is not limited.
#[derive(Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsBody {
    memory_bytes: Option<u64>,
    /// In thousandths of one processor.
    cpu_milli: Option<u32>,
    pids: Option<u32>,
    disk_bytes: Option<u64>,
    inodes: Option<u64>,
    open_files: Option<u32>,
    io_bytes_per_sec: Option<u64>,
}

impl LimitsBody {
    pub(super) fn limits(self) -> Limits {
        Limits {
            memory: self.memory_bytes,
            cpu_milli: self.cpu_milli,
            pids: self.pids,
            disk: self.disk_bytes,
            inodes: self.inodes,
            open_files: self.open_files,
            io: self.io_bytes_per_sec,
            output: None,
        }
    }

    fn of(limits: &Limits) -> Self {
        Self {
            memory_bytes: limits.memory,
            cpu_milli: limits.cpu_milli,
            pids: limits.pids,
            disk_bytes: limits.disk,
            inodes: limits.inodes,
            open_files: limits.open_files,
            io_bytes_per_sec: limits.io,
        }
    }
}

#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NetworkBody {
    mode: Mode,
    /// Of `allowlist`: names, `*.` names, addresses and networks, each with a port if wanted. Of `public`, beside `deny`:
    /// addresses and networks that stay open though they are denied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    /// Of `public`: addresses and networks that are closed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deny: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Off,
    Allowlist,
    Public,
    Host,
}

impl NetworkBody {
    pub(super) fn policy(self) -> Answer<NetworkPolicy> {
        match self.mode {
            Mode::Public if !self.deny.is_empty() => {
                return Ok(NetworkPolicy::PublicBut { deny: self.deny, allow: self.allow });
            }
            _ if !self.deny.is_empty() => {
                return Err(Refused::invalid("network.deny", "belongs to the mode public alone"));
            }
            Mode::Allowlist => {}
            _ if !self.allow.is_empty() => {
                let why = "belongs to the mode allowlist, or to public beside network.deny";
                return Err(Refused::invalid("network.allow", why));
            }
            _ => {}
        }
        Ok(match self.mode {
            Mode::Off => NetworkPolicy::Off,
            Mode::Allowlist => NetworkPolicy::Allow(self.allow),
            Mode::Public => NetworkPolicy::Public,
            Mode::Host => NetworkPolicy::Host,
        })
    }

    fn of(policy: &NetworkPolicy) -> Self {
        let (mode, allow) = match policy {
            NetworkPolicy::Off => (Mode::Off, Vec::new()),
            NetworkPolicy::Allow(allow) => (Mode::Allowlist, allow.clone()),
            NetworkPolicy::Public => (Mode::Public, Vec::new()),
            NetworkPolicy::PublicBut { allow, .. } => (Mode::Public, allow.clone()),
            NetworkPolicy::Host => (Mode::Host, Vec::new()),
        };
        let deny = if let NetworkPolicy::PublicBut { deny, .. } = policy { deny.clone() } else { Vec::new() };
        Self { mode, allow, deny }
    }
}

impl SpecBody {
    /// And what of it is not as it was asked.
    pub(super) fn wanted(self, settings: &Settings) -> Answer<(Wanted, Vec<Clamped>)> {
        if self.snapshot.is_some() && self.template.is_some() {
            return Err(Refused::invalid("snapshot", "stands in the place of a template: give one of the two"));
        }
        let base = |template| if template == "host" { Base::Host } else { Base::Named(template) };
        let primary = self.mount.map(MountBody::primary).transpose()?;
        let wish = Wish {
            mounts: Mounts { primary, extra: MountBody::extra(self.extra_mounts)? },
            base: self.template.map(base),
            limits: self.limits.map(LimitsBody::limits),
            network: self.network.map(NetworkBody::policy).transpose()?,
            env: self.env,
            user: self.user.map(User::new).transpose().map_err(|error| Refused::invalid("user", error))?,
            sudo: self.sudo,
            read_only_root: self.read_only_root,
            snapshot: self.snapshot.as_deref().map(snapshot_id).transpose()?,
            lifecycle: self.lifecycle.map(LifecycleBody::lifecycle).unwrap_or_default(),
            dialect: self.dialect,
            profile: self.profile,
            labels: self.labels,
        };
        Ok(settings.wanted(wish)?)
    }
}

/// A sandbox.
#[derive(Serialize, ToSchema)]
pub(super) struct SandboxBody {
    #[schema(value_type = String, example = "k3vq7xw2m9pd5ru8thya")]
    pub(super) id: SandboxId,
    scope: Option<ScopeTold>,
    #[schema(value_type = String, example = "running")]
    state: SandboxState,
    /// Why it is in this state.
    why: String,
    /// While it runs: what keeps it awake, or since when nothing does.
    why_awake: Option<String>,
    /// While it does not.
    why_stopped: Option<String>,
    /// Why what it is to become did not come about yet. It is tried again.
    trouble: Option<String>,
    /// What it was made from, unless that was a snapshot.
    template: Option<String>,
    #[schema(value_type = Option<String>)]
    snapshot: Option<SnapshotId>,
    limits: LimitsBody,
    network: NetworkBody,
    read_only_root: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    dialect: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    /// Names alone.
    env: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mount: Option<MountBody>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    extra_mounts: Vec<MountBody>,
    /// As it applies, with what the server's settings say.
    lifecycle: LifecycleBody,
    /// Who has it for a while.
    lease: Option<LeaseTold>,
    #[schema(value_type = String, format = DateTime)]
    created_at: cabana_runtime::Time,
    #[schema(value_type = String, format = DateTime)]
    changed_at: cabana_runtime::Time,
    #[schema(value_type = String, format = DateTime)]
    active_at: cabana_runtime::Time,
    /// When it last began to run.
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<cabana_runtime::Time>,
    /// When the server looks at it again, to see whether its time has come.
    #[schema(value_type = Option<String>, format = DateTime)]
    due_at: Option<cabana_runtime::Time>,
}

#[derive(Serialize, ToSchema)]
struct LeaseTold {
    holder: String,
    #[schema(value_type = String, format = DateTime)]
    expires_at: cabana_runtime::Time,
}

#[derive(Serialize, ToSchema)]
struct ScopeTold {
    #[schema(example = "chat")]
    scheme: &'static str,
    /// The parts with what is between them. Two scopes can have the same.
    #[schema(example = "shop-alice-7")]
    value: String,
    #[serde(flatten)]
    parts: ScopeParts,
}

/// As the caller named them. What a template gave has none.
#[derive(Serialize, ToSchema)]
struct ScopeParts {
    #[serde(skip_serializing_if = "Option::is_none")]
    app: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

impl ScopeTold {
    fn of(scope: &Scope) -> Self {
        let mut parts: BTreeMap<_, _> = scope.parts().into_iter().collect();
        let mut part = |name| parts.remove(name);
        let parts = ScopeParts {
            app: part("app"),
            user: part("user"),
            chat: part("chat"),
            project: part("project"),
            agent: part("agent"),
            name: part("name"),
        };
        Self { scheme: scope.scheme().as_str(), value: scope.value(), parts }
    }
}

impl SandboxBody {
    pub(super) fn of(runtime: &Runtime, record: &Record, wanted: &Wanted) -> Self {
        let Told { lifecycle, why_awake, why_stopped, active, lease } = runtime.told(record, wanted);
        Self {
            id: record.id.clone(),
            scope: record.scope.as_ref().map(ScopeTold::of),
            state: record.state,
            why: record.why.clone(),
            template: match &wanted.sandbox.base {
                Base::Host => Some("host".to_owned()),
                Base::Named(name) => Some(name.clone()),
                Base::Layers(layers) => Some(format!("{} layers", layers.len())),
                Base::Snapshot(_) => None, // that name is the provider's own
            },
            snapshot: wanted.snapshot,
            limits: LimitsBody::of(&wanted.sandbox.limits),
            network: NetworkBody::of(&wanted.sandbox.network),
            read_only_root: wanted.sandbox.read_only_root,
            dialect: wanted.dialect.clone(),
            profile: wanted.profile.clone(),
            env: wanted.env.keys().cloned().collect(),
            labels: wanted.labels.clone(),
            mount: wanted.mounts.primary.as_ref().map(MountBody::of),
            extra_mounts: wanted.mounts.extra.iter().map(MountBody::of).collect(),
            lifecycle: LifecycleBody::of(lifecycle),
            lease: lease.map(|lease| LeaseTold { holder: lease.holder, expires_at: lease.until }),
            why_awake,
            why_stopped,
            trouble: record.trouble.clone(),
            started_at: record.started,
            due_at: record.due,
            created_at: record.created,
            changed_at: record.changed,
            active_at: active,
        }
    }
}

/// Which part of a long list: at most so many, from where the last page ended.
pub(super) fn page(limit: Option<u32>, cursor: Option<String>) -> Answer<Page> {
    const USUAL: u32 = 100;
    const MOST: u32 = 1000;
    match limit.unwrap_or(USUAL) {
        limit @ 1..=MOST => Ok(Page { limit, after: cursor }),
        _ => Err(Refused::invalid("limit", format!("must be from 1 to {MOST}"))),
    }
}

pub(crate) fn id(text: &str) -> Answer<SandboxId> {
    SandboxId::new(text).map_err(|error| Refused::invalid("sandbox", error))
}

pub(super) fn snapshot_id(text: &str) -> Answer<SnapshotId> {
    text.parse().map_err(|error| Refused::invalid("snapshot", error))
}

/// As a number is written: one port has one address.
pub(crate) fn port(text: &str) -> Answer<u16> {
    match text.parse::<u16>() {
        Ok(port) if port > 0 && port.to_string() == text => Ok(port),
        _ => Err(Refused::invalid("port", "must be from 1 to 65535")),
    }
}
