//! Very many sandboxes that are stopped: what a server that has them costs, and how quickly they wake.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use cabana_model::{Hooked, Life, Operation, Phase, SandboxId, SandboxState, Scope, Tenant, Then, Time};
use cabana_store::{By, Claim, Claimed, Durability, Moved, Record, Store, Transition};
use tokio::task::spawn_blocking;

use crate::{
    http::Served,
    rhythm::{Rhythm, nanoseconds},
};

pub(crate) const FEW: usize = 100;
pub(crate) const MANY: usize = 100_000;
/// Far longer than a server looks around after its start.
const LOOK_AROUND: Duration = Duration::from_secs(5);
/// As many wake at once.
pub(crate) const AT_ONCE: usize = 500;

/// A server with so many, and what it took to start.
pub(crate) struct Sleepers {
    served: Served,
    pub(crate) start: f64,
    /// Of its processor time, in percent of one, while it looks after them every second.
    pub(crate) reaping: f64,
    /// What one that has written nothing takes on the disk, in KiB: its home, and its part of the database.
    pub(crate) kib_each: f64,
    names: usize,
}

impl Sleepers {
    /// Some are made by a server, and the rest are like them.
    pub(crate) async fn lie_down(data: PathBuf, many: usize) -> Result<Self> {
        let first = served(&data).await?;
        let mut client = first.client().await?;
        for n in 0..FEW {
            let id = client.ensure(&name(n)).await?;
            client.ask(&format!("POST /v1/sandboxes/{id}/stop"), "").await?;
        }
        drop(client);
        first.end()?;
        let mut kib_each = f64::NAN;
        if many > FEW {
            let before = disk_of(&data.join("db"))?;
            let home = copies(&data, many).await?;
            let rows = disk_of(&data.join("db"))?.saturating_sub(before) as f64 / (many - FEW) as f64;
            kib_each = (home as f64 + rows) / 1024.0;
        }
        let begun = Instant::now();
        let served = served(&data).await?;
        let start = nanoseconds(begun);
        // After its start it looks once, in the background, whether something runs that outlived the server before it.
        tokio::time::sleep(LOOK_AROUND).await;
        let before = served.processor_time()?;
        let window = Duration::from_secs(10);
        tokio::time::sleep(window).await;
        let spent = served.processor_time()?.saturating_sub(before);
        let reaping = 100.0 * spent.as_secs_f64() / window.as_secs_f64();
        Ok(Self { served, start, reaping, kib_each, names: many })
    }

    /// To ensure one that rests, and that nobody has asked for in a while.
    pub(crate) async fn ensure(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        let mut client = self.served.client().await?;
        let mut turns = rhythm.turns();
        let mut n = 0;
        while turns.next().await {
            // A large prime visits them in no order.
            n = (n + 7919) % self.names;
            let start = Instant::now();
            let id = client.ensure(&name(n)).await?;
            turns.tell(nanoseconds(start));
            client.ask(&format!("POST /v1/sandboxes/{id}/stop"), "").await?;
        }
        Ok(turns.told())
    }

    pub(crate) async fn list(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        let mut client = self.served.client().await?;
        let mut turns = rhythm.turns();
        while turns.next().await {
            let start = Instant::now();
            client.ask("GET /v1/sandboxes?limit=100", "").await?;
            turns.tell(nanoseconds(start));
        }
        Ok(turns.told())
    }

    /// So many, each by a client of its own, at the same moment: how long each takes to answer.
    pub(crate) async fn wake_many(&self) -> Result<Vec<f64>> {
        let mut clients = Vec::with_capacity(AT_ONCE);
        for n in 0..AT_ONCE {
            clients.push((self.served.client().await?, name(n % self.names)));
        }
        let start = Instant::now();
        let woken = clients.iter_mut().map(|(client, name)| async move {
            client.exec(name).await?;
            anyhow::Ok(nanoseconds(start))
        });
        futures_util::future::try_join_all(woken).await
    }
}

fn name(n: usize) -> String {
    format!("sleeper-{n}")
}

async fn served(data: &Path) -> Result<Served> {
    let data = data.to_owned();
    spawn_blocking(move || Served::start_with(&data, &["--reap-interval", "1s"])).await?
}

/// Records and homes as those that are there. What a home takes on the disk.
async fn copies(data: &Path, many: usize) -> Result<u64> {
    let owned = data.to_owned();
    let store = spawn_blocking(move || Store::open(&owned, Durability::Kill)).await??;
    let tenant = Tenant::default();
    let like = store.by_scope(&tenant, &Scope::fixed(&name(0))?).await?.context("there is no sleeper")?;
    let homes = data.join("sandboxes");
    for n in FEW..many {
        let physical = SandboxId::random();
        let claim = Claim {
            tenant: tenant.clone(),
            scope: Some(Scope::fixed(&name(n))?),
            id: physical.clone(),
            physical: physical.clone(),
            spec: like.spec.to_string(),
            key: like.key.context("nobody made the sleeper")?,
            user: None,
            disk: None,
            at: Time::now(),
        };
        let Claimed::Made(record) = store.claim(claim).await? else { continue };
        laid_down(&store, record).await?;
        copy_home(&homes.join(like.physical.as_str()), &homes.join(physical.as_str()))?;
    }
    store.close().await;
    disk_of(&homes.join(like.physical.as_str()))
}

/// Through all the states that lead there.
async fn laid_down(store: &Store, mut record: Record) -> Result<()> {
    while record.state != SandboxState::Stopped {
        let life = record.life();
        let to = match life.done(Hooked::default()) {
            Some(Then::Becomes(next)) => Some(next),
            _ => life.begin(Operation::Stop, Hooked::default()),
        };
        let to: Life = to.context("a state leads nowhere")?;
        let at = Time::now();
        let by = if to.phase == Some(Phase::Stop) { By::Somebody(None) } else { By::Itself };
        let (physical, version) = (record.physical.clone(), record.version);
        let step = Transition { physical, version, to, why: "for the bench".into(), at, active: at, due: None, by };
        let Moved::To(next) = store.transition(step).await? else { anyhow::bail!("a record is somebody else's") };
        record = *next;
    }
    Ok(())
}

fn copy_home(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_home(&entry.path(), &to)?,
            false => drop(fs::copy(entry.path(), to)?),
        }
    }
    Ok(())
}

/// What it takes on the disk, in bytes.
fn disk_of(path: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::symlink_metadata(path)?;
    let mut sum = meta.blocks() * 512;
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            sum += disk_of(&entry?.path())?;
        }
    }
    Ok(sum)
}
