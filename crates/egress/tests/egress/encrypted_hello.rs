//! Encrypted Client Hello (ECH): the name that counts is in a hello inside of the one that is seen.

use cabana_egress::{EncryptedHello, Reason};
use cabana_sandbox::NetworkPolicy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    hello_retry::retrying,
    stage::{EXAMPLE, Stage, allow, client_hello, client_hello_with_encrypted, echo, eventually, is_reset, policy},
};

const STARTTLS: &[u8] = b"EHLO me\r\nSTARTTLS\r\n";

/// Under the policy, with a server that echoes.
fn stage(wanted: &NetworkPolicy, encrypted_hello: EncryptedHello) -> Stage {
    let stage = Stage::new(wanted);
    stage.egress.set_policy(policy(wanted).with_encrypted_hello(encrypted_hello));
    stage.example(443, echo());
    stage
}

async fn echoes(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    let mut echoed = vec![0; bytes.len()];
    stream.write_all(bytes).await.is_ok() && stream.read_exact(&mut echoed).await.is_ok() && echoed == bytes
}

/// By whatever way, and whether it comes first or later.
async fn passes(stage: &Stage, hello: &[u8]) -> Vec<bool> {
    let mut passes = Vec::new();
    for before in [&b""[..], STARTTLS] {
        for mut stream in [stage.redirected_to_name("example.com", 443).await, stage.tunnel("example.com:443").await.0]
        {
            assert!(echoes(&mut stream, before).await);
            passes.push(echoes(&mut stream, hello).await);
        }
    }
    passes
}

#[tokio::test]
async fn a_list_that_refuses_encrypted_hellos_is_not_got_around_by_one() {
    let stage = stage(&allow(&["example.com"]), EncryptedHello::Refuse);
    for size in [1, 7, 9999] {
        for name in [Some("example.com"), None] {
            assert_eq!(passes(&stage, &client_hello_with_encrypted(name, size)).await, [false; 4], "{name:?}, {size}");
            assert_eq!(stage.last_refusal().reason, Reason::EncryptedHello);
            assert_eq!(passes(&stage, &client_hello(name, size)).await, [true; 4], "the control: {name:?}, {size}");
        }
    }
    let event = stage.last_refusal();
    assert_eq!((&*event.host, event.port, &*event.rule), ("example.com", 443, "allowlist"));
}

#[tokio::test]
async fn a_refused_encrypted_hello_is_reset_and_its_server_hears_nothing_of_it() {
    let (seen, address) = retrying();
    let stage = stage(&allow(&["example.com"]), EncryptedHello::Refuse);
    stage.example(443, address);
    let mut stream = stage.redirected_to_name("example.com", 443).await;
    stream.write_all(&client_hello_with_encrypted(Some("example.com"), 9999)).await.unwrap();
    assert!(is_reset(&mut stream).await);
    // One that comes when the server has asked for another hello.
    let first = client_hello(Some("example.com"), 9999);
    let mut stream = stage.redirected_to_name("example.com", 443).await;
    stream.write_all(&first).await.unwrap();
    stream.read_u8().await.unwrap();
    stream.write_all(&client_hello_with_encrypted(Some("example.com"), 9999)).await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.expect_err("it is reset");
    eventually("the server saw the first hello of the second connection only", || {
        let seen = seen.lock().unwrap();
        seen.iter().all(|bytes| bytes.is_empty() || *bytes == first) && seen.contains(&first)
    })
    .await;
    assert_eq!(stage.last_refusal().reason, Reason::EncryptedHello);
}

#[tokio::test]
async fn encrypted_hellos_pass_unless_a_list_refuses_them() {
    let hello = client_hello_with_encrypted(Some("example.com"), 9999);
    for (wanted, encrypted_hello) in [
        (allow(&["example.com"]), EncryptedHello::default()),
        (NetworkPolicy::Public, EncryptedHello::Refuse), // names are not told apart
    ] {
        let stage = stage(&wanted, encrypted_hello);
        assert_eq!(passes(&stage, &hello).await, [true; 4], "{wanted:?}");
    }
    // Nor are they at an address.
    let stage = stage(&allow(&[EXAMPLE]), EncryptedHello::Refuse);
    let mut stream = stage.redirected(&format!("{EXAMPLE}:443")).await;
    assert!(echoes(&mut stream, &hello).await);
}

#[tokio::test]
async fn the_outer_name_of_an_encrypted_hello_is_held_to_the_list() {
    for encrypted_hello in [EncryptedHello::Pass, EncryptedHello::Refuse] {
        let stage = stage(&allow(&["example.com"]), encrypted_hello);
        assert_eq!(passes(&stage, &client_hello_with_encrypted(Some("evil.com"), 9999)).await, [false; 4]);
        assert_eq!(stage.last_refusal().reason, Reason::OtherHost("evil.com".into()));
    }
}

#[tokio::test]
async fn a_policy_that_comes_to_refuse_encrypted_hellos_ends_what_began_with_one() {
    let wanted = allow(&["example.com"]);
    let stage = stage(&wanted, EncryptedHello::Pass);
    let (mut clear, mut encrypted) = (stage.tunnel("example.com:443").await.0, stage.tunnel("example.com:443").await.0);
    assert!(echoes(&mut clear, &client_hello(Some("example.com"), 9999)).await);
    assert!(echoes(&mut encrypted, &client_hello_with_encrypted(Some("example.com"), 9999)).await);
    stage.egress.set_policy(policy(&wanted).with_encrypted_hello(EncryptedHello::Refuse));
    assert!(is_reset(&mut encrypted).await);
    assert_eq!(stage.last_refusal().reason, Reason::EncryptedHello);
    assert!(echoes(&mut clear, b"more").await);
}
