//! What a sandbox takes of the disk in all, and the end of its commands where there is no room for what they write.
//!
//! This is asked where the disk of all is short, or a tenant stores too much. The sandbox that makes that hard to find out stands
//! still meanwhile: it fills no disk behind a look that it has made long.

use std::{
    path::PathBuf,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use cabana_guest::tree::Measured;
use cabana_sandbox::{Error, Result, SandboxId, Source, Stored};
use tokio::task::spawn_blocking;

use super::measure;
use crate::{engine::Shared, freezer::Reason, home::Homes, live::Live, wire::ToInit};

/// So long commands go on while it is measured what they take.
const PATIENCE: Duration = Duration::from_millis(100);

/// What was measured last, and when that was by the processor time of the sandbox and by its changes from outside: nothing is written by
/// who does not run.
pub(crate) type StoredOnce = Arc<tokio::sync::Mutex<Option<(u64, u64, Stored)>>>;

pub(crate) async fn stored(live: &Arc<Live>, shared: &Arc<Shared>) -> Result<Stored> {
    let mut known = live.stored.clone().lock_owned().await;
    let (cpu, changes) = (live.cpu_us(), live.disk.changes.load(Ordering::Relaxed));
    if let Some((then, before, stored)) = *known
        && (Some(then), before) == (cpu, changes)
    {
        return Ok(stored);
    }
    let (live, shared) = (live.clone(), shared.clone());
    // In a task of its own: who stops waiting leaves no commands frozen.
    let measured = live.tasks.clone().spawn(async move {
        let stored = measure_all(&live, shared).await?;
        *known = cpu.map(|cpu| (cpu, changes, stored));
        Ok(stored)
    });
    measured.await.map_err(|error| Error::failed("measuring", error)).flatten()
}

async fn measure_all(live: &Arc<Live>, shared: Arc<Shared>) -> Result<Stored> {
    let id = live.id.clone();
    let volumes = spawn_blocking(move || written_volumes(&shared.homes, &id)).await;
    let volumes = volumes.map_err(|error| Error::failed("measuring", error)).flatten()?;
    let mut frozen = false;
    let mut measured = {
        let mut measuring = pin!(measure_on_a_thread(live, &volumes));
        match tokio::time::timeout(PATIENCE, &mut measuring).await {
            Ok(measured) => measured,
            Err(_) => {
                frozen = true;
                freeze(live).await;
                measuring.await
            }
        }
    };
    // Moved about meanwhile, which nobody does who stands still.
    if let Ok(Measured::AtLeast(_)) = &measured {
        frozen = true;
        freeze(live).await;
        measured = measure_on_a_thread(live, &volumes).await;
    }
    if frozen {
        let _ = live.thaw_at_last(Reason::RoomLook).await; // what cannot be thawed has ended, or never stood still
    }
    let found = measured?.found();
    Ok(Stored { bytes: found.bytes, inodes: found.entries })
}

async fn measure_on_a_thread(live: &Arc<Live>, volumes: &[PathBuf]) -> Result<Measured> {
    let (live, volumes) = (live.clone(), volumes.to_vec());
    let measured = spawn_blocking(move || measure(live.disk.own(), &volumes, &live.pids())).await;
    measured.map_err(std::io::Error::other).flatten().map_err(|error| Error::failed("measuring", error))
}

fn written_volumes(homes: &Homes, id: &SandboxId) -> Result<Vec<PathBuf>> {
    let views = homes.read(id)?.spec.views;
    let written = views.iter().filter(|view| view.writable).filter_map(|view| match view.source {
        Source::Volume(volume) => Some(homes.volumes().tree(volume)),
        Source::Host(_) | Source::Layer(_) => None,
    });
    Ok(written.collect())
}

/// Without control groups nothing stands still.
async fn freeze(live: &Arc<Live>) {
    let live = live.clone();
    let _ = spawn_blocking(move || live.freezer.freeze(Reason::RoomLook)).await;
}

pub(crate) async fn end_for_want_of_room(live: &Live) -> Result<()> {
    if live.is_paused() {
        return Ok(());
    }
    live.disk.note_ended(live.execs.numbers());
    live.send(&ToInit::end_all(), &[]).await
}
