//! Processes, sockets and memory of the host and of another sandbox.

use futures_util::StreamExt;

use cabana_sandbox::{Event, Process};

use crate::{
    attacks::{EAVESDROP, IPC, NEIGHBOUR, SOCKETS, in_own},
    bystander::Bystander,
    inside::{Inside, passing, path, unique},
};

/// Two sandboxes of one engine.
async fn two() -> (Inside, Inside) {
    let one = Inside::new().await;
    let other = Inside::of(one.engine.clone(), &passing()).await;
    (one, other)
}

/// Ends both, and the engine they share.
async fn end(one: Inside, other: Inside) {
    use cabana_sandbox::Provider;
    one.engine.destroy(one.sandbox.id()).await.unwrap();
    other.end().await;
}

async fn first_line(process: &mut Process) -> String {
    match process.events.next().await {
        Some(Ok(Event::Output(output))) => String::from_utf8_lossy(&output.bytes).trim().to_owned(),
        other => panic!("it said nothing: {other:?}"),
    }
}

async fn listen(inside: &Inside, name: &str) -> (String, Process) {
    let words = inside.bring(&NEIGHBOUR).await;
    let mut spec = cabana_sandbox::ExecSpec::argv(
        words.into_iter().chain(["listen".to_owned(), name.to_owned()]),
        cabana_sandbox::SandboxPath::root(),
    );
    spec.user = Some(crate::inside::named("user"));
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    (first_line(&mut process).await, process)
}

#[tokio::test]
async fn a_neighbours_abstract_socket_and_port() {
    let (one, other) = two().await;
    let name = unique("abstract");
    let (port, _listening) = listen(&other, &name).await;
    let own = other.attack("user", &NEIGHBOUR, &["reach", &name, &port]).await.report();
    own.none_refused(&["ECONNREFUSED"]);
    let report = one.attack("root", &NEIGHBOUR, &["reach", &name, &port]).await.report();
    report.all_refused(&["ECONNREFUSED"]);
    end(one, other).await;
}

#[tokio::test]
async fn the_hosts_abstract_socket_and_port() {
    use std::os::{linux::net::SocketAddrExt, unix::net};
    let name = unique("abstract");
    let address = net::SocketAddr::from_abstract_name(&name).unwrap();
    let listener = net::UnixListener::bind_addr(&address).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port().to_string();
    NEIGHBOUR.run_on_host(&["reach", &name, &port]).report().none_refused(&["ECONNREFUSED"]);
    let inside = Inside::new().await;
    inside.attack("root", &NEIGHBOUR, &["reach", &name, &port]).await.report().all_refused(&["ECONNREFUSED"]);
    inside.end().await;
    drop((listener, tcp));
}

#[tokio::test]
async fn memory_queues_and_semaphores_of_a_neighbour() {
    let (one, other) = two().await;
    let key = "212992";
    other.attack("user", &IPC, &["make", key]).await.report().none_refused(&["ENOSYS", "EACCES"]);
    let own = other.attack("user", &IPC, &["look", key]).await.report();
    assert_eq!(own.of("shared memory"), "done", "who made it finds it");
    one.attack("root", &IPC, &["look", key]).await.report().all_refused(&["ENOENT"]);
    end(one, other).await;
}

#[tokio::test]
async fn memory_queues_and_semaphores_of_the_host() {
    let key = (0x0cab_0000 | std::process::id() & 0xffff).to_string();
    let made = IPC.run_on_host(&["make", &key]).report();
    assert_eq!((made.of("shared memory"), made.of("semaphores")), ("done", "done"));
    let inside = Inside::new().await;
    let report = inside.attack("root", &IPC, &["look", &key]).await;
    IPC.run_on_host(&["remove", &key]);
    report.report().all_refused(&["ENOENT"]);
    inside.end().await;
}

#[tokio::test]
async fn files_of_a_neighbour() {
    let (one, other) = two().await;
    let mark = unique("mark");
    let script = format!("for d in /tmp /dev/shm /home/user /workspace /var/tmp; do echo {mark} > $d/{mark}; done");
    other.user(&script).await.ok();
    let found = "find / -xdev -name 'mark-*' 2>/dev/null; find /dev/shm /tmp /proc/*/root /proc/*/cwd -maxdepth 3 -name 'mark-*' 2>/dev/null; true";
    assert!(other.root(found).await.ok().contains(&mark), "it finds its own");
    assert_eq!(one.root(found).await.ok(), "");
    end(one, other).await;
}

#[tokio::test]
async fn seeing_processes_of_the_host_and_of_a_neighbour() {
    let (one, other) = two().await;
    let mark = unique("marked");
    let on_host = Bystander::new(&mark);
    let spec = cabana_sandbox::ExecSpec::shell(format!("echo ready; sleep 300; : {mark}"), path("/"));
    let mut process = other.sandbox.exec(spec).await.unwrap();
    assert_eq!(first_line(&mut process).await, "ready");
    let seen = other.attack("root", &NEIGHBOUR, &["processes", &mark]).await.ok();
    assert!(seen.contains("cmdline"), "it sees its own: {seen}");
    let seen = NEIGHBOUR.run_on_host(&["processes", &mark, &on_host.pid().to_string()]).ok();
    assert!(seen.contains("cmdline"), "the host sees its own: {seen}");
    assert_eq!(one.attack("root", &NEIGHBOUR, &["processes", &mark]).await.ok(), "looked");
    end(one, other).await;
}

#[tokio::test]
async fn signalling_processes_of_the_host_and_of_a_neighbour() {
    let (one, other) = two().await;
    let mut on_host = Bystander::new("sleep");
    let host_pid = on_host.pid().to_string();
    NEIGHBOUR.run_on_host(&["signal", &host_pid]).report().none_refused(&["ESRCH"]);
    // Numbers that mean nothing inside, and one that would be init's outside.
    let inner = one.root("sleep 300 >/dev/null 2>&1 & echo $!").await.ok();
    let used: i32 = inner.parse().unwrap();
    assert!(used < 1000, "numbers inside are small: {used}");
    let report = one.attack("root", &NEIGHBOUR, &["signal", &host_pid]).await.report();
    report.all_refused(&["ESRCH"]);
    assert!(on_host.lives());
    // Everybody whom it may signal, by numbers, groups and all: the host's and the neighbour's live on.
    let mut theirs =
        other.sandbox.exec(cabana_sandbox::ExecSpec::shell("echo up; sleep 300; echo no", path("/"))).await.unwrap();
    assert_eq!(first_line(&mut theirs).await, "up");
    one.root("kill -9 -1; for p in $(seq 2 3000); do kill -9 $p -$p 2>/dev/null; done").await;
    assert!(on_host.lives());
    assert_eq!(other.sandbox.processes().await.unwrap().len(), 1);
    one.still_works().await;
    end(one, other).await;
}

#[tokio::test]
async fn sockets_of_families_that_reach_the_kernel_or_the_host() {
    let wanted = [
        "17:3:768", // packets
        "16:3:9",   // audit
        "16:3:12",  // netfilter
        "16:3:15",  // events of devices
        "16:3:16",  // generic netlink
        "16:3:6",   // xfrm
        "40:1:0",   // virtual machine sockets
        "38:5:0",   // cryptography of the kernel
        "29:3:1",   // controller area network
        "31:1:3",   // bluetooth
        "15:3:2",   // keys of ipsec
        "30:1:0",   // tipc
        "21:5:0",   // reliable datagrams
        "44:3:0",   // express data path
        "41:1:0",   // kernel connections
        "2:10:0",   // packets by the old way
        "2:5:132",  // sctp
        "10:5:132", // sctp
        "2:6:33",   // dccp
    ];
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let report = inside.attack(user, &SOCKETS, &wanted).await.report();
        report.all_refused(&["EAFNOSUPPORT", "EPROTONOSUPPORT", "EPERM", "ESOCKTNOSUPPORT", "EOPNOTSUPP"]);
    }
    let control = SOCKETS.run_on_host(&wanted).report();
    for family in ["17:3:768", "16:3:9", "16:3:15", "2:10:0"] {
        assert_eq!(control.of(&format!("socket {family}")), "done", "the host's root has them: {control:?}");
    }
    let plain = inside.attack("user", &SOCKETS, &["1:1:0", "2:1:0", "10:2:0", "16:3:0"]).await.report();
    assert_eq!((plain.of("socket 2:1:0"), plain.of("pair 1:1:0"), plain.of("socket 16:3:0")), ("done", "done", "done"));
    inside.end().await;
}

#[tokio::test]
async fn raw_sockets_and_changes_of_the_network() {
    let inside = Inside::new().await;
    let report = inside.attack("root", &SOCKETS, &["2:3:1", "10:3:58", "2:3:6"]).await.report();
    report.all_refused(&["EPERM", "EOPNOTSUPP", "EPROTONOSUPPORT", "EAFNOSUPPORT"]);
    let script = "import fcntl, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for name, request in [('down', 0x8914), ('address', 0x8916), ('route', 0x890B), ('bridge', 0x89a0), ('tunnel', 0x89f1)]:
    try:
        fcntl.ioctl(s, request, struct.pack('40s', b'lo'))
        print(name, 'done')
    except OSError as e: print(name, e.errno)
for option in [36, 12, 25]:
    try: s.setsockopt(socket.SOL_SOCKET, option, struct.pack('i', 7)); print(option, 'done')
    except OSError as e: print(option, e.errno)";
    let raw = SOCKETS.run_on_host(&["2:3:1", "10:3:58"]).report();
    assert_eq!((raw.of("socket 2:3:1"), raw.of("socket 10:3:58")), ("done", "done"));
    let own = in_own(&["--net"], &format!("python3 - <<'EOF'\n{script}\nEOF")).ok();
    assert!(own.contains("down done") && own.contains("36 done"), "in a network of its own, root changes it: {own}");
    let spec = cabana_sandbox::ExecSpec::argv(["/usr/bin/python3", "-c", script], path("/"));
    let said = inside.command("root", spec).await.ok();
    assert!(said.lines().filter(|line| line.ends_with("done")).all(|line| line == "12 done"), "{said}");
    inside.end().await;
}

#[tokio::test]
async fn changing_the_devices_that_all_sandboxes_share() {
    use cabana_sandbox::{Alter, write_all};
    let (one, other) = two().await;
    for way in [
        "chmod 000",
        "chown 1000",
        "rm -f",
        "touch -d 1999-01-01",
        "mv -f /tmp/x",
        "setfattr -n user.x -v y",
        "truncate -s 1",
    ] {
        one.root(&format!("echo x > /tmp/x; {way} /dev/null")).await.refused();
        let own = format!("d=/home/user/own; echo x > $d; chmod 666 $d; echo x > /tmp/x; {way} $d");
        one.root(&own).await.ok(); // of a file of its own, it may
    }
    let files = one.files("root");
    for name in ["/dev/null", "/dev/zero", "/dev/fd", "/dev/ptmx"] {
        assert!(files.alter(Alter::Remove(path(name))).await.is_err(), "{name}");
        assert!(files.alter(Alter::Rename(path(name), path("/tmp/taken"))).await.is_err(), "{name}");
    }
    for name in ["/dev/null", "/dev/zero"] {
        assert!(files.alter(Alter::SetMode(path(name), 0)).await.is_err(), "{name}");
    }
    assert!(files.alter(Alter::RemoveAll(path("/dev"))).await.is_err());
    assert!(write_all(&*files, &path("/dev/new"), "x").await.is_err());
    let devices = "ls /dev | sort | xargs; stat -c %a /dev/null; echo x > /dev/null";
    let said = other.user(devices).await.ok();
    assert_eq!(said, "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero\n666");
    end(one, other).await;
}

const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/full"];

#[tokio::test]
async fn watching_when_a_neighbour_opens_a_device() {
    let (one, other) = two().await;
    let words: Vec<&str> = ["watch"].into_iter().chain(DEVICES).collect();
    for (who, seen) in [(&one, "seen"), (&other, "nothing")] {
        one.root("rm -f /tmp/asked").await.ok();
        let watch = one.start("user", &EAVESDROP, &words).await;
        who.user("for d in null zero urandom full; do head -c 1 /dev/$d; done >/dev/null; true").await.ok();
        // By the server's hands, which open no device.
        cabana_sandbox::write_all(&*one.files("root"), &path("/tmp/asked"), "").await.unwrap();
        let (said, _) = crate::inside::rest(watch).await;
        assert_eq!(said.trim(), seen);
    }
    end(one, other).await;
}

#[tokio::test]
async fn locking_a_device_that_a_neighbour_uses() {
    let (one, other) = two().await;
    let words = |what| -> Vec<&str> { [what].into_iter().chain(DEVICES).collect() };
    let _locking = one.start("user", &EAVESDROP, &words("lock")).await;
    let own = one.attack("user", &EAVESDROP, &words("try")).await.ok();
    assert_eq!(own.matches("taken").count(), DEVICES.len(), "it is locked inside: {own}");
    assert_eq!(other.attack("user", &EAVESDROP, &words("try")).await.ok(), "locked");
    end(one, other).await;
}

/// What is hidden of `/proc` is hidden behind something, which has locks and watches.
#[tokio::test]
async fn locks_on_what_hides_files_of_the_host() {
    let (one, other) = two().await;
    let hidden = "for path in acpi asound cmdline kcore keys locks pressure scsi sysrq-trigger timer_list; do
        test -e /proc/$path && echo /proc/$path; done; true";
    let hidden = one.user(hidden).await.ok();
    assert!(hidden.contains("/proc/keys") && hidden.contains("/proc/pressure"), "{hidden}");
    for path in hidden.lines() {
        let hold = format!("flock {path} -c 'echo locked; exec cat'");
        let mut spec = cabana_sandbox::ExecSpec::shell(&hold, cabana_sandbox::SandboxPath::root());
        spec.user = Some(crate::inside::named("user"));
        spec.stdio = cabana_sandbox::Stdio::InputOutput;
        let mut process = one.sandbox.exec(spec).await.unwrap();
        assert_eq!(first_line(&mut process).await, "locked");
        let lock = format!("flock -n {path} true");
        one.user(&lock).await.refused();
        other.user(&lock).await.ok();
        drop(process.stdin.take());
        crate::inside::rest(process).await;
    }
    end(one, other).await;
}
