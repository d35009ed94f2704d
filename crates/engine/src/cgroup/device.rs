//! Which disk a directory lies on, as the kernel's controllers name it.

use std::{
    fmt, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// `None`: no disk, or no single one.
pub(crate) fn of(path: &Path, mountinfo: &str) -> Option<Device> {
    let meta = fs::metadata(path).ok()?;
    let device = match device(meta.dev()) {
        // File systems that span disks have a number of their own, and say in the mount what they lie on.
        Device { major: 0, .. } => device(fs::metadata(source(path, mountinfo)?).ok()?.rdev()),
        device => device,
    };
    whole(device, Path::new("/sys/dev/block")).filter(|device| device.major != 0)
}

fn device(number: u64) -> Device {
    Device { major: rustix::fs::major(number), minor: rustix::fs::minor(number) }
}

/// What is mounted where the path lies. Of mounts at one place the last covers the others.
fn source<'a>(path: &Path, mountinfo: &'a str) -> Option<&'a Path> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let at = PathBuf::from(mount.split(' ').nth(4)?.replace("\\040", " "));
        Some((at, kind.split(' ').nth(1)?))
    });
    let over = mounts.filter(|(at, _)| path.starts_with(at)).max_by_key(|(at, _)| at.components().count());
    over.map(|(_, source)| Path::new(source)).filter(|source| source.is_absolute())
}

/// Traffic is limited for whole disks, not for their partitions.
fn whole(device: Device, devices: &Path) -> Option<Device> {
    let entry = devices.join(device.to_string());
    if !entry.join("partition").exists() {
        return entry.exists().then_some(device);
    }
    let disk = entry.canonicalize().ok()?.parent()?.join("dev");
    let text = fs::read_to_string(disk).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(Device { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_counts_as_its_disk() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("devices/sda");
        fs::create_dir_all(disk.join("sda1")).unwrap();
        fs::write(disk.join("dev"), "8:0\n").unwrap();
        fs::write(disk.join("sda1/partition"), "1\n").unwrap();
        for (name, to) in [("8:0", disk.clone()), ("8:1", disk.join("sda1"))] {
            std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
        }
        for minor in [0, 1] {
            let found = whole(Device { major: 8, minor }, dir.path());
            assert_eq!(found, Some(Device { major: 8, minor: 0 }));
        }
        assert_eq!(whole(Device { major: 9, minor: 0 }, dir.path()), None);
    }

    #[test]
    fn what_a_directory_lies_on_is_the_mount_nearest_to_it() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      40 22 0:39 / /var/lib/with\\040space rw - btrfs /dev/sdb rw,subvol=/\n\
                      41 22 0:40 / /tmp rw - tmpfs none rw\n";
        assert_eq!(source(Path::new("/var/lib/with space/data"), mounts), Some(Path::new("/dev/sdb")));
        assert_eq!(source(Path::new("/var/lib"), mounts), Some(Path::new("/dev/sda1")));
        assert_eq!(source(Path::new("/tmp/x"), mounts), None);
    }
}
