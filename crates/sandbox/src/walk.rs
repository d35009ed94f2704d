//! What lies below a directory, one entry after the other (XB-9).

use std::{future, sync::Arc};

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{FileInfo, Files, Kind, Result, SandboxPath, Stream, TreeItem, Walk, walk_tree};

/// Everything below `dir` that is no directory. A link is one entry and is not followed.
pub async fn walk(files: &Arc<dyn Files>, dir: &SandboxPath) -> Result<Stream<FileInfo>> {
    let items = flatten(walk_tree(files, dir, Walk::ALL).await?);
    let entries = items.try_filter_map(|item| {
        future::ready(Ok(match item {
            TreeItem::Entry(entry) if entry.kind != Kind::Directory => Some(entry),
            TreeItem::Entry(_) | TreeItem::Content(_) => None,
        }))
    });
    Ok(entries.boxed())
}

/// One item after the other.
pub(crate) fn flatten(batches: Stream<Vec<TreeItem>>) -> Stream<TreeItem> {
    batches.map_ok(|batch| stream::iter(batch.into_iter().map(Ok))).try_flatten().boxed()
}
