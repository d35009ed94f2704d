//! What a hostile guest tries. Each test is named after what must not happen.

use std::{fs, sync::Arc, time::Duration};

use cabana_egress::{Limits, Outside, Reason};
use cabana_sandbox::{Holder, NetworkPolicy, Places, SandboxId};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::stage::{
    EXAMPLE, Stage, Web, World, allow, ask, client_hello, echo, eventually, is_refused_at, is_reset, limits, server,
};

#[tokio::test]
async fn an_allowed_name_is_no_front_for_another_tls_name() {
    let stage = Stage::new(&allow(&["example.com", "also.com"]));
    stage.example(443, echo());
    for (name, size, passes) in [
        (Some("example.com"), 9999, true),
        (Some("EXAMPLE.com"), 9999, true),
        (Some("also.com"), 9999, true),
        (None, 9999, true),
        (Some("evil.com"), 9999, false),
        (Some("evil.com"), 1, false),
        (Some("sub.example.com"), 9999, false),
        (Some("127.0.0.1"), 9999, false),
        (Some("example.com\0.evil.com"), 9999, false),
    ] {
        let hello = client_hello(name, size);
        let ways = [stage.redirected_to_name("example.com", 443).await, stage.tunnel("example.com:443").await.0];
        for mut stream in ways {
            // Byte by byte for a while: a hello may come in as many pieces as the guest likes.
            for byte in &hello[..20] {
                stream.write_all(&[*byte]).await.unwrap();
            }
            stream.write_all(&hello[20..]).await.unwrap();
            let mut echoed = vec![0; hello.len()];
            let passed = stream.read_exact(&mut echoed).await.is_ok() && echoed == hello;
            assert_eq!(passed, passes, "{name:?} in records of {size}");
        }
    }
    let told = |reason: &Reason| matches!(reason, Reason::OtherHost(host) if host == "evil.com");
    assert!(stage.events().iter().any(|event| !event.allowed && event.host == "example.com" && told(&event.reason)));
}

#[tokio::test]
async fn a_hello_that_cannot_be_read_reaches_nobody() {
    let (web, address) = Web::hello();
    let stage = Stage::new(&allow(&["example.com"]));
    stage.example(443, address);
    let mut twice = client_hello(Some("example.com"), 9999);
    twice[9] = 0; // the version, so that only the reader's care decides
    twice[6] = 0xff;
    for bytes in [&twice[..], b"\x16\x03\x01\x00\x00", b"\x16\x03\x01\x40\x01\x01"] {
        let mut stream = stage.redirected_to_name("example.com", 443).await;
        stream.write_all(bytes).await.unwrap();
        assert!(is_reset(&mut stream).await);
    }
    assert_eq!(stage.last_refusal().reason, Reason::Unreadable);
    eventually("the server saw empty connections only", || web.requests().iter().all(String::is_empty)).await;
}

#[tokio::test]
async fn a_hello_that_never_ends_is_reset_at_the_deadline() {
    let short = Limits { handshake: Duration::from_millis(50), ..limits() };
    let stage =
        Stage::with(&allow(&["example.com"]), short, |world| Outside { resolve: world.clone(), connect: world });
    stage.example(443, echo());
    let mut stream = stage.redirected_to_name("example.com", 443).await;
    stream.write_all(&client_hello(Some("example.com"), 9999)[..30]).await.unwrap();
    assert!(is_reset(&mut stream).await);
}

#[tokio::test]
async fn an_allowed_name_is_no_front_for_another_http_host() {
    let (web, address) = Web::hello();
    let stage = Stage::new(&allow(&["example.com"]));
    stage.example(80, address);
    for request in [
        "GET / HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        "GET http://evil.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: example.com\r\nHost: evil.com\r\n\r\n",
        "GET / HTTP/1.1\nHost: evil.com\n\n",
        "\r\nGET / HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        "get / http/1.1\r\nHost: evil.com\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "CONNECT evil.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n",
    ] {
        let ways = [stage.redirected_to_name("example.com", 80).await, stage.tunnel("example.com:80").await.0];
        for mut stream in ways {
            stream.write_all(request.as_bytes()).await.unwrap();
            assert!(is_reset(&mut stream).await, "{request:?}");
        }
    }
    assert!(web.requests().iter().all(String::is_empty), "{:?}", web.requests());
}

#[tokio::test]
async fn a_second_request_behind_an_allowed_one_reaches_nobody() {
    let (web, address) = Web::hello();
    let stage = Stage::new(&allow(&["example.com"]));
    stage.example(80, address);
    let second = "GET /evil HTTP/1.1\r\nHost: evil.com\r\n\r\n";
    let pair = format!("POST /good HTTP/1.1\r\nHost: example.com\r\nContent-Length: 2\r\n\r\nok{second}");
    let mut stream = stage.redirected_to_name("example.com", 80).await;
    stream.write_all(pair.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("hello"), "{answer}");
    let absolute = pair.replace("POST /good", "POST http://example.com/good");
    assert!(ask(stage.http, absolute.as_bytes()).await.ends_with("hello"));
    let requests = web.requests();
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert!(request.starts_with("POST /good ") && request.ends_with("\r\n\r\nok"), "{request}");
    }
}

#[tokio::test]
async fn no_request_that_two_readers_read_differently_is_passed_on() {
    let (web, address) = Web::hello();
    let stage = Stage::new(&allow(&["example.com"]));
    stage.example(80, address);
    for fields in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
        "X: y\r\n folded\r\n",
        "X: y\nTransfer-Encoding: chunked\r\n",
        "X: y\rTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length: +4\r\n",
        "Connection: content-length\r\nContent-Length: 4\r\n",
    ] {
        let request =
            format!("POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\n{fields}\r\n0\r\n\r\nGET /evil");
        let answer = ask(stage.http, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{fields:?}: {answer}");
    }
    for request in [
        "GET http://example.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        "GET http://example.com@evil.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "CONNECT example.com:443 HTTP/1.1\r\nHost: evil.com:443\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
    ] {
        let answer = ask(stage.http, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?}: {answer}");
    }
    assert!(web.requests().iter().all(String::is_empty), "{:?}", web.requests());
}

#[tokio::test]
async fn a_malformed_chunk_ends_the_request() {
    let (web, address) = Web::hello();
    let stage = Stage::new(&NetworkPolicy::Public);
    stage.example(80, address);
    let head = "POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = ask(stage.http, format!("{head}3\r\nabc\r\n0x0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n").as_bytes()).await;
    assert!(!answer.contains("hello"), "{answer}");
    eventually("the server has seen the end", || !web.requests().is_empty()).await;
    assert!(!web.requests()[0].contains("evil"));
}

#[tokio::test]
async fn an_answer_that_changes_between_check_and_connect_changes_nothing() {
    let stage = Stage::new(&NetworkPolicy::Public);
    stage.server(&format!("{EXAMPLE}:80"), echo());
    stage.name("rebind.com", &[&[EXAMPLE], &["127.0.0.1"]]);
    let (_, head) = stage.tunnel("rebind.com:80").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(stage.world.looked_up.lock().unwrap().len(), 1, "one connection is one lookup");
    let (_, head) = stage.tunnel("rebind.com:80").await;
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert_eq!(stage.dialled(), [format!("{EXAMPLE}:80")]);
}

#[tokio::test]
async fn a_synthetic_address_whose_name_now_points_inside_is_reset() {
    let stage = Stage::new(&allow(&["rebind.com"]));
    stage.name("rebind.com", &[&[EXAMPLE], &["169.254.169.254"]]);
    let mut stream = stage.redirected_to_name("rebind.com", 80).await;
    assert!(is_reset(&mut stream).await);
    assert!(stage.dialled().is_empty());
}

/// A guest, and its tenant, must not learn which names the operator's own networks have, nor their addresses.
#[tokio::test]
async fn a_name_that_leads_inside_is_told_as_one_that_does_not_exist() {
    for policy in [NetworkPolicy::Public, allow(&["*.corp", "8.8.8.8"])] {
        let stage = Stage::new(&policy);
        stage.name("db01.corp", &[&["10.0.0.7", "fd00::7"]]);
        let mut told = Vec::new();
        for name in ["db01.corp", "gone.corp"] {
            let get = format!("GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n");
            let answers = [
                stage.tunnel(&format!("{name}:443")).await.1,
                ask(stage.http, get.as_bytes()).await,
                ask(stage.socks, &[&[5, 1, 0, 5, 1, 0, 3, 9][..], name.as_bytes(), &[0, 80]].concat()).await,
                format!("{:?}", crate::dns::look_up(&stage, name).await),
            ];
            told.push(answers.map(|answer| answer.replace(name, "NAME")));
        }
        assert_eq!(told[0], told[1]);
        assert!(told[0][1].contains("there is no such name") && told[0][3] == "None", "{told:?}");
        assert_eq!(stage.events(), [], "the tenant hears of neither");
        assert!(stage.dialled().is_empty());
        // The name that every sandbox has for this host says why it is refused.
        let host = stage.tunnel("host.cabana.internal:80").await.1;
        assert!(host.starts_with("HTTP/1.1 403 "), "{host}");
    }
}

/// A name that is looked up is told to its servers: a way out for what a guest knows.
#[tokio::test]
async fn a_policy_that_denies_every_address_looks_no_name_up() {
    let deny_all = ["0.0.0.0/1", "128.0.0.0/1", "::/0"];
    let but = |deny: &[&str], allow: &[&str]| {
        let owned = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect();
        NetworkPolicy::PublicBut { deny: owned(deny), allow: owned(allow) }
    };
    for (policy, looked_up) in [
        (but(&deny_all, &[]), 0),
        (but(&deny_all, &["8.8.8.8"]), 4),
        (but(&deny_all[..2], &[]), 4),
        (NetworkPolicy::Off, 0),
    ] {
        let stage = Stage::new(&policy);
        stage.name("example.com", &[&[EXAMPLE]]);
        assert_eq!(crate::dns::look_up(&stage, "example.com").await, None);
        assert!(stage.tunnel("example.com:443").await.1.starts_with("HTTP/1.1 403 "));
        let answer = ask(stage.http, b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert_eq!(ask(stage.socks, b"\x05\x01\0\x05\x01\0\x03\x0bexample.com\0\x50").await.as_bytes()[3], 2);
        assert_eq!(stage.world.looked_up.lock().unwrap().len(), looked_up, "{policy:?}");
        let reason = if policy == NetworkPolicy::Off { Reason::Off } else { Reason::Denied };
        assert_eq!(stage.last_refusal().reason, reason);
    }
}

#[tokio::test]
async fn no_notation_of_an_inner_address_gets_through_any_proxy() {
    let stage = Stage::new(&NetworkPolicy::Public);
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "0177.0.0.1",
        "2130706433",
        "0",
        "10.0.0.1",
        "169.254.169.254",
        "2852039166",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[fd00:ec2::254]",
        "168.63.129.16",
        "100.100.100.200",
        "[fe80::1]",
    ] {
        let (_, head) = stage.tunnel(&format!("{host}:80")).await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{host}: {head}");
        let request = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let answer = ask(stage.http, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{host}: {answer}");
    }
    assert!(stage.dialled().is_empty() && stage.world.looked_up.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_the_loopback_ends_at_the_proxy() {
    let (_, address) =
        Web::start("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/secret\r\nContent-Length: 0\r\n\r\n");
    let stage = Stage::new(&NetworkPolicy::Public);
    stage.example(80, address);
    let proxy = format!("http://{}", stage.http);
    let arguments = ["-s", "-L", "--noproxy", "", "--proxy", &proxy, "-w", "%{http_code}", "http://example.com/"];
    let run = || std::process::Command::new("curl").env_clear().args(arguments).output().unwrap();
    let output = String::from_utf8(tokio::task::block_in_place(run).stdout).unwrap();
    assert!(output.contains("127.0.0.1 is a loopback address") && output.ends_with("403"), "{output}");
    assert_eq!(stage.dialled(), [format!("{EXAMPLE}:80")]);
}

#[tokio::test]
async fn a_flood_of_connections_is_bounded_and_over_when_it_is_over() {
    let few = Limits { connections: 8, ..limits() };
    let stage = Stage::with(&NetworkPolicy::Public, few, |world| Outside { resolve: world.clone(), connect: world });
    stage.example(7, echo());
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(TcpStream::connect(stage.http).await.unwrap());
    }
    eventually("all places are taken", || stage.egress.connections() == 8).await;
    for _ in 0..100 {
        assert!(is_refused_at(stage.socks).await);
    }
    assert_eq!(stage.egress.connections(), 8);
    assert_eq!(stage.last_refusal().reason, Reason::TooManyConnections);
    drop(held);
    eventually("the places are free", || stage.egress.connections() == 0).await;
    assert!(stage.tunnel("example.com:7").await.1.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn one_sandbox_leaves_connections_to_the_others() {
    let places = Places::new(40);
    let outside = |world: Arc<World>| Outside { resolve: world.clone(), connect: world };
    let among = |tenant: &str| {
        let shared = (places.clone(), Holder::tenant(tenant));
        Stage::among(shared, &NetworkPolicy::Public, limits(), outside)
    };
    let [greedy, modest] = ["one", "two"].map(among);
    modest.example(7, echo());
    let mut held = Vec::new();
    for _ in 0..30 {
        held.push(TcpStream::connect(greedy.http).await.unwrap());
    }
    eventually("it has three quarters", || greedy.egress.connections() == 30).await;
    for _ in 0..20 {
        assert!(is_refused_at(greedy.http).await);
    }
    assert_eq!(greedy.last_refusal().reason, Reason::NoPlace);
    for _ in 0..8 {
        assert!(modest.tunnel("example.com:7").await.1.starts_with("HTTP/1.1 200 "));
    }
    drop(held);
    eventually("the places are free", || greedy.egress.connections() == 0).await;
    held = vec![TcpStream::connect(greedy.http).await.unwrap()];
    eventually("it has one again", || greedy.egress.connections() == 1).await;
    drop(held);
}

#[tokio::test]
async fn a_connection_for_whose_queues_there_is_no_room_is_reset() {
    let stage = Stage::with_queues(Places::new(40), limits());
    stage.example(7, echo());
    let mut held = Vec::new();
    for _ in 0..40 {
        held.extend(TcpStream::connect(stage.http).await); // one that is refused may be reset by then
    }
    let is_refused = || stage.events().iter().any(|event| event.reason == Reason::NoPlace);
    eventually("it has three quarters", || is_refused() && stage.egress.connections() == 30).await;
    assert!(is_refused_at(stage.http).await);
    drop(held);
    eventually("the places are free", || stage.egress.connections() == 0).await;
    assert!(stage.tunnel("example.com:7").await.1.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn many_sandboxes_of_one_tenant_leave_connections_to_another() {
    let places = Places::new(40);
    let among = |tenant: &str, id: &str| {
        let holder = Holder::sandbox(Some(tenant), &SandboxId::new(id).unwrap());
        let outside = |world: Arc<World>| Outside { resolve: world.clone(), connect: world };
        Stage::among((places.clone(), holder), &NetworkPolicy::Public, limits(), outside)
    };
    let greedy = ["sandbox1", "sandbox2", "sandbox3"].map(|id| among("one", id));
    let modest = among("two", "sandbox4");
    modest.example(7, echo());
    let mut held = Vec::new();
    for (stage, gets) in greedy.iter().zip([30, 5, 0]) {
        for _ in 0..gets {
            held.push(TcpStream::connect(stage.http).await.unwrap());
        }
        eventually("it has as many as it gets", || stage.egress.connections() == gets).await;
        assert!(is_refused_at(stage.http).await);
    }
    assert!(modest.tunnel("example.com:7").await.1.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_client_that_never_finishes_its_handshake_is_let_go() {
    let short = Limits { handshake: Duration::from_millis(50), ..limits() };
    let stage = Stage::with(&NetworkPolicy::Public, short, |world| Outside { resolve: world.clone(), connect: world });
    for (at, bytes) in [(stage.http, &b"GET http://exam"[..]), (stage.socks, b"\x05\x01"), (stage.dns_tcp, b"\0")] {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 408 "));
    }
}

#[tokio::test]
async fn heads_without_end_are_cut_off() {
    let stage = Stage::new(&NetworkPolicy::Public);
    let endless = [b"GET http://example.com/ HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 100_000]].concat();
    let answer = ask(stage.http, &endless).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
    eventually("the connection is over", || stage.egress.connections() == 0).await;
}

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn a_reader_that_is_slower_than_its_server_does_not_fill_the_memory() {
    const SENT: usize = 256 << 20;
    let source = server(|mut stream| {
        use std::io::Write;
        let piece = vec![7; 1 << 20];
        for _ in 0..SENT >> 20 {
            if stream.write_all(&piece).is_err() {
                return;
            }
        }
    });
    let stage = Stage::new(&NetworkPolicy::Public);
    stage.example(7, source);
    let (mut stream, _) = stage.tunnel("example.com:7").await;
    let before = resident();
    let mut buffer = vec![0; 256 * 1024];
    let (mut total, mut most) = (0, before);
    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
        total += len;
        most = most.max(resident());
    }
    assert_eq!(total, SENT);
    // Other tests run in this process; a transfer that is kept would show as 256 MiB.
    assert!(most < before + 64 * 1024, "{before} KiB became {most} KiB");
}

/// Servers that take more bytes for spaces than the standard has, or any byte in a target, find a request in these.
const ODD_REQUESTS: [&[u8]; 8] = [
    b"GET\x0b/x HTTP/1.1\r\nHost: evil.com\r\n\r\n",
    b"GET\x1c/x HTTP/1.1\r\nHost: evil.com\r\n\r\n",
    b"GET\xa0/x HTTP/1.1\r\nHost: evil.com\r\n\r\n",
    b"\x0bGET /x HTTP/1.1\r\nHost: evil.com\r\n\r\n",
    b"\x85\nGET /x HTTP/1.1\r\nHost: evil.com\r\n\r\n",
    b"PROPFIND /\xc3\xa9 HTTP/1.1\r\nHost: evil.com\r\n\r\n",
    b"PROPFIND /\xff HTTP/1.1\r\nHost: evil.com\r\n\r\nGET / HTTP/1.1\r\nHost: evil.com\r\n\r\n",
    b"PROPFIND /\x00 http/1.1\r\nHost: evil.com\r\n\r\n",
];

#[tokio::test]
async fn a_request_with_odd_bytes_in_its_first_line_is_no_front() {
    let (web, address) = Web::hello();
    let (free, stage) = (Stage::new(&NetworkPolicy::Public), Stage::new(&allow(&["example.com"])));
    free.example(80, address);
    stage.example(80, address);
    for request in ODD_REQUESTS {
        // The control: without an allow-list it gets there.
        let mut stream = free.redirected_to_name("example.com", 80).await;
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
        for split in [0, 1, 10, request.len() - 30] {
            let ways = [stage.redirected_to_name("example.com", 80).await, stage.tunnel("example.com:80").await.0];
            for mut stream in ways {
                stream.set_nodelay(true).unwrap();
                stream.write_all(&request[..split]).await.unwrap();
                tokio::task::yield_now().await;
                let _reset_already = stream.write_all(&request[split..]).await;
                assert!(is_reset(&mut stream).await, "{:?} at {split}", String::from_utf8_lossy(request));
            }
        }
    }
    let reached = |request: &String| request.contains('\n') && !request.trim().is_empty();
    assert_eq!(web.requests().iter().filter(|request| reached(request)).count(), ODD_REQUESTS.len(), "the controls");
}

/// Sends it in pieces, and the end of what is sent with the last.
async fn send_and_end(stream: &mut TcpStream, pieces: &[&[u8]]) {
    for piece in pieces {
        let _reset_already = stream.write_all(piece).await;
        tokio::task::yield_now().await;
    }
    let _reset_already = stream.shutdown().await;
}

#[tokio::test]
async fn a_first_line_without_a_bound_and_a_head_without_an_end_are_no_front() {
    let (web, address) = Web::hello();
    let stage = Stage::new(&allow(&["example.com"]));
    stage.example(80, address);
    let long = [&b"QUERY /\xff?"[..], &vec![b'a'; 200_000]].concat();
    let requests: [&[&[u8]]; 3] = [
        &[&long, b" HTTP/1.1\r\nHost: other.com\r\n\r\n"],
        &[&long, b" HT", b"TP/1.1\r\nHost: other.com\r\n\r\n"],
        &[b"PROPFIND / HTTP/1.1\r\nHost: other.com\r\n"],
    ];
    for pieces in requests {
        let mut stream = stage.redirected_to_name("example.com", 80).await;
        send_and_end(&mut stream, pieces).await;
        assert!(is_reset(&mut stream).await);
        assert_eq!(stage.last_refusal().reason, Reason::Unreadable);
    }
    assert!(!web.requests().iter().any(|request| request.contains("other.com")), "{:?}", web.requests());
}

#[tokio::test]
async fn a_hello_in_a_record_of_no_known_version_reaches_nobody() {
    let stage = Stage::new(&allow(&["example.com"]));
    stage.example(443, echo());
    let hello = client_hello(Some("other.com"), 9999);
    for version in [[1, 1], [2, 0], [0, 3], [4, 1], [255, 255]] {
        let mut odd = hello.clone();
        odd[1..3].copy_from_slice(&version);
        let mut stream = stage.redirected_to_name("example.com", 443).await;
        let _reset_already = stream.write_all(&odd).await;
        assert!(is_reset(&mut stream).await, "{version:?}");
    }
    // The control: with the usual version the name is what decides.
    let mut stream = stage.redirected_to_name("example.com", 443).await;
    stream.write_all(&client_hello(Some("example.com"), 9999)).await.unwrap();
    assert!(stream.read_u8().await.is_ok());
}

#[tokio::test]
async fn bytes_of_no_request_are_passed_on_before_their_line_ends() {
    let stage = Stage::new(&allow(&["example.com"]));
    stage.example(9418, echo());
    let messages: [&[&[u8]]; 4] = [
        &[b"0032git-upload-pack /x\0host=a\0", b"0000"],
        &[b"\x13BitTorrent protocol\0\0", b"more"],
        &[b"\x01", b"\x02", b"\0", b"\n", b"GET / HTTP/1.1\n"],
        &[b"Q \xff", b"SELECT 1\n", b"GET / HTTP/1.1\r\nHost: other.com\r\n\r\n"],
    ];
    for pieces in messages {
        let mut stream = stage.redirected_to_name("example.com", 9418).await;
        for piece in pieces {
            stream.write_all(piece).await.unwrap();
            let mut echoed = vec![0; piece.len()];
            stream.read_exact(&mut echoed).await.unwrap();
            assert_eq!(echoed, *piece);
        }
    }
    let mut stream = stage.redirected_to_name("example.com", 9418).await;
    let beginning = b"PROPFIND /\xff HT";
    stream.write_all(beginning).await.unwrap();
    stream.read_exact(&mut vec![0; beginning.len()]).await.unwrap();
    stream.write_all(b"TP/1.1\r\nHost: evil.com\r\n\r\n").await.unwrap();
    assert!(is_reset(&mut stream).await, "the end of a request");
    assert_eq!(stage.last_refusal().reason, Reason::Unreadable);
}
