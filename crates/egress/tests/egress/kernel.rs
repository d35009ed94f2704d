//! The kernel's half: a namespace with nothing but a loopback, whose redirect catches what ignores every proxy.

use std::{
    net::{SocketAddr, TcpListener, UdpSocket},
    process::{Command, Output},
    sync::{Arc, Mutex},
};

use cabana_egress::{Config, Event, How, Listeners, Outside, serve};

use crate::stage::{EXAMPLE, Web, World, allow, policy};

/// As init of a sandbox sets it up: everything is local, TCP to any but the loopback's own addresses is redirected, and so is
/// DNS, whichever server is asked. The rest is refused: the kernel would answer a ping to any address otherwise.
const NAMESPACE: &str = r#"
set -e
ip link set lo up
ip route add local 0.0.0.0/0 dev lo
ip -6 route add local ::/0 dev lo
nft -f - <<'RULES'
table inet cabana {
  chain out {
    type nat hook output priority -100
    ip daddr 127.0.0.0/8 return
    ip6 daddr ::1 return
    meta l4proto { tcp, udp } th dport 53 redirect to :53
    meta l4proto tcp redirect to :9040
  }
  chain rest {
    type filter hook output priority 0
    ct state established,related accept
    ip daddr 127.0.0.0/8 accept
    ip6 daddr ::1 accept
    reject with icmpx admin-prohibited
  }
}
RULES
mount -t tmpfs none /mnt
echo "nameserver 192.0.2.53" >/mnt/resolv.conf
mount --bind /mnt/resolv.conf /etc/resolv.conf
exec "$@"
"#;

const INSIDE: &str = "CABANA_EGRESS_TEST_INSIDE";

#[test]
fn programs_that_know_no_proxy_are_caught_by_the_redirect_and_find_the_name_again() {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        return runtime.block_on(inside());
    }
    let name = "kernel::programs_that_know_no_proxy_are_caught_by_the_redirect_and_find_the_name_again";
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--mount", "sh", "-c", NAMESPACE, "sh"]);
    let output = command.arg(exe).args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

async fn inside() {
    let (web, server) = Web::hello();
    let world = Arc::new(World::default());
    world.name("example.com", &[&[EXAMPLE]]);
    world.server(&format!("{EXAMPLE}:80"), server);
    world.server("[2606::7]:80", server);
    let events = Arc::new(Mutex::new(Vec::<Event>::new()));
    let kept = events.clone();
    let rules = allow(&["example.com", "2606::7"]);
    let mut config = Config::new(policy(&rules), Arc::new(move |event| kept.lock().unwrap().push(event)));
    config.outside = Outside { resolve: world.clone(), connect: world.clone() };
    let listeners = Listeners {
        transparent: ["127.0.0.1:9040", "[::1]:9040"].map(|at| TcpListener::bind(at).unwrap()).into(),
        dns_udp: vec![UdpSocket::bind("127.0.0.1:53").unwrap()],
        dns_tcp: vec![TcpListener::bind("127.0.0.1:53").unwrap()],
        ..Listeners::default()
    };
    let _egress = serve(listeners, config).unwrap();

    for family in ["-4", "-6"] {
        assert_eq!(text(&curl(&[family, "http://example.com/"])), "hello", "{family}");
    }
    assert_eq!(text(&curl(&["http://[2606::7]/"])), "hello");
    let asked: Vec<SocketAddr> = world.dialled.lock().unwrap().clone();
    let example: SocketAddr = format!("{EXAMPLE}:80").parse().unwrap();
    assert_eq!(asked, [example, example, "[2606::7]:80".parse().unwrap()]);
    assert!(web.requests()[0].starts_with("GET / HTTP/1.1\r\nHost: example.com\r\n"));

    // 6: no such name. 7, 55 and 56: refused or reset, sooner or later.
    assert_eq!(curl(&["http://other.com/"]).status.code(), Some(6));
    for url in
        ["http://10.0.0.1/", "http://8.8.8.8/", "http://[fd00::1]/", "http://169.254.169.254/", "http://198.18.7.7/"]
    {
        let code = curl(&[url]).status.code();
        assert!(matches!(code, Some(7 | 55 | 56)), "{url}: {code:?}");
    }
    for address in ["8.8.8.8:123", "[2606::1]:123"] {
        assert!(!is_answered_over_udp(address), "{address}");
    }
    // The redirect's own listener is no destination.
    assert!(matches!(curl(&["http://127.0.0.1:9040/"]).status.code(), Some(7 | 55 | 56)));
    let events = events.lock().unwrap();
    let refused = events.iter().filter(|event| !event.allowed && event.how == How::Transparent);
    assert_eq!(refused.count(), 6);
}

fn curl(arguments: &[&str]) -> Output {
    let arguments = [&["--silent", "--max-time", "20"], arguments].concat();
    let run = || Command::new("curl").env_clear().args(arguments).output().unwrap();
    tokio::task::block_in_place(run)
}

/// Something listens there, in the guest: without the refusal it would get the datagram and answer for all the world.
fn is_answered_over_udp(address: &str) -> bool {
    let port = &address[address.rfind(':').unwrap()..];
    let guest = UdpSocket::bind(format!("[::]{port}")).unwrap();
    let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let asker = UdpSocket::bind(any).unwrap();
    let sent = asker.send_to(b"time?", address);
    guest.set_nonblocking(true).unwrap();
    sent.is_ok() && guest.recv(&mut [0; 9]).is_ok()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
