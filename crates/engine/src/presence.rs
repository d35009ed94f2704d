//! How a sandbox that lives is found by a process that did not make it.
//!
//! Beside its record lie a note of which process its init is, and a socket at which init hears who knocks. The number of a
//! process means nothing without its start, and that means nothing after the machine was started anew; and who knocks shows
//! a token. So a note that is out of date leads nowhere.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use cabana_sandbox::{Error, Result};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::kernel::pidfd;

/// What init calls itself, before anybody hears of it.
const INIT: &str = "cabana-init";
const NOTE: &str = "live.json";
const DOOR: &str = "door";

/// How long init may take to let in those who knocked before.
const CROWDED: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Presence {
    boot: String,
    pid: u32,
    started: u64,
    /// The number of its range of ids.
    pub(crate) range: u32,
    pub(crate) token: Uuid,
}

impl Presence {
    pub(crate) fn of(init: BorrowedFd<'_>, range: u32) -> io::Result<Self> {
        let pid = pidfd::number(init)?;
        Ok(Self { boot: pidfd::boot()?.to_owned(), pid, started: pidfd::started(pid)?, range, token: Uuid::new_v4() })
    }

    /// Opens the door and leaves the note, in this order: whoever finds the note finds the door. Gives the door.
    pub(crate) fn announce(&self, home: &Path) -> io::Result<OwnedFd> {
        let door = open_door(home)?;
        // Not whole if we end here; but then init was not told to stay, and the note leads nowhere.
        fs::write(home.join(NOTE), serde_json::to_vec(self)?)?;
        Ok(door)
    }

    /// Of the sandbox in this directory; `None` when there is no note that makes sense.
    pub(crate) fn read(home: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(home.join(NOTE)).ok()?).ok()
    }

    /// Before it is ended: a note that somebody else wrote ends nobody else's process.
    pub(crate) fn check_command(&self) -> Result<()> {
        let command = fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        match command.trim() {
            INIT | "" => Ok(()), // it may have ended meanwhile
            other => Err(Error::failed("ending the sandbox's init", format!("process {} is {other}", self.pid))),
        }
    }

    /// Its init, if it lives.
    pub(crate) fn find(&self) -> Option<OwnedFd> {
        if pidfd::boot().ok()? != self.boot {
            return None;
        }
        pidfd::find(self.pid, self.started)
    }
}

/// A sandbox that has ended is not looked for.
pub(crate) fn withdraw(home: &Path) {
    for name in [NOTE, DOOR] {
        let _ = fs::remove_file(home.join(name));
    }
}

fn open_door(home: &Path) -> io::Result<OwnedFd> {
    match fs::remove_file(home.join(DOOR)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let dir = fs::File::open(home)?;
    let door = seqpacket()?;
    bind(&door, &address(dir.as_fd())?)?;
    listen(&door, 16)?;
    Ok(door)
}

/// Knocks: init answers to whoever has the token. `None` when nobody listens there. Blocks while others knock, for a while.
pub(crate) fn knock(home: &Path) -> io::Result<Option<OwnedFd>> {
    let dir = fs::File::open(home)?;
    let ours = seqpacket()?;
    let begun = Instant::now();
    loop {
        match connect(&ours, &address(dir.as_fd())?) {
            Ok(()) => return Ok(Some(ours)),
            Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(None),
            Err(Errno::AGAIN) if begun.elapsed() < CROWDED => std::thread::sleep(CROWDED / 10_000),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A socket's path has room for 108 bytes, which a data directory may be longer than.
fn address(dir: BorrowedFd<'_>) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{DOOR}", dir.as_raw_fd()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_us() -> Presence {
        let us = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).unwrap();
        Presence::of(us.as_fd(), 7).unwrap()
    }

    #[test]
    fn what_is_announced_is_found_and_answers() {
        let home = tempfile::tempdir().unwrap();
        let presence = of_us();
        let door = presence.announce(home.path()).unwrap();
        let read = Presence::read(home.path()).unwrap();
        assert_eq!(read, presence);
        assert!(read.find().is_some());
        let _knocked = knock(home.path()).unwrap().unwrap();
        assert!(rustix::net::accept(&door).is_ok());
        let _again = presence.announce(home.path()).unwrap();
        withdraw(home.path());
        assert!(Presence::read(home.path()).is_none() && knock(home.path()).unwrap().is_none());
    }

    #[test]
    fn a_note_of_another_boot_or_another_process_leads_nowhere() {
        let (presence, boot) = (of_us(), "11111111-2222-3333-4444-555555555555".to_owned());
        assert!(Presence { boot, ..presence.clone() }.find().is_none());
        assert!(Presence { started: presence.started + 1, ..presence.clone() }.find().is_none());
        assert!(Presence { pid: u32::MAX, ..presence }.find().is_none());
    }

    #[test]
    fn a_note_that_makes_no_sense_is_none() {
        let home = tempfile::tempdir().unwrap();
        for text in ["", "{", "{}", "null", r#"{"boot":"x","pid":-1,"started":0,"range":0,"token":""}"#] {
            fs::write(home.path().join(NOTE), text).unwrap();
            assert!(Presence::read(home.path()).is_none(), "{text}");
        }
    }
}
