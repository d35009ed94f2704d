//! New namespaces, which bring new capabilities to attack the kernel with; and those of others.

use crate::{
    attacks::{NAMESPACES, on_host},
    inside::Inside,
};

/// On the host the same program gets through.
async fn refused(way: &str, answers: &[&str]) {
    NAMESPACES.run_on_host(&[way]).report().none_refused(&["EPERM", "ENOSYS"]);
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        inside.attack(user, &NAMESPACES, &[way]).await.report().all_refused(answers);
    }
    inside.end().await;
}

#[tokio::test]
async fn unsharing_each_kind_of_namespace() {
    refused("unshare", &["EPERM"]).await;
}

#[tokio::test]
async fn cloning_into_each_kind_of_namespace() {
    refused("clone", &["EPERM"]).await;
}

#[tokio::test]
async fn cloning_by_clone3_whose_flags_no_filter_sees() {
    refused("clone3", &["ENOSYS"]).await;
}

#[tokio::test]
async fn entering_a_namespace_by_its_file() {
    refused("enter", &["EPERM"]).await;
}

#[tokio::test]
async fn entering_the_namespaces_of_process_1() {
    let other = format!("sleep 300 & {} enter $!; kill $!", NAMESPACES.on_host().display());
    on_host(&other).report().none_refused(&["EPERM", "EACCES"]); // of another process of the host
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let report = inside.attack(user, &NAMESPACES, &["enter", "1"]).await.report();
        report.all_refused(&["EPERM", "EACCES"]);
    }
    inside.end().await;
}

#[tokio::test]
async fn asking_for_the_namespaces_above() {
    // From above one asks whom one's children belong to.
    let child = format!(
        "unshare --user --pid --fork sleep 300 & until p=$(pgrep -P $!); do :; done; {} parents $p; kill -KILL $p",
        NAMESPACES.on_host().display()
    );
    let control = on_host(&child).report();
    assert_eq!((control.of("parent of user"), control.of("owner of user")), ("done", "done"));
    let inside = Inside::new().await;
    inside.attack("root", &NAMESPACES, &["parents"]).await.report().all_refused(&["EPERM"]);
    inside.end().await;
}

#[tokio::test]
async fn a_namespace_when_set_uid_programs_work() {
    let spec = cabana_sandbox::SandboxSpec { sudo: true, ..crate::inside::passing() };
    let inside = Inside::with(spec).await;
    inside.attack("root", &NAMESPACES, &["unshare"]).await.report().all_refused(&["EPERM"]);
    inside.attack("root", &NAMESPACES, &["clone"]).await.report().all_refused(&["EPERM"]);
    inside.user("sudo -n true").await.ok();
    inside.user("sudo -n unshare -r true").await.refused();
    inside.end().await;
}

#[tokio::test]
async fn more_user_namespaces_than_none() {
    assert_ne!(on_host("cat /proc/sys/user/max_user_namespaces").ok(), "0", "the host has some");
    let inside = Inside::new().await;
    assert_eq!(inside.root("cat /proc/sys/user/max_user_namespaces").await.ok(), "0");
    let said = inside.root("echo 10 > /proc/sys/user/max_user_namespaces").await.refused();
    assert!(said.contains("Read-only file system"), "{said}");
    inside.end().await;
}
