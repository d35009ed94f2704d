//! What a sandbox uses now.

use std::time::Duration;

use cabana_sandbox::{Limits, Usage};
use tokio::time::Instant;

use crate::{Cx, Look, Needs, Result};

/// Between the two looks that tell how busy it is.
const BETWEEN: Duration = Duration::from_millis(100);

pub struct Measure;

pub struct Measured {
    pub usage: Usage,
    pub limits: Limits,
    /// How many processors it keeps busy.
    pub busy: f64,
}

impl Look for Measure {
    const VERB: &'static str = "measure";
    type Answer = Measured;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn argv(&self) -> Vec<String> {
        Vec::new()
    }

    async fn run(self, cx: Cx) -> Result<Measured> {
        let (sandbox, begun) = (cx.sandbox()?, Instant::now());
        let before = sandbox.usage().await?;
        tokio::time::sleep(BETWEEN).await;
        let usage = sandbox.usage().await?;
        let spent = usage.cpu.saturating_sub(before.cpu).as_secs_f64();
        let limits = cx.wanted()?.sandbox.limits;
        Ok(Measured { usage, limits, busy: spent / begun.elapsed().as_secs_f64() })
    }
}
