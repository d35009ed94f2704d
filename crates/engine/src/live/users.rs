//! Who is who in a sandbox, by its own files: looked at with the rights of its root, and never with those of the host's.

use std::sync::Arc;

use cabana_guest::Account;
use cabana_sandbox::{Error, Result, SandboxPath, User};

use super::Live;
use crate::{
    kernel::thread_identity::{ActingAs, Identity},
    lane,
};

impl Live {
    /// As root of the sandbox reads its files: where those lead is the guest's to say, and nothing of the host is its to read.
    fn account(&self, user: Option<&User>) -> Result<Account> {
        let root = self.root()?;
        let accounts = match root.cached_accounts() {
            Some(accounts) => accounts,
            None => {
                let _acting = ActingAs::new(&self.root_identity());
                root.accounts()?
            }
        };
        accounts.user_within(user.unwrap_or(&self.defaults.user), self.ids)
    }

    /// The same for a command: to read is a step that the guest may hold up.
    pub(crate) async fn account_of(self: &Arc<Self>, user: Option<&User>) -> Result<Account> {
        let root = self.root()?;
        if let Some(accounts) = lane::held_up(|| root.cached_accounts()) {
            return accounts.user_within(user.unwrap_or(&self.defaults.user), self.ids);
        }
        let (live, user) = (self.clone(), user.cloned());
        self.lane.step(move || live.account(user.as_ref())).await
    }

    /// Who a user of the sandbox is outside.
    pub(crate) fn identity(&self, user: Option<&User>) -> Result<Identity> {
        self.identity_of(&self.account(user)?)
    }

    pub(super) fn identity_of(&self, account: &Account) -> Result<Identity> {
        let outside = |id| self.ids.outside(id).ok_or(Error::Gone); // they are within, or it would be no account
        Ok(Identity {
            uid: outside(account.uid)?,
            gid: outside(account.gid)?,
            groups: account.groups.iter().filter_map(|group| self.ids.outside(*group)).collect(),
            root: account.uid == 0,
        })
    }

    fn root_identity(&self) -> Identity {
        Identity { uid: self.ids.base, gid: self.ids.base, groups: Vec::new(), root: true }
    }

    /// bash where there is one.
    pub(crate) fn shell(&self) -> &'static str {
        let look = || {
            let _acting = ActingAs::new(&self.root_identity());
            let there = |path: &str| {
                SandboxPath::new(path).is_ok_and(|path| self.root().is_ok_and(|root| root.stat(&path).is_ok()))
            };
            if there("/bin/bash") { "/bin/bash" } else { "/bin/sh" }
        };
        self.shell.get_or_init(|| lane::held_up(look))
    }
}
