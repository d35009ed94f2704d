//! File operations beside the files, and hostile to what they find there.
//!
//! [`Rooted`] is the tree below one directory descriptor, seen as the calling thread's identity sees it. It reads,
//! writes, lists, walks, alters, watches, searches, packs and unpacks. [`tree`] works on plain directory descriptors: what the
//! layer store and the deletion of a sandbox need. [`Below`] is a directory of this machine that something is copied into or
//! out of.
//!
//! Everything blocks: callers put it on blocking threads. Everything assumes that a process inside changes the tree at
//! the worst moment. So no path is ever resolved but by the kernel with the root as its end (`openat2`), no file is opened
//! before it is known to be a regular one, no link is followed where the tree is walked, and no depth costs stack.
//!
//! What a caller must bring: `/proc` of its own process (a file is opened by `/proc/self/fd/N` once its kind is known), and,
//! to act for a user of a sandbox, a thread whose fsuid, fsgid, groups and capabilities are that user's.

mod account_cache;
mod accounts;
mod alter;
mod archive;
mod below;
mod bits;
mod dir;
mod errno;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod ids;
mod info;
mod links;
mod list;
mod names;
mod pack;
mod pattern;
mod read;
mod rooted;
mod search;
mod sys;
mod temp;
pub mod tree;
mod unpack;
mod walk;
mod watch;
mod write;
mod xattr;

pub use accounts::{Account, Accounts};
pub use below::{Below, Draft};
pub use ids::IdMap;
pub use list::Listing;
pub use read::Reader;
pub use rooted::Rooted;
pub use walk::Walker;
pub use watch::{MAX_WATCHES, Watch};
pub use write::Writer;
