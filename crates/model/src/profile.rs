//! A profile: what a sandbox is that names it, what of that nobody may change, and the most that may be asked for.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::MountMode;

/// Which network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    Off,
    Allowlist,
    Public,
    Host,
}

/// What a profile speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    Network,
    MountMode,
    ReadOnlyRoot,
    Sudo,
    CpuMilli,
    MemoryBytes,
    Pids,
    DiskBytes,
    TimeoutSec,
}

impl Field {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::MountMode => "mount_mode",
            Self::ReadOnlyRoot => "read_only_root",
            Self::Sudo => "sudo",
            Self::CpuMilli => "cpu_milli",
            Self::MemoryBytes => "memory_bytes",
            Self::Pids => "pids",
            Self::DiskBytes => "disk_bytes",
            Self::TimeoutSec => "timeout_sec",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What was asked for, what is given where nothing was, or what came of both. What is not said is left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Traits {
    pub network: Option<NetworkMode>,
    /// Of directories of the host.
    pub mount_mode: Option<MountMode>,
    /// Whether its root can only be read: all but its home, what is mounted, and what is there for a while.
    pub read_only_root: Option<bool>,
    pub sudo: Option<bool>,
    pub cpu_milli: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub pids: Option<u64>,
    pub disk_bytes: Option<u64>,
    /// Of a command that is waited for.
    pub timeout_sec: Option<u64>,
}

/// The most of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Most {
    pub cpu_milli: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub pids: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub timeout_sec: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    pub defaults: Traits,
    /// What stays as `defaults` has it, whatever is asked for.
    pub locked: Vec<Field>,
    pub most: Most,
}

/// Something was asked for, and something else given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clamped {
    pub field: Field,
    pub asked: String,
    pub given: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    #[error("it locks {0} and does not say what that is: give it in `defaults`")]
    LockedToNothing(Field),
    #[error("it locks {0} twice")]
    LockedTwice(Field),
    #[error("it gives {field} {default}, and its own `most` is {most}")]
    AboveMost { field: Field, default: u64, most: u64 },
    #[error("{0} is 0: nothing could be done with it")]
    Zero(Field),
    #[error(
        "it gives the network `allowlist`, and a profile names nothing to allow: leave it to the settings, or use another mode"
    )]
    Allowlist,
}

impl Profile {
    pub fn check(&self) -> Result<(), ProfileError> {
        for (at, field) in self.locked.iter().enumerate() {
            if self.locked[..at].contains(field) {
                return Err(ProfileError::LockedTwice(*field));
            }
            if !self.defaults.says(*field) {
                return Err(ProfileError::LockedToNothing(*field));
            }
        }
        if self.defaults.network == Some(NetworkMode::Allowlist) {
            return Err(ProfileError::Allowlist);
        }
        for (field, default, most) in self.numbers() {
            if default == Some(0) || most == Some(0) {
                return Err(ProfileError::Zero(field));
            }
            if let (Some(default), Some(most)) = (default, most)
                && default > most
            {
                return Err(ProfileError::AboveMost { field, default, most });
            }
        }
        Ok(())
    }

    fn numbers(&self) -> [(Field, Option<u64>, Option<u64>); 5] {
        let (defaults, most) = (&self.defaults, &self.most);
        [
            (Field::CpuMilli, defaults.cpu_milli, most.cpu_milli),
            (Field::MemoryBytes, defaults.memory_bytes, most.memory_bytes),
            (Field::Pids, defaults.pids, most.pids),
            (Field::DiskBytes, defaults.disk_bytes, most.disk_bytes),
            (Field::TimeoutSec, defaults.timeout_sec, most.timeout_sec),
        ]
    }

    /// The default, then what was asked, then what is locked, then the most; and what of it is not as it was asked.
    pub fn apply(&self, asked: &Traits) -> (Traits, Vec<Clamped>) {
        let mut clamped = Vec::new();
        let mut number = |field, asked: Option<u64>, default, most: Option<u64>| {
            let given = self.one(field, asked, default, &mut clamped);
            // What has no bound is more than any.
            let Some(most) = most.filter(|most| given.is_none_or(|given| given > *most)) else { return given };
            if let Some(asked) = asked.filter(|_| !self.locked.contains(&field)) {
                clamped.push(Clamped { field, asked: asked.to_string(), given: most.to_string() });
            }
            Some(most)
        };
        let (defaults, most) = (&self.defaults, &self.most);
        let cpu_milli = number(Field::CpuMilli, asked.cpu_milli, defaults.cpu_milli, most.cpu_milli);
        let memory_bytes = number(Field::MemoryBytes, asked.memory_bytes, defaults.memory_bytes, most.memory_bytes);
        let pids = number(Field::Pids, asked.pids, defaults.pids, most.pids);
        let disk_bytes = number(Field::DiskBytes, asked.disk_bytes, defaults.disk_bytes, most.disk_bytes);
        let timeout_sec = number(Field::TimeoutSec, asked.timeout_sec, defaults.timeout_sec, most.timeout_sec);
        let given = Traits {
            network: self.one(Field::Network, asked.network, defaults.network, &mut clamped),
            mount_mode: self.one(Field::MountMode, asked.mount_mode, defaults.mount_mode, &mut clamped),
            read_only_root: self.one(Field::ReadOnlyRoot, asked.read_only_root, defaults.read_only_root, &mut clamped),
            sudo: self.one(Field::Sudo, asked.sudo, defaults.sudo, &mut clamped),
            cpu_milli,
            memory_bytes,
            pids,
            disk_bytes,
            timeout_sec,
        };
        (given, clamped)
    }

    fn one<T: Copy + PartialEq + Told>(
        &self,
        field: Field,
        asked: Option<T>,
        default: Option<T>,
        clamped: &mut Vec<Clamped>,
    ) -> Option<T> {
        match (asked, default, self.locked.contains(&field)) {
            (asked, Some(locked), true) => {
                if let Some(asked) = asked.filter(|asked| *asked != locked) {
                    clamped.push(Clamped { field, asked: asked.told(), given: locked.told() });
                }
                Some(locked)
            }
            (asked, default, _) => asked.or(default),
        }
    }
}

impl Traits {
    fn says(&self, field: Field) -> bool {
        match field {
            Field::Network => self.network.is_some(),
            Field::MountMode => self.mount_mode.is_some(),
            Field::ReadOnlyRoot => self.read_only_root.is_some(),
            Field::Sudo => self.sudo.is_some(),
            Field::CpuMilli => self.cpu_milli.is_some(),
            Field::MemoryBytes => self.memory_bytes.is_some(),
            Field::Pids => self.pids.is_some(),
            Field::DiskBytes => self.disk_bytes.is_some(),
            Field::TimeoutSec => self.timeout_sec.is_some(),
        }
    }
}

/// As it is written.
trait Told {
    fn told(&self) -> String;
}

impl Told for u64 {
    fn told(&self) -> String {
        self.to_string()
    }
}

impl Told for bool {
    fn told(&self) -> String {
        self.to_string()
    }
}

impl Told for NetworkMode {
    fn told(&self) -> String {
        match self {
            Self::Off => "off",
            Self::Allowlist => "allowlist",
            Self::Public => "public",
            Self::Host => "host",
        }
        .to_owned()
    }
}

impl Told for MountMode {
    fn told(&self) -> String {
        match self {
            Self::Rw => "rw",
            Self::Ro => "ro",
            Self::None => "none",
        }
        .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn locked(field: Field) -> Profile {
        let defaults = Traits { memory_bytes: Some(5), network: Some(NetworkMode::Off), ..Traits::default() };
        Profile { defaults, locked: vec![field], most: Most::default() }
    }

    #[test]
    fn a_profile_that_contradicts_itself_is_refused() {
        assert_eq!(locked(Field::MemoryBytes).check(), Ok(()));
        assert_eq!(locked(Field::Sudo).check(), Err(ProfileError::LockedToNothing(Field::Sudo)));
        let twice = Profile { locked: vec![Field::Network, Field::Network], ..locked(Field::Network) };
        assert_eq!(twice.check(), Err(ProfileError::LockedTwice(Field::Network)));
        let above = Profile { most: Most { memory_bytes: Some(4), ..Most::default() }, ..locked(Field::MemoryBytes) };
        let told = above.check().unwrap_err().to_string();
        assert_eq!(told, "it gives memory_bytes 5, and its own `most` is 4");
        let none = Profile { most: Most { pids: Some(0), ..Most::default() }, ..Profile::default() };
        assert_eq!(none.check(), Err(ProfileError::Zero(Field::Pids)));
    }

    #[test]
    fn what_is_locked_stays_and_what_is_not_gives_way_up_to_the_most() {
        let profile = Profile {
            most: Most { timeout_sec: Some(60), memory_bytes: Some(8), ..Most::default() },
            ..locked(Field::Network)
        };
        let asked = Traits {
            network: Some(NetworkMode::Public),
            memory_bytes: Some(9),
            pids: Some(7),
            timeout_sec: Some(61),
            ..Traits::default()
        };
        let (given, clamped) = profile.apply(&asked);
        assert_eq!((given.network, given.memory_bytes), (Some(NetworkMode::Off), Some(8)));
        assert_eq!((given.pids, given.timeout_sec), (Some(7), Some(60)));
        let told: Vec<_> = clamped.iter().map(|c| (c.field.as_str(), c.asked.as_str(), c.given.as_str())).collect();
        assert_eq!(told, [("memory_bytes", "9", "8"), ("timeout_sec", "61", "60"), ("network", "public", "off")]);
        let (given, clamped) = profile.apply(&Traits::default());
        assert_eq!((given.memory_bytes, given.timeout_sec, clamped), (Some(5), Some(60), Vec::new()));
    }

    fn traits() -> impl Strategy<Value = Traits> {
        let some = || prop::option::of(1u64..9);
        (some(), some(), some(), prop::option::of(any::<bool>())).prop_map(
            |(cpu_milli, memory_bytes, timeout_sec, sudo)| Traits {
                cpu_milli,
                memory_bytes,
                timeout_sec,
                sudo,
                ..Traits::default()
            },
        )
    }

    proptest! {
        #[test]
        fn nothing_is_above_the_most_and_all_that_was_changed_is_told(
            defaults in traits(), asked in traits(), most in prop::option::of(1u64..9), lock in any::<bool>()
        ) {
            let locked = if lock { vec![Field::MemoryBytes, Field::Sudo] } else { Vec::new() };
            let most = Most { memory_bytes: most, ..Most::default() };
            let profile = Profile { defaults, locked, most };
            prop_assume!(profile.check().is_ok());
            let (given, clamped) = profile.apply(&asked);
            if let Some(most) = most.memory_bytes {
                prop_assert!(given.memory_bytes.is_some_and(|given| given <= most));
            }
            let told = |field| clamped.iter().filter(|clamped| clamped.field == field).count();
            let changed = |asked: bool| usize::from(asked);
            let memory = asked.memory_bytes.is_some() && asked.memory_bytes != given.memory_bytes;
            prop_assert_eq!(told(Field::MemoryBytes), changed(memory));
            prop_assert_eq!(told(Field::Sudo), changed(asked.sudo.is_some() && asked.sudo != given.sudo));
            prop_assert_eq!(given.cpu_milli, asked.cpu_milli.or(profile.defaults.cpu_milli));
        }
    }
}
