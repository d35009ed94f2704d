//! Other sandboxes' ports, abstract sockets of the host, what is not TCP, and who pretends to be somebody else.

use std::{
    net::UdpSocket,
    os::{linux::net::SocketAddrExt as _, unix::net},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use cabana_sandbox::{NetworkPolicy, Provider};
use cabana_testkit::world::{Web, in_world};

use crate::{
    attacks::MASQUERADE,
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
            let serve = "import socket, sys\nl = socket.create_server(('::', 8765), family=socket.AF_INET6, dualstack_ipv6=True)\nopen('/tmp/up', 'w')\nwhile True:\n  c, who = l.accept(); open('/tmp/came', 'w'); c.recv(4096); c.sendall(b'served'); c.close()";
            victim.user(&format!("setsid python3 -c \"{serve}\" >/dev/null 2>&1 &")).await.ok();
            until("it listens", async || victim.user("test -e /tmp/up && echo up").await.out.contains("up")).await;
            let attacker = beside(&engine, policy).await;
            let hosts = ["127.0.0.1", "[::1]", "198.18.0.1", "[fdca:ba2a:6e63::1]", "10.77.0.1", "93.184.216.1"];
            let ways = ["plain", "connect", "absolute", "socks"];
            let targets: Vec<String> =
                hosts.iter().flat_map(|host| ways.map(|way| format!("{way}={host}:8765"))).collect();
            none_served(&reach(&attacker, &targets).await);
            victim.user("test ! -e /tmp/came").await.ok();
            let own = reach(&victim, &["plain=127.0.0.1:8765".to_owned()]).await;
            assert_eq!(own[0].1, "served", "who is inside reaches it");
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
        assert_eq!(crate::attacks::on_host(&format!("python3 - <<'EOF'\n{code}\nEOF")).ok(), "in");
        assert!(listener.accept().is_ok(), "who is on the host reaches it");
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
            "import select, socket
asked = []
for host, family in [('{SITE_ADDRESS}', socket.AF_INET), ('2606:2800:220:1::34', socket.AF_INET6), ('10.77.0.1', socket.AF_INET)]:
  for port in [123, 443, 53]:
    s = socket.socket(family, socket.SOCK_DGRAM)
    try: s.connect((host, port)); s.send(b'x' * 40); s.send(b'x' * 40); asked.append(s)
    except OSError as e: print(type(e).__name__)
while ready := select.select(asked, [], [], 0.5)[0]:
  for s in ready:
    try: print(s.recv(99))
    except OSError as e: print(type(e).__name__); asked.remove(s)"
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
        let heard = crate::attacks::on_host(&format!("python3 - <<'EOF'\n{code}\nEOF\nping -c 1 -W 1 {SITE_ADDRESS}"));
        assert!(heard.out.contains("heard") && heard.out.contains("1 received"), "the host is answered: {heard:?}");
    });
}

#[test]
fn a_network_of_ones_own_beside_the_redirect() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let inside = sandbox(NetworkPolicy::Public).await;
        // As a sandbox's, where who commands is the root of it.
        let prepare =
            "ip link set lo up && ip route add local 0.0.0.0/0 dev lo table local && nft add table inet cabana";
        for command in [
            "ip route add 10.0.0.0/8 dev lo",
            "ip route del local 0.0.0.0/0 dev lo table local",
            "ip address add 10.9.9.9/8 dev lo",
            "ip link add x type veth",
            "ip tuntap add x mode tun",
            "nft flush ruleset",
            "nft delete table inet cabana",
            "unshare --net true",
            "unshare --user --net true",
            "nsenter --net=/proc/$$/ns/net true",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
        ] {
            crate::attacks::in_own(&["--net"], &format!("{prepare} && {command}")).ok();
            let ran = inside.root(command).await;
            assert!(ran.status != cabana_sandbox::Status::Code(0), "{command}: {ran:?}");
        }
        inside.root("nsenter --net=/proc/1/ns/net true").await.refused();
        let targets = ["plain=10.1.2.3:80".to_owned(), "plain=10.77.0.1:80".to_owned()];
        none_served(&reach(&inside, &targets).await);
        assert_eq!(inside.user(&format!("curl -sS http://{SITE}/")).await.ok(), "served");
        servers.are_untouched();
        inside.end().await;
    });
}

/// Every address is local inside, and free to be taken: so the rules alone say who answers.
#[test]
fn the_address_of_a_site_taken_by_a_guest() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let inside = sandbox(NetworkPolicy::Public).await;
        for user in ["user", "root"] {
            inside.attack(user, &MASQUERADE, &["rights"]).await.report().all_refused(&["EPERM"]);
            for port in ["65501", "65504"] {
                inside.attack(user, &MASQUERADE, &["share", port]).await.report().all_refused(&["EADDRINUSE"]);
            }
        }
        for (host, own) in [(SITE_ADDRESS, "127.0.0.9"), ("2606:2800:220:1::34", "fdca:ba2a:6e63::1")] {
            let _forger = inside.start("root", &MASQUERADE, &["serve", host, "80"]).await;
            let from = [0, 53, 65400, 65501, 65504].map(|port| format!("{own}:{port}"));
            let words = ["reach", "50", host, "80"].into_iter().chain(from.iter().map(String::as_str));
            let report = inside.attack("root", &MASQUERADE, &Vec::from_iter(words)).await.report();
            assert!(from.iter().all(|from| report.of(from) == "served"), "{report:?}");
            // Itself it reaches, of course.
            let report = inside.attack("root", &MASQUERADE, &["reach", "50", own, "80", &from[0]]).await.report();
            assert_eq!(report.of(&from[0]), "forged");
        }
        inside.end().await;
        servers.are_untouched();
    });
}

#[test]
fn inner_addresses_from_the_ports_and_addresses_of_others() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let inside = sandbox(NetworkPolicy::Public).await;
        let own = ["127.0.0.9:53", "198.18.0.1:53", "93.184.216.34:53", "10.1.2.3:80", "10.77.0.1:65501", "8.8.8.8:53"];
        for host in ["10.1.2.3", "169.254.169.254", "10.77.0.1"] {
            let words: Vec<&str> = ["reach", "1", host, "80"].into_iter().chain(own).collect();
            let report = inside.attack("root", &MASQUERADE, &words).await.report();
            assert!(own.iter().all(|from| report.of(from) != "served"), "{report:?}");
        }
        servers.are_untouched();
        let free = sandbox(NetworkPolicy::Host).await;
        let reached = reach(&free, &["plain=10.1.2.3:80".to_owned(), "plain=169.254.169.254:80".to_owned()]).await;
        assert!(reached.iter().all(|(_, what)| what == "served"), "a policy that refuses nothing: {reached:?}");
        free.end().await;
        inside.end().await;
    });
}

/// Who connects to the listener itself must not be taken for one that goes to the host's loopback.
#[test]
fn the_listener_of_the_redirect_called_by_its_own_address() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let there = Web::on_host(65501);
        let inside = sandbox(NetworkPolicy::Host).await;
        for (host, own) in [("127.0.0.1", ["127.0.0.1:0", "127.0.0.9:53"]), ("::1", ["::1:0", "fdca:ba2a:6e63::1:53"])]
        {
            let words: Vec<&str> = ["reach", "50", host, "65501"].into_iter().chain(own).collect();
            inside.attack("root", &MASQUERADE, &words).await.report().all_refused(&["ECONNRESET"]);
        }
        inside.end().await;
        there.is_untouched();
        servers.are_untouched();
    });
}
