//! What is counted. Of each tenant apart: one sees nothing of another.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cabana_model::{Outcome, Tenant, retention::Kind};

use crate::{Room, Runtime};

/// The upper ends of the ranges in which durations of calls are counted, in seconds. What is longer is in none.
pub const BUCKETS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

/// The calls of one verb.
#[derive(Clone, Debug, Default)]
pub struct Verb {
    /// By the name of the outcome; few, so a list.
    pub outcomes: Vec<(&'static str, u64)>,
    /// Each call in the narrowest range that holds it.
    pub buckets: [u64; BUCKETS.len()],
    pub count: u64,
    pub seconds: f64,
}

impl Verb {
    fn add(&mut self, outcome: &'static str, spent: Duration) {
        match self.outcomes.iter_mut().find(|(name, _)| *name == outcome) {
            Some((_, count)) => *count += 1,
            None => self.outcomes.push((outcome, 1)),
        }
        let seconds = spent.as_secs_f64();
        if let Some(at) = BUCKETS.iter().position(|end| seconds <= *end) {
            self.buckets[at] += 1;
        }
        self.count += 1;
        self.seconds += seconds;
    }
}

/// Since the server was started.
#[derive(Default)]
pub struct Metrics {
    verbs: Mutex<HashMap<Tenant, HashMap<String, Verb>>>,
    ledger_rows: AtomicU64,
    /// By the name of the quota.
    refused: Mutex<HashMap<Tenant, HashMap<&'static str, u64>>>,
}

impl Metrics {
    /// A call has its outcome.
    pub(crate) fn recorded(&self, tenant: &Tenant, verb: &str, outcome: &Outcome, spent: Duration) {
        let mut all = self.verbs.lock().unwrap_or_else(PoisonError::into_inner);
        let of_tenant = match all.get_mut(tenant) {
            Some(of_tenant) => of_tenant,
            None => all.entry(tenant.clone()).or_default(),
        };
        let of_verb = match of_tenant.get_mut(verb) {
            Some(of_verb) => of_verb,
            None => of_tenant.entry(verb.to_owned()).or_default(),
        };
        of_verb.add(outcome.as_str(), spent);
    }

    /// A call was too much, and has no row.
    pub(crate) fn refused(&self, tenant: &Tenant, quota: &'static str) {
        let mut all = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(tenant.clone()).or_default().entry(quota).or_default() += 1;
    }

    /// Of one tenant or of all, in order.
    pub fn refusals(&self, tenant: Option<&Tenant>) -> Vec<(Tenant, &'static str, u64)> {
        let all = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = all.iter().filter(|(name, _)| tenant.is_none_or(|tenant| tenant == *name));
        let mut rows: Vec<_> =
            wanted.flat_map(|(tenant, of)| of.iter().map(|(quota, count)| (tenant.clone(), *quota, *count))).collect();
        drop(all);
        rows.sort();
        rows
    }

    pub(crate) fn ledger_row(&self) {
        self.ledger_rows.fetch_add(1, Ordering::Relaxed);
    }

    pub fn ledger_rows(&self) -> u64 {
        self.ledger_rows.load(Ordering::Relaxed)
    }

    /// Of one tenant or of all, in order.
    pub fn verbs(&self, tenant: Option<&Tenant>) -> Vec<(Tenant, String, Verb)> {
        let all = self.verbs.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = all.iter().filter(|(name, _)| tenant.is_none_or(|tenant| tenant == *name));
        let mut rows: Vec<_> = wanted
            .flat_map(|(tenant, verbs)| {
                verbs.iter().map(|(verb, counted)| (tenant.clone(), verb.clone(), counted.clone()))
            })
            .collect();
        drop(all);
        rows.sort_by(|a, b| (a.0.as_str(), &a.1).cmp(&(b.0.as_str(), &b.1)));
        rows
    }
}

impl Runtime {
    /// How many sandboxes of the tenant run.
    pub fn live_sandboxes(&self, tenant: &Tenant) -> usize {
        self.0.sandboxes.live_of(tenant)
    }

    /// What retention removed since the server was started, by kind: how many, and what they took. And in how many passes.
    pub fn removed(&self) -> (Vec<(&'static str, u64, u64)>, u64) {
        let removed = Kind::ALL.iter().map(|kind| {
            let (count, bytes) = self.0.keeper.gone().get(kind).copied().unwrap_or_default();
            (kind.as_str(), count, bytes)
        });
        (removed.collect(), self.0.keeper.passes())
    }

    /// Of the disk of the data directory, where it is watched; and how often somebody was refused for want of it.
    pub fn room(&self) -> (Option<Room>, u64) {
        (self.0.keeper.space.room(), self.0.keeper.space.refused())
    }

    /// How many tasks run.
    pub fn live_tasks(&self) -> usize {
        self.0.live_tasks.count()
    }
}
