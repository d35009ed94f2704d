//! What the document says of the interface holds, whatever is sent: schemathesis makes requests of it, good and bad, and judges
//! the answers.

use std::{path::PathBuf, process::Command};

use serde_json::json;

use crate::stage::{Server, cache, good, setting};

/// As scripts/setup installs it.
fn schemathesis() -> PathBuf {
    let program = cache().join("schemathesis/bin/schemathesis");
    assert!(program.exists(), "there is no {}: run scripts/setup", program.display());
    program
}

/// No failure of the server, and no answer that the document does not have; and what the document forbids is refused.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance,negative_data_rejection,unsupported_method,missing_required_header,\
                      use_after_free,ignored_auth";

fn examine(server: &Server, key: &str, examples: u64, which: &[&str]) {
    let folder = tempfile::tempdir().unwrap(); // it leaves its notes where it stands
    let mut command = Command::new(schemathesis());
    command.current_dir(folder.path()).args(["--no-color", "run", &format!("{}/openapi.json", server.url)]);
    // Both, or it would make up the other.
    command.args(["-H", &format!("Authorization: Bearer {key}"), "-H", &format!("X-API-KEY: {key}")]);
    command.args(["--checks", CHECKS, "--phases", "examples,coverage,fuzzing,stateful"]);
    command.args(["--seed", &setting("CABANA_SEED").unwrap_or(1).to_string()]);
    command.args(["--max-examples", &examples.to_string(), "--generation-database", "none"]);
    command.args(["--request-timeout", "60", "--continue-on-failure", "--no-shrink", "--workers", "1"]).args(which);
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("No issues found") || said.contains("passed"), "{said}");
}

/// `CABANA_SOAK_ROUNDS` makes more of it, `CABANA_SEED` something else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_every_answer_is_one_that_the_document_has() {
    let server = Server::start();
    let examples = setting("CABANA_SOAK_ROUNDS").map_or(6, |rounds| rounds.div_ceil(5));
    // Something to find: it takes ids from what it is answered.
    server.stdout("one", "echo said; mkdir -p folder; echo text > file").await;
    server.begin("one", "echo said; sleep 600").await;
    good(server.post("/v1/keys", &json!({ "role": "read" })).send().await.unwrap()).await;
    let key = server.key_for("default", "admin").await;
    examine(
        &server,
        &key,
        examples,
        &[
            // A stream without an end is never answered whole: events.rs and files_watch.rs look at them.
            "--exclude-path=/v1/events",
            "--exclude-path=/v1/sandboxes/{sandbox}/files/watch",
            // It can write no tar: templates.rs sends some, whole and broken.
            "--exclude-name=POST /v1/templates",
            // It finds its own key in the list, and revokes it: it has its turn below.
            "--exclude-path=/v1/keys/{key}",
        ],
    );
    examine(&server, &key, examples, &["--include-path=/v1/keys/{key}"]);
    assert_eq!(server.stdout("one", "cat file || echo gone; echo fine").await.lines().last(), Some("fine"));
    let faults = server.said().into_iter().filter(|line| line.contains("ERROR")).collect::<Vec<_>>();
    assert!(faults.is_empty(), "{faults:?}");
}
