//! What was kept long enough, removed now. It is the operator's: whoever asks has been asked for that role before.

use crate::{Act, Collected, Cx, Needs, Result};

pub struct Collect {
    pub dry_run: bool,
}

impl Act for Collect {
    const VERB: &'static str = "gc";
    type Answer = Collected;

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
        [u8::from(self.dry_run); 32]
    }

    fn argv(&self) -> Vec<String> {
        if self.dry_run { vec!["--dry-run".to_owned()] } else { Vec::new() }
    }

    async fn run(self, cx: Cx) -> Result<Collected> {
        cx.runtime.collect(self.dry_run).await
    }
}
