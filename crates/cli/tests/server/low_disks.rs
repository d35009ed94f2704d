//! A disk of all that is nearly full: who takes much of what is left is ended, by whatever way it takes it, and a neighbour goes on.
//!
//! Each disk is one of the test's own, in a mount namespace of its own.

use std::{path::Path, process::Command};

use reqwest::Response;
use serde_json::{Value, json};

use crate::{
    events::Listener,
    stage::{self, Server, client, good, refused, until},
};

const MIB: u64 = 1 << 20;

fn alone(test: &str) -> bool {
    stage::alone(&format!("low_disks::{test}"))
}

/// Of which some 80 MiB are kept free.
fn on_a_large_disk() -> Server {
    Server::start_after(|data| {
        let script = "truncate -s 4G \"$0.disk\"; mkfs.ext4 -q -F -m 0 \"$0.disk\"; mount -o loop \"$0.disk\" \"$0\"; rm \"$0.disk\"";
        assert!(Command::new("sh").args(["-ec", script]).arg(data).status().unwrap().success());
    })
}

fn free(disk: &Path) -> u64 {
    let stat = rustix::fs::statvfs(disk).unwrap();
    stat.f_bavail * stat.f_frsize
}

async fn post(server: &Server, key: &str, path: &str, body: &Value) -> Response {
    client().post(format!("{}{path}", server.url)).bearer_auth(key).json(body).send().await.unwrap()
}

async fn get(server: &Server, key: &str, path: &str) -> Value {
    good(client().get(format!("{}{path}", server.url)).bearer_auth(key).send().await.unwrap()).await
}

async fn make(server: &Server, key: &str, spec: &Value) -> String {
    good(post(server, key, "/v1/sandboxes", spec).await).await["id"].as_str().unwrap().to_owned()
}

async fn exec(server: &Server, key: &str, sandbox: &str, command: &str) -> Response {
    post(server, key, &format!("/v1/sandboxes/{sandbox}/exec"), &json!({ "command": command })).await
}

/// A command in the background that writes very little.
async fn beats(server: &Server, key: &str, sandbox: &str) -> String {
    let beats = json!({ "command": "while :; do echo beat >> beats; sleep 0.05; done", "background": true });
    let begun = good(post(server, key, &format!("/v1/sandboxes/{sandbox}/exec"), &beats).await).await;
    begun["id"].as_str().unwrap().to_owned()
}

/// Of a large disk so much is left, and it is low soon.
fn leave(disk: &Path, bytes: u64) {
    let file = std::fs::File::create(disk.join("filler")).unwrap();
    let taken = free(disk) - bytes;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, taken).unwrap();
}

/// Through a volume, and by a sandbox without a limit of its own.
#[tokio::test]
async fn on_a_nearly_full_disk_who_takes_much_of_the_rest_is_ended_and_a_neighbour_goes_on() {
    if !alone("on_a_nearly_full_disk_who_takes_much_of_the_rest_is_ended_and_a_neighbour_goes_on") {
        return;
    }
    const WRITES: &str = "cd /workspace; while :; do head -c 262144 /dev/zero >> large; sleep 0.01; done";
    let server = on_a_large_disk();
    let (neighbour, by_volume, by_layer) = (
        server.key_for("neighbour", "use").await,
        server.key_for("volume", "use").await,
        server.key_for("layer", "use").await,
    );
    let post = async |key: &str, path: &str, body: &Value| post(&server, key, path, body).await;
    let make = async |key: &str, spec: Value| make(&server, key, &spec).await;
    good(post(&by_volume, "/v1/volumes", &json!({ "name": "v" })).await).await;
    let volume = make(&by_volume, json!({ "mount": { "volume": "v" } })).await;
    let (layer, modest) = (make(&by_layer, json!({})).await, make(&neighbour, json!({})).await);
    leave(server.data(), 100 * MIB);
    let task = beats(&server, &neighbour, &modest).await;
    for (key, sandbox) in [(&by_volume, &volume), (&by_layer, &layer)] {
        let exec = format!("/v1/sandboxes/{sandbox}/exec");
        let mut listener = Listener::at(&server, key, "").await;
        let ended = good(post(key, &exec, &json!({ "command": WRITES })).await).await;
        assert_eq!(ended["status"], "disk_full", "{ended}");
        let told = listener.until("sandbox.disk_full").await.pop().unwrap();
        assert!(told["reason"].as_str().unwrap().contains("nearly full"), "{told}");
        assert_eq!(refused(post(key, &exec, &json!({ "command": WRITES })).await).await, (507, "no_space".into()));
        assert!(free(server.data()) > 40 * MIB, "half of what is kept free is left");
    }
    // Who has deleted enough runs commands again, though the disk is no less full for all others.
    for (key, sandbox) in [(&by_volume, &volume), (&by_layer, &layer)] {
        let large = format!("{}/v1/sandboxes/{sandbox}/files?path=/workspace/large", server.url);
        assert!(client().delete(large).bearer_auth(key).send().await.unwrap().status().is_success());
        let exec = format!("/v1/sandboxes/{sandbox}/exec");
        until(|| async { post(key, &exec, &json!({ "command": "true" })).await.status().is_success().then_some(()) })
            .await;
    }
    assert_eq!(
        get(&server, &neighbour, &format!("/v1/tasks/{task}")).await["state"],
        "running",
        "who writes little goes on"
    );
    drop(server); // before its disk
}

/// No sandbox and no volume of it takes an eighth of what is left: all together do.
#[tokio::test]
async fn what_a_tenant_takes_in_volumes_shared_ones_and_forks_counts_together_and_a_neighbour_with_the_same_goes_on() {
    if !alone(
        "what_a_tenant_takes_in_volumes_shared_ones_and_forks_counts_together_and_a_neighbour_with_the_same_goes_on",
    ) {
        return;
    }
    let server = on_a_large_disk();
    let (taker, neighbour) = (server.key_for("taker", "use").await, server.key_for("neighbour", "use").await);
    let sandboxes = async |key: &str| {
        for volume in ["own", "shared"] {
            good(post(&server, key, "/v1/volumes", &json!({ "name": volume })).await).await;
        }
        let shared = json!({ "mount": { "volume": "shared" } });
        let both = json!({
            "mount": { "volume": "own" },
            "extra_mounts": [{ "volume": "shared", "mount_path": "/shared", "mode": "rw" }]
        });
        let plain = make(&server, key, &json!({})).await;
        good(exec(&server, key, &plain, "echo base > base").await).await;
        let take = client().post(format!("{}/v1/sandboxes/{plain}/snapshots", server.url)).bearer_auth(key);
        let fork = json!({ "snapshot": good(take.send().await.unwrap()).await["id"] });
        let mut all = Vec::new();
        for spec in [&both, &shared, &shared, &fork] {
            all.push(make(&server, key, spec).await);
        }
        all
    };
    let (takers, neighbours) = (sandboxes(&taker).await, sandboxes(&neighbour).await);
    let mut modest = Vec::new();
    for sandbox in &neighbours {
        modest.push(beats(&server, &neighbour, sandbox).await);
    }
    let mut listener = Listener::at(&server, &taker, "").await;
    let writers = takers.iter().enumerate().map(|(number, sandbox)| {
        let write = |path: &str| format!("head -c 131072 /dev/zero >> {path}{number};");
        // The first of them fills both of its volumes.
        let more = if number == 0 { write("/shared/more") } else { String::new() };
        let command = format!("while :; do {} {more} sleep 0.05; done", write("/workspace/large"));
        let (server, taker) = (&server, &taker);
        async move { good(exec(server, taker, sandbox, &command).await).await }
    });
    let fill = async {
        // Once all of them write.
        for (number, sandbox) in takers.iter().enumerate() {
            let at = format!("{}/v1/sandboxes/{sandbox}/files/stat?path=/workspace/large{number}", server.url);
            until(|| async {
                let stat = client().get(&at).bearer_auth(&taker).send().await.unwrap();
                stat.status().is_success().then_some(())
            })
            .await;
        }
        leave(server.data(), 100 * MIB);
    };
    let (ended, ()) = tokio::join!(futures_util::future::join_all(writers), fill);
    assert!(ended.iter().all(|ended| ended["status"] == "disk_full"), "{ended:?}");
    let told = listener.until("sandbox.disk_full").await.pop().unwrap();
    assert!(told["reason"].as_str().unwrap().contains("nearly full"), "{told}");
    assert!(free(server.data()) > 40 * MIB, "half of what is kept free is left");
    assert_eq!(refused(exec(&server, &taker, &takers[0], "true").await).await, (507, "no_space".into()));
    for task in &modest {
        let state = get(&server, &neighbour, &format!("/v1/tasks/{task}")).await["state"].clone();
        assert_eq!(state, "running", "who writes little goes on");
    }
    good(exec(&server, &neighbour, &neighbours[0], "true").await).await;
    drop(server); // before its disk
}

/// Each of them ends before anybody has looked at it, and none takes an eighth of what is left.
#[tokio::test]
async fn what_sandboxes_write_as_soon_as_they_wake_on_a_low_disk_counts_to_their_tenant() {
    if !alone("what_sandboxes_write_as_soon_as_they_wake_on_a_low_disk_counts_to_their_tenant") {
        return;
    }
    let server = on_a_large_disk();
    let (taker, neighbour) = (server.key_for("taker", "use").await, server.key_for("neighbour", "use").await);
    let stopped = async |key: &str| {
        let mut all = Vec::new();
        for _ in 0..8 {
            let sandbox = make(&server, key, &json!({})).await;
            good(exec(&server, key, &sandbox, "true").await).await;
            good(post(&server, key, &format!("/v1/sandboxes/{sandbox}/stop"), &json!({})).await).await;
            all.push(sandbox);
        }
        all
    };
    let (takers, neighbours) = (stopped(&taker).await, stopped(&neighbour).await);
    leave(server.data(), 60 * MIB);
    let wake_all = async |key: &str, sandboxes: &[String], bytes: u64| {
        for sandbox in sandboxes {
            let answer = exec(&server, key, sandbox, &format!("head -c {bytes} /dev/zero > first")).await;
            if !answer.status().is_success() {
                assert_eq!(refused(answer).await, (507, "no_space".into()));
                return true;
            }
            good(post(&server, key, &format!("/v1/sandboxes/{sandbox}/stop"), &json!({})).await).await;
        }
        false
    };
    assert!(!wake_all(&neighbour, &neighbours, 4096).await, "who writes little wakes as it likes");
    if !wake_all(&taker, &takers, 3 << 20).await {
        let again = || exec(&server, &taker, &takers[0], "true");
        let told = until(|| async { Some(again().await).filter(|answer| !answer.status().is_success()) }).await;
        assert_eq!(refused(told).await, (507, "no_space".into()), "all together took more than an eighth");
    }
    assert!(!wake_all(&neighbour, &neighbours, 4096).await, "nobody else is concerned");
    drop(server); // before its disk
}
