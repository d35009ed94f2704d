//! What a sandbox becomes by what was asked, its profile, its dialect and the settings.

use std::{collections::BTreeMap, time::Duration};

use cabana_model::{Clamped, Dialect, Field, Lifecycle, MountMode, NetworkMode, Profile, SnapshotId, Traits};
use cabana_sandbox::{Base, Limits, NetworkPolicy, User};

use crate::{Error, Mounts, Result, Settings, Wanted};

/// What somebody wants of a sandbox. What is not said is as the profile, the dialect and the settings have it.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    pub base: Option<Base>,
    /// Named, it is the whole of them: what it does not say has no limit, but by the profile.
    pub limits: Option<Limits>,
    pub network: Option<NetworkPolicy>,
    pub env: BTreeMap<String, String>,
    pub user: Option<User>,
    pub sudo: Option<bool>,
    pub read_only_root: Option<bool>,
    pub snapshot: Option<SnapshotId>,
    pub mounts: Mounts,
    pub lifecycle: Lifecycle,
    pub dialect: Option<String>,
    pub profile: Option<String>,
    pub labels: BTreeMap<String, String>,
}

impl Settings {
    /// The named one, or the server's own.
    pub fn dialect(&self, name: Option<&str>) -> Result<Option<&Dialect>> {
        let Some(name) = name.or(self.dialect.as_deref()) else { return Ok(None) };
        let found = self.dialects.get(name);
        found
            .map(Some)
            .ok_or_else(|| Error::invalid("dialect", format!("there is no {name:?}{}", known(&self.dialects))))
    }

    /// The named one, of the dialect or of the settings; or the dialect's usual one.
    pub fn profile(&self, dialect: Option<&str>, name: Option<&str>) -> Result<Option<&Profile>> {
        let dialect = self.dialect(dialect)?;
        let Some(name) = name.or_else(|| dialect?.profile.as_deref()) else { return Ok(None) };
        let of_dialect = dialect.and_then(|dialect| dialect.profiles.get(name));
        let found = of_dialect.or_else(|| self.profiles.get(name));
        found.map(Some).ok_or_else(|| {
            let all: BTreeMap<_, _> =
                dialect.iter().flat_map(|dialect| &dialect.profiles).chain(&self.profiles).collect();
            Error::invalid("profile", format!("there is no {name:?}{}", known(&all)))
        })
    }

    /// What the wish comes to, and what of it is not as it was asked.
    pub fn wanted(&self, wish: Wish) -> Result<(Wanted, Vec<Clamped>)> {
        let profile = self.profile(wish.dialect.as_deref(), wish.profile.as_deref())?;
        let mut sandbox = self.sandbox.clone();
        sandbox.base = wish.base.unwrap_or(sandbox.base);
        sandbox.user = wish.user.or(sandbox.user);
        let asked = Traits {
            network: wish.network.as_ref().map(mode),
            sudo: wish.sudo,
            read_only_root: wish.read_only_root,
            ..numbers(&wish.limits.unwrap_or_default())
        };
        sandbox.limits = wish.limits.unwrap_or(sandbox.limits);
        sandbox.network = wish.network.unwrap_or(sandbox.network);
        let (given, clamped) = match profile {
            Some(profile) => profile.apply(&asked),
            None => (asked, Vec::new()),
        };
        limit(&mut sandbox.limits, &given);
        network(&mut sandbox.network, given.network);
        sandbox.sudo = given.sudo.unwrap_or(sandbox.sudo);
        sandbox.read_only_root = given.read_only_root.unwrap_or(sandbox.read_only_root);
        let Wish { env, snapshot, mut mounts, lifecycle, dialect, profile: named, labels, .. } = wish;
        let mut clamped = clamped;
        clamped.extend(profile.and_then(|profile| hold(profile, &mut mounts)));
        let notes = BTreeMap::new();
        let wanted =
            Wanted { sandbox, env, once: false, snapshot, mounts, lifecycle, dialect, profile: named, labels, notes };
        Ok((wanted, clamped))
    }

    /// Other limits and another network for one that is there: its profile holds on.
    pub(crate) fn altered(
        &self,
        wanted: &Wanted,
        limits: Option<Limits>,
        network_asked: Option<&NetworkPolicy>,
    ) -> (Limits, NetworkPolicy, Vec<Clamped>) {
        let (mut after, mut policy) =
            (limits.unwrap_or(wanted.sandbox.limits), network_asked.unwrap_or(&wanted.sandbox.network).clone());
        let Some(profile) = self.profile_of(wanted) else { return (after, policy, Vec::new()) };
        let asked = Traits { network: network_asked.map(mode), ..numbers(&limits.unwrap_or_default()) };
        let (given, clamped) = profile.apply(&asked);
        if limits.is_some() {
            limit(&mut after, &given);
        }
        if network_asked.is_some() {
            network(&mut policy, given.network);
        }
        (after, policy, clamped)
    }

    /// How long a command may take that is waited for.
    pub(crate) fn timeout(&self, wanted: &Wanted, asked: Option<Duration>) -> (Duration, Option<Clamped>) {
        let Some(profile) = self.profile_of(wanted) else { return (asked.unwrap_or(self.exec_timeout), None) };
        let (default, most) = (profile.defaults.timeout_sec, profile.most.timeout_sec);
        let default = default.map_or(self.exec_timeout, Duration::from_secs);
        let free = asked.filter(|_| !profile.locked.contains(&Field::TimeoutSec));
        let most = most.map_or(Duration::MAX, Duration::from_secs);
        let given = free.unwrap_or(default).min(most);
        let told = |time: Duration| time.as_secs_f64().to_string();
        let clamped = asked.filter(|asked| *asked != given);
        let told = |asked| Clamped { field: Field::TimeoutSec, asked: told(asked), given: told(given) };
        (given, clamped.map(told))
    }

    pub(crate) fn dialect_of(&self, wanted: &Wanted) -> Option<&Dialect> {
        self.dialect(wanted.dialect.as_deref()).ok().flatten()
    }

    /// One that the settings do not have any more binds nobody.
    pub(crate) fn profile_of(&self, wanted: &Wanted) -> Option<&Profile> {
        self.profile(wanted.dialect.as_deref(), wanted.profile.as_deref()).ok().flatten()
    }
}

fn known<T>(all: &BTreeMap<impl AsRef<str> + Ord, T>) -> String {
    match all.is_empty() {
        true => ": none is set up here".into(),
        false => format!("; there are {}", all.keys().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")),
    }
}

/// Where nothing was said, mounts are as the profile has them; where the profile says so for good, none is otherwise.
pub(crate) fn hold(profile: &Profile, mounts: &mut Mounts) -> Option<Clamped> {
    let mode = profile.defaults.mount_mode?;
    let locked = profile.locked.contains(&Field::MountMode);
    let mut clamped = None;
    for mount in mounts.primary.iter_mut().chain(&mut mounts.extra) {
        let asked = *mount.mode.get_or_insert(mode);
        let too_much = mode != MountMode::Rw && asked == MountMode::Rw || mode == MountMode::None;
        if locked && too_much && asked != mode {
            mount.mode = Some(mode);
            clamped = Some(Clamped { field: Field::MountMode, asked: asked.to_string(), given: mode.to_string() });
        }
    }
    clamped
}

fn mode(network: &NetworkPolicy) -> NetworkMode {
    match network {
        NetworkPolicy::Off => NetworkMode::Off,
        NetworkPolicy::Allow(_) => NetworkMode::Allowlist,
        NetworkPolicy::Public | NetworkPolicy::PublicBut { .. } => NetworkMode::Public,
        NetworkPolicy::Host => NetworkMode::Host,
    }
}

fn numbers(limits: &Limits) -> Traits {
    Traits {
        cpu_milli: limits.cpu_milli.map(u64::from),
        memory_bytes: limits.memory,
        pids: limits.pids.map(u64::from),
        disk_bytes: limits.disk,
        ..Traits::default()
    }
}

/// What is not given stays.
fn limit(limits: &mut Limits, given: &Traits) {
    let narrow = |number: Option<u64>| number.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    limits.cpu_milli = narrow(given.cpu_milli).or(limits.cpu_milli);
    limits.memory = given.memory_bytes.or(limits.memory);
    limits.pids = narrow(given.pids).or(limits.pids);
    limits.disk = given.disk_bytes.or(limits.disk);
}

/// A list stays where lists are given: a profile names none.
fn network(policy: &mut NetworkPolicy, given: Option<NetworkMode>) {
    if let Some(given) = given.filter(|given| *given != mode(policy)) {
        *policy = match given {
            NetworkMode::Off => NetworkPolicy::Off,
            NetworkMode::Allowlist => NetworkPolicy::Allow(Vec::new()),
            NetworkMode::Public => NetworkPolicy::Public,
            NetworkMode::Host => NetworkPolicy::Host,
        };
    }
}
