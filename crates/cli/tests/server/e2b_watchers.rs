//! What watchers of E2B's clients that do not ask take of the server.

use serde_json::{Value, json};

use crate::{sdk::Sdk, stage::until};

const CREATE: &str = "/filesystem.Filesystem/CreateWatcher";
const EVENTS: &str = "/filesystem.Filesystem/GetWatcherEvents";

/// Two files with much to tell of them: a long path, and much that is attached.
const FILES: &str = "
import os
os.chdir('/home/user')
for _ in range(14):
    os.mkdir('s' * 240)
    os.chdir('s' * 240)
for name in 'ab':
    open(name, 'w').close()
    os.setxattr(name, b'user.e2b.t', b'v' * 3300)
print(os.getcwd())
";

/// So slowly that the server hears of each.
const CHANGES: &str = "
import os, time
for n in range(3000):
    os.chmod('ab'[n % 2], 0o600 + n // 2 % 2 * 0o44)
    time.sleep(0.001)
";

impl Sdk {
    pub(crate) async fn python(&self, dir: &str, script: &str) -> String {
        let (said, end) = self.run(&format!("cd {dir} && python3 - <<'EOF'\n{script}\nEOF")).await;
        assert!(end["exitCode"].is_null(), "{said} {end}"); // zero is left out
        said
    }

    async fn watcher(&self, path: &str) -> Value {
        self.call(CREATE, json!({ "path": path, "includeEntry": true })).await["watcherId"].clone()
    }
}

/// The most that the server has had, in MiB.
pub(crate) fn peak_memory(sdk: &Sdk) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", sdk.server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn events_that_nobody_asks_for_do_not_fill_the_server_s_memory() {
    let sdk = Sdk::start().await;
    let dir = sdk.python("/", FILES).await.trim().to_owned();
    let before = peak_memory(&sdk);
    let mut watchers = Vec::new();
    for _ in 0..24 {
        watchers.push(sdk.watcher(&dir).await);
    }
    sdk.python(&dir, CHANGES).await;
    // Each tells what was kept, and then that more was lost.
    for id in &watchers {
        let lost = until(|| async {
            let answer = sdk.unary(EVENTS, json!({ "watcherId": id })).await;
            let (status, body): (_, Value) = (answer.status(), answer.json().await.unwrap());
            (status != 200).then_some((status, body))
        });
        let (status, body) = lost.await;
        assert_eq!((status.as_u16(), &body["code"]), (429, &json!("resource_exhausted")), "{body}");
    }
    let more = peak_memory(&sdk) - before;
    assert!(more < 120, "{more} MiB for what 24 watchers were told");
    // One that asks hears of everything.
    let id = sdk.watcher("/home/user").await;
    sdk.write("told.txt", "x").await;
    until(|| async {
        let told = sdk.call(EVENTS, json!({ "watcherId": id })).await;
        told["events"].as_array().unwrap().iter().any(|event| event["name"] == "told.txt").then_some(())
    })
    .await;
}
