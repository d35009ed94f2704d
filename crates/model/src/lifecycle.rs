//! When a sandbox goes to rest, and when it goes for good: what was asked, and the decision.

use std::fmt;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::{SandboxState, Time, record::states};

states! {
    /// What becomes of a sandbox whose time has come.
    Action {
        /// Its processes end, its files are kept.
        Stop = "stop",
        /// Its memory is kept too.
        Pause = "pause",
        Delete = "delete",
    }
}

/// What was asked of a sandbox's life. What is not said is as whoever is above says: the server's settings in the end. A time
/// of 0 is never.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lifecycle {
    /// How long nothing may have happened in it: no call, task, terminal, traffic of a port, lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_sec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_action: Option<Action>,
    /// The longest that it may run at a stretch, whatever happens in it; with `delete`, the longest that it may be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard_sec: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard_action: Option<Action>,
    /// When its time has come, whatever happens in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_expire: Option<Action>,
    /// How long after its last use a stopped one is packed away. The next call brings it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive_after_sec: Option<u64>,
    /// How long after its last use one that does not run is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_after_sec: Option<u64>,
    /// Runs inside after each start, before the first call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_start: Option<Hook>,
    /// Runs inside before each stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_stop: Option<Hook>,
}

/// A command inside, of bounded time. That it fails holds nothing up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// For a shell. None at all is no hook.
    pub command: String,
    #[serde(default = "Hook::usual_sec")]
    pub timeout_sec: u64,
}

impl Hook {
    const MOST_SEC: u64 = 300;

    fn usual_sec() -> u64 {
        30
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LifecycleError {
    #[error("{field} is {given}: it can be at most {most}")]
    Long { field: &'static str, given: u64, most: u64 },
    #[error(
        "delete_after_sec is {delete} and archive_after_sec is {archive}: it would be deleted before it is archived"
    )]
    DeletedFirst { archive: u64, delete: u64 },
    #[error("{field} has a time limit of 0 seconds: at least 1")]
    NoTime { field: &'static str },
    #[error("{field} has a command of {bytes} bytes: at most {most}")]
    LongCommand { field: &'static str, bytes: usize, most: usize },
    #[error("{field} has a command with a NUL in it")]
    Nul { field: &'static str },
}

/// A hundred years: what is longer was not meant.
const MOST_SEC: u64 = 100 * 365 * 24 * 3600;
const MOST_COMMAND: usize = 16 << 10;

impl Lifecycle {
    /// What is said here, and what the other says of the rest.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            idle_sec: self.idle_sec.or(other.idle_sec),
            idle_action: self.idle_action.or(other.idle_action),
            hard_sec: self.hard_sec.or(other.hard_sec),
            hard_action: self.hard_action.or(other.hard_action),
            expires_at: self.expires_at.or(other.expires_at),
            on_expire: self.on_expire.or(other.on_expire),
            archive_after_sec: self.archive_after_sec.or(other.archive_after_sec),
            delete_after_sec: self.delete_after_sec.or(other.delete_after_sec),
            after_start: self.after_start.or_else(|| other.after_start.clone()),
            before_stop: self.before_stop.or_else(|| other.before_stop.clone()),
        }
    }

    pub fn check(&self) -> Result<(), LifecycleError> {
        for (field, given) in [
            ("idle_sec", self.idle_sec),
            ("hard_sec", self.hard_sec),
            ("archive_after_sec", self.archive_after_sec),
            ("delete_after_sec", self.delete_after_sec),
        ] {
            if let Some(given) = given.filter(|given| *given > MOST_SEC) {
                return Err(LifecycleError::Long { field, given, most: MOST_SEC });
            }
        }
        if let (Some(archive), Some(delete @ 1..)) = (self.archive_after_sec, self.delete_after_sec)
            && delete <= archive
        {
            return Err(LifecycleError::DeletedFirst { archive, delete });
        }
        for (field, hook) in [("after_start", &self.after_start), ("before_stop", &self.before_stop)] {
            let Some(Hook { command, timeout_sec }) = hook else { continue };
            match (command.len(), *timeout_sec) {
                (_, given @ 301..) => return Err(LifecycleError::Long { field, given, most: Hook::MOST_SEC }),
                (_, 0) => return Err(LifecycleError::NoTime { field }),
                (bytes, _) if bytes > MOST_COMMAND => {
                    return Err(LifecycleError::LongCommand { field, bytes, most: MOST_COMMAND });
                }
                _ if command.contains('\0') => return Err(LifecycleError::Nul { field }),
                _ => {}
            }
        }
        Ok(())
    }

    pub fn hooked(&self) -> crate::Hooked {
        let there = |hook: &Option<Hook>| hook.as_ref().is_some_and(|hook| !hook.command.is_empty());
        crate::Hooked { after_start: there(&self.after_start), before_stop: there(&self.before_stop) }
    }
}

/// What is going on in a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub calls: usize,
    pub tasks: usize,
    pub terminals: usize,
    pub leases: usize,
}

impl Work {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(self.calls, "call"), (self.tasks, "task"), (self.terminals, "terminal"), (self.leases, "lease")];
        let mut before = "";
        for (count, name) in all.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{before}{count} {name}{}", if count == 1 { "" } else { "s" })?;
            before = ", ";
        }
        Ok(())
    }
}

/// What is known of a sandbox when it is decided what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub state: SandboxState,
    pub created: Time,
    /// When it last began to run.
    pub started: Time,
    /// When it was last used.
    pub active: Time,
    pub work: Work,
}

/// What becomes of it, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Now(Sentence),
    /// Nothing before this time: it is looked at again then.
    At(Time),
    /// Nothing, as long as nobody does something to it.
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    pub what: Due,
    pub why: String,
    /// Whether it is only for a sandbox in which nothing goes on, and that nobody has a lease on.
    pub spares_work: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Stop,
    Pause,
    Archive,
    Delete,
}

impl From<Action> for Due {
    fn from(action: Action) -> Self {
        match action {
            Action::Stop => Self::Stop,
            Action::Pause => Self::Pause,
            Action::Delete => Self::Delete,
        }
    }
}

impl Lifecycle {
    /// The one decision about time. Of what has come, the earliest is first.
    /// Whether a limit that no work holds up comes sooner than by this one, or does more. Both are as they apply.
    pub fn is_harsher_than(&self, before: &Self) -> bool {
        let is_sooner = |at: Option<Time>, was: Option<Time>| at.is_some_and(|at| was.is_none_or(|was| at < was));
        let seconds = |seconds: Option<u64>| seconds.filter(|seconds| *seconds > 0);
        let is_shorter = |now: Option<u64>, was: Option<u64>| now.is_some_and(|now| was.is_none_or(|was| now < was));
        let does_more = |now: Option<Action>, was: Option<Action>| severity(now) > severity(was);
        let (hard, was_hard) = (seconds(self.hard_sec), seconds(before.hard_sec));
        is_sooner(self.expires_at, before.expires_at)
            || self.expires_at.is_some() && does_more(self.on_expire, before.on_expire)
            || is_shorter(hard, was_hard)
            || hard.is_some() && does_more(self.hard_action, before.hard_action)
    }

    pub fn decide(&self, facts: &Facts, now: Time) -> Verdict {
        let mut due: Option<(Time, Sentence)> = None;
        let mut at = |time: Option<Time>, what: Due, spares_work: bool, why: &dyn Fn() -> String| {
            if let Some(time) = time
                && due.as_ref().is_none_or(|(first, _)| time < *first)
            {
                due = Some((time, Sentence { what, why: why(), spares_work }));
            }
        };
        let applies = |action: Action| match facts.state {
            SandboxState::Running => true,
            SandboxState::Paused => action != Action::Pause,
            SandboxState::Stopped | SandboxState::Archived | SandboxState::Failed => action == Action::Delete,
            _ => false,
        };
        let expire = self.on_expire.unwrap_or(Action::Stop);
        if applies(expire) {
            at(self.expires_at, expire.into(), false, &|| "its time has come".to_owned());
        }
        let hard = self.hard_action.unwrap_or(Action::Stop);
        if applies(hard) {
            let (since, what) = match hard {
                Action::Delete => (facts.created, "it was there"),
                _ => (facts.started, "it ran"),
            };
            let why = || format!("{what} for {}, as long as it may", spoken(self.hard_sec));
            at(after(since, self.hard_sec), hard.into(), false, &why);
        }
        match facts.state {
            SandboxState::Running if facts.work.is_none() => {
                let why = || format!("idle for {}", spoken(self.idle_sec));
                at(after(facts.active, self.idle_sec), self.idle_action.unwrap_or(Action::Stop).into(), true, &why);
            }
            SandboxState::Paused | SandboxState::Stopped | SandboxState::Archived | SandboxState::Failed => {
                let why = || format!("not used for {}", spoken(self.delete_after_sec));
                at(after(facts.active, self.delete_after_sec), Due::Delete, true, &why);
                let next = match facts.state {
                    SandboxState::Stopped => Some(Due::Archive),
                    SandboxState::Paused => Some(Due::Stop), // and then it is archived
                    _ => None,
                };
                if let Some(next) = next {
                    let why = || format!("not used for {}", spoken(self.archive_after_sec));
                    at(after(facts.active, self.archive_after_sec), next, true, &why);
                }
            }
            _ => {}
        }
        // While something goes on it is not idle, and when that ends it is not idle for a while either.
        let busy = match facts.state {
            SandboxState::Running if !facts.work.is_none() => after(now, self.idle_sec),
            _ => None,
        };
        match (due, busy) {
            (Some((time, sentence)), _) if time <= now => Verdict::Now(sentence),
            (Some((time, _)), busy) => Verdict::At(busy.map_or(time, |busy| busy.min(time))),
            (None, Some(busy)) => Verdict::At(busy),
            (None, None) => Verdict::Never,
        }
    }
}

/// How much of a sandbox an action takes away.
fn severity(action: Option<Action>) -> u8 {
    match action.unwrap_or(Action::Stop) {
        Action::Pause => 0,
        Action::Stop => 1,
        Action::Delete => 2,
    }
}

/// `None`: never.
fn after(since: Time, seconds: Option<u64>) -> Option<Time> {
    let seconds = seconds.filter(|seconds| *seconds > 0)?;
    let span = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    Some(since.checked_add(span).unwrap_or(Time::MAX))
}

/// As people say it.
fn spoken(seconds: Option<u64>) -> String {
    match seconds.unwrap_or_default() {
        seconds if seconds > 0 && seconds % 86400 == 0 => format!("{} d", seconds / 86400),
        seconds if seconds > 0 && seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        seconds if seconds > 0 && seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Time {
        Time::from_second(second).unwrap()
    }

    fn facts(state: SandboxState, active: i64) -> Facts {
        Facts { state, created: at(0), started: at(0), active: at(active), work: Work::default() }
    }

    fn now(verdict: Verdict) -> Due {
        let Verdict::Now(sentence) = verdict else { panic!("{verdict:?}") };
        sentence.what
    }

    fn idle(seconds: u64) -> Lifecycle {
        Lifecycle { idle_sec: Some(seconds), ..Lifecycle::default() }
    }

    #[test]
    fn fp_05_after_five_idle_minutes_it_is_stopped_and_not_before() {
        let running = facts(SandboxState::Running, 100);
        assert_eq!(idle(300).decide(&running, at(399)), Verdict::At(at(400)));
        let sentence = Sentence { what: Due::Stop, why: "idle for 5 min".into(), spares_work: true };
        assert_eq!(idle(300).decide(&running, at(400)), Verdict::Now(sentence));
        assert_eq!(idle(0).decide(&running, at(4000)), Verdict::Never);
        let works = Facts { work: Work { tasks: 1, ..Work::default() }, ..running };
        assert_eq!(idle(300).decide(&works, at(4000)), Verdict::At(at(4300)));
    }

    #[test]
    fn hard_and_absolute_limits_end_work_too() {
        let busy = Facts { work: Work { calls: 1, ..Work::default() }, ..facts(SandboxState::Running, 50) };
        let hard = Lifecycle { hard_sec: Some(60), hard_action: Some(Action::Delete), ..idle(10) };
        assert_eq!(now(hard.decide(&busy, at(60))), Due::Delete);
        let expires = Lifecycle { expires_at: Some(at(70)), on_expire: Some(Action::Pause), ..idle(0) };
        assert_eq!(expires.decide(&busy, at(69)), Verdict::At(at(70)));
        assert_eq!(now(expires.decide(&busy, at(70))), Due::Pause);
        assert_eq!(expires.decide(&facts(SandboxState::Paused, 0), at(99)), Verdict::Never);
    }

    #[test]
    fn one_that_rests_is_archived_and_then_deleted() {
        let rests = Lifecycle { archive_after_sec: Some(100), delete_after_sec: Some(200), ..Lifecycle::default() };
        assert_eq!(rests.decide(&facts(SandboxState::Stopped, 0), at(99)), Verdict::At(at(100)));
        assert_eq!(now(rests.decide(&facts(SandboxState::Stopped, 0), at(150))), Due::Archive);
        assert_eq!(now(rests.decide(&facts(SandboxState::Paused, 0), at(150))), Due::Stop);
        assert_eq!(rests.decide(&facts(SandboxState::Archived, 0), at(150)), Verdict::At(at(200)));
        assert_eq!(now(rests.decide(&facts(SandboxState::Archived, 0), at(200))), Due::Delete);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let hook = |command: &str, timeout_sec| Some(Hook { command: command.into(), timeout_sec });
        for (wrong, says) in [
            (
                Lifecycle { archive_after_sec: Some(9), delete_after_sec: Some(9), ..Lifecycle::default() },
                "before it is",
            ),
            (Lifecycle { idle_sec: Some(u64::MAX), ..Lifecycle::default() }, "idle_sec"),
            (Lifecycle { after_start: hook("true", 0), ..Lifecycle::default() }, "after_start"),
            (Lifecycle { before_stop: hook("true", 301), ..Lifecycle::default() }, "at most 300"),
            (Lifecycle { before_stop: hook("a\0b", 1), ..Lifecycle::default() }, "NUL"),
            (Lifecycle { before_stop: hook(&"a".repeat(20_000), 1), ..Lifecycle::default() }, "20000 bytes"),
        ] {
            let said = wrong.check().unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
        let never = Lifecycle { archive_after_sec: Some(9), delete_after_sec: Some(0), ..Lifecycle::default() };
        assert_eq!(never.check(), Ok(()));
    }

    fn actions() -> impl Strategy<Value = Option<Action>> {
        prop::option::of(prop::sample::select(Action::ALL))
    }

    prop_compose! {
        fn lifecycle()(
            idle_sec in prop::option::of(0u64..50), idle_action in actions(), hard_sec in prop::option::of(0u64..50),
            hard_action in actions(), expires in prop::option::of(0i64..100), on_expire in actions(),
            archive_after_sec in prop::option::of(0u64..50), delete_after_sec in prop::option::of(0u64..50),
        ) -> Lifecycle {
            Lifecycle {
                idle_sec, idle_action, hard_sec, hard_action, expires_at: expires.map(at), on_expire, archive_after_sec,
                delete_after_sec, ..Lifecycle::default()
            }
        }
    }

    #[test]
    fn a_limit_that_comes_sooner_or_does_more_is_harsher() {
        let at = |second| Some(Time::from_second(second).unwrap());
        let plain = Lifecycle::default();
        let hard = |hard_sec, hard_action| Lifecycle { hard_sec, hard_action, ..Lifecycle::default() };
        let expires = |expires_at, on_expire| Lifecycle { expires_at, on_expire, ..Lifecycle::default() };
        for (now, before) in [
            (hard(Some(5), None), plain.clone()),
            (hard(Some(5), None), hard(Some(6), None)),
            (hard(Some(5), None), hard(Some(0), None)),
            (hard(Some(5), Some(Action::Delete)), hard(Some(5), Some(Action::Pause))),
            (expires(at(5), None), plain.clone()),
            (expires(at(5), None), expires(at(6), None)),
            (expires(at(5), Some(Action::Delete)), expires(at(5), None)),
        ] {
            assert!(now.is_harsher_than(&before), "{now:?} than {before:?}");
            assert!(!before.is_harsher_than(&now) && !now.is_harsher_than(&now), "{now:?} than {before:?}");
        }
    }

    proptest! {
        #[test]
        fn a_verdict_is_never_early_and_what_is_told_for_later_is_later(
            lifecycle in lifecycle(), now in 0i64..100, active in 0i64..100, calls in 0usize..2,
            state in prop::sample::select(SandboxState::ALL),
        ) {
            let active = active.min(now);
            let facts = Facts { work: Work { calls, ..Work::default() }, ..facts(state, active) };
            match lifecycle.decide(&facts, at(now)) {
                Verdict::At(time) => {
                    prop_assert!(time > at(now));
                    // Nothing comes before what was told, if nothing happens meanwhile.
                    if calls == 0 {
                        let before = at(time.as_second() - 1);
                        prop_assert!(!matches!(lifecycle.decide(&facts, before.max(at(now))), Verdict::Now(..)));
                        prop_assert!(matches!(lifecycle.decide(&facts, time), Verdict::Now(..)));
                    }
                }
                Verdict::Now(Sentence { what: due, why, spares_work }) => {
                    prop_assert!(state.is_settled() && !why.is_empty());
                    prop_assert!(!spares_work || calls == 0 || state != SandboxState::Running);
                    prop_assert!(due != Due::Archive || state == SandboxState::Stopped);
                    prop_assert!(due != Due::Pause || state == SandboxState::Running);
                    // Work is ended by a limit that was set for it, and never by idleness.
                    let only_idle = Lifecycle { idle_sec: lifecycle.idle_sec, ..Lifecycle::default() };
                    prop_assert!(calls == 0 || !matches!(only_idle.decide(&facts, at(now)), Verdict::Now(..)));
                }
                Verdict::Never => {}
            }
        }

        #[test]
        fn what_is_said_wins_over_what_is_above(one in lifecycle(), two in lifecycle()) {
            let both = one.clone().or(&two);
            prop_assert_eq!(both.idle_sec, one.idle_sec.or(two.idle_sec));
            prop_assert_eq!(one.clone().or(&Lifecycle::default()), one.clone());
            prop_assert_eq!(Lifecycle::default().or(&one), one);
        }
    }
}
