//! Each way out carries what is allowed and refuses the rest in its own words.

use std::process::Command;

use cabana_egress::{How, Reason};
use cabana_sandbox::NetworkPolicy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::stage::{EXAMPLE, Stage, Web, allow, ask, echo, is_reset, server};

fn curl(arguments: &[&str]) -> (String, i32) {
    let arguments = [&["--silent", "--max-time", "20", "--noproxy", ""], arguments].concat();
    let run = || Command::new("curl").env_clear().args(&arguments).output().expect("curl is there");
    let output = tokio::task::block_in_place(run);
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap_or(-1))
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_fetches_through_the_http_proxy_and_its_tunnel() {
    let stage = Stage::new(&allow(&["example.com"]));
    let (web, address) = Web::hello();
    stage.example(80, address);
    let proxy = format!("http://{}", stage.http);
    assert_eq!(curl(&["--proxy", &proxy, "http://example.com/a?b"]), ("hello".into(), 0));
    assert_eq!(curl(&["--proxy", &proxy, "--proxytunnel", "http://example.com/c"]), ("hello".into(), 0));
    let requests = web.requests();
    assert!(requests[0].starts_with("GET /a?b HTTP/1.1\r\nHost: example.com\r\n"), "{}", requests[0]);
    assert!(requests[0].contains("Connection: close\r\n") && !requests[0].contains("Proxy-"), "{}", requests[0]);
    assert!(requests[1].starts_with("GET /c HTTP/1.1\r\nHost: example.com\r\n"), "{}", requests[1]);
    assert_eq!(stage.dialled(), [format!("{EXAMPLE}:80"), format!("{EXAMPLE}:80")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_sends_bodies_of_both_kinds() {
    let stage = Stage::new(&NetworkPolicy::Public);
    let (web, address) = Web::hello();
    stage.example(80, address);
    let proxy = format!("http://{}", stage.http);
    let url = "http://example.com/";
    assert_eq!(curl(&["--proxy", &proxy, "--data", "a=b", url]), ("hello".into(), 0));
    let chunked = ["--proxy", &proxy, "--data", "a=b", "-H", "Transfer-Encoding: chunked", url];
    assert_eq!(curl(&chunked), ("hello".into(), 0));
    let requests = web.requests();
    assert!(requests[0].ends_with("Content-Length: 3\r\nConnection: close\r\n\r\na=b"), "{}", requests[0]);
    assert!(requests[1].ends_with("Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\na=b\r\n0\r\n\r\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_fetches_through_socks_by_name_and_by_address() {
    let stage = Stage::new(&allow(&["example.com", EXAMPLE]));
    let (_, address) = Web::hello();
    stage.example(80, address);
    let by_name = format!("socks5h://{}", stage.socks);
    assert_eq!(curl(&["--proxy", &by_name, "http://example.com/"]), ("hello".into(), 0));
    let by_address = format!("socks5://{}", stage.socks);
    assert_eq!(curl(&["--proxy", &by_address, &format!("http://{EXAMPLE}/")]), ("hello".into(), 0));
    // 97: the proxy refused.
    assert_eq!(curl(&["--proxy", &by_name, "http://other.com/"]).1, 97);
}

#[tokio::test]
async fn a_redirected_connection_by_synthetic_address_reaches_the_name_behind_it() {
    let stage = Stage::new(&allow(&["example.com"]));
    stage.example(7, echo());
    let mut stream = stage.redirected_to_name("example.com", 7).await;
    stream.write_all(b"ping\n").await.unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"ping\n");
    assert_eq!(stage.dialled(), [format!("{EXAMPLE}:7")]);
    let event = stage.events().pop().unwrap();
    assert_eq!((&*event.host, event.port, event.allowed, &*event.rule), ("example.com", 7, true, "example.com"));
    assert_eq!((event.how, event.reason), (How::Transparent, Reason::Listed));
}

#[tokio::test]
async fn a_synthetic_address_is_its_name_on_the_other_ways_too() {
    let stage = Stage::new(&allow(&["example.com"]));
    stage.example(7, echo());
    let synthetic = crate::dns::look_up(&stage, "example.com").await.unwrap();
    let (_, head) = stage.tunnel(&format!("{synthetic}:7")).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(stage.dialled(), [format!("{EXAMPLE}:7")]);
    let (_, head) = stage.tunnel("198.18.200.200:7").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert_eq!(stage.last_refusal().reason, Reason::NoName);
}

#[tokio::test]
async fn a_refused_redirect_is_a_reset() {
    let stage = Stage::new(&NetworkPolicy::Public);
    for address in ["10.0.0.1:80", "127.0.0.1:80", "169.254.169.254:80", "198.18.9.9:80", "[::1]:80", "[fe80::1]:80"] {
        assert!(is_reset(&mut stage.redirected(address).await).await, "{address}");
    }
    // Allowed, but there is nobody.
    assert!(is_reset(&mut stage.redirected("1.2.3.4:80").await).await);
    assert_eq!(stage.dialled(), ["1.2.3.4:80"]);
}

#[tokio::test]
async fn a_connection_to_the_redirect_itself_is_reset_even_where_the_loopback_is_listed() {
    let stage = Stage::new(&allow(&["127.0.0.1"]));
    assert!(is_reset(&mut stage.redirected(&stage.transparent.to_string()).await).await);
    assert_eq!(stage.last_refusal().reason, Reason::NoName);
    assert!(stage.dialled().is_empty());
}

#[tokio::test]
async fn an_http_refusal_names_rule_reason_and_remedy() {
    let stage = Stage::new(&allow(&["example.com"]));
    let answer = ask(stage.http, b"GET http://other.com/ HTTP/1.1\r\nHost: other.com\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    let body = "Cabana refused other.com:80.\nRule: allowlist\nReason: no rule of the allow-list covers it.\n\
                What to do: Add this host to the sandbox's allow-list.\n";
    assert!(answer.ends_with(body), "{answer}");
    let answer =
        ask(stage.http, b"CONNECT nowhere.example.com:443 HTTP/1.1\r\nHost: nowhere.example.com\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(stage.dialled().is_empty() && stage.world.looked_up.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_name_that_does_not_exist_and_a_server_that_is_down_are_no_refusals() {
    let stage = Stage::new(&NetworkPolicy::Public);
    let answer = ask(stage.http, b"GET http://no.such/ HTTP/1.1\r\nHost: no.such\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("there is no such name"), "{answer}");
    stage.name("down.com", &[&["1.2.3.4"]]);
    let answer = ask(stage.http, b"GET http://down.com/ HTTP/1.1\r\nHost: down.com\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("does not answer"), "{answer}");
}

#[tokio::test]
async fn socks_replies_say_what_happened() {
    let stage = Stage::new(&NetworkPolicy::Public);
    let reply = async |request: &[u8]| {
        let mut stream = TcpStream::connect(stage.socks).await.unwrap();
        stream.write_all(&[&[5, 1, 0][..], request].concat()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer[..2], [5, 0]);
        answer[3]
    };
    assert_eq!(reply(&[5, 1, 0, 1, 127, 0, 0, 1, 0, 80]).await, 2);
    assert_eq!(reply(b"\x05\x01\0\x03\x060x7f.1\0\x50").await, 2);
    assert_eq!(reply(b"\x05\x01\0\x03\x04a b \0\x50").await, 2);
    assert_eq!(reply(b"\x05\x01\0\x03\x07no.such\0\x50").await, 4);
    assert_eq!(reply(&[5, 2, 0, 1, 1, 2, 3, 4, 0, 80]).await, 7);
    assert!(stage.dialled().is_empty());
}

#[tokio::test]
async fn the_end_of_one_side_is_passed_on_and_the_other_side_goes_on() {
    // A server that answers only when it has seen the end of what it was sent.
    let counts = server(|mut stream| {
        use std::io::{Read, Write};
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(format!("{} bytes", all.len()).as_bytes()).unwrap();
    });
    let stage = Stage::new(&NetworkPolicy::Public);
    stage.example(7, counts);
    for mut stream in [stage.redirected_to_name("example.com", 7).await, stage.tunnel("example.com:7").await.0] {
        stream.write_all(&[1; 1000]).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "1000 bytes");
    }
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard_under_an_allow_list() {
    let greeter = server(|mut stream| {
        use std::io::{Read, Write};
        stream.write_all(b"SSH-2.0-server\r\n").unwrap();
        let mut answer = [0; 16];
        stream.read_exact(&mut answer).unwrap();
        stream.write_all(&answer).unwrap();
    });
    let stage = Stage::new(&allow(&["example.com:22"]));
    stage.example(22, greeter);
    let mut stream = stage.redirected_to_name("example.com", 22).await;
    let mut line = [0; 16];
    stream.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"SSH-2.0-server\r\n");
    stream.write_all(b"SSH-2.0-client\r\n").await.unwrap();
    stream.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"SSH-2.0-client\r\n");
}

#[tokio::test]
async fn the_second_address_is_tried_when_the_first_does_not_answer() {
    let stage = Stage::new(&NetworkPolicy::Public);
    stage.name("two.com", &[&["2606::1", "10.0.0.1", "1.2.3.4"]]);
    stage.server("1.2.3.4:7", echo());
    let (_, head) = stage.tunnel("two.com:7").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(stage.dialled(), ["[2606::1]:7", "1.2.3.4:7"], "the private one is passed over");
}
