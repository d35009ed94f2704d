//! A sandbox for oneself, for a while: nobody else stops, pauses, archives or deletes it, and it is not idle.
//!
//! A lease ends by itself unless it is renewed in time, so whoever goes away holds others up no longer than that. Who shows its
//! token with a call hears when it was lost, and nothing is done then.

use std::{sync::Arc, time::Duration};

use cabana_model::{SandboxId, Time};
use cabana_store::{By, Lease, Token};
use hmac::Mac as _;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::{
    Act, Cx, Error, Needs, Result,
    sandboxes::{Sandboxes, Slot},
    shares::{self, LEASE_WAITERS},
};

/// What a lease lasts that names no time (FE-27). It should be renewed six times as often.
pub const USUAL: Duration = Duration::from_secs(180);
pub const LONGEST: Duration = Duration::from_secs(3600);
/// The longest that somebody waits for another's to end.
pub const MOST_PATIENCE: Duration = Duration::from_secs(60);
const LONGEST_NAME: usize = 200;
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(100);

/// Takes it, or waits for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Take {
    /// In the holder's own words, for whoever finds it taken.
    pub holder: String,
    pub lasts: Duration,
    pub patience: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    pub token: Token,
    pub until: Time,
}

impl Take {
    fn check(&self) -> Result<()> {
        if self.holder.is_empty() || self.holder.len() > LONGEST_NAME || self.holder.contains(char::is_control) {
            return Err(Error::invalid("holder", format!("must be a text of 1 to {LONGEST_NAME} plain characters")));
        }
        if self.lasts.is_zero() || self.lasts > LONGEST {
            return Err(Error::invalid("ttl_sec", format!("must be from 1 to {}", LONGEST.as_secs())));
        }
        if self.patience > MOST_PATIENCE {
            return Err(Error::invalid("wait_ms", format!("must be at most {}", MOST_PATIENCE.as_millis())));
        }
        Ok(())
    }
}

impl Act for Take {
    const VERB: &'static str = "lease.take";
    type Answer = Taken;

    fn needs(&self) -> Needs {
        Needs::Record
    }

    fn stores(&self) -> bool {
        false
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(serde_json::to_vec(self).unwrap_or_default()).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.holder.clone(), format!("{} s", self.lasts.as_secs())]
    }

    async fn run(self, cx: Cx) -> Result<Taken> {
        self.check()?;
        let (slot, token, asked) = (cx.slot().await?, token_of(&cx).await?, Instant::now());
        let mut waits = None;
        loop {
            match cx.runtime.0.sandboxes.lease(&slot, token, &self.holder, self.lasts).await {
                Err(busy @ Error::Busy { .. }) if asked.elapsed() < self.patience && !cx.cancel.is_cancelled() => {
                    waits = waits.or_else(|| LEASE_WAITERS.take(&shares::sandbox(&slot.record())));
                    if waits.is_none() {
                        return Err(busy); // as many wait for it as may
                    }
                    if !cx.runtime.closing_after(AGAIN).await {
                        return Err(Error::Left);
                    }
                }
                taken => return taken.map(|lease| Taken { token, until: lease.until }),
            }
        }
    }
}

/// Whoever repeats the request gets the same one. Nobody else knows it: the call's number is in lists, ledgers and logs.
async fn token_of(cx: &Cx) -> Result<Token> {
    let proof = cx.runtime.0.links.mac(&format!("lease {}", cx.call)).await?.finalize().into_bytes();
    Ok(Token::from_u128(proof.iter().take(16).fold(0, |token, byte| (token << 8) | u128::from(*byte))))
}

/// Goes on with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Renew {
    pub token: Token,
    pub lasts: Duration,
}

impl Act for Renew {
    const VERB: &'static str = "lease.renew";
    type Answer = Taken;

    fn needs(&self) -> Needs {
        Needs::Record
    }

    fn stores(&self) -> bool {
        false
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(serde_json::to_vec(self).unwrap_or_default()).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![format!("{} s", self.lasts.as_secs())]
    }

    async fn run(self, cx: Cx) -> Result<Taken> {
        Take { holder: "renewed".to_owned(), lasts: self.lasts, patience: Duration::ZERO }.check()?;
        let lease = cx.runtime.0.sandboxes.renew(&cx.slot().await?, self.token, self.lasts).await?;
        Ok(Taken { token: lease.token, until: lease.until })
    }
}

/// Gives it back.
pub struct Release(pub Token);

impl Act for Release {
    const VERB: &'static str = "lease.release";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Record
    }

    fn stores(&self) -> bool {
        false
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0).into()
    }

    fn argv(&self) -> Vec<String> {
        Vec::new()
    }

    async fn run(self, cx: Cx) -> Result<()> {
        cx.runtime.0.sandboxes.release(&cx.slot().await?, self.0).await
    }
}

impl Sandboxes {
    async fn lease(&self, slot: &Arc<Slot>, token: Token, holder: &str, lasts: Duration) -> Result<Lease> {
        let _alone = slot.leasing.lock().await;
        let (now, record) = (self.clock.now(), slot.record());
        // Nothing is written for one that cannot have it: many wait, and ask often.
        if let Some(other) = record.lease.as_ref().filter(|lease| lease.stands(now) && lease.token != token) {
            return Err(self.busy(slot, other.clone()));
        }
        let lease = Lease { token, holder: holder.to_owned(), until: later(now, lasts) };
        let there = self.store.take_lease(&record.physical, lease, now).await?;
        let there = there.ok_or_else(|| gone(&record.id))?;
        slot.set_lease(Some(there.clone()));
        match there.token == token {
            true => Ok(there),
            false => Err(self.busy(slot, there)),
        }
    }

    /// `Busy`: it is leased to another.
    pub(crate) fn check_lease(&self, slot: &Slot, by: By) -> Result<()> {
        match slot.record().lease.clone().filter(|_| slot.is_leased_to_another(by)) {
            Some(lease) => Err(self.busy(slot, lease)),
            None => Ok(()),
        }
    }

    /// In the words of its dialect, where that has some.
    pub(crate) fn busy(&self, slot: &Slot, lease: Lease) -> Error {
        let text = slot.wanted().ok().and_then(|wanted| self.dialect_of(&wanted)?.texts.busy.clone());
        Error::Busy { holder: lease.holder, until: lease.until, text }
    }

    async fn renew(&self, slot: &Arc<Slot>, token: Token, lasts: Duration) -> Result<Lease> {
        let _alone = slot.leasing.lock().await;
        let now = self.clock.now();
        let renewed = self.store.renew_lease(&slot.record().physical, token, now, later(now, lasts)).await?;
        let renewed = renewed.ok_or(Error::LeaseLost)?;
        slot.set_lease(Some(renewed.clone()));
        Ok(renewed)
    }

    async fn release(&self, slot: &Arc<Slot>, token: Token) -> Result<()> {
        let _alone = slot.leasing.lock().await;
        if !self.store.end_lease(&slot.record().physical, token, self.clock.now()).await? {
            return Err(Error::LeaseLost);
        }
        slot.set_lease(None);
        slot.used();
        Ok(())
    }

    /// Before something is done under it.
    pub(crate) fn holds(&self, slot: &Slot, token: Token) -> Result<()> {
        let record = slot.record();
        match record.lease.as_ref() {
            Some(lease) if lease.token == token && lease.stands(self.clock.now()) => Ok(()),
            _ => Err(Error::LeaseLost),
        }
    }
}

fn later(now: Time, lasts: Duration) -> Time {
    SignedDuration::try_from(lasts).ok().and_then(|lasts| now.checked_add(lasts).ok()).unwrap_or(Time::MAX)
}

fn gone(id: &SandboxId) -> Error {
    Error::NoSandbox(id.clone())
}
