//! Layers are merged before they pile up: an overlay takes only so many, and each costs at every create.

use std::{fs::File, io, os::fd::AsFd, path::PathBuf};

use cabana_guest::tree;
use cabana_sandbox::Result;

use super::fresh::Fresh;
use crate::{
    layers::{Draft, LayerName, Store, failed},
    plan::Plan,
    spawner::MAX_LOWER,
};

/// More kept layers than this are merged: every so many snapshots one takes as long as a copy.
const MANY: usize = 16;
/// What is left for views.
const VIEWS: usize = 12;

/// Merges what snapshots kept into one layer for each overlay, if that is too much with what is to come. The layers of
/// templates, which others use too, stay below. The old layers stay in the store as long as somebody names them.
pub(super) fn flatten(store: &Store, plan: &mut Plan, to_come: usize, fresh: &mut Fresh) -> Result<()> {
    let kept = plan.all_layers().filter(LayerName::is_kept).count();
    if kept + to_come <= MANY && plan.mounts() + to_come + VIEWS <= MAX_LOWER {
        return Ok(());
    }
    for overlay in 0..plan.overlays() {
        let (lowest, stack) = (lowest_kept(plan, overlay), plan.stack(overlay));
        if stack.len() - lowest > 1 {
            let (merged, lock) = merge(store, plan, overlay)?.keep()?;
            fresh.add((merged, lock));
            let stack = plan.stack_mut(overlay);
            stack.truncate(lowest);
            stack.push(merged);
        }
    }
    Ok(())
}

/// What the kept layers of an overlay lie on, the highest first.
fn below(store: &Store, plan: &Plan, overlay: usize, lowest: usize) -> Vec<PathBuf> {
    let mut below: Vec<_> = plan.stack(overlay)[..lowest].iter().rev().map(|layer| store.path(layer)).collect();
    if let Some(tree) = overlay.checked_sub(1).map(|tree| &plan.trees[tree]) {
        below.extend(tree.mask.map(|mask| store.path(mask)));
        below.push(tree.host.clone());
    }
    below
}

/// Those above it are kept as well.
fn lowest_kept(plan: &Plan, overlay: usize) -> usize {
    let stack = plan.stack(overlay);
    stack.iter().position(LayerName::is_kept).unwrap_or(stack.len())
}

/// What is kept of an overlay, as one layer.
pub(super) fn merge(store: &Store, plan: &Plan, overlay: usize) -> Result<Draft> {
    let lowest = lowest_kept(plan, overlay);
    let (draft, below) = (store.draft()?, below(store, plan, overlay, lowest));
    for (number, layer) in plan.stack(overlay)[lowest..].iter().enumerate() {
        let layer = store.open_layer(*layer)?;
        let done = match number {
            0 => tree::copy_layer(layer.as_fd(), draft.root.as_fd()),
            _ => tree::merge_layer(layer.as_fd(), draft.root.as_fd()),
        };
        done.map_err(failed("merging layers"))?;
    }
    let below = below.iter().map(File::open).collect::<io::Result<Vec<_>>>().map_err(failed("opening a layer"))?;
    let below: Vec<_> = below.iter().map(AsFd::as_fd).collect();
    tree::drop_vain_whiteouts(draft.root.as_fd(), &below).map_err(failed("merging layers"))?;
    Ok(draft)
}
