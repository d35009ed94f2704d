//! What of the machine a sandbox is shown, and volumes.

use std::{fs, os::unix::fs::symlink, path::Path};

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::stage::{Server, client, good, refused};

/// A directory of the machine that everybody inside may write to.
fn directory(content: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("note"), content).unwrap();
    std::os::unix::fs::chown(dir.path(), Some(4321), Some(4321)).unwrap();
    dir
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server that lets these be mounted.
fn allowing(directories: &[&str]) -> Server {
    Server::start_with(&["--mounts-allow", &directories.join(",")])
}

async fn create(server: &Server, spec: &Value) -> Response {
    server.post("/v1/sandboxes", spec).send().await.unwrap()
}

async fn change(server: &Server, id: &str, change: &Value) -> Response {
    server.request(Method::PATCH, &format!("/v1/sandboxes/{id}")).json(change).send().await.unwrap()
}

async fn run(server: &Server, id: &str, command: &str) -> Value {
    let body = json!({ "command": command, "cwd": "/workspace" });
    good(server.post(&format!("/v1/sandboxes/{id}/exec"), &body).send().await.unwrap()).await
}

async fn says(server: &Server, id: &str, command: &str) -> String {
    let answer = run(server, id, command).await;
    assert_eq!(answer["exit_code"], 0, "{answer}");
    answer["stdout"].as_str().unwrap().to_owned()
}

fn id(sandbox: &Value) -> String {
    sandbox["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn lb_01_a_primary_mount_and_extra_ones_are_seen_where_they_should_be() {
    let (work, data) = (directory("work"), directory("data"));
    let server = allowing(&[text(work.path()), &format!("{}:ro", data.path().display())]);
    good(server.post("/v1/volumes", &json!({ "name": "cache" })).send().await.unwrap()).await;
    let spec = json!({
        "mount": { "host_path": work.path() },
        "extra_mounts": [
            { "volume": "cache", "mount_path": "/workspace/.cache/" },
            { "host_path": data.path(), "mount_path": "/data", "mode": "ro" },
        ],
    });
    let made = good(create(&server, &spec).await).await;
    assert_eq!(made["mount"], json!({ "host_path": work.path(), "mount_path": "/workspace", "mode": "rw" }));
    assert_eq!(made["extra_mounts"][0], json!({ "volume": "cache", "mount_path": "/workspace/.cache", "mode": "rw" }));
    let id = id(&made);
    assert_eq!(
        says(&server, &id, "cat note /data/note && echo new > new && echo kept > .cache/mark").await,
        "workdata"
    );
    assert_eq!(fs::read_to_string(work.path().join("new")).unwrap(), "new\n");
    for script in ["echo x > /data/x", "rm /data/note"] {
        assert_ne!(run(&server, &id, script).await["exit_code"], 0, "{script}");
    }
    // A scope's sandbox and one for a single call take the same.
    let once = json!({ "spec": spec, "command": "cat /workspace/.cache/mark /data/note" });
    assert_eq!(good(server.post("/v1/exec", &once).send().await.unwrap()).await["stdout"], "kept\ndata");
    let scope = json!({ "scheme": "fixed", "name": "one" });
    let ensured = json!({ "scope": scope, "spec": spec });
    good(server.post("/v1/sandboxes:ensure", &ensured).send().await.unwrap()).await;
    assert_eq!(server.stdout("one", "cat /workspace/.cache/mark").await, "kept\n");
}

#[tokio::test]
async fn lb_02_what_has_the_mode_none_is_not_mounted() {
    let dir = directory("seen");
    let server = allowing(&[text(dir.path())]);
    let spec = json!({
        "mount": { "host_path": dir.path(), "mode": "none" },
        "extra_mounts": [
            { "host_path": dir.path(), "mount_path": "/seen", "mode": "rw" },
            { "host_path": dir.path(), "mount_path": "/unseen", "mode": "none" },
        ],
    });
    let made = good(create(&server, &spec).await).await;
    assert_eq!(made["mount"]["mode"], "none");
    let id = id(&made);
    assert_eq!(says(&server, &id, "ls /workspace /seen; test ! -e /unseen").await, "/seen:\nnote\n\n/workspace:\n");
    // It need not be allowed then, nor be there.
    let spec = json!({ "mount": { "host_path": "/nowhere", "mode": "none" }, "extra_mounts": [{ "mount_path": "/x", "mode": "none" }] });
    good(create(&server, &spec).await).await;
}

#[tokio::test]
async fn mounts_come_change_and_go_while_commands_run() {
    let (one, two) = (directory("one"), directory("two"));
    let mut server = allowing(&[text(one.path()), text(two.path())]);
    let task = server
        .begin("box", "i=0; while [ $i -lt 3 ]; do if [ -e /late/go ]; then i=3; fi; sleep 0.05; done; cat /late/note")
        .await;
    let id = id(&server.ensure("box").await);
    let late = json!({ "extra_mounts": [{ "host_path": one.path(), "mount_path": "/late" }] });
    let changed = good(change(&server, &id, &late).await).await;
    assert_eq!(changed["extra_mounts"][0]["mount_path"], "/late");
    assert_eq!(says(&server, &id, "cat /late/note && touch /late/go").await, "one");
    assert_eq!(server.ended(&task).await["state"], "succeeded", "what ran has seen it");
    let other = json!({ "mount": { "host_path": two.path(), "mode": "ro" } });
    good(change(&server, &id, &other).await).await;
    assert_eq!(says(&server, &id, "cat /late/note note").await, "onetwo", "what is not named stays");
    good(server.post(&format!("/v1/sandboxes/{id}/stop"), &json!({})).send().await.unwrap()).await;
    assert_eq!(says(&server, &id, "cat /late/note note").await, "onetwo", "after a stop");
    server.kill();
    server.run();
    assert_eq!(says(&server, &id, "cat /late/note note").await, "onetwo", "after a kill");
    // What cannot be is refused, and nothing is changed by it.
    let bad = json!({ "extra_mounts": [{ "host_path": two.path(), "mount_path": "/other" }, { "volume": "nowhere", "mount_path": "/v" }] });
    assert_eq!(refused(change(&server, &id, &bad).await).await, (404, "volume_not_found".into()));
    assert_eq!(says(&server, &id, "cat /late/note note; test ! -e /other").await, "onetwo");
    let none = json!({ "mount": { "mode": "none" }, "extra_mounts": [] });
    good(change(&server, &id, &none).await).await;
    assert_eq!(says(&server, &id, "ls /late /workspace").await, "/late:\n\n/workspace:\n");
}

#[tokio::test]
async fn set_id_bits_are_refused_in_a_mount_and_not_beside_it() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let work = directory("work");
    let server = allowing(&[text(work.path())]);
    let sandbox = id(&good(create(&server, &json!({ "mount": { "host_path": work.path() } })).await).await);
    let files = format!("/v1/sandboxes/{sandbox}/files");
    says(&server, &sandbox, "touch /workspace/file /tmp/file").await;
    for (dir, allowed) in [("/workspace", false), ("/tmp", true)] {
        let mode = json!({ "path": format!("{dir}/file"), "mode": "4755" });
        let made = json!({ "path": format!("{dir}/made"), "mode": "2755" });
        let asked = [
            server.post(&format!("{files}/mode"), &mode),
            server.post(&format!("{files}/mkdir"), &made),
            server.request(Method::PUT, &format!("{files}?path={dir}/put&perm=4755")).body("x"),
            server.request(Method::PUT, &format!("{files}?path={dir}/file&perm=6755&mode=in_place")).body("x"),
        ];
        for request in asked {
            let answer = request.send().await.unwrap();
            match allowed {
                true => drop(good(answer).await),
                false => assert_eq!(refused(answer).await, (403, "permission_denied".into())),
            }
        }
        let command = run(&server, &sandbox, &format!("chmod u+s {dir}/file")).await;
        assert_eq!(command["exit_code"] == 0, allowed, "{command}");
    }
    // What the machine's own is, is none any more once it was written from here.
    let theirs = work.path().join("theirs");
    fs::write(&theirs, "x").unwrap();
    std::os::unix::fs::chown(&theirs, Some(4321), Some(4321)).unwrap();
    for mode in ["replace", "in_place", "append"] {
        fs::set_permissions(&theirs, fs::Permissions::from_mode(0o4755)).unwrap();
        let put = server.request(Method::PUT, &format!("{files}?path=/workspace/theirs&mode={mode}")).body("y");
        good(put.send().await.unwrap()).await;
        assert_eq!(fs::metadata(&theirs).unwrap().mode() & 0o7777, 0o755, "{mode}");
    }
    let privileged = |entry: fs::DirEntry| entry.metadata().unwrap().mode() & 0o6000 != 0;
    assert!(!fs::read_dir(work.path()).unwrap().any(|entry| privileged(entry.unwrap())));
}

#[tokio::test]
async fn what_must_not_be_mounted_is_refused_and_says_why() {
    let dir = directory("x");
    let root = dir.path();
    fs::create_dir(root.join("sub")).unwrap();
    symlink(root.join("sub"), root.join("link")).unwrap();
    symlink("/etc", root.join("etc")).unwrap();
    let server = Server::prepared(&["--mounts-allow", &format!("{},{}:ro", root.display(), "/srv/ro")], |_| ());
    let data = server.data().to_owned();
    let at = |path: &Path| json!({ "host_path": path, "mount_path": "/here" });
    let path = |path: &str| at(Path::new(path));
    let target = |target: &str| json!({ "host_path": root, "mount_path": target });
    for (mount, status, why) in [
        (path("/"), 403, "the whole machine"),
        (path("/etc"), 403, "part of the system"),
        (path("/proc/1/root"), 403, "part of the system"),
        (path("/root"), 403, "part of the system"),
        (path("/usr/share"), 403, "part of the system"),
        (path("/var/lib/dpkg"), 403, "part of the system"),
        (at(&data), 403, "data directory"),
        (at(&data.join("sandboxes")), 403, "data directory"),
        (at(data.parent().unwrap()), 403, "data directory"),
        (path("/home"), 403, "mounts.allow"),
        (path(&format!("{}2", root.display())), 403, "mounts.allow"),
        (path("/srv/ro/x"), 403, "read-only"),
        (path("relative"), 400, "no plain absolute path"),
        (path(&format!("{}/../x", root.display())), 400, "no plain absolute path"),
        (path(&format!("{}//sub", root.display())), 400, "no plain absolute path"),
        (at(&root.join("link")), 400, "symbolic link"),
        (at(&root.join("etc")), 400, "part of the system"),
        (at(&root.join("link/below")), 400, "does not exist"),
        (at(&root.join("absent")), 400, "does not exist"),
        (target("/"), 400, "would hide"),
        (target("/proc"), 400, "would hide"),
        (target("/proc/self"), 400, "would hide"),
        (target("/dev/shm"), 400, "would hide"),
        (target("/sys"), 400, "would hide"),
        (target("/etc"), 400, "would hide"),
        (target("/usr"), 400, "would hide"),
        (target("relative"), 400, "mount_path"),
        (target("/a/../b"), 400, "mount_path"),
        (json!({ "mount_path": "/here" }), 400, "neither"),
        (json!({ "host_path": root, "volume": "v", "mount_path": "/here" }), 400, "one of the two"),
        (json!({ "host_path": root }), 400, "mount_path"),
        (json!({ "host_path": root, "mount_path": "/here", "mode": "rwx" }), 422, "unknown variant"),
        (json!({ "volume": "UPPER", "mount_path": "/here" }), 400, "name of a volume"),
        (json!({ "volume": "../x", "mount_path": "/here" }), 400, "name of a volume"),
        (json!({ "volume": "nowhere", "mount_path": "/here" }), 404, "no volume nowhere"),
    ] {
        for spec in [json!({ "extra_mounts": [mount] }), json!({ "extra_mounts": [target("/fine"), mount] })] {
            let answer = create(&server, &spec).await;
            let (found, body) = (answer.status().as_u16(), answer.json::<Value>().await.unwrap());
            assert_eq!(found, status, "{mount}: {body}");
            assert!(body["error"]["message"].as_str().unwrap().contains(why), "{mount}: {body}");
            let code = match status {
                403 => "mount_denied",
                404 => "volume_not_found",
                _ => "bad_request",
            };
            assert_eq!(body["error"]["code"], code);
        }
    }
    let twice = json!({ "mount": target("/same"), "extra_mounts": [target("/same/")] });
    assert_eq!(refused(create(&server, &twice).await).await, (400, "bad_request".into()));
    let many: Vec<_> = (0..40).map(|n| target(&format!("/m/{n}"))).collect();
    assert_eq!(refused(create(&server, &json!({ "extra_mounts": many })).await).await, (400, "bad_request".into()));
    // Where nothing is listed, nothing is mounted.
    let closed = Server::start();
    let answer = create(&closed, &json!({ "mount": target("/workspace") })).await;
    assert_eq!(refused(answer).await, (403, "mount_denied".into()));
}

#[tokio::test]
async fn a_tenant_mounts_what_is_its_own_and_only_as_long_as_it_may() {
    let all = directory("x");
    for tenant in ["one", "two"] {
        fs::create_dir(all.path().join(tenant)).unwrap();
        fs::write(all.path().join(tenant).join("note"), tenant).unwrap();
    }
    let rule = format!("{}/{{tenant}}", all.path().display());
    let mut server = allowing(&[&rule]);
    let (one, two) = (server.key_for("one", "use").await, server.key_for("two", "use").await);
    let ask = async |server: &Server, key: &str, directory: &str| {
        let mount = json!({ "mount": { "host_path": all.path().join(directory) }, "extra_mounts": [] });
        let body =
            json!({ "scope": { "scheme": "fixed", "name": "s" }, "spec": mount, "command": "cat /workspace/note" });
        client().post(format!("{}/v1/exec", server.url)).bearer_auth(key).json(&body).send().await.unwrap()
    };
    let denied = (403, "mount_denied".to_owned());
    assert_eq!(refused(ask(&server, &one, "two").await).await, denied);
    assert_eq!(refused(ask(&server, &one, "").await).await, denied);
    for (key, name) in [(&one, "one"), (&two, "two")] {
        assert_eq!(good(ask(&server, key, name).await).await["stdout"], name);
    }
    // The operator allows less by now: what is stopped does not start with it.
    server.stop();
    let mut less = server;
    less.set_flags(&[]);
    less.run();
    let run = async |key: &str| {
        let body = json!({ "scope": { "scheme": "fixed", "name": "s" }, "command": "cat /workspace/note" });
        client().post(format!("{}/v1/exec", less.url)).bearer_auth(key).json(&body).send().await.unwrap()
    };
    assert_eq!(good(run(&one).await).await["stdout"], "one", "what runs, runs on");
    let mine = client().get(format!("{}/v1/sandboxes", less.url)).bearer_auth(&one).send().await.unwrap();
    let sandbox = id(&good(mine).await["sandboxes"][0]);
    let stop = client().post(format!("{}/v1/sandboxes/{sandbox}/stop", less.url)).bearer_auth(&one).send().await;
    good(stop.unwrap()).await;
    assert_eq!(refused(run(&one).await).await, denied);
}

#[tokio::test]
async fn a_source_that_becomes_a_link_is_not_followed_at_the_next_start() {
    let dir = directory("x");
    let (mine, theirs) = (dir.path().join("mine"), dir.path().join("theirs"));
    for (path, note) in [(&mine, "mine"), (&theirs, "secret")] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("note"), note).unwrap();
    }
    let server = allowing(&[text(&mine)]);
    let made = good(create(&server, &json!({ "mount": { "host_path": mine } })).await).await;
    let id = id(&made);
    assert_eq!(says(&server, &id, "cat note").await, "mine");
    good(server.post(&format!("/v1/sandboxes/{id}/stop"), &json!({})).send().await.unwrap()).await;
    fs::rename(&mine, dir.path().join("old")).unwrap();
    symlink(&theirs, &mine).unwrap();
    let exec = server.post(&format!("/v1/sandboxes/{id}/exec"), &json!({ "command": "cat /workspace/note" }));
    assert_eq!(refused(exec.send().await.unwrap()).await, (400, "bad_request".into()));
    // It does not start, and there is a way out all the same.
    let without = json!({ "mount": { "host_path": mine, "mode": "none" } });
    assert_eq!(good(change(&server, &id, &without).await).await["state"], "stopped", "nothing is started for it");
    assert_eq!(says(&server, &id, "ls").await, "");
    good(server.post(&format!("/v1/sandboxes/{id}/stop"), &json!({})).send().await.unwrap()).await;
    let with = json!({ "mount": { "host_path": mine } });
    assert_eq!(refused(change(&server, &id, &with).await).await, (400, "bad_request".into()));
    fs::remove_file(&mine).unwrap();
    fs::rename(dir.path().join("old"), &mine).unwrap();
    good(change(&server, &id, &with).await).await;
    assert_eq!(says(&server, &id, "cat note").await, "mine");
}

#[tokio::test]
async fn volumes_outlive_sandboxes_and_are_their_tenants_own() {
    let mut server = Server::start();
    let (ours, theirs) = (server.key_for("us", "use").await, server.key_for("them", "use").await);
    let send = async |server: &Server, key: &str, method: Method, path: &str, body: Value| {
        let request = client().request(method, format!("{}{path}", server.url)).bearer_auth(key);
        request.json(&body).send().await.unwrap()
    };
    let (post, get, delete) = (Method::POST, Method::GET, Method::DELETE);
    let name = json!({ "name": "models" });
    let made = good(send(&server, &ours, post.clone(), "/v1/volumes", name.clone()).await).await;
    assert_eq!(made["name"], "models");
    let again = send(&server, &ours, post.clone(), "/v1/volumes", name.clone()).await;
    assert_eq!(refused(again).await, (409, "volume_exists".into()));
    let spec =
        json!({ "spec": { "mount": { "volume": "models" } }, "command": "cd /workspace; cat mark; echo here >> mark" });
    let run = async |server: &Server, key: &str| send(server, key, Method::POST, "/v1/exec", spec.clone()).await;
    assert_eq!(good(run(&server, &ours).await).await["stdout"], "");
    assert_eq!(good(run(&server, &ours).await).await["stdout"], "here\n", "the first sandbox is gone by now");
    // Of another tenant's there is no trace; the same name is another volume.
    assert_eq!(refused(run(&server, &theirs).await).await, (404, "volume_not_found".into()));
    good(send(&server, &theirs, post.clone(), "/v1/volumes", name).await).await;
    assert_eq!(good(run(&server, &theirs).await).await["stdout"], "");
    assert_eq!(good(run(&server, &ours).await).await["stdout"], "here\nhere\n");
    // What a sandbox has is not removed, also while it is stopped and after a kill.
    let held = json!({ "extra_mounts": [{ "volume": "models", "mount_path": "/models", "mode": "ro" }] });
    let sandbox = id(&good(send(&server, &ours, post.clone(), "/v1/sandboxes", held).await).await);
    let in_use = (409, "volume_in_use".to_owned());
    assert_eq!(refused(send(&server, &ours, delete.clone(), "/v1/volumes/models", json!({})).await).await, in_use);
    good(send(&server, &ours, post, &format!("/v1/sandboxes/{sandbox}/stop"), json!({})).await).await;
    server.kill();
    server.run();
    assert_eq!(refused(send(&server, &ours, delete.clone(), "/v1/volumes/models", json!({})).await).await, in_use);
    let found = good(send(&server, &ours, get.clone(), "/v1/volumes/models", json!({})).await).await;
    assert!(found["bytes"].as_u64().unwrap() > 0);
    good(send(&server, &ours, delete.clone(), &format!("/v1/sandboxes/{sandbox}"), json!({})).await).await;
    good(send(&server, &ours, delete.clone(), "/v1/volumes/models", json!({})).await).await;
    let gone = send(&server, &ours, delete, "/v1/volumes/models", json!({})).await;
    assert_eq!(refused(gone).await, (404, "volume_not_found".into()));
    assert_eq!(good(send(&server, &ours, get.clone(), "/v1/volumes", json!({})).await).await["volumes"], json!([]));
    let kept = good(send(&server, &theirs, get, "/v1/volumes", json!({})).await).await;
    assert_eq!(kept["volumes"].as_array().unwrap().len(), 1);
    let ledger = client().get(format!("{}/v1/ledger", server.url)).bearer_auth(&ours).send().await.unwrap();
    let rows = good(ledger).await.to_string();
    for verb in ["volume.create", "volume.remove"] {
        assert!(rows.contains(verb), "{rows}");
    }
}

#[tokio::test]
async fn an_archived_sandbox_keeps_its_volumes_and_comes_back_with_its_mounts() {
    let server = Server::start();
    good(server.post("/v1/volumes", &json!({ "name": "kept" })).send().await.unwrap()).await;
    let made = good(create(&server, &json!({ "mount": { "volume": "kept" } })).await).await;
    let id = id(&made);
    says(&server, &id, "echo mark > mark").await;
    good(server.post(&format!("/v1/sandboxes/{id}/archive"), &json!({})).send().await.unwrap()).await;
    assert_eq!(server.get(&format!("/v1/sandboxes/{id}")).await["state"], "archived");
    let delete = async || server.request(Method::DELETE, "/v1/volumes/kept").send().await.unwrap();
    assert_eq!(refused(delete().await).await, (409, "volume_in_use".into()));
    assert_eq!(says(&server, &id, "cat mark").await, "mark\n");
    assert_eq!(refused(delete().await).await, (409, "volume_in_use".into()));
    good(server.request(Method::DELETE, &format!("/v1/sandboxes/{id}")).send().await.unwrap()).await;
    good(delete().await).await;
}

/// Holds a directory by nothing but a descriptor in the queue of a socket, where nobody finds it.
const HIDES: &str = "exec python3 -c 'import array, os, socket, time; ours, theirs = socket.socketpair(); \
     fd = os.open(\"/models\", os.O_RDONLY); \
     ours.sendmsg([b\"x\"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array(\"i\", [fd]))]); \
     os.close(fd); open(\"/tmp/hidden\", \"w\"); time.sleep(1000)'";

#[tokio::test]
async fn a_mount_that_stays_in_use_is_mount_busy_and_nothing_changes() {
    let server = Server::start();
    good(server.post("/v1/volumes", &json!({ "name": "models" })).send().await.unwrap()).await;
    let id = id(&server.ensure("box").await);
    let with = json!({ "extra_mounts": [{ "volume": "models", "mount_path": "/models" }] });
    good(change(&server, &id, &with).await).await;
    says(&server, &id, "echo here > /models/mark").await;
    let uses = server.begin("box", "cd /models && touch /tmp/uses && sleep 1000").await;
    let hides = server.begin("box", HIDES).await;
    says(&server, &id, "while ! [ -e /tmp/uses ] || ! [ -e /tmp/hidden ]; do sleep 0.05; done").await;
    let without = json!({ "extra_mounts": [] });
    let answer = change(&server, &id, &without).await;
    let (status, body) = (answer.status().as_u16(), answer.json::<Value>().await.unwrap());
    assert_eq!((status, body["error"]["code"].as_str()), (409, Some("mount_busy")), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("/models: it is still in use"), "{body}");
    assert_eq!(server.ended(&uses).await["state"], "failed", "who was found to use it was ended");
    assert_eq!(server.get(&format!("/v1/tasks/{hides}")).await["state"], "running");
    assert_eq!(server.get(&format!("/v1/sandboxes/{id}")).await["extra_mounts"][0]["mount_path"], "/models");
    assert_eq!(says(&server, &id, "cat /models/mark && echo more >> /models/mark").await, "here\n");
    good(server.post(&format!("/v1/tasks/{hides}/cancel"), &json!({})).send().await.unwrap()).await;
    server.ended(&hides).await;
    let changed = good(change(&server, &id, &without).await).await;
    assert!(!changed.to_string().contains("/models"), "{changed}");
    assert_eq!(says(&server, &id, "ls /models").await, "");
    good(server.request(Method::DELETE, "/v1/volumes/models").send().await.unwrap()).await;
}

#[tokio::test]
async fn a_change_of_something_else_does_not_bring_back_a_mount_that_was_taken_away_meanwhile() {
    let data = directory("data");
    let server = allowing(&[text(data.path())]);
    let mounts = json!({ "extra_mounts": [{ "host_path": data.path(), "mount_path": "/data" }] });
    let id = id(&good(create(&server, &mounts).await).await);
    let sees = async || {
        let look = json!({ "command": "cat /data/note" });
        let told = good(server.post(&format!("/v1/sandboxes/{id}/exec"), &look).send().await.unwrap()).await;
        told["stdout"] == "data"
    };
    for round in 0..10 {
        assert!(sees().await, "the control");
        let (gone, env) = (json!({ "extra_mounts": [] }), json!({ "env": { "ROUND": round.to_string() } }));
        // Whichever comes first: the one that takes it away takes longer.
        let (taken, changed) = tokio::join!(change(&server, &id, &gone), change(&server, &id, &env));
        let (_, _) = (good(taken).await, good(changed).await);
        let told = server.get(&format!("/v1/sandboxes/{id}")).await;
        assert_eq!((round, &told["extra_mounts"]), (round, &Value::Null), "it has none");
        assert!(!sees().await, "round {round}");
        good(change(&server, &id, &mounts).await).await;
    }
}
