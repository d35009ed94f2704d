//! A saved sandbox as bytes: a line that says so, then sections in frames.
//!
//! The first section is the [`Head`], as JSON; one tar for each kept layer follows, the lowest first, overlay after overlay.
//! A frame is a length of four bytes, so many bytes, and a digest over them and the digest before: what was damaged is
//! noticed before it is acted on. An empty frame ends a section. Layers that templates bring are named and not in it.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
};

use cabana_guest::tree;
use cabana_sandbox::{Defaults, Error, LayerId, Result};
use serde::{Deserialize, Serialize};

use super::flatten;
use crate::{
    kernel::shortage::told_apart,
    layers::{Draft, LayerName, Store},
    plan::Plan,
};

const NAME: &[u8] = b"cabana sandbox ";
const VERSION: &[u8] = b"1\n";
const FRAME: usize = 256 * 1024;
const DIGEST: usize = 32;
/// Of the head: far more than a plan has.
const MAX_HEAD: u64 = 1024 * 1024;
/// Far more than lie on each other before they are merged; each has a draft that is open.
const MAX_LAYERS: usize = 64;

/// What a saved sandbox stands on, without anything that is a path or a name of this machine.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    /// Of templates, or of the host base.
    pub(super) layers: Vec<LayerId>,
    /// How many layers of the root are in the stream.
    pub(super) kept: usize,
    pub(super) trees: Vec<HeadTree>,
    pub(super) defaults: Defaults,
    pub(super) fingerprint: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeadTree {
    pub(super) at: String,
    pub(super) kept: usize,
}

impl Head {
    pub(super) fn of(plan: &Plan) -> Self {
        let kept = |layers: &[LayerName]| layers.iter().filter(|layer| layer.is_kept()).count();
        let content = |layer: &LayerName| match layer {
            LayerName::Content(id) => Some(*id),
            LayerName::Kept(_) => None,
        };
        Self {
            layers: plan.layers.iter().filter_map(content).collect(),
            kept: kept(&plan.layers),
            trees: plan.trees.iter().map(|tree| HeadTree { at: tree.at.clone(), kept: kept(&tree.layers) }).collect(),
            defaults: plan.defaults.clone(),
            fingerprint: plan.fingerprint.clone(),
        }
    }

    /// For each layer in the stream, the overlay that it is of.
    pub(super) fn overlays(&self) -> impl Iterator<Item = usize> + '_ {
        let counts = [self.kept].into_iter().chain(self.trees.iter().map(|tree| tree.kept));
        counts.enumerate().flat_map(|(overlay, kept)| std::iter::repeat_n(overlay, kept))
    }

    pub(super) fn check(&self) -> Result<()> {
        let all = self.trees.iter().try_fold(self.kept, |sum, tree| sum.checked_add(tree.kept));
        if all.is_none_or(|all| all > MAX_LAYERS) || self.layers.len() > MAX_LAYERS || self.trees.len() > MAX_LAYERS {
            return Err(Error::Archive("it has too many layers".into()));
        }
        Ok(())
    }
}

pub(super) fn write(store: &Store, plan: &Plan, out: &mut dyn Write) -> Result<()> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidFilename => Error::Unsupported {
            provider: "engine",
            what: "an archive of a sandbox with a path that is longer than 4095 bytes: shorten or remove it first",
        },
        io::ErrorKind::InvalidData => {
            Error::invalid("files", format!("an archive cannot hold {error}: remove it first"))
        }
        _ => told_apart(error, |error| Error::failed("saving the sandbox", error)),
    };
    let mut merged = Vec::new();
    for overlay in 0..plan.overlays() {
        merged.push(merged_if_needed(store, plan, overlay, &failed)?);
    }
    let mut head = Head::of(plan);
    let kept = [&mut head.kept].into_iter().chain(head.trees.iter_mut().map(|tree| &mut tree.kept));
    kept.zip(&merged).filter(|(_, merged)| merged.is_some()).for_each(|(kept, _)| *kept = 1);
    let mut frames = FrameWriter::new(NAME, out).map_err(failed)?;
    let head = serde_json::to_vec(&head).map_err(|error| failed(error.into()))?;
    frames.write_all(&head).and_then(|()| frames.end_section()).map_err(failed)?;
    let mut pack = |layer: &File| {
        tree::pack_layer(layer.as_fd(), store.ids(), &mut frames).and_then(|()| frames.end_section()).map_err(failed)
    };
    for (overlay, merged) in merged.iter().enumerate() {
        match merged {
            Some(merged) => pack(&merged.root)?,
            None => kept_of(plan, overlay).try_for_each(|layer| pack(&store.open_layer(layer)?))?,
        }
    }
    Ok(())
}

fn kept_of(plan: &Plan, overlay: usize) -> impl DoubleEndedIterator<Item = LayerName> + '_ {
    plan.stack(overlay).iter().copied().filter(LayerName::is_kept)
}

/// What was removed still lies in the layer of the snapshot that kept it. Where that is something which no archive holds, the
/// layers are merged: what was removed is not in the one that they become.
fn merged_if_needed(
    store: &Store,
    plan: &Plan,
    overlay: usize,
    failed: &dyn Fn(io::Error) -> Error,
) -> Result<Option<Draft>> {
    let is_packable = |layer| tree::is_packable(store.open_layer(layer)?.as_fd(), store.ids()).map_err(failed);
    let mut highest_first = kept_of(plan, overlay).rev();
    // What is in the highest was not removed: to merge would be to copy in vain.
    let can_be_packed = highest_first.next().map(is_packable).transpose()?.unwrap_or(true);
    if can_be_packed {
        for layer in highest_first {
            if !is_packable(layer)? {
                return flatten::merge(store, plan, overlay).map(Some);
            }
        }
    }
    Ok(None)
}

pub(super) struct FrameWriter<'a> {
    out: &'a mut dyn Write,
    frame: Vec<u8>,
    digest: [u8; DIGEST],
}

impl<'a> FrameWriter<'a> {
    pub(super) fn new(name: &[u8], out: &'a mut dyn Write) -> io::Result<Self> {
        out.write_all(&[name, VERSION].concat())?;
        Ok(Self { out, frame: Vec::with_capacity(FRAME), digest: [0; DIGEST] })
    }

    pub(super) fn end_section(&mut self) -> io::Result<()> {
        if !self.frame.is_empty() {
            self.send()?;
        }
        self.send()
    }

    fn send(&mut self) -> io::Result<()> {
        let length = (self.frame.len() as u32).to_le_bytes();
        self.digest = next_digest(&self.digest, length, &self.frame);
        self.out.write_all(&length)?;
        self.out.write_all(&self.frame)?;
        self.out.write_all(&self.digest)?;
        self.frame.clear();
        Ok(())
    }
}

impl Write for FrameWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(FRAME - self.frame.len());
        self.frame.extend_from_slice(&bytes[..taken]);
        if self.frame.len() == FRAME {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn next_digest(before: &[u8; DIGEST], length: [u8; 4], bytes: &[u8]) -> [u8; DIGEST] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(&length).update(bytes);
    *hasher.finalize().as_bytes()
}

/// Reads sections one after the other, without believing a byte that no digest has vouched for.
pub(super) struct Sections<'a> {
    input: &'a mut dyn Read,
    frame: Vec<u8>,
    at: usize,
    digest: [u8; DIGEST],
    /// Of the section that is being read.
    ended: bool,
    /// Why it cannot be read, once that is known.
    bad: Option<String>,
}

impl<'a> Sections<'a> {
    pub(super) fn open(input: &'a mut dyn Read) -> Result<(Head, Self)> {
        let mut sections = Self::begin(NAME, input)?;
        let head: Head = sections.told()?;
        head.check()?;
        Ok((head, sections))
    }

    /// Of a stream that begins with this name.
    pub(super) fn begin(name: &[u8], input: &'a mut dyn Read) -> Result<Self> {
        let mut line = vec![0; name.len() + VERSION.len()];
        input.read_exact(&mut line).map_err(cut)?;
        if !line.starts_with(name) {
            return Err(Error::Archive("it is no saved sandbox".into()));
        }
        if !line.ends_with(VERSION) {
            return Err(Error::Archive("it was saved by a version that this one does not know".into()));
        }
        Ok(Self { input, frame: Vec::new(), at: 0, digest: [0; DIGEST], ended: false, bad: None })
    }

    /// A section that says something of what follows.
    pub(super) fn told<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let mut text = Vec::new();
        let read = self.take(MAX_HEAD).read_to_end(&mut text);
        read.map_err(|error| self.error(error))?;
        let told = serde_json::from_slice(&text)
            .map_err(|error| Error::Archive(format!("what it says of itself is damaged: {error}")))?;
        self.leave()?;
        Ok(told)
    }

    /// Goes on to the next section: the last one was read to its end.
    pub(super) fn leave(&mut self) -> Result<()> {
        let mut rest = [0; 1];
        match self.read(&mut rest) {
            Ok(0) => self.ended = false,
            Ok(_) => return Err(Error::Archive("a part of it is longer than what it holds".into())),
            Err(error) => return Err(self.error(error)),
        }
        Ok(())
    }

    /// Nothing may come after the last section.
    pub(super) fn end(self) -> Result<()> {
        match self.input.read(&mut [0; 1]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Error::Archive("something follows its end".into())),
            Err(error) => Err(Error::failed("reading the saved sandbox", error)),
        }
    }

    /// What is behind an error of a reader of this: damage, if that was it.
    pub(super) fn explain(&self, error: Error) -> Error {
        match &self.bad {
            Some(why) => Error::Archive(why.clone()),
            None => error,
        }
    }

    fn error(&self, error: io::Error) -> Error {
        self.explain(Error::failed("reading the saved sandbox", error))
    }

    fn next_frame(&mut self) -> io::Result<()> {
        if self.bad.is_some() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut length = [0; 4];
        self.fill(&mut length)?;
        let size = u32::from_le_bytes(length) as usize;
        if size > FRAME {
            return Err(self.refuse("it is damaged: a part of it is larger than can be"));
        }
        let mut frame = std::mem::take(&mut self.frame);
        self.at = 0;
        frame.resize(size, 0);
        self.fill(&mut frame)?;
        let mut digest = [0; DIGEST];
        self.fill(&mut digest)?;
        self.digest = next_digest(&self.digest, length, &frame);
        if self.digest != digest {
            return Err(self.refuse("it is damaged: a digest does not fit"));
        }
        (self.frame, self.ended) = (frame, size == 0);
        Ok(())
    }

    fn fill(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.input.read_exact(into).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.refuse("it ends before its end: it was cut off"),
            _ => error,
        })
    }

    fn refuse(&mut self, why: &str) -> io::Error {
        self.bad = Some(why.to_owned());
        io::ErrorKind::InvalidData.into()
    }
}

impl Read for Sections<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.frame.len() && !self.ended {
            self.next_frame()?;
        }
        let taken = into.len().min(self.frame.len() - self.at);
        into[..taken].copy_from_slice(&self.frame[self.at..self.at + taken]);
        self.at += taken;
        Ok(taken)
    }
}

fn cut(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::Archive("it is no saved sandbox, or it was cut off".into()),
        _ => Error::failed("reading the saved sandbox", error),
    }
}
