//! The network of a sandbox, with the real kernel: what gets out, what does not, and what is told.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    sync::Arc,
};

use cabana_engine::{Config, EncryptedHello, Engine, NetworkSettings};
use cabana_sandbox::{
    Base, Code, Error, ExecSpec, NetworkPolicy, Provider, Sandbox, SandboxEvent, SandboxId, SandboxPath, SandboxSpec,
    Wanted,
};
use futures_util::StreamExt;

use crate::{inside::shell, stage};

/// An address of this machine that is not loopback.
fn own_address() -> IpAddr {
    // Nothing is sent: the kernel only chooses the address from which it would.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").expect("a route to anywhere");
    socket.local_addr().unwrap().ip()
}

/// Answers every connection with one line of HTTP, for as long as the test runs.
fn server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    answer_on(listener);
    (own_address(), port).into()
}

fn answer_on(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nserved");
            });
        }
    });
}

async fn with(network: NetworkPolicy) -> (Arc<Engine>, Arc<dyn Sandbox>) {
    let engine = stage::engine().await;
    let spec = SandboxSpec { network, ..SandboxSpec::new(Base::Host) };
    let sandbox = engine.create(&SandboxId::random(), &spec).await.unwrap();
    (engine, sandbox)
}

async fn end(engine: Arc<Engine>, sandbox: Arc<dyn Sandbox>) {
    engine.destroy(sandbox.id()).await.unwrap();
    engine.close().await;
}

/// What a plain connection, without any proxy, gets.
async fn fetch(sandbox: &dyn Sandbox, to: SocketAddr) -> String {
    let code = format!(
        "import socket\ntry:\n  s=socket.create_connection(('{}',{}),20)\n  s.sendall(b'GET / HTTP/1.1\\r\\nHost: {}\\r\\n\\r\\n')\n  print(s.makefile().read()[-6:])\nexcept OSError as e: print(e.errno)",
        to.ip(),
        to.port(),
        to
    );
    let ran = shell(sandbox, "user", &format!("python3 - <<'EOF'\n{code}\nEOF")).await;
    ran.ok().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_on_the_list_is_reached_without_any_proxy_and_another_is_reset() {
    let (listed, other) = (server(), server());
    let (engine, sandbox) = with(NetworkPolicy::Allow(vec![listed.to_string()])).await;
    let mut events = engine.events();
    assert_eq!(fetch(&*sandbox, listed).await, "served");
    let refused = fetch(&*sandbox, other).await;
    assert_eq!(refused, libc::ECONNRESET.to_string());
    let mut told = Vec::new();
    while told.len() < 2 {
        let (_, event) = events.next().await.unwrap().unwrap();
        if let SandboxEvent::Network { port, allowed, rule, reason, .. } = event {
            told.push((port, allowed, rule, reason));
        }
    }
    assert_eq!(told[0], (listed.port(), true, listed.to_string(), "the allow-list names it".into()));
    let why = "no rule of the allow-list covers it".to_owned();
    assert_eq!(told[1], (other.port(), false, "allowlist".into(), why));
    end(engine, sandbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_public_mode_the_host_itself_and_inner_networks_are_reset() {
    let server = server();
    let (engine, sandbox) = with(NetworkPolicy::Public).await;
    for to in [server.to_string().as_str(), "10.0.0.1:80", "169.254.169.254:80", "192.168.1.1:443", "[fd00::1]:80"] {
        let refused = fetch(&*sandbox, to.parse().unwrap()).await;
        assert_eq!(refused, libc::ECONNRESET.to_string(), "{to}");
    }
    end(engine, sandbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loopback_stays_the_sandboxs_own_and_other_udp_is_refused() {
    let (engine, sandbox) = with(NetworkPolicy::Public).await;
    // By its own address, too: many a program calls itself by the address of its machine.
    for address in ["127.0.0.1", "::1", "198.18.0.1", "fdca:ba2a:6e63::1"] {
        let own = format!(
            "import socket\nl=socket.create_server(('::',8080),family=socket.AF_INET6,dualstack_ipv6=True); c=socket.create_connection(('{address}',8080),20); c.sendall(b'own'); print(l.accept()[0].recv(3).decode())"
        );
        assert_eq!(shell(&*sandbox, "user", &format!("python3 -c \"{own}\"")).await.ok(), "own", "{address}");
    }
    // A socket of its own on all addresses must not answer for the world.
    let udp = "import socket\nl=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); l.bind(('0.0.0.0',9999)); l.settimeout(1)\nc=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ntry:\n  c.connect(('8.8.8.8',9999)); c.send(b'x'); c.send(b'x'); print('sent', l.recv(1))\nexcept OSError as e: print('refused', type(e).__name__)";
    let said = shell(&*sandbox, "user", &format!("python3 - <<'EOF'\n{udp}\nEOF")).await.ok();
    assert!(said.starts_with("refused"), "{said}");
    end(engine, sandbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_changes_at_run_time_and_stays_through_stop_and_start() {
    let server = server();
    let (engine, sandbox) = with(NetworkPolicy::Off).await;
    assert_eq!(fetch(&*sandbox, server).await, libc::ENETUNREACH.to_string());
    sandbox.update(Wanted::Network(NetworkPolicy::Allow(vec![server.to_string()]))).await.unwrap();
    assert_eq!(fetch(&*sandbox, server).await, "served");
    engine.stop(sandbox.id()).await.unwrap();
    let sandbox = engine.start(sandbox.id()).await.unwrap();
    assert_eq!(fetch(&*sandbox, server).await, "served");
    sandbox.update(Wanted::Network(NetworkPolicy::Off)).await.unwrap();
    assert_eq!(fetch(&*sandbox, server).await, libc::ECONNRESET.to_string());
    end(engine, sandbox).await;
}

/// Otherwise who may visit a port of the sandbox goes out as the sandbox.
#[tokio::test(flavor = "multi_thread")]
async fn no_visitor_comes_to_the_sandboxs_own_way_out() {
    let (engine, sandbox) = with(NetworkPolicy::Public).await;
    let listening = "awk '$4 == \"0A\" { split($2, at, \":\"); print at[2] }' /proc/net/tcp /proc/net/tcp6 | sort -u";
    let ports = shell(&*sandbox, "user", listening).await.ok();
    let ports: Vec<_> = ports.lines().map(|port| u16::from_str_radix(port, 16).unwrap()).collect();
    assert!(ports.len() >= 4, "TCP, questions and two kinds of proxies: {ports:?}");
    for port in ports {
        let inside = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && echo in");
        assert_eq!(shell(&*sandbox, "user", &format!("bash -c '{inside}'")).await.ok(), "in", "the control");
        let refused = sandbox.connect(port).await.err().unwrap();
        assert!(matches!(refused, Error::PortClosed(closed) if closed == port), "{port}: {refused}");
    }
    end(engine, sandbox).await;
}

/// Whether it does so before or after the connection stands is chance.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_resets_every_connection_is_no_fault_of_ours() {
    let (engine, sandbox) = with(NetworkPolicy::Off).await;
    let server = "import os,socket,struct\nl=socket.create_server(('127.0.0.1',8000),backlog=128)\nfor _ in range(3): os.fork()\nwhile True:\n  c=l.accept()[0]; c.setsockopt(socket.SOL_SOCKET,socket.SO_LINGER,struct.pack('ii',1,0)); c.close()";
    let serve = ExecSpec::argv(["/usr/bin/python3", "-c", server], SandboxPath::root());
    let _server = sandbox.exec(serve).await.unwrap();
    let listens = "bash -c 'until (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done'";
    shell(&*sandbox, "user", listens).await.ok();
    for _ in 0..1000 {
        if let Err(error) = sandbox.connect(8000).await {
            assert!(matches!(error, Error::PortReset(8000)), "{error}");
        }
    }
    end(engine, sandbox).await;
}

/// Inits wait with a way out or without, as the last sandbox had it: whichever one is taken, the sandbox has what it was made with.
#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_with_a_network_and_without_come_one_after_another() {
    let (server, engine) = (server(), stage::engine().await);
    let (on, off) = (NetworkPolicy::Allow(vec![server.to_string()]), NetworkPolicy::Off);
    for network in [&on, &on, &off, &on, &off, &off, &off, &on, &on, &off] {
        let spec = SandboxSpec { network: network.clone(), ..SandboxSpec::new(Base::Host) };
        let sandbox = engine.create(&SandboxId::random(), &spec).await.unwrap();
        let wanted = if *network == off { libc::ENETUNREACH.to_string() } else { "served".to_owned() };
        assert_eq!(fetch(&*sandbox, server).await, wanted, "{network:?}");
        engine.destroy(sandbox.id()).await.unwrap();
    }
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_not_listed_does_not_exist_whichever_server_is_asked() {
    let (engine, sandbox) = with(NetworkPolicy::Allow(vec!["listed.example".into()])).await;
    let mut events = engine.events();
    let library =
        "import socket\ntry: print(socket.gethostbyname('other.example'))\nexcept OSError as e: print('none')";
    assert_eq!(shell(&*sandbox, "user", &format!("python3 - <<'EOF'\n{library}\nEOF")).await.ok(), "none");
    let (_, event) = events.next().await.unwrap().unwrap();
    assert!(
        matches!(&event, SandboxEvent::Network { host, allowed: false, .. } if host == "other.example"),
        "{event:?}"
    );
    let server = "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(20); s.connect(('9.9.9.9',53))\ns.send(bytes.fromhex('beef01000001000000000000056f74686572076578616d706c650000010001'))\na=s.recv(512); print(a[:2].hex(), a[3]&15)";
    assert_eq!(shell(&*sandbox, "user", &format!("python3 - <<'EOF'\n{server}\nEOF")).await.ok(), "beef 3");
    end(engine, sandbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_names_no_such_form_is_refused_and_nothing_is_made() {
    let (engine, sandbox) = with(NetworkPolicy::Off).await;
    for rule in ["", "http://example.com", "exa mple", "*", "10.0.0.0/99", "example.com:0", "ex*mple.com"] {
        let policy = NetworkPolicy::Allow(vec![rule.to_owned()]);
        let id = SandboxId::random();
        let spec = SandboxSpec { network: policy.clone(), ..SandboxSpec::new(Base::Host) };
        let refused = engine.create(&id, &spec).await.err().unwrap_or_else(|| panic!("{rule:?} is taken"));
        assert_eq!(refused.code(), Code::BadRequest, "{rule:?}: {refused}");
        assert!(matches!(engine.attach(&id).await.unwrap(), cabana_sandbox::Found::Absent));
        let refused = sandbox.update(Wanted::Network(policy)).await.unwrap_err();
        assert_eq!(refused.code(), Code::BadRequest, "{rule:?}: {refused}");
    }
    end(engine, sandbox).await;
}

/// A connection that is held open by a process inside, which says how it ends.
async fn hold(sandbox: &dyn Sandbox, to: SocketAddr, log: &str) {
    let code = format!(
        "import socket\ns=socket.create_connection(('{}',{}),20); s.settimeout(None); print('up',flush=True)\ntry: print('end',s.recv(1),flush=True)\nexcept OSError as e: print('reset',e.errno,flush=True)",
        to.ip(),
        to.port()
    );
    let script = format!("setsid python3 - >/tmp/{log} 2>&1 <<'EOF' &\n{code}\nEOF");
    shell(sandbox, "user", &script).await.ok();
    said(sandbox, log, "up").await;
}

async fn said(sandbox: &dyn Sandbox, log: &str, word: &str) {
    let began = std::time::Instant::now();
    while !shell(sandbox, "user", &format!("cat /tmp/{log} || true")).await.ok().contains(word) {
        assert!(began.elapsed() < crate::inside::PATIENCE, "{log} never said {word}");
    }
}

/// Accepts, and says nothing.
fn silent_server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        kept.extend(listener.incoming().map_while(Result::ok));
    });
    (own_address(), port).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_the_mode_ends_what_the_new_one_refuses_and_nothing_else() {
    let (server, silent) = (server(), silent_server());
    let (engine, sandbox) = with(NetworkPolicy::Off).await;
    let set = async |policy| sandbox.update(Wanted::Network(policy)).await.unwrap();
    let reset = libc::ECONNRESET.to_string();
    assert_eq!(fetch(&*sandbox, server).await, libc::ENETUNREACH.to_string());
    set(NetworkPolicy::Allow(vec![server.to_string(), silent.to_string()])).await;
    assert_eq!(fetch(&*sandbox, server).await, "served");
    hold(&*sandbox, silent, "listed").await;
    set(NetworkPolicy::Public).await;
    said(&*sandbox, "listed", "reset").await;
    assert_eq!(fetch(&*sandbox, server).await, reset);
    set(NetworkPolicy::Host).await;
    assert_eq!(fetch(&*sandbox, server).await, "served");
    hold(&*sandbox, silent, "host").await;
    set(NetworkPolicy::Allow(vec![silent.to_string()])).await;
    assert_eq!(fetch(&*sandbox, server).await, reset);
    assert_eq!(shell(&*sandbox, "user", "cat /tmp/host").await.ok(), "up", "it is listed, and goes on");
    set(NetworkPolicy::Off).await;
    said(&*sandbox, "host", "reset").await;
    assert_eq!(fetch(&*sandbox, silent).await, reset);
    end(engine, sandbox).await;
}

/// What the name of the host's loopback leads to, over the family that the address inside is of.
async fn fetch_host_name(sandbox: &dyn Sandbox, port: u16) -> String {
    let script = format!("curl -s --max-time 20 http://host.cabana.internal:{port}/ || echo failed");
    shell(sandbox, "user", &script).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn in_host_mode_the_hosts_loopback_has_a_name_and_only_there() {
    let (port, six) = (server().port(), TcpListener::bind("[::1]:0").unwrap());
    let port_of_six = six.local_addr().unwrap().port();
    answer_on(six);
    let (engine, sandbox) = with(NetworkPolicy::Host).await;
    assert_eq!(fetch_host_name(&*sandbox, port).await, "served");
    assert_eq!(fetch_host_name(&*sandbox, port_of_six).await, "served", "IPv6 is tried after IPv4");
    // The sandbox's own loopback stays its own.
    assert_eq!(fetch(&*sandbox, ([127, 0, 0, 1], port).into()).await, libc::ECONNREFUSED.to_string());
    for policy in [NetworkPolicy::Public, NetworkPolicy::Allow(vec!["host.cabana.internal".into()])] {
        sandbox.update(Wanted::Network(policy)).await.unwrap();
        assert_eq!(fetch_host_name(&*sandbox, port).await, "failed");
    }
    let rules = vec!["host.cabana.internal".into(), format!("127.0.0.1:{port}")];
    sandbox.update(Wanted::Network(NetworkPolicy::Allow(rules))).await.unwrap();
    assert_eq!(fetch_host_name(&*sandbox, port).await, "served", "a list may name it, with its address");
    end(engine, sandbox).await;
}

/// Begins TLS with a hello that names the host, and one in it that says which site is meant where `encrypted`.
async fn hello(sandbox: &dyn Sandbox, port: u16, encrypted: bool) -> String {
    let code = format!(
        "import os, socket
def of(size, data): return len(data).to_bytes(size, 'big') + data
name = of(2, of(2, b'\\0' + of(2, b'host.cabana.internal')))
more = b'\\xfe\\x0d' + of(2, b'\\0' * 9) if {} else b''
body = b'\\x03\\x03' + os.urandom(32) + b'\\0' + of(2, b'\\x13\\x01') + b'\\x01\\0' + of(2, b'\\0\\0' + name + more)
s = socket.create_connection(('host.cabana.internal', {port}), 20)
try:
  s.sendall(b'\\x16\\x03\\x01' + of(2, b'\\x01' + of(3, body)))
  print(s.makefile().read()[-6:])
except OSError as e: print(e.errno)",
        if encrypted { "True" } else { "False" }
    );
    crate::inside::python(sandbox, "user", &code).await.ok().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_list_a_hello_with_an_encrypted_one_is_reset_where_the_operator_says_so() {
    let port = server().port();
    let listed = NetworkPolicy::Allow(vec!["host.cabana.internal".into(), format!("127.0.0.1:{port}")]);
    let spec = SandboxSpec { network: listed, ..SandboxSpec::new(Base::Host) };
    for (encrypted_hello, said) in
        [(EncryptedHello::Pass, "served".to_owned()), (EncryptedHello::Refuse, libc::ECONNRESET.to_string())]
    {
        let network = NetworkSettings { encrypted_hello, ..NetworkSettings::default() };
        let config = Config { network, ..stage::config(stage::shared_data()) };
        let engine = Engine::open(config).await.unwrap();
        let sandbox = engine.create(&SandboxId::random(), &spec).await.unwrap();
        assert_eq!(hello(&*sandbox, port, false).await, "served", "the control");
        assert_eq!(hello(&*sandbox, port, true).await, said, "{encrypted_hello:?}");
        end(engine, sandbox).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_host_mode_abstract_sockets_of_the_host_stay_out_of_reach() {
    use std::os::{linux::net::SocketAddrExt as _, unix::net};
    let name = crate::inside::unique("cabana-abstract");
    let address = net::SocketAddr::from_abstract_name(&name).unwrap();
    let listener = net::UnixListener::bind_addr(&address).unwrap();
    let (engine, sandbox) = with(NetworkPolicy::Host).await;
    let code = format!(
        "import socket\ntry: socket.socket(socket.AF_UNIX).connect('\\0{name}'); print('in')\nexcept OSError as e: print(e.errno)"
    );
    let said = crate::inside::python(&*sandbox, "root", &code).await.ok();
    assert_eq!(said, libc::ECONNREFUSED.to_string());
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
    end(engine, sandbox).await;
}
