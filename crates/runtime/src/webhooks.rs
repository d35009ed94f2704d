//! Webhooks: addresses that a tenant wants changes to be told to.
//!
//! What is told of a change was written down by the store in the transaction of that change, so no crash takes it. Each webhook
//! has a task of its own, which sends one delivery at a time, in order and at least once: one that is slow or gone holds up
//! itself alone. A tenant names the address, so it is as hostile as what comes out of a sandbox.

mod hooks;
mod post;
mod target;

use std::{sync::Arc, time::Duration};

use cabana_egress::{Dialer, Dialers, Host, Policy};
use cabana_model::{Tenant, Time, WebhookId};
use cabana_sandbox::NetworkPolicy;
use cabana_store::{Delivery, NewWebhook, Webhook};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use self::{
    hooks::{Asking, Hook, TESTS},
    post::{Letter, post},
};
pub(crate) use self::{
    hooks::{Hooks, draw as draw_secret},
    target::Target,
};
use crate::{Caller, Error, Event, Happened, Result, Runtime};

/// Of one tenant.
const MOST: usize = 16;
/// How many deliveries are shown of one webhook.
const SHOWN: u32 = 50;
/// Between two tries, at most.
const LONGEST: i64 = 3600;
/// With a pause that doubles from a second to an hour, so many tries take three days.
const TRIES: u32 = 84;
/// When the store cannot say what comes next.
const AGAIN: Duration = Duration::from_secs(1);

/// What came of one try.
#[derive(Serialize, Deserialize)]
pub struct Tried {
    pub delivered: bool,
    /// What was answered, or why nothing was.
    pub said: String,
    pub spent: Duration,
}

#[derive(Serialize)]
struct Test<'a> {
    id: &'a str,
    at: Time,
    #[serde(rename = "type")]
    kind: &'static str,
}

const TEST: &str = "webhook.test";

/// Whether these can be rules that open addresses for webhooks.
pub fn check_rules(rules: &[String]) -> std::result::Result<(), String> {
    Policy::new(&NetworkPolicy::Allow(rules.to_vec()), []).map(drop).map_err(|error| error.to_string())
}

impl Runtime {
    /// Sends what there is to tell, until the runtime closes. By way of a proxy, if there is one; `ca` are certificates to trust
    /// beside the usual ones, in PEM.
    pub async fn send_webhooks(&self, upstream: Option<&str>, ca: Option<&[u8]>) -> Result<()> {
        let dialers = Dialers::new(upstream, ca).map_err(|error| Error::invalid("network", error.to_string()))?;
        let mut offers = self.0.events.hooks.open(dialers);
        for webhook in self.0.store.live_webhooks().await? {
            // One whose address is none any more, by the rules of today, keeps no server from its start.
            if let Err(error) = self.begin_webhook(&webhook) {
                let (tenant, id, why) = (&webhook.tenant, webhook.id, error.to_string());
                self.0.store.disable_webhook(tenant, id, why, self.0.clock.now()).await?;
            }
        }
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            while let Some(Some(happened)) = runtime.0.closing.run_until_cancelled(offers.recv()).await {
                runtime.offer(&happened).await;
            }
        });
        Ok(())
    }

    /// Whether something may be sent there.
    pub(crate) async fn check_target(&self, tenant: &Tenant, target: &Target) -> Result<()> {
        let dialer = self.0.events.hooks.asking(tenant)?.dialer;
        let judged = dialer.judged(&target.host, |address| self.judge_address(address, target.port)).await;
        judged.map(drop).map_err(|why| Error::invalid("url", target.unreached(&why)))
    }

    pub(crate) async fn add_webhook(&self, new: NewWebhook) -> Result<()> {
        let webhook = self.0.store.add_webhook(new, MOST).await?.ok_or(Error::TooManyWebhooks(MOST))?;
        self.begin_webhook(&webhook)
    }

    /// How many deliveries have arrived, and how many tries have not, since the server was started.
    pub fn deliveries(&self) -> (u64, u64) {
        self.0.events.hooks.counts()
    }

    pub async fn webhooks(&self, caller: &Caller) -> Result<Vec<Webhook>> {
        caller.require_all_users()?;
        Ok(self.0.store.webhooks(&caller.tenant).await?)
    }

    /// With its last deliveries, newest first.
    pub async fn webhook(&self, caller: &Caller, id: WebhookId) -> Result<(Webhook, Vec<Delivery>)> {
        caller.require_all_users()?;
        let webhook = self.0.store.webhook(&caller.tenant, id).await?.ok_or(Error::NoWebhook(id))?;
        Ok((webhook, self.0.store.deliveries(id, SHOWN).await?))
    }

    pub(crate) async fn remove_webhook(&self, tenant: &Tenant, id: WebhookId) -> Result<()> {
        if !self.0.store.remove_webhook(tenant, id).await? {
            return Err(Error::NoWebhook(id));
        }
        self.0.events.hooks.remove(tenant, id);
        Ok(())
    }

    pub(crate) async fn enable_webhook(&self, tenant: &Tenant, id: WebhookId) -> Result<()> {
        let webhook = self.0.store.enable_webhook(tenant, id).await?.ok_or(Error::NoWebhook(id))?;
        if self.0.events.hooks.get(tenant, id).is_none() {
            self.begin_webhook(&webhook)?;
        }
        Ok(())
    }

    pub(crate) async fn test_webhook(&self, tenant: &Tenant, id: WebhookId) -> Result<Tried> {
        let webhook = self.0.store.webhook(tenant, id).await?.ok_or(Error::NoWebhook(id))?;
        let Asking { dialer, tests } = self.0.events.hooks.asking(tenant)?;
        let _place = tests.try_acquire().map_err(|_| Error::TooManyTests(TESTS))?;
        let hook = match self.0.events.hooks.get(tenant, id) {
            Some(hook) => hook,
            None => Arc::new(self.hook(&webhook, dialer)?),
        };
        let (event, at) = (format!("event_{}", Uuid::now_v7().simple()), self.0.clock.now());
        let body = serde_json::to_string(&Test { id: &event, at, kind: TEST });
        let body = body.map_err(|error| Error::invalid("event", error.to_string()))?;
        Ok(self.send(&hook, &event, TEST, &body).await)
    }

    /// What is not public is the operator's to give.
    fn judge_address(&self, address: std::net::IpAddr, port: u16) -> std::result::Result<(), String> {
        let allow = NetworkPolicy::Allow(self.0.settings.webhooks_allow.clone());
        if Policy::new(&allow, []).is_ok_and(|policy| policy.decide(&Host::Address(address), port).allowed) {
            return Ok(());
        }
        match self.0.sandboxes.provider().reaches_inside(&NetworkPolicy::Allow(vec![address.to_string()])) {
            Ok(false) => Ok(()),
            _ => Err(format!(
                "leads to {address}, which is not public: only the operator can allow that, with webhooks.allow"
            )),
        }
    }

    fn hook(&self, webhook: &Webhook, dialer: Arc<Dialer>) -> Result<Hook> {
        Ok(Hook::new(webhook, Target::read(&webhook.url)?, dialer))
    }

    fn begin_webhook(&self, webhook: &Webhook) -> Result<()> {
        let hook = Arc::new(self.hook(webhook, self.0.events.hooks.dialer(&webhook.tenant)?)?);
        self.0.events.hooks.add(hook.clone());
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            let deliver = hook.gone.run_until_cancelled(runtime.deliver(&hook));
            let _ = runtime.0.closing.run_until_cancelled(deliver).await;
        });
        Ok(())
    }

    /// One after the other, until the webhook is disabled.
    async fn deliver(&self, hook: &Hook) {
        loop {
            match self.0.store.next_delivery(&hook.tenant, hook.id).await {
                Ok(Some(delivery)) if delivery.due > self.0.clock.now() => self.0.clock.until(delivery.due).await,
                Ok(Some(delivery)) => {
                    if self.try_once(hook, &delivery).await.is_err() {
                        tokio::time::sleep(AGAIN).await;
                    }
                }
                Ok(None) => hook.poke.notified().await,
                Err(error) => {
                    tracing::warn!(webhook = %hook.id, %error, "what a webhook is to be told cannot be read");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    /// Err: nobody knows whether it was recorded.
    async fn try_once(&self, hook: &Hook, delivery: &Delivery) -> Result<()> {
        let tried = self.send(hook, &delivery.event, &delivery.kind, &delivery.body).await;
        let (attempts, now) = (delivery.attempts + 1, self.0.clock.now());
        let Tried { delivered, said, .. } = tried;
        let recorded = if delivered {
            self.0.store.delivered(&hook.tenant, hook.id, delivery.number, attempts, said, now).await
        } else if said.starts_with("410 ") {
            self.disable(hook, format!("it answered {said}: it wants to hear no more"), now).await
        } else if attempts >= TRIES {
            self.disable(
                hook,
                format!("{attempts} tries to tell it of {} failed, the last: {said}", delivery.event),
                now,
            )
            .await
        } else {
            let due = now.saturating_add(pause(attempts)).unwrap_or(Time::MAX);
            self.0.store.put_off(hook.id, delivery.number, attempts, said, due).await
        };
        recorded.map_err(|error| {
            tracing::warn!(webhook = %hook.id, %error, "what came of a delivery could not be recorded");
            error.into()
        })
    }

    async fn disable(&self, hook: &Hook, why: String, now: Time) -> cabana_store::Result<()> {
        self.0.store.disable_webhook(&hook.tenant, hook.id, why.clone(), now).await?;
        tracing::warn!(webhook = %hook.id, tenant = %hook.tenant, %why, "a webhook is disabled");
        self.0.events.hooks.remove(&hook.tenant, hook.id);
        let event = Event::WebhookDisabled { webhook: hook.id, reason: why };
        self.0.events.tell(Happened { id: Uuid::now_v7(), at: now, tenant: hook.tenant.clone(), sandbox: None, event });
        Ok(())
    }

    /// One at a time, also of those that somebody asked for.
    async fn send(&self, hook: &Hook, event: &str, kind: &str, body: &str) -> Tried {
        let _alone = hook.sending.lock().await;
        let begun = tokio::time::Instant::now();
        let letter = Letter { event, kind, body, secret: &hook.secret, at: self.0.clock.now() };
        let port = hook.target.port;
        let (delivered, said) =
            post(&hook.dialer, &hook.target, &letter, |address| self.judge_address(address, port)).await;
        self.0.events.hooks.tried(delivered);
        Tried { delivered, said, spent: begun.elapsed() }
    }

    /// What no transaction tells of. What cannot be written down is lost.
    async fn offer(&self, happened: &Happened) {
        let Happened { id, at, tenant, event, .. } = happened;
        let Ok(body) = serde_json::to_string(&happened.body()) else { return };
        if let Err(error) = self.0.store.offer(tenant, *id, event.kind(), body, *at).await {
            tracing::warn!(%error, "an event could not be written down for webhooks");
        }
        self.0.events.hooks.poke(tenant);
    }
}

/// After so many tries.
fn pause(attempts: u32) -> SignedDuration {
    let doubled = 1 << attempts.saturating_sub(1).min(12);
    SignedDuration::from_secs(LONGEST.min(doubled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_an_hour_and_all_of_them_are_three_days() {
        let pauses: Vec<i64> = (1..TRIES).map(|attempts| pause(attempts).as_secs()).collect();
        assert_eq!(pauses[..5], [1, 2, 4, 8, 16]);
        assert!(pauses.is_sorted() && pauses.last() == Some(&LONGEST));
        assert_eq!(pauses.iter().sum::<i64>() / 3600, 72);
        assert_eq!(pause(u32::MAX).as_secs(), LONGEST);
    }
}
