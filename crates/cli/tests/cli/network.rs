//! Flags of `cabana run` about the network: the mode of the host, a proxy on the way, an authority.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    process::Command,
    sync::mpsc::{Receiver, channel},
};

use crate::kit::{Ends, run};

/// Answers the first line of each connection with one of its own, and tells what it was.
fn server(answer: &'static str) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, told) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut head = [0; 4096];
            let length = stream.read(&mut head).unwrap_or(0);
            let line = String::from_utf8_lossy(&head[..length]).lines().next().unwrap_or_default().to_owned();
            let _ = asked.send(line);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (address, told)
}

#[test]
fn in_host_mode_the_hosts_loopback_is_reached_by_its_name() {
    let (address, _) = server("HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nserved");
    let url = format!("http://host.cabana.internal:{}/", address.port());
    let words = |net: &'static str| run(&["--net", net, "--", "curl", "-sS", "--max-time", "30", &url]).ends();
    assert_eq!(words("host").well(), "served");
    let refused = words("public");
    assert!(refused.code == 6 && refused.stderr.contains("Could not resolve host"), "{refused:?}");
}

#[test]
fn a_proxy_on_the_way_is_taken_from_the_flag_or_the_environment() {
    let (address, asked) = server("HTTP/1.1 403 Forbidden\r\n\r\n");
    let url = format!("http://me:secret@{address}");
    let connect = "import socket\ntry: socket.create_connection(('93.184.216.34', 80), 30).recv(1)\nexcept OSError as e: print(e.errno)";
    let by_flag = run(&["--upstream-proxy", &url, "--", "python3", "-c", connect]).ends();
    assert_eq!(by_flag.well().trim(), "104");
    assert_eq!(asked.recv().unwrap(), "CONNECT 93.184.216.34:80 HTTP/1.1");
    let by_variable = run(&["--", "python3", "-c", connect]).env("CABANA_NETWORK_UPSTREAM_PROXY", &url).ends();
    assert_eq!(by_variable.well().trim(), "104");
    assert_eq!(asked.recv().unwrap(), "CONNECT 93.184.216.34:80 HTTP/1.1");
    let help = run(&["--help"]).env("CABANA_NETWORK_UPSTREAM_PROXY", &url).ends().well();
    assert!(help.contains("CABANA_NETWORK_UPSTREAM_PROXY") && !help.contains("secret"), "{help}");
}

#[test]
fn an_authority_is_trusted_inside() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test -keyout";
    let mut openssl = Command::new("openssl");
    assert!(
        openssl.args(words.split(' ')).args([&at("key"), "-out", &at("ca.pem")]).output().unwrap().status.success()
    );
    let verify = ["--", "sh", "-c", "openssl verify -CAfile $SSL_CERT_FILE $NODE_EXTRA_CA_CERTS"];
    let by_flag = run(&[&["--ca", &at("ca.pem")][..], &verify].concat()).ends();
    assert!(by_flag.well().contains(": OK"));
    assert!(run(&verify).env("CABANA_NETWORK_CA", at("ca.pem")).ends().well().contains(": OK"));
}

#[test]
fn a_setting_that_cannot_be_used_says_what_is_wrong_and_never_the_password() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    fs::write(empty.path(), "nothing\n").unwrap();
    let empty = empty.path().to_str().unwrap();
    for (words, why) in [
        (["--ca", empty], "holds no certificate"),
        (["--ca", "/no/such/file"], "/no/such/file: No such file"),
        (["--ca", "/"], "it is no file"),
        (["--upstream-proxy", "ftp://me:hunter2@proxy"], "must begin with http://, https:// or socks5://"),
        (["--upstream-proxy", "http://me:hunter2@"], "there must be a host"),
        (["--upstream-proxy", "socks5://hunter2@proxy"], "a user and a password"),
    ] {
        let told = run(&[&words[..], &["--", "true"]].concat()).ends().fails(125, "bad_request");
        assert!(told.contains(why) && !told.contains("hunter2"), "{told}");
    }
}
