//! Addresses that are not the public network: the host's own, inner networks, metadata. The world behind the host has a
//! server at every one of them, which says whether anybody came. In the mode `host` the very same attempts succeed.

use std::{net::IpAddr, sync::Arc};

use cabana_engine::Engine;
use cabana_sandbox::{NetworkPolicy, Provider, SandboxSpec, Wanted};
use cabana_testkit::world::{HOST, HOST_PUBLIC, HOST_PUBLIC_V6, HOST_V6, Web, World, in_world};

use crate::{
    attacks::REACH,
    inside::{Inside, engine, passing, until},
};

/// A site that may be reached.
pub(crate) const SITE: &str = "site.example";
pub(crate) const SITE_ADDRESS: &str = "93.184.216.34";

/// What no sandbox may reach, each with a server of the world.
const INNER: [&str; 18] = [
    "10.1.2.3",
    "172.16.5.5",
    "192.168.7.7",
    "100.64.0.7",
    "169.254.10.10",
    "169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.7",
    "fd12::7",
    "fec0::7",
    "fd00:ec2::254",
    "fd20:ce::254",
    "64:ff9b::a01:203",
    "2002:a01:203::1",
    "2001:0:a01:203::7",
    "2001:db8::7",
];

const OWN: [&str; 4] = [HOST, HOST_V6, HOST_PUBLIC, HOST_PUBLIC_V6];

const WAYS: [&str; 5] = ["plain", "connect", "absolute", "socks", "number"];

pub(crate) async fn sandbox(network: NetworkPolicy) -> Inside {
    Inside::with(SandboxSpec { network, ..passing() }).await
}

pub(crate) async fn beside(engine: &Arc<Engine>, network: NetworkPolicy) -> Inside {
    Inside::of(engine.clone(), &SandboxSpec { network, ..passing() }).await
}

pub(crate) fn allow(rules: &[&str]) -> NetworkPolicy {
    NetworkPolicy::Allow(rules.iter().map(|rule| (*rule).to_owned()).collect())
}

/// The modes under which nothing inner may be reached; the list is as wide as a list can be.
fn walls() -> [NetworkPolicy; 3] {
    [NetworkPolicy::Off, NetworkPolicy::Public, allow(&[SITE, "*.example", "0.0.0.0/0", "::/0"])]
}

/// The servers of a world: what is public, what is inner, and what is on the host.
pub(crate) struct Servers {
    pub(crate) world: Web,
    pub(crate) host: Web,
}

impl Servers {
    pub(crate) fn new(world: &World) -> Self {
        world.site(SITE, &[SITE_ADDRESS, "2606:2800:220:1::34"]);
        for address in INNER {
            world.address(address);
        }
        Self { world: world.web(80), host: Web::on_host(80) }
    }

    /// Whoever came to the world came to a public address, and nobody came to the host.
    #[track_caller]
    pub(crate) fn are_untouched(&self) {
        self.host.is_untouched();
        let inner: Vec<IpAddr> = INNER.iter().map(|address| address.parse().unwrap()).collect();
        let came: Vec<_> = self.world.seen().into_iter().filter(|(at, _)| inner.contains(at)).collect();
        assert_eq!(came, [], "somebody got through");
    }
}

fn bracketed(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

/// What came of each target.
pub(crate) async fn reach(inside: &Inside, targets: &[String]) -> Vec<(String, String)> {
    let words: Vec<&str> = targets.iter().map(String::as_str).collect();
    let said = inside.attack("user", &REACH, &words).await.ok();
    let lines: Vec<_> = said.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(lines.len(), targets.len(), "{said}");
    lines.into_iter().map(|(target, what)| (target.to_owned(), what.to_owned())).collect()
}

#[track_caller]
pub(crate) fn none_served(said: &[(String, String)]) {
    let served: Vec<_> = said.iter().filter(|(_, what)| what == "served").collect();
    assert!(served.is_empty(), "{served:?}");
}

/// Of a control: who is on the host reaches each of them.
#[track_caller]
fn all_served_on_host(hosts: &[&str]) {
    let targets: Vec<String> = hosts.iter().map(|host| format!("plain={host}:80")).collect();
    let words: Vec<&str> = targets.iter().map(String::as_str).collect();
    let said = REACH.run_on_host(&words).ok();
    assert!(said.lines().count() == hosts.len() && said.lines().all(|line| line.ends_with(" served")), "{said}");
}

async fn update(inside: &Inside, policy: NetworkPolicy) {
    inside.sandbox.update(Wanted::Network(policy)).await.unwrap();
}

#[test]
fn the_hosts_own_addresses_and_all_inner_ones_by_number() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let mut targets = Vec::new();
        for address in INNER.iter().chain(&OWN) {
            targets.extend(WAYS.map(|way| format!("{way}={}:80", bracketed(address))));
        }
        let inside = sandbox(NetworkPolicy::Host).await;
        for (target, what) in reach(&inside, &targets).await {
            assert_eq!(what, "served", "{target}: this is how an attempt that succeeds looks");
        }
        inside.end().await;
        let before = (servers.world.seen().len(), servers.host.seen().len());
        for policy in walls() {
            let inside = sandbox(policy).await;
            none_served(&reach(&inside, &targets).await);
            inside.end().await;
        }
        assert_eq!((servers.world.seen().len(), servers.host.seen().len()), before, "somebody got through");
    });
}

#[test]
fn the_hosts_loopback_in_every_notation() {
    let notations = [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "127.255.255.254",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "0",
        "0.0.0.0",
        "localhost",
        "localhost.",
        "sub.localhost",
        "ip6-localhost",
        "host.cabana.internal",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[::ffff:0:127.0.0.1]",
    ];
    in_world(async move |world| {
        let servers = Servers::new(&world);
        let targets: Vec<String> = notations
            .iter()
            .flat_map(|host| ["plain", "connect", "absolute", "socks"].map(|way| format!("{way}={host}:80")))
            .collect();
        for policy in walls() {
            let inside = sandbox(policy).await;
            none_served(&reach(&inside, &targets).await);
            inside.end().await;
        }
        servers.are_untouched();
        all_served_on_host(&["127.0.0.1", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "0", "localhost", "[::1]"]);
    });
}

#[test]
fn inner_addresses_in_every_notation() {
    let notations = [
        "167838211", // 10.1.2.3
        "0xa010203",
        "10.66051",
        "012.1.2.3",
        "10.0x1.02.3",
        "2852039166", // 169.254.169.254
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "[::ffff:10.1.2.3]",
        "[::ffff:a9fe:a9fe]",
        "[::ffff:169.254.169.254]",
        "[::10.1.2.3]",
        "[64:ff9b::169.254.169.254]",
        "[64:ff9b:1::10.1.2.3]",
        "[2002:a9fe:a9fe::]",
        "[fe80::1]",
        "224.0.0.1",
        "255.255.255.255",
        "[ff02::1]",
    ];
    in_world(async move |world| {
        let servers = Servers::new(&world);
        let targets: Vec<String> =
            notations.iter().flat_map(|host| WAYS.map(|way| format!("{way}={host}:80"))).collect();
        for policy in walls() {
            let inside = sandbox(policy).await;
            none_served(&reach(&inside, &targets).await);
            inside.end().await;
        }
        servers.are_untouched();
        assert_eq!(servers.world.seen(), []);
        all_served_on_host(&["167838211", "10.66051", "012.1.2.3", "0xa9fea9fe", "169.254.43518", "[::ffff:10.1.2.3]"]);
    });
}

#[test]
fn inner_addresses_by_names_that_lead_there() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let mut targets = Vec::new();
        for (number, address) in INNER.iter().chain(&OWN).chain(&["127.0.0.1", "::1"]).enumerate() {
            let name = format!("inner{number}.example");
            world.name(&name, &[&[address]]);
            targets.extend(["plain", "connect", "absolute", "socks"].map(|way| format!("{way}={name}:80")));
        }
        // One that also has a public address is reached there, and there only.
        world.name("mixed.example", &[&["10.1.2.3", "169.254.169.254", SITE_ADDRESS]]);
        for policy in walls() {
            let inside = sandbox(policy.clone()).await;
            none_served(&reach(&inside, &targets).await);
            let mixed = reach(&inside, &["plain=mixed.example:80".into(), "connect=mixed.example:80".into()]).await;
            assert!(mixed.iter().all(|(_, what)| (what == "served") == (policy != NetworkPolicy::Off)), "{mixed:?}");
            inside.end().await;
        }
        servers.are_untouched();
        let inside = sandbox(NetworkPolicy::Host).await;
        for (target, what) in reach(&inside, &targets[..8]).await {
            assert_eq!(what, "served", "{target}: a policy that refuses nothing lets it through");
        }
        inside.end().await;
    });
}

#[test]
fn inner_addresses_by_a_redirect() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        world.name("inner.example", &[&["10.1.2.3"]]);
        let goals = [
            "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://10.77.0.1/\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 301 Moved\r\nLocation: http://inner.example/\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 308 Moved\r\nLocation: http://[::ffff:10.1.2.3]/\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 302 Found\r\nLocation: http://host.cabana.internal/\r\nContent-Length: 0\r\n\r\n",
        ];
        let ports: Vec<u16> = (8081..).take(goals.len()).collect();
        let webs: Vec<Web> = ports.iter().zip(goals).map(|(port, goal)| world.web_that_says(*port, goal)).collect();
        let inside = sandbox(NetworkPolicy::Public).await;
        for policy in [NetworkPolicy::Public, allow(&[SITE, "*.example"])] {
            update(&inside, policy).await;
            for port in &ports {
                for proxy in ["", "-x http://127.0.0.1:65502"] {
                    let said = inside.user(&format!("curl -sSL {proxy} --max-time 50 http://{SITE}:{port}/")).await;
                    assert!(!said.out.contains("served"), "{said:?}");
                }
            }
        }
        assert!(webs.iter().all(|web| web.seen().len() == 4), "each redirect was got");
        servers.are_untouched();
        update(&inside, NetworkPolicy::Host).await;
        let followed = inside.user(&format!("curl -sSL --max-time 50 http://{SITE}:{}/", ports[0])).await.ok();
        assert_eq!(followed, "served", "a policy that refuses nothing lets it through");
        inside.end().await;
    });
}

#[test]
fn a_name_that_changes_its_answer_between_question_and_connection() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let engine = engine().await;
        let names = [("one.example", "169.254.169.254"), ("two.example", HOST), ("three.example", "127.0.0.1")];
        for (name, inner) in names {
            world.name(name, &[&[SITE_ADDRESS], &[inner]]);
        }
        let open = &engine;
        let changing = names.map(|(name, _)| async move {
            let inside = beside(open, NetworkPolicy::Public).await;
            // The first answer is believed for a while; then the address inside leads to a name that points inside.
            let script = format!(
                "import socket, sys\nwhere = socket.gethostbyname('{name}')\ndef once():\n  try:\n    \
                 s = socket.create_connection((where, 80), 50); s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n    \
                 return 'served' in s.makefile().read()\n  except OSError: return False\nprint(once())"
            );
            let script = format!("python3 - <<'EOF'\n{script}\nimport time\nwhile once(): time.sleep(0.2)\nEOF");
            assert_eq!(inside.user(&script).await.ok(), "True", "the public address was reached, and then no other");
            open.destroy(inside.sandbox.id()).await.unwrap();
        });
        futures_util::future::join_all(changing).await;
        engine.close().await;
        servers.are_untouched();
    });
}

#[test]
fn an_address_of_the_inner_dns_that_was_never_given_out() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let inside = sandbox(NetworkPolicy::Public).await;
        let own = ["198.18.0.1", "198.18.0.2", "198.19.255.255", "[fdca:ba2a:6e63::1]", "[fdca:ba2a:6e63::2]"];
        let targets: Vec<String> = own.iter().flat_map(|host| WAYS.map(|way| format!("{way}={host}:80"))).collect();
        none_served(&reach(&inside, &targets).await);
        assert_eq!(servers.world.seen(), []);
        servers.are_untouched();
        let asked = reach(&inside, &[format!("plain={SITE}:80")]).await;
        assert_eq!(asked[0].1, "served", "one that was asked for leads somewhere");
        inside.end().await;
    });
}

#[test]
fn a_connection_that_is_open_when_the_policy_closes() {
    in_world(async |world| {
        let servers = Servers::new(&world);
        let engine = engine().await;
        let inside = beside(&engine, NetworkPolicy::Host).await;
        let code = "import socket, sys\ns = socket.create_connection(('10.77.0.1', 80)); open('/tmp/up', 'w')\ns.settimeout(50)\ntry:\n  s.recv(1); print('heard')\nexcept OSError as e: print(type(e).__name__)";
        let hold = format!("python3 -c \"{code}\"");
        let held = inside.user(&hold);
        let close = async {
            until("it is open", async || inside.user("test -e /tmp/up && echo up").await.out.contains("up")).await;
            update(&inside, NetworkPolicy::Public).await;
        };
        let (held, ()) = tokio::join!(held, close);
        assert_eq!(held.ok(), "ConnectionResetError");
        assert_eq!(servers.host.seen().len(), 1);
        inside.end().await;
    });
}
