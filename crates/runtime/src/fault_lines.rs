//! How much the log says of faults.
//!
//! Who has all that there is of something can have any number of calls fail for that, and the log is everybody's.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex, PoisonError},
    time::{Duration, Instant},
};

use cabana_model::Code;

/// Of each code so many lines are written in so long.
const LINES: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);

static OF_ALL: LazyLock<FaultLines> = LazyLock::new(FaultLines::default);

/// How many faults of this kind had no line since the last that had one. `None`: nor has this one, or it is no fault.
pub fn admit(code: Code) -> Option<u64> {
    code.is_fault().then(|| OF_ALL.admit(code, Instant::now())).flatten()
}

#[derive(Default)]
struct FaultLines(Mutex<HashMap<Code, Minute>>);

struct Minute {
    began: Instant,
    written: u32,
    /// Since the last line.
    left_out: u64,
}

impl FaultLines {
    fn admit(&self, code: Code, now: Instant) -> Option<u64> {
        let mut codes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let minute = codes.entry(code).or_insert(Minute { began: now, written: 0, left_out: 0 });
        if now.saturating_duration_since(minute.began) >= MINUTE {
            (minute.began, minute.written) = (now, 0);
        }
        if minute.written == LINES {
            minute.left_out += 1;
            return None;
        }
        minute.written += 1;
        Some(std::mem::take(&mut minute.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_often_something_fails_the_log_has_some_lines_of_it_and_a_count() {
        let (lines, now) = (FaultLines::default(), Instant::now());
        let written = |code, now| (0..1000).filter_map(|_| lines.admit(code, now)).collect::<Vec<_>>();
        assert_eq!(written(Code::HostExhausted, now), [0; LINES as usize]);
        assert_eq!(written(Code::Internal, now).len(), LINES as usize, "another one is said as well");
        assert_eq!(lines.admit(Code::HostExhausted, now + MINUTE / 2), None);
        assert_eq!(lines.admit(Code::HostExhausted, now + MINUTE), Some(1000 - u64::from(LINES) + 1));
        assert_eq!(lines.admit(Code::HostExhausted, now + MINUTE), Some(0));
    }

    #[test]
    fn what_is_no_fault_has_no_line() {
        assert_eq!(admit(Code::NotFound), None);
    }
}
