//! The files of a sandbox: up and down, whole and in parts, and what is refused.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
};

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::stage::{Server, good, refused, until};

/// A part of a query, whatever is in it.
fn quoted(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

pub(crate) struct Files {
    pub(crate) server: Server,
    pub(crate) sandbox: String,
}

impl Files {
    pub(crate) async fn start() -> Self {
        let server = Server::start();
        let sandbox = server.ensure("one").await["id"].as_str().unwrap().to_owned();
        Self { server, sandbox }
    }

    pub(crate) fn route(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}/files{rest}", self.sandbox)
    }

    pub(crate) fn ask(&self, method: Method, rest: &str) -> RequestBuilder {
        self.server.request(method, &self.route(rest))
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.ask(Method::GET, &format!("?path={}", quoted(path)))
    }

    fn put(&self, path: &str, more: &str, content: impl Into<reqwest::Body>) -> RequestBuilder {
        self.ask(Method::PUT, &format!("?path={}{more}", quoted(path))).body(content)
    }

    pub(crate) async fn write(&self, path: &str, content: impl Into<reqwest::Body>) -> Value {
        good(self.put(path, "", content).send().await.unwrap()).await
    }

    async fn read(&self, path: &str) -> Vec<u8> {
        let response = self.get(path).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.bytes().await.unwrap().to_vec()
    }

    pub(crate) async fn post(&self, verb: &str, body: Value) -> reqwest::Response {
        self.server.post(&self.route(verb), &body).send().await.unwrap()
    }

    pub(crate) async fn shell(&self, command: &str) -> String {
        self.server.stdout("one", command).await
    }

    /// A connection on which a request was begun by hand.
    fn by_hand(&self, head: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.server.url.trim_start_matches("http://")).unwrap();
        let key = &self.server.key;
        write!(stream, "{head}\r\nHost: cabana\r\nAuthorization: Bearer {key}\r\n").unwrap();
        stream
    }
}

#[tokio::test]
async fn files_come_back_as_they_were_sent() {
    let files = Files::start().await;
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let entry = files.write("data.bin", content.clone()).await;
    assert_eq!((&entry["name"], &entry["type"], &entry["mode"]), (&json!("data.bin"), &json!("file"), &json!("0644")));
    assert_eq!(entry["size"], 3_000_000);
    assert_eq!(entry["path"], format!("{}/data.bin", files.shell("pwd").await.trim()));

    let answer = files.get("data.bin").send().await.unwrap();
    let headers = answer.headers().clone();
    for (name, value) in [
        ("content-length", "3000000"),
        ("accept-ranges", "bytes"),
        ("content-type", "application/octet-stream"),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(headers[name], value);
    }
    assert!(headers["content-disposition"].to_str().unwrap().starts_with("attachment; filename=\"data.bin\""));
    assert_eq!(answer.bytes().await.unwrap(), content);

    let head = files.ask(Method::HEAD, "?path=data.bin").send().await.unwrap();
    assert_eq!(head.status(), StatusCode::OK);
    assert_eq!(head.headers()["content-length"], "3000000");
    assert_eq!(head.headers()["etag"], headers["etag"]);
    assert!(head.bytes().await.unwrap().is_empty());

    let known = files.get("data.bin").header("If-None-Match", &headers["etag"]).send().await.unwrap();
    assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
    files.write("data.bin", "other").await;
    let changed = files.get("data.bin").header("If-None-Match", &headers["etag"]).send().await.unwrap();
    assert_eq!((changed.status(), changed.text().await.unwrap().as_str()), (StatusCode::OK, "other"));
    files.write("empty", "").await;
    assert!(files.read("empty").await.is_empty());
    assert!(String::from_utf8(files.read("/etc/passwd").await).unwrap().contains("root"));
}

#[tokio::test]
async fn one_range_is_served_and_what_makes_no_sense_is_not() {
    let files = Files::start().await;
    files.write("ten", "0123456789").await;
    let etag = files.get("ten").send().await.unwrap().headers()["etag"].clone();
    for (range, expected, place) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=-100", "0123456789", "bytes 0-9/10"),
        ("bytes=8-100", "89", "bytes 8-9/10"),
        ("bytes=0-18446744073709551614", "0123456789", "bytes 0-9/10"),
    ] {
        let answer = files.get("ten").header("Range", range).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::PARTIAL_CONTENT, "{range}");
        assert_eq!(answer.headers()["content-range"], place, "{range}");
        assert_eq!(answer.text().await.unwrap(), expected, "{range}");
    }
    for range in ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99999999999-"] {
        let answer = files.get("ten").header("Range", range).send().await.unwrap();
        assert_eq!(answer.headers()["content-range"], "bytes */10", "{range}");
        assert_eq!(refused(answer).await, (416, "bad_request".into()), "{range}");
    }
    for range in
        ["bytes=4-2", "bytes=a-b", "bytes=-", "bytes", "lines=1-2", "bytes=0-1,4-5", "bytes=0-18446744073709551615"]
    {
        let answer = files.get("ten").header("Range", range).send().await.unwrap();
        assert_eq!((answer.status(), answer.text().await.unwrap().as_str()), (StatusCode::OK, "0123456789"), "{range}");
    }
    let rest = |known: &str| files.get("ten").header("Range", "bytes=7-").header("If-Range", known).send();
    assert_eq!(rest(etag.to_str().unwrap()).await.unwrap().text().await.unwrap(), "789");
    assert_eq!(
        rest("\"another\"").await.unwrap().text().await.unwrap(),
        "0123456789",
        "the rest of another is of no use"
    );
}

#[tokio::test]
async fn xb_04_what_is_missing_is_told_from_what_else_is_wrong() {
    let files = Files::start().await;
    for path in ["missing", "/missing/too"] {
        assert_eq!(refused(files.get(path).send().await.unwrap()).await, (404, "not_found".into()));
        let stat = files.ask(Method::GET, &format!("/stat?path={}", quoted(path))).send().await.unwrap();
        assert_eq!(refused(stat).await, (404, "not_found".into()));
    }
    assert_eq!(refused(files.get("/etc").send().await.unwrap()).await, (409, "is_directory".into()));
    assert_eq!(refused(files.get("/etc/passwd/x").send().await.unwrap()).await, (409, "not_directory".into()));
    files.shell("mkfifo pipe; touch hidden; chmod 000 hidden").await;
    assert_eq!(refused(files.get("pipe").send().await.unwrap()).await, (409, "not_regular".into()));
}

#[tokio::test]
async fn xb_05_a_write_makes_no_parents_unless_it_is_told_to() {
    let files = Files::start().await;
    assert_eq!(refused(files.put("a/b/c", "", "x").send().await.unwrap()).await, (404, "not_found".into()));
    good(files.put("a/b/c", "&parents=true", "x").send().await.unwrap()).await;
    assert_eq!(files.read("a/b/c").await, b"x");
}

#[tokio::test]
async fn xb_07_more_than_500_mib_goes_neither_up_nor_down() {
    let files = Files::start().await;
    let mut up = files.by_hand(&format!("PUT {}?path=big HTTP/1.1", files.route("")));
    up.write_all(b"Content-Length: 524288001\r\n\r\n").unwrap();
    let mut told = [0; 64];
    let length = up.read(&mut told).unwrap();
    assert!(told[..length].starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&told));
    files.shell("truncate -s 524288001 big").await;
    assert_eq!(refused(files.get("big").send().await.unwrap()).await, (413, "too_large".into()));
    let part = files.get("big").header("Range", "bytes=524288000-").send().await.unwrap();
    assert_eq!(part.bytes().await.unwrap().as_ref(), [0], "a part of it can be had");
}

#[tokio::test]
async fn the_mode_says_what_becomes_of_what_is_there() {
    let files = Files::start().await;
    good(files.put("f", "&mode=create_new&perm=0600", "one").send().await.unwrap()).await;
    assert_eq!(
        refused(files.put("f", "&mode=create_new", "x").send().await.unwrap()).await,
        (409, "already_exists".into())
    );
    good(files.put("f", "&mode=append", " two").send().await.unwrap()).await;
    assert_eq!(files.read("f").await, b"one two");
    files.shell("ln f other").await;
    good(files.put("f", "&mode=in_place", "three").send().await.unwrap()).await;
    assert_eq!(files.shell("cat other; stat -c %a f").await, "three600\n", "the same file, with the mode that it had");
    good(files.put("f", "&mode=replace&perm=755", "four").send().await.unwrap()).await;
    assert_eq!(files.shell("cat other; stat -c %a f").await, "three755\n", "another file");
    for more in ["&mode=sideways", "&perm=999", "&perm=rw", "&perm=17777", "&perm=%2B644", "&perm=", "&what=1"] {
        assert_eq!(
            refused(files.put("f", more, "x").send().await.unwrap()).await,
            (400, "bad_request".into()),
            "{more}"
        );
    }
    assert_eq!(files.read("f").await, b"four");
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_the_old_file() {
    let files = Files::start().await;
    files.write("f", "old").await;
    let before = files.shell("ls -A").await;
    let long = vec![b'x'; 5 << 20];
    for how in ["Content-Length: 50000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n500000\r\n"] {
        let mut half = files.by_hand(&format!("PUT {}?path=f HTTP/1.1", files.route("")));
        half.write_all(how.as_bytes()).unwrap();
        half.write_all(&long).unwrap();
        drop(half);
    }
    let failed = || async {
        let calls = files.server.get("/v1/calls").await;
        let calls = calls["calls"].as_array().unwrap().clone();
        let broken = calls.iter().filter(|call| call["verb"] == "file.write" && call["state"] == "failed").count();
        (broken == 2).then_some(())
    };
    until(failed).await;
    assert_eq!(files.read("f").await, b"old");
    assert_eq!(files.shell("ls -A").await, before, "nothing is left behind");
}

#[tokio::test]
async fn no_path_leads_out_of_the_sandbox() {
    let files = Files::start().await;
    for path in
        ["..", "../x", "/a/../../etc/passwd", "a/./b", "a//b", "a/", "a\0b", "/\0", &"x".repeat(5000), &"y".repeat(256)]
    {
        for told in [
            files.get(path).send().await.unwrap(),
            files.put(path, "", "x").send().await.unwrap(),
            files.ask(Method::DELETE, &format!("?path={}&tree=true", quoted(path))).send().await.unwrap(),
            files.ask(Method::GET, &format!("/list?path={}", quoted(path))).send().await.unwrap(),
            files.ask(Method::GET, &format!("/zip?path={}", quoted(path))).send().await.unwrap(),
            files.ask(Method::GET, &format!("/watch?path={}", quoted(path))).send().await.unwrap(),
            files.post("/move", json!({ "path": "f", "to": path })).await,
            files.post("/search", json!({ "path": path })).await,
        ] {
            assert_eq!(refused(told).await, (400, "invalid_path".into()), "{path:?}");
        }
    }
    // A file of the host's own: by its path, and by links of each kind.
    let secret = files.server.data().join("admin.key");
    let secret = secret.to_str().unwrap();
    files
        .shell(&format!("ln -s {secret} direct; ln -s ../../../../../../../../..{secret} upwards; ln -s / root"))
        .await;
    for path in [secret, "direct", "upwards", &format!("root{secret}")] {
        assert_eq!(refused(files.get(path).send().await.unwrap()).await, (404, "not_found".into()), "{path}");
        assert_eq!(refused(files.put(path, "", "x").send().await.unwrap()).await, (404, "not_found".into()), "{path}");
    }
    assert_eq!(std::fs::read_to_string(secret).unwrap().trim(), files.server.key);
    let stat = good(files.ask(Method::GET, "/stat?path=direct").send().await.unwrap()).await;
    assert_eq!((&stat["type"], &stat["link"]), (&json!("symlink"), &json!(secret)));
    for user in ["nobody-here", "a%00b"] {
        let told =
            refused(files.ask(Method::GET, &format!("?path=/etc/passwd&user={user}")).send().await.unwrap()).await;
        assert_eq!(told.0, 400, "{user}: {told:?}");
    }
}

#[tokio::test]
async fn directories_are_made_listed_moved_and_removed() {
    let files = Files::start().await;
    let yes = async |response: reqwest::Response| assert_eq!(response.status(), StatusCode::NO_CONTENT);
    yes(files.post("/mkdir", json!({ "path": "d", "mode": "0700" })).await).await;
    assert_eq!(refused(files.post("/mkdir", json!({ "path": "d" })).await).await, (409, "already_exists".into()));
    yes(files.post("/mkdir", json!({ "path": "d/e/f", "parents": true, "mode": "0711" })).await).await;
    yes(files.post("/mkdir", json!({ "path": "d/e/f", "parents": true })).await).await;
    assert_eq!(files.shell("stat -c %a d d/e d/e/f").await, "700\n755\n711\n");
    yes(files.post("/mode", json!({ "path": "d/e", "mode": "0750" })).await).await;
    assert_eq!(files.shell("stat -c %a d/e").await, "750\n");
    files.shell("for n in 3 1 2 10; do echo $n > d/$n; done; ln -s 1 d/link").await;
    let mut names = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = good(files.ask(Method::GET, &format!("/list?path=d&limit=2{cursor}")).send().await.unwrap()).await;
        assert!(page["entries"].as_array().unwrap().len() <= 2);
        names
            .extend(page["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names, ["1", "10", "2", "3", "e", "link"]);
    yes(files.post("/move", json!({ "path": "d/10", "to": "ten" })).await).await;
    assert_eq!(files.read("ten").await, b"10\n");
    let remove = |rest: &str| files.ask(Method::DELETE, rest).send();
    assert_eq!(refused(remove("?path=d").await.unwrap()).await, (409, "not_empty".into()));
    yes(remove("?path=d&tree=true").await.unwrap()).await;
    yes(remove("?path=ten").await.unwrap()).await;
    assert_eq!(refused(remove("?path=ten").await.unwrap()).await, (404, "not_found".into()));
    files.shell("mkdir empty").await;
    assert_eq!(good(files.ask(Method::GET, "/list?path=empty").send().await.unwrap()).await["entries"], json!([]));
    let home = good(files.ask(Method::GET, "/list").send().await.unwrap()).await;
    assert!(home["entries"].as_array().unwrap().iter().any(|entry| entry["name"] == "empty"), "{home}");
    for rest in ["/list?limit=0", "/list?limit=1001", "/list?cursor=%21", "/list?order=size"] {
        assert_eq!(
            refused(files.ask(Method::GET, rest).send().await.unwrap()).await,
            (400, "bad_request".into()),
            "{rest}"
        );
    }
}

#[tokio::test]
async fn a_search_finds_files_and_lines_and_says_when_there_is_more() {
    let files = Files::start().await;
    files.shell("mkdir src; for n in 1 2 3; do echo \"needle $n\" > src/$n.py; done; echo needle > src/x.txt; seq 1000 > many").await;
    let found = good(files.post("/search", json!({ "globs": ["**/*.py"] })).await).await;
    assert_eq!((found["hits"].as_array().unwrap().len(), &found["cut_off"]), (3, &Value::Null));
    let found = good(files.post("/search", json!({ "path": "src", "grep": "needle [23]" })).await).await;
    let mut lines: Vec<_> = found["hits"].as_array().unwrap().iter().map(|hit| hit["text"].as_str().unwrap()).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["needle 2", "needle 3"]);
    let found = good(files.post("/search", json!({ "globs": ["many"], "grep": "1", "limit": 5 })).await).await;
    assert_eq!((found["hits"].as_array().unwrap().len(), &found["cut_off"]), (5, &json!("limit")));
    files.shell("head -c 3000000 /dev/zero | tr '\\0' x > long").await;
    let found = good(files.post("/search", json!({ "globs": ["long"], "grep": "xx" })).await).await;
    assert_eq!((found["hits"][0]["text"].as_str().unwrap().len(), &found["hits"][0]["longer"]), (1024, &json!(true)));
    for bad in [
        json!({ "grep": "(" }),
        json!({ "globs": ["[" ] }),
        json!({ "limit": 0 }),
        json!({ "timeout_ms": 60_001 }),
        json!({ "limit": 10_001 }),
        json!({ "globs": vec!["*"; 101] }),
    ] {
        assert_eq!(refused(files.post("/search", bad.clone()).await).await, (400, "bad_request".into()), "{bad}");
    }
}

#[tokio::test]
async fn a_slow_reader_holds_up_nobody() {
    let files = Files::start().await;
    files.shell("truncate -s 100M big; echo small > small").await;
    let readers: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut reader = files.by_hand(&format!("GET {}?path=big HTTP/1.1", files.route("")));
            reader.write_all(b"\r\n").unwrap();
            let mut first = [0; 12];
            reader.read_exact(&mut first).unwrap();
            assert_eq!(&first, b"HTTP/1.1 200");
            reader
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(files.read("small").await, b"small\n");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", files.server.pid())).unwrap();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 400 << 10, "50 readers of 100 MiB each: {kib} KiB");
    drop(readers);
}

/// What another program says of an archive.
fn zip_is_whole(archive: &[u8]) -> Result<String, String> {
    let place = tempfile::NamedTempFile::new().unwrap();
    place.as_file().write_all(archive).unwrap();
    let script = "import sys, zipfile\nz = zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\nprint(sorted(z.namelist()))";
    let ran = Command::new("python3").arg("-c").arg(script).arg(place.path()).output().unwrap();
    match ran.status.success() {
        true => Ok(String::from_utf8(ran.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&ran.stderr).into_owned()),
    }
}

#[tokio::test]
async fn a_folder_comes_as_a_zip() {
    let files = Files::start().await;
    files
        .shell("mkdir -p d/empty d/e; echo one > d/one; head -c 1000000 /dev/urandom > d/e/noise; ln -s one d/link")
        .await;
    let answer = files.ask(Method::GET, "/zip?path=d").send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/zip");
    assert!(answer.headers()["content-disposition"].to_str().unwrap().starts_with("attachment; filename=\"d.zip\""));
    let archive = answer.bytes().await.unwrap();
    assert_eq!(zip_is_whole(&archive).unwrap(), "['e/', 'e/noise', 'empty/', 'link', 'one']\n");
    assert_eq!(
        refused(files.ask(Method::GET, "/zip?path=d/one").send().await.unwrap()).await,
        (409, "not_directory".into())
    );
    assert_eq!(refused(files.ask(Method::GET, "/zip?path=no").send().await.unwrap()).await, (404, "not_found".into()));
}

#[tokio::test]
async fn a_zip_of_a_tree_that_changes_is_whole_or_breaks_off() {
    let files = Files::start().await;
    let churn = "mkdir t; cd t; for d in 1 2 3 4 5 6 7 8; do mkdir $d; head -c 300000 /dev/urandom > $d/noise; done; touch ../ready
        while true; do for d in 1 2 3 4 5 6 7 8; do
            rm -rf $d; mkdir -p $d/deep; head -c 300000 /dev/urandom > $d/noise; : > $d/noise; seq 20000 >> $d/noise; mv $d $d.moved; mv $d.moved $d
        done; done";
    let task = files.server.begin("one", churn).await;
    until(|| async { files.get("ready").send().await.unwrap().status().is_success().then_some(()) }).await;
    let mut whole = 0;
    for _ in 0..10 {
        let answer = files.ask(Method::GET, "/zip?path=t").send().await.unwrap();
        if answer.status() == StatusCode::OK
            && let Ok(archive) = answer.bytes().await
        {
            zip_is_whole(&archive).unwrap();
            whole += 1;
        }
    }
    assert!(whole > 0, "some come through");
    good(files.server.post(&format!("/v1/tasks/{task}/cancel"), &json!({})).send().await.unwrap()).await;
}

/// Exchanges a directory and a link to another one without a pause.
const SWAP: &str = "python3 -c 'import ctypes, os
libc = ctypes.CDLL(None)
os.makedirs(\"t/d\")
open(\"t/d/f\", \"w\").write(\"mine\")
os.symlink(\"/tmp/other\", \"t/l\")
open(\"ready\", \"w\")
while True: libc.renameat2(-100, b\"t/d\", -100, b\"t/l\", 2)'";

#[tokio::test]
async fn a_zip_of_a_tree_in_which_a_directory_becomes_a_link_has_nothing_from_elsewhere() {
    let files = Files::start().await;
    files.shell("mkdir /tmp/other; echo x > /tmp/other/elsewhere").await;
    let task = files.server.begin("one", SWAP).await;
    until(|| async { files.get("ready").send().await.unwrap().status().is_success().then_some(()) }).await;
    // By its path the other file is there, half of the time.
    until(|| async { files.get("t/d/elsewhere").send().await.unwrap().status().is_success().then_some(()) }).await;
    let mut mine = 0;
    for _ in 0..100 {
        let answer = files.ask(Method::GET, "/zip?path=t").send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        // Names are not packed.
        let archive = answer.bytes().await.unwrap();
        let has = |name: &[u8]| archive.windows(name.len()).any(|window| window == name);
        assert!(!has(b"elsewhere"), "{:?}", zip_is_whole(&archive));
        mine += usize::from(has(b"/f"));
    }
    assert!(mine > 0, "what lies there was never in it");
    good(files.server.post(&format!("/v1/tasks/{task}/cancel"), &json!({})).send().await.unwrap()).await;
}
