//! What the server holds for commands: descriptors of pipes. A guest decides how many commands there are.

use std::fs;

use crate::inside::{Inside, until};

/// Of this process, which is the server here.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test]
async fn ended_commands_with_open_pipes_take_a_bounded_number_of_descriptors() {
    let inside = Inside::new().await;
    let oldest = "(trap '' PIPE; while echo alive; do sleep 0.05; done; touch /tmp/closed) 2>/dev/null & exit 0";
    inside.user(oldest).await.ok();
    let before = descriptors();
    let leave_behind = async |count: usize| {
        for _ in 0..count {
            inside.user("sleep 1000 & exit 0").await.ok();
        }
    };
    leave_behind(20).await;
    let few = descriptors() - before;
    assert!(few >= 40, "the control: each leaves two pipes behind, and there are {few} descriptors more");
    inside.user("! test -e /tmp/closed").await.ok();
    leave_behind(80).await;
    // One for each output that is still remembered, and 128 pipes.
    until("pipes are closed", || descriptors() - before <= 240).await;
    // That was the oldest; the newest is as it was.
    inside.user("until test -e /tmp/closed; do sleep 0.05; done").await.ok();
    let newest =
        "(trap '' PIPE; while echo alive; do echo >> /tmp/alive; sleep 0.05; done; touch /tmp/closed-too) & exit 0";
    inside.user(newest).await.ok();
    inside.user("until test $(wc -l < /tmp/alive) -gt 5; do sleep 0.05; done; ! test -e /tmp/closed-too").await.ok();
    inside.end().await;
}
