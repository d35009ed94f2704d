//! Templates over HTTP: the operator makes them, everybody uses them.

use std::{fs, io::Write, net::TcpStream, path::Path, process::Command};

use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::{
    root,
    stage::{Server, client, good, refused, until},
};

/// A tar of a small root file system.
pub(crate) fn archive(server: &Server) -> Vec<u8> {
    let (dir, tar) = (server.data().join("root"), server.data().join("root.tar"));
    root::make(&dir);
    root::tar(&dir, &tar);
    fs::read(tar).unwrap()
}

pub(crate) fn add(server: &Server, query: &str, tar: Vec<u8>) -> RequestBuilder {
    server.request(Method::POST, &format!("/v1/templates?{query}")).body(tar)
}

async fn remove(server: &Server, name: &str) -> Response {
    server.request(Method::DELETE, &format!("/v1/templates/{name}")).send().await.unwrap()
}

fn with(server: &Server, key: &str, method: Method, path: &str) -> RequestBuilder {
    client().request(method, format!("{}{path}", server.url)).bearer_auth(key)
}

fn layers(server: &Server) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> =
        fs::read_dir(server.data().join("layers")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_operator_makes_one_and_every_tenant_uses_it() {
    let server = Server::start();
    let tar = archive(&server);
    let made = add(&server, "name=mine&user=maker&workdir=/srv/work", tar.clone())
        .header("Cabana-Env", r#"{"MOTTO": "hunter2"}"#)
        .send()
        .await
        .unwrap();
    assert_eq!(made.status(), 201);
    let made = good(made).await;
    assert_eq!(
        (&made["user"], &made["workdir"], &made["source"]),
        (&json!("maker"), &json!("/srv/work"), &json!("upload"))
    );
    assert!(
        made["env"].as_array().unwrap().contains(&json!("MOTTO")) && !made.to_string().contains("hunter2"),
        "{made}"
    );
    assert_eq!(server.get("/v1/templates").await["templates"], json!([made]));

    for (tenant, role) in [("other", "use"), ("default", "use"), ("other", "read")] {
        let key = server.key_for(tenant, role).await;
        for path in ["/v1/templates/mine", "/v1/templates"] {
            let told = good(with(&server, &key, Method::GET, path).send().await.unwrap()).await.to_string();
            assert!(told.contains("maker") && !told.contains("upload") && !told.contains("hunter2"), "{told}");
        }
        let forbidden = (403, "forbidden".to_owned());
        let more = with(&server, &key, Method::POST, "/v1/templates?name=more").body(tar.clone()).send().await.unwrap();
        assert_eq!(refused(more).await, forbidden);
        let less = with(&server, &key, Method::DELETE, "/v1/templates/mine").send().await.unwrap();
        assert_eq!(refused(less).await, forbidden);
        if role == "use" {
            let script = "id -u; pwd; echo $MOTTO; cat /etc/motto";
            let body = json!({ "scope": { "scheme": "fixed", "name": "x" }, "spec": { "template": "mine" }, "command": script });
            let told = with(&server, &key, Method::POST, "/v1/exec").json(&body).send().await.unwrap();
            assert_eq!(good(told).await["stdout"], "1234\n/srv/work\nhunter2\nmade by hand\n");
        }
    }
    let ledger = server.get("/v1/ledger?limit=1000").await.to_string();
    assert!(ledger.contains("template.add") && !ledger.contains("hunter2"), "{ledger}");
}

#[tokio::test]
async fn one_that_is_used_stays_and_its_name_is_used_once() {
    let server = Server::start();
    let (tar, before) = (archive(&server), layers(&server));
    let once = || async { add(&server, "name=mine", tar.clone()).header("Idempotency-Key", "k").send().await.unwrap() };
    let first = good(once().await).await;
    assert_eq!(good(once().await).await, first, "the same key, the same answer");
    let other = add(&server, "name=other", tar.clone()).header("Idempotency-Key", "k").send().await.unwrap();
    assert_eq!(refused(other).await, (409, "idempotency_mismatch".into()));
    let changed = add(&server, "name=mine", tar[..tar.len() - 1].to_vec()).header("Idempotency-Key", "k").send().await;
    assert_eq!(refused(changed.unwrap()).await, (409, "idempotency_mismatch".into()), "another body");
    let second = add(&server, "name=mine", tar.clone()).send().await.unwrap();
    assert_eq!(refused(second).await, (409, "template_exists".into()));
    let spec = json!({ "template": "mine" });
    let sandbox = good(server.post("/v1/sandboxes", &spec).send().await.unwrap()).await["id"].clone();
    assert_eq!(refused(remove(&server, "mine").await).await, (409, "template_in_use".into()));
    let sandbox = format!("/v1/sandboxes/{}", sandbox.as_str().unwrap());
    server.request(Method::DELETE, &sandbox).send().await.unwrap();
    assert_eq!(remove(&server, "mine").await.status(), 204);
    let not_found = (404, "template_not_found".to_owned());
    assert_eq!(refused(remove(&server, "mine").await).await, not_found);
    assert_eq!(refused(server.post("/v1/sandboxes", &spec).send().await.unwrap()).await, not_found);
    // One that the machine's programs have changed since goes as well.
    until(|| async { layers(&server).iter().all(|layer| before.contains(layer)).then_some(()) }).await;
    good(add(&server, "name=mine", tar).send().await.unwrap()).await;
}

/// A tar with one entry of this name beside a good root file system.
fn hostile(server: &Server, name: &str) -> Vec<u8> {
    let script = "import io, sys, tarfile
tar = tarfile.open(sys.argv[1], 'a')
entry = tarfile.TarInfo(sys.argv[2])
entry.size = 4
tar.addfile(entry, io.BytesIO(b'evil'))
tar.close()";
    archive(server);
    let tar = server.data().join("root.tar");
    let written = Command::new("python3").args(["-c", script]).arg(&tar).arg(name).status().unwrap();
    assert!(written.success());
    fs::read(tar).unwrap()
}

fn gzip(path: &Path, program: &str) -> Vec<u8> {
    Command::new(program).arg("-c").arg(path).output().unwrap().stdout
}

#[tokio::test]
async fn what_is_no_root_file_system_is_refused_and_leaves_nothing() {
    let server = Server::start_with(&["--template-max", "64M"]);
    let (tar, before) = (archive(&server), layers(&server));
    let file = server.data().join("root.tar");
    fs::write(server.data().join("zeros"), vec![0; 65 << 20]).unwrap();
    let empty = Command::new("tar").args(["-cf", "-", "--files-from", "/dev/null"]).output().unwrap().stdout;
    let bomb = Command::new("sh")
        .args(["-c", "tar -cf - zeros | gzip -1"])
        .current_dir(server.data())
        .output()
        .unwrap()
        .stdout;
    let holes = Command::new("sh")
        .args(["-c", "truncate -s 65M holes; tar -S -cf - holes"])
        .current_dir(server.data())
        .output()
        .unwrap()
        .stdout;
    assert!(bomb.len() < 1 << 20 && holes.len() < 1 << 20);
    let cases = [
        (hostile(&server, "../../evil"), 400, "archive_invalid"),
        (tar[..tar.len() / 2].to_vec(), 400, "archive_invalid"),
        (b"no archive".to_vec(), 400, "archive_invalid"),
        (gzip(&file, "xz"), 400, "archive_invalid"),
        (Vec::new(), 400, "archive_invalid"),
        (empty, 400, "template_invalid"),
        (bomb, 413, "too_large"),
        (holes, 413, "too_large"),
    ];
    for (n, (body, status, code)) in cases.into_iter().enumerate() {
        let told = refused(add(&server, "name=bad", body).send().await.unwrap()).await;
        assert_eq!(told, (status, code.to_owned()), "case {n}");
    }
    for query in
        ["name=Bad", "name=host", "name=../x", "name=", "x=1", "name=bad&user=a/b", "name=bad&workdir=relative"]
    {
        let told = refused(add(&server, query, tar.clone()).send().await.unwrap()).await;
        assert_eq!(told, (400, "bad_request".to_owned()), "{query}");
    }
    let nobody = refused(add(&server, "name=bad&user=nobody-here", tar.clone()).send().await.unwrap()).await;
    assert_eq!(nobody, (400, "template_invalid".into()));
    for env in ["hunter2", r#"["hunter2"]"#, r#"{"A=B": "hunter2"}"#, r#"{"": "hunter2"}"#] {
        let told = add(&server, "name=bad", tar.clone()).header("Cabana-Env", env).send().await.unwrap();
        assert_eq!(told.status(), 400);
        assert!(!told.text().await.unwrap().contains("hunter2"));
    }
    assert_eq!(server.get("/v1/templates").await["templates"], json!([]));
    until(|| async { (layers(&server) == before).then_some(()) }).await;
    assert!(!server.data().join("evil").exists() && !server.data().parent().unwrap().join("evil").exists());
    fs::write(&file, tar).unwrap();
    good(add(&server, "name=bad", gzip(&file, "gzip")).send().await.unwrap()).await;
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_nothing() {
    let server = Server::start();
    let (tar, before) = (archive(&server), layers(&server));
    let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
    let (key, length) = (&server.key, tar.len());
    write!(
        stream,
        "POST /v1/templates?name=cut HTTP/1.1\r\nHost: x\r\nX-API-KEY: {key}\r\nContent-Length: {length}\r\n\r\n"
    )
    .unwrap();
    stream.write_all(&tar[..length - 100_000]).unwrap();
    until(|| async { (layers(&server) != before).then_some(()) }).await;
    drop(stream);
    let ended = until(|| async {
        let calls = server.get("/v1/calls").await;
        calls["calls"].as_array().unwrap().iter().find(|call| call["state"] != "running").cloned()
    })
    .await;
    assert_eq!(ended["verb"], "template.add");
    assert_eq!(server.get("/v1/templates").await["templates"], json!([]));
    until(|| async { (layers(&server) == before).then_some(()) }).await;
}

#[tokio::test]
async fn one_that_is_damaged_hides_no_other() {
    let server = Server::start();
    let tar = archive(&server);
    for name in ["a", "b"] {
        good(add(&server, &format!("name={name}"), tar.clone()).send().await.unwrap()).await;
    }
    fs::write(server.data().join("templates/a.json"), "{").unwrap();
    let user = server.key_for("other", "use").await;
    for (key, path_told) in [(server.key.as_str(), true), (user.as_str(), false)] {
        let told = good(with(&server, key, Method::GET, "/v1/templates").send().await.unwrap()).await;
        let rows = told["templates"].as_array().unwrap();
        assert_eq!(rows.len(), 2);
        let error = rows[0]["error"].as_str().unwrap();
        assert_eq!((error.contains("a.json"), &rows[1]["error"]), (path_told, &Value::Null), "{told}");
    }
    let one = server.request(Method::GET, "/v1/templates/a").send().await.unwrap();
    assert_eq!(refused(one).await, (400, "template_invalid".into()));
    assert_eq!(remove(&server, "a").await.status(), 204);
}
