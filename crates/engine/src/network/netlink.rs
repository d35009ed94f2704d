//! Messages to the kernel's network: a few kinds, put together by hand.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

const NESTED: u16 = 0x8000;
const HEADER: usize = 16;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const ERROR: u16 = 2;

/// Messages that travel together, each with its number.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// How many will be answered.
    expected: u32,
}

/// One message, while it is put together.
pub(super) struct Message<'a> {
    bytes: &'a mut Vec<u8>,
}

impl Batch {
    /// `flags` beside those of every request; one that is `acknowledged` is answered.
    pub(super) fn message(
        &mut self,
        kind: u16,
        flags: u16,
        acknowledged: bool,
        head: &[u8],
        fill: impl FnOnce(&mut Message<'_>),
    ) {
        let start = self.bytes.len();
        self.expected += u32::from(acknowledged);
        let flags = REQUEST | flags | if acknowledged { ACK } else { 0 };
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&self.expected.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(head);
        fill(&mut Message { bytes: &mut self.bytes });
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Sends all, and waits for the answers; the first that is an error is told. Without a protocol: routes.
    pub(super) fn send(self, protocol: Option<Protocol>) -> io::Result<()> {
        let socket: OwnedFd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        send(&socket, &self.bytes, SendFlags::empty())?;
        let mut answered = 0;
        let mut buffer = [0; 8192];
        while answered < self.expected {
            let (length, _) = recv(socket.as_fd(), &mut buffer[..], RecvFlags::empty())?;
            answered += answers(&buffer[..length])?;
        }
        Ok(())
    }
}

/// How many requests an answer is about; an error among them is the whole's.
fn answers(mut bytes: &[u8]) -> io::Result<u32> {
    let mut count = 0;
    while bytes.len() >= HEADER + 4 {
        let length = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        let code = i32::from_ne_bytes([bytes[HEADER], bytes[HEADER + 1], bytes[HEADER + 2], bytes[HEADER + 3]]);
        if kind == ERROR && code != 0 {
            return Err(io::Error::from_raw_os_error(-code));
        }
        count += u32::from(kind == ERROR);
        let next = length.next_multiple_of(4);
        if length < HEADER || next >= bytes.len() {
            break;
        }
        bytes = &bytes[next..];
    }
    Ok(count)
}

impl Message<'_> {
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = (4 + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// A number as the firewall wants it.
    pub(super) fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_be_bytes())
    }

    pub(super) fn text(&mut self, kind: u16, value: &std::ffi::CStr) -> &mut Self {
        self.attribute(kind, value.to_bytes_with_nul())
    }

    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Message<'_>)) -> &mut Self {
        let start = self.bytes.len();
        self.attribute(kind | NESTED, &[]);
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_hold_what_they_are_of_and_all_is_padded() {
        let mut batch = Batch::default();
        batch.message(24, 0, true, &[1, 2, 3, 4], |message| {
            message.nested(4, |inner| {
                inner.text(1, c"ab").number(2, 7);
            });
        });
        let bytes = &batch.bytes;
        assert_eq!(bytes.len(), 16 + 4 + 4 + 8 + 8);
        assert_eq!(bytes[0] as usize, bytes.len());
        assert_eq!(u16::from_ne_bytes([bytes[20], bytes[21]]), 20);
        assert_eq!(u16::from_ne_bytes([bytes[22], bytes[23]]), 4 | NESTED);
        assert_eq!(&bytes[24..32], &[7, 0, 1, 0, b'a', b'b', 0, 0]);
    }

    #[test]
    fn an_error_is_told_and_rubbish_is_no_endless_loop() {
        let mut refused = vec![0; 36];
        refused[..4].copy_from_slice(&36_u32.to_ne_bytes());
        refused[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        assert_eq!(answers(&refused).unwrap(), 1);
        refused[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(answers(&refused).unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!(answers(&[0; 64]).unwrap(), 0);
        assert_eq!(answers(&[]).unwrap(), 0);
    }
}
