//! Terminals: what is typed into them must come from who sits there.

use cabana_sandbox::{ExecSpec, Stdio, TermSize};

use crate::{
    attacks::{TERMINAL, TYPING, on_host},
    inside::{Inside, path},
};

#[tokio::test]
async fn typing_into_the_terminal_of_whoever_looks_at_it() {
    let control = TYPING.run_on_host(&[]).report();
    assert_eq!(control.of("typing into one of its own"), "done", "the host's kernel lets its root type");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let report = inside.attack_in_terminal(user, &TERMINAL, &["type"]).await.report();
        report.all_refused(&["EPERM", "ENOTTY", "EINVAL"]);
        for what in ["typing", "typing with a high half", "typing into one of its own", "the console's requests"] {
            assert_eq!(report.of(what), "EPERM", "{what}");
        }
    }
    inside.end().await;
}

#[tokio::test]
async fn the_hosts_terminal_by_dev_tty() {
    let with_a_terminal = on_host("script --quiet --return --command 'true < /dev/tty && echo opened' /dev/null");
    assert_eq!(with_a_terminal.ok(), "opened", "who has a terminal finds it there");
    let inside = Inside::new().await;
    let report = inside.attack("root", &TERMINAL, &["controlling"]).await.report();
    assert_eq!(report.of("opening the controlling terminal"), "ENXIO");
    report.all_refused(&["ENXIO"]);
    inside.end().await;
}

#[tokio::test]
async fn taking_another_sessions_terminal_by_force() {
    // Root of the host may, for the kernel's own reasons.
    let taken = "import fcntl, os, termios
master, slave = os.openpty()
ready, say = os.pipe()
def leads(force):
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, force)
owner = os.fork()
if owner == 0:
    leads(0)
    os.write(say, b'x')
    os.read(slave, 1)
os.read(ready, 1)
taker = os.fork()
if taker == 0:
    leads(1)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(taker, 0)[1]))
os.kill(owner, 9)";
    assert_eq!(on_host(&format!("python3 - <<'EOF'\n{taken}\nEOF")).ok(), "7");
    let inside = Inside::new().await;
    let mut spec = ExecSpec::shell("tty; sleep 300", path("/"));
    spec.stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });
    spec.user = Some(crate::inside::named("user"));
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    let name = match futures_util::StreamExt::next(&mut process.events).await {
        Some(Ok(cabana_sandbox::Event::Output(output))) => String::from_utf8_lossy(&output.bytes).trim().to_owned(),
        other => panic!("no terminal: {other:?}"),
    };
    let report = inside.attack("user", &TERMINAL, &["steal", &name]).await.report();
    report.all_refused(&["EPERM"]);
    inside.end().await;
}

#[tokio::test]
async fn escape_sequences_are_passed_on_and_answered_by_nobody() {
    // A terminal that answers would type the answer. The engine is none: bytes go through, and nothing comes back.
    let inside = Inside::new().await;
    let script = "stty raw -echo; printf '\\033[c\\033[6n\\033[21t\\033]0;x\\007\\005'; \
        if IFS= read -r -t 0.5 -n 1 answer; then echo answered; fi; stty sane";
    let mut spec = ExecSpec::shell(script, path("/"));
    spec.stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });
    spec.user = Some(crate::inside::named("user"));
    spec.timeout = Some(crate::inside::PATIENCE);
    let process = inside.sandbox.exec(spec).await.unwrap();
    let (text, _) = crate::inside::rest(process).await;
    assert!(text.contains("\x1b[c\x1b[6n\x1b[21t") && !text.contains("answered"), "{text:?}");
    // A caller that types, as a terminal that answers would, is heard.
    let mut spec = ExecSpec::shell(script.replace("-t 0.5", "-t 30"), path("/"));
    spec.stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });
    spec.timeout = Some(crate::inside::PATIENCE);
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    let mut typing = process.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut typing, b"\x1b[?1;2c").await.unwrap();
    let (text, _) = crate::inside::rest(process).await;
    assert!(text.contains("answered"), "{text:?}");
    inside.end().await;
}

#[tokio::test]
async fn terminals_of_a_neighbour_and_of_the_host() {
    let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
    let of_the_host = rustix::pty::openpt(flags).unwrap();
    let name = rustix::pty::ptsname(&of_the_host, Vec::new()).unwrap();
    assert!(std::fs::exists(name.to_str().unwrap()).unwrap(), "the host sees its own");
    let (one, other) = (Inside::new().await, Inside::new().await);
    let mut spec = ExecSpec::shell("tty; sleep 300", path("/"));
    spec.stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });
    let mut process = other.sandbox.exec(spec).await.unwrap();
    let _named = futures_util::StreamExt::next(&mut process.events).await;
    assert_eq!(other.root("ls /dev/pts").await.ok(), "0\nptmx");
    assert_eq!(one.root("ls /dev/pts").await.ok(), "ptmx");
    one.end().await;
    other.end().await;
}

/// The machine has one number of terminals for all sandboxes.
#[tokio::test]
async fn taking_all_terminals_of_the_machine() {
    const TAKE: &str = "import os
taken = []
try:
    while len(taken) < 400: taken.append(os.openpty())
except OSError: pass
print(len(taken))";
    let setting = |name: &str| -> usize {
        std::fs::read_to_string(format!("/proc/sys/kernel/pty/{name}")).unwrap().trim().parse().unwrap()
    };
    let for_sandboxes = setting("max") - setting("reserve");
    // The control: in terminals of its own, with nothing but the machine's number around them, it gets what it wants.
    let apart = format!(
        "mount -t devpts -o newinstance,ptmxmode=0666 none /dev/pts && mount --bind /dev/pts/ptmx /dev/ptmx && python3 -c '{TAKE}'"
    );
    let mut control = std::process::Command::new("unshare");
    control.args(["--mount", "--propagation", "private", "sh", "-c", &apart]);
    let control: usize = crate::attacks::Ran::of(&mut control).ok().parse().unwrap();
    assert_eq!(control, 400);
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", TAKE], path("/"));
        let taken: usize = inside.command(user, spec).await.ok().parse().unwrap();
        assert!((16..=256).contains(&taken), "{taken}");
        assert!(taken <= (for_sandboxes / 64).max(16), "{taken} of {for_sandboxes}");
    }
    inside.end().await;
}
