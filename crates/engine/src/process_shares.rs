//! Divides processes and threads among tenants: one that takes all it can get leaves some to others.
//!
//! The kernel holds all sandboxes together to a number of them. Forking is fast, and nobody ends for having forked: a tenant that had all of
//! them would keep others from running a command for as long as it likes. So while more than little is taken, each sandbox may have what
//! it has and a part of what is left to its tenant, which is set anew before that is used up. What is left to a tenant is decided as for all
//! else that sandboxes share (see [`cabana_sandbox::Places`]).

mod division;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use tokio::{sync::Notify, task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;

use self::division::{Count, Sum, divide, growth_before_next_look, has_commands};
use crate::{
    cgroup::{Controllers, Processes},
    live::Live,
};

/// As many as one processor may be expected to start in a second (half of that was seen), and how many processors at once: they share locks.
const FASTEST: u64 = 100_000;
const MAX_PROCESSORS: u64 = 8;

const SOONEST: Duration = Duration::from_millis(10);
const LATEST: Duration = Duration::from_secs(1);
/// While shares hold, some may have become free for others.
const LATEST_WITH_SHARES: Duration = Duration::from_millis(250);

/// The sandboxes of one engine.
#[derive(Default)]
pub(crate) struct ProcessShares {
    members: Mutex<Members>,
    /// A command has begun.
    woken: Notify,
    closed: CancellationToken,
}

#[derive(Default)]
struct Members {
    all: Vec<Member>,
    /// Of all times, as for other things that tenants share.
    first_tenant: Option<Arc<str>>,
    has_several_tenants: bool,
}

#[derive(Clone)]
struct Member {
    tenant: Arc<str>,
    /// Gone with its sandbox.
    processes: Weak<Processes>,
}

impl ProcessShares {
    pub(crate) fn add(&self, live: &Live) {
        let Some(processes) = live.with_lease(|lease| Arc::downgrade(lease.limiter.processes())) else { return };
        self.add_member(live.holder.tenant_name().clone(), processes);
        self.wake(); // it may run already
    }

    fn add_member(&self, tenant: Arc<str>, processes: Weak<Processes>) {
        let mut members = self.members();
        members.all.retain(|member| member.processes.strong_count() > 0);
        let is_another = *members.first_tenant.get_or_insert_with(|| tenant.clone()) != tenant;
        members.has_several_tenants |= is_another;
        members.all.push(Member { tenant, processes });
    }

    pub(crate) fn wake(&self) {
        self.woken.notify_one();
    }

    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what each may have. `None`: no command runs in any of them, and each has its own limit.
    fn look(&self, sum: Sum) -> Option<Look> {
        let (members, has_several_tenants) = {
            let members = self.members();
            (members.all.clone(), members.has_several_tenants)
        };
        let living: Vec<_> =
            members.into_iter().filter_map(|member| Some((member.tenant, member.processes.upgrade()?))).collect();
        let is_busy = living.iter().any(|(_, processes)| processes.count().is_none_or(has_commands));
        if !is_busy || sum.is_little() {
            living.iter().for_each(|(_, processes)| drop(processes.set_share(None)));
            let look = Look { next_at: sum.taken.saturating_add(sum.growth_until_much()), latest: LATEST };
            return is_busy.then_some(look);
        }
        // One that cannot be counted now keeps what it may have.
        let counted = living.into_iter().filter_map(|(tenant, processes)| {
            let now = processes.count()?;
            Some((Count { tenant, now }, processes))
        });
        let (counts, processes): (Vec<_>, Vec<_>) = counted.unzip();
        let shares = divide(sum, has_several_tenants, &counts);
        for (processes, share) in processes.iter().zip(&shares) {
            // Where it cannot be written, the sandbox has just ended.
            let _ = processes.set_share(Some(u32::try_from(*share).unwrap_or(u32::MAX)));
        }
        let growth = growth_before_next_look(&counts, &shares);
        Some(Look { next_at: sum.taken.saturating_add(growth), latest: LATEST_WITH_SHARES })
    }
}

/// What a look came to: when the next is due.
struct Look {
    /// As soon as so many are taken in all.
    next_at: u64,
    latest: Duration,
}

/// Until the engine closes. It does nothing while no command runs.
pub(crate) async fn watch(shares: Arc<ProcessShares>, controllers: Controllers) {
    let closed = shares.closed.clone();
    let _ = closed.run_until_cancelled(watch_all(&shares, &controllers)).await;
}

async fn watch_all(shares: &Arc<ProcessShares>, controllers: &Controllers) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let sum = || controllers.processes().map(|(taken, most)| Sum { taken, most });
    if sum().is_none() {
        return; // nobody counts them, or nothing bounds them
    }
    loop {
        let Some(now) = sum() else {
            sleep(LATEST_WITH_SHARES).await; // no descriptor is left to read it
            continue;
        };
        let begun = Instant::now();
        let looked = spawn_blocking({
            let shares = shares.clone();
            move || shares.look(now)
        });
        let Some(Look { next_at, latest }) = looked.await.unwrap_or_default() else {
            shares.woken.notified().await;
            continue;
        };
        // One number says whether it is worth to look at each. This takes half of the time at most.
        let (mut taken, mut pause) = (now.taken, begun.elapsed());
        loop {
            sleep(pause.max(pace(next_at.saturating_sub(taken), processors)).min(latest)).await;
            (taken, pause) = (sum().map_or(next_at, |sum| sum.taken), Duration::ZERO);
            if taken >= next_at || begun.elapsed() >= latest {
                break;
            }
        }
    }
}

/// How long it takes until so many more are there.
fn pace(growth: u64, processors: u64) -> Duration {
    let fastest = FASTEST * processors.min(MAX_PROCESSORS);
    Duration::from_secs_f64(growth as f64 / fastest as f64).clamp(SOONEST, LATEST)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// A sandbox with so many, in a directory that is no group.
    fn sandbox(shares: &ProcessShares, tenant: &str, dir: &Path, now: u64) -> Arc<Processes> {
        fs::write(dir.join("pids.current"), now.to_string()).unwrap();
        let processes = Arc::new(Processes::at(dir));
        shares.add_member(tenant.into(), Arc::downgrade(&processes));
        processes
    }

    #[test]
    fn shares_hold_while_much_is_taken_and_go_with_the_need() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [greedy, modest] = dirs.each_ref().map(tempfile::TempDir::path);
        let shares = ProcessShares::default();
        let held = [sandbox(&shares, "greedy", greedy, 601), sandbox(&shares, "modest", modest, 1)];
        let most = |dir: &Path| fs::read_to_string(dir.join("pids.max")).unwrap_or_default();
        assert_eq!(shares.look(Sum { taken: 602, most: 1000 }).unwrap().latest, LATEST_WITH_SHARES);
        assert_eq!(most(greedy), "601");
        assert!(most(modest).parse::<u64>().unwrap() > 100, "{}", most(modest));
        fs::write(greedy.join("pids.current"), "101").unwrap();
        assert_eq!(shares.look(Sum { taken: 102, most: 1000 }).unwrap().next_at, 250);
        assert_eq!((most(greedy), most(modest)), ("max".into(), "max".into()));
        fs::write(greedy.join("pids.current"), "1").unwrap();
        assert!(shares.look(Sum { taken: 900, most: 1000 }).is_none(), "others have them, and nothing runs here");
        fs::write(greedy.join("pids.current"), "801").unwrap();
        drop(held);
        shares.look(Sum { taken: 900, most: 1000 });
        assert_eq!(most(greedy), "max", "it is over");
    }

    #[test]
    fn what_is_soon_used_up_is_looked_at_soon() {
        assert_eq!(pace(0, 2), SOONEST);
        assert_eq!(pace(20_000, 2), Duration::from_millis(100));
        assert_eq!(pace(80_000, 64), Duration::from_millis(100));
        assert_eq!(pace(u64::MAX, 1), LATEST);
    }
}
