//! Processes, sockets, memory and files of the host and of a neighbour; and the server, as somebody who acts for a guest.

use std::{
    fs,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::PermissionsExt,
            net::{SocketAddr, UnixListener},
        },
    },
    process::Stdio,
    time::{Duration, Instant},
};

use cabana_sandbox::{ExecSpec, SandboxPath, Status};
use cabana_tests::remote::{Answer, Request};

use super::{Target, command, path, together};
use crate::{
    attacks::{CONTACT, IPC, OUTLIVE, PLANT, SIGNALS},
    bystander::{Bystander, tied_command},
    inside::{PATIENCE, living, named, unique},
};

/// Listens on the host, by every name that a process inside might use.
struct Listeners {
    dir: tempfile::TempDir,
    abstract_name: String,
    port: u16,
    _held: (UnixListener, UnixListener, TcpListener),
}

impl Listeners {
    fn new() -> Self {
        let (dir, abstract_name) = (tempfile::tempdir().unwrap(), unique("matrix"));
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let named = UnixListener::bind(dir.path().join("socket")).unwrap();
        fs::set_permissions(dir.path().join("socket"), PermissionsExt::from_mode(0o777)).unwrap();
        let hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        Self { dir, abstract_name, port, _held: (named, hidden, tcp) }
    }

    fn ways(&self) -> [(&'static str, String); 3] {
        let socket = self.dir.path().join("socket").to_str().unwrap().to_owned();
        [("abstract", self.abstract_name.clone()), ("unix", socket), ("tcp", self.port.to_string())]
    }
}

#[track_caller]
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "this did not come: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The same programs, on what is theirs to reach.
#[test]
fn what_reaches_others_does_so_on_the_host() {
    let listeners = Listeners::new();
    for (way, name) in listeners.ways() {
        CONTACT.run_on_host(&[way, &name]).report().all_done();
    }
    let sleeper = Bystander::new("sleep");
    SIGNALS.run_on_host(&[&sleeper.pid().to_string()]).report().all_done();
    // Who leaves its parent, its session and its group lives on; but not longer than the pid namespace of this test.
    let mark = unique("outlive");
    let script =
        "coproc \"$PROGRAM\" \"$MARK\"; read -r said <&${COPROC[0]}; kill -KILL $COPROC_PID; wait; echo $said; read -r";
    let mut apart = tied_command("unshare");
    apart
        .args(["--pid", "--fork", "--kill-child", "bash", "-c", script])
        .env("PROGRAM", OUTLIVE.on_host())
        .env("MARK", &mark);
    let mut apart = apart.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(apart.stdout.as_mut().unwrap(), &mut [0; 5]).unwrap();
    wait_until("all outlive their parent", || living(&mark) >= 5); // who starts a program has no name for a moment
    drop(apart.stdin.take());
    apart.wait().unwrap();
    assert_eq!(living(&mark), 0);
}

together! {
    what_the_host_has {
        sockets_that_the_host_listens_at(target) {
            let listeners = Listeners::new();
            for user in target.users() {
                for (way, name) in listeners.ways() {
                    target.attack(user, &CONTACT, &[way, &name]).report().nothing_done();
                }
            }
        }

        memory_and_queues_of_the_host(target) {
            let key = (0x0dab_0000 | std::process::id() & 0xffff).to_string();
            IPC.run_on_host(&["make", &key]).report().none_refused(&["EPERM"]);
            let reports: Vec<_> = target.users().iter().map(|user| target.attack(user, &IPC, &["look", &key])).collect();
            IPC.run_on_host(&["remove", &key]);
            for report in reports {
                report.report().nothing_done();
            }
        }

        files_of_the_host_through_the_servers_hands(target) {
            let dir = tempfile::tempdir().unwrap();
            fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
            let (canary, word) = (dir.path().join("canary"), unique("canary"));
            fs::write(&canary, &word).unwrap();
            fs::set_permissions(&canary, PermissionsExt::from_mode(0o666)).unwrap();
            let canary_path = canary.to_str().unwrap();
            let up = format!("../../../../../../../../../..{canary_path}");
            let texts = [canary_path.to_owned(), up, format!("/proc/self/root{canary_path}"), format!("/proc/1/root{canary_path}"),
                format!("/proc/self/cwd/../../../../..{canary_path}")];
            let plant = target.install(&PLANT);
            let sandbox = target.number;
            for (number, text) in texts.iter().enumerate() {
                let (link, parent) = (format!("/tmp/link{number}"), format!("/tmp/parent{number}"));
                let above = text.strip_suffix("/canary").unwrap();
                target.run(command("root", &plant, &["link", text, &link])).report().all_done();
                target.run(command("root", &plant, &["link", above, &parent])).report().all_done();
                for user in target.users() {
                    let user = named(user);
                    for at in [&link, &format!("{parent}/canary")] {
                        let read = target.ask(&Request::Read { sandbox, user: user.clone(), at: path(at) });
                        assert!(!matches!(&read, Answer::Text(text) if text.contains(&word)), "{at} to {text}: {read:?}");
                        let content = "changed".to_owned();
                        target.ask(&Request::Write { sandbox, user: user.clone(), at: path(at), content });
                    }
                    let made = path(&format!("{parent}/made"));
                    target.ask(&Request::Write { sandbox, user: user.clone(), at: made, content: String::new() });
                    let listed = target.ask(&Request::List { sandbox, user, at: path(&parent) });
                    assert!(!matches!(&listed, Answer::Text(names) if names.contains("canary")), "{parent}: {listed:?}");
                }
            }
            assert_eq!(fs::read_to_string(&canary).unwrap(), word);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }

        the_owners_environment_and_layout(target) {
            let script = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/self/mountinfo /proc/self/cgroup /proc/1/cgroup; \
                cat /etc/hostname /proc/sys/kernel/hostname; env";
            for user in target.users() {
                let mut spec = ExecSpec::shell(script, SandboxPath::root());
                spec.user = Some(named(user));
                let seen = target.run(spec).out;
                let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
                let layout = ["/mnt", "cabana-matrix", "cabana-tests", "sandboxes", "ephemeral", "CARGO"];
                for mark in layout {
                    assert!(!seen.contains(mark), "{mark} is in {seen}");
                }
                assert!(!seen.lines().any(|line| line == host.trim()), "the host's name is in {seen}");
            }
        }
    }

    processes_of_the_host_and_of_a_neighbour {
        outliving_the_timeout_of_a_command(target) {
            let mark = unique("outlive");
            let program = target.install(&OUTLIVE);
            let spec = ExecSpec { timeout: Some(Duration::from_millis(300)), ..command("root", &program, &[&mark]) };
            let answer = target.ask(&Request::Exec { sandbox: target.number, commands: vec![spec] });
            let Answer::Ran(ran) = answer else { panic!("{answer:?}") };
            let ran = ran.into_iter().next().unwrap().unwrap();
            assert_eq!((ran.status, ran.out.as_str()), (Status::TimedOut, "begun\n"));
            wait_until("nothing of it lives", || living(&mark) == 0);
        }

        a_neighbour_of_the_same_owner(target) {
            let (mark, name) = (unique("mark"), unique("neighbour"));
            let combination = target.combination;
            let number = target.number;
            let mut neighbour = target.neighbour();
            let listen = neighbour.install(&CONTACT);
            let listening = command("root", &listen, &["listen", &name]);
            neighbour.expect_done(&Request::Start { sandbox: number + 1, command: listening });
            neighbour.attack("root", &CONTACT, &["abstract", &name]).report().all_done();
            for place in ["/tmp", "/dev/shm", "/home/user"] {
                let at = path(&format!("{place}/{mark}"));
                neighbour.expect_done(&Request::Write { sandbox: number + 1, user: named("root"), at, content: mark.clone() });
            }
            let mut target = Target::made(&mut *neighbour.remote, combination, number);
            for user in target.users() {
                target.attack(user, &CONTACT, &["abstract", &name]).report().nothing_done();
                let look = "for p in /tmp /dev/shm /home/user; do ls $p; done; cat /proc/[0-9]*/cmdline".to_owned();
                let mut spec = ExecSpec::shell(look, SandboxPath::root());
                spec.user = Some(named(user));
                let seen = target.run(spec).out;
                assert!(!seen.contains(&mark) && !seen.contains(&name), "{seen}");
            }
            target.expect_done(&Request::Destroy { sandbox: number + 1 });
        }

        processes_of_the_host(target) {
            let sleeper = Bystander::new("sleep");
            let pids = [sleeper.pid(), std::process::id()].map(|pid| pid.to_string());
            for user in target.users() {
                target.attack(user, &SIGNALS, &[&pids[0]]).report().nothing_done();
                target.attack(user, &SIGNALS, &[&pids[1]]).report().nothing_done();
            }
            let mut spec = ExecSpec::shell("kill -9 -1", SandboxPath::root());
            spec.user = Some(named("root"));
            target.exec(vec![spec]);
            assert!(fs::exists(format!("/proc/{}", sleeper.pid())).unwrap(), "it lives");
            target.still_works();
        }
    }
}
