//! Sockets as doors to parts of the kernel that nobody inside needs.

use crate::{
    attacks::{RTNETLINK, SOCKETS, SOCKOPTS},
    inside::Inside,
};

const UNIX: u32 = 1;
const INET: u32 = 2;
const INET6: u32 = 10;
const NETLINK: u32 = 16;

/// CVE-2021-26708, CVE-2021-43267, CVE-2026-31431 and many more: each family is a module, loaded for whoever asks for it.
#[tokio::test]
async fn other_socket_families_are_refused() {
    let families = (0..64).filter(|family| ![UNIX, INET, INET6, NETLINK].contains(family));
    let wanted: Vec<String> =
        families.flat_map(|family| [1, 2, 3, 5].map(|kind| format!("{family}:{kind}:0"))).collect();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let host = SOCKETS.run_on_host(&["17:3:0", "38:5:0", "40:1:0"]).report();
    assert!(["17:3:0", "38:5:0", "40:1:0"].iter().any(|one| host.of(&format!("socket {one}")) == "done"), "{host:?}");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        inside.attack(user, &SOCKETS, &wanted).await.report().all_refused(&["EAFNOSUPPORT"]);
    }
    inside.end().await;
}

/// nf_tables, xfrm, generic netlink: the kernel's own configuration, and most of its bugs of a decade.
#[tokio::test]
async fn netlink_protocols_other_than_route_are_refused() {
    let wanted: Vec<String> =
        (1..32).flat_map(|protocol| [2, 3].map(|kind| format!("{NETLINK}:{kind}:{protocol}"))).collect();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let host = SOCKETS.run_on_host(&["16:3:12", "16:3:16"]).report();
    assert_eq!((host.of("socket 16:3:12"), host.of("socket 16:3:16")), ("done", "done"));
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        assert_eq!(inside.attack(user, &SOCKETS, &["16:3:0"]).await.report().of("socket 16:3:0"), "done");
        let report = inside.attack(user, &SOCKETS, &wanted).await.report();
        report.all_refused(&["EPROTONOSUPPORT", "EAFNOSUPPORT"]);
    }
    inside.end().await;
}

async fn option_is_refused(group: &str, answers: &[&str]) {
    SOCKOPTS.run_on_host(&[group]).report().none_refused(&["EPERM"]);
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        inside.attack(user, &SOCKOPTS, &[group]).await.report().all_refused(answers);
    }
    inside.end().await;
}

/// CVE-2016-3134, CVE-2016-4997, CVE-2021-22555.
#[tokio::test]
async fn xtables_setsockopt_is_refused() {
    option_is_refused("xtables", &["EPERM", "ENOPROTOOPT"]).await;
}

/// CVE-2017-7184, CVE-2022-27666: the other way to the transformations of IPsec.
#[tokio::test]
async fn ipsec_policy_setsockopt_is_refused() {
    option_is_refused("ipsec", &["EPERM", "ENOTSUP", "ENOPROTOOPT"]).await;
}

/// What CAP_NET_ADMIN would allow on a plain socket.
#[tokio::test]
async fn privileged_socket_options_are_refused() {
    option_is_refused("admin", &["EPERM", "EACCES"]).await;
}

/// CVE-2023-0461.
#[tokio::test]
async fn tcp_ulp_is_refused() {
    option_is_refused("ulp", &["EPERM"]).await;
}

/// CVE-2022-2588, CVE-2023-1829, CVE-2023-4623, CVE-2023-31436: queues and filters of traffic, by the one netlink that is open.
#[tokio::test]
async fn rtnetlink_changes_are_refused() {
    RTNETLINK.run_on_host(&["apart"]).report().none_refused(&["EPERM", "EACCES"]);
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        inside.attack(user, &RTNETLINK, &[]).await.report().all_refused(&["EPERM"]);
    }
    inside.end().await;
}

/// CVE-2025-38236: urgent bytes of Unix sockets, which no program of this age sends, were the way out of a browser's sandbox.
#[tokio::test]
async fn msg_oob_on_unix_sockets_is_refused() {
    assert_eq!(SOCKOPTS.run_on_host(&["urgent"]).report().of("send"), "done");
    option_is_refused("urgent", &["EPERM", "ENOTSUP"]).await;
}

/// CVE-2022-0995: `pipe2` makes a queue of the kernel's notices, where the kernel has it.
#[tokio::test]
async fn notification_pipes_are_refused() {
    option_is_refused("notices", &["EPERM", "EINVAL", "ENOSYS"]).await;
}
