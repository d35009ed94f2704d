//! Disk that a look at files and processes does not find.

use cabana_sandbox::{Limits, SandboxSpec, Status};

use crate::{
    attacks::{MOVING, NAMELESS, SHARED_TABLE, UNMAPPED},
    inside::{Inside, PATIENCE, passing, rest, until},
};

async fn is_found(way: &str) {
    // Without a limit nobody ends it.
    let free = Inside::new().await;
    let attack = free.start("user", &NAMELESS, &[way, "96"]).await;
    let size = "stat -L -c %s $(find /proc/[0-9]*/task/*/fd -lname '*nameless*' 2>/dev/null | head -1)";
    let all = (96 << 20).to_string();
    until("all of it is written", async || free.user(size).await.out.trim() == all).await;
    assert_eq!(free.sandbox.processes().await.unwrap().len(), 1, "it goes on");
    drop(attack);
    free.end().await;
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

#[tokio::test]
async fn removed_programs_that_map_nothing_of_their_files() {
    let (many, mib) = ("4", "20");
    let free = Inside::new().await;
    let _attack = free.start("user", &UNMAPPED, &[many, mib]).await;
    let hidden = "for p in /proc/[0-9]*; do readlink $p/exe | grep -q 'unmapped (deleted)' && ! grep -q deleted $p/maps && echo $p; done | wc -l";
    until("all of them are hidden", async || free.user(hidden).await.out.trim() == many).await;
    free.end().await;

    let limits = Limits { disk: Some(32 << 20), ..Limits::NONE };
    let inside = Inside::with(SandboxSpec { limits, ..passing() }).await;
    let attack = inside.start("user", &UNMAPPED, &[many, mib]).await;
    let (_, status) = tokio::time::timeout(PATIENCE, rest(attack)).await.expect("it is found and ended");
    assert_eq!(status, Status::DiskFull);
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn files_beside_directories_that_are_moved_all_the_time() {
    let free = Inside::new().await;
    let _attack = free.start("user", &MOVING, &["96"]).await;
    until("all is written", async || {
        free.user("ls /home/user/moving/7/*/moved/aside-95/file").await.status == Status::Code(0)
    })
    .await;
    free.end().await;

    let limits = Limits { disk: Some(32 << 20), ..Limits::NONE };
    let inside = Inside::with(SandboxSpec { limits, ..passing() }).await;
    let attack = inside.start("user", &MOVING, &["96"]).await;
    let (_, status) = tokio::time::timeout(PATIENCE, rest(attack)).await.expect("it is found and ended");
    assert_eq!(status, Status::DiskFull);
    inside.user("rm -rf /home/user/moving").await.ok();
    inside.still_works().await;
    inside.end().await;
}

/// A look at the disk of who makes it last: what is written meanwhile is not without bound.
#[tokio::test]
async fn a_look_that_descriptors_make_long() {
    const ASKED: u64 = 2048;
    let limits = Limits { disk: Some(64 << 20), ..Limits::NONE };
    let inside = Inside::with(SandboxSpec { limits, ..passing() }).await;
    let attack = inside.start("user", &SHARED_TABLE, &[&ASKED.to_string()]).await;
    let (said, status) = tokio::time::timeout(PATIENCE, rest(attack)).await.expect("it is found and ended");
    assert_eq!(status, Status::DiskFull, "{said}");
    let written = inside.user("stat -c %s /home/user/out").await.ok().trim().parse::<u64>().unwrap();
    assert!(written < (ASKED / 2) << 20, "{written}");
    inside.user("rm /home/user/out").await.ok();
    inside.end().await;
}
