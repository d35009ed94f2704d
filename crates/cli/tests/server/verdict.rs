//! What must be true of all that was asked, after any number of kills.

use std::collections::{BTreeMap, BTreeSet};

use cabana_store::{LedgerRow, ledger};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    load::{Deed, Told, What, World, named},
    stage::{Server, until},
};

impl World {
    /// Of the deeds from this one on.
    pub(crate) async fn check(&self, server: &Server, from: usize, place: &str) {
        let deeds = self.all().split_off(from);
        for deed in &deeds {
            assert!(deed.told.is_some(), "{place}: {deed:?} was never answered");
            self.is_answered_the_same(server, deed, place).await;
            self.is_there(server, deed, place).await;
        }
        self.ran_once(server, &deeds, place).await;
        nothing_is_open(server, place).await;
        self.sandboxes_and_records_agree(server, place).await;
        snapshots_and_records_agree(server, place).await;
        volumes_and_records_agree(server, place).await;
        self.ledger_has(server, &deeds, place).await;
    }

    async fn is_answered_the_same(&self, server: &Server, deed: &Deed, place: &str) {
        // A key is shown once, what only looks is looked at anew, and neither is kept to be told again.
        if matches!(deed.what, What::Key | What::Look | What::Pause | What::Change | What::Mount | What::Touch)
            || self.is_to_be_deleted(deed)
        {
            return;
        }
        let again = self.ask(server, deed).await.unwrap_or_else(|error| panic!("{place}: {deed:?}: {error:?}"));
        // Of a sandbox or a task it is told how it is now.
        let same = |told: Told| match (deed.what, told) {
            (What::Start(_) | What::Endless | What::Make, Told::Done(answer)) => Told::Done(answer["id"].clone()),
            (What::Stop | What::Archive | What::Wake | What::Take, Told::Done(answer)) => {
                Told::Done(answer["id"].clone())
            }
            (_, told) => told,
        };
        assert_eq!(Some(same(again)), deed.told.clone().map(same), "{place}: {deed:?}");
    }

    /// Of one that is gone, nobody can say how it is.
    fn is_to_be_deleted(&self, made: &Deed) -> bool {
        if !matches!(made.what, What::Make | What::Take | What::Volume) {
            return false;
        }
        let id = made.done().and_then(named);
        self.all().iter().any(|deed| deed.about.is_some() && deed.about.as_deref() == id)
    }

    async fn is_there(&self, server: &Server, deed: &Deed, place: &str) {
        let of_scope = &self.sandboxes[(deed.n % self.sandboxes.len() as u64) as usize];
        match (deed.what, &deed.told) {
            (What::Upload(_), told) => {
                let path = format!("/v1/sandboxes/{of_scope}/files?path={}", deed.name());
                let answer = server.request(Method::GET, &path).send().await.unwrap();
                let missing = answer.status() == StatusCode::NOT_FOUND;
                assert!(!missing || *told == Some(Told::Unknown), "{place}: {deed:?} is lost");
                // Also what a crash took is there as a whole or not at all.
                assert!(missing || answer.bytes().await.unwrap() == deed.content(), "{place}: {deed:?} is torn");
            }
            (What::Folder, Some(Told::Done(_))) => {
                server.get(&format!("/v1/sandboxes/{of_scope}/files/stat?path={}", deed.name())).await;
            }
            (What::Take, Some(Told::Done(taken))) if !self.is_to_be_deleted(deed) => {
                server.get(&format!("/v1/snapshots/{}", taken["id"].as_str().unwrap())).await;
            }
            (What::Forget, Some(Told::Done(_))) => {
                let path = format!("/v1/snapshots/{}", deed.about.as_deref().unwrap());
                let gone = server.request(Method::GET, &path).send().await.unwrap();
                assert_eq!(gone.status(), StatusCode::NOT_FOUND, "{place}: {deed:?}");
            }
            (What::Volume, Some(Told::Done(made))) if !self.is_to_be_deleted(deed) => {
                server.get(&format!("/v1/volumes/{}", named(made).unwrap())).await;
            }
            (What::Unmake, Some(Told::Done(_))) => {
                let path = format!("/v1/volumes/{}", deed.about.as_deref().unwrap());
                let gone = server.request(Method::GET, &path).send().await.unwrap();
                assert_eq!(gone.status(), StatusCode::NOT_FOUND, "{place}: {deed:?}");
            }
            (What::Run(lines), Some(Told::Done(answer))) => {
                let path = format!("/v1/calls/{}/output", answer["call_id"].as_str().unwrap());
                assert_eq!(output(server, &path).await, counted(lines), "{place}: {deed:?}");
            }
            (What::Start(lines), Some(Told::Done(task))) => {
                let id = task["id"].as_str().unwrap();
                let ended = server.ended(id).await;
                if deed.again && ended["state"] == "unknown" {
                    return; // it had its row, and nobody knows whether it began
                }
                assert_eq!(ended["state"], "succeeded", "{place}: {deed:?} {ended}");
                let lines = lines.div_ceil(500) * 500;
                let output = output(server, &format!("/v1/tasks/{id}/output")).await;
                assert_eq!(output, counted(lines), "{place}: {deed:?}");
            }
            (What::Endless, Some(Told::Done(task))) => {
                let ended = server.get(&format!("/v1/tasks/{}", task["id"].as_str().unwrap())).await;
                assert_eq!(ended["state"], task["state"], "{place}: {deed:?}");
            }
            (What::Key, Some(Told::Done(key))) => {
                let list =
                    server.request(Method::GET, "/v1/sandboxes").header("X-API-KEY", key["key"].as_str().unwrap());
                let list = list.send().await.unwrap();
                assert_eq!(list.status(), StatusCode::OK, "{place}: {deed:?}");
            }
            _ => {}
        }
    }

    /// A command leaves its number in a file: of those that were answered, and of none twice.
    async fn ran_once(&self, server: &Server, deeds: &[Deed], place: &str) {
        for scope in 0..self.sandboxes.len() {
            let scope = format!("scope{scope}");
            let log = server.stdout(&scope, "touch log; cat log").await;
            let mut times: BTreeMap<u64, u64> = BTreeMap::new();
            for line in log.lines() {
                *times.entry(line.parse().unwrap()).or_default() += 1;
            }
            assert!(times.values().all(|times| *times == 1), "{place}: something ran twice: {times:?}");
            let ran = |deed: &&Deed| matches!(deed.what, What::Run(_) | What::Start(_)) && deed.scope() == scope;
            for deed in deeds.iter().filter(ran).filter(|deed| deed.done().is_some() && !deed.again) {
                assert!(times.contains_key(&deed.n), "{place}: {deed:?} never ran");
            }
        }
    }

    /// No sandbox without a record, no record without a sandbox, and those are there that should be.
    async fn sandboxes_and_records_agree(&self, server: &Server, place: &str) {
        let all = self.all();
        let of = |what: What| all.iter().filter(move |deed| deed.what == what);
        let deleted: BTreeSet<String> =
            of(What::Delete).filter(|deed| deed.done().is_some()).filter_map(|deed| deed.about.clone()).collect();
        let asked: BTreeSet<String> = of(What::Delete).filter_map(|deed| deed.about.clone()).collect();
        let made = of(What::Make).filter_map(Deed::done).map(|sandbox| sandbox["id"].as_str().unwrap().to_owned());
        let kept: BTreeSet<String> =
            made.filter(|id| !asked.contains(id)).chain(self.sandboxes.clone()).chain([self.shaped.clone()]).collect();
        until(|| async {
            let records = records(server).await;
            // Of one that is archived, what it was saved as is its home.
            let blobs = std::fs::read_dir(server.data().join("blobs")).unwrap().flatten();
            let blobs = blobs.map(|blob| blob.file_name().into_string().unwrap());
            let homes: BTreeSet<String> = server.homes().into_iter().chain(blobs).collect();
            // Those for one call alone go when it has ended, and the directory before the record.
            let agree = records == homes;
            let right = kept.is_subset(&records) && deleted.is_disjoint(&records);
            if !agree {
                eprintln!("{place}: records {records:?}, sandboxes {homes:?}");
            }
            assert!(right, "{place}: {kept:?} {deleted:?} {records:?}");
            agree.then_some(())
        })
        .await;
    }

    async fn ledger_has(&self, server: &Server, deeds: &[Deed], place: &str) {
        let rows = chain(server).await;
        let answered: Vec<&LedgerRow> = rows.iter().filter(|row| row.outcome == "answered").collect();
        let argv: BTreeSet<&str> = answered.iter().flat_map(|row| &row.argv).map(String::as_str).collect();
        let sandboxes: BTreeSet<(&str, &str)> =
            answered.iter().filter_map(|row| Some((row.verb.as_str(), row.sandbox.as_ref()?.as_str()))).collect();
        for deed in deeds {
            let Some(answer) = deed.done() else { continue };
            let there = match deed.what {
                What::Upload(_) | What::Folder => argv.contains(deed.name().as_str()),
                What::Run(_) | What::Once | What::Start(_) | What::Endless => {
                    argv.iter().any(|word| word.ends_with(&deed.name()))
                }
                What::Make => sandboxes.contains(&("ensure", answer["id"].as_str().unwrap())),
                What::Delete => sandboxes.contains(&("become", deed.about.as_deref().unwrap())),
                What::Forget | What::Unmake => argv.contains(deed.about.as_deref().unwrap()),
                What::Volume => argv.contains(deed.name().as_str()),
                What::Take => sandboxes.contains(&("snapshot.take", self.shaped.as_str())),
                What::Stop | What::Archive | What::Pause | What::Wake | What::Change | What::Touch | What::Key => true,
                What::Look | What::Purge | What::Mount => true,
            };
            assert!(there, "{place}: {deed:?} is in no row of the ledger");
        }
        // Those that are all alike are counted.
        let all = self.all();
        for (what, verb, word) in [
            (What::Look, "file.stat", "/etc/passwd"),
            (What::Stop, "become", "stopped"),
            (What::Archive, "become", "archived"),
            (What::Purge, "purge", "nobodys"),
            (What::Pause, "become", "paused"),
            (What::Change, "change", "limits"),
            (What::Mount, "change", "extra_mounts"),
        ] {
            let told = |deed: &&Deed| deed.what == what && deed.done().is_some_and(|answer| !answer.is_null());
            let in_row = |row: &&&LedgerRow| row.verb == verb && row.argv.iter().any(|argument| argument == word);
            let (told, rows) = (all.iter().filter(told).count(), answered.iter().filter(in_row).count());
            assert!(rows >= told, "{place}: {told} times {what:?} was answered, and {rows} rows say so");
        }
    }
}

fn counted(lines: u64) -> String {
    (1..=lines).map(|n| format!("{n}\n")).collect()
}

pub(crate) async fn output(server: &Server, path: &str) -> String {
    server.request(Method::GET, path).send().await.unwrap().text().await.unwrap()
}

async fn records(server: &Server) -> BTreeSet<String> {
    let (mut ids, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/sandboxes?limit=1000{cursor}")).await;
        ids.extend(page["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ids,
        }
    }
}

async fn snapshots_and_records_agree(server: &Server, place: &str) {
    let list = server.get("/v1/snapshots?limit=1000").await;
    let records = list["snapshots"].as_array().unwrap().len();
    let kept = std::fs::read_dir(server.data().join("snapshots")).unwrap().flatten();
    let kept = kept.filter(|kept| !kept.file_name().to_string_lossy().starts_with('.')).count();
    assert!(list["next_cursor"].is_string() || records == kept, "{place}: {records} records, {kept} snapshots");
}

async fn volumes_and_records_agree(server: &Server, place: &str) {
    let list = server.get("/v1/volumes?limit=1000").await;
    let records = list["volumes"].as_array().unwrap().len();
    let kept = std::fs::read_dir(server.data().join("volumes")).unwrap().flatten();
    let kept = kept.filter(|kept| !kept.file_name().to_string_lossy().starts_with('.')).count();
    assert!(list["next_cursor"].is_string() || records == kept, "{place}: {records} records, {kept} volumes");
}

/// Each call has ended, one way or another: what was left open was followed, recorded, or is `unknown`.
async fn nothing_is_open(server: &Server, place: &str) {
    until(|| async {
        let open = |list: &Value| list.as_array().unwrap().iter().any(|one| one["state"] == json!("running"));
        let calls = server.get("/v1/calls?limit=1000").await;
        let tasks = server.get("/v1/tasks?state=running").await;
        // A task whose begin a crash took may go on for ever; nobody was told its name, but the list has it.
        for task in tasks["tasks"].as_array().unwrap() {
            let path = format!("/v1/tasks/{}/cancel", task["id"].as_str().unwrap());
            let ended = server.request(Method::POST, &path).send().await.unwrap();
            assert_eq!(ended.status(), StatusCode::OK, "{place}");
        }
        (!open(&calls["calls"])).then_some(())
    })
    .await;
}

/// The ledger, whole from its first row to its head.
async fn chain(server: &Server) -> Vec<LedgerRow> {
    let mut rows: Vec<LedgerRow> = Vec::new();
    loop {
        let page = server.get(&format!("/v1/ledger?limit=1000&after={}", rows.len())).await;
        let page: Vec<LedgerRow> = serde_json::from_value(page["rows"].clone()).unwrap();
        if page.is_empty() {
            break;
        }
        rows.extend(page);
    }
    let head = serde_json::from_value(server.get("/v1/ledger/head").await["head"].clone()).unwrap();
    assert_eq!(ledger::verify(rows.clone().into_iter(), None, Some(&head)).unwrap(), head);
    rows
}
