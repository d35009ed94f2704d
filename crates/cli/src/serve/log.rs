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
    // What h2 warns of is how clients behave, and they can have it say that as often as they like.
    let others = if level == "off" { "off" } else { "warn,h2=error" };
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

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_library_says_of_its_clients_is_not_written() {
        let written = |level: &str| {
            let lines = Lines::default();
            let writer = lines.clone();
            let layer = fmt::layer().with_writer(move || writer.clone()).with_filter(filter(level));
            tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
                tracing::warn!(target: "h2::codec", "of a client");
                tracing::error!(target: "h2::codec", "of h2 itself");
                tracing::warn!(target: "rustls", "of another library");
                tracing::info!(target: "cabana", "of ours");
            });
            String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
        };
        let info = written("info");
        for (text, is_there) in
            [("of a client", false), ("of h2 itself", true), ("of another library", true), ("of ours", true)]
        {
            assert_eq!(info.contains(text), is_there, "{text}: {info}");
        }
        assert_eq!(written("off"), "");
    }
}
