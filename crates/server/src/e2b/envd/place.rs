//! Where a path of a client's leads: from the home of the user who is meant, as a shell would have it.

use axum::http::HeaderMap;
use cabana_e2b_wire::connect;
use cabana_runtime::{
    Error,
    acts::files::{At, Part, Read, Rights},
};
use cabana_sandbox::User;
use futures_util::TryStreamExt;

use super::{
    super::{
        guest::{Guest, user},
        refused::connect_error,
    },
    admission::Admission,
};
use crate::App;

const ACCOUNTS: &str = "/etc/passwd";

/// Whom a call acts as, by its header.
pub(super) fn user_of(headers: &HeaderMap) -> Result<Option<User>, connect::Error> {
    user(headers).map_err(|error| connect::Error::new(connect::Code::Unauthenticated, error))
}

/// Why there is no such place.
#[derive(Debug)]
pub(super) enum Misplaced {
    /// Somebody else's home is not looked for.
    OfAnother(String),
    Nobody(User),
    Failed(Error),
}

impl From<Misplaced> for connect::Error {
    fn from(misplaced: Misplaced) -> Self {
        use connect::Code;
        match misplaced {
            Misplaced::OfAnother(path) => {
                Self::new(Code::InvalidArgument, format!("cannot expand user-specific home directory in '{path}'"))
            }
            Misplaced::Nobody(user) => Self::new(Code::Unauthenticated, format!("invalid username: '{user}'")),
            Misplaced::Failed(error) => connect_error(&error),
        }
    }
}

/// Nothing at all is where the template works, or the home itself. The default user's is where the sandbox works, which the
/// runtime knows, unless the template has chosen another user.
pub(super) async fn place(
    app: &App,
    guest: &Guest,
    by: Admission,
    user: Option<&User>,
    path: &str,
) -> Result<String, Misplaced> {
    let brought = &guest.kept.brought;
    if let (true, Some(workdir)) = (path.is_empty(), &brought.workdir) {
        return Ok(clean(workdir));
    }
    let user = user.or(brought.user.as_ref());
    let below = match path.strip_prefix('~') {
        None if path.starts_with('/') => return Ok(clean(path)),
        None => path,
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_start_matches('/'),
        Some(_) => return Err(Misplaced::OfAnother(path.to_owned())),
    };
    let Some(user) = user else { return Ok(clean(below)) };
    let home = home(app, guest, by, user).await?;
    Ok(clean(&format!("{home}/{below}")))
}

/// The shortest spelling of it. Above the root there is only the root; above where a relative one begins, whoever resolves it
/// decides.
fn clean(path: &str) -> String {
    let is_absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match (part, parts.last()) {
            ("" | ".", _) => {}
            ("..", Some(above)) if *above != ".." => drop(parts.pop()),
            ("..", None) if is_absolute => {}
            _ => parts.push(part),
        }
    }
    format!("{}{}", if is_absolute { "/" } else { "" }, parts.join("/"))
}

/// The agent is root, and makes for the user what it makes.
pub(super) async fn at(
    app: &App,
    guest: &Guest,
    by: Admission,
    user: Option<User>,
    path: &str,
) -> Result<At, Misplaced> {
    let path = place(app, guest, by, user.as_ref(), path).await?;
    Ok(At { path, user, rights: Rights::Root })
}

async fn home(app: &App, guest: &Guest, by: Admission, user: &User) -> Result<String, Misplaced> {
    let read = Read { at: At::new(ACCOUNTS), part: Part::From { from: 0, len: Some(1 << 20) } };
    let opened = by.read(app, guest, read).await.map_err(Misplaced::Failed)?;
    let pieces: Vec<_> = opened.body.try_collect().await.map_err(|error| Misplaced::Failed(error.into()))?;
    // A guest decides how many lines there are: not on a thread that others wait for.
    let name = user.to_string();
    let found = tokio::task::spawn_blocking(move || home_of(&name, &pieces.concat()));
    found.await.ok().flatten().ok_or_else(|| Misplaced::Nobody(user.clone()))
}

fn home_of(name: &str, accounts: &[u8]) -> Option<String> {
    let is_it = |line: &&[u8]| line.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b':'));
    let line = accounts.split(|byte| *byte == b'\n').find(is_it)?;
    let home = line.split(|byte| *byte == b':').nth(5)?;
    let home = String::from_utf8_lossy(home.strip_suffix(b"\r").unwrap_or(home)).into_owned();
    home.starts_with('/').then_some(home)
}

#[cfg(test)]
mod tests {
    use super::{clean, home_of};

    #[test]
    fn the_home_of_an_account_is_its_sixth_field() {
        let accounts =
            b"root:x:0:0:root:/root:/bin/sh\nroot2:x:0:0::/second:/bin/sh\nshort:x\nrel:x:1:1::home:\nlast:x:1:1::/l";
        let home = |name: &str| home_of(name, accounts);
        assert_eq!(home("root").as_deref(), Some("/root"));
        assert_eq!(home("root2").as_deref(), Some("/second"));
        assert_eq!(home("last").as_deref(), Some("/l"));
        for nobody in ["roo", "x", "", "short", "rel"] {
            assert_eq!(home(nobody), None, "{nobody}");
        }
    }

    #[test]
    fn a_path_has_one_spelling() {
        for (path, cleaned) in [
            ("/home/user/", "/home/user"),
            ("/", "/"),
            ("//a/./b/../c", "/a/c"),
            ("/../..", "/"),
            ("a//b/.", "a/b"),
            ("./", ""),
            ("a/..", ""),
            ("../a/../..", "../.."),
        ] {
            assert_eq!(clean(path), cleaned, "{path}");
        }
    }
}
