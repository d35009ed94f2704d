//! Snapshots and saved sandboxes of the fake: files that are kept in memory, under a name or a number.

use std::sync::{Arc, Mutex, atomic::Ordering};

use bytes::Bytes;
use cabana_sandbox::{Base, Error, Result, SandboxId, SandboxSpec, SnapshotId, Stream};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{Fake, Fault, Record, fs::Fs, lock};

/// What a saved one looks like: the number of its files stands between the two.
const BEGIN: &str = "saved by the fake as ";
const END: &str = ", and this is the end";

/// All sandboxes of one moment.
pub(super) type Everything = Vec<(SandboxId, SandboxSpec, Arc<Mutex<Fs>>)>;

pub(super) struct Kept {
    fs: Arc<Mutex<Fs>>,
    of: SandboxId,
}

impl Fake {
    pub(super) fn take_snapshot(&self, id: &SandboxId, name: SnapshotId) -> Result<()> {
        if lock(&self.snapshots).contains_key(&name) && !self.has(Fault::SnapshotIsTakenAgain) {
            return Ok(());
        }
        let kept = self.keep(id)?;
        lock(&self.snapshots).insert(name, kept);
        Ok(())
    }

    pub(super) fn save_files(&self, id: &SandboxId) -> Result<u64> {
        let kept = self.keep(id)?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        lock(&self.kept).insert(number, kept);
        Ok(number)
    }

    fn keep(&self, id: &SandboxId) -> Result<Kept> {
        let mut boxes = self.boxes();
        let fs = match boxes.get_mut(id) {
            Some(there) if self.has(Fault::SnapshotFollowsItsSandbox) => there.fs.clone(),
            Some(there) => {
                if self.has(Fault::SnapshotWakes) {
                    self.wake(id, there);
                }
                Arc::new(Mutex::new(lock(&there.fs).copy()))
            }
            None if self.has(Fault::SnapshotOfNothingIsEmpty) => Arc::new(Mutex::new(Fs::new(self.fault))),
            None => return Err(Error::NoSandbox(id.clone())),
        };
        Ok(Kept { fs, of: id.clone() })
    }

    pub(super) fn forget_kept(&self, id: &SandboxId) {
        if self.has(Fault::SnapshotEndsWithItsSandbox) {
            lock(&self.snapshots).retain(|_, kept| kept.of != *id);
        }
    }

    /// What a sandbox of this base begins with; `None` where that is nothing special.
    pub(super) fn base_files(&self, base: &Base) -> Option<Arc<Mutex<Fs>>> {
        let name = match base {
            Base::Snapshot(name) => name,
            Base::Named(name) => return self.template_files(name),
            Base::Host | Base::Layers(_) => return None,
        };
        let kept = lock(&self.snapshots);
        let kept = kept.get(name)?;
        if self.has(Fault::SnapshotIsEmpty) {
            return Some(Arc::new(Mutex::new(Fs::new(self.fault))));
        }
        if self.has(Fault::ForksShareFiles) {
            return Some(kept.fs.clone());
        }
        let copy = lock(&kept.fs).copy();
        Some(Arc::new(Mutex::new(copy)))
    }

    pub(super) fn saved(number: u64) -> Stream<Bytes> {
        let parts = [BEGIN.to_owned(), number.to_string(), END.to_owned()];
        stream::iter(parts.map(|part| Ok(Bytes::from(part)))).boxed()
    }

    pub(super) fn put_on_shelf(&self, id: &SandboxId) -> Result<()> {
        let mut boxes = self.boxes();
        let base = match boxes.get(id) {
            Some(there) if there.session.is_some() && !self.has(Fault::RunningOnesAreShelved) => {
                return Err(Error::invalid("id", "it is not stopped"));
            }
            Some(there) => there.spec.base.clone(),
            None if lock(&self.shelf).contains_key(id) && !self.has(Fault::ShelvingTwiceFails) => return Ok(()),
            None => return Err(Error::NoSandbox(id.clone())),
        };
        if !self.has(Fault::ShelvingIsPretended) {
            boxes.remove(id);
        }
        if !self.has(Fault::ShelvedBaseIsForgotten) {
            lock(&self.shelf).insert(id.clone(), base);
        }
        Ok(())
    }

    pub(super) async fn put_back(&self, id: &SandboxId, spec: &SandboxSpec, saved: Stream<Bytes>) -> Result<()> {
        let there = self.boxes().contains_key(id);
        if there && !self.has(Fault::RestoreReplaces) {
            return Err(Error::invalid("id", "there is a sandbox of this id already"));
        }
        let number = self.number_of(saved).await?;
        let mut made = Record::new(spec, self.fault);
        if !self.has(Fault::RestoreLosesFiles) {
            made.fs = Arc::new(Mutex::new(lock(&lock(&self.kept).get(&number).ok_or_else(damaged)?.fs).copy()));
        }
        if self.has(Fault::RestoreWakes) {
            self.wake(id, &mut made);
        }
        self.boxes().insert(id.clone(), made);
        lock(&self.shelf).remove(id);
        Ok(())
    }

    async fn number_of(&self, saved: Stream<Bytes>) -> Result<u64> {
        let parts: Vec<Bytes> = saved.try_collect().await?;
        let text = String::from_utf8_lossy(&parts.concat()).into_owned();
        let number = text.strip_prefix(BEGIN).and_then(|rest| match rest.strip_suffix(END) {
            None if self.has(Fault::RestoreTakesHalfAStream) => Some(rest.split(',').next().unwrap_or_default()),
            whole => whole,
        });
        number.and_then(|number| number.parse().ok()).ok_or_else(damaged)
    }

    /// Of all that there are now.
    pub(super) fn save_everything(&self) -> u64 {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let copy = |there: &Record| Arc::new(Mutex::new(lock(&there.fs).copy()));
        let all = self.boxes().iter().map(|(id, there)| (id.clone(), there.spec.clone(), copy(there))).collect();
        lock(&self.everything).insert(number, all);
        number
    }

    pub(super) async fn put_everything_back(&self, saved: Stream<Bytes>) -> Result<Vec<String>> {
        let number = self.number_of(saved).await?;
        let all = lock(&self.everything).get(&number).cloned().ok_or_else(damaged)?;
        for (id, spec, fs) in all {
            let made = Record { fs: Arc::new(Mutex::new(lock(&fs).copy())), ..Record::new(&spec, self.fault) };
            self.boxes().entry(id).or_insert(made);
        }
        Ok(Vec::new())
    }
}

fn damaged() -> Error {
    Error::Archive("it was not saved by this fake, or cut off".into())
}
