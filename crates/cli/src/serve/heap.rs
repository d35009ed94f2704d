//! What very many requests needed at once is given back to the machine after them.

use std::{convert::Infallible, num::NonZero, thread, time::Duration};

use cabana_engine::heap;
use tokio::{task::spawn_blocking, time::sleep};

/// Between two looks at how much is there.
const LOOK: Duration = Duration::from_secs(10);
/// What has grown by so much since it was least is worth it.
const MUCH: u64 = 48 << 20;

/// Before there are threads.
pub(super) fn limit() {
    heap::limit_arenas(thread::available_parallelism().map_or(2, NonZero::get).max(2));
}

pub(super) async fn keep_small() -> Infallible {
    let mut least = u64::MAX;
    loop {
        sleep(LOOK).await;
        let now = heap::resident().unwrap_or(0);
        least = least.min(now);
        if now - least > MUCH {
            let _ = spawn_blocking(heap::trim).await;
            least = heap::resident().unwrap_or(now);
        }
    }
}
