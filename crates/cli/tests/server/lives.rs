//! Many scopes that are used, rest, are packed away, deleted and forgotten, while the clock runs and servers are killed. What is
//! there is compared with a model of it. A quota is not enough for all of them at once: whoever is refused has lost nothing.
//!
//! `CABANA_SEED` replays a run; with `CABANA_SOAK_ROUNDS` there are ten thousand scopes, for ten minutes at most.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
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
/// How far what the model takes for the time may be from what the server does: calls wait, and clocks are read in between.
const DOUBT: i64 = IDLE / 2;

struct Scale {
    scopes: usize,
    /// The quotas.
    running: usize,
    tasks: usize,
    rounds: u64,
    deeds: u64,
    most: Duration,
}

impl Scale {
    fn of_run() -> Self {
        match setting("CABANA_SOAK_ROUNDS") {
            None => Self { scopes: 24, running: 8, tasks: 5, rounds: 6, deeds: 10, most: Duration::MAX },
            Some(rounds) => {
                Self { scopes: 10_000, running: 400, tasks: 100, rounds, deeds: 200, most: Duration::from_secs(600) }
            }
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
    /// It is told when to go.
    Expire,
    Work,
    DeleteApp,
}

/// What the model knows of a scope.
#[derive(Clone, Debug)]
struct Chat {
    n: usize,
    way: Way,
    /// What its log may be: one, unless something was left without an answer or may have gone meanwhile.
    logs: Vec<Vec<String>>,
    id: Option<String>,
    /// A task that nothing but what is asked for may end.
    task: Option<String>,
    /// By the clock of the test, in seconds.
    used: i64,
    /// When it goes, whatever happens in it; and whether it was promised.
    expires: Option<(i64, bool)>,
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
        (self.logs, self.id, self.task, self.expires) = (vec![Vec::new()], None, None, None);
    }

    /// It is used: what it was before may be in doubt.
    fn touch(&mut self, now: i64) {
        if self.may_be_gone(now) {
            self.logs.push(Vec::new());
        }
        self.used = now;
    }

    /// Whether it may have been deleted, for being idle or for its time having come.
    fn may_be_gone(&self, now: i64) -> bool {
        let idle = self.way == Way::Vanishes && self.task.is_none() && now - self.used > IDLE - DOUBT;
        idle || self.expires.is_some_and(|(at, _)| now > at - DOUBT)
    }

    /// Whether its time has come long ago.
    fn is_overdue(&self, now: i64) -> bool {
        self.expires.is_some_and(|(at, promised)| promised && now > at + DOUBT)
    }

    /// What the log is with one more line, which may be there already.
    fn with(&self, line: &str) -> Vec<Vec<String>> {
        let with = |log: &Vec<String>| match log.last().is_some_and(|last| last == line) {
            true => log.clone(),
            false => log.iter().cloned().chain([line.to_owned()]).collect(),
        };
        self.logs.iter().map(with).collect()
    }
}

/// How often calls were done, and how often a quota was in the way.
#[derive(Default)]
struct Tally {
    done: AtomicU64,
    refused: AtomicU64,
}

struct World<'a> {
    server: &'a Server,
    begun: Instant,
    /// What has passed beside the machine's own time.
    passed: i64,
    tally: &'a Tally,
}

type Sent = Result<(u16, Value), reqwest::Error>;

impl World<'_> {
    fn now(&self) -> i64 {
        self.passed + self.begun.elapsed().as_secs().cast_signed()
    }

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
                chat.touch(self.now());
                let overdue = chat.is_overdue(self.now());
                let (status, answer) = self.exec(chat, &format!("echo {key} >> log; cat log"), key, false).await?;
                let with = chat.with(key);
                match (status, code(&answer)) {
                    (200, _) => {
                        let there = lines(&answer);
                        assert!(with.contains(&there), "a file was lost: {chat:?}: {there:?}");
                        assert!(!overdue || again || there.len() == 1, "it outlived its time: {chat:?}: {there:?}");
                        if there.len() == 1 && chat.may_be_gone(self.now()) {
                            chat.expires = None; // it is another one
                        }
                        chat.logs = vec![there];
                        self.tally.done.fetch_add(1, Ordering::Relaxed);
                        self.same_one(chat).await?;
                    }
                    (_, "outcome_unknown") => chat.logs.extend(with),
                    _ => self.is_refused(chat, &answer),
                }
            }
            What::Work => match chat.task.clone() {
                None => {
                    chat.touch(self.now());
                    let (status, answer) = self.exec(chat, "sleep 1000000", key, true).await?;
                    match (status, code(&answer)) {
                        (202, _) => chat.task = Some(answer["id"].as_str().unwrap().to_owned()),
                        (_, "outcome_unknown") => {}
                        _ => self.is_refused(chat, &answer),
                    }
                }
                Some(task) => {
                    let path = format!("/v1/tasks/{task}");
                    let (_, answer) = self.send(self.server.request(Method::GET, &path), key).await?;
                    let may_end = again || chat.way == Way::Hard || chat.may_be_gone(self.now());
                    assert!(may_end || answer["state"] == "running", "work was ended: {chat:?}: {answer}");
                    let cancel = self.server.request(Method::POST, &format!("{path}/cancel"));
                    self.send(cancel, key).await?;
                    chat.task = None;
                    chat.used = self.now();
                }
            },
            What::Expire => {
                if let Some(id) = self.id_of(chat).await? {
                    let at = self.now() + IDLE;
                    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(self.passed + IDLE);
                    let body = json!({ "lifecycle": { "expires_at": time.to_string(), "on_expire": "delete" } });
                    // Another time under the same key would be another call.
                    let key = format!("{key}-{at}");
                    let before = chat.expires.filter(|_| !again).map_or(at, |(before, _)| before.min(at));
                    chat.expires = Some((before, false));
                    let request = self.server.request(Method::PATCH, &format!("/v1/sandboxes/{id}")).json(&body);
                    let (status, answer) = self.send(request, &key).await?;
                    let may_be = matches!(code(&answer), "outcome_unknown" | "sandbox_not_found");
                    assert!(status == 200 || may_be, "{chat:?}: {answer}");
                    if status == 200 {
                        chat.expires = Some((at, true));
                    }
                }
            }
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

    /// Whoever is refused has lost nothing, and a quota is the only reason.
    fn is_refused(&self, chat: &Chat, answer: &Value) {
        assert_eq!(code(answer), "quota_exceeded", "{chat:?}: {answer}");
        self.tally.refused.fetch_add(1, Ordering::Relaxed);
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
        16 => What::Archive,
        17 => What::Expire,
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

/// Looks again and again whether more of them run than may.
async fn holds(server: &Server, running: usize) {
    loop {
        let inits = server.inits().len();
        assert!(inits <= running, "{inits} run, and {running} may");
        tokio::time::sleep(Duration::from_millis(100)).await;
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
    let (running, tasks) = (scale.running.to_string(), scale.tasks.to_string());
    let mut server = Server::start_with(&["--quotas-running", &running, "--quotas-tasks", &tasks]);
    let chats: Vec<Chat> = (0..scale.scopes)
        .map(|n| Chat {
            n,
            way: Way::of(n / CHATS + n),
            logs: vec![Vec::new()],
            id: None,
            task: None,
            used: 0,
            expires: None,
            deeds: 0,
            open: None,
        })
        .collect();
    let share = scale.scopes / WORKERS / CHATS * CHATS;
    let mut parts: Vec<Vec<Chat>> = chats.chunks(share).map(<[Chat]>::to_vec).collect();
    let mut chances: Vec<Chance> = (0..parts.len() as u64).map(|n| Chance(seed * 31 + n)).collect();
    let (begun, mut passed, mut rounds, tally) = (Instant::now(), 0, 0, Tally::default());
    for round in 0..scale.rounds {
        if begun.elapsed() > scale.most {
            break;
        }
        rounds += 1;
        let killed = round % 3 == 2;
        let world = World { server: &server, begun, passed, tally: &tally };
        let works = parts
            .iter_mut()
            .zip(&mut chances)
            .map(|(chats, chance)| work(&world, chats, chance, if killed { u64::MAX } else { scale.deeds }));
        let works = async {
            tokio::select! {
                _ = futures_util::future::join_all(works) => {}
                () = holds(&server, scale.running) => {}
            }
        };
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
        let more = [5, 20, IDLE + 5, 4 * IDLE][chance.below(4) as usize];
        server.pass(more);
        passed += more;
        server.reap().await;
        let by_id: BTreeMap<&str, &Value> = there.iter().map(|one| (one["id"].as_str().unwrap(), one)).collect();
        // A kill may have left open whether a whole app went.
        let going = |chat: &&Chat| matches!(chat.open, Some((What::DeleteApp, _)));
        let going: BTreeSet<String> = parts.iter().flatten().filter(going).map(Chat::app).collect();
        let stays = |chat: &&Chat| {
            let told_to_go = chat.way == Way::Vanishes || chat.expires.is_some() || going.contains(&chat.app());
            chat.open.is_none() && !told_to_go
        };
        for chat in parts.iter().flatten().filter(stays) {
            if let Some(id) = &chat.id {
                assert!(by_id.contains_key(id.as_str()), "it is gone, and nobody deleted it: {chat:?}");
            }
        }
    }
    let world = World { server: &server, begun, passed, tally: &tally };
    for chats in &mut parts {
        work(&world, chats, &mut chance, 0).await;
    }
    let deeds: u64 = parts.iter().flatten().map(|chat| chat.deeds).sum();
    let (done, refused) = (tally.done.into_inner(), tally.refused.into_inner());
    eprintln!("{rounds} rounds, {deeds} deeds, {done} uses done, {refused} refused");
    assert!(deeds > 3 * rounds && done > 0 && refused > 0, "{deeds} deeds: the load was no load");
    let stuck: Vec<_> = all(&server).await.into_iter().filter(|one| !one["trouble"].is_null()).collect();
    assert!(stuck.is_empty(), "{stuck:?}");
    super::stage::good(server.post("/v1/sandboxes:delete", &json!({ "all": true })).send().await.unwrap()).await;
    until(|| async {
        server.reap().await;
        let left = [server.homes().len(), count(&server, "blobs"), count(&server, "shelf"), server.inits().len()];
        (all(&server).await.is_empty() && left == [0; 4]).then_some(())
    })
    .await;
}
