//! The lines that the server writes to standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, prelude::*};

use super::traces::Spans;
use crate::config::Logging;

/// What is said inside of a call carries its id, tenant and sandbox: they are fields of the span around it. What the libraries
/// below us say is of use only when something is wrong.
pub(super) fn begin(log: &Logging, traces: Option<Spans>) {
    let level = &log.level;
    let others = if level == "off" { "off" } else { "warn" };
    let filter = EnvFilter::new(format!("{others},cabana={level}"));
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match log.json {
        true => lines.json().flatten_event(true).with_span_list(false).with_filter(filter).boxed(),
        false => lines.with_ansi(std::io::stderr().is_terminal()).with_filter(filter).boxed(),
    };
    let _ = tracing_subscriber::registry().with(lines).with(traces.map(Spans::filtered)).try_init();
}
