//! Many scopes that are used, rest, are packed away, deleted and forgotten, while the clock runs and servers are killed. What is
//! there is compared with a model of it.
//!
//! `CABANA_SEED` replays a run; with `CABANA_SOAK_ROUNDS` there are ten thousand scopes, for ten minutes at most.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    load::Chance,
    stage::{Server, setting, until},
};

const WORKERS: usize = 4;
/// As many chats as an app has.
const CHATS: usize = 4;
/// What all rest after that do.
const IDLE: i64 = 60;

struct Scale {
    scopes: usize,
    rounds: u64,
    deeds: u64,
    most: Duration,
}

impl Scale {
    fn of_run() -> Self {
        match setting("CABANA_SOAK_ROUNDS") {
            None => Self { scopes: 24, rounds: 6, deeds: 10, most: Duration::MAX },
            Some(rounds) => Self { scopes: 10_000, rounds, deeds: 200, most: Duration::from_secs(600) },
        }
    }
}

/// How the sandbox of a scope lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Stops,
    Archives,
    Pauses,
    /// It is gone when it was idle, and its files too.
    Vanishes,
    /// Whatever happens in it.
    Hard,
}

impl Way {
    fn of(n: usize) -> Self {
        [Self::Stops, Self::Archives, Self::Pauses, Self::Vanishes, Self::Hard][n % 5]
    }

    fn lifecycle(self) -> Value {
        match self {
            Self::Stops => json!({ "idle_sec": IDLE }),
            Self::Archives => json!({ "idle_sec": IDLE, "archive_after_sec": 3 * IDLE }),
            Self::Pauses => json!({ "idle_sec": IDLE, "idle_action": "pause" }),
            Self::Vanishes => json!({ "idle_sec": IDLE, "idle_action": "delete" }),
            Self::Hard => json!({ "idle_sec": 0, "hard_sec": 4 * IDLE }),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    Use,
    Stop,
    Pause,
    Archive,
    Delete,
    Work,
    DeleteApp,
}

/// What the model knows of a scope.
#[derive(Clone, Debug)]
struct Chat {
    n: usize,
    way: Way,
    /// The lines of its log. `None`: there is nothing.
    log: Vec<String>,
    id: Option<String>,
    /// A task that nothing but what is asked for may end.
    task: Option<String>,
    /// It may have vanished since, with its log.
    doubtful: bool,
    /// By the clock of the test, in seconds.
    used: i64,
    deeds: u64,
    /// What a kill left without an answer.
    open: Option<(What, String)>,
}

impl Chat {
    fn app(&self) -> String {
        format!("app{}", self.n / CHATS)
    }

    fn scope(&self) -> Value {
        json!({ "scheme": "chat", "app": self.app(), "user": "u", "chat": self.n.to_string() })
    }

    fn forget(&mut self) {
        (self.log, self.id, self.task, self.doubtful) = (Vec::new(), None, None, false);
    }

    /// It is used: what it was before may be in doubt, and is not any more from now on.
    fn touch(&mut self, now: i64) {
        self.doubtful |= self.may_be_gone(now);
        self.used = now;
    }

    /// Whether it may have been deleted for being idle. The machine's own time runs too, so there is a little doubt.
    fn may_be_gone(&self, now: i64) -> bool {
        self.way == Way::Vanishes && self.task.is_none() && now - self.used > IDLE / 2
    }
}

struct World<'a> {
    server: &'a Server,
    now: i64,
}

type Sent = Result<(u16, Value), reqwest::Error>;

impl World<'_> {
    async fn send(&self, request: reqwest::RequestBuilder, key: &str) -> Sent {
        let answer = request.header("Idempotency-Key", key).send().await?;
        let (status, text) = (answer.status().as_u16(), answer.text().await?);
        Ok((status, if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() }))
    }

    async fn exec(&self, chat: &Chat, command: &str, key: &str, background: bool) -> Sent {
        let body = json!({
            "scope": chat.scope(), "spec": { "lifecycle": chat.way.lifecycle() }, "command": command,
            "background": background,
        });
        self.send(self.server.post("/v1/exec", &body), key).await
    }

    /// An error when the server is gone.
    async fn perform(&self, chats: &mut [Chat], at: usize, what: What, key: &str) -> Result<(), reqwest::Error> {
        let chat = &mut chats[at];
        let again = chat.open.replace((what, key.to_owned())).is_some();
        match what {
            What::Use => {
                chat.touch(self.now);
                chat.log.pop_if(|last| last == key); // it was answered, and a kill came after that
                let (status, answer) = self.exec(chat, &format!("echo {key} >> log; cat log"), key, false).await?;
                let unknown = code(&answer) == "outcome_unknown";
                let (status, answer) = match unknown {
                    true => self.exec(chat, "touch log; cat log", &format!("{key}-look"), false).await?,
                    false => (status, answer),
                };
                assert_eq!(status, 200, "{chat:?}: {answer}");
                let (there, with) =
                    (lines(&answer), chat.log.iter().cloned().chain([key.to_owned()]).collect::<Vec<_>>());
                let as_it_was = there == with || unknown && there == chat.log;
                let fresh = chat.doubtful && (there == [key] || unknown && there.is_empty());
                assert!(as_it_was || fresh, "a file was lost: {chat:?}: {there:?}");
                (chat.log, chat.doubtful) = (there, false);
                self.same_one(chat).await?;
            }
            What::Work => match chat.task.clone() {
                None => {
                    chat.touch(self.now);
                    let (status, answer) = self.exec(chat, "sleep 1000000", key, true).await?;
                    assert!(status == 202 || code(&answer) == "outcome_unknown", "{chat:?}: {answer}");
                    chat.task = (status == 202).then(|| answer["id"].as_str().unwrap().to_owned());
                }
                Some(task) => {
                    let path = format!("/v1/tasks/{task}");
                    let (_, answer) = self.send(self.server.request(Method::GET, &path), key).await?;
                    assert!(
                        again || chat.way == Way::Hard || answer["state"] == "running",
                        "work was ended: {chat:?}: {answer}"
                    );
                    let cancel = self.server.request(Method::POST, &format!("{path}/cancel"));
                    self.send(cancel, key).await?;
                    chat.task = None;
                    chat.used = self.now;
                }
            },
            What::Stop | What::Pause | What::Archive => {
                let verb = match what {
                    What::Stop => "stop",
                    What::Pause => "pause",
                    _ => "archive",
                };
                if let Some(id) = self.id_of(chat).await? {
                    let request = self.server.request(Method::POST, &format!("/v1/sandboxes/{id}/{verb}"));
                    let (status, answer) = self.send(request, key).await?;
                    let may_be = matches!(code(&answer), "outcome_unknown" | "bad_request" | "sandbox_not_found");
                    assert!(status == 200 || may_be, "{chat:?}: {verb}: {answer}");
                    if let What::Stop | What::Archive = what {
                        chat.task = None;
                    }
                }
            }
            What::Delete => {
                if let Some(id) = self.id_of(chat).await? {
                    let request = self.server.request(Method::DELETE, &format!("/v1/sandboxes/{id}"));
                    let (status, answer) = self.send(request, key).await?;
                    let may_be = matches!(code(&answer), "outcome_unknown" | "sandbox_not_found");
                    assert!(status == 204 || may_be, "{chat:?}: {answer}");
                    if code(&answer) == "outcome_unknown" && self.id_of(chat).await?.as_deref() == Some(&id) {
                        let again = self.server.request(Method::DELETE, &format!("/v1/sandboxes/{id}"));
                        self.send(again, &format!("{key}-again")).await?;
                    }
                }
                chat.forget();
            }
            What::DeleteApp => {
                let app = chat.app();
                let body = json!({ "app": app });
                for again in 0..2 {
                    let sent =
                        self.send(self.server.post("/v1/sandboxes:delete", &body), &format!("{key}-{again}")).await?;
                    match code(&sent.1) {
                        "outcome_unknown" => continue,
                        _ => assert_eq!(sent.0, 202, "{}", sent.1),
                    }
                    break;
                }
                chats.iter_mut().filter(|chat| chat.app() == app).for_each(Chat::forget);
            }
        }
        chats[at].open = None;
        Ok(())
    }

    async fn id_of(&self, chat: &Chat) -> Result<Option<String>, reqwest::Error> {
        let (status, answer) = match &chat.id {
            Some(id) => {
                let answer = self.server.request(Method::GET, &format!("/v1/sandboxes/{id}")).send().await?;
                (answer.status().as_u16(), answer.json::<Value>().await?)
            }
            None => return Ok(None),
        };
        Ok((status == 200).then(|| answer["id"].as_str().unwrap().to_owned()))
    }

    /// The scope of a chat says its id: it is the same as long as the sandbox is.
    async fn same_one(&self, chat: &mut Chat) -> Result<(), reqwest::Error> {
        let body = json!({ "scope": chat.scope() });
        let (status, answer) =
            self.send(self.server.post("/v1/sandboxes:ensure", &body), &format!("{}-{}", chat.n, chat.deeds)).await?;
        if status == 200 {
            let id = answer["id"].as_str().unwrap().to_owned();
            assert!(chat.id.is_none() || chat.id.as_ref() == Some(&id), "{chat:?}: {id}");
            chat.id = Some(id);
        }
        Ok(())
    }
}

fn code(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_default()
}

fn lines(answer: &Value) -> Vec<String> {
    answer["stdout"].as_str().unwrap().lines().map(str::to_owned).collect()
}

fn next_of(chance: &mut Chance) -> What {
    match chance.below(20) {
        0..=8 => What::Use,
        9..=12 => What::Work,
        13 | 14 => What::Stop,
        15 => What::Pause,
        16 | 17 => What::Archive,
        18 => What::Delete,
        _ => What::DeleteApp,
    }
}

/// A part of the scopes, by one worker: each app is one worker's.
async fn work(world: &World<'_>, chats: &mut [Chat], chance: &mut Chance, deeds: u64) {
    for at in 0..chats.len() {
        if let Some((what, key)) = chats[at].open.clone()
            && world.perform(chats, at, what, &key).await.is_err()
        {
            return;
        }
    }
    for _ in 0..deeds {
        let at = chance.below(chats.len() as u64) as usize;
        let what = next_of(chance);
        chats[at].deeds += 1;
        let key = format!("deed-{}-{}", chats[at].n, chats[at].deeds);
        if world.perform(chats, at, what, &key).await.is_err() {
            return;
        }
    }
}

async fn all(server: &Server) -> Vec<Value> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/sandboxes?limit=1000{cursor}")).await;
        all.extend(page["sandboxes"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

fn count(server: &Server, folder: &str) -> usize {
    server.data().join(folder).read_dir().map_or(0, |entries| entries.count())
}

#[tokio::test]
async fn soak_scopes_live_as_the_model_says_whatever_time_passes_and_whoever_is_killed() {
    let (scale, seed) = (Scale::of_run(), setting("CABANA_SEED").unwrap_or(11));
    eprintln!("CABANA_SEED={seed}");
    let mut chance = Chance(seed);
    let mut server = Server::start();
    let chats: Vec<Chat> = (0..scale.scopes)
        .map(|n| Chat {
            n,
            way: Way::of(n / CHATS + n),
            log: Vec::new(),
            id: None,
            task: None,
            doubtful: false,
            used: 0,
            deeds: 0,
            open: None,
        })
        .collect();
    let share = scale.scopes / WORKERS / CHATS * CHATS;
    let mut parts: Vec<Vec<Chat>> = chats.chunks(share).map(<[Chat]>::to_vec).collect();
    let mut chances: Vec<Chance> = (0..parts.len() as u64).map(|n| Chance(seed * 31 + n)).collect();
    let (begun, mut now) = (Instant::now(), 0);
    for round in 0..scale.rounds {
        if begun.elapsed() > scale.most {
            break;
        }
        let killed = round % 3 == 2;
        let world = World { server: &server, now };
        let works = parts
            .iter_mut()
            .zip(&mut chances)
            .map(|(chats, chance)| work(&world, chats, chance, if killed { u64::MAX } else { scale.deeds }));
        let works = futures_util::future::join_all(works);
        if killed {
            let _ = tokio::time::timeout(Duration::from_micros(200_000 + chance.below(1_000_000)), works).await;
            server.kill();
            server.run();
        } else {
            let reaps = async {
                // Time passes for those that nobody uses, while others are used.
                server.reap().await;
            };
            tokio::join!(works, reaps);
        }
        let there = all(&server).await;
        let scopes: BTreeSet<&str> = there.iter().map(|one| one["scope"]["value"].as_str().unwrap()).collect();
        assert_eq!(scopes.len(), there.len(), "two sandboxes for one scope");
        let passed = [5, 20, IDLE + 5, 4 * IDLE][chance.below(4) as usize];
        server.pass(passed);
        now += passed;
        server.reap().await;
        let by_id: BTreeMap<&str, &Value> = there.iter().map(|one| (one["id"].as_str().unwrap(), one)).collect();
        for chat in parts.iter().flatten().filter(|chat| chat.open.is_none() && chat.way != Way::Vanishes) {
            if let Some(id) = &chat.id {
                assert!(by_id.contains_key(id.as_str()), "it is gone, and nobody deleted it: {chat:?}");
            }
        }
    }
    let world = World { server: &server, now };
    for chats in &mut parts {
        work(&world, chats, &mut chance, 0).await;
    }
    let deeds: u64 = parts.iter().flatten().map(|chat| chat.deeds).sum();
    assert!(deeds > 3 * scale.rounds, "{deeds} deeds: the load was no load");
    let stuck: Vec<_> = all(&server).await.into_iter().filter(|one| !one["trouble"].is_null()).collect();
    assert!(stuck.is_empty(), "{stuck:?}");
    super::stage::good(server.post("/v1/sandboxes:delete", &json!({ "all": true })).send().await.unwrap()).await;
    until(|| async {
        server.reap().await;
        let left =
            [count(&server, "sandboxes"), count(&server, "blobs"), count(&server, "shelf"), server.inits().len()];
        (all(&server).await.is_empty() && left == [0; 4]).then_some(())
    })
    .await;
}
