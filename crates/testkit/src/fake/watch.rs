//! Who watches what in the files in memory.

use std::collections::BTreeSet;

use cabana_sandbox::{Change, Depth, SandboxPath, Stream, WatchEvent};
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use super::{
    Fault,
    fs::{Fs, Ino},
};

/// A reader who is this far behind is told that it missed something.
const BACKLOG: usize = 4096;

pub(super) struct Watcher {
    dir: Ino,
    path: SandboxPath,
    depth: Depth,
    events: mpsc::Sender<WatchEvent>,
    missed: bool,
    /// Where the fault wants only what was there at the start to be seen.
    known: Option<BTreeSet<Ino>>,
}

impl Fs {
    pub(super) fn watch(&mut self, dir: Ino, path: SandboxPath, depth: Depth) -> Stream<WatchEvent> {
        let (events, receiver) = mpsc::channel(BACKLOG);
        let known = self.has(Fault::WatchMissesNewDirectories).then(|| self.inodes.keys().copied().collect());
        self.watchers.push(Watcher { dir, path, depth, events, missed: self.has(Fault::WatchIsArmedLate), known });
        stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|event| (Ok(event), receiver)) })
            .boxed()
    }

    /// Something happened to the entry `name` of `dir`.
    pub(super) fn tell(&mut self, change: Change, dir: Ino, name: &[u8]) {
        if self.has(Fault::WatchMissesChmod) && change == Change::Chmod {
            return;
        }
        if self.has(Fault::WatchMissesRemove) && change == Change::Remove {
            return;
        }
        self.tell_each(|fs, watcher| fs.seen(watcher, dir, name).map(|path| WatchEvent::Changed(change, path)));
    }

    /// A watcher that sees only one end of a rename sees something come or go.
    pub(super) fn tell_renamed(&mut self, from: (Ino, &[u8]), to: (Ino, &[u8])) {
        if self.has(Fault::WatchSplitsRenames) {
            self.tell(Change::Remove, from.0, from.1);
            return self.tell(Change::Create, to.0, to.1);
        }
        self.tell_each(|fs, watcher| match (fs.seen(watcher, from.0, from.1), fs.seen(watcher, to.0, to.1)) {
            (Some(from), Some(to)) => Some(WatchEvent::Renamed(from, to)),
            (Some(from), None) => Some(WatchEvent::Changed(Change::Remove, from)),
            (None, Some(to)) => Some(WatchEvent::Changed(Change::Create, to)),
            (None, None) => None,
        });
    }

    fn tell_each(&mut self, event: impl Fn(&Fs, &Watcher) -> Option<WatchEvent>) {
        let mut watchers = std::mem::take(&mut self.watchers);
        watchers.retain_mut(|watcher| match event(self, watcher) {
            Some(event) => watcher.send(event, self.has(Fault::WatchIsArmedLate)),
            None => !watcher.events.is_closed(),
        });
        self.watchers = watchers;
    }

    /// The entry's path as the watcher knows it, if it watches there.
    fn seen(&self, watcher: &Watcher, dir: Ino, name: &[u8]) -> Option<SandboxPath> {
        if watcher.known.as_ref().is_some_and(|known| !known.contains(&dir)) {
            return None;
        }
        let mut parts = vec![name.to_vec()];
        let mut here = dir;
        while here != watcher.dir {
            let inode = self.inodes.get(&here)?;
            if inode.up == here {
                return None;
            }
            parts.push(inode.name.clone());
            here = inode.up;
        }
        if parts.len() > 1 && watcher.depth == Depth::Here && !self.has(Fault::WatchHereSeesBelow) {
            return None;
        }
        parts.reverse();
        watcher.path.below(&parts.join(&b'/')).ok()
    }
}

impl Watcher {
    /// False when nobody reads any more.
    fn send(&mut self, event: WatchEvent, late: bool) -> bool {
        if std::mem::take(&mut self.missed) {
            if late {
                return true;
            }
            self.missed = self.events.try_send(WatchEvent::Overflow).is_err();
        }
        self.missed |= self.events.try_send(event).is_err();
        !self.events.is_closed()
    }
}
