//! The three files of one output.

use std::{
    fs::{self, File, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    Stream,
    now::Memory,
    runs::{self, Kind, Run, Whole},
};
use crate::fault::{self, Point};

pub(super) struct Files {
    streams: [File; 2],
    runs: File,
}

/// Made last and removed last: where there are runs, there was all of it.
pub(super) const RUNS: &str = "runs";
pub(super) const STREAMS: [&str; 2] = ["out", "err"];

fn path(base: &Path, ending: &str) -> PathBuf {
    base.with_extension(ending)
}

impl Files {
    /// With what was in memory so far.
    pub(super) fn create(base: &Path, memory: &Memory) -> io::Result<Self> {
        if let Some(folder) = base.parent() {
            fs::create_dir_all(folder)?;
        }
        // What commands say is nobody else's business.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let create = |ending| options.open(path(base, ending));
        let streams = [create(STREAMS[0])?, create(STREAMS[1])?];
        let files = Self { streams, runs: create(RUNS)? };
        fault::at(Point::LogMade);
        let turns: Vec<u8> = memory.runs.iter().flat_map(|run| run.to_bytes()).collect();
        files.runs.write_all_at(&turns, 0)?;
        for (file, bytes) in files.streams.iter().zip(&memory.streams) {
            file.write_all_at(bytes, 0)?;
        }
        Ok(files)
    }

    /// To be written further.
    pub(super) fn open(base: &Path) -> io::Result<Option<Self>> {
        Self::found(base, OpenOptions::new().read(true).write(true))
    }

    /// To be read, also on a disk that can only be read.
    pub(super) fn open_to_read(base: &Path) -> io::Result<Option<Self>> {
        Self::found(base, OpenOptions::new().read(true))
    }

    fn found(base: &Path, options: &OpenOptions) -> io::Result<Option<Self>> {
        let open = |ending| options.open(path(base, ending));
        let files = || io::Result::Ok(Self { runs: open(RUNS)?, streams: [open(STREAMS[0])?, open(STREAMS[1])?] });
        match files() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            files => files.map(Some),
        }
    }

    pub(super) fn append(&self, stream: Stream, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.streams[stream as usize].write_all_at(bytes, at)
    }

    pub(super) fn read(&self, stream: Stream, range: Range<u64>) -> io::Result<Bytes> {
        let length = range.end.saturating_sub(range.start);
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.streams[stream as usize].read_exact_at(&mut bytes, range.start)?;
        Ok(bytes.into())
    }

    pub(super) fn run(&self, at: u64) -> io::Result<Run> {
        let mut bytes = [0; runs::SIZE];
        self.runs.read_exact_at(&mut bytes, at * runs::SIZE as u64)?;
        Run::from_bytes(&bytes)
    }

    pub(super) fn set_run(&self, at: u64, run: Run) -> io::Result<()> {
        self.runs.write_all_at(&run.to_bytes(), at * runs::SIZE as u64)
    }

    pub(super) fn lengths(&self) -> io::Result<[u64; 2]> {
        let [stdout, stderr] = &self.streams;
        Ok([stdout.metadata()?.len(), stderr.metadata()?.len()])
    }

    /// The largest beginning of what was said that is there without a hole.
    pub(super) fn whole(&self) -> io::Result<Whole> {
        let lengths = self.lengths()?;
        let noted = self.noted()?;
        let turns = match self.counted()? {
            Some(_) => noted - 1,
            None => noted,
        };
        let beyond = |turn| self.run(turn).map(|run| run.lengths[0] > lengths[0] || run.lengths[1] > lengths[1]);
        let turns = runs::first(turns, beyond)?;
        let Some(last) = turns.checked_sub(1) else { return Ok(Whole { turns: 0, kept: [0; 2] }) };
        // All before the last turn is there, and of that turn what its stream has.
        let run = self.run(last)?;
        let mut kept = run.lengths;
        if let Kind::Turn(stream) = run.kind {
            kept[stream as usize] = lengths[stream as usize];
        }
        Ok(Whole { turns, kept })
    }

    /// The note that output is only counted, if there is one.
    pub(super) fn counted(&self) -> io::Result<Option<Run>> {
        let Some(last) = self.noted()?.checked_sub(1) else { return Ok(None) };
        Ok(Some(self.run(last)?).filter(|run| run.kind == Kind::Counted))
    }

    /// Drops what is beyond, so that what comes next follows it. A note that output is only counted stays the last one.
    pub(super) fn cut(&self, whole: Whole, counted: Option<Run>) -> io::Result<()> {
        let mut noted = whole.turns;
        if let Some(counted) = counted {
            self.set_run(noted, counted)?;
            noted += 1;
        }
        self.runs.set_len(noted * runs::SIZE as u64)?;
        fault::at(Point::LogCut);
        let [stdout, stderr] = &self.streams;
        stdout.set_len(whole.kept[0])?;
        stderr.set_len(whole.kept[1])
    }

    /// On the disk, with their names and that of their folder.
    pub(super) fn sync(&self, base: &Path) -> io::Result<()> {
        for file in self.streams.iter().chain([&self.runs]) {
            file.sync_data()?;
        }
        base.ancestors().skip(1).take(2).try_for_each(|folder| File::open(folder)?.sync_all())
    }

    fn noted(&self) -> io::Result<u64> {
        Ok(self.runs.metadata()?.len() / runs::SIZE as u64)
    }
}

pub(super) fn remove(base: &Path) -> io::Result<()> {
    for ending in [STREAMS[0], STREAMS[1], RUNS] {
        match fs::remove_file(path(base, ending)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
