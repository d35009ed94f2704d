//! Webhooks are made, tried and removed. They are the tenant's, and go on without the key that made them: the ledger says which it was.

use cabana_model::{EventFilter, WebhookId};
use cabana_store::NewWebhook;
use sha2::{Digest, Sha256};

use crate::{
    Act, Cx, Needs, Result,
    webhooks::{Target, Tried, draw_secret},
};

/// Whoever makes one has its id and secret. Nothing else shows the secret.
pub struct Add {
    pub id: WebhookId,
    pub secret: String,
    url: String,
    target: Target,
    events: EventFilter,
}

impl Add {
    /// What cannot be an address is refused.
    pub fn new(url: String, events: Option<EventFilter>) -> Result<Self> {
        let target = Target::read(&url)?;
        Ok(Self { id: WebhookId::now(), secret: draw_secret()?, url, target, events: events.unwrap_or_default() })
    }
}

impl Act for Add {
    const VERB: &'static str = "webhook.add";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(format!("{} {:?}", self.url, self.events)).into()
    }

    /// Of the address its host: many have a secret in their path.
    fn argv(&self) -> Vec<String> {
        vec![self.id.to_string(), self.target.authority.clone(), Vec::<String>::from(self.events.clone()).join(",")]
    }

    fn held_bytes(&self) -> usize {
        self.url.len()
    }

    async fn run(self, cx: Cx) -> Result<()> {
        cx.caller.require_all_users()?;
        let Self { id, secret, url, target, events } = self;
        let (tenant, key, at) = (cx.caller.tenant.clone(), cx.caller.key, cx.runtime.clock().now());
        cx.runtime.check_target(&tenant, &target).await?;
        cx.runtime.add_webhook(NewWebhook { tenant, id, key, url, secret, events, at }).await
    }
}

/// Nothing more is told to it. What waits for it is gone.
pub struct Remove(pub WebhookId);

impl Act for Remove {
    const VERB: &'static str = "webhook.remove";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn stores(&self) -> bool {
        false
    }

    fn removes(&self) -> bool {
        true
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.to_string()).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }

    async fn run(self, cx: Cx) -> Result<()> {
        cx.caller.require_all_users()?;
        cx.runtime.remove_webhook(&cx.caller.tenant, self.0).await
    }
}

/// One that was disabled hears of what happens from now on. What was dropped stays so.
pub struct Enable(pub WebhookId);

impl Act for Enable {
    const VERB: &'static str = "webhook.enable";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.to_string()).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }

    async fn run(self, cx: Cx) -> Result<()> {
        cx.caller.require_all_users()?;
        cx.runtime.enable_webhook(&cx.caller.tenant, self.0).await
    }
}

/// A word of its own is sent there, once. One that is disabled is tried as well.
pub struct Test(pub WebhookId);

impl Act for Test {
    const VERB: &'static str = "webhook.test";
    type Answer = Tried;

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.0.to_string()).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }

    async fn run(self, cx: Cx) -> Result<Tried> {
        cx.caller.require_all_users()?;
        cx.runtime.test_webhook(&cx.caller.tenant, self.0).await
    }
}
