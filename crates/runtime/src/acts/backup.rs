//! All that the server has, as one stream. It is the operator's: whoever asks has been asked for that role before.

use bytes::Bytes;

use crate::{Cx, Look, Needs, Result};

pub struct Backup;

impl Look for Backup {
    const VERB: &'static str = "backup";
    type Answer = cabana_sandbox::Stream<Bytes>;

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn argv(&self) -> Vec<String> {
        Vec::new()
    }

    async fn run(self, cx: Cx) -> Result<Self::Answer> {
        cx.runtime.backup().await
    }
}
