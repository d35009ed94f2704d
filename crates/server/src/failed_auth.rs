//! Keys that open nothing: how many of them are looked up, and what the log and the operator's ledger say of them.
//!
//! Each is a read of the store, which anybody can ask for. A key that was good a moment ago is known without one, and another is looked up
//! in its turn: so whoever works here goes on, whatever those try who share an address with them.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::http::request::Parts;
use cabana_model::Bucket;
use cabana_runtime::{Caller, Code, Credential, Time};

use crate::{App, error::Refused, listen::Peer};

/// Of one network, in a second and at once.
const EACH: (u64, u64) = (5, 50);
/// Of this machine: it may be a proxy, behind which all are.
const OF_PROXY: (u64, u64) = (20, 300);
/// So many networks are known at a time. Those that have not tried anything for long make room.
const NETWORKS: usize = 4096;
/// Between two lines about one network.
const EVERY: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct FailedAuth {
    networks: Mutex<HashMap<IpAddr, Tries>>,
    total: AtomicU64,
    /// Beyond its tries a network has one look-up at a time, with all others that are: a key that is good opens what it should.
    turn: tokio::sync::Mutex<()>,
    /// When the ledger had a row about them, and how many there were by then.
    recorded: Mutex<Option<(Time, u64)>>,
}

struct Tries {
    bucket: Bucket,
    last: Time,
    /// Since the last line.
    untold: u64,
    told: Option<Time>,
}

impl FailedAuth {
    /// How many keys opened nothing since the server was started.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Before one is looked up that is not known. False: it has to wait for its turn. One that is good costs nothing.
    fn may_try(&self, network: IpAddr, now: Time) -> bool {
        let has_one = |tries: &mut Tries| {
            let mut bucket = tries.bucket;
            take(&mut bucket, network, now)
        };
        self.of(network, now, has_one).unwrap_or(false)
    }

    /// One was looked up, and opened nothing.
    fn pay(&self, network: IpAddr, now: Time) {
        self.of(network, now, |tries| take(&mut tries.bucket, network, now));
    }

    /// It opened nothing, whether it was looked up or not. How many there were since the last line, where there is to be one.
    fn note(&self, network: IpAddr, now: Time) -> Option<u64> {
        self.total.fetch_add(1, Ordering::Relaxed);
        self.of(network, now, |tries| {
            tries.untold += 1;
            let is_due = tries.told.is_none_or(|told| now.duration_since(told).unsigned_abs() >= EVERY);
            is_due.then(|| {
                tries.told = Some(now);
                std::mem::take(&mut tries.untold)
            })
        })
        .flatten()
    }

    /// How many there were since the last row of the ledger, where there is to be one.
    fn unrecorded(&self, now: Time) -> Option<u64> {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let (total, before) = (self.total(), recorded.map_or(0, |(_, total)| total));
        let is_due = recorded.is_none_or(|(at, _)| now.duration_since(at).unsigned_abs() >= EVERY);
        (is_due && total > before).then(|| {
            *recorded = Some((now, total));
            total - before
        })
    }

    /// `None`: very many networks try all the time.
    fn of<T>(&self, network: IpAddr, now: Time, act: impl FnOnce(&mut Tries) -> T) -> Option<T> {
        let mut networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        if networks.len() >= NETWORKS && !networks.contains_key(&network) {
            networks.retain(|_, tries| now.duration_since(tries.last).unsigned_abs() < EVERY);
            if networks.len() >= NETWORKS {
                return None;
            }
        }
        let new = || Tries { bucket: Bucket::new(now), last: now, untold: 0, told: None };
        let tries = networks.entry(network).or_insert_with(new);
        tries.last = now;
        Some(act(tries))
    }
}

fn take(bucket: &mut Bucket, network: IpAddr, now: Time) -> bool {
    let (each_second, at_once) = if network.is_loopback() { OF_PROXY } else { EACH };
    bucket.take_of_burst(each_second, at_once, now)
}

/// Whose key it is.
pub(crate) async fn admit(parts: &Parts, app: &App, key: &str) -> Result<Caller, Refused> {
    let (access, credential) = (app.runtime.access(), Credential(key));
    if let Some(caller) = access.known_caller(&credential) {
        return Ok(caller);
    }
    let Some(network) = parts.extensions.get::<Peer>().map(Peer::network) else {
        return Ok(access.admit(credential).await?); // nobody comes from outside so
    };
    let now = app.runtime.clock().now();
    let has_form = credential.has_form();
    let may_try = !has_form || app.failed_auth.may_try(network, now);
    let admitted = {
        let _turn = if may_try { None } else { Some(app.failed_auth.turn.lock().await) };
        access.admit(credential).await
    };
    let admitted = admitted.map_err(|error| match may_try {
        true => {
            if has_form {
                app.failed_auth.pay(network, now);
            }
            Refused::from(error)
        }
        false => Refused::new(Code::RateLimited, "very many keys that open nothing came from this network"),
    });
    if admitted.is_err()
        && let Some(tries) = app.failed_auth.note(network, now)
    {
        tracing::warn!(%network, tries, "keys that open nothing were shown");
    }
    if admitted.is_err()
        && let Some(tries) = app.failed_auth.unrecorded(now)
    {
        let (runtime, said) = (app.runtime.clone(), vec![format!("{tries} keys"), format!("the last from {network}")]);
        app.tasks.spawn(async move {
            if let Err(error) = runtime.note_of_strangers("key.refused", said).await {
                tracing::warn!(%error, tries, "keys that open nothing could not be recorded");
            }
        });
    }
    admitted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time::from_second(1_800_000_000 + second).unwrap()
    }

    fn tries(failed: &FailedAuth, network: &str, now: Time) -> usize {
        let network = network.parse().unwrap();
        let fails = |_: &i32| {
            let may_try = failed.may_try(network, now);
            failed.pay(network, now);
            may_try
        };
        (0..1000).take_while(fails).count()
    }

    #[test]
    fn each_network_has_so_many_tries_and_leaves_others_theirs() {
        let failed = FailedAuth::default();
        assert_eq!(tries(&failed, "192.0.2.1", at(0)), 50);
        assert_eq!(tries(&failed, "192.0.2.2", at(0)), 50);
        assert_eq!(tries(&failed, "127.0.0.1", at(0)), 300, "all may be behind a proxy");
        assert_eq!(tries(&failed, "192.0.2.1", at(2)), 10);
        let good = "192.0.2.3".parse().unwrap();
        assert!((0..1000).all(|_| failed.may_try(good, at(2))), "those that are good cost nothing");
    }

    #[test]
    fn a_network_has_a_line_a_minute_and_none_is_left_out_of_the_count() {
        let (failed, network) = (FailedAuth::default(), "192.0.2.1".parse().unwrap());
        let told = (0..100).filter_map(|_| failed.note(network, at(0))).collect::<Vec<_>>();
        assert_eq!(told, [1]);
        assert_eq!(failed.note("192.0.2.2".parse().unwrap(), at(0)), Some(1));
        assert_eq!(failed.note(network, at(60)), Some(100));
        assert_eq!(failed.total(), 102);
    }

    #[test]
    fn the_ledger_has_one_row_a_minute_for_all_networks_together() {
        let failed = FailedAuth::default();
        let note = |network: &str, now| {
            failed.note(network.parse().unwrap(), now);
            failed.unrecorded(now)
        };
        assert_eq!(note("192.0.2.1", at(0)), Some(1));
        let more: Vec<_> = ["192.0.2.1", "192.0.2.2"].into_iter().filter_map(|network| note(network, at(1))).collect();
        assert_eq!(more, [0; 0]);
        assert_eq!(note("192.0.2.3", at(60)), Some(3));
        assert_eq!(failed.unrecorded(at(600)), None, "nothing came since");
    }

    #[test]
    fn networks_that_try_nothing_any_more_make_room() {
        let failed = FailedAuth::default();
        let network = |number: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 + number));
        for number in 0..NETWORKS as u32 {
            assert!(failed.may_try(network(number), at(0)));
        }
        assert!(!failed.may_try(network(NETWORKS as u32), at(1)), "it would be one that nobody counts");
        assert!(failed.may_try(network(NETWORKS as u32), at(61)));
    }
}
