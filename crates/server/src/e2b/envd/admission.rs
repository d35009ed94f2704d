//! What lets a request to a file in, and what it is counted by then.

use cabana_runtime::{
    Error, IncomingSeat, MemoryCharge,
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

    pub(super) fn seat(self, app: &App, guest: &Guest, length: Option<u64>) -> Result<IncomingSeat, Error> {
        let tenant = &guest.caller.tenant;
        match self {
            Self::Token => app.runtime.seat_incoming(tenant, length),
            Self::Url => app.runtime.seat_incoming_by_url(tenant, length),
        }
    }

    /// Of what is told.
    pub(super) fn memory(self, app: &App, guest: &Guest) -> MemoryCharge {
        let tenant = &guest.caller.tenant;
        match self {
            Self::Token => app.runtime.list_memory(tenant),
            Self::Url => app.runtime.url_memory(tenant),
        }
    }

    /// What is said where there is no memory for that.
    pub(super) fn too_large(self) -> Error {
        match self {
            Self::Token => Error::ListsTooLarge,
            Self::Url => Error::ByUrlTooLarge,
        }
    }

    pub(super) async fn write(self, app: &App, guest: &Guest, write: Write) -> Result<Written, Error> {
        match self {
            Self::Token => app.runtime.call(guest.ask(), write).await?.answer().await,
            Self::Url => app.runtime.call_by_url(&guest.record.id, guest.ask(), write).await,
        }
    }
}
