//! Which sandbox a signed URL of a file is for, where nothing else of the request says so.
//!
//! The SDKs write such URLs without the sandbox's id if they were given one address for all sandboxes. The signature is a digest
//! that only a sandbox's token makes, so the tokens are tried one after the other; no index leads from a digest to what it was
//! made with. That is work for whoever asks, before anybody knows who it is, so it is bounded: tokens are computed at most a few
//! times a second and not for each request, what was found is known again, and each try is paid for before it is made, from an
//! account of its address and from one of all together; what was right gets it back. Without a balance such a URL leads nowhere for a
//! moment. Requests that name their sandbox, by header or by host name, never come here.

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
/// A try costs as much as there are tokens, and at least this.
const LEAST: f64 = 100.0;
/// Tokens a second, and at most so many at once: for one address, and for all; and as much for all that were right before.
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
    accounts: Arc<Mutex<Accounts>>,
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
    /// Of all together.
    strangers: Option<Account>,
    /// Of all together that were right before: nobody takes it from them who only guesses.
    proven: Option<Account>,
    each: HashMap<IpAddr, OfAddress>,
}

struct OfAddress {
    account: Account,
    was_right: bool,
}

/// From which account of all together a try was paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payer {
    Stranger,
    Proven,
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
    /// Takes the cost of a try before it is made, from both or from none: of many at once each finds what is left by then. `None`: one of
    /// them has nothing left. That of the address is asked first, so no address takes more from that of all than it has.
    fn pay(&mut self, address: Option<IpAddr>, cost: f64, now: Instant) -> Option<Payer> {
        let was_right = address.and_then(|address| self.each.get(&address)).is_some_and(|each| each.was_right);
        let payer = if was_right { Payer::Proven } else { Payer::Stranger };
        let has_all = self.all(payer).get_or_insert_with(|| Account::new(&OF_ALL, now)).balance(&OF_ALL, now) > 0.0;
        if let Some(each) = address.and_then(|address| self.of_address(address, now)) {
            if each.account.balance(&OF_ONE, now) <= 0.0 || !has_all {
                return None;
            }
            each.account.left -= cost;
        }
        if let Some(all) = self.all(payer).as_mut().filter(|_| has_all) {
            all.left -= cost;
        }
        has_all.then_some(payer)
    }

    /// What was right costs nothing.
    fn give_back(&mut self, address: Option<IpAddr>, cost: f64, payer: Payer) {
        if let Some(each) = address.and_then(|address| self.each.get_mut(&address)) {
            each.account.left += cost;
            each.was_right = true;
        }
        if let Some(all) = self.all(payer) {
            all.left += cost;
        }
    }

    fn all(&mut self, payer: Payer) -> &mut Option<Account> {
        match payer {
            Payer::Stranger => &mut self.strangers,
            Payer::Proven => &mut self.proven,
        }
    }

    /// `None`: there is no room for its own, and it pays from that of all alone.
    fn of_address(&mut self, address: IpAddr, now: Instant) -> Option<&mut OfAddress> {
        if self.each.len() >= ADDRESSES && !self.each.contains_key(&address) {
            self.each.retain(|_, each| each.account.balance(&OF_ONE, now) < OF_ONE.most);
            if self.each.len() >= ADDRESSES {
                return None;
            }
        }
        let new = || OfAddress { account: Account::new(&OF_ONE, now), was_right: false };
        Some(self.each.entry(address).or_insert_with(new))
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
        let mut paid = 0.0;
        let mut after = None;
        loop {
            let (when, tokens) = self.tokens(runtime, after).await?;
            let cost = if paid > 0.0 { tokens.len() as f64 } else { (tokens.len() as f64).max(LEAST) };
            let Some(payer) = locked(&self.accounts).pay(peer, cost, Instant::now()) else {
                let why =
                    "too many signatures that nobody made: wait, or name the sandbox in the header E2b-Sandbox-Id";
                return Err(Refused::new(StatusCode::TOO_MANY_REQUESTS, why));
            };
            paid += cost;
            let (many, signer, wanted) = (tokens.len(), signer.clone(), signature.to_owned());
            let accounts = self.accounts.clone();
            let signed = move || {
                let found = tokens.iter().find(|(_, token)| is_same(&signer.sign(token), &wanted)).cloned();
                if found.is_some() {
                    locked(&accounts).give_back(peer, paid, payer); // also where its client has gone
                }
                found
            };
            if let Some((sandbox, _)) = off_workers_if_many(many, signed).await? {
                self.remember(signature, &sandbox);
                return Ok(sandbox);
            }
            // One that was made since these were computed is in the next ones.
            if when >= begun {
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
    use std::{net::Ipv4Addr, thread};

    use super::*;

    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    /// With as many tokens as that.
    const COST: f64 = 1000.0;

    #[test]
    fn who_misses_too_often_waits_and_others_do_not() {
        let (now, mut accounts) = (Instant::now(), Accounts::default());
        // All of them before it is known what comes of the first.
        assert_eq!((0..6000).filter(|_| accounts.pay(Some(ONE), COST, now).is_some()).count(), 100);
        assert!(accounts.pay(Some(OTHER), COST, now).is_some(), "one address takes nothing that others need");
        let later = now + Duration::from_millis(100);
        assert!(accounts.pay(Some(ONE), COST, later).is_some(), "after a while it may again");
        while accounts.pay(None, COST, later).is_some() {}
        assert!(accounts.pay(Some(OTHER), COST, later).is_none(), "all together have a bound as well");
        assert!(accounts.each[&OTHER].account.left > 0.0, "and who is refused by that has paid nothing");
    }

    #[test]
    fn who_is_right_gets_back_what_was_paid_and_is_not_held_up_by_who_only_guesses() {
        let (now, mut accounts) = (Instant::now(), Accounts::default());
        for _ in 0..1000 {
            let payer = accounts.pay(Some(ONE), COST, now).unwrap();
            accounts.give_back(Some(ONE), COST, payer);
        }
        while accounts.pay(None, COST, now).is_some() {}
        assert_eq!(accounts.pay(Some(OTHER), COST, now), None);
        assert_eq!((0..6000).filter(|_| accounts.pay(Some(ONE), COST, now).is_some()).count(), 100);
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
            accounts.pay(Some(IpAddr::from(number.to_be_bytes())), 1.0, now);
        }
        assert_eq!(accounts.each.len(), ADDRESSES);
        let networks: Vec<IpAddr> = ["2001:db8::1", "2001:db8::2"].map(|text| of_one(text.parse().unwrap())).to_vec();
        assert_eq!(networks[0], networks[1], "who has a network has one account");
    }
}
