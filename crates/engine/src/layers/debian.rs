//! A fresh Debian system as a stream: `mmdebstrap` makes it from the machine's own package sources and writes a tar.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fs,
    io::{self, ErrorKind, Read, Write},
    os::fd::AsFd,
    path::Path,
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
};

use cabana_sandbox::{Error, Result};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use super::{failed, source::Progress};

/// How many of its last lines explain a failure.
const TAIL: usize = 8;

/// Names become arguments of a program that runs as root: each is a plain name, never an option or a pattern.
pub(crate) fn check_names(suite: &str, packages: &[String]) -> Result<()> {
    let plain = |name: &str, more: &str| {
        name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c))
    };
    if !plain(suite, "-.") {
        return Err(Error::invalid(
            "from",
            format!("{suite:?} is no Debian suite: say debian:SUITE, as in debian:bookworm"),
        ));
    }
    match packages.iter().find(|name| !plain(name, "+-.:=~")) {
        Some(bad) => Err(Error::invalid("from", format!("{bad:?} is no name of a Debian package"))),
        None => Ok(()),
    }
}

/// Runs mmdebstrap and hands its tar to `import` while it comes. If both fail, mmdebstrap knows why.
pub(crate) fn stream(
    name: &str,
    suite: &str,
    packages: &[String],
    on_progress: &RefCell<&mut dyn FnMut(Progress<'_>)>,
    import: &mut dyn FnMut(&mut dyn Read) -> Result<()>,
) -> Result<()> {
    let mut running = Running::start(name, suite, packages)?;
    let mut tar = Tar::new(&mut running.child, on_progress)?;
    let imported = import(&mut tar);
    if imported.is_err() {
        running.stop();
    }
    let tail = tar.end();
    let status = running.child.wait().map_err(failed("waiting for mmdebstrap"))?;
    if !status.success() && matches!(imported, Ok(()) | Err(Error::Archive(_))) {
        let why = format!("mmdebstrap failed ({status}). Its last words:\n{}", Vec::from(tail).join("\n"));
        return Err(Error::BadTemplate { name: name.into(), why });
    }
    imported
}

struct Running {
    child: Child,
}

impl Running {
    fn start(name: &str, suite: &str, packages: &[String]) -> Result<Self> {
        let sources = sources(suite).map_err(failed("reading the package sources"))?;
        let mut command = Command::new("mmdebstrap");
        command.env("LC_ALL", "C.UTF-8").args(["--variant=apt", "--format=tar", "--skip=output/dev"]);
        // It copies the host's own of both; and its apt settings of this one run stay behind.
        command.arg(
            r#"--customize-hook=rm -f "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/etc/apt/apt.conf.d/99mmdebstrap"#,
        );
        if !packages.is_empty() {
            command.arg(format!("--include={}", packages.join(",")));
        }
        command.args([suite, "-"]);
        if !sources.is_empty() {
            command.arg("-"); // the sources come on its standard input
        }
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = spawned.map_err(|e| match e.kind() {
            ErrorKind::NotFound => Error::BadTemplate {
                name: name.into(),
                why: "mmdebstrap is not installed: `apt-get install mmdebstrap`, or make it from a directory or a tar"
                    .into(),
            },
            _ => failed("starting mmdebstrap")(e),
        })?;
        let mut running = Self { child };
        if let Some(mut stdin) = running.child.stdin.take() {
            // Far below what a pipe holds; and if it died, its last words say more than a broken pipe.
            drop(stdin.write_all(sources.as_bytes()));
        }
        Ok(running)
    }

    /// Asked to end it removes what it has made so far, which takes a moment.
    fn stop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            _ = kill_process(pid, Signal::TERM); // it may be gone already
        }
    }
}

impl Drop for Running {
    /// Also when something above gave up or panicked: nobody is left behind.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.stop();
            drop(self.child.wait());
        }
    }
}

/// The program's standard output; while it is waited for, what the program says is passed on.
struct Tar<'a, 'b> {
    out: ChildStdout,
    err: Option<ChildStderr>,
    line: Vec<u8>,
    tail: VecDeque<String>,
    on_progress: &'a RefCell<&'b mut dyn FnMut(Progress<'_>)>,
}

impl<'a, 'b> Tar<'a, 'b> {
    fn new(child: &mut Child, on_progress: &'a RefCell<&'b mut dyn FnMut(Progress<'_>)>) -> Result<Self> {
        let (Some(out), err) = (child.stdout.take(), child.stderr.take()) else {
            return Err(Error::failed("starting mmdebstrap", "it has no standard output"));
        };
        Ok(Self { out, err, line: Vec::new(), tail: VecDeque::new(), on_progress })
    }

    /// Its last words. Closes its output, so that it ends if it is still writing.
    fn end(mut self) -> VecDeque<String> {
        drop(self.out);
        if let Some(mut err) = self.err.take() {
            let mut rest = Vec::new();
            drop(err.read_to_end(&mut rest));
            heard(&rest, &mut self.line, &mut self.tail, self.on_progress);
        }
        self.tail
    }

    /// Waits until there is something to read, and passes on what is said meanwhile.
    fn wait(&mut self) -> io::Result<()> {
        loop {
            let Some(err) = &mut self.err else { return Ok(()) };
            let mut both = [
                PollFd::from_borrowed_fd(self.out.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(err.as_fd(), PollFlags::IN),
            ];
            match poll(&mut both, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let [out, said] = both.map(|fd| !fd.revents().is_empty());
            if said {
                let mut words = [0; 4096];
                match err.read(&mut words)? {
                    0 => self.err = None,
                    n => heard(&words[..n], &mut self.line, &mut self.tail, self.on_progress),
                }
            }
            if out {
                return Ok(());
            }
        }
    }
}

impl Read for Tar<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.wait()?;
        self.out.read(into)
    }
}

fn heard(
    words: &[u8],
    line: &mut Vec<u8>,
    tail: &mut VecDeque<String>,
    on_progress: &RefCell<&mut dyn FnMut(Progress<'_>)>,
) {
    for byte in words {
        if !matches!(byte, b'\n' | b'\r') {
            line.push(*byte);
            continue;
        }
        let text = String::from_utf8_lossy(line).trim().to_owned();
        line.clear();
        if !text.is_empty() {
            on_progress.borrow_mut()(Progress::Says(&text));
            if tail.len() == TAIL {
                tail.pop_front();
            }
            tail.push_back(text);
        }
    }
}

/// The machine's own sources of this suite, in apt's newer form. Empty when it has none: mmdebstrap knows its default.
fn sources(suite: &str) -> io::Result<String> {
    let mut stanzas = Vec::new();
    let mut files = vec![Path::new("/etc/apt/sources.list").to_path_buf()];
    match fs::read_dir("/etc/apt/sources.list.d") {
        Ok(entries) => files.extend(entries.flatten().map(|entry| entry.path())),
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    files.sort();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        match file.extension().and_then(|end| end.to_str()) {
            Some("sources") => stanzas.extend(text.split("\n\n").filter_map(|stanza| of_suite(stanza, suite))),
            Some("list") => stanzas.extend(text.lines().filter_map(stanza_of_line).filter_map(|s| of_suite(&s, suite))),
            _ => {}
        }
    }
    Ok(stanzas.join("\n\n"))
}

/// The stanza with only those of its suites that belong to this one: itself, its updates and its security fixes.
fn of_suite(stanza: &str, suite: &str) -> Option<String> {
    let lines: Vec<_> = stanza.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()).collect();
    let field = |name: &str| {
        lines.iter().find_map(|line| {
            line.split_once(':').filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
        })
    };
    let off = field("Enabled").is_some_and(|value| ["no", "false", "off", "0", "without", "disable"].contains(&value));
    let binary = field("Types")?.split_whitespace().any(|kind| kind == "deb");
    let ours = |name: &&str| {
        name.strip_prefix(suite).is_some_and(|rest| matches!(rest, "" | "-updates" | "-security" | "/updates"))
    };
    let suites: Vec<_> = field("Suites")?.split_whitespace().filter(ours).collect();
    // A password in an address would end up in the template, for every sandbox to read.
    if off || !binary || suites.is_empty() || super::host_base::holds_credentials(stanza.as_bytes()) {
        return None;
    }
    let with_suites = lines.iter().map(|line| match line.split_once(':') {
        Some((key, _)) if key.eq_ignore_ascii_case("Suites") => format!("Suites: {}", suites.join(" ")),
        Some((key, _)) if key.eq_ignore_ascii_case("Types") => "Types: deb".into(),
        _ => (*line).to_owned(),
    });
    Some(with_suites.collect::<Vec<_>>().join("\n"))
}

/// `deb [signed-by=KEY] ADDRESS SUITE COMPONENT…` as a stanza.
fn stanza_of_line(line: &str) -> Option<String> {
    let rest = line.trim().strip_prefix("deb")?;
    let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split('#').next()?.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    let components: Vec<_> = words.collect();
    let mut stanza = format!("Types: deb\nURIs: {uri}\nSuites: {suite}\n");
    if !components.is_empty() {
        stanza += &format!("Components: {}\n", components.join(" "));
    }
    for option in options.split_whitespace() {
        match option.split_once('=') {
            Some(("signed-by", key)) => stanza += &format!("Signed-By: {key}\n"),
            Some(("trusted", value)) => stanza += &format!("Trusted: {value}\n"),
            Some(("arch", value)) => stanza += &format!("Architectures: {}\n", value.replace(',', " ")),
            _ => {}
        }
    }
    Some(stanza)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_an_option() {
        for (suite, packages) in [
            ("", vec![]),
            ("-x", vec![]),
            ("a/b", vec![]),
            ("sid", vec!["--x"]),
            ("sid", vec!["?true"]),
            ("sid", vec![""]),
        ] {
            assert!(
                check_names(suite, &packages.iter().map(ToString::to_string).collect::<Vec<_>>()).is_err(),
                "{suite} {packages:?}"
            );
        }
        assert!(check_names("bookworm", &["g++".into(), "libc6:amd64".into()]).is_ok());
    }

    #[test]
    fn of_a_machines_sources_only_those_of_the_suite_are_used() {
        let stanza = "# a comment\nTypes: deb deb-src\nURIs: http://one.test/debian\nSuites: one one-updates two\nComponents: main\nSigned-By:\n -----BEGIN";
        let used = of_suite(stanza, "one").unwrap();
        assert_eq!(
            used,
            "Types: deb\nURIs: http://one.test/debian\nSuites: one one-updates\nComponents: main\nSigned-By:\n -----BEGIN"
        );
        assert_eq!(of_suite(stanza, "three"), None);
        assert_eq!(of_suite("Enabled: no\nTypes: deb\nURIs: http://one.test/\nSuites: one", "one"), None);
        assert_eq!(of_suite("Types: deb\nURIs: http://me:secret@one.test/\nSuites: one", "one"), None);
    }

    #[test]
    fn a_one_line_source_says_the_same() {
        let line = "deb [arch=amd64,arm64 signed-by=/k.gpg] http://one.test/debian one main contrib # note";
        let stanza = "Types: deb\nURIs: http://one.test/debian\nSuites: one\nComponents: main contrib\nArchitectures: amd64 arm64\nSigned-By: /k.gpg\n";
        assert_eq!(stanza_of_line(line).unwrap(), stanza);
        for none in ["# deb http://one.test one main", "deb-src http://one.test one main", "debug", ""] {
            assert_eq!(stanza_of_line(none), None, "{none}");
        }
    }
}
