//! What lets a request to a file in, and what it is counted by then.

use cabana_runtime::{
    Error,
    acts::files::{Opened, Read, Write, Written},
};

use super::super::guest::Guest;
use crate::App;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The token of the sandbox, or that it asks for none: a call like any other.
    Token,
    /// A signature that was made with it. The URL alone is handed on, so its calls are counted by themselves.
    Url,
}

impl Admission {
    pub(super) async fn read(self, app: &App, guest: &Guest, read: Read) -> Result<Opened, Error> {
        match self {
            Self::Token => app.runtime.look(guest.ask(), read).await.map(|(_, opened)| opened),
            Self::Url => app.runtime.read_by_url(&guest.record.id, guest.ask(), read).await,
        }
    }

    pub(super) async fn write(self, app: &App, guest: &Guest, write: Write) -> Result<Written, Error> {
        let call = match self {
            Self::Token => app.runtime.call(guest.ask(), write).await?,
            Self::Url => app.runtime.call_by_url(&guest.record.id, guest.ask(), write).await?,
        };
        call.answer().await
    }
}
