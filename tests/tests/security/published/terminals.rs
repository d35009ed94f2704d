//! Commands to terminals, and terminals that are over.

use cabana_sandbox::{Event, ExecSpec, Process, Stdio, TermSize};
use futures_util::StreamExt;

use super::stage::{python, shell};
use crate::{
    attacks::TTY,
    inside::{Inside, named, rest},
};

const SIZE: Stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });

/// With and without a terminal of the server's, as root and as the user.
async fn is_refused(request: &str, argument: &str) {
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let given = inside.attack_in_terminal(user, &TTY, &[request, argument]).await.report();
        assert!(given.has("given 0"), "it had a terminal: {given:?}");
        given.all_refused(&["EPERM"]);
        inside.attack(user, &TTY, &[request, argument]).await.report().all_refused(&["EPERM"]);
    }
    inside.end().await;
}

/// CVE-2017-5226, and CVE-2019-7303: the filter looked at more bits of the request than the kernel does.
#[tokio::test]
async fn tiocsti_is_refused_whatever_its_high_bits() {
    let host = TTY.run_on_host(&["TIOCSTI", "120"]).report();
    assert_eq!((host.of("own 0 120"), host.of("own ffffffff 120")), ("done", "done"));
    is_refused("TIOCSTI", "120").await;
}

/// CVE-2023-28100, CVE-2023-1523.
#[tokio::test]
async fn tioclinux_is_refused_whatever_its_high_bits() {
    TTY.run_on_host(&["TIOCLINUX", "3"]).report().none_refused(&["EPERM"]);
    is_refused("TIOCLINUX", "all").await;
}

/// CVE-2017-2636, CVE-2021-42008, CVE-2023-6546: each number would load a module.
#[tokio::test]
async fn line_disciplines_are_refused() {
    const N_TTY: &str = "0";
    assert_eq!(TTY.run_on_host(&["TIOCSETD", N_TTY]).report().of("own 0 0"), "done");
    is_refused("TIOCSETD", "all").await;
}

async fn in_terminal(inside: &Inside, user: &str, spec: ExecSpec) -> (Process, String) {
    let spec = ExecSpec { stdio: SIZE, user: Some(named(user)), ..spec };
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    match process.events.next().await {
        Some(Ok(Event::Output(output))) => (process, String::from_utf8_lossy(&output.bytes).trim().to_owned()),
        other => panic!("it did not begin: {other:?}"),
    }
}

/// A process that stays behind with the slave of a user's terminal. The next terminal is root's, and another one.
#[tokio::test]
async fn held_slave_does_not_reach_the_next_terminal() {
    let inside = Inside::new().await;
    let holder = "import os, signal, time
print(os.ttyname(0), flush=True)
if os.fork() == 0:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setsid()
    os.write(0, b'held')
    open('/tmp/held', 'w').close()
    while not os.path.exists('/tmp/go'): time.sleep(0.01)
    try: os.write(0, b'forged')
    except OSError: pass
    open('/tmp/tried', 'w').close()
    while not os.path.exists('/tmp/end'): time.sleep(0.01)
    os._exit(0)
while not os.path.exists('/tmp/held'): time.sleep(0.01)";
    let (first, was) = in_terminal(&inside, "user", python(holder)).await;
    let (rest_of_first, _kept) = until_exit(first).await;
    assert!(
        (was.clone() + &rest_of_first).contains("held"),
        "while it lasted, the slave worked: {was} {rest_of_first}"
    );
    let script = "tty; until [ -e /tmp/tried ]; do sleep 0.01; done; echo over";
    let (second, is) = in_terminal(&inside, "root", shell(script)).await;
    assert!(was.starts_with("/dev/pts/") && is.starts_with("/dev/pts/"), "{was} {is}");
    inside.root("touch /tmp/go").await.ok();
    let (said, _) = rest(second).await;
    assert!(said.contains("over") && !said.contains("forged"), "{said}");
    inside.root("touch /tmp/end").await.ok();
    inside.end().await;
}

/// What it said until its leader ended.
async fn until_exit(mut process: Process) -> (String, Process) {
    let mut text = Vec::new();
    while let Some(event) = process.events.next().await {
        match event.unwrap() {
            Event::Output(output) => text.extend_from_slice(&output.bytes),
            Event::Exit(_) => break,
        }
    }
    (String::from_utf8_lossy(&text).into_owned(), process)
}
