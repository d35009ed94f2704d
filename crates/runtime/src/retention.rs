//! What is over goes after a while: outputs, calls and tasks, the oldest days of ledgers, snapshots and templates that nobody
//! uses, layers that nothing needs, and files that no build came for.
//!
//! A pass looks at a few things at a time, asks the model which of them are due, and removes those, or only counts them. So what
//! a dry run says is what the next pass does. A kill in the middle leaves the rest to the next pass: what refers to something
//! goes after it, and a ledger is nobody's any more before its rows go.

mod bases;
mod rows;
mod uploads;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cabana_model::{
    KeyId, Tenant, Time,
    retention::{Kept, Kind},
};
use cabana_sandbox::SandboxSpec;
use cabana_store::{Entry, Store, Used, UsedKind};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Error, Result, Runtime,
    space::{Space, size},
};

/// Of each kind, for whoever wants to know what they are like.
const EXAMPLES: usize = 5;
/// Until the first pass: a server that starts has other things to do.
const SOON: Duration = Duration::from_secs(60);
/// Between two passes that somebody was refused before.
const AGAIN: Duration = Duration::from_secs(60);

/// What went, or would go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    pub dry_run: bool,
    pub kinds: Vec<Counted>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    pub kind: String,
    pub count: u64,
    pub bytes: u64,
    /// Some of them.
    pub examples: Vec<String>,
    /// How many stay.
    pub kept: u64,
    /// What those take, as far as that is known without measuring much.
    pub kept_bytes: u64,
}

impl Counted {
    fn add(&mut self, name: impl FnOnce() -> String, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        if self.examples.len() < EXAMPLES {
            self.examples.push(name());
        }
    }

    fn keep(&mut self, bytes: u64) {
        self.kept += 1;
        self.kept_bytes += bytes;
    }
}

/// Who keeps the house, for all passes together.
pub(crate) struct Keeper {
    pub(crate) space: Space,
    /// One pass at a time.
    turn: tokio::sync::Mutex<()>,
    passes: AtomicU64,
    gone: Mutex<BTreeMap<Kind, (u64, u64)>>,
    /// What was noted as used, and when.
    noted: Mutex<HashMap<(UsedKind, String), Time>>,
}

impl Keeper {
    pub(crate) fn new(space: Space) -> Self {
        Self {
            space,
            turn: Default::default(),
            passes: AtomicU64::new(0),
            gone: Mutex::default(),
            noted: Mutex::default(),
        }
    }

    pub(crate) fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// How many of each kind went, and what they took.
    pub(crate) fn gone(&self) -> BTreeMap<Kind, (u64, u64)> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, kind: Kind, counted: &Counted) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, bytes) = gone.entry(kind).or_default();
        *count += counted.count;
        *bytes += counted.bytes;
    }

    /// Before something is made from a base. Once an hour is often enough.
    pub(crate) async fn note_use(&self, store: &Store, spec: &SandboxSpec, now: Time) -> Result<()> {
        const OFTEN: SignedDuration = SignedDuration::from_hours(1);
        let Some((kind, name)) = bases::used_by(spec) else { return Ok(()) };
        let key = (kind, name.clone());
        let known = self.noted.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        if known.is_some_and(|known| now.duration_since(known).abs() < OFTEN) {
            return Ok(());
        }
        store.note_use(Used { kind, name, at: now }).await?;
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).insert(key, now);
        Ok(())
    }
}

impl Runtime {
    /// Keeps the house, until the runtime closes.
    pub fn retain(&self) {
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            let mut wait = SOON;
            while runtime.closing_after(wait).await {
                match runtime.collect(false).await {
                    Ok(collected) => {
                        let went: u64 = collected.kinds.iter().map(|kind| kind.count).sum();
                        if went > 0 {
                            let bytes: u64 = collected.kinds.iter().map(|kind| kind.bytes).sum();
                            tracing::info!(went, bytes, "what was kept long enough is gone");
                        }
                    }
                    Err(Error::Left) => return,
                    Err(error) => tracing::warn!(%error, "what was kept long enough could not all be removed"),
                }
                // Whoever is refused for want of room does not wait for the hour.
                let rest = runtime.0.settings.gc_interval.saturating_sub(AGAIN);
                let room = tokio::time::timeout(rest, runtime.0.keeper.space.noticed());
                if runtime.0.closing.run_until_cancelled(room).await.is_none() {
                    return;
                }
                wait = AGAIN.min(runtime.0.settings.gc_interval);
            }
        });
    }

    /// One pass. A dry one changes nothing, and says what the next one would do.
    pub async fn collect(&self, dry_run: bool) -> Result<Collected> {
        let _turn = self.0.keeper.turn.lock().await;
        let mut pass = Pass { runtime: self, now: self.0.clock.now(), dry_run, counts: BTreeMap::new() };
        for kind in Kind::ALL {
            pass.counts.insert(kind, Counted { kind: kind.as_str().to_owned(), ..Counted::default() });
        }
        pass.outputs().await?;
        pass.calls().await?;
        pass.ledgers().await?;
        pass.bases().await?;
        pass.blobs().await?;
        pass.uploads().await?;
        let collected = Collected { dry_run, kinds: pass.counts.values().cloned().collect() };
        if !dry_run {
            self.0.keeper.passes.fetch_add(1, Ordering::Relaxed);
            pass.counts.iter().for_each(|(kind, counted)| self.0.keeper.count(*kind, counted));
        }
        self.0.keeper.space.set_help(help(&collected));
        Ok(collected)
    }
}

/// What would free something, in words.
fn help(collected: &Collected) -> String {
    let due: Vec<String> = match collected.dry_run {
        true => {
            let due = collected.kinds.iter().filter(|kind| kind.count > 0);
            due.map(|kind| format!("{} of {} {}", size(kind.bytes), kind.count, kind.kind)).collect()
        }
        false => Vec::new(), // it is gone by now
    };
    let kept = collected.kinds.iter().filter(|kind| kind.kept > 0);
    let kept: Vec<String> = kept
        .map(|kind| match kind.kept_bytes {
            0 => format!("{} {}", kind.kept, kind.kind),
            bytes => format!("{} {} ({})", kind.kept, kind.kind, size(bytes)),
        })
        .collect();
    let mut help = String::new();
    if !due.is_empty() {
        help += &format!("; `cabana gc` would remove {}", due.join(", "));
    }
    if !kept.is_empty() {
        help += &format!("; there are {} to remove, or to keep for a shorter time", kept.join(", "));
    }
    help
}

struct Pass<'a> {
    runtime: &'a Runtime,
    now: Time,
    dry_run: bool,
    counts: BTreeMap<Kind, Counted>,
}

impl Pass<'_> {
    fn before(&self, kind: Kind) -> Option<Time> {
        self.runtime.0.settings.retention.before(kind, self.now)
    }

    fn is_due(&self, kind: Kind, kept: Kept) -> bool {
        self.runtime.0.settings.retention.is_due(kind, self.now, kept)
    }

    fn counted(&mut self, kind: Kind) -> &mut Counted {
        self.counts.entry(kind).or_default()
    }

    /// Between two parts of the work: the next server goes on with it.
    fn go_on(&self) -> Result<()> {
        if self.runtime.0.closing.is_cancelled() { Err(Error::Left) } else { Ok(()) }
    }

    /// A row of the ledger about what nobody asked for: its key is none.
    fn entry(&self, tenant: &Tenant, verb: &str, argv: Vec<String>) -> Entry {
        let entry = self.runtime.entry_of_none(tenant, KeyId::from(Uuid::nil()), verb, argv);
        Entry { at: self.now, ..entry }
    }
}
