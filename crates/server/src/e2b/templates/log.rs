//! What a build says, within bounds: a client reads along, and the record keeps it.

use std::sync::{Mutex, PoisonError};

use cabana_e2b_wire::control::{BuildLogEntry, LogLevel};
use cabana_runtime::{Channel, Clock, Log};
use futures_util::{StreamExt, pin_mut};

/// Of all lines together, and of one.
const MOST_LINES: usize = 5000;
const MOST_BYTES: usize = 512 << 10;
const LONGEST: usize = 4 << 10;

pub(super) struct BuildLog {
    clock: Clock,
    said: Mutex<Said>,
}

#[derive(Default)]
struct Said {
    entries: Vec<BuildLogEntry>,
    bytes: usize,
    is_full: bool,
}

impl BuildLog {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, said: Mutex::default() }
    }

    pub(super) fn entries(&self) -> Vec<BuildLogEntry> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).entries.clone()
    }

    pub(super) fn bytes(&self) -> usize {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }

    pub(super) fn add(&self, level: LogLevel, step: Option<&str>, message: impl Into<String>) {
        let mut message: String = message.into();
        if message.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_full {
            return;
        }
        if said.entries.len() >= MOST_LINES || said.bytes + message.len() > MOST_BYTES {
            said.is_full = true;
            message = "the log is full: nothing more is kept of it".to_owned();
        }
        said.bytes += message.len();
        let entry = BuildLogEntry { timestamp: self.clock.now(), message, level, step: step.map(str::to_owned) };
        said.entries.push(entry);
    }

    pub(super) fn info(&self, step: Option<&str>, message: impl Into<String>) {
        self.add(LogLevel::Info, step, message);
    }

    /// Line by line, as the command says it.
    pub(super) async fn follow(&self, step: &str, output: &std::sync::Arc<Log>) {
        let said = output.follow(0, 0);
        pin_mut!(said);
        let mut lines = [Vec::new(), Vec::new()];
        let level = |which: usize| if which == 0 { LogLevel::Info } else { LogLevel::Warn };
        while let Some(Ok(chunk)) = said.next().await {
            let which = usize::from(chunk.stream == Channel::Stderr);
            let line = &mut lines[which];
            for byte in chunk.bytes {
                match byte {
                    b'\n' => self.line(level(which), step, line),
                    byte if line.len() < LONGEST => line.push(byte),
                    _ => {}
                }
            }
        }
        for (which, line) in lines.iter_mut().enumerate() {
            self.line(level(which), step, line);
        }
    }

    fn line(&self, level: LogLevel, step: &str, line: &mut Vec<u8>) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end();
        if !text.is_empty() {
            self.add(level, Some(step), text);
        }
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_an_end() {
        let log = BuildLog::new(Clock::machine());
        log.info(None, "ü".repeat(LONGEST));
        assert!(log.entries()[0].message.len() <= LONGEST + '…'.len_utf8());
        for _ in 0..2 * MOST_LINES {
            log.info(Some("1"), "x".repeat(200));
        }
        let entries = log.entries();
        let bytes: usize = entries.iter().map(|entry| entry.message.len()).sum();
        assert!(entries.len() <= MOST_LINES + 1 && bytes <= MOST_BYTES + 100);
        assert!(entries.last().unwrap().message.contains("full"));
    }
}
