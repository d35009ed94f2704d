//! Out of a sandbox. What is inside may be hostile: no name of it leads anywhere but below the target, and no link that it puts
//! into a directory which it shares with this machine does.

use std::{
    fs,
    io::Write,
    path::{Component, Path, PathBuf},
};

use cabana_guest::Below;
use cabana_model::Code;
use reqwest::Method;
use rustix::fs::Mode;

use super::{Copied, Info, Inside, Kind, join};
use crate::{
    failure::Failure,
    remote::{progress::Bar, server::At},
};

/// No tree that somebody made on purpose is deeper.
const DEEPEST: usize = 200;

pub(super) struct Plan {
    name: String,
    /// Those of a directory begin with the empty one, which is itself. Above before below.
    directories: Vec<PathBuf>,
    files: Vec<Source>,
    left_out: Vec<String>,
}

struct Source {
    path: String,
    /// Below the target; empty for the target itself.
    below: PathBuf,
    size: u64,
    mode: u32,
}

impl Plan {
    pub(super) async fn of(inside: &Inside<'_>, from: &str) -> Result<Self, Failure> {
        let mut info = inside.stat(from).await?;
        if info.r#type == Kind::Symlink {
            // What was named itself may be a link: then what it leads to is meant.
            info = Info { r#type: Kind::File, size: 0, mode: "0644".into(), ..info };
        }
        let name = from.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        let mut plan = Self { name, directories: Vec::new(), files: Vec::new(), left_out: Vec::new() };
        let mut open = Vec::new();
        plan.add(from.to_owned(), PathBuf::new(), &info, &mut open);
        while let Some((path, below)) = open.pop() {
            let rows = inside.server.all::<Info>("entries", &inside.path(&["list"]), &[("path", &path)]).await?;
            for info in rows {
                match is_plain(&info.name) && below.components().count() < DEEPEST {
                    true => plan.add(join(&path, &info.name), below.join(&info.name), &info, &mut open),
                    false => plan.left_out.push(join(&path, &info.name)),
                }
            }
        }
        Ok(plan)
    }

    fn add(&mut self, path: String, below: PathBuf, info: &Info, open: &mut Vec<(String, PathBuf)>) {
        match info.r#type {
            Kind::File => self.files.push(Source { path, below, size: info.size, mode: mode(&info.mode) }),
            Kind::Directory => {
                self.directories.push(below.clone());
                open.push((path, below));
            }
            Kind::Symlink | Kind::Other => self.left_out.push(path),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    pub(super) async fn copy(self, inside: &Inside<'_>, to: &Path, bar: &Bar) -> Result<Copied, Failure> {
        let failed = |error: std::io::Error| unwritten(to, &error);
        let (dir, name) = self.target(to)?;
        if !self.directories.is_empty() {
            fs::create_dir_all(&dir).map_err(failed)?;
        }
        let top = Below::open(&dir).map_err(failed)?;
        for below in &self.directories {
            let path = name.join(below);
            top.make_dirs(&path).map_err(|error| unwritten(&dir.join(&path), &error))?;
        }
        let mut bytes = 0;
        for file in &self.files {
            let path = if file.below.as_os_str().is_empty() { name.clone() } else { name.join(&file.below) };
            let failed = |error: std::io::Error| unwritten(&dir.join(&path), &error);
            bytes += take(inside, file, &top, &path, &failed, bar).await?;
        }
        Ok((self.left_out, bytes, self.files.len()))
    }

    /// The directory that is named, by whatever way, and what is made in it: from there on no link is followed. The last name
    /// counts as below it, unless a slash says that it is a directory, since a sandbox may have put a link there.
    fn target(&self, to: &Path) -> Result<(PathBuf, PathBuf), Failure> {
        let (Some(dir), Some(name), false) = (to.parent(), to.file_name(), to.to_string_lossy().ends_with('/')) else {
            return Ok((to.into(), self.name.as_str().into()));
        };
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        match fs::symlink_metadata(to) {
            Ok(found) if found.is_dir() => Ok((dir.into(), Path::new(name).join(&self.name))),
            Ok(found) if found.is_symlink() && to.is_dir() => Err(unwritten(to, &"it is a link to a directory")
                .with_hint("End it with a slash to copy into the directory that it leads to.")),
            _ => Ok((dir.into(), name.into())),
        }
    }
}

/// As `cp` makes it: a guest chooses modes as it likes, so none gives a program another user's rights, and none opens to others what
/// files of this operator are not open to.
fn mode(digits: &str) -> u32 {
    u32::from_str_radix(digits, 8).unwrap_or(0o644) & 0o777 & !umask()
}

/// It can only be read by setting it; whoever makes a file at that moment makes it for its owner alone.
fn umask() -> u32 {
    let was = rustix::process::umask(Mode::from_raw_mode(0o077));
    rustix::process::umask(was);
    was.as_raw_mode()
}

/// One name, and no way to somewhere else.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
        && !name.contains('\0')
}

fn unwritten(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Code::PermissionDenied, format!("{}: {error}", path.display()))
        .with_hint("Check the path on this machine.")
}

/// Under another name until it is whole: what breaks off leaves what was there before.
async fn take(
    inside: &Inside<'_>,
    source: &Source,
    top: &Below,
    to: &Path,
    failed: &dyn Fn(std::io::Error) -> Failure,
    bar: &Bar,
) -> Result<u64, Failure> {
    let mut response = inside
        .server
        .send(inside.server.request(Method::GET, At(&inside.path(&[]), &[("path", &source.path)])))
        .await?;
    let mut draft = top.draft(to).map_err(failed)?;
    let mut bytes = 0;
    while let Some(piece) = inside.server.piece(&mut response).await? {
        draft.write_all(&piece).map_err(failed)?;
        bar.more(piece.len());
        bytes += piece.len() as u64;
    }
    draft.finish(source.mode).map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_from_inside_leads_out_of_the_target() {
        for good in ["a", "a b", "..a", ".hidden", "ü", "a\\b"] {
            assert!(is_plain(good), "{good:?}");
        }
        for bad in ["", ".", "..", "/", "/etc", "a/b", "../a", "a/", "./a", "a\0"] {
            assert!(!is_plain(bad), "{bad:?}");
        }
    }
}
