//! Which reads, and which uploads by signed URLs, leave a row of their own in the ledger.
//!
//! A read is the cheapest of calls, and any key may make very many. Each key has rows for a burst of them and for a steady rate; what it
//! reads beyond that is summed up into one row: how many, from when, until when. So it is as well where the tenant has half of its
//! `ledger_bytes`, which is left to what changes something, and where the disk has little left. What is done by a URL and who comes to a
//! port, without a key, are summed up in the same way, by sandbox: how many have a row of their own say `url_calls` and `ports`. Beyond the
//! quota there is one such sum for all sandboxes of a tenant, however many have strangers.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use cabana_model::{Bucket, KeyId, SandboxId, Tenant, Time};
use cabana_store::Entry;

use crate::{Caller, Runtime, space::Room, words};

/// Rows of one key: at once, and in a second.
const BURST: u64 = 600;
const ROWS_PER_SEC: u64 = 1;
/// How long calls are summed up before that is recorded.
const SUMMED_FOR: Duration = Duration::from_secs(60);
/// Keys that are known at a time. Beyond it those that rest are forgotten.
const MAX_KNOWN: usize = 4096;

/// The verb of the row that sums reads up. Its words are how many, from when, until when.
pub(crate) const MORE: &str = "read.more";

/// The same of uploads by signed URLs, to one sandbox, and of files on their way into builds.
pub(crate) const MORE_UPLOADS: &str = "file.write.more";
pub(crate) const MORE_BUILD_UPLOADS: &str = "build.upload.more";
/// Reads by signed URLs, and visits of strangers, for which there was no row.
pub(crate) const MORE_URL_READS: &str = "file.read.more";
pub(crate) const MORE_VISITS: &str = "visit.more";

#[derive(Default)]
pub(crate) struct ReadRows(Mutex<HashMap<Whose, Rows>>);

/// Which calls are summed up in one row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Whose {
    tenant: Tenant,
    key: KeyId,
    calls: Calls,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Calls {
    Reads,
    /// By URLs that were asked for with the key.
    BuildUploads,
    /// Of a sandbox that was made with the key; of all of the tenant's where none is named.
    Keyless(Keyless, Option<SandboxId>),
}

/// What is done without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Keyless {
    UrlReads,
    Uploads,
    Visits,
}

impl Whose {
    fn of(caller: &Caller, calls: Calls) -> Self {
        Self { tenant: caller.tenant.clone(), key: caller.key, calls }
    }

    fn verb(&self) -> &'static str {
        match self.calls {
            Calls::Reads => MORE,
            Calls::BuildUploads => MORE_BUILD_UPLOADS,
            Calls::Keyless(Keyless::UrlReads, _) => MORE_URL_READS,
            Calls::Keyless(Keyless::Uploads, _) => MORE_UPLOADS,
            Calls::Keyless(Keyless::Visits, _) => MORE_VISITS,
        }
    }

    fn sandbox(&self) -> Option<SandboxId> {
        if let Calls::Keyless(_, sandbox) = &self.calls { sandbox.clone() } else { None }
    }
}

struct Rows {
    own: Bucket,
    more: Option<Summed>,
}

impl Rows {
    fn sum_up(&mut self, count: u64, now: Time) {
        let more = self.more.get_or_insert(Summed { count: 0, from: now, until: now });
        (more.count, more.until) = (more.count + count, now);
    }
}

/// Calls without rows of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summed {
    pub(crate) count: u64,
    pub(crate) from: Time,
    pub(crate) until: Time,
}

impl Summed {
    fn and(&self, other: &Self) -> Self {
        let (from, until) = (self.from.min(other.from), self.until.max(other.until));
        Self { count: self.count + other.count, from, until }
    }
}

/// Sums of strangers, of one kind, in one for each of these tenants. It names the key of one of them.
fn merged(sums: Vec<(Whose, Summed)>, has_full_ledger: impl Fn(&Tenant) -> bool) -> Vec<(Whose, Summed)> {
    let (mut kept, mut of_all) = (Vec::new(), HashMap::<_, (Whose, Summed)>::new());
    for (whose, sum) in sums {
        match whose.calls {
            Calls::Keyless(kind, _) if has_full_ledger(&whose.tenant) => {
                let whose = Whose { calls: Calls::Keyless(kind, None), ..whose };
                let entry = of_all.entry((whose.tenant.clone(), kind));
                entry.and_modify(|(_, known)| *known = known.and(&sum)).or_insert((whose, sum));
            }
            _ => kept.push((whose, sum)),
        }
    }
    kept.extend(of_all.into_values());
    kept
}

fn rows_of(all: &mut HashMap<Whose, Rows>, whose: Whose, now: Time) -> &mut Rows {
    if all.len() >= MAX_KNOWN && !all.contains_key(&whose) {
        all.retain(|_, rows| rows.more.is_some());
    }
    all.entry(whose).or_insert_with(|| Rows { own: Bucket::new(now), more: None })
}

impl ReadRows {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<Whose, Rows>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether one leaves a row of its own; else it is added to the sum. `may_leave` is false where only sums are recorded.
    fn add(&self, whose: Whose, may_leave: bool, now: Time) -> bool {
        self.all(|all| {
            let rows = rows_of(all, whose, now);
            if may_leave && rows.own.take_of_burst(ROWS_PER_SEC, BURST, now) {
                return true;
            }
            rows.sum_up(1, now);
            false
        })
    }

    /// So many that leave no row of their own.
    fn sum_up(&self, whose: Whose, count: u64, now: Time) {
        self.all(|all| rows_of(all, whose, now).sum_up(count, now));
    }

    /// Takes the sums that were begun before then.
    fn take(&self, before: Time) -> Vec<(Whose, Summed)> {
        self.all(|all| {
            let due = all.iter_mut().filter_map(|(whose, rows)| {
                let more = rows.more.take_if(|more| more.from <= before)?;
                Some((whose.clone(), more))
            });
            due.collect()
        })
    }

    /// What could not be recorded is summed up further.
    fn put_back(&self, whose: Whose, sum: &Summed) {
        self.all(|all| {
            let rows = all.entry(whose).or_insert_with(|| Rows { own: Bucket::new(sum.until), more: None });
            let newer = rows.more.take();
            let (count, until) = newer.map_or((0, sum.until), |newer| (newer.count, newer.until));
            rows.more = Some(Summed { count: sum.count + count, from: sum.from, until });
        });
    }
}

impl Runtime {
    /// Records what was summed up, again and again and at the end.
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
        let sums = self.0.read_rows.take(before);
        for (whose, sum) in merged(sums, |tenant| self.0.quotas.has_full_ledger(tenant)) {
            let words = vec![sum.count.to_string(), sum.from.to_string(), sum.until.to_string()];
            let bytes = words::record_bytes(&words);
            let entry = self.entry_of_none(&whose.tenant, whose.key, whose.verb(), words);
            match self.0.store.note(Entry { sandbox: whose.sandbox(), ..entry }).await {
                Ok(()) => {
                    self.0.quotas.add_recorded(&whose.tenant, bytes);
                    self.0.metrics.ledger_row();
                }
                Err(error) => {
                    tracing::warn!(%error, "calls that were summed up could not be recorded yet");
                    self.0.read_rows.put_back(whose, &sum);
                }
            }
        }
    }

    /// Whether a read of this caller leaves a row of its own. Where it does, that counts.
    pub(crate) async fn leaves_row(&self, caller: &Caller, words: &[String]) -> bool {
        let may_leave = self.may_leave_rows(caller).await;
        let leaves = self.0.read_rows.add(Whose::of(caller, Calls::Reads), may_leave, self.0.clock.now());
        if leaves {
            self.0.quotas.add_recorded(&caller.tenant, words::record_bytes(words));
        }
        leaves
    }

    /// So many that strangers did without a row.
    pub(crate) fn sum_up_keyless(&self, caller: &Caller, kind: Keyless, sandbox: &SandboxId, count: u64) {
        let whose = Whose::of(caller, Calls::Keyless(kind, Some(sandbox.clone())));
        self.0.read_rows.sum_up(whose, count, self.0.clock.now());
    }

    /// Whether an upload for a build leaves a row of its own.
    pub(crate) async fn build_upload_leaves_row(&self, caller: &Caller) -> bool {
        let may_leave = self.may_leave_rows(caller).await;
        self.0.read_rows.add(Whose::of(caller, Calls::BuildUploads), may_leave, self.0.clock.now())
    }

    /// Where half of a ledger is there, or the disk has little left, that is for what changes something and is asked for with a key.
    pub(crate) async fn may_leave_rows(&self, caller: &Caller) -> bool {
        let is_scarce = self.has_little_disk() || self.0.store.is_short().await;
        !is_scarce && !self.0.quotas.has_half_a_ledger(&caller.tenant)
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
        Caller { role: Role::Read, ..Caller::keyless(KeyId::now(), tenant) }
    }

    #[test]
    fn a_key_has_rows_for_a_burst_and_for_a_rate_and_all_else_is_summed_up() {
        let (rows, one, other) = (ReadRows::default(), caller(), caller());
        let own = |second: i64| {
            (0..1000).filter(|_| rows.add(Whose::of(&one, Calls::Reads), true, at(second))).count() as u64
        };
        assert_eq!((own(0), own(7)), (BURST, 7 * ROWS_PER_SEC));
        assert!(rows.add(Whose::of(&other, Calls::Reads), true, at(7)), "another key is not concerned");
        assert!(
            !rows.add(Whose::of(&other, Calls::Reads), false, at(7)),
            "nor has it a row where there is none to have"
        );
        let mut sums = rows.take(at(6));
        assert_eq!(sums.len(), 1, "that of the other was begun later");
        let (whose, sum) = sums.remove(0);
        assert_eq!((whose.key, sum.count), (one.key, 2000 - BURST - 7));
        assert_eq!((sum.from, sum.until), (at(0), at(7)));
        rows.add(Whose::of(&one, Calls::Reads), true, at(7));
        rows.put_back(whose, &sum);
        let again = rows.take(Time::MAX);
        let again = again.iter().find(|(whose, _)| whose.key == one.key).unwrap();
        assert_eq!((again.1.count, again.1.from), (2001 - BURST - 7, at(0)));
        assert_eq!(rows.take(Time::MAX), []);
    }

    #[test]
    fn uploads_by_urls_are_summed_up_by_sandbox_and_beside_reads() {
        let (rows, one, sandboxes) = (ReadRows::default(), caller(), [SandboxId::random(), SandboxId::random()]);
        let uploads =
            |number: usize| Whose::of(&one, Calls::Keyless(Keyless::Uploads, Some(sandboxes[number].clone())));
        for number in [0, 0, 1] {
            rows.sum_up(uploads(number), 1, at(0));
        }
        assert!(!rows.add(Whose::of(&one, Calls::Reads), false, at(0)));
        assert!(rows.add(Whose::of(&one, Calls::BuildUploads), true, at(0)), "it has a row of its own");
        let sums = rows.take(Time::MAX);
        let count = |whose: Whose| sums.iter().find(|(of, _)| *of == whose).map(|(of, sum)| (of.verb(), sum.count));
        assert_eq!(count(uploads(0)), Some((MORE_UPLOADS, 2)));
        assert_eq!(count(uploads(1)), Some((MORE_UPLOADS, 1)));
        assert_eq!(count(Whose::of(&one, Calls::Reads)), Some((MORE, 1)));
        assert_eq!(sums.len(), 3);
    }

    #[test]
    fn beyond_its_quota_a_tenant_has_one_sum_of_strangers_for_all_its_sandboxes() {
        let (rows, one) = (ReadRows::default(), caller());
        let other = Caller { tenant: Tenant::new("them").unwrap(), ..caller() };
        for second in 0..3 {
            for kind in [Keyless::UrlReads, Keyless::Visits] {
                for whose in [&one, &caller(), &other] {
                    let sandbox = Some(SandboxId::random());
                    rows.sum_up(Whose::of(whose, Calls::Keyless(kind, sandbox)), 10, at(second));
                }
            }
        }
        rows.add(Whose::of(&one, Calls::Reads), false, at(0));
        let sums = merged(rows.take(Time::MAX), |tenant| *tenant == one.tenant);
        let of = |tenant: &Tenant, verb: &str| {
            let of = sums.iter().filter(|(whose, _)| whose.tenant == *tenant && whose.verb() == verb);
            of.map(|(whose, sum)| (whose.sandbox().is_some(), sum.count, sum.from, sum.until)).collect::<Vec<_>>()
        };
        for verb in [MORE_URL_READS, MORE_VISITS] {
            assert_eq!(of(&one.tenant, verb), [(false, 60, at(0), at(2))]);
            let theirs = of(&other.tenant, verb);
            assert_eq!(theirs.len(), 3, "where there is room each sandbox has its own");
            assert!(theirs.iter().all(|(has_sandbox, count, ..)| *has_sandbox && *count == 10));
        }
        assert_eq!(of(&one.tenant, MORE).len(), 1);
        assert_eq!(sums.len(), 2 * (1 + 3) + 1);
    }
}
