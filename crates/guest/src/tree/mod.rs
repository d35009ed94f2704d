//! Whole trees, on plain directory descriptors: for the layer store and for deletion.
//!
//! Relative to descriptors, never through links, never across a mount point, and without recursion: a tree of 10,000
//! levels is a tree like another.

mod copy;
mod digest;
mod import;
mod layer;
mod marks;
mod merge;
mod remove;
mod usage;
mod whiteouts;

pub(crate) use copy::copy_entry;
pub use copy::{copy, copy_content, copy_layer, dress_like};
pub use digest::digest;
pub use import::{Allowance, import_tar};
pub use layer::{is_dressed_like, is_packable, is_untouched, pack_changing, pack_layer, unpack_layer};
pub use marks::apply_marks;
pub use merge::merge_layer;
pub(crate) use remove::remove_inside;
pub use remove::{remove, remove_forced};
pub use rustix::fs::Stat;
pub use usage::{Measured, Usage, usage};
pub use whiteouts::drop_vain_whiteouts;
