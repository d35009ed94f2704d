//! What waits in connections of sandboxes with themselves, where control groups count it apart from memory (version 1).
//!
//! Their limit is soft: each connection may have a packet each way beyond it, which is 64 KiB, and very many connections have very much
//! then. So the commands of the largest end for that, too.

use tokio::time::sleep;

use super::{
    Uncharged,
    choice::{Suspect, choose},
    end,
    level::{LATEST, pace},
};
use crate::{cgroup::Controllers, places::tcp_memory};

/// This part of what TCP may hold on the whole machine is too much for all sandboxes: twice the limit of all of them.
const TOO_MUCH: u64 = 2;

/// Until it is dropped.
pub(super) async fn watch(sandboxes: &Uncharged, controllers: &Controllers) {
    let (Some(of_all), Some(machine)) = (controllers.queue_meter(), tcp_memory()) else { return };
    let most = machine as u64 / TOO_MUCH;
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    loop {
        sandboxes.until_busy().await;
        let now = of_all.read();
        if now > most {
            let busy = sandboxes.busy().await;
            let suspects = busy.iter().filter_map(|(one, _)| {
                let bytes = one.queues.as_ref()?.read();
                Some(Suspect { id: one.live.id.clone(), tenant: one.tenant().clone(), bytes })
            });
            // A good deal less than too much is to be left, or the next packet ends somebody else's.
            let ends = choose(most / 2, now, suspects.collect());
            end(sandboxes, &ends);
            sleep(LATEST / 20).await; // they go on for a moment
            continue;
        }
        sleep(pace(most - now, processors)).await;
    }
}
