//! What the one who started us wants to know, as systemd asks for it: a datagram to the socket that a variable names.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

const SOCKET: &str = "NOTIFY_SOCKET";

/// Where nobody asks, nothing is said.
pub(super) fn say(state: &str) {
    let Some(name) = env::var_os(SOCKET).filter(|name| !name.is_empty()) else { return };
    if let Err(error) = send(&name, state) {
        tracing::warn!(%error, state, "whoever started the server could not be told");
    }
}

fn send(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
