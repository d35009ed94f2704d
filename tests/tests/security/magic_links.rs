//! Paths that lead through what a process holds open (`/proc/self/fd`, `/proc/1/root`): whoever starts a command resolves its
//! working directory, its program, its interpreter and its search path, and must hold nothing that leads out (the class of
//! CVE-2024-21626). Each way is tried with every number that init could have open.

use std::{os::unix::fs::PermissionsExt, path::PathBuf};

use cabana_sandbox::{Error, ExecOutcome, ExecSpec, SandboxPath, SandboxSpec, Stdio, TermSize, User, run};

use crate::inside::{Inside, PATIENCE, named, passing, path, unique};

/// More than init has open.
const NUMBERS: std::ops::Range<u32> = 3..32;
const UP: &str = "../../../../../../../../..";

/// A program of the host that every user may run, and a text that every user may read, outside of everything that a sandbox
/// is shown.
struct Canary {
    program: PathBuf,
    text: PathBuf,
}

impl Canary {
    fn new() -> Self {
        let (program, text) =
            (PathBuf::from("/tmp").join(unique("canary")), PathBuf::from("/tmp").join(unique("canary")));
        std::fs::copy("/bin/echo", &program).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(&text, "sings\n").unwrap();
        std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o644)).unwrap();
        Self { program, text }
    }

    /// From a directory of the host, whichever it is.
    fn text(&self) -> String {
        format!("{UP}{}", self.text.display())
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        for file in [&self.program, &self.text] {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Everything that names what a process has open: by its own entry, by init's, by a link of /dev.
fn doors(number: u32) -> [String; 5] {
    [
        format!("/proc/self/fd/{number}"),
        format!("/proc/thread-self/fd/{number}"),
        format!("/dev/fd/{number}"),
        format!("/proc/1/fd/{number}"),
        format!("/proc/1/task/1/fd/{number}"),
    ]
}

/// With cgroups, without them, and without any right to write or to talk.
async fn sandboxes() -> Vec<Inside> {
    vec![
        Inside::new().await,
        Inside::without_cgroups().await,
        Inside::with(SandboxSpec { read_only_root: true, sudo: true, ..passing() }).await,
    ]
}

async fn end(sandboxes: Vec<Inside>) {
    for inside in sandboxes {
        inside.still_works().await;
        inside.end().await;
    }
}

async fn attempt(inside: &Inside, user: &str, stdio: Stdio, mut spec: ExecSpec) -> Result<ExecOutcome, Error> {
    (spec.user, spec.stdio, spec.timeout) = (Some(named(user)), stdio, Some(PATIENCE));
    run(&*inside.sandbox, spec, 1 << 20).await
}

#[track_caller]
fn is_silent(outcome: Result<ExecOutcome, Error>, what: &str) {
    if let Ok(outcome) = outcome {
        let said = String::from_utf8_lossy(&outcome.stdout.whole().unwrap()).into_owned();
        assert!(!said.contains("sings"), "{what} reached the host: {said}");
    }
}

const TERMINAL: Stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });

#[test]
fn a_descriptor_of_the_host_is_a_way_to_all_of_it() {
    // The control: with one open, each of the ways below reaches the host's file.
    let canary = Canary::new();
    let script = "import os, subprocess, sys
fd, up, text, program = os.open('/usr/lib', os.O_PATH), *sys.argv[1:]
door = '/proc/self/fd/%d' % fd
def said(argv, **how): return subprocess.run(argv, capture_output=True, text=True, pass_fds=[fd], **how).stdout
print(said(['/bin/cat', up + text], cwd=door))
print(said([door + '/' + up + program, 'sings']))
print(said(['/bin/sh', '-c', os.path.basename(program) + ' sings'], env={'PATH': door + '/' + up + '/tmp'}))
with open(text, 'w') as script: script.write('#!%s/%s/bin/echo sings\\n' % (door, up))
os.chmod(text, 0o755)
print(said([text]))";
    let mut host = std::process::Command::new("python3");
    let ran = host.args(["-c", script, UP]).args([&canary.text, &canary.program]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout).matches("sings").count(), 4, "{ran:?}");
}

#[tokio::test]
async fn a_working_directory_through_a_descriptor() {
    let canary = Canary::new();
    let sandboxes = sandboxes().await;
    for inside in &sandboxes {
        for user in ["root", "user"] {
            for door in NUMBERS.flat_map(doors) {
                let spec = ExecSpec::argv(["/bin/cat", &canary.text()], path(&door));
                is_silent(attempt(inside, user, Stdio::Output, spec.clone()).await, &door);
            }
            for door in (3..12).flat_map(doors) {
                let spec = ExecSpec::argv(["/bin/cat", &canary.text()], path(&door));
                is_silent(attempt(inside, user, TERMINAL, spec).await, &door);
            }
        }
    }
    end(sandboxes).await;
}

#[tokio::test]
async fn a_working_directory_in_proc_is_refused() {
    // The second wall: such a directory is a way to what another process holds, and no command works there.
    let inside = Inside::new().await;
    inside.root("ln -s /proc/self/cwd /tmp/own && ln -s /proc/self/root/tmp /tmp/rooted").await.ok();
    for refused in ["/proc", "/proc/self", "/proc/self/fd", "/proc/1", "/proc/self/task", "/proc/sys/kernel"] {
        for user in ["root", "user"] {
            let outcome = attempt(&inside, user, Stdio::Output, ExecSpec::shell("pwd", path(refused))).await;
            assert!(matches!(outcome, Err(Error::NoWorkdir(_))), "{refused} as {user}: {outcome:?}");
        }
    }
    // The control: through a link of a process to a directory that the root leads to, it is an ordinary one.
    for (allowed, is) in
        [("/tmp/own", "/"), ("/tmp/rooted", "/tmp"), ("/usr/lib", "/usr/lib"), ("/dev/shm", "/dev/shm")]
    {
        let ran = inside.command("user", ExecSpec::shell("pwd -P", path(allowed))).await;
        assert_eq!(ran.ok(), is, "{allowed}");
    }
    inside.end().await;
}

#[tokio::test]
async fn a_program_through_a_descriptor() {
    let canary = Canary::new();
    let sandboxes = sandboxes().await;
    for inside in &sandboxes {
        for user in ["root", "user"] {
            for door in NUMBERS.flat_map(doors) {
                let program = format!("{door}/{UP}{}", canary.program.display());
                let spec = ExecSpec::argv([program.as_str(), "sings"], SandboxPath::root());
                is_silent(attempt(inside, user, Stdio::Output, spec).await, &program);
            }
        }
    }
    end(sandboxes).await;
}

#[tokio::test]
async fn a_search_path_through_a_descriptor() {
    let canary = Canary::new();
    let name = canary.program.file_name().unwrap().to_str().unwrap();
    let sandboxes = sandboxes().await;
    for inside in &sandboxes {
        for user in ["root", "user"] {
            let all: Vec<String> = NUMBERS.flat_map(doors).map(|door| format!("{door}/{UP}/tmp")).collect();
            for some in all.chunks(20) {
                let mut spec = ExecSpec::argv([name, "sings"], SandboxPath::root());
                spec.env.insert("PATH".to_owned(), some.join(":"));
                is_silent(attempt(inside, user, Stdio::Output, spec).await, "a search path");
            }
        }
    }
    end(sandboxes).await;
}

#[tokio::test]
async fn an_interpreter_through_a_descriptor() {
    let sandboxes = sandboxes().await;
    for inside in &sandboxes {
        let mut script = String::from("cd /tmp\n");
        for (at, door) in NUMBERS.flat_map(doors).enumerate() {
            // The path of an interpreter is short: the kernel reads 255 bytes.
            script += &format!("printf '#!{door}/{UP}/bin/echo sings\\n' > script{at} && chmod 755 script{at}\n");
        }
        inside.root(&script).await.ok();
        for at in 0..NUMBERS.len() * doors(0).len() {
            for user in ["root", "user"] {
                let spec = ExecSpec::argv([format!("/tmp/script{at}")], SandboxPath::root());
                is_silent(attempt(inside, user, Stdio::Output, spec).await, "an interpreter");
            }
        }
    }
    end(sandboxes).await;
}

#[tokio::test]
async fn a_link_in_place_of_the_working_directory() {
    let canary = Canary::new();
    let sandboxes = sandboxes().await;
    for inside in &sandboxes {
        for door in NUMBERS.flat_map(doors) {
            inside.root(&format!("ln -sfn {door} /tmp/home")).await.ok();
            let spec = ExecSpec::argv(["/bin/cat", &canary.text()], path("/tmp/home"));
            for user in ["root", "user"] {
                is_silent(attempt(inside, user, Stdio::Output, spec.clone()).await, &door);
            }
        }
    }
    end(sandboxes).await;
}

#[tokio::test]
async fn root_leaves_its_control_group_through_a_descriptor() {
    let inside = Inside::new().await;
    let own = inside.root("cat /proc/self/cgroup").await.ok();
    for door in NUMBERS.flat_map(doors) {
        for group in ["cgroup.procs", "../cgroup.procs", "../../cgroup.procs", "../../../cgroup.procs"] {
            let script = format!("echo $$ > {group} && cat /proc/self/cgroup");
            let spec = ExecSpec::argv(["/bin/sh", "-c", &script], path(&door));
            if let Ok(outcome) = attempt(&inside, "root", Stdio::Output, spec).await {
                let said = String::from_utf8_lossy(&outcome.stdout.whole().unwrap()).into_owned();
                assert!(said.is_empty(), "{door}/{group}: {said}, and not {own}");
            }
        }
    }
    inside.end().await;
}

#[tokio::test]
async fn a_user_whose_home_is_a_descriptor() {
    // Named by the guest's own user file: nothing of ours goes there.
    let canary = Canary::new();
    let inside = Inside::new().await;
    for door in NUMBERS.flat_map(doors).step_by(3) {
        inside
            .root(&format!("sed -i '/^door:/d' /etc/passwd; echo 'door:x:0:0::{door}:/bin/sh' >> /etc/passwd"))
            .await
            .ok();
        let mut spec = ExecSpec::shell(format!("cd && cat {}", canary.text()), SandboxPath::root());
        spec.user = Some(User::new("door").unwrap());
        is_silent(run(&*inside.sandbox, spec, 1 << 20).await, &door);
    }
    inside.still_works().await;
    inside.end().await;
}

/// Between clone and exec a child still runs the program of init, which is one file to all sandboxes: who ran it inside could
/// leave attributes on it, lock it and watch it.
#[tokio::test]
async fn the_program_of_init_by_the_link_to_what_runs() {
    for inside in sandboxes().await {
        for user in ["root", "user"] {
            for door in ["/proc/self/exe", "/proc/thread-self/exe"] {
                let spec = ExecSpec::argv([door, "--version"], path("/"));
                assert!(attempt(&inside, user, Stdio::Output, spec).await.is_err(), "{user} {door}");
                let script = format!("printf '#!{door}\\n' > /tmp/script-{user}; chmod 755 /tmp/script-{user}");
                inside.command(user, ExecSpec::shell(&script, path("/"))).await.ok();
                let spec = ExecSpec::argv([format!("/tmp/script-{user}")], path("/"));
                assert!(attempt(&inside, user, Stdio::Output, spec).await.is_err(), "{user} #!{door}");
                // By then it is the program that runs itself.
                let again = format!("exec {door} -c 'echo again'");
                assert_eq!(inside.command(user, ExecSpec::shell(&again, path("/"))).await.ok(), "again");
            }
        }
        end(vec![inside]).await;
    }
}
