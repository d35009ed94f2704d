//! Floods: of connections, of questions, of ports. The neighbour and the server go on.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use cabana_sandbox::{ExecSpec, NetworkPolicy, Provider, SandboxPath, Wanted};
use cabana_testkit::world::{World, in_world};

use crate::{
    inside::{Inside, engine, until},
    network::{SITE, Servers, beside},
};

/// Accepts on port 7000 and says nothing until the other side ends.
fn holder(world: &World) {
    world.inside(|| {
        let listener = TcpListener::bind(("::", 7000)).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
            }
        });
    });
}

async fn fetches(inside: &Inside) {
    let said = inside.user(&format!("curl -sS --max-time 50 http://{SITE}/")).await.ok();
    assert_eq!(said, "served");
}

/// Runs the flood in one sandbox; while it lasts, and afterwards, a neighbour and new sandboxes have their network.
/// The script counts in `sent` what it has sent or held, and gives up a few of `held` in the end; it must have come to `most`.
async fn flood(most: u32, code: &str) {
    let engine = engine().await;
    let attacker = beside(&engine, NetworkPolicy::Public).await;
    let neighbour = beside(&engine, NetworkPolicy::Public).await;
    fetches(&neighbour).await;
    attacker
        .user(&format!(
            "cat >/tmp/flood.py <<'EOF'\n{code}\ndel held[-9:]; open('/tmp/up', 'w').write(str(sent))\nimport time; time.sleep(600)\nEOF"
        ))
        .await
        .ok();
    attacker.user("setsid python3 /tmp/flood.py >/tmp/log 2>&1 &").await.ok();
    until("the flood is at its height", async || {
        fetches(&neighbour).await;
        attacker.user("test -s /tmp/up && echo up").await.out.contains("up")
    })
    .await;
    let sent: u32 = attacker.user("cat /tmp/up").await.ok().parse().unwrap();
    assert!(sent >= most, "a flood of {sent}");
    fetches(&neighbour).await;
    let newcomer = beside(&engine, NetworkPolicy::Public).await;
    fetches(&newcomer).await;
    attacker.user("pkill -f flood.py").await.ok();
    until("the attacker itself has a network again", async || {
        attacker.user(&format!("curl -sS --max-time 50 http://{SITE}/")).await.out == "served"
    })
    .await;
    // A change still gets through.
    attacker.sandbox.update(Wanted::Network(NetworkPolicy::Off)).await.unwrap();
    for inside in [attacker, neighbour, newcomer] {
        engine.destroy(inside.sandbox.id()).await.unwrap();
    }
    engine.close().await;
}

#[test]
fn a_flood_of_connections_that_are_held_open() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        holder(&world);
        flood(
            2_000,
            "import resource, socket\nhard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\nresource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\nheld = []\nfor number in range(3000):\n  s = socket.socket(); s.setblocking(False)\n  s.connect_ex(('93.184.216.34', 7000)); held.append(s)\nsent = len(held)",
        )
        .await;
        servers.are_untouched();
    });
}

/// A connection is made when the proxy has come to it, and may be reset then: each is tried until it is one or the other.
const HALF_REQUESTS: &str = "import resource, socket, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
def calling(number):
  s = socket.socket(); s.setblocking(False)
  s.connect_ex(('127.0.0.1', 65502 + number % 2)); return s
held, sent, calls = [], 0, [calling(number) for number in range(2000)]
deadline = time.monotonic() + 60
while sent < 300 and time.monotonic() < deadline:
  waiting = []
  for s in calls:
    try: sent += s.send(b'GET http://') > 0; held.append(s)
    except BlockingIOError: waiting.append(s)
    except OSError: pass
  calls = waiting or [calling(number) for number in range(500)]
  time.sleep(0.01)";

#[test]
fn a_flood_of_half_requests_to_the_proxies() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        flood(300, HALF_REQUESTS).await;
        servers.are_untouched();
    });
}

#[test]
fn a_flood_of_questions_for_names() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        flood(
            10_000,
            "import os, socket\nheld, sent = [], 0\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setblocking(False)\nfor number in range(20000):\n  label = os.urandom(8).hex().encode()\n  try: sent += 0 < s.sendto(b'\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0' + bytes([len(label)]) + label + b'\\7example\\0\\0\\1\\0\\1', ('127.0.0.1', 53))\n  except OSError: pass",
        )
        .await;
        servers.are_untouched();
    });
}

/// Each is one that the kernel could remember: a question to another server, and a connection of IPv6 to another address.
const BEGINNINGS: &str = "import socket
held, sent = [], 0
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(20000):
  try: sent += asker.sendto(b'word', ('93.184.%d.%d' % (number >> 8, number & 255), 53)) > 0
  except PermissionError: sent += 1 # it came too fast
  s = socket.socket(socket.AF_INET6); s.setblocking(False)
  sent += s.connect_ex(('2001:db8::%x' % number, 443)) in (0, 115); s.close()
tracked = int(open('/proc/sys/net/netfilter/nf_conntrack_count').read())
assert 1000 < tracked < 15000, tracked";

#[test]
fn a_flood_of_questions_and_connections_that_the_kernel_would_remember() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        flood(30_000, BEGINNINGS).await;
        servers.are_untouched();
    });
}

#[test]
fn a_flood_of_ports_that_are_taken() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        flood(
            2_000, // each by a broker
            "import resource, socket\nhard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\nresource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\nheld = []\ntry:\n  for port in range(30000, 65536, 11):\n    s = socket.socket()\n    try: s.bind(('0.0.0.0', port)); held.append(s); len(held) > 300 or s.listen(1)\n    except PermissionError: pass\n    except OSError as e:\n      if e.errno == 24: break\nexcept OSError: pass\nsent = len(held)",
        )
        .await;
        servers.are_untouched();
    });
}

#[test]
fn a_flood_of_network_namespaces() {
    crate::attacks::on_host("unshare --net true && unshare --user --net true").ok(); // where nothing stops it
    in_world(async |world| {
        let servers = Servers::new(&world);
        flood(
            10_000,
            "import ctypes\nheld, sent = [], 0\nlibc = ctypes.CDLL(None)\nNET, USER = 0x40000000, 0x10000000\nfor number in range(5000):\n  for flags in [NET, NET | USER]:\n    assert libc.unshare(flags) == -1; sent += 1",
        )
        .await;
        servers.are_untouched();
    });
}

const MIB: usize = 1 << 20;

/// Sends on port 7001 until nothing more is taken, or `most` are, and tells how much that was.
fn sender(world: &World, most: usize) -> Receiver<usize> {
    let (tell, told) = channel();
    world.inside(move || {
        let listener = TcpListener::bind(("::", 7001)).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let tell = tell.clone();
                std::thread::spawn(move || {
                    // Little of it waits on this side.
                    rustix::net::sockopt::set_socket_send_buffer_size(&stream, 64 << 10).unwrap();
                    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
                    let mut sent = 0;
                    while sent < most
                        && let Ok(written) = stream.write(&[0; 64 << 10])
                    {
                        sent += written;
                    }
                    tell.send(sent).unwrap();
                    let _ = stream.read(&mut [0]);
                });
            }
        });
    });
    told
}

/// Whatever waits of a connection is counted for the whole machine: with some hundred that wait for megabytes, it has no room for others.
#[test]
fn a_connection_of_which_nothing_is_read_holds_little_of_the_machines_memory() {
    const MOST: usize = 64 * MIB;
    const READ: &str = "import socket, sys, time
s = socket.create_connection(('93.184.216.34', 7001)); left = int(sys.argv[1])
while left and (got := s.recv(min(left, 1 << 20))): left -= len(got)
time.sleep(600)";
    in_world(async |world| {
        let servers = Servers::new(&world);
        let told = sender(&world, MOST);
        let inside = beside(&engine().await, NetworkPolicy::Public).await;
        for (read, held) in [(0, MIB), (24 * MIB, 3 * MIB), (MOST, 0)] {
            let spec = ExecSpec::argv(["python3", "-c", READ, &read.to_string()], SandboxPath::root());
            let running = inside.sandbox.exec(spec).await.unwrap();
            let sent = tokio::task::block_in_place(|| told.recv()).unwrap();
            assert!(sent >= read && sent - read <= held, "{} of {sent} bytes wait, {read} were read", sent - read);
            drop(running);
        }
        inside.end().await;
        servers.are_untouched();
    });
}

/// The same the other way round.
#[test]
fn a_connection_whose_server_reads_nothing_holds_little_of_the_machines_memory() {
    const SEND: &str = "import socket
s = socket.create_connection(('93.184.216.34', 7000)); s.settimeout(2); sent = 0
try:
    while sent < 64 << 20: sent += s.send(bytes(64 << 10))
except TimeoutError: pass
print(sent)";
    in_world(async |world| {
        let servers = Servers::new(&world);
        world.inside(|| {
            let listener = TcpListener::bind(("::", 7000)).unwrap();
            std::thread::spawn(move || listener.incoming().map_while(Result::ok).collect::<Vec<_>>());
        });
        let inside = beside(&engine().await, NetworkPolicy::Public).await;
        let spec = ExecSpec::argv(["python3", "-c", SEND], SandboxPath::root());
        let sent: usize = inside.command("user", spec).await.ok().parse().unwrap();
        assert!((1..=MIB).contains(&sent), "{sent} bytes wait");
        inside.end().await;
        servers.are_untouched();
    });
}
