//! The crawler: everything that a process of a sandbox can reach, held against the lists of what it may (`*.txt` beside
//! this). Something new fails until it is closed, or has its reason in a list: `common.txt` for root and user of a sandbox
//! both, `root.txt` and `user.txt` for one of them, `before-exec.txt` for init and for a command between clone and exec.
//! `CABANA_CRAWL_REWRITE=1` rewrites the lists; what it adds is refused until it is explained.

mod before_exec;
mod list;
mod normalise;

use std::{collections::BTreeSet, fs, os::unix::net::UnixListener};

use cabana_sandbox::{ExecSpec, Limits, NetworkPolicy, SandboxPath, SandboxSpec, Source, View};

use self::{
    list::{Difference, List, is_rewriting, rewrite},
    normalise::things,
};
use crate::{
    attacks::{Attack, CRAWL, CRAWL_CALLS},
    inside::{Inside, passing, path},
};

/// With a network: there is more to reach.
fn connected() -> SandboxSpec {
    SandboxSpec { network: NetworkPolicy::Public, ..passing() }
}

/// Everything that a command of this user reaches, with pipes and with a terminal; and what differs where the sandbox is held
/// by limits, or by no cgroup at all.
async fn crawl(user: &str) -> BTreeSet<String> {
    let inside = Inside::with(connected()).await;
    let mut found = BTreeSet::new();
    let all: [(&Attack, &[&str]); 3] =
        [(&CRAWL, &[]), (&CRAWL_CALLS, &["calls", "sockets", "options"]), (&CRAWL_CALLS, &["ioctls"])];
    for (program, sections) in all {
        found.extend(things(&inside.attack(user, program, sections).await.ok()));
    }
    let in_terminal = inside.attack_in_terminal(user, &CRAWL, &["descriptors"]).await.ok();
    found.extend(things(&in_terminal).into_iter().map(|thing| format!("terminal {thing}")));
    inside.still_works().await;
    inside.end().await;
    let limits = Limits { memory: Some(256 << 20), pids: Some(100), cpu_milli: Some(1000), ..Limits::default() };
    let limited = Inside::with(SandboxSpec { limits, ..connected() }).await;
    for inside in [limited, Inside::without_cgroups().await] {
        let sections = ["mounts", "descriptors", "proc", "devices", "listeners", "identity", "limits"];
        found.extend(things(&inside.attack(user, &CRAWL, &sections).await.ok()));
        inside.end().await;
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_root_and_user_reach_is_on_the_list() {
    let (root, user) = tokio::join!(crawl("root"), crawl("user"));
    let (mut common, mut for_root, mut for_user) =
        (List::open("common.txt"), List::open("root.txt"), List::open("user.txt"));
    if is_rewriting() {
        rewrite(&mut common, &mut [(&root, &mut for_root), (&user, &mut for_user)]);
        for list in [&common, &for_root, &for_user] {
            list.write();
        }
    }
    for (who, found, own) in [("root", &root, &for_root), ("user", &user, &for_user)] {
        assert!(found.len() > 1000, "{who} was looked at: {found:?}");
        let mut difference = Difference::between(found, &[&common, own]);
        // What is listed for both is gone only when neither reaches it.
        difference.gone.retain(|thing| !root.contains(thing) && !user.contains(thing));
        difference.assert_empty(who);
    }
}

/// What a crawl finds in this sandbox that is on no list.
async fn new_to(inside: &Inside, user: &str, attack: &Attack, sections: &[&str]) -> BTreeSet<String> {
    let found = things(&inside.attack(user, attack, sections).await.ok());
    let lists = ["common.txt", "root.txt", "user.txt"].map(List::open);
    Difference::between(&found, &lists.each_ref()).new
}

#[tokio::test]
async fn a_socket_of_the_host_in_a_view_is_new() {
    let shown = tempfile::tempdir().unwrap();
    fs::set_permissions(shown.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let _listener = UnixListener::bind(shown.path().join("door")).unwrap();
    fs::set_permissions(shown.path().join("door"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let view = View { source: Source::Host(shown.path().into()), at: path("/workspace/seen"), writable: true };
    let inside = Inside::with(SandboxSpec { views: vec![view], ..connected() }).await;
    let new = new_to(&inside, "user", &CRAWL, &["mounts", "files", "/workspace"]).await;
    assert!(new.contains("unix CONNECTS /workspace/seen/door"), "{new:?}");
    assert!(new.iter().any(|thing| thing.starts_with("mount /workspace/seen ")), "{new:?}");
    inside.end().await;
}

#[tokio::test]
async fn an_inherited_descriptor_is_new() {
    let inside = Inside::with(connected()).await;
    let words = inside.bring(&CRAWL).await.join(" ");
    let script = format!("exec 9</etc; exec {words} descriptors");
    let found = things(&inside.command("user", ExecSpec::shell(script, SandboxPath::root())).await.ok());
    let lists = ["common.txt", "user.txt"].map(List::open);
    let new = Difference::between(&found, &lists.each_ref()).new;
    assert_eq!(new, BTreeSet::from(["fd 9 directory read to=/etc mount=/ up=root".to_owned()]));
    inside.end().await;
}

#[tokio::test]
async fn a_program_that_gains_rights_is_new_where_sudo_is_allowed() {
    let inside = Inside::with(SandboxSpec { sudo: true, ..connected() }).await;
    inside.root("cp /usr/bin/id /usr/local/bin/gain && chmod 4755 /usr/local/bin/gain").await.ok();
    let new = new_to(&inside, "user", &CRAWL, &["identity", "mounts", "files", "/usr/local"]).await;
    assert!(new.contains("privileged EFFECTIVE /usr/local/bin/gain"), "{new:?}");
    assert!(new.contains("identity NoNewPrivs 0"), "{new:?}");
    inside.end().await;
}

#[test]
fn what_the_host_itself_reaches_is_new() {
    let found = things(&CRAWL.run_on_host(&["descriptors", "mounts", "identity", "listeners"]).ok());
    let found: BTreeSet<_> = found.into_iter().chain(things(&CRAWL_CALLS.run_on_host(&["options"]).ok())).collect();
    let lists = ["common.txt", "root.txt"].map(List::open);
    let new = Difference::between(&found, &lists.each_ref()).new;
    for begin in ["mount / ", "capability Eff sys_", "namespace net host", "identity Seccomp 0"] {
        assert!(new.iter().any(|thing| thing.starts_with(begin)), "{begin}: {new:?}");
    }
}
