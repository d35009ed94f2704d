//! Which reads leave a row of their own in the ledger.
//!
//! A read is the cheapest of calls, and any key may make very many. Each key has rows for a burst of them and for a steady rate; what it
//! reads beyond that is summed up into one row: how many, from when, until when. So it is as well where the tenant has half of its
//! `ledger_bytes`, which is left to what changes something, and where the disk has little left.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use cabana_model::{Bucket, KeyId, Tenant, Time};

use crate::{Caller, Runtime, space::Room, words};

/// Rows of one key: at once, and in a second.
const BURST: u64 = 600;
const ROWS_PER_SEC: u64 = 1;
/// How long reads are summed up before that is recorded.
const SUMMED_FOR: Duration = Duration::from_secs(60);
/// Keys that are known at a time. Beyond it those that rest are forgotten.
const MAX_KNOWN: usize = 4096;

/// The verb of the row that sums reads up. Its words are how many, from when, until when.
pub(crate) const MORE: &str = "read.more";

#[derive(Default)]
pub(crate) struct ReadRows(Mutex<HashMap<(Tenant, KeyId), OfKey>>);

struct OfKey {
    rows: Bucket,
    more: Option<Summed>,
}

/// Reads without rows of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summed {
    pub(crate) count: u64,
    pub(crate) from: Time,
    pub(crate) until: Time,
}

impl ReadRows {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<(Tenant, KeyId), OfKey>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a read leaves a row of its own; else it is added to the sum. `may_leave` is false where only sums are recorded.
    fn add(&self, caller: &Caller, may_leave: bool, now: Time) -> bool {
        self.all(|all| {
            let key = (caller.tenant.clone(), caller.key);
            if all.len() >= MAX_KNOWN && !all.contains_key(&key) {
                all.retain(|_, of_key| of_key.more.is_some());
            }
            let of_key = all.entry(key).or_insert_with(|| OfKey { rows: Bucket::new(now), more: None });
            if may_leave && of_key.rows.take_of_burst(ROWS_PER_SEC, BURST, now) {
                return true;
            }
            let more = of_key.more.get_or_insert(Summed { count: 0, from: now, until: now });
            (more.count, more.until) = (more.count + 1, now);
            false
        })
    }

    /// Takes the sums that were begun before then.
    fn take(&self, before: Time) -> Vec<(Tenant, KeyId, Summed)> {
        self.all(|all| {
            let due = all.iter_mut().filter_map(|((tenant, key), of_key)| {
                let more = of_key.more.take_if(|more| more.from <= before)?;
                Some((tenant.clone(), *key, more))
            });
            due.collect()
        })
    }

    /// What could not be recorded is summed up further.
    fn put_back(&self, tenant: Tenant, key: KeyId, sum: &Summed) {
        self.all(|all| {
            let of_key = all.entry((tenant, key)).or_insert_with(|| OfKey { rows: Bucket::new(sum.until), more: None });
            let newer = of_key.more.take();
            let (count, until) = newer.map_or((0, sum.until), |newer| (newer.count, newer.until));
            of_key.more = Some(Summed { count: sum.count + count, from: sum.from, until });
        });
    }
}

impl Runtime {
    /// Records what reads were summed up, again and again and at the end.
    pub fn sum_up_reads(&self) {
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            while runtime.closing_after(SUMMED_FOR).await {
                runtime.record_sums(runtime.0.clock.now()).await;
            }
            runtime.record_sums(Time::MAX).await;
        });
    }

    /// Of those that were begun before then.
    async fn record_sums(&self, before: Time) {
        for (tenant, key, sum) in self.0.read_rows.take(before) {
            let words = vec![sum.count.to_string(), sum.from.to_string(), sum.until.to_string()];
            let entry = self.entry_of_none(&tenant, key, MORE, words);
            match self.0.store.note(entry).await {
                Ok(()) => self.0.metrics.ledger_row(),
                Err(error) => {
                    tracing::warn!(%error, "reads that were summed up could not be recorded yet");
                    self.0.read_rows.put_back(tenant, key, &sum);
                }
            }
        }
    }

    /// Whether a read of this caller leaves a row of its own. Where it does, that counts.
    pub(crate) async fn leaves_row(&self, caller: &Caller, words: &[String]) -> bool {
        let is_scarce = self.has_little_disk() || self.0.store.is_short().await;
        let may_leave = !is_scarce && !self.0.quotas.has_half_a_ledger(&caller.tenant);
        let leaves = self.0.read_rows.add(caller, may_leave, self.0.clock.now());
        if leaves {
            self.0.quotas.add_recorded(&caller.tenant, words::record_bytes(words));
        }
        leaves
    }

    /// Less than is to stay free.
    pub(crate) fn has_little_disk(&self) -> bool {
        self.0.keeper.space.room().is_some_and(Room::is_low)
    }
}

#[cfg(test)]
mod tests {
    use cabana_model::Role;

    use super::*;

    fn at(second: i64) -> Time {
        Time::from_second(1_800_000_000 + second).unwrap()
    }

    fn caller() -> Caller {
        let tenant = Tenant::new("us").unwrap();
        Caller { key: KeyId::now(), tenant, role: Role::Read, subject: None }
    }

    #[test]
    fn a_key_has_rows_for_a_burst_and_for_a_rate_and_all_else_is_summed_up() {
        let (rows, one, other) = (ReadRows::default(), caller(), caller());
        let own = |second: i64| (0..1000).filter(|_| rows.add(&one, true, at(second))).count() as u64;
        assert_eq!((own(0), own(7)), (BURST, 7 * ROWS_PER_SEC));
        assert!(rows.add(&other, true, at(7)), "another key is not concerned");
        assert!(!rows.add(&other, false, at(7)), "nor has it a row where there is none to have");
        let mut sums = rows.take(at(6));
        assert_eq!(sums.len(), 1, "that of the other was begun later");
        let (_, key, sum) = sums.remove(0);
        assert_eq!((key, sum.count), (one.key, 2000 - BURST - 7));
        assert_eq!((sum.from, sum.until), (at(0), at(7)));
        rows.add(&one, true, at(7));
        rows.put_back(one.tenant.clone(), one.key, &sum);
        let again = rows.take(Time::MAX);
        let again = again.iter().find(|(_, key, _)| *key == one.key).unwrap();
        assert_eq!((again.2.count, again.2.from), (2001 - BURST - 7, at(0)));
        assert_eq!(rows.take(Time::MAX), []);
    }
}
