//! Into a sandbox. Others may change what is copied meanwhile, and a sandbox too, if the directory is mounted in one: below what
//! was named no link is followed.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use cabana_guest::Below;
use cabana_model::Code;
use reqwest::{Method, header};
use rustix::fs::FileType;
use serde_json::Value;
use tokio::fs::File;

use super::{Copied, Inside, Kind, join};
use crate::{
    failure::Failure,
    remote::{
        progress::Bar,
        server::{At, with_json},
        upload::body,
    },
};

/// What there is to copy, looked at before anything is sent.
pub(super) struct Plan {
    from: PathBuf,
    name: String,
    /// `None` for a single file.
    top: Option<Below>,
    /// Those of a directory begin with the empty one, which is itself. Above before below.
    directories: Vec<String>,
    files: Vec<Source>,
    left_out: Vec<String>,
}

struct Source {
    /// Below what was named; empty for that itself.
    below: String,
    size: u64,
    mode: u32,
}

impl Plan {
    pub(super) fn of(from: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| unread(from, &error);
        let name = fs::canonicalize(from).map_err(failed)?;
        let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        // What was named itself may be a link: then what it leads to is meant.
        let info = fs::metadata(from).map_err(failed)?;
        let top = info.is_dir().then(|| Below::open(from)).transpose().map_err(failed)?;
        let (directories, files, left_out) = (Vec::new(), Vec::new(), Vec::new());
        let mut plan = Self { from: from.into(), name, top, directories, files, left_out };
        match () {
            () if info.is_dir() => plan.look_below().map_err(failed)?,
            () if info.is_file() => {
                let mode = info.permissions().mode() & 0o777;
                plan.files.push(Source { below: String::new(), size: info.len(), mode });
            }
            () => plan.left_out.push(from.display().to_string()),
        }
        Ok(plan)
    }

    fn look_below(&mut self) -> io::Result<()> {
        let Self { from, top: Some(top), directories, files, left_out, .. } = self else { return Ok(()) };
        directories.push(String::new());
        top.walk(&mut |path, stat| {
            let kind = FileType::from_raw_mode(stat.st_mode);
            match (kind, path.to_str()) {
                (FileType::Directory, Some(path)) => directories.push(path.to_owned()),
                (FileType::RegularFile, Some(path)) => {
                    let size = u64::try_from(stat.st_size).unwrap_or(0);
                    files.push(Source { below: path.to_owned(), size, mode: stat.st_mode & 0o777 });
                }
                _ => {
                    left_out.push(from.join(path).display().to_string());
                    return false;
                }
            }
            true
        })
    }

    fn open(&self, file: &Source) -> io::Result<fs::File> {
        match &self.top {
            Some(top) => top.read(Path::new(&file.below)),
            None => fs::File::open(&self.from),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    pub(super) async fn copy(self, inside: &Inside<'_>, to: &str, bar: &Bar) -> Result<Copied, Failure> {
        let into = to.ends_with('/') || inside.kind(to).await? == Some(Kind::Directory);
        let target = if into { join(to, &self.name) } else { to.to_owned() };
        let at = |below: &str| if below.is_empty() { target.clone() } else { join(&target, below) };
        for below in &self.directories {
            make(inside, &at(below)).await?;
        }
        let mut bytes = 0;
        for file in &self.files {
            let opened = self.open(file).map_err(|error| unread(&self.from.join(&file.below), &error))?;
            send(inside, file, File::from_std(opened), &at(&file.below), bar).await?;
            bytes += file.size;
        }
        Ok((self.left_out, bytes, self.files.len()))
    }
}

fn unread(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Code::NotFound, format!("{}: {error}", path.display())).with_hint("Check the path on this machine.")
}

async fn make(inside: &Inside<'_>, path: &str) -> Result<(), Failure> {
    let body = BTreeMap::from([("path", Value::from(path)), ("parents", Value::from(true))]);
    let request = inside.server.request(Method::POST, At(&inside.path(&["mkdir"]), &[]));
    inside.server.send(with_json(request, &body)).await.map(drop)
}

async fn send(inside: &Inside<'_>, source: &Source, file: File, to: &str, bar: &Bar) -> Result<(), Failure> {
    let mode = format!("{:o}", source.mode);
    let query = [("path", to), ("parents", "true"), ("perm", &mode)];
    let request = inside.server.request(Method::PUT, At(&inside.path(&[]), &query));
    let request = request.header(header::CONTENT_LENGTH, source.size).body(body(file, bar));
    inside.server.send(request).await.map(drop)
}
