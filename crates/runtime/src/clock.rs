//! The one place that knows what time it is.

use std::sync::{Arc, Mutex, PoisonError};

use cabana_model::Time;
use jiff::SignedDuration;

/// The machine's, or one that a test sets.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Mutex<Time>>>);

impl Clock {
    pub fn machine() -> Self {
        Self(None)
    }

    /// Stands still until it is moved.
    pub fn at(time: Time) -> Self {
        Self(Some(Arc::new(Mutex::new(time))))
    }

    pub fn advance(&self, by: SignedDuration) {
        if let Some(time) = &self.0 {
            let mut time = time.lock().unwrap_or_else(PoisonError::into_inner);
            *time = time.saturating_add(by).unwrap_or(Time::MAX);
        }
    }

    pub fn now(&self) -> Time {
        match &self.0 {
            Some(time) => *time.lock().unwrap_or_else(PoisonError::into_inner),
            None => match cabana_fault::clock_ahead() {
                0 => Time::now(),
                ahead => Time::now().saturating_add(SignedDuration::from_secs(ahead)).unwrap_or(Time::MAX),
            },
        }
    }
}
