//! The smallest root file system in which a program of this machine runs: the program and its libraries. It is the lower
//! layer of the floors and the image of the Docker peer.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

pub(crate) fn make(at: &Path, programs: &[&str]) -> Result<()> {
    for dir in ["bin", "proc", "tmp", "dev", "sys", "etc"] {
        fs::create_dir_all(at.join(dir))?;
    }
    for program in programs {
        copy(Path::new(program), at)?;
        libraries(program)?.iter().try_for_each(|library| copy(library, at))?;
    }
    Ok(())
}

fn copy(file: &Path, into: &Path) -> Result<()> {
    let to = into.join(file.strip_prefix("/")?);
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::copy(file, &to).with_context(|| format!("cannot copy {} to {}", file.display(), to.display()))?;
    Ok(())
}

fn libraries(program: &str) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    // A static program has none, and ldd says so with a failure.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success() || text.contains("not a dynamic"), "ldd {program} failed: {text}");
    Ok(paths_of(&text))
}

/// `name => /path (address)`, `/path/of/the/loader (address)`, or a line without a file.
fn paths_of(ldd: &str) -> Vec<PathBuf> {
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    ldd.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_found_and_the_vdso_is_no_file() {
        let ldd = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)\n\t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(paths_of(ldd), expected.map(PathBuf::from));
    }
}
