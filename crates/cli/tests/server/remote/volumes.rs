//! Volumes of a server, from the command line.

use serde_json::Value;

use super::{cabana, fails, says};
use crate::stage::Server;

#[test]
fn volumes_are_made_listed_shown_and_removed() {
    let server = Server::start();
    assert_eq!(says(&server, &["volume", "create", "models"]), "models\n");
    says(&server, &["volume", "create", "cache", "--json"]);
    let listed = says(&server, &["volume", "ls"]);
    assert!(listed.lines().count() == 3 && listed.contains("models"), "{listed}");
    let json: Value = serde_json::from_str(&says(&server, &["volume", "ls", "--json"])).unwrap();
    assert_eq!((json[0]["name"].as_str(), json[1]["name"].as_str()), (Some("cache"), Some("models")));
    let shown: Value = serde_json::from_str(&says(&server, &["volume", "inspect", "models"])).unwrap();
    assert!(shown["bytes"].is_u64(), "{shown}");
    fails(cabana(&server, &["volume", "create", "models"]), 1, "volume_exists");
    fails(cabana(&server, &["volume", "create", "No Name"]), 1, "bad_request");
    says(&server, &["exec", "--mount", "models:/m", "one", "--", "sh", "-c", "echo kept > /m/note"]);
    let read =
        says(&server, &["exec", "--mount", "models:/m:ro", "two", "--", "sh", "-c", "cat /m/note; touch /m/x || :"]);
    assert_eq!(read, "kept\n");
    fails(cabana(&server, &["volume", "rm", "models"]), 1, "volume_in_use");
    fails(cabana(&server, &["exec", "--mount", "models", "three", "--", "ls"]), 125, "bad_request");
    fails(cabana(&server, &["exec", "--mount", "/etc:/m", "three", "--", "ls"]), 125, "mount_denied");
    says(&server, &["rm", "one", "two"]);
    assert_eq!(says(&server, &["volume", "rm", "models", "cache"]), "models\ncache\n");
    fails(cabana(&server, &["volume", "rm", "models"]), 1, "volume_not_found");
}
