//! Account files: reading a tree's `passwd` and `group`, and writing those of a sandbox.

use cabana_sandbox::User;

/// The account that commands run as unless they say otherwise, where a tree brings none.
pub(crate) const USER: &str = "user";
pub(crate) const USER_ID: u32 = 1000;
pub(crate) const NOBODY: u32 = 65_534;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) gid: u32,
}

/// Lines that are not accounts (comments, `+` of old directories) are no accounts.
pub(crate) fn parse_passwd(text: &str) -> Vec<Account> {
    let account = |line: &str| {
        let [name, _, uid, gid, _, home, ..] = fields::<6>(line)?;
        Some(Account { name: plain(name)?, uid: uid.parse().ok()?, gid: gid.parse().ok()?, home: home.into() })
    };
    text.lines().filter_map(account).collect()
}

pub(crate) fn parse_group(text: &str) -> Vec<Group> {
    let group = |line: &str| {
        let [name, _, gid] = fields::<3>(line)?;
        Some(Group { name: plain(name)?, gid: gid.parse().ok()? })
    };
    text.lines().filter_map(group).collect()
}

fn fields<const N: usize>(line: &str) -> Option<[&str; N]> {
    let mut parts = line.split(':');
    let mut fields = [""; N];
    for field in &mut fields {
        *field = parts.next()?;
    }
    Some(fields)
}

fn plain(name: &str) -> Option<String> {
    User::new(name).ok().map(String::from)
}

/// The text with one more line, on a line of its own.
pub(crate) fn with_line(text: &str, line: &str) -> String {
    let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{gap}{line}\n")
}

/// The four account files of a sandbox.
pub(crate) struct Files {
    pub(crate) passwd: String,
    pub(crate) group: String,
    pub(crate) shadow: String,
    pub(crate) gshadow: String,
}

/// Root, the given system accounts by name and number only, nobody and the sandbox's own user. No password works: they
/// are locked, since whoever may become somebody inside is decided outside.
pub(crate) fn generate(system: &[Account], groups: &[Group], shell: &str) -> Files {
    let ours = |name: &str, id: u32| name == USER || name == "root" || name == "nobody" || id == 0 || id >= USER_ID;
    let mut files =
        Files { passwd: String::new(), group: String::new(), shadow: String::new(), gshadow: String::new() };
    files.account("root", 0, 0, "/root", shell);
    for account in system.iter().filter(|a| !ours(&a.name, a.uid)) {
        files.account(&account.name, account.uid, account.gid, &home(account), "/usr/sbin/nologin");
    }
    files.account("nobody", NOBODY, NOBODY, "/nonexistent", "/usr/sbin/nologin");
    files.account(USER, USER_ID, USER_ID, "/home/user", shell);
    files.group("root", 0);
    for group in groups.iter().filter(|g| !ours(&g.name, g.gid) && g.name != "nogroup") {
        files.group(&group.name, group.gid);
    }
    files.group("nogroup", NOBODY);
    files.group(USER, USER_ID);
    files
}

/// A home of the host that is not one of the system's own directories says something about the host.
fn home(account: &Account) -> String {
    let known = ["/usr/", "/var/", "/bin", "/dev", "/run/", "/nonexistent"];
    if known.iter().any(|start| account.home.starts_with(start)) { account.home.clone() } else { "/nonexistent".into() }
}

impl Files {
    fn account(&mut self, name: &str, uid: u32, gid: u32, home: &str, shell: &str) {
        self.passwd += &format!("{name}:x:{uid}:{gid}::{home}:{shell}\n");
        self.shadow += &format!("{name}:*:19000:0:99999:7:::\n");
    }

    fn group(&mut self, name: &str, gid: u32) {
        self.group += &format!("{name}:x:{gid}:\n");
        self.gshadow += &format!("{name}:*::\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_account_is_passed_over() {
        let text = "# comment\nroot:x:0:0:root:/root:/bin/sh\n+::::::\nbad:x:ten:0::/:\nshort:x:1\nana:x:1000:50:A,B:/home/ana:/bin/sh";
        let names: Vec<_> = parse_passwd(text).into_iter().map(|a| (a.name, a.uid, a.gid, a.home)).collect();
        assert_eq!(names, [("root".into(), 0, 0, "/root".into()), ("ana".into(), 1000, 50, "/home/ana".into())]);
    }

    #[test]
    fn generated_accounts_hold_no_person_and_no_password() {
        let host = parse_passwd(
            "root:x:0:0:Head of IT:/root:/bin/zsh\nwww:x:33:33:Web,Room 7:/var/www:/bin/sh\nana:x:1000:1000:Ana:/home/ana:/bin/sh\n\
             toor:x:0:0::/root:/bin/sh\nsvc:x:900:900::/home/svc:/bin/sh\nuser:x:77:77::/:/bin/sh\n",
        );
        let files = generate(&host, &[], "/bin/bash");
        assert_eq!(
            files.passwd,
            "root:x:0:0::/root:/bin/bash\nwww:x:33:33::/var/www:/usr/sbin/nologin\nsvc:x:900:900::/nonexistent:/usr/sbin/nologin\n\
             nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\nuser:x:1000:1000::/home/user:/bin/bash\n"
        );
        assert!(files.shadow.lines().all(|line| line.split(':').nth(1) == Some("*")));
    }

    #[test]
    fn a_line_is_added_on_a_line_of_its_own() {
        assert_eq!(with_line("a", "b"), "a\nb\n");
        assert_eq!(with_line("a\n", "b"), "a\nb\n");
        assert_eq!(with_line("", "b"), "b\n");
    }
}
