//! What sandboxes are made from: the same for all tenants.

use cabana_sandbox::{Limits, Template};

use crate::{Result, Runtime};

impl Runtime {
    /// By name. A damaged one comes with its error, and hides no other.
    pub async fn templates(&self) -> Result<Vec<(String, cabana_sandbox::Result<Template>)>> {
        Ok(self.0.sandboxes.provider().templates().await?)
    }

    pub async fn template(&self, name: &str) -> Result<Template> {
        Ok(self.0.sandboxes.provider().template(name).await?)
    }

    /// Whether sandboxes can be held to them here.
    pub fn fits(&self, limits: &Limits) -> bool {
        self.0.sandboxes.provider().capabilities().check_limits(limits).is_ok()
    }
}
