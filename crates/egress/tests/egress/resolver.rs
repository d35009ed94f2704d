//! The stub resolver against name servers of the test's own.

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::{Read, Write},
    iter,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use cabana_egress::{Host, Name, NameSources, Outside, ResolveError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

use crate::stage::eventually;

const A: u16 = 1;
const CNAME: u16 = 5;
const SOA: u16 = 6;
const AAAA: u16 = 28;
const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;
const REFUSED: u8 = 5;
const SITE: &str = "93.184.216.34";
const SITE_V6: &str = "2606:2800::1";

/// A question that a name server got.
#[derive(Clone, Debug)]
struct Question {
    message: Vec<u8>,
    name: String,
    kind: u16,
    over_tcp: bool,
    from: SocketAddr,
}

impl Question {
    fn read(message: &[u8], over_tcp: bool, from: SocketAddr) -> Question {
        let (mut labels, mut at) = (Vec::new(), 12);
        while message[at] != 0 {
            let end = at + 1 + usize::from(message[at]);
            labels.push(String::from_utf8_lossy(&message[at + 1..end]).into_owned());
            at = end;
        }
        let kind = u16::from_be_bytes([message[at + 1], message[at + 2]]);
        Question { message: message.to_vec(), name: labels.join("."), kind, over_tcp, from }
    }

    /// With this code and these records.
    fn reply(&self, code: u8, records: &[Vec<u8>]) -> Vec<u8> {
        let mut reply = self.message.clone();
        (reply[2], reply[3]) = (0x81, 0x80 | code);
        reply[6..8].copy_from_slice(&u16::try_from(records.len()).unwrap().to_be_bytes());
        reply.extend(records.concat());
        reply
    }

    /// With those of these addresses that it asked for.
    fn addresses(&self, addresses: &[&str]) -> Vec<u8> {
        let of_kind = |address: &&&str| address.contains(':') == (self.kind == AAAA);
        let records: Vec<Vec<u8>> = addresses.iter().filter(of_kind).map(|text| address(&self.name, text)).collect();
        self.reply(0, &records)
    }
}

fn wire(name: &str) -> Vec<u8> {
    let label = |label: &str| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat();
    name.split('.').flat_map(label).chain([0]).collect()
}

fn record(owner: &str, kind: u16, data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(data.len()).unwrap().to_be_bytes();
    [&wire(owner)[..], &kind.to_be_bytes(), &[0, 1, 0, 0, 0, 9], &len, data].concat()
}

fn address(owner: &str, text: &str) -> Vec<u8> {
    match text.parse().unwrap() {
        IpAddr::V4(v4) => record(owner, A, &v4.octets()),
        IpAddr::V6(v6) => record(owner, AAAA, &v6.octets()),
    }
}

fn alias(owner: &str, of: &str) -> Vec<u8> {
    record(owner, CNAME, &wire(of))
}

type Handler = dyn Fn(&Question) -> Vec<Vec<u8>> + Send + Sync;

/// A name server, over UDP and TCP.
struct NameServer {
    asked: Arc<Mutex<Vec<Question>>>,
}

impl NameServer {
    /// Each question is answered with these messages.
    fn start(
        (socket, listener): Sockets,
        handle: impl Fn(&Question) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> NameServer {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let handle: Arc<Handler> = Arc::new(handle);
        let (kept, handle_udp) = (asked.clone(), handle.clone());
        thread::spawn(move || {
            let mut message = [0; 1500];
            while let Ok((len, from)) = socket.recv_from(&mut message) {
                let asked = Question::read(&message[..len], false, from);
                kept.lock().unwrap().push(asked.clone());
                for reply in handle_udp(&asked) {
                    let _ = socket.send_to(&reply, from);
                }
            }
        });
        let kept = asked.clone();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut len = [0; 2];
                stream.read_exact(&mut len).unwrap();
                let mut message = vec![0; usize::from(u16::from_be_bytes(len))];
                stream.read_exact(&mut message).unwrap();
                let asked = Question::read(&message, true, stream.peer_addr().unwrap());
                kept.lock().unwrap().push(asked.clone());
                for reply in handle(&asked) {
                    let len = u16::try_from(reply.len()).unwrap().to_be_bytes();
                    let _ = stream.write_all(&[&len[..], &reply].concat());
                }
            }
        });
        NameServer { asked }
    }

    fn asked(&self) -> Vec<Question> {
        self.asked.lock().unwrap().clone()
    }

    /// The names that it was asked for, each once, in their order.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.asked().into_iter().map(|asked| asked.name).collect();
        names.dedup();
        names
    }
}

type Sockets = (UdpSocket, TcpListener);

/// Where the name servers are: two addresses of the loopback, with one port.
const SERVERS: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// A machine that looks names up: its two files, gone with it, and the sockets of its name servers.
struct Machine {
    dir: PathBuf,
    /// Until there is a server at the address: whoever asks there is not answered.
    sockets: Mutex<HashMap<&'static str, Sockets>>,
    outside: Outside,
}

impl Machine {
    fn new(resolv_conf: &str) -> Machine {
        Machine::with_hosts(resolv_conf, "127.0.0.1 localhost")
    }

    fn with_hosts(resolv_conf: &str, hosts: &str) -> Machine {
        static MACHINES: AtomicUsize = AtomicUsize::new(0);
        let number = MACHINES.fetch_add(1, Ordering::SeqCst);
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("names-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("resolv.conf"), resolv_conf).unwrap();
        fs::write(dir.join("hosts"), hosts).unwrap();
        let (port, sockets) = iter::repeat_with(sockets).take(1000).flatten().next().expect("a port is free");
        let sources = NameSources { hosts: dir.join("hosts"), resolv_conf: dir.join("resolv.conf"), port };
        Machine { dir, sockets: Mutex::new(sockets), outside: Outside::with_names(sources) }
    }

    fn server(&self, at: &str, handle: impl Fn(&Question) -> Vec<Vec<u8>> + Send + Sync + 'static) -> NameServer {
        NameServer::start(self.free(at), handle)
    }

    /// The sockets of the address; without them nothing is there.
    fn free(&self, at: &str) -> Sockets {
        self.sockets.lock().unwrap().remove(at).expect("there is no server yet")
    }

    async fn look_up(&self, text: &str) -> Result<Vec<String>, ResolveError> {
        let found = self.outside.resolve.resolve(&name(text)).await?;
        Ok(found.iter().map(ToString::to_string).collect())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// On a port that is free at all addresses, if this one is.
fn sockets() -> Option<(u16, HashMap<&'static str, Sockets>)> {
    let port = UdpSocket::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
    let bind = |at| Some((at, (UdpSocket::bind((at, port)).ok()?, TcpListener::bind((at, port)).ok()?)));
    Some((port, SERVERS.into_iter().map(bind).collect::<Option<_>>()?))
}

fn name(text: &str) -> Name {
    match Host::parse(text) {
        Ok(Host::Name(name)) => name,
        other => panic!("{text} is {other:?}"),
    }
}

/// One server, that waits a second for nothing.
const ONE: &str = "nameserver 127.0.0.1\nsearch .\noptions timeout:1 attempts:1";
const TWO: &str = "nameserver 127.0.0.1\nnameserver 127.0.0.2\nsearch .\noptions timeout:1 attempts:1";

fn threads() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
    line.trim().parse().unwrap()
}

#[tokio::test]
async fn a_thousand_names_that_are_never_answered_take_no_threads() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let machine = Machine::new("nameserver 127.0.0.1\nsearch .\noptions timeout:5 attempts:5");
    let server = machine.server("127.0.0.1", |asked| match &*asked.name {
        "answered.example" => vec![asked.addresses(&[SITE])],
        _ => vec![],
    });
    assert_eq!(machine.look_up("answered.example").await, Ok(vec![SITE.into()]));
    let before = threads();
    let mut lookups = JoinSet::new();
    for number in 0..1000 {
        let resolve = machine.outside.resolve.clone();
        lookups.spawn(async move { resolve.resolve(&name(&format!("n{number}.example"))).await });
    }
    eventually("the server was asked for all of them", || {
        let asked = server.asked();
        let names: HashSet<&str> = asked.iter().map(|asked| &*asked.name).collect();
        names.len() == 1001
    })
    .await;
    let grown = threads().saturating_sub(before);
    assert!(grown < 8, "{grown} threads more");
    assert_eq!(machine.look_up("answered.example").await, Ok(vec![SITE.into()]), "they hold up no other name");
}

#[tokio::test]
async fn a_name_has_the_addresses_of_both_families_by_turns() {
    let machine = Machine::new(ONE);
    let all = ["1.1.1.1", "1.1.1.2", "1.1.1.3", "2606::1", "2606::2"];
    let server = machine.server("127.0.0.1", move |asked| vec![asked.addresses(&all)]);
    let found = machine.look_up("Site.Example").await.unwrap();
    assert_eq!(found, ["1.1.1.1", "2606::1", "1.1.1.2", "2606::2", "1.1.1.3"]);
    let asked = server.asked();
    assert_eq!(asked.len(), 2, "nothing is asked twice");
    assert_ne!(asked[0].from.port(), asked[1].from.port(), "each question has a port of its own");
}

#[tokio::test]
async fn an_answer_of_one_family_is_enough_where_the_other_is_never_answered() {
    for (answered, addresses) in [(A, [SITE]), (AAAA, [SITE_V6])] {
        let machine = Machine::new(ONE);
        let server = machine.server("127.0.0.1", move |asked| match asked.kind == answered {
            true => vec![asked.addresses(&addresses)],
            false => vec![],
        });
        assert_eq!(machine.look_up("site.example").await, Ok(vec![addresses[0].into()]));
        assert_eq!(server.asked().len(), 2);
    }
}

#[tokio::test]
async fn a_truncated_answer_is_asked_for_over_tcp() {
    let machine = Machine::new(ONE);
    let server = machine.server("127.0.0.1", |asked| {
        let mut reply = asked.addresses(&[SITE, SITE_V6]);
        if !asked.over_tcp {
            reply[2] |= 2;
            reply.truncate(asked.message.len());
        }
        vec![reply]
    });
    assert_eq!(machine.look_up("site.example").await, Ok(vec![SITE.into(), SITE_V6.into()]));
    assert_eq!(server.asked().iter().filter(|asked| asked.over_tcp).count(), 2);
}

#[tokio::test]
async fn what_answers_another_question_is_passed_over() {
    let machine = Machine::new(ONE);
    let elsewhere = UdpSocket::bind("127.0.0.1:0").unwrap();
    let _server = machine.server("127.0.0.1", move |asked| {
        let forged = asked.addresses(&["6.6.6.6", "2666::6"]);
        let with = |at: usize, value: u8| {
            let mut message = forged.clone();
            message[at] = value;
            message
        };
        elsewhere.send_to(&forged, asked.from).unwrap();
        vec![
            with(0, !asked.message[0]), // the id
            with(2, 0x01),              // no answer
            with(13, b'x'),             // the name
            with(asked.message.len() - 3, 16),
            vec![],
            vec![0xc0; 300],
            forged[..forged.len() - 1].to_vec(),
            asked.addresses(&[SITE]),
        ]
    });
    assert_eq!(machine.look_up("site.example").await, Ok(vec![SITE.into()]));
}

#[tokio::test]
async fn a_server_that_says_other_things_without_end_is_not_listened_to_for_ever() {
    let machine = Machine::new("nameserver 127.0.0.1\nsearch .\noptions timeout:30 attempts:1");
    let _server = machine.server("127.0.0.1", |_| vec![vec![0xc0; 300]; 100]);
    assert_eq!(machine.look_up("site.example").await, Err(ResolveError::Failed));
}

#[tokio::test]
async fn the_second_server_is_asked_where_the_first_is_silent_gone_or_cannot_say() {
    for code in [None, Some(SERVFAIL), Some(REFUSED)] {
        let machine = Machine::new(TWO);
        let _first =
            machine.server("127.0.0.1", move |asked| code.map(|code| asked.reply(code, &[])).into_iter().collect());
        let _second = machine.server("127.0.0.2", |asked| vec![asked.addresses(&[SITE])]);
        assert_eq!(machine.look_up("site.example").await, Ok(vec![SITE.into()]), "{code:?}");
    }
    let machine = Machine::new(TWO);
    drop(machine.free("127.0.0.1"));
    let _second = machine.server("127.0.0.2", |asked| vec![asked.addresses(&[SITE])]);
    assert_eq!(machine.look_up("site.example").await, Ok(vec![SITE.into()]), "nothing listens there");
}

#[tokio::test]
async fn a_server_is_asked_again_as_often_as_the_options_say() {
    let machine = Machine::new("nameserver 127.0.0.1\nsearch .\noptions timeout:1 attempts:3");
    let server = machine.server("127.0.0.1", |asked| vec![asked.reply(SERVFAIL, &[])]);
    assert_eq!(machine.look_up("site.example").await, Err(ResolveError::Failed));
    assert_eq!(server.asked().iter().filter(|asked| asked.kind == A).count(), 3);
}

#[tokio::test]
async fn servers_take_turns_where_the_options_say_so() {
    let machine = Machine::new(&TWO.replace("attempts:1", "attempts:1 rotate"));
    let servers = ["127.0.0.1", "127.0.0.2"].map(|at| machine.server(at, |asked| vec![asked.addresses(&[SITE])]));
    for number in 0..4 {
        machine.look_up(&format!("n{number}.example")).await.unwrap();
    }
    assert_eq!(servers.map(|server| server.names().len()), [2, 2]);
}

#[tokio::test]
async fn a_name_that_is_not_there_is_told_from_one_that_cannot_be_looked_up() {
    let machine = Machine::new(ONE);
    let _server = machine.server("127.0.0.1", |asked| match &*asked.name {
        "gone.example" => vec![asked.reply(NXDOMAIN, &[])],
        "empty.example" => vec![asked.reply(0, &[])],
        "half.example" if asked.kind == A => vec![asked.reply(0, &[])],
        "half.example" | "broken.example" => vec![asked.reply(SERVFAIL, &[])],
        "refused.example" => vec![asked.reply(REFUSED, &[])],
        _ => vec![],
    });
    for (name, error) in [
        ("gone.example", ResolveError::Missing),
        ("empty.example", ResolveError::Missing),
        ("half.example", ResolveError::Failed),
        ("broken.example", ResolveError::Failed),
        ("refused.example", ResolveError::Failed),
        ("silent.example", ResolveError::Failed),
    ] {
        assert_eq!(machine.look_up(name).await, Err(error), "{name}");
    }
}

#[tokio::test]
async fn names_are_searched_for_in_the_order_of_their_dots() {
    for (ndots, asked_for, names) in [
        (1, "db", vec!["db.a.example", "db.b.example", "db"]),
        (1, "db.west", vec!["db.west", "db.west.a.example", "db.west.b.example"]),
        (2, "db.west", vec!["db.west.a.example", "db.west.b.example", "db.west"]),
    ] {
        let machine = Machine::new(&format!("nameserver 127.0.0.1\nsearch a.example b.example\noptions ndots:{ndots}"));
        let server = machine.server("127.0.0.1", |asked| vec![asked.reply(NXDOMAIN, &[])]);
        assert_eq!(machine.look_up(asked_for).await, Err(ResolveError::Missing));
        assert_eq!(server.names(), names, "{asked_for} with ndots:{ndots}");
    }
}

#[tokio::test]
async fn the_first_name_that_is_found_ends_the_search_and_one_that_fails_does_not() {
    let machine = Machine::new("nameserver 127.0.0.1\nsearch broken.example b.example c.example\noptions attempts:1");
    let server = machine.server("127.0.0.1", |asked| match &*asked.name {
        "db.broken.example" => vec![asked.reply(SERVFAIL, &[])],
        "db.b.example" => vec![asked.addresses(&[SITE])],
        _ => vec![asked.reply(NXDOMAIN, &[])],
    });
    assert_eq!(machine.look_up("db").await, Ok(vec![SITE.into()]));
    assert_eq!(server.names(), ["db.broken.example", "db.b.example"]);
    assert_eq!(machine.look_up("other").await, Err(ResolveError::Missing));
}

#[tokio::test]
async fn names_of_the_hosts_file_and_of_the_loopback_are_asked_of_no_server() {
    let machine = Machine::with_hosts(ONE, "6.6.6.6 localhost\n10.0.0.1 DB db.corp\nfd00::1 db # both");
    let server = machine.server("127.0.0.1", |asked| vec![asked.addresses(&["6.6.6.6"])]);
    assert_eq!(machine.look_up("dB").await, Ok(vec!["10.0.0.1".into(), "fd00::1".into()]));
    assert_eq!(machine.look_up("db.corp").await, Ok(vec!["10.0.0.1".into()]));
    for loopback in ["localhost", "LOCALHOST", "a.b.localhost"] {
        assert_eq!(machine.look_up(loopback).await, Ok(vec!["127.0.0.1".into(), "::1".into()]), "{loopback}");
    }
    assert_eq!(server.names(), [""; 0]);
}

#[tokio::test]
async fn files_that_change_are_read_again() {
    let machine = Machine::new(ONE);
    let _first = machine.server("127.0.0.1", |asked| vec![asked.addresses(&["1.1.1.1"])]);
    let _second = machine.server("127.0.0.2", |asked| vec![asked.addresses(&["2.2.2.2"])]);
    let becomes = async |wanted: &str| {
        for _ in 0..6000 {
            if machine.look_up("site.example").await == Ok(vec![wanted.into()]) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("in a minute it did not become {wanted}");
    };
    becomes("1.1.1.1").await;
    fs::write(machine.dir.join("resolv.conf"), ONE.replace("127.0.0.1", "127.0.0.2")).unwrap();
    becomes("2.2.2.2").await;
    fs::write(machine.dir.join("hosts"), "3.3.3.3 site.example").unwrap();
    becomes("3.3.3.3").await;
    // Put in its place, as tools do it.
    fs::write(machine.dir.join("hosts.new"), "4.4.4.4 site.example").unwrap();
    fs::rename(machine.dir.join("hosts.new"), machine.dir.join("hosts")).unwrap();
    becomes("4.4.4.4").await;
    fs::remove_file(machine.dir.join("hosts")).unwrap();
    becomes("2.2.2.2").await;
    fs::remove_file(machine.dir.join("resolv.conf")).unwrap();
    becomes("1.1.1.1").await;
}

#[tokio::test]
async fn aliases_are_followed_within_an_answer_and_beyond_it() {
    let machine = Machine::new(ONE);
    let server = machine.server("127.0.0.1", |asked| match (&*asked.name, asked.kind) {
        ("www.example", A) => {
            vec![asked.reply(
                0,
                &[alias("cdn.example", "c1.other"), alias("www.example", "cdn.example"), address("c1.other", SITE)],
            )]
        }
        ("www.example", _) => {
            // There are no more: so says the authority.
            let mut reply = asked.reply(0, &[alias("www.example", "cdn.example")]);
            reply[9] = 1;
            vec![[reply, record("example", SOA, &[0; 22])].concat()]
        }
        ("far.example", _) => vec![asked.reply(0, &[alias("far.example", "f1.other"), alias("f1.other", "f2.other")])],
        ("f2.other", _) => vec![asked.addresses(&[SITE, SITE_V6])],
        _ => vec![asked.reply(NXDOMAIN, &[])],
    });
    assert_eq!(machine.look_up("www.example").await, Ok(vec![SITE.into()]));
    assert_eq!(server.asked().len(), 2);
    assert_eq!(machine.look_up("far.example").await, Ok(vec![SITE.into(), SITE_V6.into()]));
    assert_eq!(server.asked().len(), 6);
}

#[tokio::test]
async fn aliases_without_end_are_followed_for_a_while() {
    let machine = Machine::new(ONE);
    let server =
        machine.server("127.0.0.1", |asked| vec![asked.reply(0, &[alias(&asked.name, &format!("a{}", asked.name))])]);
    assert_eq!(machine.look_up("a.example").await, Err(ResolveError::Failed));
    assert!(server.asked().len() < 50);
}

#[tokio::test]
async fn of_very_many_addresses_some_are_used() {
    let machine = Machine::new(ONE);
    let _server = machine.server("127.0.0.1", |asked| {
        let all: Vec<Vec<u8>> =
            (0..500_u16).map(|n| address(&asked.name, &format!("8.8.{}.{}", n / 256, n % 256))).collect();
        match (asked.kind, asked.over_tcp) {
            (A, true) => vec![asked.reply(0, &all)],
            (A, false) => {
                let mut reply = asked.reply(0, &[]);
                reply[2] |= 2;
                vec![reply]
            }
            _ => vec![asked.reply(0, &[])],
        }
    });
    assert_eq!(machine.look_up("a.example").await.unwrap().len(), 32);
}
