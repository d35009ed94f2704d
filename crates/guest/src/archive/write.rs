//! Writing a tar: ustar headers, and PAX records for what does not fit into them.

use std::io::{self, Write};

use super::{
    BLOCK, named, pax,
    read::{Kind, MAX_EXTENSION},
};
use crate::xattr::Attributes;

const ZEROS: [u8; BLOCK] = [0; BLOCK];
/// The largest number that seven octal digits hold.
const MAX_ID: u32 = 0o7_777_777;
const MAX_SIZE: u64 = 0o77_777_777_777;

pub(crate) struct Packer<'a> {
    out: io::BufWriter<&'a mut dyn Write>,
    /// Still owed of the entry that was begun.
    left: u64,
    padding: usize,
}

pub(crate) struct Head<'a> {
    pub(crate) kind: Kind,
    pub(crate) name: &'a [u8],
    pub(crate) link: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) user: Option<&'a str>,
    pub(crate) group: Option<&'a str>,
    pub(crate) mtime: i64,
    /// Where the whole seconds do not do.
    pub(crate) nanos: u32,
    /// Of what follows as data.
    pub(crate) size: u64,
    /// Of a file with holes: the data begins with a map of its pieces, and this is its length with the holes.
    pub(crate) sparse: Option<u64>,
    pub(crate) attributes: &'a Attributes,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(out: &'a mut dyn Write) -> Self {
        Self { out: io::BufWriter::with_capacity(256 * 1024, out), left: 0, padding: 0 }
    }

    pub(crate) fn begin(&mut self, head: &Head<'_>) -> io::Result<()> {
        let mut records = Vec::new();
        let plain = |text: &[u8]| text.len() <= 100 && text.is_ascii();
        if !plain(head.name) {
            pax::record(&mut records, b"path", head.name);
        }
        if !plain(head.link) {
            pax::record(&mut records, b"linkpath", head.link);
        }
        for (key, id) in [(&b"uid"[..], head.uid), (b"gid", head.gid)] {
            if id > MAX_ID {
                pax::record(&mut records, key, id.to_string().as_bytes());
            }
        }
        if head.size > MAX_SIZE {
            pax::record(&mut records, b"size", head.size.to_string().as_bytes());
        }
        if head.mtime < 0 || head.nanos > 0 {
            pax::record(&mut records, b"mtime", pax::time_text(head.mtime, head.nanos).as_bytes());
        }
        if let Some(length) = head.sparse {
            pax::record(&mut records, b"GNU.sparse.major", b"1");
            pax::record(&mut records, b"GNU.sparse.minor", b"0");
            pax::record(&mut records, b"GNU.sparse.realsize", length.to_string().as_bytes());
        }
        for (name, value) in head.attributes {
            pax::record(&mut records, &pax::attribute_key(name), value);
        }
        if records.len() as u64 > MAX_EXTENSION {
            let why = named(head.name, "its name and attributes are more than an archive holds");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        if !records.is_empty() {
            self.records(&records)?;
        }
        self.header(head)
    }

    /// At most as much as the head said; the rest is cut.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let n = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        self.left -= n as u64;
        self.out.write_all(&bytes[..n])
    }

    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// What is missing of the data is zeros.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        while self.left > 0 {
            self.data(&ZEROS)?;
        }
        self.out.write_all(&ZEROS[..std::mem::take(&mut self.padding)])
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(&ZEROS)?;
        self.out.write_all(&ZEROS)?;
        self.out.flush()
    }

    fn records(&mut self, records: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::XHeader);
        header.as_old_mut().name[..3].copy_from_slice(b"pax");
        header.set_mode(0o644);
        header.set_size(records.len() as u64);
        self.write_header(header, records.len() as u64)?;
        self.data(records)?;
        self.end()
    }

    fn header(&mut self, head: &Head<'_>) -> io::Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(match head.kind {
            Kind::Directory => tar::EntryType::Directory,
            Kind::Symlink => tar::EntryType::Symlink,
            Kind::Hard => tar::EntryType::Link,
            Kind::Whiteout => tar::EntryType::Char,
            Kind::Pipe => tar::EntryType::Fifo,
            Kind::File | Kind::Special => tar::EntryType::Regular,
        });
        put(&mut header.as_old_mut().name, head.name);
        put(&mut header.as_old_mut().linkname, head.link);
        header.set_mode(head.mode);
        header.set_uid(u64::from(head.uid.min(MAX_ID)));
        header.set_gid(u64::from(head.gid.min(MAX_ID)));
        header.set_mtime(head.mtime.clamp(0, MAX_SIZE.cast_signed()).cast_unsigned());
        header.set_size(head.size.min(MAX_SIZE));
        // A name that does not fit is left out: the number stands beside it.
        if let Some(ustar) = header.as_ustar_mut() {
            if head.kind == Kind::Whiteout {
                ustar.set_device_major(0);
                ustar.set_device_minor(0);
            }
            for (field, name) in [(&mut ustar.uname, head.user), (&mut ustar.gname, head.group)] {
                if let Some(name) = name.filter(|name| name.len() < field.len()) {
                    put(field, name.as_bytes());
                }
            }
        }
        self.write_header(header, head.size)
    }

    fn write_header(&mut self, mut header: tar::Header, size: u64) -> io::Result<()> {
        header.set_cksum();
        self.left = size;
        self.padding = (size.wrapping_neg() % BLOCK as u64) as usize;
        self.out.write_all(header.as_bytes())
    }
}

fn put(field: &mut [u8], text: &[u8]) {
    let n = text.len().min(field.len());
    field[..n].copy_from_slice(&text[..n]);
}
