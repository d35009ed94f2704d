//! Work on what a sandbox was asked to be: off the workers that everybody waits for, where that is long.

use std::sync::LazyLock;

use super::slot::PARSED_AT_ONCE;
use crate::{Result, Tenant, Turns};

/// Of those who copy and write long ones.
static WRITERS: LazyLock<Turns> = LazyLock::new(|| Turns::new(1, 2));

/// `length`: as JSON.
pub(super) async fn off_if_long<T: Send + 'static>(
    tenant: &Tenant,
    length: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if length <= PARSED_AT_ONCE {
        return Ok(work());
    }
    let turn = WRITERS.take(Some(tenant)).await;
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    done.await.map_err(|error| cabana_sandbox::Error::failed("writing a spec", error).into())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn long_specs_are_written_off_the_workers() {
        let tenant = Tenant::new("one").unwrap();
        let thread_of = async |length| off_if_long(&tenant, length, || thread::current().id()).await.unwrap();
        assert_eq!(thread_of(PARSED_AT_ONCE).await, thread::current().id());
        assert_ne!(thread_of(PARSED_AT_ONCE + 1).await, thread::current().id());
    }
}
