//! A little of everything, each under a key of its own, so that it can be asked for again after a kill.

use std::sync::Mutex;

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::stage::Server;

pub(crate) const WORKERS: u64 = 4;
/// Sandboxes that stay, and in which commands run.
pub(crate) const SCOPES: u64 = 2;
/// One that is stopped, paused and changed all the time: a command in it would end by that.
const SHAPED: &str = "shaped";
/// A volume that it sees now here, now there.
const MOUNTED: &str = "mounted";
/// So many lines fit into no memory of the server, and who says them takes its time.
pub(crate) const LONG: u64 = 8000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A command that is waited for, and says so many lines.
    Run(u64),
    /// The same in a sandbox for this call alone.
    Once,
    /// A command in the background, which says them little by little.
    Start(u64),
    /// One that would go on for ever; it is cancelled next.
    Endless,
    /// A file of so many bytes. One of more than a few comes in pieces, and does not say how long it will be.
    Upload(u64),
    Folder,
    Make,
    Delete,
    Stop,
    Archive,
    /// Of an app that has none.
    Purge,
    Pause,
    /// So that there is something new to be snapshotted.
    Touch,
    /// A snapshot is taken, and deleted.
    Take,
    Forget,
    /// A volume is made, and deleted.
    Volume,
    Unmake,
    Wake,
    Change,
    /// Another place for what is mounted.
    Mount,
    Key,
    Look,
}

/// What was asked, and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct Deed {
    pub(crate) n: u64,
    pub(crate) what: What,
    /// The sandbox or task that it is about, if it was made by another deed.
    pub(crate) about: Option<String>,
    pub(crate) told: Option<Told>,
    /// Whether a kill came before its answer.
    pub(crate) again: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    Done(Value),
    /// A crash took it.
    Unknown,
}

impl Deed {
    /// Its place: deeds are spread over the scopes.
    pub(crate) fn scope(&self) -> String {
        match self.what {
            What::Stop
            | What::Archive
            | What::Pause
            | What::Wake
            | What::Change
            | What::Take
            | What::Touch
            | What::Mount => SHAPED.to_owned(),
            _ => format!("scope{}", self.n % SCOPES),
        }
    }

    pub(crate) fn done(&self) -> Option<&Value> {
        if let Some(Told::Done(answer)) = &self.told { Some(answer) } else { None }
    }

    /// A name that only this deed has.
    pub(crate) fn name(&self) -> String {
        format!("deed-{}-", self.n)
    }

    /// What it uploads.
    pub(crate) fn content(&self) -> Vec<u8> {
        let What::Upload(bytes) = self.what else { return Vec::new() };
        (0..bytes).map(|at| ((at * 7 + self.n) % 251) as u8).collect()
    }

    fn command(&self) -> String {
        let (n, name) = (self.n, self.name());
        match self.what {
            What::Run(lines @ LONG..) => {
                format!("echo {n} >> log; seq 1 {LONG}; sleep 0.3; seq {} {lines}; : {name}", LONG + 1)
            }
            What::Run(lines) => format!("echo {n} >> log; seq 1 {lines}; : {name}"),
            What::Start(lines) => format!(
                "echo {n} >> log; i=0; while [ $i -lt {lines} ]; do seq $((i+1)) $((i+500)); i=$((i+500)); sleep 0.01; done; : {name}"
            ),
            What::Endless => format!("echo {n} >> log; while :; do sleep 0.1; done; : {name}"),
            _ => format!("echo {n}; : {name}"),
        }
    }

    /// As it is asked, the first time and each time after.
    fn request(&self, server: &Server, sandboxes: &[String], shaped: &str) -> RequestBuilder {
        let scope = json!({ "scheme": "fixed", "name": self.scope() });
        let of_scope = &sandboxes[(self.n % SCOPES) as usize];
        let about = self.about.clone().unwrap_or_default();
        let file = format!("/v1/sandboxes/{of_scope}/files");
        let request = match self.what {
            What::Run(_) => server.post("/v1/exec", &json!({ "scope": scope, "command": self.command() })),
            What::Once => server.post("/v1/exec", &json!({ "command": self.command() })),
            What::Start(_) | What::Endless => {
                server.post("/v1/exec", &json!({ "scope": scope, "command": self.command(), "background": true }))
            }
            What::Upload(bytes) => {
                let put = server.request(Method::PUT, &format!("{file}?path={}", self.name()));
                match bytes > 4096 {
                    true => put.body(in_pieces(&self.content(), 10_000)),
                    false => put.body(self.content()),
                }
            }
            What::Folder => server.post(&format!("{file}/mkdir"), &json!({ "path": self.name() })),
            What::Make => server.post("/v1/sandboxes", &json!({ "env": { "NAME": self.name() } })),
            What::Delete => server.request(Method::DELETE, &format!("/v1/sandboxes/{about}")),
            What::Stop => server.request(Method::POST, &format!("/v1/sandboxes/{shaped}/stop")),
            What::Archive => server.request(Method::POST, &format!("/v1/sandboxes/{shaped}/archive")),
            What::Purge => server.post("/v1/sandboxes:delete", &json!({ "app": "nobodys" })),
            What::Pause => server.request(Method::POST, &format!("/v1/sandboxes/{shaped}/pause")),
            What::Wake => server.request(Method::POST, &format!("/v1/sandboxes/{shaped}/start")),
            What::Touch => server.post(&format!("/v1/sandboxes/{shaped}/files/mkdir"), &json!({ "path": self.name() })),
            What::Take => server.request(Method::POST, &format!("/v1/sandboxes/{shaped}/snapshots")),
            What::Forget => server.request(Method::DELETE, &format!("/v1/snapshots/{about}")),
            What::Change => {
                let limits = json!({ "limits": { "pids": 100 + self.n % 100 } });
                server.request(Method::PATCH, &format!("/v1/sandboxes/{shaped}")).json(&limits)
            }
            What::Mount => {
                let at = format!("/srv/place{}", self.n % 3);
                let mounts = json!({ "extra_mounts": [{ "volume": MOUNTED, "mount_path": at }] });
                server.request(Method::PATCH, &format!("/v1/sandboxes/{shaped}")).json(&mounts)
            }
            What::Volume => server.post("/v1/volumes", &json!({ "name": self.name() })),
            What::Unmake => server.request(Method::DELETE, &format!("/v1/volumes/{about}")),
            What::Key => server.post("/v1/keys", &json!({ "tenant": "default", "role": "read", "name": self.name() })),
            What::Look => server.request(Method::GET, &format!("{file}/stat?path=/etc/passwd")),
        };
        request.header("Idempotency-Key", self.name())
    }
}

/// All that a run chooses follows from its seed.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        // A generator of Knuth's is chance enough.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// So that nobody knows how long it will be.
pub(crate) fn in_pieces(content: &[u8], size: usize) -> reqwest::Body {
    let pieces: Vec<_> = content.chunks(size).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
    reqwest::Body::wrap_stream(futures_util::stream::iter(pieces))
}

/// All deeds, whichever server saw them.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) deeds: Mutex<Vec<Deed>>,
    pub(crate) sandboxes: Vec<String>,
    pub(crate) shaped: String,
}

impl World {
    pub(crate) async fn begin(server: &Server) -> Self {
        let mut world = Self::default();
        for scope in 0..SCOPES {
            world.sandboxes.push(server.ensure(&format!("scope{scope}")).await["id"].as_str().unwrap().to_owned());
        }
        crate::stage::good(server.post("/v1/volumes", &json!({ "name": MOUNTED })).send().await.unwrap()).await;
        world.shaped = server.ensure(SHAPED).await["id"].as_str().unwrap().to_owned();
        world
    }

    pub(crate) fn all(&self) -> Vec<Deed> {
        self.deeds.lock().unwrap().clone()
    }

    fn set(&self, n: u64, told: Told) {
        self.deeds.lock().unwrap()[n as usize].told = Some(told);
    }

    /// The next deed, whatever it is: one of each kind, again and again.
    fn plan(&self) -> Deed {
        const KINDS: u64 = 25;
        let mut deeds = self.deeds.lock().unwrap();
        let n = deeds.len() as u64;
        let what = match n % KINDS {
            0 => What::Start(1000 + n % 7 * 2500),
            1 => What::Run(n % 50),
            2 => What::Upload(n % 4096),
            3 => What::Make,
            4 => What::Look,
            5 => What::Endless,
            6 => What::Upload(50_000 + n * 1000 % 150_000),
            7 => What::Run(LONG + n % 5 * 1000),
            8 => What::Stop,
            9 => What::Once,
            10 => What::Folder,
            11 => What::Delete,
            12 | 15 => What::Take, // of one that is stopped, and of one that runs
            13 => What::Wake,
            14 => What::Key,
            16 => What::Forget,
            17 => What::Pause,
            18 => What::Touch,
            19 => What::Archive,
            20 => What::Purge,
            21 => What::Volume,
            22 => What::Unmake,
            23 => What::Mount,
            _ => What::Change, // and so it goes on
        };
        let about = match what {
            What::Delete => unasked(&deeds, What::Make),
            What::Forget => unasked(&deeds, What::Take),
            What::Unmake => unasked(&deeds, What::Volume),
            _ => None,
        };
        // Where there is nothing to delete, something is looked at.
        let what = if matches!(what, What::Delete | What::Forget | What::Unmake) && about.is_none() {
            What::Look
        } else {
            what
        };
        add(&mut deeds, what, about)
    }

    pub(crate) fn add(&self, what: What) -> Deed {
        add(&mut self.deeds.lock().unwrap(), what, None)
    }

    /// Until the server is gone.
    pub(crate) async fn load(&self, server: &Server) {
        futures_util::future::join_all((0..WORKERS).map(|_| async { while self.one(server).await {} })).await;
    }

    async fn one(&self, server: &Server) -> bool {
        let deed = self.plan();
        self.perform(server, &deed).await.is_ok()
    }

    /// An error when the server is gone.
    pub(crate) async fn perform(&self, server: &Server, deed: &Deed) -> reqwest::Result<()> {
        let told = self.ask(server, deed).await?;
        if let (What::Endless, Told::Done(task)) = (deed.what, &told) {
            let path = format!("/v1/tasks/{}/cancel", task["id"].as_str().unwrap());
            let answer = server.request(Method::POST, &path).send().await?;
            let (status, answer) = (answer.status(), answer.json::<Value>().await?);
            assert_eq!(status, StatusCode::OK, "{deed:?}: {answer}");
            // A kill may come between its begin and its row, or after it was told to end.
            let told_before = answer["state"] == "unknown" || answer["exit"]["signal"] == 15;
            assert!(answer["state"] == "cancelled" || (deed.again && told_before), "{deed:?}: {answer}");
            self.set(deed.n, Told::Done(answer));
            return Ok(());
        }
        self.set(deed.n, told);
        Ok(())
    }

    /// An error when the server is gone.
    pub(crate) async fn ask(&self, server: &Server, deed: &Deed) -> reqwest::Result<Told> {
        let answer = deed.request(server, &self.sandboxes, &self.shaped).send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        let body: Value = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
        if status.is_success() {
            return Ok(Told::Done(body));
        }
        let code = body["error"]["code"].as_str().unwrap_or_default();
        let may_be = match deed.what {
            What::Pause => code == "bad_request", // only what runs can be paused
            What::Change | What::Mount | What::Touch => code == "sandbox_gone", // it was stopped meanwhile
            _ => false,
        };
        assert!(code == "outcome_unknown" || may_be, "{deed:?}: {status} {body}");
        Ok(if may_be { Told::Done(Value::Null) } else { Told::Unknown })
    }

    /// What was asked for and not answered is asked again, and is answered now: by what came of it, or honestly by `unknown`.
    pub(crate) async fn ask_again(&self, server: &Server) {
        for deed in self.deeds.lock().unwrap().iter_mut() {
            deed.again |= deed.told.is_none();
        }
        for deed in self.all().iter().filter(|deed| deed.told.is_none()) {
            self.perform(server, deed).await.unwrap_or_else(|error| panic!("{deed:?}: {error:?}"));
        }
    }
}

fn add(deeds: &mut Vec<Deed>, what: What, about: Option<String>) -> Deed {
    let deed = Deed { n: deeds.len() as u64, what, about, told: None, again: false };
    deeds.push(deed.clone());
    deed
}

/// What an answer tells of: a volume has a name, and no number.
pub(crate) fn named(made: &Value) -> Option<&str> {
    made["id"].as_str().or(made["name"].as_str())
}

/// A sandbox, a snapshot or a volume that was made, and that nobody has asked to be deleted.
fn unasked(deeds: &[Deed], what: What) -> Option<String> {
    let made = deeds.iter().filter(|deed| deed.what == what).filter_map(Deed::done);
    let mut ids = made.filter_map(named);
    ids.find(|id| !deeds.iter().any(|deed| deed.about.as_deref() == Some(id))).map(str::to_owned)
}
