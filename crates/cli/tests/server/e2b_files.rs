//! Files by E2B's agent: whose they are, what is attached to them, and what the kernel makes up.

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    sdk::Sdk,
    stage::{good, until},
};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Its number inside, as one reads it who never heard of ours.
async fn boot_id(sdk: &Sdk) -> String {
    let answer = sdk.read(BOOT_ID).await;
    assert_eq!(answer.status(), 200);
    let id = answer.text().await.unwrap();
    assert_eq!(id.trim().len(), 36, "{id}");
    assert_eq!(sdk.run(&format!("cat {BOOT_ID}")).await.0, id, "commands see the same");
    id
}

async fn told(sdk: &Sdk, verb: &str, body: Value) -> Response {
    let path = format!("/sandboxes/{}/{verb}", sdk.sandbox);
    sdk.control(Method::POST, &path).json(&body).send().await.unwrap()
}

#[tokio::test]
async fn each_start_has_a_boot_id_of_its_own() {
    let sdk = Sdk::start().await;
    let first = boot_id(&sdk).await;
    let of_host = std::fs::read_to_string(BOOT_ID).unwrap();
    assert_ne!(first, of_host);
    let (said, _) = sdk.run(&format!("echo x > {BOOT_ID}; sudo -n umount {BOOT_ID}; rm -f {BOOT_ID}")).await;
    assert_eq!(boot_id(&sdk).await, first, "it cannot be changed: {said}");
    assert_eq!(sdk.run("ls -A /dev/shm").await.0, "", "it takes no name from anybody");
    assert_eq!(told(&sdk, "pause", json!({})).await.status(), 204);
    assert_eq!(told(&sdk, "connect", json!({ "timeout": 300 })).await.status(), 201);
    assert_eq!(boot_id(&sdk).await, first, "what was kept in memory was not started anew");
    sdk.write("kept.txt", "kept").await;
    assert_eq!(told(&sdk, "pause", json!({ "memory": false })).await.status(), 204);
    assert_eq!(told(&sdk, "connect", json!({ "timeout": 300 })).await.status(), 201);
    let second = boot_id(&sdk).await;
    assert_ne!(second, first);
    assert_ne!(second, of_host);
    assert_eq!(sdk.read("kept.txt").await.text().await.unwrap(), "kept");
}

#[tokio::test]
async fn the_agent_is_root_and_gives_what_it_makes_to_the_user() {
    let sdk = Sdk::start().await;
    let root = async |method, path: &str| sdk.ask(method, path).basic_auth("root", Some(""));
    let secret =
        root(Method::POST, "/files?path=/root/secret").await.header("content-type", "application/octet-stream");
    good(secret.body("of root").send().await.unwrap()).await;
    sdk.run("true").await;
    assert_eq!(sdk.read("/root/secret").await.text().await.unwrap(), "of root", "also for the ordinary user");
    let listed = sdk.call("/filesystem.Filesystem/ListDir", json!({ "path": "/root" })).await;
    let secret = listed["entries"].as_array().unwrap().iter().find(|entry| entry["name"] == "secret").unwrap();
    assert_eq!(secret["owner"], "root");
    good(sdk.write("/etc/deep/er/mine.conf", "mine").await).await;
    let (said, _) = sdk.run("stat -c %U:%G /etc/deep /etc/deep/er /etc/deep/er/mine.conf").await;
    assert_eq!(said, "user:user\nuser:user\nuser:user\n");
    good(sdk.write("/root/secret", "taken over").await).await;
    let entry = sdk.call("/filesystem.Filesystem/Stat", json!({ "path": "/root/secret" })).await["entry"].clone();
    assert_eq!(entry["owner"], "user", "what is written belongs to whoever wrote it");
    let made = sdk.call("/filesystem.Filesystem/MakeDir", json!({ "path": "/opt/new/dir" })).await;
    assert_eq!(made["entry"]["owner"], "user");
    let moved = json!({ "source": "/root/secret", "destination": "/srv/moved" });
    sdk.call("/filesystem.Filesystem/Move", moved).await;
    sdk.call("/filesystem.Filesystem/Remove", json!({ "path": "/srv/moved" })).await;
    assert_eq!(sdk.read("/srv/moved").await.status(), 404);
    // What is not the sandbox's own stays closed, whoever asks.
    for path in ["/proc/1/root/etc/shadow", "/proc/self/fd/0", "/proc/self/environ", "/proc/1/mem"] {
        let answer = sdk.read(path).await;
        assert!(answer.status().is_client_error(), "{path}: {}", answer.status());
    }
}

#[tokio::test]
async fn metadata_is_where_programs_inside_look_for_it() {
    let sdk = Sdk::start().await;
    let write = sdk.ask(Method::POST, "/files?path=tagged.txt").header("content-type", "application/octet-stream");
    let written = good(write.header("X-Metadata-Author", "ada").body("x").send().await.unwrap()).await;
    assert_eq!(written[0]["metadata"], json!({ "author": "ada" }));
    let script = "import os; print(os.getxattr('tagged.txt', 'user.e2b.author').decode()); \
                  os.setxattr('tagged.txt', 'user.e2b.level', b'3')";
    let (said, end) = sdk.run(&format!("python3 -c \"{script}\"")).await;
    assert_eq!(said, "ada\n", "{end}");
    let entry = sdk.call("/filesystem.Filesystem/Stat", json!({ "path": "tagged.txt" })).await["entry"].clone();
    assert_eq!(entry["metadata"], json!({ "author": "ada", "level": "3" }));
    sdk.write("tagged.txt", "y").await;
    let entry = sdk.call("/filesystem.Filesystem/Stat", json!({ "path": "tagged.txt" })).await["entry"].clone();
    assert!(entry["metadata"].as_object().is_none_or(|metadata| metadata.is_empty()), "all is replaced: {entry}");
}

#[tokio::test]
async fn a_list_of_processes_says_how_each_was_begun() {
    let sdk = Sdk::start().await;
    let process = json!({ "cmd": "/bin/sleep", "args": ["600"], "envs": { "GIVEN": "it" }, "cwd": "/tmp" });
    let mut frames = sdk.stream("/process.Process/Start", json!({ "process": process, "tag": "mine" })).await;
    let pid = frames.pid().await;
    let listed = sdk.call("/process.Process/List", json!({})).await;
    assert_eq!(listed["processes"], json!([{ "config": process, "pid": pid, "tag": "mine" }]));
    let found = until(|| async {
        let (said, _) = sdk.run(&format!("tr '\\0' '\\n' < /proc/{pid}/environ | grep GIVEN")).await;
        Some(said).filter(|said| !said.is_empty())
    });
    assert_eq!(found.await, "GIVEN=it\n");
}

#[tokio::test]
async fn a_form_has_so_many_files() {
    let sdk = Sdk::start().await;
    let part = "--xx\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nx\r\n";
    let write = async |files: usize| {
        let form = format!("{}--xx--\r\n", part.repeat(files));
        let request = sdk.ask(Method::POST, "/files").header("content-type", "multipart/form-data; boundary=xx");
        request.body(form).send().await.unwrap()
    };
    let told = good(write(3).await).await;
    assert_eq!(told.as_array().unwrap().len(), 3, "{told}");
    let answer = write(2049).await;
    assert_eq!(answer.status(), 413);
    let told: Value = answer.json().await.unwrap();
    assert_eq!(told["error_code"], "too_large", "{told}");
}
