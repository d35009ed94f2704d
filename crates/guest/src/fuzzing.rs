//! What the fuzz targets throw bytes at, where the way to it is not public: a guest's `/etc/passwd` and `/etc/group`.

use cabana_sandbox::User;

use crate::{Accounts, IdMap};

/// Those of a sandbox.
const IDS: IdMap = IdMap { base: 0, count: 65_536 };

/// The two files, with a NUL between them.
pub fn accounts(bytes: &[u8]) {
    let cut = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (passwd, group) = (&bytes[..cut], bytes.get(cut + 1..).unwrap_or_default());
    let accounts = Accounts::parse(passwd, group);
    for line in passwd.split(|byte| *byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let fields: Vec<&str> = line.split(':').collect();
        if let Ok(user) = User::new(fields[0])
            && let Some(account) = accounts.user(&user)
        {
            check(&accounts, passwd, &account);
            if let Ok(within) = accounts.user_within(&user, IDS) {
                let all = within.groups.iter().chain([&within.uid, &within.gid]);
                assert!(all.into_iter().all(|id| *id < IDS.count), "an id of another: {within:?}");
            }
        }
        let by_number = fields.get(2).and_then(|uid| User::new(*uid).ok()).and_then(|uid| accounts.user(&uid));
        if let Some(account) = by_number {
            check(&accounts, passwd, &account);
        }
    }
}

fn check(accounts: &Accounts, passwd: &[u8], account: &crate::Account) {
    assert!(account.uid != u32::MAX && account.gid != u32::MAX, "a number that means «as it is» to the kernel");
    assert!(!account.home.contains(['\0', '\n']) && !account.shell.contains(['\0', '\n']));
    assert!(!account.groups.contains(&account.gid) && account.groups.is_sorted());
    assert!(!account.home.is_empty() && !account.shell.is_empty());
    // Nobody is root who has no line that says so, or a number that is root's.
    let says_root = String::from_utf8_lossy(passwd).lines().any(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        fields.len() == 7 && fields[0] == account.name && fields[2].bytes().all(|byte| byte == b'0')
    });
    assert!(account.uid != 0 || says_root || account.name == "0", "{account:?}");
    if let Some(name) = accounts.user_name(account.uid) {
        assert!(User::new(name).is_ok());
    }
}
