//! A disk of the bench's own: a fresh ext4 with a journal, in a file.
//!
//! What a figure says must not depend on what was done on the machine before. An ext4 without a journal, as some virtual
//! machines have it, makes new files slowly for minutes after many were removed, by then several times over; and so the
//! floor was slow in one run and not in the next.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Sparse: only what is written takes room.
const SIZE: u64 = 32 << 30;
/// One inode for so many bytes: a run makes a million files.
const BYTES_PER_INODE: &str = "8192";

pub(crate) struct Disk {
    image: PathBuf,
    at: PathBuf,
}

impl Disk {
    /// Takes the place of one that an earlier run could not take away.
    pub(crate) fn new(output: &Path) -> Result<Self> {
        let disk = Self { image: output.join("disk.ext4"), at: output.join("disk") };
        disk.remove();
        fs::create_dir_all(&disk.at)?;
        fs::File::create(&disk.image)?.set_len(SIZE)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-i", BYTES_PER_INODE]).arg(&disk.image))?;
        run(Command::new("mount").args(["-o", "loop"]).args([&disk.image, &disk.at]))?;
        Ok(disk)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    fn remove(&self) {
        // Lazily: a process that was left over must not keep it.
        let _ = Command::new("umount").args(["--quiet", "--lazy"]).arg(&self.at).status();
        let _ = fs::remove_file(&self.image);
        let _ = fs::remove_dir(&self.at);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.remove();
    }
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().with_context(|| format!("{name} does not start"))?;
    ensure!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}
