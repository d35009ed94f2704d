//! The lines that the server writes to standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, prelude::*, reload};

use super::traces::Spans;
use crate::config::Logging;

/// Which lines are worth writing, from now on.
pub(super) struct Level(reload::Handle<EnvFilter, Registry>);

impl Level {
    pub(super) fn set(&self, level: &str) {
        // It fails only if nothing is written any more.
        let _ = self.0.reload(filter(level));
    }
}

fn filter(level: &str) -> EnvFilter {
    let others = if level == "off" { "off" } else { "warn" };
    EnvFilter::new(format!("{others},cabana={level}"))
}

/// What is said inside of a call carries its id, tenant and sandbox: they are fields of the span around it. What the libraries
/// below us say is of use only when something is wrong.
pub(super) fn begin(log: &Logging, traces: Option<Spans>) -> Level {
    let (filter, level) = reload::Layer::new(filter(&log.level));
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match log.json {
        true => lines.json().flatten_event(true).with_span_list(false).with_filter(filter).boxed(),
        false => lines.with_ansi(std::io::stderr().is_terminal()).with_filter(filter).boxed(),
    };
    let _ = tracing_subscriber::registry().with(lines).with(traces.map(Spans::filtered)).try_init();
    Level(level)
}
