//! The settings as the parts of the server take them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use cabana_engine::{Config, EncryptedHello, NetworkSettings};
use cabana_model::{Quota, Reaper};
use cabana_runtime::{Action, Lifecycle, MountRules, Retention, Settings};
use cabana_sandbox::{Limits, NetworkPolicy};
use cabana_server::Bounds;
use cabana_store::Durability;
use jiff::SignedDuration;

use super::{
    kind::{NONE, address, domain, list, number, switch},
    named,
    resolve::{Origin, Resolved},
    table::{
        ALLOW, ARCHIVE_AFTER, CA, CPUS, DELETE_AFTER, DEV_TLS, DIALECT, DISK, DURABILITY, E2B_SECURE, ENCRYPTED_HELLO,
        EXEC_TIMEOUT, EXEC_TIMEOUT_MAX, GC_INTERVAL, HARD, HARD_ACTION, IDLE, IDLE_ACTION, IMAGES_MAP, INODES,
        INSECURE_HTTP, IO, KEEP_CALLS, KEEP_LEDGER, KEEP_OUTPUTS, KEEP_SNAPSHOTS, KEEP_TEMPLATES, LISTEN, LOG_FORMAT,
        LOG_LEVEL, MAX_BODY, MAX_CONNECTIONS, MAX_STREAMS, MEMORY, MIN_FREE, MODE, MOUNTS_ALLOW, OPEN_FILES, OUTPUT,
        OWN_ADDRESSES, PIDS, PREVIEW_DOMAIN, QUOTA_CALLS_PER_SEC, QUOTA_CONCURRENT_CALLS, QUOTA_CPUS, QUOTA_DISK,
        QUOTA_LEDGER, QUOTA_MEMORY, QUOTA_RUNNING, QUOTA_SANDBOXES, QUOTA_STORED, QUOTA_TASKS, REAP_BATCH,
        REAP_INTERVAL, SPARES, Setting, TELEMETRY_ENDPOINT, TEMPLATE_MAX, TLS_CERT, TLS_KEY, UPSTREAM_PROXY,
        WEBHOOKS_ALLOW,
    },
};
use crate::amounts::{duration, processors, size};

#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) listen: SocketAddr,
    /// The certificate and its key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    /// Where the server makes both itself.
    pub(crate) dev_tls: bool,
    pub(crate) insecure: bool,
    pub(crate) preview_domain: Option<String>,
    pub(crate) bounds: Bounds,
    pub(crate) engine: Config,
    pub(crate) durability: Durability,
    pub(crate) settings: Settings,
    pub(crate) log: Logging,
    /// Of the collector of traces.
    pub(crate) collector: Option<reqwest::Url>,
}

#[derive(Debug)]
pub(crate) struct Logging {
    pub(crate) json: bool,
    pub(crate) level: String,
}

impl Serving {
    /// What each takes is known to be right by now; here is what they must be together.
    pub(crate) fn new(resolved: &Resolved, data: PathBuf) -> Result<Self, String> {
        let path = |text: &str| Ok(PathBuf::from(text));
        let tls = match (resolved.read(&TLS_CERT, path)?, resolved.read(&TLS_KEY, path)?) {
            (None, None) => None,
            (Some(chain), Some(key)) => Some((chain, key)),
            (Some(_), None) => return Err("server.tls_cert needs server.tls_key beside it".into()),
            (None, Some(_)) => return Err("server.tls_key needs server.tls_cert beside it".into()),
        };
        let dev_tls = set(resolved, &DEV_TLS, switch)?;
        if dev_tls && tls.is_some() {
            return Err("server.dev_tls makes a certificate, and server.tls_cert gives one: use one of the two".into());
        }
        let upstream = resolved.read(&UPSTREAM_PROXY, |text| Ok(text.to_owned()))?;
        let own = resolved.read(&OWN_ADDRESSES, addresses)?.unwrap_or_default();
        let encrypted_hello = set(resolved, &ENCRYPTED_HELLO, |text| {
            Ok(if text == "refuse" { EncryptedHello::Refuse } else { EncryptedHello::Pass })
        })?;
        let network = NetworkSettings { upstream, ca: resolved.read(&CA, path)?, own, encrypted_hello };
        let full = resolved.read(&DURABILITY, |text| Ok(text == "full"))?.unwrap_or_default();
        Ok(Self {
            listen: set(resolved, &LISTEN, address)?,
            tls,
            dev_tls,
            insecure: set(resolved, &INSECURE_HTTP, switch)?,
            preview_domain: preview_domain(resolved, dev_tls)?,
            bounds: Bounds {
                body: set(resolved, &MAX_BODY, |text| size(text).map(|n| usize::try_from(n).unwrap_or(usize::MAX)))?,
                connections: set(resolved, &MAX_CONNECTIONS, at_least_one)?,
                streams: set(resolved, &MAX_STREAMS, number)?,
                ..Bounds::default()
            },
            settings: Settings { data: Some(data.clone()), mounts: mounts(resolved, &data)?, ..settings(resolved)? },
            engine: Config { spares: set(resolved, &SPARES, number)?, network, ..Config::new(data) },
            durability: if full { Durability::Full } else { Durability::Kill },
            log: Logging {
                json: set(resolved, &LOG_FORMAT, |text| Ok(text == "json"))?,
                level: set(resolved, &LOG_LEVEL, |text| Ok(text.to_owned()))?,
            },
            collector: resolved.read(&TELEMETRY_ENDPOINT, collector)?,
        })
    }
}

/// Clients accept no certificate for all names below a name of one part, such as `*.localhost`.
fn preview_domain(resolved: &Resolved, dev_tls: bool) -> Result<Option<String>, String> {
    let domain = set(resolved, &PREVIEW_DOMAIN, domain)?;
    let by_default = resolved.get(&PREVIEW_DOMAIN).is_none_or(|found| found.from == Origin::Default);
    match domain {
        _ if dev_tls && by_default => Ok(Some("cabana.localhost".to_owned())),
        Some(domain) if dev_tls && !domain.contains('.') => Err(format!(
            "server.dev_tls: no certificate covers the names below {domain}: give a server.preview_domain such as \
             cabana.{domain}"
        )),
        None if dev_tls => Err("server.dev_tls needs a server.preview_domain to make a certificate for".into()),
        domain => Ok(domain),
    }
}

/// Of a setting that has a default.
fn set<T>(resolved: &Resolved, setting: &Setting, read: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    resolved.read(setting, read)?.ok_or_else(|| format!("{} is not set", setting.key()))
}

/// Traces go below it.
fn collector(text: &str) -> Result<reqwest::Url, String> {
    let mut url = text.parse().ok().filter(|url: &reqwest::Url| matches!(url.scheme(), "http" | "https"));
    if let Some(mut parts) = url.as_mut().and_then(|url| url.path_segments_mut().ok()) {
        parts.pop_if_empty().extend(["v1", "traces"]);
    }
    url.ok_or_else(|| "give an address, as in http://127.0.0.1:4318".to_owned())
}

fn addresses(text: &str) -> Result<Vec<IpAddr>, String> {
    let address = |text: &str| text.parse().map_err(|_| format!("{text:?} is no address, as in 203.0.113.7"));
    list(text).iter().map(|text| address(text)).collect()
}

/// None would let nobody in.
fn at_least_one(text: &str) -> Result<usize, String> {
    match number(text)? {
        0 => Err("must be more than zero".into()),
        number => Ok(number),
    }
}

fn settings(resolved: &Resolved) -> Result<Settings, String> {
    let mut settings = Settings::default();
    settings.sandbox.limits = limits(resolved)?;
    settings.sandbox.network = network(resolved)?;
    settings.exec_timeout = set(resolved, &EXEC_TIMEOUT, duration)?;
    settings.exec_timeout_most = set(resolved, &EXEC_TIMEOUT_MAX, duration)?;
    settings.output_cap = set(resolved, &OUTPUT, size)?;
    settings.template_cap = set(resolved, &TEMPLATE_MAX, size)?;
    settings.images = resolved.read(&IMAGES_MAP, images)?.unwrap_or_default();
    settings.e2b_always_secure = set(resolved, &E2B_SECURE, |text| Ok(text == "always"))?;
    settings.retention = retention(resolved)?;
    settings.gc_interval = set(resolved, &GC_INTERVAL, duration)?;
    settings.min_free = or_none(resolved, &MIN_FREE, size)?;
    settings.webhooks_allow = resolved.read(&WEBHOOKS_ALLOW, webhook_rules)?.unwrap_or_default();
    settings.lifecycle = lifecycle(resolved)?;
    settings.reaper_interval = set(resolved, &REAP_INTERVAL, duration)?;
    settings.reaper_batch = set(resolved, &REAP_BATCH, at_least_one)?.try_into().unwrap_or(u32::MAX);
    settings.quota = quota(resolved)?;
    settings.profiles = resolved.1.profiles.clone();
    settings.dialects = named::dialects(&resolved.1)?;
    settings.dialect = resolved.read(&DIALECT, |text| Ok(text.to_owned()))?;
    let by_default = |setting| resolved.get(setting).is_none_or(|found| found.from == Origin::Default);
    if let Some(dialect) = settings.dialect(None).map_err(|error| format!("server.{error}"))? {
        let Reaper { interval_sec, batch } = dialect.reaper;
        let interval = interval_sec.filter(|_| by_default(&REAP_INTERVAL)).map(Duration::from_secs);
        let batch = batch.filter(|_| by_default(&REAP_BATCH));
        settings.reaper_interval = interval.unwrap_or(settings.reaper_interval);
        settings.reaper_batch = batch.unwrap_or(settings.reaper_batch);
    }
    if settings.exec_timeout > settings.exec_timeout_most {
        return Err("limits.exec_timeout is longer than limits.exec_timeout_max".into());
    }
    Ok(settings)
}

/// What lies in the data directory is never mounted, nor what holds it.
fn mounts(resolved: &Resolved, data: &Path) -> Result<MountRules, String> {
    let allow = resolved.read(&MOUNTS_ALLOW, |text| Ok(list(text)))?.unwrap_or_default();
    MountRules::new(&allow, vec![crate::data::real(data)]).map_err(|why| format!("mounts.allow: {why}"))
}

fn or_none<T>(
    resolved: &Resolved,
    setting: &Setting,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    let or_none = |text: &str| if text == NONE { Ok(None) } else { read(text).map(Some) };
    Ok(resolved.read(setting, or_none)?.flatten())
}

fn retention(resolved: &Resolved) -> Result<Retention, String> {
    let keep =
        |setting| or_none(resolved, setting, |text| Ok(duration(text)?.try_into().unwrap_or(SignedDuration::MAX)));
    Ok(Retention {
        outputs: keep(&KEEP_OUTPUTS)?,
        calls: keep(&KEEP_CALLS)?,
        ledger: keep(&KEEP_LEDGER)?,
        snapshots: keep(&KEEP_SNAPSHOTS)?,
        templates: keep(&KEEP_TEMPLATES)?,
    })
}

fn images(text: &str) -> Result<BTreeMap<String, String>, String> {
    list(text).iter().map(|one| cabana_server::read_image(one)).collect()
}

fn webhook_rules(text: &str) -> Result<Vec<String>, String> {
    let rules = list(text);
    cabana_runtime::check_rules(&rules).map(|()| rules)
}

fn lifecycle(resolved: &Resolved) -> Result<Lifecycle, String> {
    let seconds = |setting| {
        let read = |text: &str| if text == NONE { Ok(0) } else { duration(text).map(|time| time.as_secs().max(1)) };
        resolved.read(setting, read)
    };
    let action = |setting| resolved.read(setting, |text| Ok(Action::parse(text))).map(Option::flatten);
    let lifecycle = Lifecycle {
        idle_sec: seconds(&IDLE)?,
        idle_action: action(&IDLE_ACTION)?,
        hard_sec: seconds(&HARD)?,
        hard_action: action(&HARD_ACTION)?,
        archive_after_sec: seconds(&ARCHIVE_AFTER)?,
        delete_after_sec: seconds(&DELETE_AFTER)?,
        ..Lifecycle::default()
    };
    lifecycle.check().map_err(|error| error.to_string())?;
    Ok(lifecycle)
}

/// Of one that may be none.
fn read<T>(resolved: &Resolved, setting: &Setting, read: fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    let or_none = |text: &str| if text == NONE { Ok(None) } else { read(text).map(Some) };
    Ok(resolved.read(setting, or_none)?.flatten())
}

fn quota(resolved: &Resolved) -> Result<Quota, String> {
    let quota = Quota {
        sandboxes: read(resolved, &QUOTA_SANDBOXES, number)?,
        running: read(resolved, &QUOTA_RUNNING, number)?,
        cpu_milli: read(resolved, &QUOTA_CPUS, processors)?.map(u64::from),
        memory_bytes: read(resolved, &QUOTA_MEMORY, size)?,
        disk_bytes: read(resolved, &QUOTA_DISK, size)?,
        calls_per_sec: read(resolved, &QUOTA_CALLS_PER_SEC, number)?,
        concurrent_calls: read(resolved, &QUOTA_CONCURRENT_CALLS, number)?,
        tasks: read(resolved, &QUOTA_TASKS, number)?,
        stored_bytes: read(resolved, &QUOTA_STORED, size)?,
        ledger_bytes: read(resolved, &QUOTA_LEDGER, size)?,
    };
    match quota.too_large() {
        Some(resource) => Err(format!("quotas: {} is too large", resource.as_str())),
        None => Ok(quota),
    }
}

fn limits(resolved: &Resolved) -> Result<Limits, String> {
    let limits = Limits {
        memory: or_none(resolved, &MEMORY, size)?,
        cpu_milli: or_none(resolved, &CPUS, processors)?,
        pids: or_none(resolved, &PIDS, number)?,
        disk: or_none(resolved, &DISK, size)?,
        inodes: or_none(resolved, &INODES, number)?,
        open_files: or_none(resolved, &OPEN_FILES, number)?,
        io: or_none(resolved, &IO, size)?,
        ..Limits::NONE
    };
    limits.check().map_err(|error| error.to_string())?;
    Ok(limits)
}

fn network(resolved: &Resolved) -> Result<NetworkPolicy, String> {
    let allow = resolved.read(&ALLOW, |text| Ok(list(text)))?;
    let by_default = resolved.get(&MODE).is_none_or(|found| found.from == Origin::Default);
    let mode = set(resolved, &MODE, |text| Ok(text.to_owned()))?;
    match (mode.as_str(), allow) {
        ("allowlist", allow) => Ok(NetworkPolicy::Allow(allow.unwrap_or_default())),
        (_, Some(allow)) if by_default => Ok(NetworkPolicy::Allow(allow)),
        (mode, Some(_)) => Err(format!("network.allow belongs to the mode allowlist, and network.mode is {mode}")),
        ("off", None) => Ok(NetworkPolicy::Off),
        ("host", None) => Ok(NetworkPolicy::Host),
        (_, None) => Ok(NetworkPolicy::Public),
    }
}
