//! A server with a certificate.

use std::process::Command;

use super::{Ended, cabana, ends, fails, terminal::on_terminal};
use crate::stage::Server;

#[test]
fn a_certificate_is_checked_and_carries_every_verb() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test -addext \
                 subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE -keyout";
    let mut openssl = Command::new("openssl");
    let made = openssl.args(words.split_whitespace()).args([&at("key"), "-out", &at("cert")]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let server = Server::start_with(&["--tls-cert", &at("cert"), "--tls-key", &at("key")]);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let mut trusting = cabana(&server, &["exec", "box", "--", "echo", "hidden"]);
    trusting.env("SSL_CERT_FILE", at("cert"));
    assert_eq!(ends(trusting).stdout, "hidden\n");
    let mut terminal = on_terminal(&server, "$CABANA shell box -- sh -c 'test -t 0 && exit 4'");
    terminal.env("SSL_CERT_FILE", at("cert"));
    assert_eq!(Ended::from(terminal.output().unwrap()).code, Some(4));
    let told = fails(cabana(&server, &["ls"]), 1, "provider_offline");
    assert!(told.contains("certificate"), "{told}");
}
