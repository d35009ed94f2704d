use std::{fs, os::unix::net::UnixListener, time::Instant};

use cabana_guest::IdMap;
use cabana_sandbox::{Error, User};

use super::kit::{Kit, fifo, is_root, set_mode};

fn user(name: &str) -> User {
    User::new(name).unwrap()
}

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/bash
odd line
:x:1:1::/:/bin/sh
neg:x:-1:1::/:/bin/sh
all:x:4294967295:1::/:/bin/sh
agent:x:1000:1001:Agent,,,:/home/agent:/bin/zsh
again:x:1000:1001::/other:
";
const GROUP: &str = "root:x:0:\nagents:x:1001:\nsudo:x:27:agent,root\ndocker:x:99:agent\nbad:x:y:agent\n";

#[test]
fn users_come_from_the_sandboxs_own_files() {
    let kit = Kit::new();
    kit.file("etc/passwd", PASSWD);
    kit.file("etc/group", GROUP);
    let accounts = kit.rooted.accounts().unwrap();
    let agent = accounts.user(&user("agent")).unwrap();
    assert_eq!((agent.uid, agent.gid, agent.groups.as_slice()), (1000, 1001, &[27, 99][..]));
    assert_eq!((agent.home.as_str(), agent.shell.as_str()), ("/home/agent", "/bin/zsh"));
    assert_eq!(accounts.user(&user("1000")).unwrap(), agent);
    assert_eq!(accounts.user(&user("again")).unwrap().shell, "/bin/sh");
    assert_eq!(accounts.user_name(1000), Some("agent"));
    assert_eq!(accounts.group_name(27), Some("sudo"));
    assert_eq!(accounts.group_name(28), None);
}

#[test]
fn a_number_without_a_line_is_a_user() {
    let accounts = Kit::new().rooted.accounts().unwrap();
    let account = accounts.user(&user("4711")).unwrap();
    assert_eq!((account.uid, account.gid, account.home.as_str()), (4711, 4711, "/"));
    assert_eq!(accounts.user(&user("nobody-here")), None);
    assert_eq!(accounts.user(&user("4294967295")), None);
}

#[test]
fn a_changed_file_is_read_again_and_an_unchanged_one_is_not() {
    let kit = Kit::new();
    kit.file("etc/passwd", PASSWD);
    let first = kit.rooted.accounts().unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &kit.rooted.accounts().unwrap()));
    fs::write(kit.at("etc/passwd"), "new:x:7:7::/:/bin/sh\n").unwrap();
    assert_eq!(kit.rooted.accounts().unwrap().user(&user("new")).unwrap().uid, 7);
}

#[test]
fn a_huge_file_is_read_in_part_and_a_pipe_not_at_all() {
    let kit = Kit::new();
    let mut huge = "first:x:5:5::/:/bin/sh\n".to_owned();
    huge.push_str(&"x".repeat(2 << 20));
    kit.file("etc/passwd", huge);
    assert!(kit.rooted.accounts().unwrap().user(&user("first")).is_some());
    fs::remove_file(kit.at("etc/passwd")).unwrap();
    fifo(&kit.at("etc/passwd"));
    assert!(kit.rooted.accounts().unwrap().user(&user("first")).is_none());
    assert_eq!(kit.rooted.accounts().unwrap().user(&user("7")).unwrap().uid, 7, "a number needs no file");
    // Names are shown as numbers then.
    kit.file("f", "");
    assert!(kit.rooted.stat(&super::kit::path("/f")).unwrap().owner.parse::<u32>().is_ok());
}

#[test]
fn supplementary_groups_of_a_user_are_bounded() {
    let kit = Kit::new();
    kit.file("etc/passwd", PASSWD);
    let groups_of = |count: u32| {
        let lines = (2000..2000 + count).map(|gid| format!("g{gid}:x:{gid}:agent\n"));
        kit.file("etc/group", lines.collect::<String>());
        kit.rooted.accounts().unwrap().user(&user("agent")).unwrap().groups
    };
    assert_eq!(groups_of(200), (2000..2200).collect::<Vec<_>>(), "so many as anybody has");
    assert_eq!(groups_of(20_000), (2000..2256).collect::<Vec<_>>());
}

#[test]
fn accounts_are_found_anew_when_a_directory_or_a_link_on_the_way_changes() {
    let kit = Kit::new();
    let uid = |name: &str| kit.rooted.accounts().unwrap().user(&user(name)).map(|account| account.uid);
    kit.file("etc/passwd", "who:x:1:1::/:/bin/sh\n");
    kit.file("other/passwd", "who:x:2:2::/:/bin/sh\n");
    kit.file("third", "who:x:3:3::/:/bin/sh\n");
    assert_eq!(uid("who"), Some(1));
    fs::rename(kit.at("etc"), kit.at("old")).unwrap();
    assert_eq!(uid("who"), None);
    kit.link("etc", "/other");
    assert_eq!(uid("who"), Some(2));
    fs::remove_file(kit.at("other/passwd")).unwrap();
    kit.link("other/passwd", "../third");
    assert_eq!(uid("who"), Some(3));
    fs::write(kit.at("third"), "who:x:44:44::/:/bin/sh\n").unwrap();
    assert_eq!(uid("who"), Some(44));
    fs::remove_file(kit.at("etc")).unwrap();
    fs::rename(kit.at("old"), kit.at("etc")).unwrap();
    assert_eq!(uid("who"), Some(1));
}

const IDS: IdMap = IdMap { base: 0, count: 65_536 };

#[test]
fn groups_beyond_the_ids_of_a_sandbox_are_left_out() {
    let kit = Kit::new();
    kit.file("etc/passwd", "agent:x:1000:1000::/:/bin/sh\n");
    kit.file("etc/group", "a:x:131072:agent\nb:x:65535:agent\nc:x:65536:agent\nd:x:4294967294:agent\ne:x:7:agent\n");
    let accounts = kit.rooted.accounts().unwrap();
    assert_eq!(accounts.user_within(&user("agent"), IDS).unwrap().groups, [7, 65_535]);
    let single = IdMap { base: 0, count: 1 };
    kit.file("etc/passwd", "root:x:0:0::/:/bin/sh\n");
    kit.file("etc/group", "tty:x:5:root\n");
    assert!(kit.rooted.accounts().unwrap().user_within(&user("root"), single).unwrap().groups.is_empty());
}

#[test]
fn a_user_beyond_the_ids_of_a_sandbox_is_refused_by_name_and_number() {
    let kit = Kit::new();
    kit.file("etc/passwd", "far:x:65536:1::/:/bin/sh\nodd:x:1:131072::/:/bin/sh\nlast:x:65535:65535::/:/bin/sh\n");
    let accounts = kit.rooted.accounts().unwrap();
    for (name, beyond) in [("far", 65_536), ("odd", 131_072), ("65536", 65_536), ("4294967294", u32::MAX - 1)] {
        let refused = accounts.user_within(&user(name), IDS).unwrap_err();
        assert!(matches!(refused, Error::UserBeyondIds { id, .. } if id == beyond), "{name}: {refused:?}");
        assert_eq!(refused.code().as_str(), "unknown_user");
    }
    assert_eq!(accounts.user_within(&user("last"), IDS).unwrap().uid, 65_535);
    assert!(matches!(accounts.user_within(&user("who"), IDS), Err(Error::UnknownUser(_))));
}

#[test]
fn what_is_no_account_file_names_nobody_and_holds_nobody_up() {
    type Plant = fn(&Kit);
    let plants: [(&str, Plant); 7] = [
        ("nothing", |_| ()),
        ("a pipe", |kit| fifo(&kit.at("etc/passwd"))),
        ("a directory", |kit| kit.dir("etc/passwd")),
        ("a socket", |kit| drop(UnixListener::bind(kit.at("etc/passwd")).unwrap())),
        ("a link out of the root", |kit| kit.link("etc/passwd", "../../canary")),
        ("a link to itself", |kit| kit.link("etc/passwd", "passwd")),
        ("a device that never ends", |kit| {
            use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
            if is_root() {
                mknodat(CWD, kit.at("etc/passwd"), FileType::CharacterDevice, Mode::from(0o666), makedev(1, 5))
                    .unwrap();
            }
        }),
    ];
    for (what, plant) in plants {
        let kit = Kit::new();
        kit.dir("etc");
        plant(&kit);
        let began = Instant::now();
        let accounts = kit.rooted.accounts().unwrap();
        assert!(began.elapsed().as_secs() < 5, "{what} held it up");
        assert!(accounts.user(&user("root")).is_none() && accounts.user_name(0).is_none(), "{what}");
        assert_eq!(accounts.user(&user("0")).unwrap().uid, 0, "{what}");
        kit.canary_is_well();
    }
}

#[test]
fn lines_that_lie_are_passed_over() {
    let kit = Kit::new();
    let good = "good:x:5:5::/:/bin/sh";
    let lies: [&[u8]; 9] = [
        b"nul:x:6:6::/ho\0me:/bin/sh",
        b"ret:x:6:6::/home\r:/bin/sh",
        b"neg:x:-6:6::/:/bin/sh",
        b"plus:x:+6:6::/:/bin/sh",
        b"hex:x:0x6:6::/:/bin/sh",
        b"big:x:4294967296:6::/:/bin/sh",
        b"\xff\xfe:x:6:6::/:/bin/sh",
        b"good:x:0:0::/root:/bin/sh",
        b"more:x:6:6::/:/bin/sh:and:more",
    ];
    let mut text = format!("{good}\n").into_bytes();
    lies.iter().for_each(|lie| text.extend([lie, &b"\n"[..]].concat()));
    text.extend(std::iter::repeat_n(b'x', 3 << 20));
    kit.file("etc/passwd", &text);
    let accounts = kit.rooted.accounts().unwrap();
    assert_eq!(accounts.user(&user("good")).unwrap().uid, 5, "of two lines with one name the first counts");
    for name in ["nul", "ret", "neg", "plus", "hex", "big", "more"] {
        assert_eq!(accounts.user(&user(name)), None, "{name}");
    }
    assert_eq!(accounts.user_name(6), None);
}

/// By the rights of the sandbox alone, though the thread has those of the host's root.
#[test]
fn account_files_that_are_nobodys_inside_are_judged_by_what_everybody_may_read() {
    if !is_root() {
        return;
    }
    let kit = Kit::with(IdMap { base: 200_000, count: 65_536 });
    let of_host = kit.at("etc/of-host");
    kit.file("etc/of-host", "host:x:5:5::/:/bin/sh\n");
    kit.link("etc/passwd", "of-host");
    set_mode(&of_host, 0o600);
    assert!(fs::read(&of_host).is_ok(), "the thread itself could");
    assert_eq!(kit.rooted.accounts().unwrap().user(&user("host")), None);
    set_mode(&of_host, 0o644);
    assert!(kit.rooted.accounts().unwrap().user(&user("host")).is_some(), "and what was closed is looked at again");
    set_mode(&of_host, 0o600);
    std::os::unix::fs::chown(&of_host, Some(200_007), Some(200_007)).unwrap();
    assert!(kit.rooted.accounts().unwrap().user(&user("host")).is_some(), "its own it may read");
}
