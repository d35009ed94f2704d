//! A server that is told what to do by a file.

use serde_json::{Value, json};

use crate::stage::Server;

#[tokio::test]
async fn a_file_shapes_the_sandboxes_and_a_flag_beats_it() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("cabana.toml");
    let text = "[limits]\nmemory = \"256M\"\npids = 64\nexec_timeout = \"300ms\"\n[network]\nmode = \"off\"\n";
    std::fs::write(&file, text).unwrap();
    let server = Server::start_with(&["--config", file.to_str().unwrap(), "--pids", "128"]);
    let sandbox: Value = server.ensure("one").await;
    assert_eq!(sandbox["limits"]["memory_bytes"], json!(256 << 20));
    assert_eq!((&sandbox["limits"]["pids"], &sandbox["network"]["mode"]), (&json!(128), &json!("off")));
    assert_eq!(server.exec("one", "sleep 600").await["status"], "timed_out");
}
