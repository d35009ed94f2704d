use std::fs;

use cabana_sandbox::{Error, User};

use super::kit::{Kit, fifo};

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
    assert!(matches!(kit.rooted.accounts(), Err(Error::NotRegular(_))));
    // Names are shown as numbers then.
    kit.file("f", "");
    assert!(kit.rooted.stat(&super::kit::path("/f")).unwrap().owner.parse::<u32>().is_ok());
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
