//! Search, walk, pack and unpack: by the provider where it can, else with list, read and write.

mod pack;
mod search;
mod tar;
mod unpack;
mod walk;

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};

use crate::{Error, Files, Hit, Result, SandboxPath, Search, Stream, TreeItem, Walk};

/// Entries or lines below a directory. Ends at `max_hits`; when the budget is used up the last item is `TimedOut`.
pub async fn search(files: &Arc<dyn Files>, what: Search) -> Result<Stream<Vec<Hit>>> {
    match files.search(what.clone()).await {
        Err(Error::Unsupported { .. }) => search::search(files, &what).await,
        result => result,
    }
}

/// What lies below a directory, each directory before what it holds, and by name within it.
pub async fn walk_tree(files: &Arc<dyn Files>, dir: &SandboxPath, what: Walk) -> Result<Stream<Vec<TreeItem>>> {
    match files.walk(dir, what).await {
        Err(Error::Unsupported { .. }) => walk::walk(files, dir, what).await,
        result => result,
    }
}

/// A tar of the directory's content, with names relative to it.
pub async fn pack(files: &Arc<dyn Files>, dir: &SandboxPath) -> Result<Stream<Bytes>> {
    match files.pack(dir).await {
        Err(Error::Unsupported { .. }) => pack::pack(files, dir).await,
        result => result,
    }
}

/// Into a directory that exists. A bad archive is `Archive`, and never leaves the directory.
pub async fn unpack(files: &dyn Files, dir: &SandboxPath, tar: Stream<Bytes>) -> Result<()> {
    let (lent, kept) = lend(tar);
    match files.unpack(dir, lent).await {
        Err(error @ Error::Unsupported { .. }) => match kept.take_back() {
            Some(tar) => unpack::unpack(files, dir, tar).await,
            None => Err(error),
        },
        result => result,
    }
}

/// The stream for somebody who may refuse it, and a way to have it back then.
fn lend(stream: Stream<Bytes>) -> (Stream<Bytes>, Kept) {
    let kept = Kept(Arc::new(Mutex::new(Lent { stream: Some(stream), pulled: false })));
    let shared = kept.0.clone();
    let lent = stream::poll_fn(move |cx| {
        let mut lent = shared.lock().unwrap_or_else(PoisonError::into_inner);
        lent.pulled = true;
        match &mut lent.stream {
            Some(stream) => stream.poll_next_unpin(cx),
            None => Poll::Ready(None),
        }
    });
    (lent.boxed(), kept)
}

struct Kept(Arc<Mutex<Lent>>);

struct Lent {
    stream: Option<Stream<Bytes>>,
    pulled: bool,
}

impl Kept {
    /// `None` when some of it was read: what is left would be half an archive.
    fn take_back(&self) -> Option<Stream<Bytes>> {
        let mut lent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lent.pulled { None } else { lent.stream.take() }
    }
}
