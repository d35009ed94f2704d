//! Templates that tenants build by E2B's protocol, as its SDKs send them.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use reqwest::{Method, Response};
use rustix::{
    mount::{UnmountFlags, mount_bind, unmount},
    process::Pid,
};
use serde_json::{Value, json};

use crate::{
    e2b_stage::{Asking, Sandbox},
    stage::{Server, alone, good, until},
};

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn run(script: &str) -> Value {
    json!({ "type": "RUN", "args": [script], "force": false })
}

fn copy(from: &str, to: &str, hash: &str) -> Value {
    json!({ "type": "COPY", "args": [from, to, "", ""], "filesHash": hash, "force": false })
}

/// A template of this name, asked for and begun. Its id and its build's.
async fn begin(asking: &Asking<'_>, name: &str, build: Value) -> (String, String) {
    let asked = good(asking.send(Method::POST, "/v3/templates", &json!({ "name": name })).await).await;
    let ids = (asked["templateID"].as_str().unwrap().to_owned(), asked["buildID"].as_str().unwrap().to_owned());
    let path = format!("/v2/templates/{}/builds/{}", ids.0, ids.1);
    assert_eq!(asking.send(Method::POST, &path, &build).await.status(), 202);
    ids
}

async fn ended(asking: &Asking<'_>, (template, build): &(String, String)) -> Value {
    let path = format!("/templates/{template}/builds/{build}/status");
    until(|| async { Some(good(asking.get(&path).await).await).filter(|info| info["status"] != "building") }).await
}

/// All that it said, once it is ready.
async fn built(asking: &Asking<'_>, name: &str, build: Value) -> Vec<String> {
    let info = ended(asking, &begin(asking, name, build).await).await;
    assert_eq!(info["status"], "ready", "{info}");
    info["logs"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect()
}

/// Its reason, once it has failed.
async fn failed(asking: &Asking<'_>, name: &str, build: Value) -> Value {
    let info = ended(asking, &begin(asking, name, build).await).await;
    assert_eq!(info["status"], "error", "{info}");
    info["reason"].clone()
}

fn from_base(steps: &[Value]) -> Value {
    json!({ "fromImage": "e2bdev/base:latest", "steps": steps, "force": false })
}

/// Where the files of a step may be put.
async fn link(asking: &Asking<'_>, template: &str, hash: &str) -> Value {
    let response = asking.get(&format!("/templates/{template}/files/{hash}")).await;
    assert_eq!(response.status(), 201);
    good(response).await
}

async fn put(url: &str, body: Vec<u8>) -> Response {
    reqwest::Client::new().put(url).body(body).send().await.unwrap()
}

/// The files of a step of whichever template.
async fn upload(asking: &Asking<'_>, hash: &str, tar: Vec<u8>) {
    let asked = good(asking.send(Method::POST, "/v3/templates", &json!({ "name": "for-files" })).await).await;
    let link = link(asking, asked["templateID"].as_str().unwrap(), hash).await;
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&tar).unwrap();
    assert_eq!(put(link["url"].as_str().unwrap(), packed.finish().unwrap()).await.status(), 200);
}

enum Entry<'a> {
    File(&'a str, &'a str),
    Link(&'a str, &'a str),
    Dir(&'a str),
    Device(&'a str),
}

/// An archive as a client could send it, whatever is in it.
fn tar(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in entries {
        let (name, kind, target, body) = match *entry {
            Entry::File(name, body) => (name, b'0', "", body),
            Entry::Link(name, target) => (name, b'2', target, ""),
            Entry::Dir(name) => (name, b'5', "", ""),
            Entry::Device(name) => (name, b'3', "", ""),
        };
        let mut head = [0u8; 512];
        head[..name.len()].copy_from_slice(name.as_bytes());
        head[100..108].copy_from_slice(b"0000644\0");
        if kind == b'5' {
            head[100..108].copy_from_slice(b"0000755\0");
        }
        head[108..116].copy_from_slice(b"0000000\0");
        head[116..124].copy_from_slice(b"0000000\0");
        head[124..136].copy_from_slice(format!("{:011o}\0", body.len()).as_bytes());
        head[136..148].copy_from_slice(b"00000000000\0");
        head[148..156].copy_from_slice(b"        ");
        head[156] = kind;
        head[157..157 + target.len()].copy_from_slice(target.as_bytes());
        head[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
        head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        all.extend(head);
        all.extend(body.as_bytes());
        all.resize(all.len().next_multiple_of(512), 0);
    }
    all.resize(all.len() + 1024, 0);
    all
}

#[tokio::test]
async fn a_sandbox_begins_as_the_steps_left_it() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let steps = [
        run("echo hello > made.txt"),
        json!({ "type": "ENV", "args": ["GREETING", "good $NAME day", "NAME", "x", "BIN", "/opt/bin:$PATH"] }),
        json!({ "type": "WORKDIR", "args": ["/app/inner"] }),
        run("pwd > where.txt; printf %s \"$GREETING\" > said.txt"),
        json!({ "type": "USER", "args": ["root"] }),
        run("whoami > /whoami.txt"),
    ];
    built(&asking, "mine", from_base(&steps)).await;
    let made = Sandbox::make(&asking, "mine").await;
    assert_eq!(made.read("/home/user/made.txt").await, "hello\n");
    assert_eq!(made.read("/app/inner/where.txt").await, "/app/inner\n");
    assert_eq!(made.read("/app/inner/said.txt").await, "good  day");
    assert_eq!(made.read("/whoami.txt").await, "root\n");
    assert_eq!(
        made.run("whoami; pwd; echo $GREETING $NAME; echo $BIN | cut -c1-12").await,
        "root\n/app/inner\ngood day x\n/opt/bin:/us\n"
    );
    let info = good(asking.get(&format!("/sandboxes/{}", made.id)).await).await;
    assert_eq!(info["templateID"], "mine");
    assert_eq!(
        good(asking.get("/v2/sandboxes").await).await.as_array().unwrap().len(),
        1,
        "none is listed that was built in"
    );
    assert!(good(asking.get("/snapshots").await).await.as_array().unwrap().is_empty());
    // Another one begins with it, and with what it brings.
    let next = json!({ "fromTemplate": "mine", "steps": [run("cat /home/user/made.txt > /copy.txt")] });
    built(&asking, "next", next).await;
    let made = Sandbox::make(&asking, "next:default").await;
    assert_eq!(made.run("cat /copy.txt; pwd; whoami").await, "hello\n/app/inner\nroot\n");
}

#[tokio::test]
async fn a_build_whose_client_left_comes_to_its_end() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let body = from_base(&[]).to_string();
    for number in 0..8 {
        let name = json!({ "name": format!("left-{number}") });
        let asked = good(asking.send(Method::POST, "/v3/templates", &name).await).await;
        let (template, build) = (asked["templateID"].as_str().unwrap(), asked["buildID"].as_str().unwrap());
        let path = format!("/v2/templates/{template}/builds/{build}");
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nX-API-KEY: {}\r\n", server.key);
        let about = format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut stream = std::net::TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
        stream.write_all(format!("{head}{about}{body}").as_bytes()).unwrap();
        drop(stream);
        // Whether or not it was heard, it can be begun, and ends.
        let status = format!("/templates/{template}/builds/{build}/status");
        until(|| async {
            asking.send(Method::POST, &path, &from_base(&[])).await;
            Some(good(asking.get(&status).await).await).filter(|info| info["status"] == "ready")
        })
        .await;
    }
}

#[tokio::test]
async fn what_was_done_before_is_not_done_again() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let steps = [run("cat /proc/sys/kernel/random/uuid > drawn.txt"), run("cp drawn.txt again.txt")];
    let drawn = async |name: &str| Sandbox::make(&asking, name).await.read("/home/user/again.txt").await;
    let cached = |log: &[String]| log.iter().filter(|line| line.starts_with("CACHED")).count();
    assert_eq!(cached(&built(&asking, "one", from_base(&steps)).await), 0);
    assert_eq!(cached(&built(&asking, "two", from_base(&steps)).await), 2);
    assert_eq!(drawn("one").await, drawn("two").await);
    // One more step keeps those before it; a step that is forced does not, nor those behind it.
    let more = [steps[0].clone(), steps[1].clone(), run("true")];
    assert_eq!(cached(&built(&asking, "three", from_base(&more)).await), 2);
    let forced =
        [steps[0].clone(), json!({ "type": "RUN", "args": ["cp drawn.txt again.txt"], "force": true }), run("true")];
    assert_eq!(cached(&built(&asking, "four", from_base(&forced)).await), 1);
    let whole = json!({ "fromImage": "e2bdev/base", "steps": steps, "force": true });
    assert_eq!(cached(&built(&asking, "five", whole).await), 0);
    assert_ne!(drawn("one").await, drawn("five").await);
    // Another tenant finds nothing of it.
    let others = Asking::with(&server, server.key_for("others", "use").await);
    assert_eq!(cached(&built(&others, "one", from_base(&steps)).await), 0);
}

#[tokio::test]
async fn a_step_that_fails_says_which_and_why() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let reason = failed(&asking, "x", from_base(&[run("true"), run("echo so it is >&2; exit 3")])).await;
    assert_eq!(reason["step"], "2");
    let message = reason["message"].as_str().unwrap();
    assert!(message.contains("exit status 3") && message.contains("so it is"), "{message}");
    assert!(reason["logEntries"].as_array().unwrap().iter().any(|entry| entry["message"] == "so it is"), "{reason}");
    let nobody = json!({ "type": "RUN", "args": ["whoami", "root123"] });
    let reason = failed(&asking, "x", from_base(&[nobody])).await;
    let told = "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'";
    assert_eq!((reason["message"].as_str(), reason["step"].as_str()), (Some(told), Some("1")));
    for (step, build) in [
        ("1", from_base(&[json!({ "type": "USER", "args": ["; exit 1"] })])),
        ("1", from_base(&[json!({ "type": "USER", "args": ["nobody-has-this"] })])),
        ("1", from_base(&[json!({ "type": "WORKDIR", "args": ["/etc/passwd"] })])),
        ("1", from_base(&[json!({ "type": "FROM", "args": ["x"] })])),
        ("2", from_base(&[run("true"), copy("a", "b", HASH)])),
        ("base", json!({ "fromTemplate": "none-such", "steps": [] })),
        ("base", json!({ "steps": [] })),
        ("finalize", json!({ "fromImage": "e2bdev/base", "steps": [], "startCmd": "./none", "readyCmd": "sleep 1" })),
    ] {
        assert_eq!(failed(&asking, "x", build.clone()).await["step"], step, "{build}");
    }
    assert_eq!(asking.make("x").await.status(), 404, "nothing came of it");
    until(|| async { server.inits().is_empty().then_some(()) }).await;
}

#[tokio::test]
async fn variables_that_name_variables_do_not_grow_without_end() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let env = |name: &str, value: String| json!({ "type": "ENV", "args": [name, value] });
    let some = [env("A", "x".repeat(1000)), env("B", "$A".repeat(30)), run("echo -n $B > /home/user/b")];
    built(&asking, "some", from_base(&some)).await;
    assert_eq!(Sandbox::make(&asking, "some").await.read("/home/user/b").await.len(), 30_000, "the control");
    let doubled = [vec![env("A", "x".into())], vec![env("A", "$A$A".into()); 30]].concat();
    let at_once = [env("A", "x".repeat(1000)), env("B", "$A".repeat(2000))];
    let in_sum: Vec<_> = (0..8).map(|n| env(&format!("V{n}"), "x".repeat(10_000))).collect();
    for steps in [&doubled[..], &at_once, &in_sum] {
        let reason = failed(&asking, "much", from_base(steps)).await;
        assert!(reason["message"].as_str().unwrap().contains("65536"), "{reason}");
    }
}

#[tokio::test]
async fn what_a_template_starts_runs_in_each_sandbox_before_anybody_has_it() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let build = json!({
        "fromImage": "e2bdev/base", "steps": [{ "type": "ENV", "args": ["SAY", "here"] }],
        "startCmd": "sleep 1; echo $SAY > /tmp/started.txt; sleep 1000", "readyCmd": "[ -f /tmp/started.txt ]",
    });
    built(&asking, "serving", build).await;
    for _ in 0..2 {
        assert_eq!(Sandbox::make(&asking, "serving").await.read("/tmp/started.txt").await, "here\n");
    }
    // A snapshot has its files alone: what runs there is begun anew.
    let first = Sandbox::make(&asking, "serving").await;
    first.run("rm /tmp/started.txt").await;
    let taken = good(asking.send(Method::POST, &format!("/sandboxes/{}/snapshots", first.id), &json!({})).await).await;
    let again = Sandbox::make(&asking, taken["snapshotID"].as_str().unwrap()).await;
    assert_eq!(again.read("/tmp/started.txt").await, "here\n");
}

#[tokio::test]
async fn files_come_once_and_lie_where_they_are_wanted() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let asked = good(asking.send(Method::POST, "/v3/templates", &json!({ "name": "x" })).await).await;
    let template = asked["templateID"].as_str().unwrap();
    assert_eq!(link(&asking, template, HASH).await["present"], false);
    let files = tar(&[
        Entry::Dir("dir"),
        Entry::File("dir/a.txt", "a"),
        Entry::Link("dir/link.txt", "a.txt"),
        Entry::Link("dir/far.txt", "/etc/hostname"),
        Entry::Dir("dir/sub"),
        Entry::File("dir/sub/.hidden", "b"),
    ]);
    upload(&asking, HASH, files).await;
    assert_eq!(link(&asking, template, HASH).await["present"], true);
    let one = tar(&[Entry::File("dir/a.txt", "alone")]);
    let other = HASH.replace('0', "f");
    upload(&asking, &other, one).await;
    let steps = [
        copy("dir/*", "by-pattern", HASH),
        copy("dir", "/opt/by-name", HASH),
        copy("./dir/", ".", HASH),
        copy("dir/a.txt", "as/this.txt", &other),
        copy("dir/a.txt", "/opt/by-name/", &other),
        json!({ "type": "COPY", "args": ["dir/a.txt", "/root-only.txt", "root", "0600"], "filesHash": other }),
    ];
    built(&asking, "files", from_base(&steps)).await;
    let made = Sandbox::make(&asking, "files").await;
    let said = made.run("cat by-pattern/a.txt by-pattern/link.txt by-pattern/sub/.hidden sub/.hidden as/this.txt /opt/by-name/a.txt").await;
    assert_eq!(said, "aabbalonealone");
    assert_eq!(made.run("readlink by-pattern/link.txt by-pattern/far.txt").await, "a.txt\n/etc/hostname\n");
    assert_eq!(
        made.run("stat -c '%U %a' by-pattern/a.txt by-pattern as /root-only.txt").await,
        "user 644\nuser 755\nuser 755\nroot 600\n"
    );
    assert_eq!(made.run("ls -A /tmp").await, "", "nothing is left of how they came");
}

/// What is in an archive stays in the sandbox, and in the place where it is unpacked.
#[tokio::test]
async fn a_hostile_archive_harms_nobody() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let outside = server.data().join("outside.txt");
    let above = format!("{}{}", "../".repeat(20), outside.display());
    let cases = [
        vec![Entry::File(&above, "out")],
        vec![Entry::File("../../escaped.txt", "out")],
        vec![Entry::File("/absolute.txt", "out")],
        vec![Entry::Link("dir", "/"), Entry::File("dir/through-link.txt", "out")],
        vec![Entry::Device("dir/device")],
    ];
    for (number, entries) in cases.iter().enumerate() {
        let hash = format!("{number:064x}");
        upload(&asking, &hash, tar(entries)).await;
        let info = ended(&asking, &begin(&asking, "bad", from_base(&[copy("dir", "dir", &hash)])).await).await;
        if info["status"] == "ready" {
            let made = Sandbox::make(&asking, "bad").await;
            let found =
                made.run("ls /absolute.txt /through-link.txt /escaped.txt /tmp/escaped.txt 2>/dev/null || true").await;
            assert_eq!(found, "", "case {number}");
        } else {
            assert_eq!(info["reason"]["step"], "1", "{info}");
        }
        assert!(!outside.exists());
    }
    for (number, junk) in [vec![0x1f, 0x8b, 0, 1, 2, 3], b"no archive at all".repeat(100)].into_iter().enumerate() {
        let hash = format!("{:064x}", 100 + number);
        let asked = good(asking.send(Method::POST, "/v3/templates", &json!({ "name": "junk" })).await).await;
        let link = link(&asking, asked["templateID"].as_str().unwrap(), &hash).await;
        assert_eq!(put(link["url"].as_str().unwrap(), junk).await.status(), 200);
        assert_eq!(failed(&asking, "junk", from_base(&[copy("dir", "dir", &hash)])).await["step"], "1");
    }
}

/// A little can become very much.
#[tokio::test]
async fn an_archive_that_holds_too_much_is_not_unpacked() {
    let server = Server::start_with(&["--template-max", "1M"]);
    let asking = Asking::of(&server);
    let much = "0".repeat(8 << 20);
    upload(&asking, HASH, tar(&[Entry::File("dir/much", &much)])).await;
    let reason = failed(&asking, "x", from_base(&[copy("dir", "dir", HASH)])).await;
    assert!(reason["message"].as_str().unwrap().contains("unpacked"), "{reason}");
}

/// Who may make few calls in a second gets a build that takes longer, and no build that fails.
#[tokio::test]
async fn a_build_waits_where_its_tenant_has_to() {
    let server = Server::start();
    let key = server.key_for("slow", "use").await;
    let quota = json!({ "calls_per_sec": 2 });
    good(server.request(Method::PUT, "/v1/quotas/slow").json(&quota).send().await.unwrap()).await;
    let asking = Asking::with(&server, key);
    let steps = [run("true"), json!({ "type": "WORKDIR", "args": ["/a"] }), run("true"), run("true")];
    built(&asking, "x", from_base(&steps)).await;
}

#[tokio::test]
async fn files_are_put_only_by_whoever_was_told_where_and_for_a_while() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let asked = good(asking.send(Method::POST, "/v3/templates", &json!({ "name": "x" })).await).await;
    let template = asked["templateID"].as_str().unwrap();
    for bad in ["x", "..%2F..%2Fetc", &HASH.to_uppercase(), &HASH[1..]] {
        let response = asking.get(&format!("/templates/{template}/files/{bad}")).await;
        assert!(matches!(response.status().as_u16(), 400 | 422), "{bad}: {}", response.status());
    }
    let url = link(&asking, template, HASH).await["url"].as_str().unwrap().to_owned();
    assert!(url.starts_with(&server.url), "{url}");
    let (base, token) = url.rsplit_once('/').unwrap();
    let other = format!("{base}/{}{}", if token.starts_with('A') { 'B' } else { 'A' }, &token[1..]);
    for bad in [other, format!("{url}x"), format!("{base}/x.y"), format!("{base}/x")] {
        assert!(put(&bad, tar(&[])).await.status().is_client_error(), "{bad}");
    }
    // More than is taken is refused before it has come.
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut raw = std::net::TcpStream::connect(host).unwrap();
    write!(raw, "PUT /{path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}\r\n\r\n", (1u64 << 30) + 1).unwrap();
    let mut head = [0; 12];
    std::io::Read::read_exact(&mut raw, &mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 413");
    server.pass(2 * 60 * 60);
    assert!(put(&url, tar(&[])).await.status().is_client_error(), "it has ended");
    let fresh = link(&asking, template, HASH).await["url"].as_str().unwrap().to_owned();
    assert_eq!(put(&fresh, tar(&[])).await.status(), 200);
    assert_eq!(link(&asking, template, HASH).await["present"], true);
}

#[tokio::test]
async fn tags_lead_to_builds() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let send = async |method: Method, body: Value| asking.send(method, "/templates/tags", &body).await;
    built(&asking, "env:v1", from_base(&[run("echo 1 > number")])).await;
    built(&asking, "env:v2", from_base(&[run("echo 2 > number")])).await;
    let number = async |name: &str| Sandbox::make(&asking, name).await.read("/home/user/number").await;
    assert_eq!((number("env:v1").await.as_str(), number("env:v2").await.as_str()), ("1\n", "2\n"));
    assert_eq!(asking.make("env").await.status(), 404, "none is the default one yet");
    let assigned = good(send(Method::POST, json!({ "target": "env:v1", "tags": ["default", "stable"] })).await).await;
    assert_eq!(assigned["tags"], json!(["default", "stable"]));
    assert_eq!((number("env").await.as_str(), number("env:stable").await.as_str()), ("1\n", "1\n"));
    let tags = good(asking.get("/templates/env/tags").await).await;
    let tags: Vec<_> = tags.as_array().unwrap().iter().map(|tag| tag["tag"].as_str().unwrap().to_owned()).collect();
    assert_eq!(tags, ["default", "stable", "v1", "v2"]);
    assert_eq!(send(Method::DELETE, json!({ "name": "env", "tags": ["v2", "stable"] })).await.status(), 204);
    assert_eq!(asking.make("env:v2").await.status(), 404);
    for bad in [":x", "env:", "", "a b", "../x"] {
        assert_eq!(send(Method::POST, json!({ "target": "env:v1", "tags": [bad] })).await.status(), 400, "{bad}");
    }
    for missing in ["env:v9", "none:v1", "::"] {
        assert_eq!(send(Method::POST, json!({ "target": missing, "tags": ["x"] })).await.status(), 404, "{missing}");
    }
    assert_eq!(send(Method::DELETE, json!({ "name": "env", "tags": ["v9"] })).await.status(), 404);
}

#[tokio::test]
async fn images_are_what_the_operator_says_they_are() {
    let server = Server::start_with(&["--images-map", "ubuntu:22.04=base,docker.io/team/gone:1=not-there"]);
    let asking = Asking::of(&server);
    for image in ["ubuntu:22.04", "docker.io/library/ubuntu:22.04", "e2bdev/base", "base"] {
        built(&asking, "x", json!({ "fromImage": image, "steps": [] })).await;
    }
    assert_eq!(Sandbox::make(&asking, "x").await.run("whoami").await, "user\n");
    let reason = failed(&asking, "y", json!({ "fromImage": "ubuntu:24.04", "steps": [] })).await;
    let message = reason["message"].as_str().unwrap();
    assert!(message.contains("images.map") && message.contains("oci:") && reason["step"] == "base", "{reason}");
    let reason = failed(&asking, "y", json!({ "fromImage": "team/gone:1", "steps": [] })).await;
    assert!(reason["message"].as_str().unwrap().contains("not-there"), "{reason}");
}

#[tokio::test]
async fn templates_are_found_listed_and_removed_by_whoever_has_them() {
    let server = Server::start();
    let asking = Asking::of(&server);
    let ids = begin(&asking, "mine", from_base(&[run("echo kept > kept.txt")])).await;
    assert_eq!(ended(&asking, &ids).await["status"], "ready");
    let alias = good(asking.get("/templates/aliases/mine").await).await;
    assert_eq!(alias, json!({ "templateID": ids.0, "public": false }));
    assert_eq!(good(asking.get("/templates/aliases/base").await).await["public"], true);
    assert_eq!(asking.get("/templates/aliases/none").await.status(), 404);
    let all = good(asking.get("/templates").await).await;
    assert_eq!((&all[0]["names"], &all[0]["buildStatus"]), (&json!(["mine"]), &json!("ready")));
    let one = good(asking.get(&format!("/templates/{}", ids.0)).await).await;
    assert_eq!(one["builds"][0]["buildID"], ids.1);
    let made = Sandbox::make(&asking, &ids.0).await;
    for (path, status) in [("mine", 204), ("mine", 404), ("base", 403)] {
        assert_eq!(asking.send(Method::DELETE, &format!("/templates/{path}"), &Value::Null).await.status(), status);
    }
    assert_eq!(asking.make("mine").await.status(), 404);
    assert_eq!(made.read("/home/user/kept.txt").await, "kept\n", "what was made from it stays");
}

#[tokio::test]
async fn what_is_anothers_is_not_found_in_the_same_words() {
    let server = Server::start();
    let (asking, key) = (Asking::of(&server), server.key_for("others", "use").await);
    let others = Asking::with(&server, key);
    let (template, build) = begin(&asking, "mine", from_base(&[])).await;
    ended(&asking, &(template.clone(), build.clone())).await;
    let nobodys =
        ("tmpl_0198c5f2a3b47c8d9e0f1a2b3c4d5e6f".to_owned(), "0198c5f2-a3b4-7c8d-9e0f-1a2b3c4d5e6f".to_owned());
    let told = async |(template, build, name): (&str, &str, &str)| {
        let mut told = Vec::new();
        for (method, path, body) in [
            (Method::GET, format!("/templates/{template}"), Value::Null),
            (Method::DELETE, format!("/templates/{template}"), Value::Null),
            (Method::DELETE, format!("/templates/{name}"), Value::Null),
            (Method::GET, format!("/templates/aliases/{name}"), Value::Null),
            (Method::GET, format!("/templates/{template}/files/{HASH}"), Value::Null),
            (Method::POST, format!("/v2/templates/{template}/builds/{build}"), from_base(&[])),
            (Method::GET, format!("/templates/{template}/builds/{build}/status"), Value::Null),
            (Method::GET, format!("/templates/{name}/tags"), Value::Null),
            (Method::POST, "/templates/tags".into(), json!({ "target": format!("{name}:default"), "tags": ["x"] })),
            (Method::DELETE, "/templates/tags".into(), json!({ "name": name, "tags": ["default"] })),
            (Method::POST, "/sandboxes".into(), json!({ "templateID": name })),
            (Method::POST, "/sandboxes".into(), json!({ "templateID": template })),
        ] {
            let response = others.send(method.clone(), &path, &body).await;
            assert_eq!(response.status(), 404, "{method} {path}");
            let text = response.text().await.unwrap();
            told.push(text.replace(template, "TEMPLATE").replace(build, "BUILD").replace(name, "NAME"));
        }
        told
    };
    assert_eq!(told((&template, &build, "mine")).await, told((&nobodys.0, &nobodys.1, "free")).await);
    let info = ended(&others, &begin(&others, "y", json!({ "fromTemplate": "mine", "steps": [] })).await).await;
    assert_eq!((&info["status"], &info["reason"]["step"]), (&json!("error"), &json!("base")));
    assert!(
        good(others.get("/templates").await).await.as_array().unwrap().iter().all(|one| one["names"] == json!(["y"]))
    );
    assert_eq!(Sandbox::make(&asking, "mine").await.run("echo it is there").await, "it is there\n");
}

#[tokio::test]
async fn a_server_that_ends_while_it_builds_leaves_a_build_that_says_so() {
    let mut server = Server::start();
    let (ids, steps) = {
        let asking = Asking::of(&server);
        let steps = [run("cat /proc/sys/kernel/random/uuid > drawn.txt"), run("sleep 600")];
        let ids = begin(&asking, "x", from_base(&steps)).await;
        let path = format!("/templates/{}/builds/{}/status?logsOffset=1&limit=50&level=info", ids.0, ids.1);
        until(|| async {
            let info = good(asking.get(&path).await).await;
            info["logs"].as_array().unwrap().iter().any(|line| line == "RUN sleep 600").then_some(())
        })
        .await;
        (ids, steps)
    };
    server.kill();
    server.run();
    let asking = Asking::of(&server);
    let info = ended(&asking, &ids).await;
    assert_eq!(info["status"], "error", "{info}");
    assert!(info["reason"]["message"].as_str().unwrap().contains("started again"), "{info}");
    server.kill();
    server.run();
    let asking = Asking::of(&server);
    let rows = server.get("/v1/ledger?limit=1000").await["rows"].as_array().unwrap().clone();
    let of = |verb: &str| rows.iter().filter(|row| row["verb"] == verb).collect::<Vec<_>>();
    let (began, ended) = (of("build.begin"), of("build.end"));
    assert_eq!((began.len(), ended.len()), (1, 1), "one row of its end, however often the server starts");
    assert_eq!((&ended[0]["outcome"], &ended[0]["key"]), (&json!("failed"), &began[0]["key"]));
    until(|| async { server.inits().is_empty().then_some(()) }).await;
    // What was done is not done again.
    let log = built(&asking, "x", from_base(&[steps[0].clone(), run("true")])).await;
    assert!(log.iter().any(|line| line.starts_with("CACHED")), "{log:?}");
}

/// However long that takes, or if it cannot be done at all for now.
#[tokio::test]
async fn the_files_of_an_interrupted_build_keep_no_server_from_its_start() {
    if !alone("e2b_templates::the_files_of_an_interrupted_build_keep_no_server_from_its_start") {
        return;
    }
    let mut server = Server::start();
    {
        let asking = Asking::of(&server);
        begin(&asking, "x", from_base(&[run("mkdir d; cd d; seq 5000 | xargs touch; touch /tmp/up; sleep 600")])).await;
        let runs = |pid: Pid| {
            let root = format!("/proc/{}/root/tmp/up", pid.as_raw_nonzero());
            std::fs::exists(root).unwrap_or(false)
        };
        until(|| async { server.commands().into_iter().any(runs).then_some(()) }).await;
    }
    server.kill();
    let home = server.data().join("sandboxes").join(server.homes().first().unwrap());
    mount_bind(&home, &home).unwrap(); // what is mounted on is not removed
    server.run();
    let asking = Asking::of(&server);
    assert_eq!(Sandbox::make(&asking, "base").await.run("echo works").await, "works\n");
    assert!(home.exists());
    unmount(&home, UnmountFlags::empty()).unwrap();
    until(|| async { (!home.exists()).then_some(()) }).await;
}

#[tokio::test]
async fn builds_end_with_the_key_that_began_them() {
    let server = Server::start();
    let made = good(server.post("/v1/keys", &json!({ "role": "use" })).send().await.unwrap()).await;
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap().to_owned());
    let (theirs, ours) = (Asking::with(&server, key), Asking::of(&server));
    // Two at once, and one in the queue.
    let mut begun = Vec::new();
    for name in ["one", "two", "three"] {
        begun.push(begin(&theirs, name, from_base(&[run("echo runs; sleep 600")])).await);
    }
    let runs = |(template, build): &(String, String)| format!("/templates/{template}/builds/{build}/status");
    for build in &begun[..2] {
        until(|| async { good(ours.get(&runs(build)).await).await.to_string().contains("runs\"").then_some(()) }).await;
    }
    let other = begin(&ours, "other", from_base(&[run("until [ -e /tmp/go ]; do sleep 0.05; done")])).await;
    good(server.request(Method::DELETE, &format!("/v1/keys/{id}")).send().await.unwrap()).await;
    for build in &begun {
        let info = ended(&ours, build).await;
        assert_eq!(info["status"], "error", "{info}");
        assert!(info["reason"]["message"].as_str().unwrap().contains("revoked"), "{info}");
        assert!(info["logs"].to_string().contains("revoked"), "{info}");
    }
    // Nothing of them is left running, and that of another key goes on.
    let sandboxes = || async { server.get("/v1/sandboxes").await["sandboxes"].as_array().unwrap().clone() };
    let left = until(|| async { Some(sandboxes().await).filter(|all| all.len() == 1) }).await;
    let go = format!("/v1/sandboxes/{}/exec", left[0]["id"].as_str().unwrap());
    good(server.post(&go, &json!({ "command": "touch /tmp/go" })).send().await.unwrap()).await;
    assert_eq!(ended(&ours, &other).await["status"], "ready");
    let rows = server.get("/v1/ledger?limit=1000").await["rows"].as_array().unwrap().clone();
    for (verb, outcome, of_key, count) in
        [("build.begin", "answered", true, 3), ("build.end", "failed", true, 3), ("build.end", "answered", false, 1)]
    {
        let is = |row: &&Value| row["verb"] == verb && row["outcome"] == outcome && (row["key"] == id) == of_key;
        assert_eq!(rows.iter().filter(is).count(), count, "{verb} {outcome}");
    }
}

#[tokio::test]
async fn what_no_template_can_be_is_refused() {
    let server = Server::start();
    let asking = Asking::of(&server);
    for bad in [
        json!({}),
        json!({ "name": "" }),
        json!({ "name": "a/b" }),
        json!({ "name": "tmpl_x" }),
        json!({ "name": "x", "tags": ["a:b"] }),
        json!({ "name": "x", "cpuCount": 0 }),
        json!({ "name": "x", "memoryMB": 1 }),
    ] {
        assert_eq!(asking.send(Method::POST, "/v3/templates", &bad).await.status(), 400, "{bad}");
    }
    let older = good(asking.send(Method::POST, "/v2/templates", &json!({ "alias": "older" })).await).await;
    assert_eq!(older["aliases"], json!(["older"]));
    let ids = (older["templateID"].as_str().unwrap(), older["buildID"].as_str().unwrap());
    let path = format!("/v2/templates/{}/builds/{}", ids.0, ids.1);
    let many: Vec<Value> = (0..501).map(|_| run("true")).collect();
    assert_eq!(asking.send(Method::POST, &path, &from_base(&many)).await.status(), 400);
    assert_eq!(asking.send(Method::POST, &path, &from_base(&[])).await.status(), 202);
    assert_eq!(asking.send(Method::POST, &path, &from_base(&[])).await.status(), 409, "it was begun before");
}
