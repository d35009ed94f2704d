//! Options of sockets that reach further than the socket.

use cabana_sandbox::{ExecSpec, NetworkPolicy, SandboxSpec};

use crate::{
    attacks::in_own,
    inside::{Inside, passing, path},
};

const OPTIONS: &str = "import errno, socket, struct
def tries(name, family, kind, level, option, value):
    s = socket.socket(family, kind)
    try: s.setsockopt(level, option, value); print(name, 'done')
    except OSError as e: print(name, errno.errorcode.get(e.errno, e.errno))
inet, stream, dgram, top = socket.AF_INET, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOL_SOCKET
tries('mark', inet, dgram, top, 36, struct.pack('i', 7))
tries('priority', inet, dgram, top, 12, struct.pack('i', 7))
tries('receive buffer by force', inet, dgram, top, 33, struct.pack('i', 1 << 26))
tries('send buffer by force', inet, dgram, top, 32, struct.pack('i', 1 << 26))
tries('debugging', inet, dgram, top, 1, struct.pack('i', 1))
tries('transparent', inet, stream, 0, 19, struct.pack('i', 1))
tries('repair', inet, stream, 6, 19, struct.pack('i', 1))
tries('a routing header', socket.AF_INET6, dgram, 41, 57, bytes(8))
tries('policy', inet, dgram, 0, 16, bytes(200))";

#[tokio::test]
async fn options_that_take_rights_over_the_network() {
    let control = in_own(&["--net"], &format!("python3 - <<'EOF'\n{OPTIONS}\nEOF")).report();
    for what in ["mark", "priority", "receive buffer by force", "transparent", "repair"] {
        assert_eq!(control.of(what), "done", "root of a network of its own may: {control:?}");
    }
    for network in [NetworkPolicy::Off, NetworkPolicy::Public] {
        let inside = Inside::with(SandboxSpec { network, ..passing() }).await;
        for user in ["root", "user"] {
            let report = inside.command(user, ExecSpec::argv(["python3", "-c", OPTIONS], path("/"))).await.report();
            report.nothing_done();
        }
        inside.end().await;
    }
}

/// Filters of sockets are compiled into memory that the whole machine has so much of (net.core.bpf_jit_limit). Who takes all of
/// it keeps the filter of the next sandbox, which is its wall, from being made.
#[tokio::test]
async fn filters_of_sockets_that_fill_the_room_for_everybodys() {
    let script = "import ctypes, errno, resource, socket, struct, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
many = int(sys.argv[1])
# A division is long in machine code.
code = struct.pack('HBBI', 0x34, 0, 0, 3) * 4095 + struct.pack('HBBI', 6, 0, 0, 0xffffffff)
place = ctypes.create_string_buffer(code, len(code))
program = struct.pack('HxxxxxxP', 4096, ctypes.addressof(place))
for name, kind, option in [('filter', socket.SOCK_DGRAM, 26), ('choosing a socket', socket.SOCK_STREAM, 51)]:
    held, said = [], 'done'
    for number in range(many):
        s = socket.socket(socket.AF_INET, kind)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if option == 51: s.bind(('127.0.0.1', 0)); s.listen()
        try: s.setsockopt(socket.SOL_SOCKET, option, program)
        except OSError as e: said = errno.errorcode[e.errno]; break
        held.append(s)
    print(name, said)";
    // A few are enough to see that they can be had; 9,500 of them are all that there is room for.
    let control = in_own(&["--net"], &format!("ip link set lo up; python3 - 20 <<'EOF'\n{script}\nEOF")).report();
    control.all_done();
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["python3", "-c", script, "20"], path("/"));
        inside.command(user, spec).await.report().nothing_done();
    }
    inside.end().await;
}
