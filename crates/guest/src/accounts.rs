//! Who is who inside: the sandbox's own `/etc/passwd` and `/etc/group`, read as a stranger's text.

use std::collections::{BTreeSet, HashMap};

use cabana_sandbox::{Error, Result, User};

use crate::IdMap;

/// Of each file no more than this is read.
pub(crate) const MAX_FILE: usize = 1024 * 1024;
/// Supplementary groups of a user, those that come first in the file: each step that is done as the user takes all of them on, and a
/// file of this length could list fifty thousand.
const MAX_GROUPS: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary: what `/etc/group` lists beyond `gid`.
    pub groups: Vec<u32>,
    pub home: String,
    pub shell: String,
}

/// Lines that are not as they should be are passed over. Of several lines with one name or number, the first counts.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    users: HashMap<String, Account>,
    user_names: HashMap<u32, String>,
    group_names: HashMap<u32, String>,
}

impl Accounts {
    pub(crate) fn parse(passwd: &[u8], group: &[u8]) -> Self {
        let mut accounts = Self::default();
        for account in whole_lines(passwd).filter_map(parse_user) {
            accounts.user_names.entry(account.uid).or_insert_with(|| account.name.clone());
            accounts.users.entry(account.name.clone()).or_insert(account);
        }
        let mut member_of: HashMap<&str, BTreeSet<u32>> = HashMap::new();
        for (name, gid, members) in whole_lines(group).filter_map(parse_group) {
            accounts.group_names.entry(gid).or_insert_with(|| name.to_owned());
            for member in members.split(',').filter(|member| !member.is_empty()) {
                let groups = member_of.entry(member).or_default();
                if groups.len() < MAX_GROUPS {
                    groups.insert(gid);
                }
            }
        }
        for (name, mut groups) in member_of {
            if let Some(account) = accounts.users.get_mut(name) {
                groups.remove(&account.gid);
                account.groups = groups.into_iter().collect();
            }
        }
        accounts
    }

    /// By name or by number. A number without a line is legal: its group has the same number, and its home is `/`.
    pub fn user(&self, user: &User) -> Option<Account> {
        // A number is a number, whatever a guest calls its users: else it would say who another number is.
        let Some(uid) = id(user.as_str()) else { return self.users.get(user.as_str()).cloned() };
        let known = self.user_names.get(&uid).and_then(|name| self.users.get(name));
        Some(known.filter(|account| account.uid == uid).cloned().unwrap_or_else(|| Account {
            name: uid.to_string(),
            uid,
            gid: uid,
            groups: Vec::new(),
            home: "/".into(),
            shell: "/bin/sh".into(),
        }))
    }

    /// The same as one of a sandbox that has these ids. A user with another number is none of its users; groups with another
    /// number are none of its groups, and the user is in the rest of them.
    pub fn user_within(&self, user: &User, ids: IdMap) -> Result<Account> {
        let mut account = self.user(user).ok_or_else(|| Error::UnknownUser(user.clone()))?;
        let beyond = [account.uid, account.gid].into_iter().find(|id| ids.outside(*id).is_none());
        if let Some(id) = beyond {
            return Err(Error::UserBeyondIds { user: user.clone(), id });
        }
        account.groups.retain(|group| ids.outside(*group).is_some());
        Ok(account)
    }

    pub fn user_name(&self, uid: u32) -> Option<&str> {
        self.user_names.get(&uid).map(String::as_str)
    }

    pub fn group_name(&self, gid: u32) -> Option<&str> {
        self.group_names.get(&gid).map(String::as_str)
    }
}

/// Without a last line that was cut off by the limit.
fn whole_lines(text: &[u8]) -> impl Iterator<Item = &str> {
    let end = if text.len() < MAX_FILE { text.len() } else { text.iter().rposition(|b| *b == b'\n').unwrap_or(0) };
    text[..end].split(|b| *b == b'\n').filter_map(|line| std::str::from_utf8(line).ok())
}

fn parse_user(line: &str) -> Option<Account> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, _, home, shell] = fields[..] else { return None };
    // A name that is no user's name could never be asked for; the rest would end up in a command's environment.
    User::new(name).ok()?;
    let plain = |text: &str| !text.contains(['\0', '\r']);
    if !plain(home) || !plain(shell) {
        return None;
    }
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    Some(Account {
        name: name.into(),
        uid: id(uid)?,
        gid: id(gid)?,
        groups: Vec::new(),
        home: or(home, "/"),
        shell: or(shell, "/bin/sh"),
    })
}

fn parse_group(line: &str) -> Option<(&str, u32, &str)> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, gid, members] = fields[..] else { return None };
    User::new(name).ok()?;
    Some((name, id(gid)?, members))
}

/// `u32::MAX` means «leave as it is» to the kernel: it is nobody's number.
fn id(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok().filter(|id| *id != u32::MAX) } else { None }
}
