//! The axes of the matrix: who owns the sandbox, what the machine offers, what it is made from, and what it is given.

use cabana_sandbox::{Base, Lifetime, NetworkPolicy, SandboxSpec};
use cabana_tests::remote::Origin;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Identity {
    Root,
    /// An ordinary user with a range of subordinate ids.
    Ranged,
    /// An ordinary user without.
    Single,
}

/// Which control groups the owner of the sandboxes finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cgroups {
    /// As this machine has them: both versions where it is a hybrid. Sandboxes have limits, which version 1 then holds. To an
    /// ordinary user a group of version 2 is delegated.
    Limited,
    /// Version 2 is all that is mounted. To an ordinary user a group of it is delegated.
    Unified,
    /// None are mounted; to an ordinary user none are delegated.
    Absent,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Combination {
    pub(crate) identity: Identity,
    pub(crate) cgroups: Cgroups,
    pub(crate) origin: Origin,
    pub(crate) read_only_root: bool,
    pub(crate) network: bool,
    pub(crate) sudo: bool,
    pub(crate) persistent: bool,
}

const IDENTITIES: [Identity; 3] = [Identity::Root, Identity::Ranged, Identity::Single];
const CGROUPS: [Cgroups; 3] = [Cgroups::Limited, Cgroups::Unified, Cgroups::Absent];
const ORIGINS: [Origin; 5] = [Origin::Host, Origin::Template, Origin::Image, Origin::Snapshot, Origin::Archive];

/// How many values each axis has.
pub(crate) const SIZES: [usize; 7] = [IDENTITIES.len(), CGROUPS.len(), ORIGINS.len(), 2, 2, 2, 2];

impl Combination {
    /// Of a value for each axis.
    pub(crate) fn of(row: &[usize]) -> Self {
        Self {
            identity: IDENTITIES[row[0]],
            cgroups: CGROUPS[row[1]],
            origin: ORIGINS[row[2]],
            read_only_root: row[3] == 1,
            network: row[4] == 1,
            sudo: row[5] == 1,
            persistent: row[6] == 1,
        }
    }

    pub(crate) fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            network: if self.network { NetworkPolicy::Public } else { NetworkPolicy::Off },
            sudo: self.sudo,
            read_only_root: self.read_only_root,
            lifetime: if self.persistent { Lifetime::Persistent } else { Lifetime::Ephemeral },
            ..SandboxSpec::new(Base::Host)
        }
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.cgroups == Cgroups::Limited
    }

    /// Whom commands can be run as.
    pub(crate) fn users(&self) -> &'static [&'static str] {
        match self.identity {
            Identity::Single => &["root"],
            _ => &["root", "user"],
        }
    }
}
