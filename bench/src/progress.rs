//! Where the run is, on standard error: a bar for a person, plain lines for a log.

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) struct Progress {
    bar: ProgressBar,
    plain: bool,
}

impl Progress {
    pub(crate) fn new(steps: usize) -> Result<Self> {
        let plain = !stderr().is_terminal();
        let bar = if plain { ProgressBar::hidden() } else { ProgressBar::new(steps as u64) };
        bar.set_length(steps as u64);
        bar.set_style(ProgressStyle::with_template("{elapsed_precise} {bar:32} {pos}/{len}  {msg}")?);
        if !plain {
            bar.enable_steady_tick(Duration::from_millis(200)); // the clock moves during a long step
        }
        Ok(Self { bar, plain })
    }

    /// A step begins.
    pub(crate) fn begin(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        if self.plain {
            let at = self.bar.position() + 1;
            eprintln!("[{at}/{}] {what}", self.bar.length().unwrap_or(at));
        }
    }

    pub(crate) fn end(&self) {
        self.bar.inc(1);
    }

    /// A line that stays.
    pub(crate) fn tell(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
