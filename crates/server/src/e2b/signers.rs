//! Which sandbox a signed URL of a file is for, where nothing else of the request says so.
//!
//! The SDKs write such URLs without the sandbox's id if they were given one address for all sandboxes. The signature is a digest
//! that only a sandbox's token makes, so the tokens are tried one after the other; no index leads from a digest to what it was
//! made with. That is work for whoever asks, before anybody knows who it is, so it is bounded: tokens are computed at most a few
//! times a second and not for each request, what was found is known again, and who asks for nothing that is there spends from an
//! account of its own and from one of all together. Without a balance such a URL leads nowhere for a moment. Requests that name
//! their sandbox, by header or by host name, never come here.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::StatusCode;
use cabana_e2b_wire::signature::{Grant, is_same};
use cabana_runtime::{Error, Opens, Runtime, SandboxId, Wanted};
use tokio::time::Instant;

use super::{kept::Kept, refused::Refused};

/// As long as what was computed is taken for all there is.
const FRESH: Duration = Duration::from_millis(250);
/// A miss costs as much as there were tokens to try, and at least this.
const LEAST: f64 = 1000.0;
/// Tokens a second, and at most so many at once: for one address, and for all.
const OF_ONE: Rate = Rate { each_second: 20_000.0, most: 100_000.0 };
const OF_ALL: Rate = Rate { each_second: 100_000.0, most: 400_000.0 };
/// Addresses with an account of their own, and signatures that are known again.
const ADDRESSES: usize = 4096;
const KNOWN: usize = 1024;
/// Of a signature: a digest, and what it begins with.
const LONGEST: usize = 64;
/// Of a path and a user that a file can have: what is longer names none, with any signature.
const MAX_PATH_LEN: usize = 4095;
const MAX_USER_LEN: usize = 64;
/// Tokens that are tried in less time than it takes to wake another thread.
const AT_ONCE: usize = 64;

#[derive(Default)]
pub(crate) struct Signers {
    computed: tokio::sync::Mutex<Computed>,
    accounts: Mutex<Accounts>,
    known: Mutex<HashMap<String, SandboxId>>,
}

type Tokens = Vec<(SandboxId, String)>;

#[derive(Default)]
struct Computed {
    /// And when.
    tokens: Option<(Instant, Arc<Tokens>)>,
    /// Which sandboxes this front made, and with a token, by their physical ids.
    ours: HashMap<SandboxId, bool>,
}

#[derive(Default)]
struct Accounts {
    all: Option<Account>,
    each: HashMap<IpAddr, Account>,
}

struct Rate {
    each_second: f64,
    most: f64,
}

/// What is left, and since when that was so.
#[derive(Clone, Copy)]
struct Account {
    left: f64,
    since: Instant,
}

impl Account {
    fn new(rate: &Rate, now: Instant) -> Self {
        Self { left: rate.most, since: now }
    }

    fn balance(&mut self, rate: &Rate, now: Instant) -> f64 {
        self.left = (self.left + rate.each_second * (now - self.since).as_secs_f64()).min(rate.most);
        self.since = now;
        self.left
    }
}

impl Accounts {
    /// Whether there is something left to spend, of this address and of all.
    fn may_try(&mut self, address: Option<IpAddr>, now: Instant) -> bool {
        let all = self.all.get_or_insert_with(|| Account::new(&OF_ALL, now));
        let has_all = all.balance(&OF_ALL, now) > 0.0;
        let each = address.and_then(|address| self.each.get_mut(&address));
        has_all && each.is_none_or(|each| each.balance(&OF_ONE, now) > 0.0)
    }

    fn spend(&mut self, address: Option<IpAddr>, cost: f64, now: Instant) {
        let all = self.all.get_or_insert_with(|| Account::new(&OF_ALL, now));
        all.left -= cost;
        let Some(address) = address else { return };
        if self.each.len() >= ADDRESSES && !self.each.contains_key(&address) {
            self.each.retain(|_, each| each.balance(&OF_ONE, now) < OF_ONE.most);
        }
        // Where there is no room for its own, it still spends from that of all.
        if self.each.len() < ADDRESSES || self.each.contains_key(&address) {
            self.each.entry(address).or_insert_with(|| Account::new(&OF_ONE, now)).left -= cost;
        }
    }
}

impl Signers {
    pub(super) async fn find(
        &self,
        runtime: &Runtime,
        peer: Option<IpAddr>,
        grant: &Grant<'_>,
        signature: &str,
    ) -> Result<SandboxId, Refused> {
        let nobodys = || Refused::new(StatusCode::UNAUTHORIZED, "invalid signature");
        let is_long = grant.path.len() > MAX_PATH_LEN || grant.user.is_some_and(|user| user.len() > MAX_USER_LEN);
        if !signature.starts_with("v1_") || signature.len() > LONGEST || is_long {
            return Err(nobodys());
        }
        let known = locked(&self.known).get(signature).cloned();
        if let Some(known) = known {
            return Ok(known); // whoever serves it looks whether the signature is right, too
        }
        let (peer, begun, signer) = (peer.map(of_one), Instant::now(), grant.signer());
        let mut tries = 0;
        let mut after = None;
        loop {
            if !locked(&self.accounts).may_try(peer, Instant::now()) {
                let why =
                    "too many signatures that nobody made: wait, or name the sandbox in the header E2b-Sandbox-Id";
                return Err(Refused::new(StatusCode::TOO_MANY_REQUESTS, why));
            }
            let (when, tokens) = self.tokens(runtime, after).await?;
            tries += tokens.len();
            let (many, signer, wanted) = (tokens.len(), signer.clone(), signature.to_owned());
            let signed = move || tokens.iter().find(|(_, token)| is_same(&signer.sign(token), &wanted)).cloned();
            if let Some((sandbox, _)) = off_workers_if_many(many, signed).await? {
                self.remember(signature, &sandbox);
                return Ok(sandbox);
            }
            // One that was made since these were computed is in the next ones.
            if when >= begun {
                let cost = (tries as f64).max(LEAST);
                locked(&self.accounts).spend(peer, cost, Instant::now());
                return Err(nobodys());
            }
            after = Some(begun);
        }
    }

    /// Those that were computed no earlier than that. Who comes meanwhile waits for the same.
    async fn tokens(&self, runtime: &Runtime, after: Option<Instant>) -> Result<(Instant, Arc<Tokens>), Refused> {
        let mut computed = self.computed.lock().await;
        if let Some((when, tokens)) = &computed.tokens {
            let is_enough = after.map_or(when.elapsed() < FRESH, |after| *when >= after);
            if is_enough {
                return Ok((*when, tokens.clone()));
            }
            tokio::time::sleep(FRESH.saturating_sub(when.elapsed())).await;
        }
        let now = Instant::now();
        // The token of one that asks for none is told to nobody, so nobody signs with it.
        let is_secure = |wanted: &Wanted| Kept::of(wanted).is_some_and(|kept| kept.secure);
        let is_meant = |record: &_| Wanted::of(record).is_ok_and(|wanted| is_secure(&wanted));
        let tokens = Arc::new(runtime.tokens(Opens::Inside, &mut computed.ours, is_meant).await?);
        computed.tokens = Some((now, tokens.clone()));
        Ok((now, tokens))
    }

    fn remember(&self, signature: &str, sandbox: &SandboxId) {
        let mut known = locked(&self.known);
        if known.len() >= KNOWN {
            known.clear(); // they are found again
        }
        known.insert(signature.to_owned(), sandbox.clone());
    }
}

async fn off_workers_if_many<T: Send + 'static>(
    many: usize,
    try_all: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refused> {
    if many <= AT_ONCE {
        return Ok(try_all());
    }
    let tried = tokio::task::spawn_blocking(try_all).await;
    tried.map_err(|error| Error::from(cabana_sandbox::Error::failed("looking for a signature", error)).into())
}

fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One who has a network of addresses has one account.
fn of_one(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn who_misses_too_often_waits_and_others_do_not() {
        let (now, one, other) = (Instant::now(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut accounts = Accounts::default();
        let mut misses = 0;
        while accounts.may_try(Some(one), now) {
            accounts.spend(Some(one), LEAST, now);
            misses += 1;
        }
        assert_eq!(misses, 100);
        assert!(accounts.may_try(Some(other), now));
        assert!(accounts.may_try(Some(one), now + Duration::from_millis(100)), "after a while it may again");
        accounts.spend(None, OF_ALL.most, now);
        assert!(!accounts.may_try(Some(other), now), "all together have a bound as well");
    }

    #[tokio::test]
    async fn many_tokens_are_tried_off_the_workers() {
        let thread = async |many| match off_workers_if_many(many, || thread::current().id()).await {
            Ok(thread) => thread,
            Err(refused) => panic!("{}", refused.message()),
        };
        assert_eq!(thread(AT_ONCE).await, thread::current().id());
        assert_ne!(thread(AT_ONCE + 1).await, thread::current().id());
    }

    #[test]
    fn many_addresses_take_no_room_without_end() {
        let (now, mut accounts) = (Instant::now(), Accounts::default());
        for number in 0..10_000_u32 {
            accounts.spend(Some(IpAddr::from(number.to_be_bytes())), LEAST, now);
        }
        assert_eq!(accounts.each.len(), ADDRESSES);
        let networks: Vec<IpAddr> = ["2001:db8::1", "2001:db8::2"].map(|text| of_one(text.parse().unwrap())).to_vec();
        assert_eq!(networks[0], networks[1], "who has a network has one account");
    }
}
