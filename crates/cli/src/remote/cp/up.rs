//! Into a sandbox.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use cabana_model::Code;
use reqwest::{Method, header};
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
    name: String,
    /// Those of a directory begin with the empty one, which is itself. Above before below.
    directories: Vec<String>,
    files: Vec<Source>,
    left_out: Vec<String>,
}

struct Source {
    path: PathBuf,
    /// Below the target; empty for the target itself.
    below: String,
    size: u64,
    mode: u32,
}

impl Plan {
    pub(super) fn of(from: &Path) -> Result<Self, Failure> {
        let name = fs::canonicalize(from).map_err(|error| unread(from, &error))?;
        let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let mut plan = Self { name, directories: Vec::new(), files: Vec::new(), left_out: Vec::new() };
        // What was named itself may be a link: then what it leads to is meant.
        let info = fs::metadata(from).map_err(|error| unread(from, &error))?;
        plan.add(from, "", &info)?;
        Ok(plan)
    }

    fn add(&mut self, path: &Path, below: &str, info: &fs::Metadata) -> Result<(), Failure> {
        let mode = info.permissions().mode() & 0o777;
        match () {
            () if info.is_file() => {
                self.files.push(Source { path: path.to_owned(), below: below.to_owned(), size: info.len(), mode });
            }
            () if info.is_dir() => {
                self.directories.push(below.to_owned());
                let failed = |error: std::io::Error| unread(path, &error);
                for entry in fs::read_dir(path).map_err(failed)? {
                    let entry = entry.map_err(failed)?;
                    let info = entry.metadata().map_err(failed)?;
                    match entry.file_name().to_str() {
                        Some(name) if below.is_empty() => self.add(&entry.path(), name, &info)?,
                        Some(name) => self.add(&entry.path(), &join(below, name), &info)?,
                        None => self.left_out.push(entry.path().display().to_string()),
                    }
                }
            }
            () => self.left_out.push(path.display().to_string()),
        }
        Ok(())
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
            send(inside, file, &at(&file.below), bar).await?;
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

async fn send(inside: &Inside<'_>, source: &Source, to: &str, bar: &Bar) -> Result<(), Failure> {
    let file = File::open(&source.path).await.map_err(|error| unread(&source.path, &error))?;
    let mode = format!("{:o}", source.mode);
    let query = [("path", to), ("parents", "true"), ("perm", &mode)];
    let request = inside.server.request(Method::PUT, At(&inside.path(&[]), &query));
    let request = request.header(header::CONTENT_LENGTH, source.size).body(body(file, bar));
    inside.server.send(request).await.map(drop)
}
