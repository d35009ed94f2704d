//! TLS that begins behind something else: after STARTTLS, and after a database's request for it.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use cabana_egress::Reason;
use cabana_sandbox::NetworkPolicy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::stage::{Stage, allow, client_hello, client_hello_with_padding, eventually, server};

const SSL_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x2f";
const LDAP_START_TLS: &[u8] = b"0\x1d\x02\x01\x01w\x18\x80\x161.3.6.1.4.1.1466.20037";

/// A server's hello, behind a word of the protocol before.
const YES: &[u8] = b"S\x16\x03\x03\0\x2c\x02\0\0\x28\x03\x03a random of a hello: 32 of these\0\x13\x01\0\0\0";

type Seen = Arc<Mutex<Vec<Vec<u8>>>>;

/// A server that says this to each piece, and keeps all that it is sent.
fn saying(word: Vec<u8>) -> (Seen, SocketAddr) {
    let seen = Seen::default();
    let kept = seen.clone();
    let address = server(move |mut stream| {
        let number = {
            let mut all = kept.lock().unwrap();
            all.push(Vec::new());
            all.len() - 1
        };
        let mut buffer = [0; 65536];
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            kept.lock().unwrap()[number].extend_from_slice(&buffer[..len]);
            if stream.write_all(&word).is_err() {
                return;
            }
        }
    });
    (seen, address)
}

fn stage(port: u16, address: SocketAddr) -> Stage {
    let stage = Stage::new(&allow(&["example.com", "also.com"]));
    stage.example(port, address);
    stage
}

/// Sends the pieces, each once the server has said its word to the one before. False: it was cut off.
async fn exchange(stream: &mut TcpStream, pieces: &[&[u8]]) -> bool {
    for piece in pieces {
        let mut word = vec![0; YES.len()];
        if stream.write_all(piece).await.is_err() || stream.read_exact(&mut word).await.is_err() {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn a_hello_after_another_protocol_is_no_front_for_another_tls_name() {
    let (seen, address) = saying(YES.to_vec());
    let stage = stage(5432, address);
    let lines: &[&[u8]] = &[b"EHLO me\r\n", b"STARTTLS\r\n"];
    for prelude in [&[SSL_REQUEST][..], lines, &[LDAP_START_TLS], &[b"<starttls/>\n", b"\x16"]] {
        for (name, passes) in [("example.com", true), ("also.com", true), ("evil.com", false)] {
            for size in [1, 9999] {
                let number = seen.lock().unwrap().len();
                let hello = client_hello(Some(name), size);
                let mut stream = stage.redirected_to_name("example.com", 5432).await;
                assert!(exchange(&mut stream, prelude).await);
                let came = exchange(&mut stream, &[&hello, b"more"]).await;
                assert_eq!(came, passes, "{prelude:?}, {name}, records of {size}");
                let all = seen.lock().unwrap()[number].clone();
                let sent =
                    [prelude.concat(), if passes { [&hello[..], b"more"].concat() } else { Vec::new() }].concat();
                assert_eq!(all, sent, "{prelude:?}, {name}, records of {size}");
            }
        }
    }
    let told = |reason: &Reason| matches!(reason, Reason::OtherHost(host) if host == "evil.com");
    assert!(stage.events().iter().any(|event| !event.allowed && told(&event.reason)));
}

#[tokio::test]
async fn a_late_hello_in_single_bytes_or_behind_a_request_of_fixed_length_is_held_to_the_same() {
    let (seen, address) = saying(b"S".to_vec());
    let (free, stage) = (Stage::new(&NetworkPolicy::Public), stage(5432, address));
    free.example(5432, address);
    let evil = client_hello(Some("evil.com"), 9999);
    let glued = [SSL_REQUEST, &evil].concat();
    let bytes: Vec<&[u8]> = [&[SSL_REQUEST][..], &evil.chunks(1).collect::<Vec<_>>()].concat();
    for (stage, passes) in [(&free, true), (&stage, false)] {
        for pieces in [&[&glued[..]][..], &[&glued[..9], &glued[9..]], &bytes] {
            let number = seen.lock().unwrap().len();
            let mut stream = stage.redirected_to_name("example.com", 5432).await;
            for piece in pieces {
                if stream.write_all(piece).await.is_err() {
                    break;
                }
                // Each byte by itself, though nobody waits for the server.
                stream.set_nodelay(true).unwrap();
                tokio::task::yield_now().await;
            }
            if passes {
                eventually("it comes", || seen.lock().unwrap().get(number) == Some(&glued)).await;
            } else {
                stream.read_to_end(&mut Vec::new()).await.expect_err("it is cut off");
                let all = seen.lock().unwrap().get(number).cloned().unwrap_or_default();
                assert!(!all.windows(4).any(|four| four == b"evil"), "{all:?}");
            }
        }
    }
}

/// What a piece is, the guest decides; how much of it is the request and how much the hello, the server.
#[tokio::test]
async fn a_late_hello_behind_other_bytes_of_a_later_piece_is_held_to_the_same() {
    const NOOP: &[u8] = &[b'n'; 20_000];
    /// Of a protocol that sends a hello in packets of its own.
    const PACKET: &[u8] = b"\x12\x01\x02\0\0\0\x01\0";
    let (seen, address) = saying(YES.to_vec());
    let stage = stage(5432, address);
    for before in [SSL_REQUEST, b"STARTTLS\r\n", &[NOOP, b"\r\nSTARTTLS\r\n"].concat(), b"\n", PACKET, b"x\x16\x03"] {
        for (name, passes) in [("example.com", true), ("evil.com", false)] {
            for size in [1, 7, 9999] {
                let number = seen.lock().unwrap().len();
                let hello = client_hello(Some(name), size);
                let glued = [before, &hello].concat();
                let mut stream = stage.redirected_to_name("example.com", 5432).await;
                assert!(exchange(&mut stream, &[b"EHLO me\r\n"]).await);
                stream.write_all(&glued).await.unwrap();
                if passes {
                    let whole = [b"EHLO me\r\n", &glued[..]].concat();
                    eventually("it comes", || seen.lock().unwrap()[number] == whole).await;
                } else {
                    stream.read_to_end(&mut Vec::new()).await.expect_err("it is cut off");
                    let all = seen.lock().unwrap()[number].clone();
                    let whole = [b"EHLO me\r\n", &glued[..]].concat();
                    assert!(whole.starts_with(&all) && !all.ends_with(&hello), "{before:?}, records of {size}");
                    assert!(!all.windows(4).any(|four| four == b"evil"), "{before:?}, records of {size}");
                }
            }
        }
    }
}

/// For a mail server the first one is a line that it does not know.
#[tokio::test]
async fn a_hello_that_the_server_does_not_read_is_no_front_for_a_later_one() {
    let (seen, address) = saying(b"500 what?".to_vec());
    let stage = stage(25, address);
    let first = client_hello(Some("example.com"), 9999);
    for (name, passes) in [("example.com", true), ("evil.com", false)] {
        let number = seen.lock().unwrap().len();
        let later = client_hello(Some(name), 9999);
        let mut stream = stage.redirected_to_name("example.com", 25).await;
        for piece in [&first[..], b"STARTTLS\r\n"] {
            stream.write_all(piece).await.unwrap();
            stream.read_exact(&mut [0; 9]).await.unwrap();
        }
        stream.write_all(&later).await.unwrap();
        if passes {
            let whole = [&first[..], b"STARTTLS\r\n", &later].concat();
            eventually("it comes", || seen.lock().unwrap()[number] == whole).await;
        } else {
            stream.read_to_end(&mut Vec::new()).await.expect_err("it is cut off");
            let all = seen.lock().unwrap()[number].clone();
            assert_eq!(all, [&first[..], b"STARTTLS\r\n"].concat());
        }
    }
}

#[tokio::test]
async fn a_hello_inside_of_another_one_is_sent_nowhere() {
    let (seen, address) = saying(b"500 what?".to_vec());
    let stage = stage(25, address);
    let evil = client_hello(Some("evil.com"), 9999);
    let outer = client_hello_with_padding("example.com", &[b"\r\nSTARTTLS\r\n", &evil[..]].concat());
    for before in [&b""[..], b"EHLO me\r\n", b"EHLO me\r\nNOOP "] {
        let mut stream = stage.redirected_to_name("example.com", 25).await;
        stream.write_all(&[before, &outer].concat()).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.expect_err("it is cut off");
        let all = seen.lock().unwrap().concat();
        assert!(!all.windows(4).any(|four| four == b"evil"), "{all:?}");
    }
}

/// For a mail server the first one ends with a request for TLS, and with what begins the second.
#[tokio::test]
async fn a_hello_that_begins_with_the_last_bytes_of_another_one_is_held_to_the_same() {
    let (seen, address) = saying(b"500 what?".to_vec());
    let stage = stage(25, address);
    for (name, passes) in [("example.com", true), ("evil.com", false)] {
        let later = client_hello(Some(name), 9999);
        for cut in [1, 5, 8, 40] {
            let number = seen.lock().unwrap().len();
            let (begin, rest) = later.split_at(cut);
            let first = client_hello_with_padding("example.com", &[b"\r\nSTARTTLS\r\n", begin].concat());
            assert!(first.ends_with(begin));
            let mut stream = stage.redirected_to_name("example.com", 25).await;
            stream.write_all(&first).await.unwrap();
            stream.read_exact(&mut [0; 9]).await.unwrap();
            let whole = [&first[..], rest].concat();
            stream.write_all(rest).await.unwrap();
            if passes {
                eventually("it comes", || seen.lock().unwrap()[number] == whole).await;
            } else {
                stream.read_to_end(&mut Vec::new()).await.expect_err("it is cut off");
                assert_eq!(seen.lock().unwrap()[number], first, "cut after {cut}");
            }
        }
    }
}

/// Some servers look at no version of the first records, and take what others do not.
#[tokio::test]
async fn a_late_hello_of_a_version_that_is_none_is_sent_nowhere() {
    let (seen, address) = saying(b"S".to_vec());
    let stage = stage(5432, address);
    for size in [50, 9999] {
        let mut hello = client_hello(Some("evil.com"), size);
        hello.chunks_mut(5 + size).for_each(|record| record[1] = 0);
        for pieces in [&[SSL_REQUEST, &hello][..], &[b"\x01\n", &[SSL_REQUEST, &hello].concat()]] {
            let mut stream = stage.redirected_to_name("example.com", 5432).await;
            stream.write_all(pieces[0]).await.unwrap();
            stream.read_exact(&mut [0]).await.unwrap();
            stream.write_all(pieces[1]).await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.expect_err("it is cut off");
            let all = seen.lock().unwrap().concat();
            assert!(!all.windows(4).any(|four| four == b"evil"), "records of {size}: {all:?}");
        }
    }
}

#[tokio::test]
async fn what_begins_like_a_hello_by_chance_passes() {
    let (seen, address) = saying(b"S".to_vec());
    let stage = stage(5432, address);
    let chance = [&b"x\x16\x03\x01\0\x5a\x01\0\0\xc8"[..], &[7; 40_000]].concat();
    for cut in [9, 10, 30, 100] {
        let number = seen.lock().unwrap().len();
        let mut stream = stage.redirected_to_name("example.com", 5432).await;
        stream.write_all(b"\x01\x02\n").await.unwrap();
        stream.read_exact(&mut [0]).await.unwrap();
        for piece in [&chance[..cut], &chance[cut..]] {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        let whole = [b"\x01\x02\n", &chance[..]].concat();
        eventually("it comes", || seen.lock().unwrap()[number] == whole).await;
    }
}

#[tokio::test]
async fn the_second_hello_after_a_late_one_is_held_to_the_same() {
    const RANDOM: [u8; 32] = [
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2,
        0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
    ];
    let retry = [&b"22\x16, 3: go on"[..], &[22, 3, 3, 0, 44, 2, 0, 0, 40, 3, 3], &RANDOM, &[0, 0x13, 1, 0, 0, 0]];
    let (seen, address) = saying(retry.concat());
    let stage = stage(5432, address);
    let first = client_hello(Some("example.com"), 9999);
    for (name, passes) in [("example.com", true), ("evil.com", false)] {
        let number = seen.lock().unwrap().len();
        let second = [&[20, 3, 3, 0, 1, 1][..], &client_hello(Some(name), 9999)].concat();
        let mut stream = stage.redirected_to_name("example.com", 5432).await;
        assert!(exchange(&mut stream, &[SSL_REQUEST, &first]).await);
        stream.write_all(&second).await.unwrap();
        if passes {
            let whole = [SSL_REQUEST, &first, &second].concat();
            eventually("it comes", || seen.lock().unwrap().get(number) == Some(&whole)).await;
        } else {
            stream.read_to_end(&mut Vec::new()).await.expect_err("it is cut off");
            let all = seen.lock().unwrap()[number].clone();
            assert!(!all.windows(4).any(|four| four == b"evil"), "{all:?}");
        }
    }
}
