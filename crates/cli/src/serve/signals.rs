//! What signals mean: the first that ends, the second that hurries, and the one to read the settings again.

use std::io::IsTerminal as _;

use cabana_model::Code;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::notify;
use crate::failure::Failure;

pub(super) struct Signals {
    /// The server is to end.
    pub(super) end: CancellationToken,
    /// At once: it was told so twice.
    pub(super) hurry: CancellationToken,
    pub(super) hangups: Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        let on =
            |kind| signal(kind).map_err(|error| Failure::new(Code::Internal, format!("waiting for signals: {error}")));
        let (mut term, mut interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
        let (mut lost, hangups) = (on(SignalKind::hangup())?, on(SignalKind::hangup())?);
        // In a terminal it says that the terminal is gone, and whoever sat there.
        let has_terminal = std::io::stderr().is_terminal();
        let (end, hurry) = (CancellationToken::new(), CancellationToken::new());
        let tokens = [(end.clone(), "STOPPING=1"), (hurry.clone(), "STATUS=It ends at once")];
        TaskTracker::new().spawn(async move {
            for (token, state) in tokens {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = interrupt.recv() => {}
                    _ = lost.recv(), if has_terminal => {}
                }
                notify::say(state);
                token.cancel();
            }
        });
        Ok(Self { end, hurry, hangups })
    }
}
