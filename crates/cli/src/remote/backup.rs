//! `cabana backup`: all that a server has, in one file.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use cabana_model::Code;
use cabana_runtime::backup::{Container, Part};
use indicatif::HumanBytes;
use reqwest::Method;

use super::{
    progress::Bar,
    server::{At, Server},
};
use crate::failure::{Failure, tell};

/// Write all that a server has to a file, while it serves: records, keys, outputs, templates, snapshots and sandboxes
///
/// Whoever has the file has all of that. `cabana restore` makes a data directory of it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to; `-` is standard output
    file: PathBuf,
}

const CHUNK: usize = 256 << 10;

/// A file has its name when it is whole.
pub(super) async fn work(args: &Args, server: &Server) -> Result<(), Failure> {
    let request = server.request(Method::GET, At(&["v1", "backup"], &[]));
    if args.file.as_os_str() == "-" {
        let length = receive(server, request, &mut io::stdout().lock(), Path::new("standard output")).await?;
        tell(&format!("The backup has {}.", HumanBytes(length)));
        return Ok(());
    }
    let draft = PathBuf::from(format!("{}.{}.part", args.file.display(), std::process::id()));
    let failed = |error: &io::Error| at(&draft, error);
    let mut options = OpenOptions::new();
    // All secrets of the server are in it: so it is a new file, and not what others may have put there under its name.
    let opened = options.write(true).create_new(true).mode(0o600).open(&draft);
    let mut file = opened.map_err(|error| failed(&error))?;
    let received = async {
        let length = receive(server, request, &mut file, &draft).await?;
        file.sync_all().map_err(|error| failed(&error))?;
        check(&draft).await?;
        fs::rename(&draft, &args.file).map_err(|error| failed(&error))?;
        Ok(length)
    };
    let length = received.await.inspect_err(|_: &Failure| drop(fs::remove_file(&draft)))?;
    tell(&format!("{} has {}.", args.file.display(), HumanBytes(length)));
    Ok(())
}

/// Reads it back, to its end: a backup that cannot be read is noticed now, and not when it is needed.
async fn check(path: &Path) -> Result<(), Failure> {
    let file = tokio::fs::File::open(path).await.map_err(|error| at(path, &error))?;
    let mut container = Container::open(tokio::io::BufReader::with_capacity(CHUNK, file)).await?;
    loop {
        let part = container.part().await?;
        while container.piece().await?.is_some() {}
        if let Part::End { .. } = part {
            return Ok(container.end().await?);
        }
    }
}

async fn receive(
    server: &Server,
    request: reqwest::RequestBuilder,
    into: &mut dyn Write,
    path: &Path,
) -> Result<u64, Failure> {
    let mut answer = server.send(request).await?;
    let bar = Bar::start("backup", 0);
    let (moved, mut length) = (bar.counter(), 0);
    while let Some(piece) = server.piece(&mut answer).await? {
        into.write_all(&piece).map_err(|error| at(path, &error))?;
        moved(piece.len());
        length += piece.len() as u64;
    }
    into.flush().map_err(|error| at(path, &error))?;
    Ok(length)
}

fn at(path: &Path, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::StorageFull { Code::NoSpace } else { Code::Internal };
    Failure::new(code, format!("{}: {error}", path.display()))
}
