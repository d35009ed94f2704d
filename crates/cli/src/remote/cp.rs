//! `cabana cp`: files and directories, into a sandbox and out of it.

mod down;
mod up;

use std::path::PathBuf;

use cabana_model::{Code, SandboxId};
use serde::Deserialize;

use super::{
    place::Place,
    progress::{self, Bar},
    server::{At, Server},
};
use crate::failure::{Failure, plain, tell};

/// Copy files and directories into a sandbox or out of it
///
/// A target that is a directory, or ends in a slash, gets the source inside it. Links and devices are not copied, and said.
/// Files keep their permissions, without set-uid, set-gid and sticky bits, and out of a sandbox within the umask.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cabana cp report.pdf box:/workspace/\n  cabana cp ./src box:/workspace/src\n  \
                        cabana cp user:ann:/workspace/result.csv .\n  cabana cp --scope fixed:box :/workspace/out ./out")]
pub(crate) struct Args {
    /// The scope whose sandbox is meant by a path that begins with a colon
    #[arg(long, value_name = "SCHEME:VALUE")]
    scope: Option<String>,
    /// A path of this machine, or SANDBOX:/path
    #[arg(value_name = "FROM")]
    from: String,
    /// A path of this machine, or SANDBOX:/path
    #[arg(value_name = "TO")]
    to: String,
}

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side {
    Here(PathBuf),
    There(Place, String),
}

impl Side {
    /// The first `:/` parts a sandbox from a path in it. A local path that has one begins with `./` or `/`.
    fn of(text: &str, scope: Option<&str>) -> Result<Self, Failure> {
        match text.split_once(":/") {
            Some((sandbox, path)) if !sandbox.starts_with(['.', '/']) => {
                let place = match (sandbox, scope) {
                    ("", Some(scope)) => Place::given(None, Some(scope))?,
                    (sandbox, _) => Place::of(sandbox)?,
                };
                Ok(Self::There(place, format!("/{path}")))
            }
            _ => Ok(Self::Here(text.into())),
        }
    }
}

/// A file inside, as the server describes it.
#[derive(Deserialize)]
struct Info {
    name: String,
    r#type: Kind,
    size: u64,
    /// In octal digits.
    mode: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    File,
    Directory,
    Symlink,
    #[serde(other)]
    Other,
}

/// The sandbox, with the server that has it.
struct Inside<'a> {
    server: &'a Server,
    id: SandboxId,
}

impl Inside<'_> {
    fn path<'a>(&'a self, verb: &'a [&'a str]) -> Vec<&'a str> {
        [&["v1", "sandboxes", self.id.as_str(), "files"], verb].concat()
    }

    async fn stat(&self, path: &str) -> Result<Info, Failure> {
        self.server.get(At(&self.path(&["stat"]), &[("path", path)])).await
    }

    /// `None` where there is nothing.
    async fn kind(&self, path: &str) -> Result<Option<Kind>, Failure> {
        match self.stat(path).await {
            Ok(info) => Ok(Some(info.r#type)),
            Err(failure) if failure.is(Code::NotFound) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    let side = |text: &str| Side::of(text, args.scope.as_deref());
    let (left_out, bytes, files) = match (side(&args.from)?, side(&args.to)?) {
        (Side::Here(from), Side::There(place, to)) => {
            let plan = up::Plan::of(&from)?;
            let inside = Inside { server, id: place.ensure(server).await? };
            let bar = Bar::start(&from.display().to_string(), plan.bytes());
            plan.copy(&inside, &to, &bar).await?
        }
        (Side::There(place, from), Side::Here(to)) => {
            let inside = Inside { server, id: place.ensure(server).await? };
            let plan = down::Plan::of(&inside, &from).await?;
            let bar = Bar::start(&from, plan.bytes());
            plan.copy(&inside, &to, &bar).await?
        }
        (Side::Here(_), Side::Here(_)) => {
            return Err(Failure::bad("neither side is a sandbox: write it as SANDBOX:/path"));
        }
        (Side::There(..), Side::There(..)) => {
            return Err(Failure::bad("both sides are sandboxes: copy through a file here"));
        }
    };
    for path in left_out {
        tell(&format!("warning: {} was not copied: it is neither a file nor a directory", plain(&path)));
    }
    progress::done(files, bytes);
    Ok(())
}

/// What was left out, how many bytes and files were copied.
type Copied = (Vec<String>, u64, usize);

fn join(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_in_a_sandbox_if_it_names_one() {
        let there = |place: &str, path: &str| Side::There(Place::of(place).unwrap(), path.into());
        assert_eq!(Side::of("box:/a b", None).unwrap(), there("box", "/a b"));
        assert_eq!(Side::of("fixed:box:/a:/b", None).unwrap(), there("fixed:box", "/a:/b"));
        assert_eq!(Side::of(":/a", Some("fixed:box")).unwrap(), there("box", "/a"));
        for here in ["a.txt", "./box:/a", "/tmp/box:/a", "C:relative"] {
            assert_eq!(Side::of(here, None).unwrap(), Side::Here(here.into()), "{here}");
        }
        assert!(Side::of(":/a", None).is_err());
    }
}
