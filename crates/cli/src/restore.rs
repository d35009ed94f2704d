//! `cabana restore`: a data directory from a backup.

use std::{
    ffi::OsStr,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    process::ExitCode,
};

use cabana_engine::{Config, Engine};
use cabana_model::Code;
use cabana_runtime::backup::{Restored, restore};
use cabana_store::Durability;

use crate::failure::{Failure, plain, tell};

/// Make a data directory of a backup: a new one, or an empty one, for a server to be started on
///
/// Every sandbox in it is stopped, with its files. What was under way when the backup was taken is unknown.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What `cabana backup` wrote; `-` is standard input
    file: PathBuf,
}

/// Where it is made. Its parts get their places when all of them are there, and the one that makes a directory ours comes last:
/// half a restore is none.
const DRAFT: &str = "restoring";
const LAST: &str = "version";

pub(crate) fn main(args: &Args, data: &Path) -> ExitCode {
    match start(args, data) {
        Ok(restored) => {
            tell(&format!("{} is restored: start a server on it.", data.display()));
            restored.left_out.iter().for_each(|what| tell(&format!("warning: it is not in it: {}", plain(what))));
            ExitCode::SUCCESS
        }
        Err(failure) => failure.report(1),
    }
}

fn start(args: &Args, data: &Path) -> Result<Restored, Failure> {
    let file = match args.file.as_os_str() == "-" {
        true => fs::File::open("/dev/stdin"),
        false => fs::File::open(&args.file),
    };
    let file = file.map_err(|error| Failure::bad(format!("{}: {error}", args.file.display())))?;
    fs::create_dir_all(data).map_err(|error| failed(data, &error))?;
    check_empty(data)?;
    cabana_engine::enter_user_namespace()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Code::Internal, format!("starting threads: {error}")))?;
    let draft = data.join(DRAFT);
    fs::create_dir(&draft).map_err(|error| failed(&draft, &error))?; // whoever else restores into it is refused here
    let restored = runtime.block_on(async {
        let engine = Engine::open(Config::new(draft.clone())).await?;
        let restored = restore(tokio::fs::File::from_std(file), &*engine, &draft, Durability::Full).await;
        engine.close().await;
        Ok::<_, Failure>(restored?)
    });
    drop(runtime); // with all that had something of the directory open
    let placed = restored.and_then(|restored| place(data).map(|()| restored).map_err(|error| failed(data, &error)));
    placed.inspect_err(|_| {
        if let Err(error) = cabana_engine::remove_tree(&draft) {
            tell(&format!("warning: {} could not be removed: {error}", draft.display()));
        }
    })
}

fn check_empty(data: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(data).map_err(|error| failed(data, &error))? {
        let name = entry.map_err(|error| failed(data, &error))?.file_name();
        if name != "lost+found" {
            let why = format!("{} is not empty: there is {name:?}. Restore into a new directory", data.display());
            return Err(Failure::new(Code::DataDirNotOurs, why));
        }
    }
    Ok(())
}

fn place(data: &Path) -> io::Result<()> {
    let draft = data.join(DRAFT);
    let mut names = Vec::new();
    for entry in fs::read_dir(&draft)? {
        names.push(entry?.file_name());
    }
    names.sort_by_key(|name| name == OsStr::new(LAST));
    rustix::fs::syncfs(fs::File::open(&draft)?)?; // what makes it ours must not survive a power cut that the rest did not
    for name in names {
        fs::rename(draft.join(&name), data.join(&name))?;
    }
    match fs::remove_dir(&draft) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let code = if error.kind() == ErrorKind::StorageFull { Code::NoSpace } else { Code::Internal };
    Failure::new(code, format!("{}: {error}", path.display()))
}
