//! How much a tenant or a key may have. The decision alone: who counts stands around it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Time;

macro_rules! resources {
    ($($(#[$doc:meta])* $resource:ident $field:ident,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Resource { $($(#[$doc])* $resource,)* }

        impl Resource {
            pub const ALL: &'static [Self] = &[$(Self::$resource,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$resource => stringify!($field),)* }
            }
        }

        /// The most that somebody may have. What is not said is not limited.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Quota { $($(#[$doc])* pub $field: Option<u64>,)* }

        impl Quota {
            pub fn get(&self, resource: Resource) -> Option<u64> {
                match resource { $(Resource::$resource => self.$field,)* }
            }

            /// What it does not say is as the other has it.
            pub fn or(self, other: Self) -> Self {
                Self { $($field: self.$field.or(other.$field),)* }
            }
        }

        /// So much of each: in use, or wanted beside it. What has no bound counts as [`BOUNDLESS`], so that sums stay exact when
        /// it goes again.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Amounts { $(pub $field: u128,)* }

        impl Amounts {
            pub fn get(&self, resource: Resource) -> u128 {
                match resource { $(Resource::$resource => self.$field,)* }
            }

            pub fn and(self, more: Self) -> Self {
                Self { $($field: self.$field.saturating_add(more.$field),)* }
            }

            pub fn without(self, less: Self) -> Self {
                Self { $($field: self.$field.saturating_sub(less.$field),)* }
            }
        }
    };
}

resources! {
    /// All that there are, also those that rest.
    Sandboxes sandboxes,
    /// Those that run, and those that are paused: they have their memory still.
    Running running,
    /// In thousandths of a processor: what those that run may take together.
    Cpu cpu_milli,
    /// What those that run may take together.
    Memory memory_bytes,
    /// What all of them may take together.
    Disk disk_bytes,
    CallsPerSec calls_per_sec,
    ConcurrentCalls concurrent_calls,
    /// Commands in the background that run.
    Tasks tasks,
    /// What is kept by now: files of sandboxes, volumes, snapshots, outputs.
    Stored stored_bytes,
    /// What is recorded of a tenant's calls: rows of the ledger, of calls and of tasks.
    Ledger ledger_bytes,
}

/// More than any quota.
pub const BOUNDLESS: u128 = u64::MAX as u128;

/// Of what may have a limit of its own.
pub fn amount(limit: Option<u64>) -> u128 {
    limit.map_or(BOUNDLESS, u128::from)
}

/// What was too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    pub quota: Resource,
    pub limit: u64,
    pub used: u128,
    pub wanted: u128,
}

impl Exceeded {
    /// Whether no number was named where one is needed. What has one can be had at most by half.
    pub fn is_boundless(&self) -> bool {
        self.wanted > BOUNDLESS / 2
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, limit, used, wanted } = self;
        let name = quota.as_str();
        match used {
            _ if self.is_boundless() => {
                write!(f, "the quota {name} is {limit}, and a sandbox without a limit of its own would exceed any: ")?;
                write!(f, "set limits.{name}, or name a profile that does")
            }
            used if *used >= BOUNDLESS => {
                write!(f, "the quota {name} is {limit}, and there is a sandbox without a limit of its own already")
            }
            used => write!(f, "the quota {name} is {limit}: {used} in use, and {wanted} more wanted"),
        }
    }
}

/// Whether so much more may be had. Of what nothing is wanted, nothing is asked: who is over a quota may do all else.
pub fn admit(quota: &Quota, used: &Amounts, wanted: &Amounts) -> Result<(), Exceeded> {
    let exceeds = |resource: &Resource| {
        let (limit, used, wanted) = (quota.get(*resource)?, used.get(*resource), wanted.get(*resource));
        let too_much = wanted > 0 && used.saturating_add(wanted) > u128::from(limit);
        too_much.then_some(Exceeded { quota: *resource, limit, used, wanted })
    };
    Resource::ALL.iter().find_map(exceeds).map_or(Ok(()), Err)
}

impl Quota {
    pub const NONE: Self = Self {
        sandboxes: None,
        running: None,
        cpu_milli: None,
        memory_bytes: None,
        disk_bytes: None,
        calls_per_sec: None,
        concurrent_calls: None,
        tasks: None,
        stored_bytes: None,
        ledger_bytes: None,
    };

    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// The first that is less than what is in use.
    pub fn below(&self, used: &Amounts) -> Option<Exceeded> {
        Resource::ALL.iter().find_map(|resource| {
            let (limit, used) = (self.get(*resource)?, used.get(*resource));
            (used > u128::from(limit)).then_some(Exceeded { quota: *resource, limit, used, wanted: 0 })
        })
    }

    /// The first that no program could read back as a number.
    pub fn too_large(&self) -> Option<Resource> {
        const MOST: u64 = i64::MAX as u64;
        Resource::ALL.iter().copied().find(|resource| self.get(*resource).is_some_and(|limit| limit > MOST))
    }
}

/// So many a second, and at most one second's worth at once. Time is given: it may stand still, jump and go back.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// In millionths.
    level: u128,
    at: Time,
}

const ONE: u128 = 1_000_000;

impl Bucket {
    /// Full.
    pub fn new(now: Time) -> Self {
        Self { level: u128::MAX, at: now }
    }

    /// Whether there is one more.
    pub fn take(&mut self, per_sec: u64, now: Time) -> bool {
        self.take_of_burst(per_sec, per_sec, now)
    }

    /// The same where more than one second's worth may come at once.
    pub fn take_of_burst(&mut self, per_sec: u64, burst: u64, now: Time) -> bool {
        let passed = u128::try_from(now.as_microsecond() - self.at.as_microsecond()).unwrap_or(0);
        let full = u128::from(burst) * ONE;
        self.level = self.level.saturating_add(passed.saturating_mul(per_sec.into())).min(full);
        self.at = now;
        let there = self.level >= ONE;
        if there {
            self.level -= ONE;
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amounts() -> impl Strategy<Value = Amounts> {
        let one = prop_oneof![Just(0u128), 0u128..20, Just(BOUNDLESS)];
        prop::array::uniform10(one).prop_map(|n| Amounts {
            sandboxes: n[0],
            running: n[1],
            cpu_milli: n[2],
            memory_bytes: n[3],
            disk_bytes: n[4],
            calls_per_sec: n[5],
            concurrent_calls: n[6],
            tasks: n[7],
            stored_bytes: n[8],
            ledger_bytes: n[9],
        })
    }

    fn quota() -> impl Strategy<Value = Quota> {
        prop::array::uniform10(prop::option::of(0u64..30)).prop_map(|n| Quota {
            sandboxes: n[0],
            running: n[1],
            cpu_milli: n[2],
            memory_bytes: n[3],
            disk_bytes: n[4],
            calls_per_sec: n[5],
            concurrent_calls: n[6],
            tasks: n[7],
            stored_bytes: n[8],
            ledger_bytes: n[9],
        })
    }

    proptest! {
        #[test]
        fn what_is_admitted_one_by_one_never_exceeds(quota in quota(), asks in prop::collection::vec(amounts(), 0..40)) {
            let mut used = Amounts::default();
            for wanted in asks {
                match admit(&quota, &used, &wanted) {
                    Ok(()) => used = used.and(wanted),
                    Err(exceeded) => {
                        let (limit, now) = (quota.get(exceeded.quota).unwrap(), used.get(exceeded.quota));
                        prop_assert!(now + wanted.get(exceeded.quota) > u128::from(limit));
                        prop_assert_eq!((exceeded.limit, exceeded.used), (limit, now));
                    }
                }
                prop_assert_eq!(quota.below(&used), None);
            }
        }

        #[test]
        fn what_goes_again_leaves_nothing(all in prop::collection::vec(amounts(), 0..20)) {
            let sum = all.iter().fold(Amounts::default(), |sum, one| sum.and(*one));
            prop_assert_eq!(all.iter().rev().fold(sum, |sum, one| sum.without(*one)), Amounts::default());
        }

        #[test]
        fn who_is_over_a_quota_may_do_what_takes_nothing_of_it(quota in quota(), used in amounts()) {
            prop_assert_eq!(admit(&quota, &used, &Amounts::default()), Ok(()));
        }

        /// In whichever second: at most what was left and what came.
        #[test]
        fn a_bucket_gives_so_many_a_second_and_a_seconds_worth_at_once(
            per_sec in 0u64..50, steps in prop::collection::vec(-200_000i64..400_000, 1..200)
        ) {
            let start = Time::from_second(1_800_000_000).unwrap();
            let (mut bucket, mut now, mut given, mut moved) = (Bucket::new(start), start, 0u128, 0u128);
            for step in steps {
                now = Time::from_microsecond(now.as_microsecond() + step).unwrap();
                moved += u128::try_from(step).unwrap_or(0);
                given += u128::from(bucket.take(per_sec, now));
                prop_assert!(given * ONE <= u128::from(per_sec) * (ONE + moved));
            }
        }
    }

    #[test]
    fn a_bucket_that_rested_is_full_and_no_fuller() {
        let mut now = Time::from_second(1_800_000_000).unwrap();
        let mut bucket = Bucket::new(now);
        for _ in 0..3 {
            assert_eq!((0..100).filter(|_| bucket.take(10, now)).count(), 10);
            now = Time::from_second(now.as_second() + 3600).unwrap();
        }
        assert!(!Bucket::new(now).take(0, now), "none is none");
    }

    #[test]
    fn a_sandbox_without_a_limit_exceeds_every_quota_and_is_told_what_to_do() {
        let quota = Quota { memory_bytes: Some(i64::MAX as u64), ..Quota::NONE };
        let wanted = Amounts { memory_bytes: amount(None), ..Amounts::default() };
        let told = admit(&quota, &Amounts::default(), &wanted).unwrap_err();
        assert!(told.is_boundless() && told.to_string().contains("set limits.memory_bytes"), "{told}");
        assert!(admit(&Quota::NONE, &Amounts::default(), &wanted).is_ok());
    }
}
