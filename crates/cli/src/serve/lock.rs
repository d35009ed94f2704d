//! One server for one data directory.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use cabana_model::Code;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::failure::Failure;

/// Held until the process ends, by whatever end.
pub(super) struct ServerLock(#[expect(dead_code, reason = "held, and let go by dropping it")] File);

impl ServerLock {
    pub(super) fn take(data: &Path) -> Result<Self, Failure> {
        let path = data.join("server.lock");
        let failed =
            |error: &dyn std::fmt::Display| Failure::new(Code::Internal, format!("{}: {error}", path.display()));
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = opened.map_err(|error| failed(&error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut owner = String::new();
                let _ = file.read_to_string(&mut owner);
                let owner =
                    owner.trim().parse::<u32>().map_or("another process".into(), |pid| format!("process {pid}"));
                return Err(Failure::new(Code::ServerRunning, format!("{owner} serves {} already", data.display())));
            }
            Err(errno) => return Err(failed(&errno)),
        }
        let written = file.set_len(0).and_then(|()| file.rewind());
        let written = written.and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(|error| failed(&error))?;
        Ok(Self(file))
    }
}
