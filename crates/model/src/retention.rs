//! How long things are kept: pure decisions over what is known of a thing.

use jiff::SignedDuration;

use crate::Time;

/// `None` is for ever.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// What ended calls and tasks said. It goes with its call at the latest.
    pub outputs: Option<SignedDuration>,
    /// Ended calls and tasks.
    pub calls: Option<SignedDuration>,
    /// Rows of ledgers, in whole days of UTC.
    pub ledger: Option<SignedDuration>,
    /// Snapshots that nothing was made from for so long.
    pub snapshots: Option<SignedDuration>,
    /// Templates that nothing was made from for so long.
    pub templates: Option<SignedDuration>,
}

/// What can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Outputs,
    Calls,
    Ledger,
    Snapshots,
    Templates,
    /// Those that nothing needs. They have no time of their own.
    Layers,
    /// Archives of sandboxes that are not there any more. They have none either.
    Blobs,
    /// Files that wait for builds. Their time is no setting: they are a cache.
    Uploads,
}

/// What is known of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Since when it is over; `None`: it goes on, or is in use.
    pub over: Option<Time>,
    /// Whether something that stays would miss it.
    pub needed: bool,
}

const DAY: i64 = 86_400;

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Outputs,
        Self::Calls,
        Self::Ledger,
        Self::Snapshots,
        Self::Templates,
        Self::Layers,
        Self::Blobs,
        Self::Uploads,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Outputs => "outputs",
            Self::Calls => "calls",
            Self::Ledger => "ledger",
            Self::Snapshots => "snapshots",
            Self::Templates => "templates",
            Self::Layers => "layers",
            Self::Blobs => "blobs",
            Self::Uploads => "uploads",
        }
    }
}

impl Retention {
    /// What was over before then goes; `None`: nothing of this kind does.
    pub fn before(&self, kind: Kind, now: Time) -> Option<Time> {
        let limit = match kind {
            Kind::Outputs => [self.outputs, self.calls].into_iter().flatten().min(),
            Kind::Calls => self.calls,
            Kind::Ledger => self.ledger,
            Kind::Snapshots => self.snapshots,
            Kind::Templates => self.templates,
            Kind::Layers | Kind::Blobs | Kind::Uploads => None,
        };
        let before = now.checked_sub(limit?).ok()?;
        match kind {
            Kind::Ledger => Time::from_second(before.as_second().div_euclid(DAY) * DAY).ok(),
            _ => Some(before),
        }
    }

    pub fn is_due(&self, kind: Kind, now: Time, kept: Kept) -> bool {
        match (self.before(kind, now), kept.over) {
            (Some(before), Some(over)) => over < before && !kept.needed,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limit() -> impl Strategy<Value = Option<SignedDuration>> {
        prop::option::of((0..400 * DAY).prop_map(SignedDuration::from_secs))
    }

    fn retention() -> impl Strategy<Value = Retention> {
        (limit(), limit(), limit(), limit(), limit()).prop_map(|(outputs, calls, ledger, snapshots, templates)| {
            Retention { outputs, calls, ledger, snapshots, templates }
        })
    }

    fn time() -> impl Strategy<Value = Time> {
        (1_700_000_000_000_000..1_900_000_000_000_000_i64).prop_map(|at| Time::from_microsecond(at).unwrap())
    }

    fn set(retention: &Retention, kind: Kind) -> Option<SignedDuration> {
        match kind {
            Kind::Outputs => retention.outputs.into_iter().chain(retention.calls).min(),
            Kind::Calls => retention.calls,
            Kind::Ledger => retention.ledger,
            Kind::Snapshots => retention.snapshots,
            Kind::Templates => retention.templates,
            Kind::Layers | Kind::Blobs | Kind::Uploads => None,
        }
    }

    proptest! {
        #[test]
        fn nothing_goes_that_is_needed_or_goes_on_or_is_younger_than_its_time(
            retention in retention(),
            kind in prop::sample::select(&Kind::ALL[..]),
            now in time(),
            over in prop::option::of(time()),
            needed: bool,
        ) {
            if retention.is_due(kind, now, Kept { over, needed }) {
                prop_assert!(!needed);
                let over = over.unwrap();
                let limit = set(&retention, kind).unwrap();
                prop_assert!(now.duration_since(over) > limit);
                if kind == Kind::Ledger {
                    let day = |time: Time| time.as_second().div_euclid(DAY);
                    prop_assert!(day(over) < day(now - limit), "days go as a whole");
                }
            }
        }

        #[test]
        fn what_is_over_goes_some_time_and_then_stays_due(
            retention in retention(),
            kind in prop::sample::select(&Kind::ALL[..]),
            over in time(),
            later in 0..100 * DAY,
        ) {
            let Some(limit) = set(&retention, kind) else { return Ok(()) };
            let kept = Kept { over: Some(over), needed: false };
            let now = over + limit + SignedDuration::from_secs(DAY + 1 + later);
            prop_assert!(retention.is_due(kind, now, kept));
        }

        #[test]
        fn no_call_goes_before_its_output(retention in retention(), now in time(), over in time(), needed: bool) {
            let kept = Kept { over: Some(over), needed };
            prop_assert!(!retention.is_due(Kind::Calls, now, kept) || retention.is_due(Kind::Outputs, now, kept));
        }
    }

    #[test]
    fn without_a_time_everything_stays() {
        let kept = Kept { over: Some(Time::MIN), needed: false };
        assert!(Kind::ALL.iter().all(|kind| !Retention::default().is_due(*kind, Time::MAX, kept)));
    }
}
