//! Plain sockets: bytes both ways, half-closes, and a server that speaks first.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener},
};

use cabana_sandbox::NetworkPolicy;
use cabana_testkit::world::{World, in_world};

use super::{FOUR, FOUR_ADDRESS, OTHER, OTHER_ADDRESS, SIX, SIX_ADDRESS, open, sites};

/// Greets, then sends back turned around what it got until the other side's end, and ends.
fn server(world: &World) {
    world.inside(|| {
        let listener = TcpListener::bind(("::", 7777)).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || {
                    let mut all = Vec::new();
                    let done = stream.write_all(b"first").and_then(|()| stream.read_to_end(&mut all));
                    all.reverse();
                    let _ = done.and_then(|_| stream.write_all(&all));
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
    });
}

/// Sends much, ends its side, and compares what comes back.
const CLIENT: &str = r#"
import os, socket, sys
def talk(host, family):
    try:
        where = socket.getaddrinfo(host, 7777, family, socket.SOCK_STREAM)[0]
        s = socket.socket(where[0]); s.settimeout(50); s.connect(where[4])
        word = b''.join(s.recv(1) for _ in range(5))
        data = b"\0" + os.urandom(3_000_000) # a first byte by chance is one of TLS now and then, and refused
        s.sendall(data); s.shutdown(socket.SHUT_WR)
        back = b""
        while piece := s.recv(65536): back += piece
        return "good" if word == b"first" and back == data[::-1] else "bad %r %d" % (word, len(back))
    except socket.gaierror: return "no name"
    except ConnectionError as e: return type(e).__name__
    except OSError as e: return repr(e)
for word in sys.argv[1:]:
    host, family = word.split("/")
    print(word, talk(host, {"4": socket.AF_INET, "6": socket.AF_INET6}[family]))
"#;

#[test]
fn plain_sockets_carry_bytes_both_ways_over_both_families() {
    in_world(async |world| {
        sites(&world);
        server(&world);
        let by_name = [format!("{FOUR}/4"), format!("{FOUR}/6"), format!("{SIX}/4"), format!("{SIX}/6")];
        let by_number = [format!("{FOUR_ADDRESS}/4"), format!("{SIX_ADDRESS}/6")];
        let all: Vec<String> = by_name.into_iter().chain(by_number).collect();
        let talk = |to: &[String]| format!("python3 - {} <<'EOF'\n{CLIENT}\nEOF", to.join(" "));
        let good = all.iter().map(|to| format!("{to} good")).collect::<Vec<_>>().join("\n");
        let inside = open(&world, NetworkPolicy::Public).await;
        assert_eq!(inside.user(&talk(&all)).await.ok(), good);
        let rules = [FOUR, SIX, FOUR_ADDRESS, SIX_ADDRESS].map(str::to_owned);
        inside.set(NetworkPolicy::Allow(rules.into())).await;
        assert_eq!(inside.user(&talk(&all)).await.ok(), good);
        let others = [format!("{OTHER}/4"), format!("{OTHER_ADDRESS}/4"), "2606:2800:220:1::35/6".to_owned()];
        let said = inside.user(&talk(&others)).await.ok();
        let refused = ["no name", "ConnectionResetError", "ConnectionResetError"];
        let wanted: Vec<String> = others.iter().zip(refused).map(|(to, why)| format!("{to} {why}")).collect();
        assert_eq!(said, wanted.join("\n"));
        inside.end().await;
    });
}
