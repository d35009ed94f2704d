//! The webhooks that something may be sent to, as far as this process has to know: who is to be woken when something happens.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use cabana_egress::{Dialer, Dialers};
use cabana_model::{EventFilter, Tenant, WebhookId};
use cabana_sandbox::Holder;
use cabana_store::Webhook;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::target::Target;
use crate::{Error, Happened, Result};

/// How many events may wait to be written down that no transaction tells of. More than that are lost.
const OFFERS: usize = 256;

/// How many tries a tenant may have under way that it asked for itself: each is a connection, to whom it likes.
pub(super) const TESTS: usize = 4;

pub(super) struct Hook {
    pub(super) tenant: Tenant,
    pub(super) id: WebhookId,
    pub(super) target: Target,
    pub(super) secret: String,
    events: EventFilter,
    pub(super) dialer: Arc<Dialer>,
    /// There may be something to send.
    pub(super) poke: Notify,
    pub(super) sending: tokio::sync::Mutex<()>,
    /// It was removed or disabled.
    pub(super) gone: CancellationToken,
}

impl Hook {
    pub(super) fn new(webhook: &Webhook, target: Target, dialer: Arc<Dialer>) -> Self {
        Self {
            tenant: webhook.tenant.clone(),
            id: webhook.id,
            target,
            secret: webhook.secret.clone(),
            events: webhook.events.clone(),
            dialer,
            poke: Notify::new(),
            sending: tokio::sync::Mutex::default(),
            gone: CancellationToken::new(),
        }
    }
}

#[derive(Clone)]
pub(super) struct Asking {
    pub(super) dialer: Arc<Dialer>,
    /// For one try each.
    pub(super) tests: Arc<Semaphore>,
}

#[derive(Default)]
pub(crate) struct Hooks {
    /// Whether there is any at all: most servers have none, and look at nothing else.
    any: AtomicBool,
    live: Mutex<HashMap<Tenant, HashMap<WebhookId, Arc<Hook>>>>,
    open: OnceLock<(Dialers, mpsc::Sender<Arc<Happened>>)>,
    /// For what a tenant asks to be dialled here and now. One each: however many ask for names that never answer, a tenant waits
    /// for one of them at a time.
    asking: Mutex<HashMap<Tenant, Asking>>,
    sent: AtomicU64,
    failed: AtomicU64,
}

impl Hooks {
    fn live<T>(&self, act: impl FnOnce(&mut HashMap<Tenant, HashMap<WebhookId, Arc<Hook>>>) -> T) -> T {
        act(&mut self.live.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From here on something can be sent. What comes out is to be written down.
    pub(super) fn open(&self, dialers: Dialers) -> mpsc::Receiver<Arc<Happened>> {
        let (offers, offered) = mpsc::channel(OFFERS);
        let _ = self.open.set((dialers, offers));
        offered
    }

    pub(super) fn dialer(&self, tenant: &Tenant) -> Result<Arc<Dialer>> {
        let dialer = self.open.get().map(|(dialers, _)| Arc::new(dialers.dialer(Holder::tenant(tenant.as_str()))));
        dialer.ok_or_else(|| Error::invalid("url", "this server sends nothing"))
    }

    /// The tenant's own.
    pub(super) fn asking(&self, tenant: &Tenant) -> Result<Asking> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = asking.get(tenant) {
            return Ok(own.clone());
        }
        let own = Asking { dialer: self.dialer(tenant)?, tests: Arc::new(Semaphore::new(TESTS)) };
        Ok(asking.entry(tenant.clone()).or_insert(own).clone())
    }

    pub(super) fn tried(&self, delivered: bool) {
        let count = if delivered { &self.sent } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many deliveries have arrived, and how many tries have not.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    pub(super) fn add(&self, hook: Arc<Hook>) {
        self.live(|live| live.entry(hook.tenant.clone()).or_default().insert(hook.id, hook));
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn get(&self, tenant: &Tenant, id: WebhookId) -> Option<Arc<Hook>> {
        self.live(|live| live.get(tenant)?.get(&id).cloned())
    }

    pub(super) fn remove(&self, tenant: &Tenant, id: WebhookId) {
        let removed = self.live(|live| {
            let of_tenant = live.get_mut(tenant)?;
            let removed = of_tenant.remove(&id);
            if of_tenant.is_empty() {
                live.remove(tenant);
            }
            self.any.store(!live.is_empty(), Ordering::Release);
            removed
        });
        if let Some(hook) = removed {
            hook.gone.cancel();
        }
    }

    pub(crate) fn poke(&self, tenant: &Tenant) {
        self.live(|live| {
            for hook in live.get(tenant).into_iter().flat_map(HashMap::values) {
                hook.poke.notify_one();
            }
        });
    }

    /// Of each event.
    pub(crate) fn heard(&self, happened: &Arc<Happened>) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        if happened.event.is_recorded() {
            return self.poke(&happened.tenant);
        }
        let kind = happened.event.kind();
        let wanted = self.live(|live| {
            live.get(&happened.tenant).is_some_and(|hooks| hooks.values().any(|hook| hook.events.covers(kind)))
        });
        if let Some((_, offers)) = self.open.get().filter(|_| wanted) {
            let _ = offers.try_send(happened.clone());
        }
    }
}

/// A secret to sign with.
pub(crate) fn draw() -> Result<String> {
    let mut bits = [0; 32];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| cabana_sandbox::Error::failed("drawing a secret", std::io::Error::from(errno)))?;
    Ok(bits.iter().fold("whsec_".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
