//! Every decision is told, and no guest can drown the listener in them.
//!
//! A decision that was told within the last seconds is not told again, and each kind (allowed, refused) has a bucket of
//! its own, so that a flood of the one cannot hide the other. What was held back is counted in the next event.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::decision::{Decision, Reason};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// A name, an address, or what the guest gave as one, escaped and cut.
    pub host: String,
    /// 0 for a question of the DNS, which has none.
    pub port: u16,
    pub allowed: bool,
    pub rule: String,
    pub reason: Reason,
    pub how: How,
    /// Decisions that were not told since the event before this one: repeats, and what came too fast.
    pub untold: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    Transparent,
    Http,
    Socks,
    Dns,
}

/// Where events go. It must not block: it is called from the tasks that carry the traffic.
pub trait Sink: Send + Sync {
    fn tell(&self, event: Event);
}

impl<F: Fn(Event) + Send + Sync> Sink for F {
    fn tell(&self, event: Event) {
        self(event);
    }
}

const REPEAT_AFTER: Duration = Duration::from_secs(10);
const BURST: f64 = 100.0;
const PER_SECOND: f64 = 20.0;
/// More than the buckets can let through in one window, so that forgetting old ones is always enough.
const REMEMBERED: usize = 1024;

pub(crate) struct Reporter {
    sink: Arc<dyn Sink>,
    state: Mutex<State>,
}

struct State {
    told: HashMap<Told, Instant>,
    allowed: Bucket,
    refused: Bucket,
    untold: u64,
}

#[derive(PartialEq, Eq, Hash)]
struct Told {
    host: String,
    port: u16,
    allowed: bool,
    reason: Reason,
    how: How,
}

struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Reporter {
    pub(crate) fn new(sink: Arc<dyn Sink>) -> Reporter {
        let full = || Bucket { tokens: BURST, filled: Instant::now() };
        let state = State { told: HashMap::new(), allowed: full(), refused: full(), untold: 0 };
        Reporter { sink, state: Mutex::new(state) }
    }

    pub(crate) fn report(&self, how: How, host: &str, port: u16, decision: &Decision) {
        self.report_at(Instant::now(), how, host, port, decision);
    }

    fn report_at(&self, now: Instant, how: How, host: &str, port: u16, decision: &Decision) {
        let host = if host.len() > 255 { host.chars().take(255).collect() } else { host.to_owned() };
        let host = host.escape_debug().to_string();
        if let Some(untold) = self.admit(now, how, &host, port, decision) {
            let Decision { allowed, rule, reason } = decision.clone();
            self.sink.tell(Event { host, port, allowed, rule, reason, how, untold });
        }
    }

    fn admit(&self, now: Instant, how: How, host: &str, port: u16, decision: &Decision) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Decision { allowed, reason, .. } = decision.clone();
        let told = Told { host: host.to_owned(), port, allowed, reason, how };
        let repeated = state.told.get(&told).is_some_and(|at| now.saturating_duration_since(*at) < REPEAT_AFTER);
        let bucket = if allowed { &mut state.allowed } else { &mut state.refused };
        if repeated || !bucket.take(now) {
            state.untold += 1;
            return None;
        }
        if state.told.len() >= REMEMBERED {
            state.told.retain(|_, at| now.saturating_duration_since(*at) < REPEAT_AFTER);
        }
        state.told.insert(told, now);
        Some(std::mem::take(&mut state.untold))
    }
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        let grown = now.saturating_duration_since(self.filled).as_secs_f64() * PER_SECOND;
        self.tokens = (self.tokens + grown).min(BURST);
        self.filled = now;
        let some = self.tokens >= 1.0;
        if some {
            self.tokens -= 1.0;
        }
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reporter() -> (Reporter, Arc<Mutex<Vec<Event>>>) {
        let events = Arc::new(Mutex::new(Vec::new()));
        let kept = events.clone();
        (Reporter::new(Arc::new(move |event| kept.lock().unwrap().push(event))), events)
    }

    fn refusal() -> Decision {
        Decision::deny("off", Reason::Off)
    }

    #[test]
    fn a_repeat_is_counted_and_told_again_later() {
        let (reporter, events) = reporter();
        let now = Instant::now();
        for _ in 0..5 {
            reporter.report_at(now, How::Dns, "a.com", 0, &refusal());
        }
        reporter.report_at(now + REPEAT_AFTER, How::Dns, "a.com", 0, &refusal());
        let untold: Vec<u64> = events.lock().unwrap().iter().map(|event| event.untold).collect();
        assert_eq!(untold, [0, 4]);
    }

    #[test]
    fn a_flood_of_refusals_is_bounded_and_hides_no_allowed_one() {
        let (reporter, events) = reporter();
        let now = Instant::now();
        for number in 0..100_000 {
            reporter.report_at(now, How::Http, &format!("{number}.com"), 80, &refusal());
        }
        reporter.report(How::Http, "a.com", 80, &Decision::allow("public", Reason::Public));
        let events = events.lock().unwrap();
        assert_eq!(events.len(), 101);
        assert_eq!(events[100].untold, 99_900);
        assert!(reporter.state.lock().unwrap().told.len() <= REMEMBERED);
    }

    #[test]
    fn a_host_that_is_none_is_escaped_and_cut() {
        let (reporter, events) = reporter();
        reporter.report(How::Http, &format!("\u{1b}[2J{}", "x".repeat(9999)), 80, &refusal());
        let host = events.lock().unwrap()[0].host.clone();
        assert!(host.starts_with("\\u{1b}[2J") && host.len() < 300, "{host}");
    }
}
