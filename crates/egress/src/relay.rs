//! Two connections, coupled: bytes both ways, half-closes passed on, an end by reset when anything was not right.

use std::{
    convert::Infallible,
    io,
    ops::ControlFlow,
    pin::pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::{
    gate,
    gateway::{Flow, Gateway},
    http::{body, head::Framing},
    late_hello::{HelloWatch, Judged, LateHello},
    outer::Outer,
    tls::{self, Answer},
};

const BUFFER: usize = 32 * 1024;

/// How the guest's side begins.
pub(crate) enum Opening {
    /// Bytes that the policy may want to look at; some were read already.
    Tunnel(Vec<u8>),
    /// One HTTP request whose head was checked and written anew.
    Request { head: Vec<u8>, framing: Framing, already: Vec<u8> },
}

/// What may follow on the guest's side.
pub(crate) enum After {
    Stream,
    /// Neither TLS nor HTTP was sent. It may become TLS later.
    Other(HelloWatch),
    /// It has become TLS.
    LateHello(LateHello),
    /// A TLS hello was sent. Whether another one may follow is the server's to say; these bytes were read behind it. Where it speaks something
    /// else, they are watched.
    ServersAnswer(HelloWatch, Vec<u8>),
    /// One request was sent. Whatever the guest sends now was not checked and goes nowhere.
    Nothing,
}

/// Carries the flow to its end.
pub(crate) async fn carry(gateway: &Gateway, flow: &Flow, mut guest: TcpStream, mut outer: Outer, opening: Opening) {
    outer.bound_as(&guest);
    let relayed = gateway.while_allowed(flow, relay(gateway, flow, &mut guest, &mut outer, opening)).await;
    match relayed {
        Some(Ok(())) => linger(guest).await,
        _ => {
            reset(&guest);
            outer.reset();
        }
    }
}

/// The peer sees a reset when the stream is dropped: nothing that looks like an orderly end.
pub(crate) fn reset(stream: &TcpStream) {
    // Without effect on a connection that is gone already, which is as good.
    let _ = stream.set_zero_linger();
}

/// Lets the guest read the last answer: closing over bytes that nobody read would reset the connection under it.
pub(crate) async fn linger(mut guest: TcpStream) {
    let _ = guest.shutdown().await;
    let mut buffer = [0; 4096];
    let drain = async {
        for _ in 0..64 {
            if !matches!(guest.read(&mut buffer).await, Ok(1..)) {
                break;
            }
        }
    };
    let _ = timeout(Duration::from_secs(1), drain).await;
}

async fn relay(
    gateway: &Gateway,
    flow: &Flow,
    guest: &mut TcpStream,
    outer: &mut Outer,
    opening: Opening,
) -> io::Result<()> {
    let activity = Activity::new();
    let (mut from_guest, mut to_guest) = guest.split();
    let (mut from_outer, mut to_outer) = tokio::io::split(outer);
    let answers = Answers::new();
    let mut answer_reader = AnswerReader { bytes: Vec::new(), answers: &answers };
    let up = async {
        let mut after = match opening {
            Opening::Tunnel(already) => {
                Box::pin(gate::open(gateway, flow, already, &mut from_guest, &mut to_outer, &activity)).await?
            }
            Opening::Request { head, framing, already } => {
                write(&mut to_outer, &head).await?;
                body::send(framing, &already, &mut from_guest, &mut to_outer, &activity).await?;
                After::Nothing
            }
        };
        to_outer.flush().await?; // TLS may hold something back
        after = loop {
            after = match after {
                After::Other(mut watch) => {
                    match copy(&mut from_guest, &mut to_outer, &activity, |piece| watch.look(piece)).await? {
                        Ended::AtEof | Ended::WriterGone => return io::Result::Ok((After::Stream, from_guest)),
                        Ended::Held(hello) => After::LateHello(hello),
                    }
                }
                After::LateHello(hello) => {
                    write(&mut to_outer, &hello.before).await?;
                    match hello.judge(gateway, flow, &mut from_guest, &activity).await? {
                        Judged::InOrder { hello, watch, behind } => {
                            answers.expect_late_one();
                            write(&mut to_outer, &hello).await?;
                            After::ServersAnswer(watch, behind)
                        }
                        Judged::None(bytes) => {
                            let mut watch = HelloWatch::default();
                            match watch.go_on(bytes) {
                                ControlFlow::Break(hello) => After::LateHello(hello),
                                ControlFlow::Continue(unsent) => {
                                    write(&mut to_outer, &unsent).await?;
                                    After::Other(watch)
                                }
                            }
                        }
                    }
                }
                After::ServersAnswer(watch, held) => match answers.next().await? {
                    Answer::NotTls => gate::pass_watched(watch, &held, &mut to_outer).await?,
                    answer => {
                        gate::follow_hello(gateway, flow, answer, held, &mut from_guest, &mut to_outer, &activity)
                            .await?;
                        break After::Stream;
                    }
                },
                settled @ (After::Stream | After::Nothing) => break settled,
            };
        };
        if let After::Stream = after {
            // A server that stops reading may still have something to say: let the other direction find its end.
            let _: Ended<Infallible> =
                copy(&mut from_guest, &mut to_outer, &activity, |_| ControlFlow::Continue(())).await?;
        }
        Ok((after, from_guest))
    };
    let down = async {
        let read = |bytes: &[u8]| {
            answer_reader.read(bytes);
            ControlFlow::<Infallible>::Continue(())
        };
        match copy(&mut from_outer, &mut to_guest, &activity, read).await? {
            Ended::AtEof => Ok(()),
            Ended::WriterGone => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    tokio::select! {
        ended = both(up, down) => ended,
        () = activity.idle_for(gateway.limits.idle) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Ends when both directions have; after a single request the answer's end is the end.
async fn both<R: AsyncRead + Unpin>(
    up: impl Future<Output = io::Result<(After, R)>>,
    down: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    let (mut up, mut down) = (pin!(up), pin!(down));
    tokio::select! {
        sent = &mut up => match sent? {
            (After::Nothing, rest) => tokio::select! {
                ended = down => ended,
                error = discard(rest) => Err(error),
            },
            _ => down.await,
        },
        answered = &mut down => {
            answered?;
            up.await.map(drop)
        }
    }
}

/// Reads on, so that a guest that goes away is noticed; an end of its side alone is none of the connection.
async fn discard(mut from: impl AsyncRead + Unpin) -> io::Error {
    let mut buffer = [0; 4096];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) => std::future::pending().await,
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

/// What the server says to a TLS hello, from the one direction to the other.
struct Answers {
    told: watch::Sender<Option<Answer>>,
    /// Something else was said before, and may still be on its way.
    is_late: AtomicBool,
}

impl Answers {
    fn new() -> Answers {
        Answers { told: watch::Sender::new(None), is_late: AtomicBool::new(false) }
    }

    /// Before a hello is sent that was not the first thing said.
    fn expect_late_one(&self) {
        self.is_late.store(true, Ordering::Relaxed);
        self.told.send_replace(None);
    }

    /// Sooner or later: the end of the server's side is an answer, too.
    async fn next(&self) -> io::Result<Answer> {
        let mut told = self.told.subscribe();
        Ok(told.wait_for(Option::is_some).await.map_err(io::Error::other)?.unwrap_or(Answer::Retry))
    }
}

/// Reads what the server says to a TLS hello, beside its being passed on.
struct AnswerReader<'a> {
    bytes: Vec<u8>,
    answers: &'a Answers,
}

impl AnswerReader<'_> {
    /// Nothing at all is the server's end.
    fn read(&mut self, piece: &[u8]) {
        const MAX_ANSWER: usize = 16 * 1024;
        if self.answers.told.borrow().is_some() {
            return;
        }
        self.bytes.extend_from_slice(piece);
        if self.answers.is_late.load(Ordering::Relaxed) {
            tls::skip_to_record(&mut self.bytes);
        }
        let answer = match tls::answer(&self.bytes) {
            None if piece.is_empty() => Some(Answer::Final),
            // What cannot be understood may mean anything.
            None if self.bytes.len() > MAX_ANSWER => Some(Answer::Retry),
            answer => answer,
        };
        if answer.is_some() {
            self.bytes = Vec::new();
            self.answers.told.send_replace(answer);
        }
    }
}

enum Ended<H> {
    AtEof,
    WriterGone,
    /// By whoever looked, before this piece was written.
    Held(H),
}

async fn copy<H>(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    activity: &Activity,
    mut look: impl FnMut(&[u8]) -> ControlFlow<H>,
) -> io::Result<Ended<H>> {
    // Most connections carry little: what is never read into is never touched.
    let mut buffer = Vec::with_capacity(BUFFER);
    loop {
        buffer.clear();
        let len = from.read_buf(&mut buffer).await?;
        activity.note();
        if let ControlFlow::Break(held) = look(&buffer) {
            return Ok(Ended::Held(held));
        }
        let written = if len == 0 { to.shutdown().await } else { write(to, &buffer).await };
        match written {
            Ok(()) if len > 0 => activity.note(),
            Ok(()) => return Ok(Ended::AtEof),
            Err(_) => return Ok(Ended::WriterGone),
        }
    }
}

/// All of it and at once: TLS may hold something back.
pub(crate) async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// When a byte last moved, in either direction.
pub(crate) struct Activity {
    start: Instant,
    last_ms: AtomicU64,
}

impl Activity {
    fn new() -> Activity {
        Activity { start: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    pub(crate) fn note(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(now, Ordering::Relaxed);
    }

    async fn idle_for(&self, limit: Duration) {
        loop {
            let last = self.start + Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            match limit.checked_sub(last.elapsed()) {
                None | Some(Duration::ZERO) => return,
                Some(left) => sleep(left).await,
            }
        }
    }
}
