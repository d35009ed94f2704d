//! Whether a chain is whole. A pure function: the rows may come from the store, from an export, from anywhere.

use sha2::{Digest, Sha256};

use super::{Head, LedgerRow};

/// Where a chain is broken first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("row {seq} was changed: it does not have the hash that it carries")]
    Changed { seq: u64 },
    #[error("row {seq} does not follow the row before it: one of the two was replaced")]
    Unlinked { seq: u64 },
    #[error("what comes after row {after} is missing")]
    Missing { after: u64 },
    #[error("row {seq} stands where it does not belong")]
    Misplaced { seq: u64 },
    #[error("the chain ends at row {at}, and row {head} was there when its head was kept")]
    CutOff { at: u64, head: u64 },
    #[error("row {seq} is not the one that was the head: the chain was written anew")]
    Rewritten { seq: u64 },
    #[error("the chain begins after row {after}, and none of its rows says that those before it were dropped")]
    Unsaid { after: u64 },
}

/// The rows of one tenant after `from` (all of them without it), in order. `head`, kept elsewhere, shows that nothing was
/// cut off; without it a shorter chain looks whole. Gives the tip.
pub fn verify(rows: impl Iterator<Item = LedgerRow>, from: Option<Head>, head: Option<&Head>) -> Result<Head, Broken> {
    let mut tip = from.unwrap_or_default();
    meets(&tip, head)?;
    for row in rows {
        tip = follow(&tip, row)?;
        meets(&tip, head)?;
    }
    match head {
        Some(head) if head.seq > tip.seq => Err(Broken::CutOff { at: tip.seq, head: head.seq }),
        _ => Ok(tip),
    }
}

fn follow(tip: &Head, mut row: LedgerRow) -> Result<Head, Broken> {
    let (seq, hash) = (row.seq, std::mem::take(&mut row.hash));
    // First its own content: what a changed row says about its place means nothing.
    let text = row.text().map_err(|_| Broken::Changed { seq })?;
    match () {
        () if <[u8; 32]>::from(Sha256::digest(text)) != hash => Err(Broken::Changed { seq }),
        () if seq > tip.seq + 1 => Err(Broken::Missing { after: tip.seq }),
        () if seq <= tip.seq => Err(Broken::Misplaced { seq }),
        () if row.prev != tip.hash => Err(Broken::Unlinked { seq }),
        () => Ok(Head { seq, hash }),
    }
}

fn meets(tip: &Head, head: Option<&Head>) -> Result<(), Broken> {
    match head {
        Some(head) if head.seq == tip.seq && head.hash != tip.hash => Err(Broken::Rewritten { seq: tip.seq }),
        _ => Ok(()),
    }
}
