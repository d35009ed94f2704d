//! Tokens of one sandbox: whoever shows one may use that sandbox, and nothing else.
//!
//! A token is computed from a secret of the server and the sandbox's own number, so it is kept nowhere, lasts as long as the
//! sandbox does, and opens nothing that is made later under the same name. It stands as long as the key does that made the sandbox.

use std::fmt::Write as _;

use cabana_model::{Role, SandboxId};
use cabana_store::Record;
use hmac::Mac as _;

use crate::{Caller, Error, Result, Runtime};

/// What a token opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// Everything inside.
    Inside,
    /// What listens on its ports.
    Ports,
}

impl Opens {
    fn as_str(self) -> &'static str {
        match self {
            Self::Inside => "inside",
            Self::Ports => "ports",
        }
    }
}

impl Runtime {
    pub async fn token(&self, record: &Record, opens: Opens) -> Result<String> {
        let said = format!("token {} {}", opens.as_str(), record.physical);
        let proof = self.0.links.mac(&said).await?.finalize().into_bytes();
        Ok(proof.iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }

    /// Of those that do not rest and are meant, whosever they are: for what names no sandbox and proves that it knows the token.
    pub async fn tokens(&self, opens: Opens, is_meant: impl Fn(&Record) -> bool) -> Result<Vec<(SandboxId, String)>> {
        let mut tokens = Vec::new();
        for record in self.0.store.restless_sandboxes().await?.iter().filter(|record| is_meant(record)) {
            tokens.push((record.id.clone(), self.token(record, opens).await?));
        }
        Ok(tokens)
    }

    /// One that is known by its number alone, whosever it is, and who it is that uses it by its token: for whoever holds the
    /// sandbox, the key that made it. What the token is worth is for the caller of this to see.
    pub async fn by_number(&self, number: &SandboxId) -> Result<(Record, Caller)> {
        let missing = || Error::NoSandbox(number.clone());
        let record = self.0.store.by_physical(number).await?.filter(|record| record.id == *number);
        let record = record.ok_or_else(missing)?;
        let key = record.key.ok_or_else(missing)?;
        if !self.0.access.stands(key).await? {
            return Err(Error::Unauthorized);
        }
        let caller = Caller { key, tenant: record.tenant.clone(), role: Role::Use, subject: None };
        Ok((record, caller))
    }
}
