//! The files of outputs, as whoever keeps the house sees them.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::PathBuf,
    time::SystemTime,
};

use cabana_model::Time;
use uuid::Uuid;

use super::{
    Outputs, blocking,
    files::{RUNS, STREAMS},
};
use crate::Result;

/// How many folders there are: one for each value of an id's last byte.
const FOLDERS: u16 = 256;

/// One output that has files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    pub id: Uuid,
    pub bytes: u64,
    /// When something was written to it for the last time.
    pub written: Time,
}

/// One file of an output, by its name below the folder of outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFile(String);

impl OutputFile {
    /// `None`: no output has a file of this name.
    pub fn new(name: &str) -> Option<Self> {
        let (folder, file) = name.split_once('/')?;
        let (id, ending) = file.split_once('.')?;
        let parsed = Uuid::try_parse(id).ok()?;
        // One name, one text: the parser takes other forms too.
        let fits = parsed.simple().to_string() == id && id.ends_with(folder) && folder.len() == 2;
        (fits && [STREAMS[0], STREAMS[1], RUNS].contains(&ending)).then(|| Self(name.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Outputs {
    /// Folder after folder.
    pub fn folders() -> impl Iterator<Item = u8> {
        (0..FOLDERS).filter_map(|folder| u8::try_from(folder).ok())
    }

    pub async fn stored(&self, folder: u8) -> Result<Vec<Stored>> {
        let dir = self.folder(folder);
        blocking(move || {
            let mut all = BTreeMap::<Uuid, Stored>::new();
            for (name, file) in files_in(&dir, folder)? {
                let Some(id) = name.0.get(3..35).and_then(|id| Uuid::try_parse(id).ok()) else { continue };
                let about = match fs::symlink_metadata(&file) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // removed meanwhile
                    about => about?,
                };
                let written = about.modified().map_or(Time::MAX, time_of);
                let stored = all.entry(id).or_insert(Stored { id, bytes: 0, written });
                stored.bytes += about.len();
                stored.written = stored.written.max(written);
            }
            Ok(all.into_values().collect())
        })
        .await
    }

    /// In an order in which what is copied meanwhile is whole: the turns of an output come before its bytes.
    pub async fn files(&self, folder: u8) -> Result<Vec<OutputFile>> {
        let dir = self.folder(folder);
        blocking(move || {
            let mut names: Vec<_> = files_in(&dir, folder)?.into_iter().map(|(name, _)| name).collect();
            names.sort_by_key(|name| (!name.0.ends_with(RUNS), name.0.clone()));
            Ok(names)
        })
        .await
    }

    /// `None`: it was removed meanwhile.
    pub fn open_file(&self, name: &OutputFile) -> io::Result<Option<File>> {
        match File::open(self.dir.join(&name.0)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(Some),
        }
    }

    /// Of what a backup holds. There must be none of this name.
    pub fn create_file(&self, name: &OutputFile) -> io::Result<File> {
        let path = self.dir.join(&name.0);
        if let Some(folder) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
    }

    fn folder(&self, folder: u8) -> PathBuf {
        self.dir.join(format!("{folder:02x}"))
    }
}

fn files_in(dir: &PathBuf, folder: u8) -> io::Result<Vec<(OutputFile, PathBuf)>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().into_string().ok();
        let name = name.and_then(|name| OutputFile::new(&format!("{folder:02x}/{name}")));
        files.extend(name.map(|name| (name, entry.path())));
    }
    Ok(files)
}

fn time_of(time: SystemTime) -> Time {
    Time::try_from(time).unwrap_or(Time::MAX)
}
