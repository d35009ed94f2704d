//! What a request begins and has to come to its end, whether its client waits or not.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// Work in the place of the request that asks for it, so that it costs no task. A client that goes away drops it: what is left of it then
/// goes on as a task, if it has left something behind that only its own end settles.
pub(crate) struct Finishing<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    /// Gone with its end.
    work: Option<Pin<Box<F>>>,
    leaves: Leaves,
    tasks: TaskTracker,
}

/// Whether it leaves something behind. The work says so itself, before it does.
#[derive(Clone, Default)]
pub(crate) struct Leaves(Arc<AtomicBool>);

impl Leaves {
    pub(crate) fn mark(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<F> Finishing<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    pub(crate) fn new(tasks: &TaskTracker, work: impl FnOnce(Leaves) -> F) -> Self {
        let leaves = Leaves::default();
        Self { work: Some(Box::pin(work(leaves.clone()))), leaves, tasks: tasks.clone() }
    }
}

impl<F> Future for Finishing<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // Taken out meanwhile: one that panics is not gone on with.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<F> Drop for Finishing<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        // Without a runtime the process ends, and the next one settles it.
        if let (Some(work), true, Ok(runtime)) =
            (self.work.take(), self.leaves.0.load(Ordering::Relaxed), Handle::try_current())
        {
            self.tasks.spawn_on(work, &runtime);
        }
    }
}
