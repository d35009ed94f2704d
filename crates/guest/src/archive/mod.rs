//! Tar archives: [`read`] takes them apart as a stranger's bytes, [`extract`] makes files of them, [`write`] makes them.

mod extract;
mod finish;
mod layer;
mod left_out;
mod pax;
mod read;
mod sparse;
mod write;

pub(crate) use extract::{Extract, Holes, Names, Owners};
pub(crate) use layer::{MAX_LIST, leaving};
pub(crate) use left_out::{LeftOut, named};
pub(crate) use read::{Archive, Kind, MAX_ENTRIES};
pub(crate) use sparse::MAX_PIECES;
pub(crate) use write::{Head, Packer};

pub(crate) const BLOCK: usize = 512;
