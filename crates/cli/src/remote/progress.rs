//! How far a transfer is: a bar on a terminal, and one line when it is done.

use std::io::IsTerminal;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::failure::tell;

pub(super) struct Bar(ProgressBar);

impl Bar {
    /// On stderr: stdout is for results.
    pub(super) fn start(name: &str, bytes: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(bytes);
        let form = "{prefix}  {wide_bar} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta}";
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style);
        }
        bar.set_prefix(name.to_owned());
        Self(bar)
    }

    /// For a body that is sent from elsewhere.
    pub(super) fn counter(&self) -> impl Fn(usize) + Send + 'static {
        let bar = self.0.clone();
        move |bytes| bar.inc(bytes as u64)
    }

    pub(super) fn more(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

pub(super) fn done(files: usize, bytes: u64) {
    if std::io::stderr().is_terminal() {
        let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
        tell(&format!("{files}, {}", HumanBytes(bytes)));
    }
}
