//! What the operator decides.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use cabana_model::{Action, Dialect, Lifecycle, MountRules, Profile, Quota, Retention};
use cabana_sandbox::{Base, Limits, NetworkPolicy, SandboxSpec};
use jiff::SignedDuration;

#[derive(Clone, Debug)]
pub struct Settings {
    /// What a sandbox is when nobody says otherwise.
    pub sandbox: SandboxSpec,
    /// How long a command may take that names no time, and that is waited for.
    pub exec_timeout: Duration,
    /// The longest that may be asked for.
    pub exec_timeout_most: Duration,
    /// Of one command: how much of its output is kept. What is beyond it is counted.
    pub output_cap: u64,
    /// Between the friendly signal and the last one.
    pub grace: Duration,
    /// Which directories of this machine may be mounted.
    pub mounts: MountRules,
    /// Of an archive that becomes a template: how much it may hold, once it is unpacked.
    pub template_cap: u64,
    /// Which templates stand for images of containers.
    pub images: BTreeMap<String, String>,
    /// Whether sandboxes of E2B's clients ask for their token also where the client did not ask for that.
    pub e2b_always_secure: bool,
    /// What a tenant may have, where nobody has set its quota.
    pub quota: Quota,
    pub profiles: BTreeMap<String, Profile>,
    pub dialects: BTreeMap<String, Dialect>,
    /// Of sandboxes that name none.
    pub dialect: Option<String>,
    /// Which addresses a webhook may have that are not public: rules, as in an allow-list.
    pub webhooks_allow: Vec<String>,
    /// When a sandbox rests and goes that does not say so itself.
    pub lifecycle: Lifecycle,
    /// At the latest so long after the last time, sandboxes are looked after.
    pub reaper_interval: Duration,
    /// So many of them at a time.
    pub reaper_batch: u32,
    pub retention: Retention,
    /// From one look at what may go to the next.
    pub gc_interval: Duration,
    /// Where everything lies, and how much of that disk stays free: below it nothing new is made.
    pub data: Option<PathBuf>,
    pub min_free: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sandbox: SandboxSpec {
                network: NetworkPolicy::Public,
                limits: Limits { pids: Some(4096), ..Limits::NONE },
                ..SandboxSpec::new(Base::Host)
            },
            exec_timeout: Duration::from_secs(120),
            exec_timeout_most: Duration::from_secs(3600),
            output_cap: 256 << 20,
            grace: Duration::from_secs(2),
            mounts: MountRules::default(),
            template_cap: 16 << 30,
            images: BTreeMap::new(),
            e2b_always_secure: true,
            quota: Quota { ledger_bytes: Some(8 << 30), ..Quota::NONE },
            profiles: BTreeMap::new(),
            dialects: BTreeMap::new(),
            dialect: None,
            webhooks_allow: Vec::new(),
            lifecycle: Lifecycle {
                idle_sec: Some(300),
                idle_action: Some(Action::Stop),
                hard_sec: Some(0),
                hard_action: Some(Action::Stop),
                archive_after_sec: Some(0),
                delete_after_sec: Some(0),
                ..Lifecycle::default()
            },
            reaper_interval: Duration::from_secs(60),
            reaper_batch: 50,
            retention: Retention {
                outputs: Some(SignedDuration::from_hours(30 * 24)),
                calls: Some(SignedDuration::from_hours(90 * 24)),
                ..Retention::default()
            },
            gc_interval: Duration::from_secs(3600),
            data: None,
            min_free: Some(1 << 30),
        }
    }
}
