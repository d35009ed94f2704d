//! Changes of files, as they happen.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;

use crate::{
    files::Files,
    stage::{PATIENCE, client, good, refused, until},
    streams::Events,
};

impl Files {
    async fn watch(&self, query: &str) -> Events {
        let mut events = Events::of(self.ask(Method::GET, &format!("/watch{query}")).send().await.unwrap());
        assert_eq!(events.next().await.unwrap().0, "start");
        events
    }
}

/// Until the change of this file is told.
async fn hears(events: &mut Events, change: &str, name: &str) {
    let heard = async {
        loop {
            let (event, told) = events.next().await.expect("it goes on");
            assert_ne!(event, "error", "{told}");
            if told["change"] == change && told["path"].as_str().unwrap().ends_with(name) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, heard).await.expect("it is told");
}

#[tokio::test]
async fn whoever_watches_a_directory_hears_of_its_changes_until_the_sandbox_stops() {
    let files = Files::start().await;
    files.shell("mkdir -p d/e").await;
    let (mut here, mut below) = (files.watch("?path=d").await, files.watch("?path=d&below=true").await);
    files.write("d/e/deep", "x").await;
    files.write("d/one", "x").await;
    hears(&mut below, "create", "/d/e/deep").await;
    hears(&mut here, "create", "/d/one").await;
    files.shell("mv d/one d/two; chmod 600 d/two; rm d/two").await;
    let (event, told) = loop {
        let next = here.next().await.unwrap();
        if next.0 == "rename" {
            break next;
        }
    };
    assert!(told["to"].as_str().unwrap().ends_with("/d/two"), "{event} {told}");
    hears(&mut here, "remove", "/d/two").await;
    let stop = format!("/v1/sandboxes/{}/stop", files.sandbox);
    good(files.server.post(&stop, &json!({})).send().await.unwrap()).await;
    let last = async {
        loop {
            match here.next().await {
                Some((event, told)) if event == "error" => return Some(told),
                Some(_) => {}
                None => return None,
            }
        }
    };
    let told = tokio::time::timeout(PATIENCE, last).await.expect("it ends").expect("and says why");
    assert_eq!(told["error"]["code"], "sandbox_gone", "{told}");
    let mut again = files.watch("?path=d").await;
    files.write("d/again", "x").await;
    hears(&mut again, "create", "/d/again").await;
}

#[tokio::test]
async fn a_thousand_idle_watchers_hold_up_nobody_and_all_hear() {
    let files = Files::start().await;
    files.shell("mkdir d").await;
    let mut watchers = Vec::new();
    for _ in 0..20 {
        watchers.extend(join_all((0..50).map(|_| files.watch("?path=d"))).await);
    }
    assert_eq!(files.shell("echo still here").await, "still here\n");
    files.write("d/one", "x").await;
    join_all(watchers.iter_mut().map(|events| hears(events, "create", "/d/one"))).await;
}

#[tokio::test]
async fn one_tenant_does_not_take_all_the_watches_that_there_are() {
    let files = Files::start().await;
    let instances = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap();
    let each = (instances.trim().parse::<usize>().unwrap() / 4 * 3).min(2048) / 4;
    files.shell(&format!("for n in $(seq {}); do mkdir $n; done", each + 1)).await;
    let mut held = Vec::new();
    for n in 1..=each {
        held.push(files.watch(&format!("?path={n}")).await);
    }
    let one_more = format!("/watch?path={}", each + 1);
    let answer = files.ask(Method::GET, &one_more).send().await.unwrap();
    assert!(answer.headers().contains_key("retry-after"));
    assert_eq!(refused(answer).await, (429, "too_many_watches".into()));
    files.watch(&format!("?path={each}")).await; // one that is watched already costs nothing
    let other = files.server.key_for("other", "use").await;
    let ensure = json!({ "scope": { "scheme": "fixed", "name": "theirs" } });
    let theirs = files.server.post("/v1/sandboxes:ensure", &ensure).header("X-API-KEY", &other);
    let theirs = good(theirs.send().await.unwrap()).await["id"].as_str().unwrap().to_owned();
    let watch = files.server.request(Method::GET, &format!("/v1/sandboxes/{theirs}/files/watch"));
    let mut events = Events::of(watch.header("X-API-KEY", &other).send().await.unwrap());
    assert_eq!(events.next().await.unwrap().0, "start");
    drop(held);
    // What nobody listens to is given back.
    until(|| async {
        let answer = files.ask(Method::GET, &one_more).send().await.unwrap();
        answer.status().is_success().then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_is_no_directory_is_not_watched() {
    let files = Files::start().await;
    files.write("file", "x").await;
    let watch = |path| files.ask(Method::GET, path).send();
    assert_eq!(refused(watch("/watch?path=file").await.unwrap()).await, (409, "not_directory".into()));
    assert_eq!(refused(watch("/watch?path=missing").await.unwrap()).await, (404, "not_found".into()));
}

/// Directories that the server watches, as the kernel counts them. Each watch is open twice: to be waited for, and to be read.
fn kernel_watches(files: &Files) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{}/fdinfo", files.server.pid())).unwrap().flatten();
    let watches = |fd: std::fs::DirEntry| {
        let info = std::fs::read_to_string(fd.path()).unwrap_or_default();
        info.lines().filter(|line| line.starts_with("inotify wd:")).count()
    };
    fds.map(watches).sum::<usize>() / 2
}

#[tokio::test]
async fn watches_of_one_tenant_leave_the_kernel_some_for_others() {
    let max = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").unwrap();
    let share = max.trim().parse::<usize>().unwrap() / 8;
    let files = Files::start().await;
    files.shell("mkdir -p t o && cd t && seq -f d%04g 8000 | xargs mkdir").await;
    // Each user has a watch of its own of the same tree.
    let (mut held, mut counts) = (Vec::new(), Vec::new());
    for user in 2000..2024 {
        held.push(files.watch(&format!("?path=t&below=true&user={user}")).await);
        counts.push(kernel_watches(&files));
        if held.len() * 8001 > share {
            break;
        }
    }
    assert_eq!(counts[0], 8001.min(share), "the first has all, if there are so many");
    assert!(*counts.last().unwrap() <= share, "{counts:?} of {share}");
    if held.len() * 8001 > share {
        // Whose watch does not cover everything is told.
        assert_eq!(held.last_mut().unwrap().next().await.unwrap().0, "overflow");
        // What none is left for at all is refused as that, and not for want of space.
        let last = files.ask(Method::GET, "/watch?path=o&user=3000").send().await.unwrap();
        assert_eq!(refused(last).await, (429, "too_many_watches".into()));
    }
    // Another tenant has its own share.
    let other = files.server.key_for("other", "use").await;
    let ask = |method, path: &str| client().request(method, format!("{}{path}", files.server.url)).bearer_auth(&other);
    let made = good(ask(Method::POST, "/v1/sandboxes").json(&json!({})).send().await.unwrap()).await;
    let watch = format!("/v1/sandboxes/{}/files/watch", made["id"].as_str().unwrap());
    let mut events = Events::of(ask(Method::GET, &watch).send().await.unwrap());
    assert_eq!(events.next().await.unwrap().0, "start");
    // And what is not watched any more is given back.
    held.clear();
    until(|| async { (kernel_watches(&files) <= 1).then_some(()) }).await;
    files.watch("?path=o").await;
}
