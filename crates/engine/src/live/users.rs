//! Who is who in a sandbox, by its own files: looked at with the rights of its root, and never with those of the host's.

use std::sync::Arc;

use cabana_guest::Account;
use cabana_sandbox::{Error, Result, SandboxPath, User};

use super::Live;
use crate::kernel::thread_identity::{ActingAs, Identity};

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

    /// The same for a command, as a step: a guest can hold it up. To look at the marks of files that were read before takes no lock
    /// as long as their names are in the kernel's cache, since neither overlayfs nor what it lies on locks a file to tell of it;
    /// a name that is not has to be looked up, under the lock of its directory, and a guest can push it out of the cache. To
    /// open and read them waits for pages that the guest's own disk brings. What it costs beside that is a place in the lane.
    pub(crate) async fn account_of(self: &Arc<Self>, user: Option<&User>) -> Result<Account> {
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

    /// bash where there is one. Looked for once, as a step; who asks meanwhile looks, too, and waits for nobody.
    pub(crate) async fn shell(self: &Arc<Self>) -> Result<&'static str> {
        if let Some(shell) = self.shell.get().copied() {
            return Ok(shell);
        }
        let live = self.clone();
        let found = self.lane.step(move || Ok(live.look_for_shell())).await?;
        Ok(*self.shell.get_or_init(|| found))
    }

    fn look_for_shell(&self) -> &'static str {
        let _acting = ActingAs::new(&self.root_identity());
        let there = |path: &str| {
            SandboxPath::new(path).is_ok_and(|path| self.root().is_ok_and(|root| root.stat(&path).is_ok()))
        };
        if there("/bin/bash") { "/bin/bash" } else { "/bin/sh" }
    }
}
