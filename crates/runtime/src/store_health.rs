//! Whether the store works, for clients that ask without a key and as often as they like: one of them has it checked, and all who ask
//! within a second have that answer.

use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use cabana_store::{Error, Result};
use tokio::{sync::Mutex, time::timeout};
use tokio_util::task::TaskTracker;

/// How long an answer is good.
const FRESH: Duration = Duration::from_secs(1);
/// How long a client waits for one: a store that hangs must not keep it, and its connection.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct StoreHealth {
    /// Of who has it checked.
    turn: Arc<Mutex<()>>,
    last: Arc<std::sync::Mutex<Option<Checked>>>,
    patience: Duration,
}

impl Default for StoreHealth {
    fn default() -> Self {
        Self { turn: Arc::default(), last: Arc::default(), patience: PATIENCE }
    }
}

struct Checked {
    at: Instant,
    answer: Result<()>,
}

impl StoreHealth {
    /// `asked`: now. What was checked after that is as good.
    pub(crate) async fn answer(
        &self,
        asked: Instant,
        tasks: &TaskTracker,
        check: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<()> {
        if let Some(answer) = self.known(asked) {
            return answer; // very many may ask: none of them waits for the others
        }
        let answer = timeout(self.patience, self.checked(asked, tasks, check)).await;
        answer.unwrap_or_else(|_| Err(Error::Unavailable("the store does not answer".into())))
    }

    fn known(&self, asked: Instant) -> Option<Result<()>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = last.as_ref().filter(|last| asked.saturating_duration_since(last.at) < FRESH);
        fresh.map(|checked| checked.answer.clone())
    }

    async fn checked(
        &self,
        asked: Instant,
        tasks: &TaskTracker,
        check: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<()> {
        let turn = self.turn.clone().lock_owned().await;
        if let Some(answer) = self.known(asked) {
            return answer;
        }
        let last = self.last.clone();
        // A client that goes away does not end it: the next one would begin another.
        let checking = tasks.spawn(async move {
            let answer = check.await;
            *last.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Checked { at: Instant::now(), answer: answer.clone() });
            drop(turn);
            answer
        });
        checking.await.unwrap_or_else(|_| Err(Error::Unavailable("the check of the store broke off".into())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::{sync::Semaphore, task::yield_now, time::timeout};

    use super::*;

    #[derive(Default)]
    struct Stage {
        health: StoreHealth,
        tasks: TaskTracker,
        checks: Arc<AtomicUsize>,
    }

    impl Stage {
        async fn ask(&self, asked: Instant, found: Result<()>) -> Result<()> {
            let checks = self.checks.clone();
            let check = async move {
                checks.fetch_add(1, Ordering::SeqCst);
                yield_now().await;
                found
            };
            self.health.answer(asked, &self.tasks, check).await
        }

        fn checks(&self) -> usize {
            self.checks.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn one_check_answers_all_who_ask_within_a_second_whatever_it_found() {
        let (stage, begun) = (Stage::default(), Instant::now());
        let away = || Err(Error::Unavailable("away".into()));
        let answers = join_all((0..100).map(|_| stage.ask(begun, away()))).await;
        assert!(answers.iter().all(|answer| *answer == away()));
        assert_eq!(stage.checks(), 1);
        let later = Instant::now() + FRESH;
        assert_eq!(stage.ask(later, Ok(())).await, Ok(()));
        assert_eq!(stage.ask(later, away()).await, Ok(()));
        assert_eq!(stage.checks(), 2);
    }

    #[tokio::test]
    async fn a_store_that_hangs_keeps_no_client_waiting() {
        let health = StoreHealth { patience: Duration::ZERO, ..StoreHealth::default() };
        let stage = Stage { health, ..Stage::default() };
        let ask = || stage.health.answer(Instant::now(), &stage.tasks, std::future::pending());
        for answer in [ask().await, ask().await] {
            assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
        }
        assert_eq!(stage.tasks.len(), 1, "one checks, however many ask");
    }

    #[tokio::test]
    async fn clients_that_go_away_begin_no_further_checks() {
        let (stage, gate) = (Stage::default(), Arc::new(Semaphore::new(0)));
        let asked = Instant::now();
        for _ in 0..100 {
            let (checks, gate) = (stage.checks.clone(), gate.clone());
            let check = async move {
                checks.fetch_add(1, Ordering::SeqCst);
                drop(gate.acquire().await);
                Ok(())
            };
            let gone = stage.health.answer(asked, &stage.tasks, check);
            timeout(Duration::ZERO, gone).await.unwrap_err();
        }
        gate.add_permits(1);
        assert_eq!(stage.ask(asked, Ok(())).await, Ok(()));
        assert_eq!(stage.checks(), 1);
    }
}
