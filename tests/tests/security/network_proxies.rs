//! The proxies' own protocols, used to reach what they would refuse: another host behind an allowed one, a second request
//! behind a first, a target that two readers read differently.

use cabana_sandbox::NetworkPolicy;
use cabana_testkit::world::in_world;

use crate::{
    inside::Inside,
    network::{SITE, Servers, allow, sandbox},
};

/// What no proxy says, and so ends what it said.
const END: &str = "<<end>>";

/// Sends bytes to a port of the sandbox's own, and says what comes back.
async fn send(inside: &Inside, port: u16, bytes: &[u8]) -> String {
    send_all(inside, port, &[bytes]).await.remove(0)
}

/// The same for each of them, one connection after the other.
async fn send_all(inside: &Inside, port: u16, requests: &[impl AsRef<[u8]>]) -> Vec<String> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let hex: Vec<_> = requests.iter().map(|bytes| hex(bytes.as_ref())).collect();
    let code = format!(
        "import socket
for text in '{}'.split(','):
  out = b''
  try:
    s = socket.create_connection(('127.0.0.1', {port}), 50)
    s.sendall(bytes.fromhex(text))
    while p := s.recv(65536): out += p
  except OSError as e: out += type(e).__name__.encode()
  print(out.decode(errors='replace'), end='{END}')",
        hex.join(",")
    );
    let said = inside.user(&format!("python3 - <<'EOF'\n{code}\nEOF")).await.ok();
    let said: Vec<_> = said.split_terminator(END).map(str::to_owned).collect();
    assert_eq!(said.len(), requests.len(), "{said:?}");
    said
}

/// The control of those who look for the word among what came to the world: one that is allowed brings it there.
async fn evil_is_seen_where_it_is_allowed(inside: &Inside, servers: &Servers) {
    send(inside, 65502, format!("GET http://{SITE}/evil HTTP/1.1\r\nHost: {SITE}\r\n\r\n").as_bytes()).await;
    assert!(servers.world.seen().iter().any(|(_, text)| text.contains("evil")));
}

#[test]
fn an_allowed_tunnel_with_another_tls_name() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let tls = world.web(443);
        let inside = sandbox(allow(&[SITE])).await;
        let hello = |way: &str, name: &str| {
            let connect = match way {
                "proxy" => format!(
                    "s = socket.create_connection(('127.0.0.1', 65502), 50); s.sendall(b'CONNECT {SITE}:443 HTTP/1.1\\r\\nHost: {SITE}:443\\r\\n\\r\\n'); assert b' 200 ' in s.recv(4096)"
                ),
                "socks" => format!(
                    "s = socket.create_connection(('127.0.0.1', 65503), 50); s.sendall(b'\\x05\\x01\\x00\\x05\\x01\\x00\\x03\\x0c{SITE}\\x01\\xbb'); answer = b''.join(s.recv(1) for _ in range(12)); assert answer[3] == 0, answer"
                ),
                _ => format!("s = socket.create_connection(('{SITE}', 443), 50)"),
            };
            format!(
                "python3 - <<'EOF'\nimport socket, ssl\n{connect}\nc = ssl._create_unverified_context()\ntry: c.wrap_socket(s, server_hostname='{name}')\nexcept (OSError, ssl.SSLError) as e: print(type(e).__name__)\nEOF"
            )
        };
        for way in ["proxy", "socks", "plain"] {
            inside.user(&hello(way, "evil.example")).await.ok();
            inside.user(&hello(way, "sub.site.example")).await.ok();
        }
        let seen = tls.seen();
        assert!(seen.iter().all(|(_, text)| text.is_empty()), "{seen:?}");
        for way in ["proxy", "socks", "plain"] {
            inside.user(&hello(way, SITE)).await.ok();
        }
        let through = tls.seen().iter().filter(|(_, text)| text.contains(SITE)).count();
        assert_eq!(through, 3, "its own name passes");
        servers.are_untouched();
        inside.end().await;
    });
}

#[test]
fn an_allowed_connection_with_another_http_host() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let inside = sandbox(allow(&[SITE])).await;
        let tunnel = format!("CONNECT {SITE}:80 HTTP/1.1\r\nHost: {SITE}:80\r\n\r\n");
        let own = send(&inside, 65502, format!("{tunnel}GET / HTTP/1.1\r\nHost: {SITE}\r\n\r\n").as_bytes()).await;
        assert!(own.ends_with("served"), "its own name passes: {own}");
        let requests = [
            "GET /evil HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            "GET http://evil.example/evil HTTP/1.1\r\nHost: site.example\r\n\r\n",
            "GET /evil HTTP/1.1\r\nHost: site.example\r\nHost: evil.example\r\n\r\n",
            "GET /evil HTTP/1.1\nHost: evil.example\n\n",
            "\r\nGET /evil HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            "GET /evil HTTP/1.1\r\nHost : evil.example\r\nHost: site.example\r\n\r\n",
            "CONNECT evil.example:443 HTTP/1.1\r\nHost: site.example\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nevil",
            "PROXY TCP4 10.1.2.3 10.1.2.3 1 2\r\nGET /evil HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        ];
        send_all(&inside, 65502, &requests.map(|request| format!("{tunnel}{request}"))).await;
        let seen = servers.world.seen();
        assert!(seen.iter().all(|(_, text)| !text.contains("evil")), "{seen:?}");
        evil_is_seen_where_it_is_allowed(&inside, &servers).await;
        servers.are_untouched();
        inside.end().await;
    });
}

#[test]
fn a_second_request_smuggled_behind_an_allowed_one() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let inside = sandbox(allow(&[SITE])).await;
        let evil = "GET /evil HTTP/1.1\r\nHost: evil.example\r\n\r\n";
        let plain = format!("POST http://{SITE}/ HTTP/1.1\r\nHost: {SITE}\r\nContent-Length: 0\r\n\r\n");
        let own = send(&inside, 65502, plain.as_bytes()).await;
        assert!(own.ends_with("served"), "one request passes: {own}");
        let fields = [
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 4\r\nContent-Length: 5\r\n",
            "Content-Length: +4\r\n",
            "Transfer-Encoding: chunked, identity\r\n",
            "Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding : chunked\r\n",
            "X: y\r\n folded: z\r\n",
            "X: y\nTransfer-Encoding: chunked\r\n",
            "X: y\rTransfer-Encoding: chunked\r\n",
            "Connection: content-length\r\nContent-Length: 4\r\n",
            "Connection: keep-alive\r\n",
            "Upgrade: h2c\r\nConnection: upgrade\r\n",
        ];
        let request = |fields| format!("POST http://{SITE}/ HTTP/1.1\r\nHost: {SITE}\r\n{fields}\r\n0\r\n\r\n{evil}");
        send_all(&inside, 65502, &fields.map(request)).await;
        let seen = servers.world.seen();
        assert!(seen.iter().all(|(_, text)| !text.contains("evil")), "{seen:?}");
        evil_is_seen_where_it_is_allowed(&inside, &servers).await;
        servers.are_untouched();
        inside.end().await;
    });
}

#[test]
fn targets_that_two_readers_read_differently() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        for policy in [NetworkPolicy::Public, allow(&[SITE])] {
            let inside = sandbox(policy).await;
            let targets = [
                "http://site.example@10.1.2.3/",
                "http://10.1.2.3#@site.example/",
                "http://10.1.2.3?@site.example/",
                "http://10.1.2.3\\@site.example/",
                "http://site.example\\@10.1.2.3/",
                "http://site.example%2f@10.1.2.3/",
                "http://10.1.2.3%00.site.example/",
                "http://10.1.2.3%2f.site.example/",
                "http://[::ffff:10.1.2.3]/",
                "http://[::ffff:10.1.2.3%25lo]/",
                "http://10.1.2.3.:80/",
                "http:10.1.2.3/",
                "//10.1.2.3/",
                "https://10.1.2.3/",
                "gopher://10.1.2.3/",
                "http://127.0.0.1:80/",
                "http://localhost/",
                "http://host.cabana.internal/",
            ];
            for host in ["site.example", "10.1.2.3"] {
                let requests = targets.map(|target| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
                for (said, target) in send_all(&inside, 65502, &requests).await.iter().zip(targets) {
                    assert!(!said.contains("served"), "{target}: {said}");
                }
            }
            let plain = format!("GET http://{SITE}/ HTTP/1.1\r\nHost: {SITE}\r\n\r\n");
            let own = send(&inside, 65502, plain.as_bytes()).await;
            assert!(own.ends_with("served"), "one that all read alike is served: {own}");
            let targets =
                ["10.1.2.3:80", "127.0.0.1:80", "[::1]:80", "host.cabana.internal:80", "10.77.0.1:80", "0:80"];
            let requests = targets.map(|target| format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"));
            for (said, target) in send_all(&inside, 65502, &requests).await.iter().zip(targets) {
                assert!(said.starts_with("HTTP/1.1 403 "), "{target}: {said}");
            }
            inside.end().await;
        }
        servers.are_untouched();
    });
}

#[test]
fn socks_with_names_that_are_addresses_and_commands_that_open_ports() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let inside = sandbox(NetworkPolicy::Public).await;
        let named = |name: &str| [&[5, 1, 0, 3, name.len() as u8][..], name.as_bytes(), &[0, 80]].concat();
        let mut asked: Vec<Vec<u8>> =
            ["10.1.2.3", "0xa010203", "167838211", "127.0.0.1", "10.1.2.3\0.site.example", "site.example\0", "::1", ""]
                .into_iter()
                .map(named)
                .collect();
        asked.push(vec![5, 2, 0, 1, 10, 1, 2, 3, 0, 80]); // bind
        asked.push(vec![5, 3, 0, 1, 10, 1, 2, 3, 0, 53]); // UDP
        asked.push(vec![5, 1, 0, 1, 127, 0, 0, 1, 0, 80]);
        asked.push(vec![4, 1, 0, 80, 0, 0, 0, 1]); // SOCKS4
        let get = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let requests: Vec<_> = asked.iter().map(|request| [&[5, 1, 0][..], request, get].concat()).collect();
        for (said, request) in send_all(&inside, 65503, &requests).await.iter().zip(asked) {
            assert!(!said.contains("served"), "{request:?}: {said}");
        }
        assert_eq!(servers.world.seen(), []);
        servers.are_untouched();
        let plain = [&[5, 1, 0][..], &named(SITE), b"GET / HTTP/1.1\r\nHost: site.example\r\n\r\n"].concat();
        let said = send(&inside, 65503, &plain).await;
        assert!(said.ends_with("served"), "a name that is one is served: {said}");
        inside.end().await;
    });
}

fn tunnel(host: &str, port: u16) -> String {
    format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n")
}

#[test]
fn the_listeners_own_ports_as_targets() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        for policy in [NetworkPolicy::Public, NetworkPolicy::Host] {
            let inside = sandbox(policy).await;
            for port in [65501, 65502, 65503, 65504, 53] {
                // A proxy that is asked for itself, and the redirect's listener without a redirect.
                send(&inside, 65502, tunnel("127.0.0.1", port).as_bytes()).await;
                let said = send(&inside, 65502, tunnel("198.18.0.1", port).as_bytes()).await;
                assert!(said.starts_with("HTTP/1.1 403 "), "{said}");
                let target = [&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..], &u16::to_be_bytes(port)].concat();
                send(&inside, 65503, &target).await;
            }
            let said = send(&inside, 65501, b"GET / HTTP/1.1\r\nHost: site.example\r\n\r\n").await;
            assert!(said.contains("ConnectionResetError"), "{said}");
            let ok = inside.user(&format!("curl -sS --max-time 50 http://{SITE}/")).await.ok();
            assert_eq!(ok, "served", "the network still works");
            inside.end().await;
        }
        servers.host.is_untouched();
    });
}
