//! The floors: small C programs, compiled here and run in the same rhythm as what is held against them.

use std::{
    fs,
    net::SocketAddrV4,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{rhythm::Rhythm, template};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/floor");
const PROGRAMS: &[(&str, &[&str])] = &[
    ("command", &["command.c"]),
    ("connect", &["connect.c"]),
    ("create", &["create.c", "room.c"]),
    ("exec", &["exec.c", "room.c"]),
    ("freeze", &["freeze.c"]),
    ("hostile", &["../inside/hostile.c"]),
    ("work", &["../inside/work.c"]),
];
const LOWER: &str = "lower";
const ROOM: &str = "room";

#[derive(Clone)]
pub(crate) struct Floors {
    programs: PathBuf,
    /// Holds the lower layer and, one at a time, a room: on the disk that the sandboxes use.
    place: PathBuf,
}

impl Floors {
    pub(crate) fn build(programs: &Path, place: &Path) -> Result<Self> {
        fs::create_dir_all(programs)?;
        for (name, sources) in PROGRAMS {
            compile(&programs.join(name), sources)?;
        }
        fs::create_dir_all(place)?;
        // The root of a room is nobody outside, and must get in here: room.h.
        fs::set_permissions(place, fs::Permissions::from_mode(0o755))?;
        template::make(&place.join(LOWER), &["/bin/true"])?;
        Ok(Self { programs: programs.to_owned(), place: place.to_owned() })
    }

    pub(crate) async fn create(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        self.run("create", rhythm, &[LOWER, ROOM]).await
    }

    pub(crate) async fn exec(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        self.run("exec", rhythm, &[LOWER, ROOM]).await
    }

    /// Ten processes in a new group at this place, frozen and thawed.
    pub(crate) async fn freeze(&self, rhythm: Rhythm, group: &Path) -> Result<Vec<f64>> {
        self.run("freeze", rhythm, &[&group.to_string_lossy()]).await
    }

    /// `what` is `connect` or `exchange`: see `connect.c`.
    pub(crate) async fn connect(&self, rhythm: Rhythm, what: &str, to: SocketAddrV4) -> Result<Vec<f64>> {
        self.run("connect", rhythm, &[what, &to.ip().to_string(), &to.port().to_string()]).await
    }

    /// Where they were compiled to.
    pub(crate) fn programs(&self) -> &Path {
        &self.programs
    }

    /// Any command of the host, from its fork to its exit.
    pub(crate) async fn command(&self, rhythm: Rhythm, argv: &[&str]) -> Result<Vec<f64>> {
        self.run("command", rhythm, argv).await
    }

    async fn run(&self, program: &'static str, rhythm: Rhythm, args: &[&str]) -> Result<Vec<f64>> {
        let mut command = Command::new(self.programs.join(program));
        command.arg(rhythm.samples.to_string()).arg(rhythm.pause.as_millis().to_string()).args(args);
        command.current_dir(&self.place).stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the floor program {program} failed: {}", stderr.trim());
        let samples = samples_of(&String::from_utf8_lossy(&output.stdout))
            .with_context(|| format!("the floor program {program} printed no number"))?;
        ensure!(samples.len() == rhythm.samples, "the floor program {program} told {} samples", samples.len());
        Ok(samples)
    }
}

fn compile(to: &Path, sources: &[&str]) -> Result<()> {
    let sources = sources.iter().map(|source| Path::new(SOURCES).join(source));
    let output = Command::new("cc").args(["-O2", "-Wall", "-o"]).arg(to).args(sources).output();
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("the floors are C programs, and there is no cc: install a C compiler (Debian: apt-get install gcc)")
        }
        other => other.context("cannot run cc")?,
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cc could not compile {}:\n{stderr}", to.display());
    Ok(())
}

pub(crate) fn samples_of(text: &str) -> Result<Vec<f64>> {
    text.lines().map(|line| line.trim().parse::<f64>().with_context(|| format!("{line:?}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_one_sample() {
        assert_eq!(samples_of("1250000\n900\n").unwrap(), [1_250_000.0, 900.0]);
        assert!(samples_of("1250000\nfork: no\n").is_err());
    }

    #[tokio::test]
    async fn the_command_floor_is_built_and_tells_each_iteration() {
        let place = tempfile::tempdir().unwrap();
        let floors = Floors::build(&place.path().join("programs"), &place.path().join("place")).unwrap();
        let samples = floors.command(Rhythm::back_to_back(3), &["/bin/true"]).await.unwrap();
        assert!(samples.len() == 3 && samples.iter().all(|ns| *ns > 0.0));
    }

    #[tokio::test]
    async fn a_room_is_made_and_leaves_nothing_behind() {
        if !rustix::process::geteuid().is_root() {
            return; // to an ordinary user the program says that it needs root
        }
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("place");
        let floors = Floors::build(&dir.path().join("programs"), &place).unwrap();
        assert_eq!(floors.create(Rhythm::back_to_back(2)).await.unwrap().len(), 2);
        assert_eq!(floors.exec(Rhythm::back_to_back(2)).await.unwrap().len(), 2);
        let left: Vec<_> = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [LOWER]);
    }

    #[tokio::test]
    async fn a_command_that_fails_is_no_sample() {
        let place = tempfile::tempdir().unwrap();
        let floors = Floors::build(&place.path().join("programs"), &place.path().join("place")).unwrap();
        let error = floors.command(Rhythm::back_to_back(1), &["/bin/false"]).await.unwrap_err();
        assert!(error.to_string().contains("/bin/false"), "{error}");
    }
}
