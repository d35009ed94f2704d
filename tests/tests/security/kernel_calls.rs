//! System calls that change or enter the kernel: all refused to root inside, whatever their arguments.

use cabana_sandbox::{ExecSpec, SandboxPath};

use crate::{attacks::CALLS, inside::Inside};

/// As one who lacks the right is refused, or as if the kernel did not have the call.
const REFUSED: &[&str] = &["EPERM", "ENOSYS"];

/// Inside refused; on the host the very same calls get as far as looking at their arguments, where it has them at all.
async fn refused(calls: &[&str]) {
    CALLS.run_on_host(calls).report().none_refused(&["EPERM", "UNKNOWN"]);
    refused_inside(calls).await;
}

async fn refused_inside(calls: &[&str]) {
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        inside.attack(user, &CALLS, calls).await.report().all_refused(REFUSED);
    }
    inside.end().await;
}

#[tokio::test]
async fn programs_for_the_kernel_and_its_counters() {
    refused(&["bpf", "perf_event_open", "userfaultfd"]).await;
}

#[tokio::test]
async fn calls_that_no_filter_sees_through_io_uring() {
    refused(&["io_uring_setup", "io_uring_enter", "io_uring_register"]).await;
}

#[tokio::test]
async fn keys_of_the_session_that_started_the_server() {
    refused(&["keyctl", "add_key", "request_key"]).await;
}

#[tokio::test]
async fn loading_a_module() {
    refused(&["init_module", "finit_module", "delete_module"]).await;
}

#[tokio::test]
async fn starting_another_kernel_or_none() {
    refused(&["kexec_load", "kexec_file_load", "reboot"]).await;
}

#[tokio::test]
async fn setting_the_hosts_clock() {
    refused(&["settimeofday", "clock_settime", "clock_adjtime", "adjtimex"]).await;
}

#[tokio::test]
async fn swap_accounting_and_quotas_of_the_host() {
    refused(&["swapon", "swapoff", "acct", "quotactl", "quotactl_fd"]).await;
}

#[tokio::test]
async fn mounting_by_the_old_calls() {
    refused(&["mount", "umount2", "pivot_root"]).await;
}

#[tokio::test]
async fn mounting_by_the_new_calls() {
    let calls =
        ["fsopen", "fsconfig", "fsmount", "fspick", "move_mount", "open_tree", "open_tree_attr", "mount_setattr"];
    refused(&calls).await;
}

#[tokio::test]
async fn looking_at_mounts_by_their_numbers() {
    refused(&["statmount", "listmount"]).await;
}

#[tokio::test]
async fn files_by_handle_instead_of_path() {
    refused(&["open_by_handle_at", "name_to_handle_at"]).await;
}

#[tokio::test]
async fn watching_whole_file_systems() {
    refused(&["fanotify_init", "fanotify_mark"]).await;
}

#[tokio::test]
async fn the_hosts_names_and_its_log() {
    refused(&["sethostname", "setdomainname", "syslog"]).await;
}

#[tokio::test]
async fn addresses_of_kernel_objects_and_places_of_pages() {
    refused(&["kcmp", "migrate_pages", "move_pages"]).await;
}

#[tokio::test]
async fn an_address_space_in_which_all_is_executable() {
    refused(&["personality"]).await;
}

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn hardware_ports_and_foreign_segments() {
    refused(&["ioperm", "iopl", "modify_ldt", "lookup_dcookie"]).await;
}

#[tokio::test]
async fn hanging_up_the_terminal_by_force() {
    // On the host it would do what it says; to who has no terminal, it says that it did.
    let alone = format!("setsid --wait {} vhangup", CALLS.on_host().display());
    assert_eq!(crate::attacks::on_host(&alone).report().of("vhangup"), "done");
    refused_inside(&["vhangup"]).await;
}

/// The kernel loads a module for any process that asks a socket about a bridge, a virtual network or a frame relay.
#[tokio::test]
async fn loading_a_module_by_asking_a_socket() {
    const ASK: &str = "import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
one = socket.socket()
lo = ctypes.create_string_buffer(40); lo[16] = 1
def attempt(what, request, argument):
    print(what, 'done' if libc.ioctl(one.fileno(), ctypes.c_ulong(request), argument) == 0 else errno.errorcode[ctypes.get_errno()])
attempt('name', 0x8910, lo)
for what, request in [('bridges', 0x8940), ('set bridges', 0x8941), ('add bridge', 0x89a0), ('remove bridge', 0x89a1), ('vlan', 0x8982), ('set vlan', 0x8983), ('add relay', 0x8980), ('remove relay', 0x8981)]:
    attempt(what, request, None)
    attempt(what + ' with a high half', request | 1 << 32, None)";
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", ASK], SandboxPath::root());
        let report = inside.command(user, spec).await.report();
        // The control: a socket answers other questions.
        assert_eq!(report.of("name"), "done");
        for what in
            ["bridges", "set bridges", "add bridge", "remove bridge", "vlan", "set vlan", "add relay", "remove relay"]
        {
            assert_eq!(report.of(what), "EPERM", "{what} as {user}");
            assert_eq!(report.of(&format!("{what} with a high half")), "EPERM", "{what} as {user}");
        }
    }
    inside.end().await;
}

/// The kernel calls modprobe, of the host, for a socket of a protocol that it does not know by this kind, twice for each; and where it
/// has bpfilter, for who asks about tables of iptables. It answers as the filter does, but for raw sockets that root may have.
#[tokio::test]
async fn loading_a_module_by_making_a_socket() {
    const MAKE: &str = "import errno, socket as s
def attempt(what, call):
    try: call(); print(what, 'done')
    except OSError as e: print(what, errno.errorcode[e.errno])
for family in [s.AF_INET, s.AF_INET6]:
    name = 'v4' if family == s.AF_INET else 'v6'
    own, other = (1, 58) if name == 'v4' else (58, 1)
    def made(what, *args): attempt(name + ' ' + what, lambda: s.socket(family, *args))
    made('stream', s.SOCK_STREAM, 0); made('TCP', s.SOCK_STREAM, 6)
    made('datagram', s.SOCK_DGRAM, 0); made('UDP', s.SOCK_DGRAM, 17)
    for what, protocol in [('UDP', 17), ('ICMP', own), ('other ICMP', other), ('UDP-Lite', 136)]:
        made('stream of ' + what, s.SOCK_STREAM, protocol)
    for what, protocol in [('TCP', 6), ('other ICMP', other), ('UDP-Lite', 136)]:
        made('datagram of ' + what, s.SOCK_DGRAM, protocol)
    made('raw of nothing', s.SOCK_RAW, 0); made('raw of UDP', s.SOCK_RAW, 17)
one = s.socket()
attempt('a table', lambda: one.getsockopt(0, 64, 84)); attempt('its entries', lambda: one.getsockopt(0, 65, 84))
attempt('a new table', lambda: one.setsockopt(0, 64, bytes(84)))
attempt('an option', lambda: one.getsockopt(0, 2))";
    let control = crate::attacks::in_own(&["--net"], &format!("python3 - <<'EOF'\n{MAKE}\nEOF")).report();
    assert_eq!(control.of("v4 raw of UDP"), "done", "the kernel decides: {control:?}");
    assert_eq!(control.of("v4 raw of nothing"), "EPROTONOSUPPORT", "it knows none: {control:?}");
    assert_ne!(control.of("a table"), "EPERM");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", MAKE], SandboxPath::root());
        let report = inside.command(user, spec).await.report();
        for family in ["v4", "v6"] {
            for what in ["stream", "TCP", "datagram", "UDP"] {
                assert_eq!(report.of(&format!("{family} {what}")), "done", "{family} {what} as {user}");
            }
            for what in ["stream of UDP", "stream of ICMP", "stream of other ICMP", "stream of UDP-Lite"] {
                assert_eq!(report.of(&format!("{family} {what}")), "EPROTONOSUPPORT", "{family} {what} as {user}");
            }
            for what in ["datagram of TCP", "datagram of other ICMP", "datagram of UDP-Lite"] {
                assert_eq!(report.of(&format!("{family} {what}")), "EPROTONOSUPPORT", "{family} {what} as {user}");
            }
            assert_eq!(report.of(&format!("{family} raw of nothing")), "EPROTONOSUPPORT", "{family} as {user}");
            assert_eq!(report.of(&format!("{family} raw of UDP")), "EPERM", "{family} as {user}");
        }
        for what in ["a table", "its entries", "a new table"] {
            assert_eq!(report.of(what), "EPERM", "{what} as {user}");
        }
        assert_eq!(report.of("an option"), "done");
    }
    inside.end().await;
}

/// Pages that are merged tell by the time of a write what neighbours and virtual machines hold.
#[tokio::test]
async fn merging_memory_with_that_of_neighbours() {
    const MERGE: &str = "import ctypes, errno, mmap
libc = ctypes.CDLL(None, use_errno=True)
pages = mmap.mmap(-1, 16 * 4096)
at = ctypes.addressof(ctypes.c_char.from_buffer(pages))
def attempt(what, done):
    print(what, 'done' if done == 0 else errno.errorcode[ctypes.get_errno()])
attempt('other advice', libc.madvise(ctypes.c_void_p(at), 16 * 4096, 4))
attempt('merging pages', libc.madvise(ctypes.c_void_p(at), 16 * 4096, 12))
attempt('merging a process', libc.prctl(67, 1, 0, 0, 0))";
    // The host's kernel merges on demand, or knows of no such thing.
    let host = crate::attacks::Ran::of(std::process::Command::new("python3").args(["-c", MERGE])).report();
    host.none_refused(&["EPERM"]);
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", MERGE], SandboxPath::root());
        let report = inside.command(user, spec).await.report();
        assert_eq!(report.of("other advice"), "done");
        assert_eq!((report.of("merging pages"), report.of("merging a process")), ("EPERM", "EPERM"), "as {user}");
    }
    inside.end().await;
}
