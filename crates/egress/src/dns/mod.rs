//! The inner DNS: names become synthetic addresses, and only names that the sandbox may reach.
//!
//! A name is looked up outside before it is answered, so that a name that does not exist is told so, and a name that points
//! inside is refused here already. Its real addresses never reach the guest. Refused names do not exist: a resolver takes
//! that for the last word, where it would try again after any other refusal. Questions of other types have empty answers, so
//! that no client waits for a record (SVCB, HTTPS, MX) that would lead it around the synthetic address.

pub(crate) mod message;

use std::sync::{Arc, PoisonError};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use self::message::{A, AAAA, Code, NoQuestion, PTR, Question, Record};
use crate::{
    decision::Reason,
    event::How,
    gateway::{Gateway, NotDialed},
    host::{Host, HostError},
    serve::Tasks,
    synthetic::Behind,
};

/// More than any question; the rest of a longer datagram is cut off and makes it malformed.
const DATAGRAM: usize = 1232;

/// Answers datagrams. While too many wait for an answer none is read: they queue in the socket, which has its own bound.
pub(crate) async fn serve_udp(gateway: Arc<Gateway>, tasks: Tasks, socket: UdpSocket) {
    let socket = Arc::new(socket);
    let mut datagram = [0; DATAGRAM];
    while let Ok(place) = tasks.questions.clone().acquire_owned().await {
        gateway.questions.next().await;
        let Ok((len, from)) = socket.recv_from(&mut datagram).await else {
            tasks.breathe().await;
            continue;
        };
        let (gateway, socket, question) = (gateway.clone(), socket.clone(), datagram[..len].to_vec());
        tasks.spawn(async move {
            let _place = place;
            if let Some(answer) = answer(&gateway, &question).await {
                // The guest may be gone; then nobody waits.
                let _ = socket.send_to(&answer, from).await;
            }
        });
    }
}

pub(crate) async fn serve_tcp(gateway: &Gateway, mut guest: TcpStream) {
    loop {
        let Ok(Some(question)) = timeout(gateway.limits.handshake, read_message(&mut guest)).await else { return };
        gateway.questions.next().await;
        let Some(answer) = answer(gateway, &question).await else { return };
        let len = u16::try_from(answer.len()).unwrap_or(0).to_be_bytes();
        let framed = [&len[..], &answer].concat();
        // A guest that asks and never reads must not keep its place.
        let Ok(Ok(())) = timeout(gateway.limits.handshake, guest.write_all(&framed)).await else { return };
    }
}

async fn read_message(guest: &mut TcpStream) -> Option<Vec<u8>> {
    let len = guest.read_u16().await.ok()?;
    let mut message = vec![0; usize::from(len)];
    if message.len() > DATAGRAM {
        return None;
    }
    guest.read_exact(&mut message).await.ok()?;
    Some(message)
}

pub(crate) async fn answer(gateway: &Gateway, message: &[u8]) -> Option<Vec<u8>> {
    match message::parse(message) {
        Ok(question) if question.kind == PTR => Some(reverse(gateway, &question)),
        Ok(question) => Some(forward(gateway, &question).await),
        Err(NoQuestion::Answer(answer)) => Some(answer),
        Err(NoQuestion::Silence) => None,
    }
}

async fn forward(gateway: &Gateway, question: &Question) -> Vec<u8> {
    let asked = question.name.as_deref().map_or(Err(HostError::BadLabel), Host::parse);
    let name = match asked {
        Ok(Host::Name(name)) => name,
        // An address needs no DNS. Answering would be one more notation for it.
        Ok(Host::Address(_)) => return question.answer(Code::NoSuchName, &[]),
        Err(why) => {
            gateway.refuse(How::Dns, question.name.as_deref().unwrap_or("?"), 0, Reason::BadHost(why));
            return question.answer(Code::NoSuchName, &[]);
        }
    };
    match gateway.check_lookup(&name).await {
        Ok(()) => {}
        Err(NotDialed::Missing | NotDialed::Refused(_)) => return question.answer(Code::NoSuchName, &[]),
        Err(NotDialed::TimedOut | NotDialed::Unreachable) => return question.answer(Code::Failed, &[]),
    }
    let assigned = || gateway.pool.lock().unwrap_or_else(PoisonError::into_inner).assign(&name);
    match question.kind {
        A => question.answer(Code::NoError, &[Record::A(assigned().0)]),
        AAAA => question.answer(Code::NoError, &[Record::Aaaa(assigned().1)]),
        _ => question.answer(Code::NoError, &[]),
    }
}

fn reverse(gateway: &Gateway, question: &Question) -> Vec<u8> {
    let mut pool = gateway.pool.lock().unwrap_or_else(PoisonError::into_inner);
    match question.reversed().map(|address| pool.behind(address)) {
        Some(Behind::Name(name)) => question.answer(Code::NoError, &[Record::Ptr(name)]),
        _ => question.answer(Code::NoSuchName, &[]),
    }
}
