//! Other sandboxes' ports, abstract sockets of the host, and what is not TCP.

use std::{
    net::UdpSocket,
    os::{linux::net::SocketAddrExt as _, unix::net},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use cabana_sandbox::{NetworkPolicy, Provider};
use cabana_testkit::world::in_world;

use crate::{
    inside::{engine, unique, until},
    network::{SITE, SITE_ADDRESS, Servers, allow, beside, none_served, reach, sandbox},
};

#[test]
fn another_sandboxs_ports() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let engine = engine().await;
        for policy in [NetworkPolicy::Public, allow(&["0.0.0.0/0", "::/0"]), NetworkPolicy::Host] {
            let victim = beside(&engine, policy.clone()).await;
            let serve = "import socket, sys\nl = socket.create_server(('::', 8765), family=socket.AF_INET6, dualstack_ipv6=True)\nopen('/tmp/up', 'w')\nwhile True:\n  c, who = l.accept(); open('/tmp/came', 'w'); c.sendall(b'served')";
            victim.user(&format!("setsid python3 -c \"{serve}\" >/dev/null 2>&1 &")).await.ok();
            until("it listens", async || victim.user("test -e /tmp/up && echo up").await.out.contains("up")).await;
            let attacker = beside(&engine, policy).await;
            let hosts = ["127.0.0.1", "[::1]", "198.18.0.1", "[fdca:ba2a:6e63::1]", "10.77.0.1", "93.184.216.1"];
            let ways = ["plain", "connect", "absolute", "socks"];
            let targets: Vec<String> =
                hosts.iter().flat_map(|host| ways.map(|way| format!("{way}={host}:8765"))).collect();
            none_served(&reach(&attacker, &targets).await);
            victim.user("test ! -e /tmp/came").await.ok();
            for inside in [victim, attacker] {
                engine.destroy(inside.sandbox.id()).await.unwrap();
            }
        }
        servers.are_untouched();
        engine.close().await;
    });
}

#[test]
fn abstract_sockets_of_the_host() {
    in_world(async |_| {
        let name = unique("cabana-abstract");
        let listener = net::UnixListener::bind_addr(&net::SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let code = format!(
            "import socket\ntry: socket.socket(socket.AF_UNIX).connect(chr(0) + '{name}'); print('in')\nexcept OSError as e: print(type(e).__name__)"
        );
        for policy in [NetworkPolicy::Off, NetworkPolicy::Public, NetworkPolicy::Host] {
            let inside = sandbox(policy).await;
            let said = inside.root(&format!("python3 - <<'EOF'\n{code}\nEOF")).await.ok();
            assert_eq!(said, "ConnectionRefusedError");
            inside.end().await;
        }
        assert!(listener.accept().is_err());
    });
}

#[test]
fn datagrams_and_pings_to_the_world() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let came = Arc::new(AtomicUsize::new(0));
        for port in [53, 123, 443] {
            let came = came.clone();
            world.inside(move || {
                let socket = UdpSocket::bind((SITE_ADDRESS, port)).unwrap();
                std::thread::spawn(move || {
                    while let Ok((_, from)) = socket.recv_from(&mut [0; 2000]) {
                        came.fetch_add(1, Ordering::SeqCst);
                        let _ = socket.send_to(b"heard", from);
                    }
                });
            });
        }
        let code = format!(
            "import socket\nfor host, family in [('{SITE_ADDRESS}', socket.AF_INET), ('2606:2800:220:1::34', socket.AF_INET6), ('10.77.0.1', socket.AF_INET)]:\n  for port in [123, 443, 53]:\n    s = socket.socket(family, socket.SOCK_DGRAM); s.settimeout(1)\n    try:\n      s.sendto(b'x' * 40, (host, port)); s.sendto(b'x' * 40, (host, port)); print(s.recv(99))\n    except OSError as e: print(type(e).__name__)"
        );
        for policy in [NetworkPolicy::Public, NetworkPolicy::Host, NetworkPolicy::Off] {
            let inside = sandbox(policy).await;
            for user in ["user", "root"] {
                let script = format!("python3 - <<'EOF'\n{code}\nEOF");
                let said = if user == "root" { inside.root(&script).await } else { inside.user(&script).await };
                assert!(!said.ok().contains("heard"));
            }
            for to in [SITE_ADDRESS, "2606:2800:220:1::34", "10.77.0.1"] {
                let said = inside.root(&format!("ping -c 1 -W 1 {to}")).await;
                assert!(!said.out.contains("1 received"), "{to}: {said:?}");
            }
            inside.end().await;
        }
        assert_eq!(came.load(Ordering::SeqCst), 0);
        servers.are_untouched();
    });
}

#[test]
fn a_network_of_ones_own_beside_the_redirect() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let inside = sandbox(NetworkPolicy::Public).await;
        for command in [
            "ip route add 10.0.0.0/8 dev lo",
            "ip route del local 0.0.0.0/0 dev lo table local",
            "ip address add 10.9.9.9/8 dev lo",
            "ip link add x type dummy",
            "ip link add x type veth",
            "ip tuntap add x mode tun",
            "nft flush ruleset",
            "nft delete table inet cabana",
            "unshare --net true",
            "unshare --user --net true",
            "nsenter --net=/proc/1/ns/net true",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
        ] {
            let ran = inside.root(command).await;
            assert!(ran.status != cabana_sandbox::Status::Code(0), "{command}: {ran:?}");
        }
        let targets = ["plain=10.1.2.3:80".to_owned(), "plain=10.77.0.1:80".to_owned()];
        none_served(&reach(&inside, &targets).await);
        assert_eq!(inside.user(&format!("curl -sS http://{SITE}/")).await.ok(), "served");
        servers.are_untouched();
        inside.end().await;
    });
}
