//! A disk that is slow for one sandbox of the engine, by the kernel's throttle of requests. The engine does not use it, since it
//! holds back what is asked for under locks; a worn out disk does the same.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// In bytes a second.
const RATE: &str = "1048576";

/// Fast again when it is dropped.
pub struct SlowDisk {
    files: Vec<PathBuf>,
    disk: String,
}

impl SlowDisk {
    /// Of the sandbox that a process of the host's number belongs to. It has a limit of disk traffic, and with it a group of its
    /// own. `data` is where its files lie.
    pub fn of(pid: u32, data: &Path) -> io::Result<Self> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let in_version_1 = groups.lines().find_map(|line| line.split_once(":blkio:/"));
        let files = match in_version_1 {
            Some((_, group)) => {
                let group = Path::new("/sys/fs/cgroup/blkio").join(group);
                ["read", "write"].map(|way| group.join(format!("blkio.throttle.{way}_bps_device"))).to_vec()
            }
            None => {
                let own = Path::new(groups.trim().strip_prefix("0::/").ok_or(io::ErrorKind::NotFound)?);
                let is_sandbox = |group: &&Path| group.parent().is_some_and(|above| above.ends_with("cabana"));
                let group = own.ancestors().find(is_sandbox).ok_or(io::ErrorKind::NotFound)?;
                vec![Path::new("/sys/fs/cgroup").join(group).join("io.max")]
            }
        };
        let made = Self { files, disk: disk_of(data)? };
        made.files.iter().try_for_each(|file| made.throttle(file, Some(RATE)))?;
        Ok(made)
    }

    fn throttle(&self, file: &Path, rate: Option<&str>) -> io::Result<()> {
        let text = if file.ends_with("io.max") {
            let rate = rate.unwrap_or("max");
            format!("{} rbps={rate} wbps={rate}", self.disk)
        } else {
            format!("{} {}", self.disk, rate.unwrap_or("0"))
        };
        fs::write(file, text)
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = self.throttle(file, None); // the group may be gone with its sandbox
        }
    }
}

/// The whole disk, where a file system lies on a part of it.
fn disk_of(path: &Path) -> io::Result<String> {
    let device = fs::metadata(path)?.dev();
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let entry = Path::new("/sys/dev/block").join(&number).canonicalize()?;
    match (entry.join("partition").exists(), entry.parent()) {
        (true, Some(disk)) => Ok(fs::read_to_string(disk.join("dev"))?.trim().to_owned()),
        _ => Ok(number),
    }
}
