//! How far the making of a template is: a moving line on a terminal, plain lines elsewhere.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use cabana_engine::Progress;
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};

use crate::failure::tell;

pub(super) struct Bar {
    name: String,
    /// On a terminal.
    line: Option<ProgressBar>,
    began: Instant,
    bytes: u64,
}

impl Bar {
    /// On stderr: stdout is for results.
    pub(super) fn start(name: &str) -> Self {
        let line = std::io::stderr().is_terminal().then(|| {
            let line = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}  {binary_bytes}  {elapsed}  {wide_msg}")
            {
                line.set_style(style);
            }
            line.set_prefix(name.to_owned());
            line.enable_steady_tick(Duration::from_millis(100));
            line
        });
        Self { name: name.to_owned(), line, began: Instant::now(), bytes: 0 }
    }

    pub(super) fn show(&mut self, progress: Progress<'_>) {
        if let Progress::Copied(bytes) = progress {
            self.bytes = bytes;
        }
        match (&self.line, progress) {
            (Some(line), Progress::Copied(bytes)) => line.set_position(bytes),
            (Some(line), Progress::Says(words)) => line.set_message(words.to_owned()),
            (Some(line), Progress::Checking) => line.set_message("checking"),
            (None, Progress::Says(words)) => tell(words),
            (None, Progress::Checking) => tell(&format!("{}: {} copied, checking", self.name, HumanBytes(self.bytes))),
            (None, Progress::Copied(_)) => {}
        }
    }

    pub(super) fn end(self, made: bool) {
        if let Some(line) = self.line {
            line.finish_and_clear();
        }
        if made {
            tell(&format!(
                "template {}: {} in {}",
                self.name,
                HumanBytes(self.bytes),
                HumanDuration(self.began.elapsed())
            ));
        }
    }
}
