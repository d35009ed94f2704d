//! Templates, which are the operator's: whoever asks has been asked for that role before.

use bytes::Bytes;
use cabana_sandbox::{self as sandbox, Overrides, Stream};
use futures_util::{StreamExt, TryStreamExt, stream::try_unfold};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use crate::{
    Act, Call, Cx, Error, Needs, Result,
    hashing::{digest, hashed},
};

/// From a tar of a root file system, which comes as it comes.
pub struct Add {
    pub name: String,
    pub wishes: Overrides,
    pub body: Stream<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    pub name: String,
    /// SHA-256 of what came.
    pub input: [u8; 32],
}

impl Act for Add {
    const VERB: &'static str = "template.add";
    type Answer = Added;

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    /// Of what is known before the body comes.
    fn stores(&self) -> bool {
        false
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(format!("{:?}", (&self.name, &self.wishes))).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    async fn run(self, cx: Cx) -> Result<Added> {
        cx.check_room()?;
        let Self { name, wishes, body } = self;
        let (body, passed) = hashed(until(cx.cancel.clone(), body));
        let most = cx.runtime.settings().template_cap;
        let made = cx.runtime.0.sandboxes.provider().add_template(&name, &wishes, most, body).await;
        match made {
            Ok(made) => {
                let input = passed.digest().await?;
                cx.note(|notes| notes.input = Some(input));
                Ok(Added { name: made.name, input })
            }
            Err(_) if cx.cancel.is_cancelled() => Err(Error::Cancelled),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the body and makes nothing. What failed has not read the first one to its end: there is nothing to compare.
    async fn repeats(self, first: Call<Added>) -> Result<()> {
        let Ok(first) = first.answer().await else { return Ok(()) };
        if first.input == digest(self.body).await? { Ok(()) } else { Err(Error::KeyReused) }
    }
}

/// One that is cancelled breaks off, so that nothing is made of it.
fn until(cancel: CancellationToken, body: Stream<Bytes>) -> Stream<Bytes> {
    let parts = try_unfold((cancel, body), |(cancel, mut body)| async move {
        match cancel.run_until_cancelled(body.try_next()).await {
            Some(next) => Ok(next?.map(|bytes| (bytes, (cancel, body)))),
            None => Err(sandbox::Error::invalid("body", "the call was cancelled")),
        }
    });
    parts.boxed()
}

/// One that no sandbox stands on.
pub struct Remove(pub String);

impl Act for Remove {
    const VERB: &'static str = "template.remove";
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
        Sha256::digest(&self.0).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.clone()]
    }

    async fn run(self, cx: Cx) -> Result<()> {
        let sandboxes = &cx.runtime.0.sandboxes;
        sandboxes.provider().remove_template(&self.0).await?;
        sandboxes.went();
        Ok(())
    }
}
