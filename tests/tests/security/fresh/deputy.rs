//! One user inside against another, and what the server believes of a guest.

use cabana_sandbox::{Event, ExecSpec, SandboxPath, Stdio, TermSize};
use futures_util::StreamExt;

use crate::inside::{Inside, named, rest, soon};

/// Starts a script of root's that waits for `/tmp/go`, and gives its pid inside.
async fn waiting(inside: &Inside, stdio: Stdio) -> (cabana_sandbox::Process, String) {
    let mut spec =
        ExecSpec::shell("echo $$; until [ -e /root/go ]; do sleep 0.02; done; echo end", SandboxPath::root());
    spec.user = Some(named("root"));
    spec.stdio = stdio;
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    match process.events.next().await {
        Some(Ok(Event::Output(output))) => {
            let pid = String::from_utf8_lossy(&output.bytes).trim().to_owned();
            (process, pid)
        }
        other => panic!("it did not begin: {other:?}"),
    }
}

#[tokio::test]
async fn writing_into_what_a_command_of_root_says() {
    let inside = Inside::new().await;
    let (process, pid) = waiting(&inside, Stdio::Output).await;
    for file in ["fd/1", "fd/2", "fd/0"] {
        inside.user(&format!("echo forged > /proc/{pid}/{file}")).await.refused();
        inside.user(&format!("cat /proc/{pid}/{file}")).await.refused();
    }
    inside.root(&format!("echo of root > /proc/{pid}/fd/1")).await.ok();
    inside.root("touch /root/go").await.ok();
    let (said, _) = rest(process).await;
    assert!(!said.contains("forged") && said.contains("end"), "{said}");
    assert!(said.contains("of root"), "root itself writes there: {said}");
    inside.end().await;
}

#[tokio::test]
async fn writing_into_and_reading_a_terminal_of_root() {
    let inside = Inside::new().await;
    let (process, pid) = waiting(&inside, Stdio::Terminal(TermSize { cols: 80, rows: 24 })).await;
    let terminal = inside.root(&format!("readlink /proc/{pid}/fd/0")).await.ok();
    assert!(terminal.starts_with("/dev/pts/"), "{terminal}");
    for way in ["echo forged > T", "cat T", "exec 3<>T", "stty -F T -echo", "chmod 666 T", "chown user T"] {
        inside.user(&way.replace('T', &terminal)).await.refused();
    }
    inside.root(&format!("echo of root > {terminal}")).await.ok();
    inside.root("touch /root/go").await.ok();
    let (said, _) = rest(process).await;
    assert!(!said.contains("forged") && said.contains("of root"), "{said}");
    inside.end().await;
}

#[tokio::test]
async fn more_groups_than_the_kernel_takes() {
    let inside = Inside::new().await;
    let script = "python3 -c \"
with open('/etc/group', 'a') as groups:
    for number in range(2000, 65000): groups.write(f'g{number}:x:{number}:user\\n')
    for number in range(65000, 70000): groups.write(f'h{number}:x:{number}:user\\n')
    groups.write('neg:x:-1:user\\nbig:x:4294967295:user\\n')\"; wc -l < /etc/group";
    let lines: u32 = inside.root(script).await.ok().parse().unwrap();
    assert!(lines > 60_000);
    let many = "import os; os.setgroups(list(range(65537)))";
    let refused = crate::attacks::on_host(&format!("python3 -c '{many}'")).refused();
    assert!(refused.contains("too many groups") || refused.contains("Invalid argument"), "{refused}");
    let mut spec = ExecSpec::argv(["/usr/bin/id", "-G"], SandboxPath::root());
    spec.user = Some(named("user"));
    match soon("a command of that user", cabana_sandbox::run(&*inside.sandbox, spec, 4 << 20)).await {
        Ok(ran) => {
            let said = String::from_utf8_lossy(&ran.stdout.whole().unwrap()).into_owned();
            assert!(said.split_whitespace().all(|id| id.parse::<u32>().is_ok_and(|id| id < 65_536)), "ids of others");
        }
        Err(error) => println!("refused: {error}"),
    }
    soon("a file of that user", inside.read("user", "/etc/hostname")).await;
    assert_eq!(inside.root("echo works").await.ok(), "works");
    inside.end().await;
}
