//! How much of the server's time the watches of one sandbox take.
//!
//! A rename of a directory is one call inside, and a look at all that is watched below it here. So who watches takes turns, and
//! rests three times as long as it worked: a quarter of a processor, however many watch. The kernel keeps what happens meanwhile,
//! and says when that was too much.

use std::time::Duration;

use tokio::{sync::Mutex, time::Instant};

const REST: u32 = 3;
/// What can be rested for later: ordinary events are told at once.
const BURST: Duration = Duration::from_millis(50);

pub(crate) struct WatchTime(Mutex<Turn>);

struct Turn {
    /// When all is rested for.
    rested: Instant,
}

impl WatchTime {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Turn { rested: Instant::now() }))
    }

    /// Once it is its turn. `look` says how long it worked.
    pub(crate) async fn spend<T>(&self, look: impl Future<Output = (T, Duration)>) -> T {
        let mut turn = self.0.lock().await;
        tokio::time::sleep(turn.rest(Instant::now())).await;
        let begun = Instant::now();
        let (seen, took) = look.await;
        turn.end(begun, took);
        seen
    }
}

impl Turn {
    /// How long until the next begins.
    fn rest(&self, now: Instant) -> Duration {
        self.rested.saturating_duration_since(now).saturating_sub(BURST)
    }

    fn end(&mut self, begun: Instant, took: Duration) {
        self.rested = self.rested.max(begun) + took * (1 + REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long so many looks take, with their rests.
    fn passed(looks: u32, each: Duration) -> Duration {
        let begun = Instant::now();
        let (mut turn, mut now) = (Turn { rested: begun }, begun);
        for _ in 0..looks {
            now += turn.rest(now);
            turn.end(now, each);
            now += each;
        }
        now - begun
    }

    #[test]
    fn long_looks_take_a_quarter_of_the_time() {
        let passed = passed(100, Duration::from_millis(100));
        assert!((Duration::from_secs(39)..=Duration::from_secs(40)).contains(&passed), "{passed:?}");
    }

    #[test]
    fn ordinary_events_do_not_wait() {
        assert_eq!(passed(16, Duration::from_millis(1)), Duration::from_millis(16));
    }

    #[tokio::test]
    async fn one_looks_at_a_time() {
        let time = WatchTime::new();
        let inside = std::cell::Cell::new(0);
        let look = || {
            time.spend(async {
                inside.set(inside.get() + 1);
                tokio::task::yield_now().await;
                assert_eq!(inside.replace(0), 1);
                ((), Duration::ZERO)
            })
        };
        tokio::join!(look(), look(), look());
    }
}
