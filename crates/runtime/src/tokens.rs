//! Tokens of one sandbox: whoever shows one may use that sandbox, and nothing else.
//!
//! A token is computed from a secret of the server and the sandbox's own number, so it is kept nowhere, lasts as long as the
//! sandbox does, and opens nothing that is made later under the same name. It stands as long as the key does that made the sandbox.

use std::{collections::HashMap, fmt::Write as _};

use cabana_model::{Role, SandboxId};
use cabana_store::{KnownSpec, Record};
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

/// What a client has to show. It is compared, and told to nobody: see [`Runtime::access_token`].
pub struct ExpectedToken(String);

impl ExpectedToken {
    /// To be compared with what is shown, or with what was signed with it.
    pub fn as_secret(&self) -> &str {
        &self.0
    }
}

impl Runtime {
    /// For a client that may be told it: it opens as much as a key does that may use the sandbox. `None` for all others.
    pub async fn access_token(&self, caller: &Caller, record: &Record, opens: Opens) -> Result<Option<String>> {
        let may_use =
            caller.role >= Role::Use && caller.tenant == record.tenant && caller.reaches(record.user.as_deref());
        match may_use {
            true => self.token_of(&record.physical, opens).await.map(Some),
            false => Ok(None),
        }
    }

    pub async fn expected_token(&self, record: &Record, opens: Opens) -> Result<ExpectedToken> {
        self.token_of(&record.physical, opens).await.map(ExpectedToken)
    }

    async fn token_of(&self, physical: &SandboxId, opens: Opens) -> Result<String> {
        let said = format!("token {} {physical}", opens.as_str());
        let proof = self.0.links.mac(&said).await?.finalize().into_bytes();
        Ok(proof.iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }

    /// Of those that do not rest and are meant, whosever they are: for what names no sandbox and proves that it knows the token. Anybody
    /// can ask for that, and records are long: whether one is meant never changes, and `known` keeps it of those that are there.
    pub async fn tokens(
        &self,
        opens: Opens,
        known: &mut HashMap<SandboxId, bool>,
        is_meant: impl Fn(&Record) -> bool,
    ) -> Result<Vec<(SandboxId, String)>> {
        let (mut tokens, mut there) = (Vec::new(), HashMap::new());
        for (physical, id) in self.0.store.restless_ids().await? {
            let meant = match known.get(&physical) {
                Some(meant) => *meant,
                None => match self.0.store.by_physical(&physical).await? {
                    Some(record) => is_meant(&record),
                    None => continue, // it went meanwhile
                },
            };
            if meant {
                tokens.push((id, self.token_of(&physical, opens).await?));
            }
            there.insert(physical, meant);
        }
        *known = there;
        Ok(tokens)
    }

    /// One that is known by its number alone, whosever it is, and who it is that uses it by its token: for whoever holds the
    /// sandbox, the key that made it. What the token is worth is for the caller of this to see. A spec that is known is read only where
    /// it has changed.
    pub async fn by_number(&self, number: &SandboxId, known: Option<KnownSpec>) -> Result<(Record, Caller)> {
        let missing = || Error::NoSandbox(number.clone());
        let record = match known {
            Some(known) => self.0.store.by_physical_again(number, known).await?,
            None => self.0.store.by_physical(number).await?,
        };
        let record = record.filter(|record| record.id == *number).ok_or_else(missing)?;
        let key = record.key.ok_or_else(missing)?;
        if !self.0.access.stands(key).await? {
            return Err(Error::Unauthorized);
        }
        let caller = Caller::keyless(key, record.tenant.clone());
        Ok((record, caller))
    }
}
