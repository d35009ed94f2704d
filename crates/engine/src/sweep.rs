//! Removing what processes that died have left in the data directory.

use std::{sync::mpsc, thread, time::Duration};

/// What is little is gone before anything else happens.
const WAITED_FOR: Duration = Duration::from_secs(1);

/// A guest decides how much there is, so after a moment the removing goes on beside whatever comes next. What is not done when this
/// process ends is left to the next one.
pub(crate) fn beside(remove: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel::<()>();
    thread::spawn(move || {
        let _done = done;
        remove();
    });
    let _ = is_done.recv_timeout(WAITED_FOR); // dropped is done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_not_waited_for() {
        let (go_on, waits) = mpsc::channel::<()>();
        let (done, is_done) = mpsc::channel();
        beside(move || {
            let _ = waits.recv();
            done.send(()).unwrap();
        });
        assert!(is_done.try_recv().is_err());
        drop(go_on);
        is_done.recv().unwrap();
    }
}
