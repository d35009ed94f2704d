//! Calls by a URL that was signed for them.
//!
//! Such a URL is made to be handed on, so who comes by it has no key and is a stranger to the tenant: it uses up no quota of calls, and has
//! bounds of its own, for each sandbox. It leaves few rows in the ledger, as visits of strangers to ports do. Reads beyond that are counted
//! in the next row; uploads are summed up in rows of their own (`read_rows`), so that none is forgotten, and so is all of it where the
//! ledger has room for sums only.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cabana_model::{Bucket, SandboxId, Time};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    Act, Ask, Error, Result, Runtime,
    acts::{
        build::Upload,
        files::{Opened, Read, ReadByUrl, holding},
    },
    read_rows::Keyless,
    runtime::Metering,
};

/// Of one sandbox, and as many at once.
const CALLS_PER_SEC: u64 = 50;
/// Of one sandbox, under way. Those of the tenant itself are many more: clients with a URL leave it some.
const READS_AT_ONCE: usize = 64;
const WRITES_AT_ONCE: usize = 16;
/// Rows that reads of one sandbox leave in a minute, and as many that uploads do.
const ROWS_A_MINUTE: u64 = 20;
const MINUTE: Duration = Duration::from_secs(60);
/// Sandboxes that are known at a time. Beyond it some begin anew.
const MAX_KNOWN: usize = 4096;

#[derive(Default)]
pub(crate) struct UrlCalls(Mutex<HashMap<SandboxId, OfSandbox>>);

struct OfSandbox {
    calls: Bucket,
    reading: Arc<Semaphore>,
    writing: Arc<Semaphore>,
    reads: RowsOfMinute,
    uploads: RowsOfMinute,
    /// Reads without a row since the last that has one.
    untold: u64,
}

struct RowsOfMinute {
    since: Time,
    count: u64,
}

impl RowsOfMinute {
    fn new(now: Time) -> Self {
        Self { since: now, count: 0 }
    }

    fn take(&mut self, now: Time) -> bool {
        if is_over(self.since, now) {
            *self = Self::new(now);
        }
        let is_left = self.count < ROWS_A_MINUTE;
        self.count += u64::from(is_left);
        is_left
    }
}

impl OfSandbox {
    fn new(now: Time) -> Self {
        let [reading, writing] = [READS_AT_ONCE, WRITES_AT_ONCE].map(|most| Arc::new(Semaphore::new(most)));
        let [reads, uploads] = [RowsOfMinute::new(now), RowsOfMinute::new(now)];
        Self { calls: Bucket::new(now), reading, writing, reads, uploads, untold: 0 }
    }

    fn is_idle(&self, now: Time) -> bool {
        let is_used = [(&self.reading, READS_AT_ONCE), (&self.writing, WRITES_AT_ONCE)]
            .iter()
            .any(|(permits, most)| permits.available_permits() < *most);
        is_over(self.reads.since, now) && is_over(self.uploads.since, now) && !is_used
    }

    fn begin(&mut self, now: Time) -> Result<()> {
        match self.calls.take(CALLS_PER_SEC, now) {
            true => Ok(()),
            false => Err(Error::UrlRateLimited { limit: CALLS_PER_SEC }),
        }
    }

    /// How many reads left no row before this one, which leaves one.
    fn row_of_read(&mut self, now: Time) -> Option<u64> {
        if self.reads.take(now) {
            return Some(std::mem::take(&mut self.untold));
        }
        self.untold += 1;
        None
    }
}

/// Also where the clock went back.
fn is_over(since: Time, now: Time) -> bool {
    now < since || now.duration_since(since).unsigned_abs() >= MINUTE
}

impl UrlCalls {
    fn of<T>(&self, sandbox: &SandboxId, now: Time, act: impl FnOnce(&mut OfSandbox) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_KNOWN && !all.contains_key(sandbox) {
            all.retain(|_, of_one| !of_one.is_idle(now));
            if all.len() >= MAX_KNOWN {
                all.clear();
            }
        }
        act(all.entry(sandbox.clone()).or_insert_with(|| OfSandbox::new(now)))
    }

    /// Held until it is read; and whether it leaves a row, and how many before it left none.
    fn read(&self, sandbox: &SandboxId, now: Time) -> Result<(OwnedSemaphorePermit, Option<u64>)> {
        self.of(sandbox, now, |of_one| {
            of_one.begin(now)?;
            let permit = of_one.reading.clone().try_acquire_owned().map_err(|_| Error::TooManyReaders)?;
            Ok((permit, of_one.row_of_read(now)))
        })
    }

    /// Held while it is under way; and whether it may leave a row.
    fn write(&self, sandbox: &SandboxId, now: Time) -> Result<(OwnedSemaphorePermit, bool)> {
        self.of(sandbox, now, |of_one| {
            of_one.begin(now)?;
            let permit = of_one.writing.clone().try_acquire_owned();
            Ok((permit.map_err(|_| Error::TooManyUrlWrites(WRITES_AT_ONCE))?, of_one.uploads.take(now)))
        })
    }
}

impl Runtime {
    /// Of a sandbox that the URL was signed for.
    pub async fn read_by_url(&self, sandbox: &SandboxId, ask: Ask, read: Read) -> Result<Opened> {
        let (permit, row) = self.0.url_calls.read(sandbox, self.0.clock.now())?;
        let read = ReadByUrl(read);
        let opened = match row {
            Some(untold) if self.may_leave_rows(&ask.caller).await => {
                self.look_unmetered(ask, read, untold).await.map(|(_, opened)| opened)
            }
            Some(untold) => {
                self.sum_up_keyless(&ask.caller, Keyless::UrlReads, sandbox, untold + 1);
                self.look_unrecorded(ask, read).await
            }
            None => self.look_unrecorded(ask, read).await,
        }?;
        Ok(Opened { body: holding(permit, opened.body), ..opened })
    }

    /// Of a sandbox that the URL was signed for.
    pub async fn call_by_url<A: Act>(&self, sandbox: &SandboxId, ask: Ask, act: A) -> Result<A::Answer> {
        let (permit, may_leave_row) = self.0.url_calls.write(sandbox, self.0.clock.now())?;
        if may_leave_row && self.may_leave_rows(&ask.caller).await {
            return self.call_unmetered(ask, act, permit).await?.answer().await;
        }
        self.sum_up_keyless(&ask.caller, Keyless::Uploads, sandbox, 1);
        self.call_unrecorded(ask, act, Metering::Permitted(permit)).await
    }

    /// By a URL that was asked for with a key, and is counted by it.
    pub async fn upload_for_build(&self, ask: Ask, upload: Upload) -> Result<u64> {
        if self.build_upload_leaves_row(&ask.caller).await {
            return self.call(ask, upload).await?.answer().await;
        }
        self.call_unrecorded(ask, upload, Metering::ByKey).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn reads_have_a_rate_and_few_rows_of_their_own_for_each_sandbox() {
        let (calls, one) = (UrlCalls::default(), SandboxId::random());
        let mut rows = Vec::new();
        for _ in 0..CALLS_PER_SEC {
            rows.extend(calls.read(&one, at(0)).unwrap().1);
        }
        assert_eq!(rows, [0; ROWS_A_MINUTE as usize]);
        assert!(matches!(calls.read(&one, at(0)), Err(Error::UrlRateLimited { .. })));
        assert_eq!(calls.read(&SandboxId::random(), at(0)).unwrap().1, Some(0), "others are not concerned");
        assert_eq!(
            calls.read(&one, at(1)).unwrap().1,
            None,
            "the rate is that of a second, the rows are those of a minute"
        );
        let untold = CALLS_PER_SEC - ROWS_A_MINUTE + 1;
        assert_eq!(calls.read(&one, at(60)).unwrap().1, Some(untold), "those without a row are counted");
        assert_eq!(calls.read(&one, at(60)).unwrap().1, Some(0));
    }

    #[test]
    fn reads_have_a_number_of_their_own_for_each_sandbox() {
        let (calls, one) = (UrlCalls::default(), SandboxId::random());
        let each_second = READS_AT_ONCE.div_ceil(2);
        let read = |number: usize| calls.read(&one, at((number / each_second) as i64));
        let held: Vec<_> = (0..READS_AT_ONCE).map(|number| read(number).unwrap().0).collect();
        assert!(matches!(calls.read(&one, at(2)), Err(Error::TooManyReaders)));
        drop(calls.read(&SandboxId::random(), at(2)).unwrap());
        drop(held);
        drop(calls.read(&one, at(2)).unwrap());
    }

    #[test]
    fn writes_have_a_rate_and_a_number_of_their_own() {
        let (calls, one) = (UrlCalls::default(), SandboxId::random());
        let held: Vec<_> = (0..WRITES_AT_ONCE).map(|_| calls.write(&one, at(0)).unwrap()).collect();
        assert!(matches!(calls.write(&one, at(0)), Err(Error::TooManyUrlWrites(_))));
        drop(calls.write(&SandboxId::random(), at(0)).unwrap());
        drop(held);
        while calls.write(&one, at(0)).is_ok() {}
        assert!(matches!(calls.write(&one, at(0)), Err(Error::UrlRateLimited { .. })));
        drop(calls.write(&one, at(1)).unwrap());
    }

    #[test]
    fn uploads_have_few_rows_of_their_own_for_each_sandbox() {
        let (calls, one) = (UrlCalls::default(), SandboxId::random());
        let rows = |second: i64| (0..40).filter(|_| calls.write(&one, at(second)).unwrap().1).count() as u64;
        assert_eq!((rows(0), rows(1), rows(60)), (ROWS_A_MINUTE, 0, ROWS_A_MINUTE));
        assert_eq!(calls.read(&one, at(61)).unwrap().1, Some(0), "reads have theirs beside");
        assert!(calls.write(&SandboxId::random(), at(1)).unwrap().1, "and so have other sandboxes");
    }

    #[test]
    fn however_many_sandboxes_there_are_little_is_kept() {
        let calls = UrlCalls::default();
        for _ in 0..2 * MAX_KNOWN {
            drop(calls.read(&SandboxId::random(), at(0)).unwrap());
        }
        assert!(calls.0.lock().unwrap().len() <= MAX_KNOWN);
    }
}
