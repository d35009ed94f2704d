//! What the figures were taken on: without it they mean nothing.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Serialize;

#[derive(Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_kib: u64,
    /// Of the data directory.
    pub(crate) filesystem: String,
    /// Whether the bench itself was compiled with optimisation.
    pub(crate) optimised: bool,
    /// Of the last minute, before and after the run: a busy machine shows.
    pub(crate) load_before: f64,
    pub(crate) load_after: f64,
}

impl Machine {
    pub(crate) fn look(data: &Path) -> Result<Self> {
        Ok(Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpu: cpu_of(&fs::read_to_string("/proc/cpuinfo")?).to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            memory_kib: meminfo("MemTotal")?,
            filesystem: filesystem_of(data)?,
            optimised: !cfg!(debug_assertions),
            load_before: load()?,
            load_after: 0.0,
        })
    }
}

/// What programs could still take without swapping, in KiB, as the kernel sees it.
pub(crate) fn mem_available() -> Result<u64> {
    meminfo("MemAvailable")
}

pub(crate) fn load() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    text.split(' ').next().and_then(|one| one.parse().ok()).context("/proc/loadavg begins with no number")
}

/// Where control groups of version 2 are mounted.
pub(crate) fn cgroup() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    cgroup_of(&mounts).map(PathBuf::from).context("control groups of version 2 are not mounted here")
}

fn cgroup_of(mounts: &str) -> Option<&str> {
    mounts.lines().find_map(|line| match *line.split(' ').collect::<Vec<_>>() {
        [_, at, "cgroup2", ..] => Some(at),
        _ => None,
    })
}

fn meminfo(field: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    meminfo_field(&text, field).with_context(|| format!("/proc/meminfo has no {field}"))
}

fn meminfo_field(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn cpu_of(cpuinfo: &str) -> &str {
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or("unknown", |(_, name)| name.trim())
}

fn filesystem_of(path: &Path) -> Result<String> {
    let magic = rustix::fs::statfs(path)?.f_type;
    Ok(match u32::try_from(magic) {
        Ok(0xEF53) => "ext4".into(),
        Ok(0x5846_5342) => "xfs".into(),
        Ok(0x9123_683E) => "btrfs".into(),
        Ok(0x0102_1994) => "tmpfs".into(),
        Ok(0x794c_7630) => "overlay".into(),
        _ => format!("{magic:#x}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       24682416 kB\nMemFree:        1000 kB\nMemAvailable:   24355012 kB\n";

    #[test]
    fn mem_available_is_read_in_kib() {
        assert_eq!(meminfo_field(MEMINFO, "MemAvailable"), Some(24_355_012));
        assert_eq!(meminfo_field(MEMINFO, "MemTotal"), Some(24_682_416));
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        assert_eq!(meminfo_field(MEMINFO, "Mem"), None);
        assert_eq!(meminfo_field(MEMINFO, "SwapFree"), None);
    }

    #[test]
    fn this_machine_says_how_much_memory_it_has() {
        let available = mem_available().unwrap();
        assert!(available > 0 && available <= meminfo("MemTotal").unwrap());
    }

    #[test]
    fn version_2_of_control_groups_is_found_beside_version_1() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(cgroup_of(mounts), Some("/sys/fs/cgroup/unified"));
        assert_eq!(cgroup_of("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn the_model_of_the_processor_is_found_or_unknown() {
        assert_eq!(cpu_of("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"), "Some CPU @ 2 GHz");
        assert_eq!(cpu_of("Processor: AArch64\n"), "unknown");
    }
}
