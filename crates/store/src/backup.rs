//! The database of one moment, while others go on writing.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use uuid::Uuid;

use crate::{Error, Result, Store, schema};

const COPY: &str = ".copy-";

impl Store {
    /// With all that was acknowledged before. It has no name: what it takes is free again when it is closed.
    pub async fn copy_database(&self) -> Result<File> {
        if !self.is_folded().await? {
            return Err(Error::Unavailable("the database does not take what is in its journal".into()));
        }
        let path = self.database().to_owned();
        let copied = tokio::task::spawn_blocking(move || {
            let copy = path.with_file_name(format!("{COPY}{}", Uuid::new_v4().simple()));
            let made = into(&path, &copy).and_then(|()| Ok(File::open(&copy)?));
            let _ = fs::remove_file(&copy);
            made
        });
        copied.await.unwrap_or_else(|_| Err(Error::Unavailable("the copying of the database broke off".into())))
    }
}

/// A reader's moment: no writer waits for it.
fn into(path: &Path, copy: &Path) -> Result<()> {
    let name = copy.to_str().ok_or_else(|| Error::Refused("the path of the database is no text".into()))?;
    schema::open_checkpointer(path)?.execute("VACUUM INTO ?", [name])?;
    Ok(())
}

/// What a kill left of copies.
pub(crate) fn sweep(db_dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(db_dir)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(COPY)) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
