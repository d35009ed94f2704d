//! Where the bytes of a command come from: its pipes, or its terminal. The server takes from them, or init in its place.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use cabana_sandbox::Channel;
use rustix::pipe::SpliceFlags;

use crate::spool::{CHUNK, Spool};

/// What nobody can write to any more is let go.
pub(crate) struct Feed<P, T> {
    pub(crate) pipes: Vec<(Channel, P)>,
    /// The master, and the other end of the pipe that its bytes pass through: a splice needs one.
    pub(crate) terminal: Option<(T, OwnedFd)>,
}

impl<P: AsFd, T: AsFd> Feed<P, T> {
    /// Takes some of what is there now into the spool, without waiting. False when there is nothing.
    pub(crate) fn take(&mut self, spool: &mut Spool) -> bool {
        self.take_by(|pipe, channel| spool.take(pipe, channel))
    }

    /// The same, by somebody who knows where it goes.
    pub(crate) fn take_by(&mut self, mut take: impl FnMut(BorrowedFd<'_>, Channel) -> io::Result<usize>) -> bool {
        self.fill_the_pipe();
        let mut place = 0;
        while let Some((channel, pipe)) = self.pipes.get(place) {
            match take(pipe.as_fd(), *channel) {
                Ok(0) => drop(self.pipes.remove(place)),
                Ok(_) => return true,
                // Where memory has run out, the bytes wait in the pipe.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory) => {
                    place += 1;
                }
                Err(_) => drop(self.pipes.remove(place)),
            }
        }
        false
    }

    fn fill_the_pipe(&mut self) {
        let Some((master, into)) = &self.terminal else { return };
        let fed = rustix::pipe::splice(master, None, into, None, CHUNK, SpliceFlags::NONBLOCK);
        // Nobody has the other side open any more; what it wrote is in the pipe.
        if matches!(fed, Ok(0) | Err(rustix::io::Errno::IO)) {
            self.terminal = None;
        }
    }

    /// Lets some of what is there now go nowhere. Whether there was any.
    pub(crate) fn pour_away(&mut self, nowhere: &OwnedFd) -> bool {
        self.fill_the_pipe();
        let mut poured = false;
        self.pipes.retain(|(_, pipe)| {
            let count = rustix::pipe::splice(pipe, None, nowhere, None, CHUNK, SpliceFlags::NONBLOCK);
            poured |= count.is_ok_and(|count| count > 0);
            count != Ok(0)
        });
        poured
    }

    /// Whether nothing can come any more.
    pub(crate) fn is_over(&self) -> bool {
        self.pipes.is_empty() && self.terminal.is_none()
    }
}

impl<P> Feed<P, P> {
    /// What becomes readable when there is something to take.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = &P> {
        self.pipes.iter().map(|(_, pipe)| pipe).chain(self.terminal.iter().map(|(master, _)| master))
    }
}
