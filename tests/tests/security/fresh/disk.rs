//! Disk that a look at files and processes does not find.

use cabana_sandbox::{Code, Limits, Provider, SandboxSpec, Source, Status, View, VolumeId};

use crate::{
    attacks::{MOVING, NAMELESS, SHARED_TABLE, UNMAPPED},
    inside::{Inside, PATIENCE, engine, passing, path, rest, until},
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

/// What was known of it before counts then: a size that is too small would make room in a quota.
#[tokio::test]
async fn a_volume_in_which_directories_are_moved_all_the_time_has_no_size_that_is_too_small() {
    let (engine, volume) = (engine().await, VolumeId::now());
    engine.make_volume(volume).await.unwrap();
    let view = View { source: Source::Volume(volume), at: path("/home/user"), writable: true };
    let inside = Inside::of(engine, &SandboxSpec { views: vec![view], ..passing() }).await;
    let _attack = inside.start("user", &MOVING, &["96"]).await;
    until("all is written", async || {
        inside.user("ls /home/user/moving/7/*/moved/aside-95/file").await.status == Status::Code(0)
    })
    .await;
    let mut is_refused = false;
    for _ in 0..8 {
        match inside.engine.volume_usage(volume).await {
            Ok(bytes) => assert!(bytes >= 96 << 20, "{bytes}"),
            Err(error) => {
                assert_eq!(error.code(), Code::TimedOut, "{error}");
                is_refused = true;
            }
        }
    }
    assert!(is_refused, "it is moved faster than it is measured");
    let engine = inside.engine.clone();
    engine.destroy(inside.sandbox.id()).await.unwrap();
    assert!(engine.volume_usage(volume).await.unwrap() >= 96 << 20);
    engine.remove_volume(volume).await.unwrap();
    engine.close().await;
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
