//! Many sandboxes at once: those of a chat, an app or a tenant (FP-6).

use cabana_model::Scope;
use cabana_store::Which;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    Act, Cx, Needs, Result,
    fault::{self, Point},
};

/// They are gone for everybody once it is answered. By a key that stands for one user: those of that user. What they leave behind is removed in the background, also after a crash.
pub struct Purge(pub Which);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    pub sandboxes: usize,
}

impl Act for Purge {
    const VERB: &'static str = "purge";
    type Answer = Purged;

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
        Sha256::digest(format!("{:?}", self.0)).into()
    }

    fn argv(&self) -> Vec<String> {
        match &self.0 {
            Which::All => vec!["all".to_owned()],
            Which::App(app) => vec!["app".to_owned(), app.clone()],
            Which::Chat { app, chat } => vec!["chat".to_owned(), app.clone(), chat.clone()],
        }
    }

    async fn run(self, cx: Cx) -> Result<Purged> {
        if let Which::App(app) | Which::Chat { app, .. } = &self.0 {
            let chat = if let Which::Chat { chat, .. } = &self.0 { chat } else { app };
            Scope::chat_of(app, app, chat)?; // what can be no scope has none
        }
        let (tenant, now) = (&cx.caller.tenant, cx.runtime.clock().now());
        let user = cx.caller.subject.only();
        let sandboxes = cx.runtime.store().doom(tenant, user, self.0.clone(), "deleted with others", now).await?;
        fault::at(Point::SandboxDoomed);
        cx.runtime.0.sandboxes.doomed(tenant, user, &self.0).await?;
        cx.note(|notes| notes.is_void = sandboxes == 0);
        Ok(Purged { sandboxes })
    }
}
