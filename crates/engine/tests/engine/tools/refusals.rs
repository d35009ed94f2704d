//! What does not work inside, as docs/guides/inside.md says, with what one sees.

use super::fails;
use crate::inside::Inside;

#[tokio::test]
async fn nested_sandboxes_and_containers_do_not_start() {
    let tries = [
        ("bwrap --ro-bind / / true", "No permissions to create new namespace"),
        ("unshare --user --map-root-user true", "Operation not permitted"),
        ("docker ps", "Cannot connect to the Docker daemon"),
    ];
    fails("user", &tries).await;
    let daemon = "timeout 50 dockerd --data-root /tmp/d --exec-root /tmp/e -H unix:///tmp/s";
    fails("root", &[(daemon, "failed to start daemon"), ("unshare --mount true", "Operation not permitted")]).await;
}

#[tokio::test]
async fn there_are_no_devices_and_file_systems_to_mount() {
    let tries = [
        ("mount -t tmpfs none /mnt", "permission denied"),
        ("ls /dev/fuse", "No such file or directory"),
        ("ls /dev/kvm", "No such file or directory"),
        ("ls /dev/net/tun", "No such file or directory"),
        ("losetup -f", "No such device"),
        ("mknod /tmp/null c 1 3", "Operation not permitted"),
    ];
    fails("root", &tries).await;
}

#[tokio::test]
async fn process_1_is_not_debugged() {
    let inside = Inside::new().await;
    let said = inside.root("gdb -nx --batch -p 1 2>&1").await.out;
    assert!(said.contains("ptrace: Operation not permitted."), "{said}");
    inside.end().await;
}

#[tokio::test]
async fn the_machine_is_not_set_from_inside() {
    let tries = [
        ("date -s 2001-02-03", "Operation not permitted"),
        ("hostname other", ""),
        ("sysctl -w vm.swappiness=1", ""),
        ("dmesg", "Operation not permitted"),
        ("chrt -f 5 true", "Operation not permitted"),
        ("renice -n -5 $$", "Permission denied"),
        ("ulimit -Hn 2000000", "Operation not permitted"),
        ("touch /tmp/f && chattr +i /tmp/f", "Operation not supported"),
        // What systemctl looks for before it says that there is no systemd.
        ("ls /run/systemd/system", "No such file or directory"),
    ];
    fails("root", &tries).await;
}

#[tokio::test]
async fn raw_and_packet_sockets_and_firewalls_are_refused() {
    let socket = |arguments: &str| format!("python3 -c 'from socket import *; socket({arguments})'");
    let (raw, packet) = (socket("AF_INET, SOCK_RAW, IPPROTO_ICMP"), socket("AF_PACKET, SOCK_RAW"));
    let echo = socket("AF_INET, SOCK_DGRAM, IPPROTO_ICMP");
    let netfilter = socket("AF_NETLINK, SOCK_RAW, 12");
    let tries = [
        ("ping -c 1 -w 1 127.0.0.1", "Operation not permitted"),
        (raw.as_str(), "Operation not permitted"),
        (echo.as_str(), "Permission denied"),
        (packet.as_str(), "Address family not supported"),
        (netfilter.as_str(), "Protocol not supported"),
        ("ip link add probe type dummy", "Operation not permitted"),
    ];
    fails("root", &tries).await;
}

/// By the call itself: the tools are not on every machine.
#[tokio::test]
async fn the_kernels_newer_doors_are_shut() {
    let calls = r#"
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
intel = platform.machine() == "x86_64"
for name, x86, arm, arguments in [
    ("io_uring_setup", 425, 425, (1, 0)), ("io_setup", 206, 0, (1, 0)), ("perf_event_open", 298, 241, (0, 0, -1, -1, 0)),
    ("userfaultfd", 323, 282, (0,)), ("bpf", 321, 280, (0, 0, 0)), ("keyctl", 250, 219, (0, 0)),
    ("finit_module", 313, 273, (0, 0, 0)), ("fanotify_init", 300, 262, (0, 0)), ("memfd_secret", 447, 447, (0,)),
    ("PR_SCHED_CORE", 157, 167, (62, 1, 0, 0, 0)), ("TCP_ULP", 54, 208, (0, 6, 31, 0, 0)),
]:
    done = libc.syscall(*(ctypes.c_long(n) for n in ((x86 if intel else arm), *arguments)))
    print(name, done if done >= 0 else errno.errorcode[ctypes.get_errno()])
"#;
    let inside = Inside::new().await;
    let expected = [
        "io_uring_setup ENOSYS",
        "io_setup ENOSYS",
        "perf_event_open EPERM",
        "userfaultfd EPERM",
        "bpf EPERM",
        "keyctl EPERM",
        "finit_module EPERM",
        "fanotify_init EPERM",
        "memfd_secret ENOSYS",
        "PR_SCHED_CORE EPERM",
        "TCP_ULP EPERM",
    ];
    assert_eq!(inside.python("root", calls).await.ok().lines().collect::<Vec<_>>(), expected);
    inside.end().await;
}

/// The smallest program of 32-bit x86: it would end with 7.
#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn a_32_bit_program_is_ended_at_its_first_call() {
    let write = r#"
import os, struct
code = bytes([0x31, 0xc0, 0x40, 0xb3, 0x07, 0xcd, 0x80])  # xor eax, eax; inc eax; mov bl, 7; int 0x80
at, size = 0x08048000, 52 + 32 + len(code)
header = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, at + 84, 52, 0, 0, 52, 32, 1, 0, 0, 0)
segment = struct.pack("<IIIIIIII", 1, 0, at, at, size, size, 5, 4096)
open("/tmp/small", "wb").write(header + segment + code)
os.chmod("/tmp/small", 0o755)
"#;
    let inside = Inside::new().await;
    inside.python("user", write).await.ok();
    let ended = inside.user("/tmp/small; echo $?").await.ok();
    // 31 is SIGSYS; a kernel without 32-bit support does not start the program at all.
    assert!(["159", "126"].contains(&ended.as_str()), "{ended}");
    inside.end().await;
}

#[tokio::test]
async fn what_is_not_there_is_told_and_what_shows_the_machine_does() {
    let inside = Inside::new().await;
    assert_eq!(
        inside.root("ls -A /sys | wc -l; df -k --output=size /dev/shm | tail -1 | xargs").await.ok(),
        "0\n262144"
    );
    let said = inside.user("dd if=/dev/zero of=/dev/shm/full bs=1M count=257 status=none").await.refused();
    assert!(said.contains("No space left on device"), "{said}");
    let cpus = std::thread::available_parallelism().unwrap().to_string();
    assert_eq!(inside.user("nproc").await.ok(), cpus);
    let said = inside.user("lscpu").await.refused();
    assert!(said.contains("/sys/devices/system/cpu"), "{said}");
    assert!(inside.user("ss -ltn 2>/dev/null").await.ok().starts_with("State"), "by /proc");
    inside.end().await;
}
