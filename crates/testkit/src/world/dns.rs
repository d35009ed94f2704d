//! The names of a world, answered as a name server does.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex, PoisonError},
};

const A: u16 = 1;
const AAAA: u16 = 28;

/// One after the other.
type Answers = VecDeque<Vec<IpAddr>>;

#[derive(Default)]
pub(super) struct Names {
    /// By name and kind of question.
    answers: Mutex<HashMap<(String, u16), Answers>>,
    asked: Mutex<Vec<String>>,
}

impl Names {
    pub(super) fn set(&self, name: &str, answers: &[Vec<IpAddr>]) {
        let mut known = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        for kind in [A, AAAA] {
            let of_kind = |answer: &Vec<IpAddr>| -> Vec<IpAddr> {
                answer.iter().copied().filter(|address| address.is_ipv4() == (kind == A)).collect()
            };
            known.insert((name.to_owned(), kind), answers.iter().map(of_kind).collect());
        }
    }

    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn answer(&self, name: String, kind: u16) -> Option<Vec<IpAddr>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
        let mut known = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let answers = known.get_mut(&(name, kind))?;
        if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }
    }
}

/// In the namespace of the calling thread, for as long as the process lives.
pub(super) fn serve(at: SocketAddr, names: Arc<Names>) {
    let socket = UdpSocket::bind(at).expect("the address is the world's");
    std::thread::spawn(move || {
        let mut message = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut message) {
            if let Some(answer) = answer(&message[..length], &names) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
}

fn answer(message: &[u8], names: &Names) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut labels = Vec::new();
    while *message.get(at)? != 0 {
        let length = usize::from(message[at]);
        labels.push(String::from_utf8_lossy(message.get(at + 1..at + 1 + length)?).to_lowercase());
        at += 1 + length;
    }
    let question = message.get(12..at + 5)?;
    let kind = u16::from_be_bytes([message[at + 1], message[at + 2]]);
    let found = names.answer(labels.join("."), kind);
    let code = if found.is_some() { 0 } else { 3 };
    let found = found.unwrap_or_default();
    let mut out = vec![message[0], message[1], 0x81, 0x80 | code, 0, 1, 0, found.len() as u8, 0, 0, 0, 0];
    out.extend_from_slice(question);
    for address in found {
        let data = match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        out.extend([0xc0, 12, 0, kind as u8, 0, 1, 0, 0, 0, 0, 0, data.len() as u8]);
        out.extend(data);
    }
    Some(out)
}
