//! Templates and snapshots of a server, from the command line.

use std::{fs::File, process::Command};

use serde_json::Value;

use super::{Ended, bare, cabana, ends, fails, says};
use crate::{root, stage::Server};

/// The binary, for whoever names the server.
fn at(server: &Server, key: &str, words: &[&str]) -> Command {
    let mut command = bare(words);
    command.env("CABANA_URL", &server.url).env("CABANA_API_KEY", key);
    command
}

#[track_caller]
fn well(command: Command) -> String {
    let ended: Ended = ends(command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.stdout
}

#[test]
fn templates_of_a_server_are_made_listed_shown_used_and_removed() {
    let server = Server::start();
    let (dir, tar) = (server.data().join("root"), server.data().join("root.tar"));
    root::make(&dir);
    root::tar(&dir, &tar);
    let (from, key) = (tar.to_str().unwrap(), server.key.as_str());
    let wishes = ["--user", "maker", "--workdir", "/srv/work", "--env", "MOTTO=hunter2", "--sudo"];
    well(at(&server, key, &[&["template", "add", "mine", "--from", from], &wishes[..]].concat()));
    let mut piped = at(&server, key, &["template", "add", "piped", "--from", "-"]);
    piped.stdin(File::open(&tar).unwrap());
    well(piped);

    let listed = well(at(&server, key, &["template", "ls"]));
    assert!(listed.lines().count() == 3 && listed.contains("maker") && listed.contains("/srv/work"), "{listed}");
    let json: Value = serde_json::from_str(&well(at(&server, key, &["template", "ls", "--json"]))).unwrap();
    assert_eq!(json[0]["layers"][0], json[1]["layers"][0], "one tar, one layer: {json}");
    let shown = well(at(&server, key, &["template", "inspect", "mine"]));
    assert!(shown.contains("MOTTO") && shown.contains("maker") && !shown.contains("hunter2"), "{shown}");
    // They are those of the server's own machine.
    let here = ends(cabana(&server, &["template", "ls"])).stdout;
    assert_eq!(here, listed);

    let script = "id -u; pwd; echo $MOTTO; cat /etc/motto";
    let used = well(at(&server, key, &["exec", "--template", "mine", "box", "--", "sh", "-c", script]));
    assert_eq!(used, "1234\n/srv/work\nhunter2\nmade by hand\n");
    fails(at(&server, key, &["template", "rm", "mine"]), 1, "template_in_use");
    says(&server, &["rm", "box"]);
    well(at(&server, key, &["template", "rm", "mine"]));
    fails(at(&server, key, &["template", "inspect", "mine"]), 1, "template_not_found");
    fails(at(&server, key, &["template", "add", "piped", "--from", from]), 1, "template_exists");
    for (from, says) in [
        (dir.to_str().unwrap(), "tar --numeric-owner"),
        ("debian:bookworm", "mmdebstrap"),
        ("oci:/tmp", "image in layers"),
        ("/no/such", "No such"),
    ] {
        let told = fails(at(&server, key, &["template", "add", "other", "--from", from]), 1, "bad_request");
        assert!(told.contains(says), "{told}");
    }
    let add = ["template", "add", "other", "--from", from];
    let using = says(&server, &["key", "add", "--role", "use"]).trim().to_owned();
    fails(at(&server, &using, &add), 1, "forbidden");
    assert!(well(at(&server, &using, &["template", "ls"])).contains("piped"));
}

#[test]
fn a_bad_archive_is_told_also_when_much_of_it_is_still_to_come() {
    let server = Server::start();
    let bad = server.data().join("bad.tar");
    File::create(&bad).unwrap().set_len(256 << 20).unwrap();
    let mut words = vec![b'x'; 4096];
    words.extend([0; 4096]);
    std::os::unix::fs::FileExt::write_all_at(&File::options().write(true).open(&bad).unwrap(), &words, 0).unwrap();
    let add = ["template", "add", "bad", "--from", bad.to_str().unwrap()];
    fails(at(&server, &server.key, &add), 1, "archive_invalid");
}

#[test]
fn snapshots_are_taken_listed_forked_and_let_go() {
    let server = Server::start();
    says(&server, &["exec", "box", "--", "sh", "-c", "echo kept > note"]);
    let snapshot = says(&server, &["snapshot", "add", "box"]).trim().to_owned();
    says(&server, &["exec", "box", "--", "rm", "note"]);
    assert_eq!(says(&server, &["exec", "--snapshot", &snapshot, "fork", "--", "cat", "note"]), "kept\n");
    assert!(says(&server, &["ls"]).contains(&snapshot), "what it was made from is listed");
    let listed = says(&server, &["snapshot", "ls", "box"]);
    assert!(listed.lines().count() == 2 && listed.contains(&snapshot), "{listed}");
    assert_eq!(says(&server, &["snapshot", "ls", "fork", "--json"]), "[]\n");
    let shown: Value = serde_json::from_str(&says(&server, &["snapshot", "inspect", &snapshot])).unwrap();
    assert_eq!(shown["id"], Value::from(snapshot.as_str()));
    assert_eq!(says(&server, &["snapshot", "rm", &snapshot]), format!("{snapshot}\n"));
    fails(cabana(&server, &["snapshot", "inspect", &snapshot]), 1, "snapshot_not_found");
    fails(cabana(&server, &["exec", "--snapshot", &snapshot, "late", "--", "true"]), 125, "snapshot_not_found");
    fails(cabana(&server, &["snapshot", "add", "nobody"]), 1, "sandbox_not_found");
}
