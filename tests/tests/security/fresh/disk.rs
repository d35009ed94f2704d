//! Disk that a look at files and processes does not find.

use cabana_sandbox::{Limits, SandboxSpec, Status};

use crate::{
    attacks::NAMELESS,
    inside::{Inside, PATIENCE, passing, rest},
};

async fn is_found(way: &str) {
    let limits = Limits { disk: Some(32 << 20), ..Limits::NONE };
    let inside = Inside::with(SandboxSpec { limits, ..passing() }).await;
    let attack = inside.start("user", &NAMELESS, &[way, "96"]).await;
    let (_, status) = tokio::time::timeout(PATIENCE, rest(attack)).await.expect("it is found and ended");
    assert_eq!(status, Status::DiskFull);
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn a_removed_file_in_a_process() {
    is_found("plain").await;
}

#[tokio::test]
async fn a_removed_file_in_a_process_whose_first_thread_has_ended() {
    is_found("leader").await;
}

#[tokio::test]
async fn a_removed_file_in_a_thread_with_files_of_its_own() {
    is_found("table").await;
}
