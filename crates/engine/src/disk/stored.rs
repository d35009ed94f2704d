//! What a sandbox takes of the disk in all, and the end of its commands where there is no room for what they write.
//!
//! This is asked where the disk of all is short, or a tenant stores too much. The sandbox that makes that hard to find out stands
//! still meanwhile: it fills no disk behind a look that it has made long.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cabana_guest::tree::Usage;
use cabana_sandbox::{Error, Result, Source, Stored, StoredParts, View, VolumeId};
use tokio::{task::spawn_blocking, time::timeout};

use super::measure::{Parts, measure_parts};
use crate::{engine::Shared, freezer::Reason, home::Homes, live::Live, wire::ToInit};

/// So long commands go on while it is measured what they take.
const PATIENCE: Duration = Duration::from_millis(100);

/// After so long what was known before is the answer. The sandbox stands still until it is known anew.
const LONGEST: Duration = Duration::from_secs(4);

/// Others write to its volumes, too: so what was measured of one that does not run holds for a while, and by so much longer as it took.
const FRESH: Duration = Duration::from_secs(1);
const REST: u32 = 9;

#[derive(Default)]
pub(crate) struct StoredOnce {
    /// Held by the thread that measures.
    measuring: Arc<tokio::sync::Mutex<()>>,
    last: Mutex<Option<Known>>,
    /// Volumes that it could write to and does not see any more: what it has open there it fills on.
    left: Mutex<BTreeSet<VolumeId>>,
}

/// What was measured last, and when that was.
#[derive(Clone)]
struct Known {
    mark: Mark,
    until: Instant,
    parts: StoredParts,
}

/// By the processor time of the sandbox and by its changes from outside: nothing is written by who does not run.
#[derive(Clone, Copy)]
struct Mark {
    cpu: Option<u64>,
    changes: u64,
}

impl Mark {
    fn of(live: &Live) -> Self {
        Self { cpu: live.cpu_us(), changes: live.disk.changes.load(Ordering::Relaxed) }
    }

    /// Where it is not known whether it has run, it has.
    fn is_at(self, other: Self) -> bool {
        self.cpu.is_some() && (self.cpu, self.changes) == (other.cpu, other.changes)
    }
}

impl Known {
    fn holds(&self, mark: Mark) -> bool {
        self.mark.is_at(mark) && (self.parts.volumes.is_empty() || Instant::now() < self.until)
    }
}

impl StoredOnce {
    fn last(&self) -> Option<Known> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, known: Known) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }

    /// It is about to see others than these.
    pub(crate) fn note_left(&self, views: &[View]) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).extend(written(views));
    }

    fn left(&self) -> BTreeSet<VolumeId> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) async fn stored(live: &Arc<Live>, shared: &Arc<Shared>) -> Result<StoredParts> {
    let mark = Mark::of(live);
    let before = live.stored.last();
    if let Some(known) = before.as_ref().filter(|known| known.holds(mark)) {
        return Ok(known.parts.clone());
    }
    let (measured, shared) = (live.clone(), shared.clone());
    // In a task of its own: who stops waiting leaves no commands frozen.
    let measured = live.tasks.spawn(async move {
        let _measuring = measured.stored.measuring.clone().lock_owned().await;
        match measured.stored.last().filter(|known| known.holds(Mark::of(&measured))) {
            Some(known) => Ok(known.parts), // another thread has measured meanwhile
            None => measure_anew(&measured, shared).await,
        }
    });
    match (timeout(LONGEST, measured).await, before) {
        (Ok(measured), _) => measured.map_err(|error| Error::failed("measuring", error)).flatten(),
        (Err(_), Some(before)) => Ok(StoredParts { is_late: !before.mark.is_at(mark), ..before.parts }),
        (Err(_), None) => Err(Error::TimedOut("the files of the sandbox")),
    }
}

async fn measure_anew(live: &Arc<Live>, shared: Arc<Shared>) -> Result<StoredParts> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let (mark, begun, last) = (Mark::of(live), Instant::now(), live.stored.last());
    let of = live.clone();
    let volumes = spawn_blocking(move || written_volumes(&shared.homes, &of)).await;
    let volumes = volumes.map_err(|error| Error::failed("measuring", error)).flatten()?;
    let found = measure_all(live, &volumes).await?;
    let run = match last.filter(|last| last.mark.is_at(mark)) {
        Some(last) => last.parts.run,
        None => RUNS.fetch_add(1, Ordering::Relaxed),
    };
    let names = volumes.into_iter().map(|(volume, _)| volume);
    let parts = StoredParts {
        own: stored_of(found.own),
        volumes: names.zip(found.volumes.into_iter().map(stored_of)).collect(),
        run,
        is_late: !found.is_all_seen,
    };
    let until = Instant::now() + FRESH.max(begun.elapsed() * REST);
    live.stored.set(Known { mark, until, parts: parts.clone() });
    Ok(parts)
}

fn stored_of(found: Usage) -> Stored {
    Stored { bytes: found.bytes, inodes: found.entries }
}

async fn measure_all(live: &Arc<Live>, volumes: &[(VolumeId, PathBuf)]) -> Result<Parts> {
    let mut frozen = false;
    let mut measured = {
        let mut measuring = pin!(measure_on_a_thread(live, volumes));
        match timeout(PATIENCE, &mut measuring).await {
            Ok(measured) => measured,
            Err(_) => {
                frozen = true;
                freeze(live).await;
                measuring.await
            }
        }
    };
    // Moved about meanwhile, which a frozen guest does not do.
    if measured.as_ref().is_ok_and(|parts| !parts.is_whole) {
        frozen = true;
        freeze(live).await;
        measured = measure_on_a_thread(live, volumes).await;
    }
    if frozen {
        let _ = live.thaw_at_last(Reason::RoomLook).await; // what cannot be thawed has ended, or never stood still
    }
    measured
}

async fn measure_on_a_thread(live: &Arc<Live>, volumes: &[(VolumeId, PathBuf)]) -> Result<Parts> {
    let live = live.clone();
    let trees: Vec<_> = volumes.iter().map(|(_, tree)| tree.clone()).collect();
    let measured = spawn_blocking(move || measure_parts(live.disk.own(), &trees, &live.pids())).await;
    measured.map_err(std::io::Error::other).flatten().map_err(|error| Error::failed("measuring", error))
}

/// Those that are there.
fn written_volumes(homes: &Homes, live: &Live) -> Result<Vec<(VolumeId, PathBuf)>> {
    let mut all = live.stored.left();
    all.extend(written(&homes.read(&live.id)?.spec.views));
    let volumes = homes.volumes();
    Ok(all.into_iter().filter(|volume| volumes.has(*volume)).map(|volume| (volume, volumes.tree(volume))).collect())
}

fn written(views: &[View]) -> impl Iterator<Item = VolumeId> {
    views.iter().filter(|view| view.writable).filter_map(|view| match view.source {
        Source::Volume(volume) => Some(volume),
        Source::Host(_) | Source::Layer(_) => None,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_holds_while_it_does_not_run_and_of_its_volumes_for_a_while() {
        let mark = |cpu, changes| Mark { cpu, changes };
        let volume = (VolumeId::from(uuid::Uuid::new_v4()), Stored::default());
        let known = |volumes, until| {
            let parts = StoredParts { volumes, ..StoredParts::default() };
            Known { mark: mark(Some(7), 1), until, parts }
        };
        let (past, later) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        let alone = known(Vec::new(), past);
        assert!(alone.holds(mark(Some(7), 1)));
        assert!(!alone.holds(mark(Some(8), 1)) && !alone.holds(mark(Some(7), 2)) && !alone.holds(mark(None, 1)));
        assert!(known(vec![volume], later).holds(mark(Some(7), 1)));
        assert!(!known(vec![volume], past).holds(mark(Some(7), 1)), "others write to it");
    }

    #[test]
    fn volumes_that_it_does_not_see_any_more_are_known() {
        let stored = StoredOnce::default();
        let volumes: Vec<_> = (0..2).map(|_| VolumeId::from(uuid::Uuid::new_v4())).collect();
        let views = volumes.iter().zip([true, false]).map(|(volume, writable)| View {
            source: Source::Volume(*volume),
            at: "/v".parse().unwrap(),
            writable,
        });
        stored.note_left(&views.collect::<Vec<_>>());
        assert_eq!(stored.left(), BTreeSet::from([volumes[0]]));
    }
}
