//! Archives that others made, some of them to do harm.

use std::sync::Arc;

use bytes::Bytes;
use cabana_sandbox::{Error, Kind, Result, unpack};

use super::{
    stage::{Room, Stage, body},
    verdict::{Outcome, ensure, refused, same},
};

/// A tar made by hand, so that it can hold what no honest writer writes.
pub(super) struct Tar(Vec<u8>, u32);

impl Default for Tar {
    fn default() -> Self {
        Self(Vec::new(), 0o644)
    }
}

impl Tar {
    fn add(self, header: tar::Header, kind: tar::EntryType, name: &str, link: &str, content: &[u8]) -> Self {
        let mut header = header;
        header.set_entry_type(kind);
        header.set_mode(self.1);
        header.set_size(content.len() as u64);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        let Self(mut bytes, mode) = self;
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        Self(bytes, mode)
    }

    /// Of what is added from here on.
    pub(super) fn with_mode(self, mode: u32) -> Self {
        Self(self.0, mode)
    }

    pub(super) fn gnu(self, kind: tar::EntryType, name: &str, link: &str, content: &[u8]) -> Self {
        self.add(tar::Header::new_gnu(), kind, name, link, content)
    }

    pub(super) fn file(self, name: &str, content: &str) -> Self {
        self.gnu(tar::EntryType::Regular, name, "", content.as_bytes())
    }

    fn symlink(self, name: &str, text: &str) -> Self {
        self.gnu(tar::EntryType::Symlink, name, text, b"")
    }

    pub(super) fn done(mut self) -> Bytes {
        self.0.resize(self.0.len() + 1024, 0);
        self.0.into()
    }
}

/// Unpacks below `room/in`; what lies beside that is outside.
async fn unpack_in(room: &Room, tar: Bytes) -> Result<()> {
    if room.stat("in").await.is_err() {
        room.make_dir("in").await?;
    }
    // In pieces that fit no block: nobody promises where a stream is cut.
    let pieces: Vec<Bytes> = tar.chunks(333).map(Bytes::copy_from_slice).collect();
    unpack(&*room.files, &room.path("in")?, body(pieces)).await
}

pub(super) async fn unpack_reads_ustar_gnu_and_pax(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let mut ustar = tar::Header::new_ustar();
    ustar.as_mut_bytes()[345..351].copy_from_slice(b"prefix");
    let (regular, dir) = (tar::EntryType::Regular, tar::EntryType::Directory);
    let long = "l".repeat(200);
    let record = |key: &str, value: &str| {
        let len = key.len() + value.len() + 6;
        format!("{len} {key}={value}\n")
    };
    let pax = record("path", &format!("pax/{}", "p".repeat(150))) + &record("comment", &"c".repeat(100));
    let tar = Tar::default()
        .gnu(dir, "./", "", b"")
        .add(ustar, regular, "name", "", b"by prefix")
        .gnu(tar::EntryType::GNULongName, "././@LongLink", "", format!("{long}\0").as_bytes())
        .file("short", "by long name")
        .gnu(tar::EntryType::XHeader, "x", "", pax.as_bytes())
        .file("short", "by pax")
        .file("./dotted//twice/./file", "tidied")
        .gnu(tar::EntryType::Link, "hard", "short-again", b"")
        .done();
    // The hard link's target comes first in a whole archive.
    let tar = [&Tar::default().file("short-again", "linked").0[..], &tar].concat();
    unpack_in(&room, tar.into()).await?;
    same!(room.read("in/prefix/name").await?, "by prefix");
    same!(room.read(&format!("in/{long}")).await?, "by long name");
    same!(room.read(&format!("in/pax/{}", "p".repeat(150))).await?, "by pax");
    same!(room.read("in/dotted/twice/file").await?, "tidied");
    same!(room.read("in/hard").await?, "linked");
    Ok(())
}

pub(super) async fn unpack_into_a_missing_directory_is_not_found(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let tar = Tar::default().file("file", "x").done();
    refused!(unpack(&*room.files, &room.path("missing")?, body([tar])).await, Error::NotFound(_));
    same!(room.names().await?.len(), 0);
    Ok(())
}

pub(super) async fn unpack_refuses_absolute_names(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let outside = room.path("outside")?.to_string();
    refused!(unpack_in(&room, Tar::default().file(&outside, "x").done()).await, Error::Archive(_));
    same!(room.names().await?, [b"in".to_vec()], "nothing is written outside");
    Ok(())
}

pub(super) async fn unpack_refuses_dot_dot(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for name in ["../outside", "a/../../outside", "./../outside", "a/.."] {
        refused!(unpack_in(&room, Tar::default().file(name, "x").done()).await, Error::Archive(_));
    }
    same!(room.names().await?, [b"in".to_vec()], "nothing is written outside");
    Ok(())
}

pub(super) async fn unpack_writes_through_no_link(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.make_dir("outside").await?;
    room.write("victim", "kept").await?;
    let through_dir = Tar::default().symlink("way", "../outside").file("way/file", "x").done();
    ensure!(unpack_in(&room, through_dir).await.is_err(), "it was written through a link to a directory");
    let chain =
        Tar::default().symlink("first", "..").symlink("second", "first/outside").file("second/file", "x").done();
    ensure!(unpack_in(&room, chain).await.is_err(), "it was written through two links");
    // A file of the archive in the place of a link replaces the link or is refused.
    let _ = unpack_in(&room, Tar::default().symlink("file", "../victim").file("file", "changed").done()).await;
    room.link("in/there", "../victim").await?;
    let _ = unpack_in(&room, Tar::default().file("there", "changed").done()).await;
    same!(room.read("victim").await?, "kept", "what a link leads to is not written");
    same!(super::stage::names(&*room.files, &room.path("outside")?).await?.len(), 0, "nothing is written outside");
    Ok(())
}

pub(super) async fn unpack_refuses_a_hard_link_out(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    room.write("secret", "not for the archive").await?;
    for target in ["../secret", &room.path("secret")?.to_string(), "way/secret"] {
        let tar = Tar::default().symlink("way", "..").gnu(tar::EntryType::Link, "stolen", target, b"").done();
        ensure!(unpack_in(&room, tar).await.is_err(), "a hard link to {target} was made");
        refused!(room.stat("in/stolen").await, Error::NotFound(_));
    }
    Ok(())
}

pub(super) async fn unpack_refuses_a_truncated_archive(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let content = "x".repeat(2000);
    let whole = Tar::default().file("first", "whole").file("second", &content).done();
    // In the second header, in its body, in the padding after it.
    for cut in [1024 + 100, 1536 + 700, 1536 + 2010] {
        refused!(unpack_in(&room, whole.slice(..cut)).await, Error::Archive(_));
        match room.stat("in/second").await {
            Err(Error::NotFound(_)) => {}
            Ok(info) => same!((info.kind, info.size), (Kind::File, 2000), "half a file is not left, cut at {cut}"),
            Err(other) => return Err(other.into()),
        }
    }
    unpack_in(&room, whole).await?;
    same!(room.read("in/second").await?, content);
    Ok(())
}

pub(super) async fn unpack_refuses_what_is_no_archive(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let noise = super::stage::pattern(4096).to_vec();
    let mut wrong_sum = Tar::default().file("file", "x").done().to_vec();
    wrong_sum[0] ^= 1;
    for bad in [noise, b"PK\x03\x04 this is a zip".repeat(100), wrong_sum, b"short".to_vec()] {
        refused!(unpack_in(&room, bad.into()).await, Error::Archive(_));
    }
    same!(super::stage::names(&*room.files, &room.path("in")?).await?.len(), 0);
    Ok(())
}
