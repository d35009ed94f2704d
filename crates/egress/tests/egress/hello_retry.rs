//! The second hello of TLS, which a server asks for when it cannot use the first (HelloRetryRequest). It comes in clear, too.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use cabana_egress::Reason;
use cabana_sandbox::NetworkPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::stage::{Stage, allow, client_hello, eventually, server};

/// A server that asks for a second hello, and keeps all that it is sent.
pub(crate) fn retrying() -> (Arc<Mutex<Vec<Vec<u8>>>>, SocketAddr) {
    const RANDOM: [u8; 32] = [
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2,
        0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
    ];
    let seen = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let kept = seen.clone();
    let address = server(move |mut stream| {
        let number = {
            let mut all = kept.lock().unwrap();
            all.push(Vec::new());
            all.len() - 1
        };
        let mut buffer = [0; 65536];
        let mut asked = false;
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            kept.lock().unwrap()[number].extend_from_slice(&buffer[..len]);
            if !asked {
                let retry = [
                    &[21, 3, 3, 0, 2, 1, 112, 22, 3, 3, 0, 44, 2, 0, 0, 40, 3, 3][..],
                    &RANDOM,
                    &[0, 0x13, 1, 0, 0, 0],
                    &[20, 3, 3, 0, 1, 1],
                ];
                stream.write_all(&retry.concat()).unwrap();
                asked = true;
            }
        }
    });
    (seen, address)
}

#[tokio::test]
async fn a_second_hello_is_no_front_for_another_tls_name() {
    let (seen, address) = retrying();
    let (free, stage) = (Stage::new(&NetworkPolicy::Public), Stage::new(&allow(&["example.com", "also.com"])));
    free.example(443, address);
    stage.example(443, address);
    let first = client_hello(Some("example.com"), 9999);
    let change = [20, 3, 3, 0, 1, 1];
    let early = [23, 3, 3, 0, 3, 9, 9, 9];
    let both = [client_hello(Some("example.com"), 9999), client_hello(Some("evil.com"), 9999)].concat();
    let cases: [(&str, Vec<u8>, bool); 9] = [
        ("the same name", client_hello(Some("example.com"), 9999), true),
        ("another that is allowed", client_hello(Some("also.com"), 9999), true),
        (
            "in small records behind what is skipped",
            [&change[..], &early, &client_hello(Some("example.com"), 1)].concat(),
            true,
        ),
        ("another name", client_hello(Some("evil.com"), 9999), false),
        ("behind what is skipped", [&early[..], &change, &client_hello(Some("evil.com"), 9999)].concat(), false),
        ("in small records", client_hello(Some("evil.com"), 1), false),
        (
            "behind a record of no known kind",
            [&[24, 3, 3, 0, 0][..], &client_hello(Some("evil.com"), 9)].concat(),
            false,
        ),
        ("no hello", b"\x16\x03\x03\x00\x04\x10\x00\x00\x00".to_vec(), false),
        ("a hello behind no hello", [&[22, 3, 3, 0, 1, 16][..], &both].concat(), false),
    ];
    for (what, second, passes) in cases {
        for at_once in [false, true] {
            for (stage, passes) in [(&free, true), (&stage, passes)] {
                // Each is waited for, so the next connection that the server gets is this one.
                let number = seen.lock().unwrap().len();
                let mut stream = stage.redirected_to_name("example.com", 443).await;
                let pieces =
                    if at_once { vec![[&first[..], &second].concat()] } else { vec![first.clone(), second.clone()] };
                for piece in pieces {
                    stream.write_all(&piece).await.unwrap();
                    if !at_once {
                        let _ = stream.read_u8().await; // the server has asked
                    }
                }
                if passes {
                    let whole = [&first[..], &second].concat();
                    eventually(&format!("{what} comes"), || seen.lock().unwrap().get(number) == Some(&whole)).await;
                } else {
                    let mut rest = Vec::new();
                    stream.read_to_end(&mut rest).await.expect_err(what);
                    let all = seen.lock().unwrap()[number].clone();
                    assert!(!all.windows(4).any(|four| four == b"evil"), "{what}, at once: {at_once}");
                    assert!(all.starts_with(&first));
                }
            }
        }
    }
    let told = |reason: &Reason| matches!(reason, Reason::OtherHost(host) if host == "evil.com");
    assert!(stage.events().iter().any(|event| !event.allowed && told(&event.reason)));
}
