//! The one place that knows what time it is.

use std::{sync::Arc, time::Duration};

use cabana_model::Time;
use jiff::SignedDuration;
use tokio::sync::watch;

/// How long the machine's clock is not looked at: it may have been set.
const UNSEEN: Duration = Duration::from_secs(60);
/// The same of a clock that a test moves.
const UNSEEN_IN_TESTS: Duration = Duration::from_millis(50);

/// The machine's, or one that a test sets.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<watch::Sender<Time>>>);

impl Clock {
    pub fn machine() -> Self {
        Self(None)
    }

    /// Stands still until it is moved.
    pub fn at(time: Time) -> Self {
        Self(Some(Arc::new(watch::Sender::new(time))))
    }

    pub fn advance(&self, by: SignedDuration) {
        if let Some(time) = &self.0 {
            time.send_modify(|time| *time = time.saturating_add(by).unwrap_or(Time::MAX));
        }
    }

    pub fn now(&self) -> Time {
        match &self.0 {
            Some(time) => *time.borrow(),
            None => match cabana_fault::clock_ahead() {
                0 => Time::now(),
                ahead => Time::now().saturating_add(SignedDuration::from_secs(ahead)).unwrap_or(Time::MAX),
            },
        }
    }

    /// Ends when it is so late, by this clock.
    pub async fn until(&self, time: Time) {
        match &self.0 {
            Some(now) => drop(now.subscribe().wait_for(|now| *now >= time).await),
            None => {
                let unseen = if cabana_fault::has_clock() { UNSEEN_IN_TESTS } else { UNSEEN };
                while let Ok(left) = Duration::try_from(time.duration_since(self.now()))
                    && !left.is_zero()
                {
                    tokio::time::sleep(left.min(unseen)).await;
                }
            }
        }
    }
}
