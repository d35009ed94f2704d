//! Between us and a running command: bytes in, bytes out, signals, until it ends.

use std::{io, pin::pin, time::Duration};

use cabana_sandbox::{Channel, Control, Error, Event, Process, Result, Status, Stdin, Stream, Target};
use futures_util::StreamExt;
use tokio::{
    fs::File,
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::Instant,
};

use super::{
    signals::{self, Signals},
    terminal,
};

/// Two within this time mean: now.
const INSISTING: Duration = Duration::from_secs(2);
const CHUNK: usize = 64 * 1024;

/// Our side.
pub(crate) struct Ends<I, O> {
    pub(crate) stdin: Option<I>,
    pub(crate) stdout: O,
    pub(crate) stderr: O,
}

impl Ends<File, File> {
    /// Through threads, not through epoll: any of them may be a regular file, and none may be made non-blocking, which
    /// would befall everybody who shares it.
    pub(crate) fn ours(with_input: bool) -> io::Result<Self> {
        let file = |fd| -> io::Result<File> { Ok(File::from_std(rustix::io::fcntl_dupfd_cloexec(fd, 3)?.into())) };
        Ok(Self {
            stdin: with_input.then(|| file(rustix::stdio::stdin())).transpose()?,
            stdout: file(rustix::stdio::stdout())?,
            stderr: file(rustix::stdio::stderr())?,
        })
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Exited(Status),
    /// Our output was closed. A command that writes to a closed pipe dies of it, and so did this one.
    NobodyReads,
}

pub(super) async fn relay<I, O>(process: Process, ends: Ends<I, O>, signals: &mut Signals) -> Result<Outcome>
where
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
{
    let Process { stdin, events, control, .. } = process;
    let mut typing = pin!(forward(ends.stdin, stdin));
    let mut reading = pin!(deliver(events, ends.stdout, ends.stderr));
    let mut minding = pin!(pass_on(signals, &*control));
    let mut typed = false;
    let outcome = loop {
        tokio::select! {
            outcome = &mut reading => break outcome,
            () = &mut minding => {}
            () = &mut typing, if !typed => typed = true,
        }
    };
    if let Ok(Outcome::NobodyReads) = outcome {
        // What is left of it ends with the sandbox.
        let _ = control.signal(signals::PIPE, Target::Tree).await;
    }
    outcome
}

/// Until our input ends, or nobody inside wants more of it.
async fn forward<I: AsyncRead + Unpin>(from: Option<I>, to: Option<Stdin>) {
    let (Some(mut from), Some(mut to)) = (from, to) else { return };
    let mut chunk = vec![0; CHUNK];
    // An input that cannot be read is an input that has ended.
    while let Ok(1..) = from.read(&mut chunk).await.inspect(|n| chunk.truncate(*n)) {
        if to.write_all(&chunk).await.is_err() || to.flush().await.is_err() {
            return;
        }
        chunk.resize(CHUNK, 0);
    }
    let _ = to.shutdown().await;
}

async fn deliver<O: AsyncWrite + Unpin>(mut events: Stream<Event>, mut stdout: O, mut stderr: O) -> Result<Outcome> {
    while let Some(event) = events.next().await {
        let output = match event? {
            Event::Exit(exit) => return Ok(Outcome::Exited(exit.status)),
            Event::Output(output) => output,
        };
        let end = match output.channel {
            Channel::Stdout | Channel::Terminal => &mut stdout,
            Channel::Stderr => &mut stderr,
        };
        let written = match end.write_all(&output.bytes).await {
            Ok(()) => end.flush().await,
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Outcome::NobodyReads),
            Err(error) => return Err(Error::failed("writing the output", error)),
        }
    }
    Err(Error::Gone)
}

/// For ever. A command that has ended cannot be signalled, and its end is told by its events: errors say nothing new.
async fn pass_on(signals: &mut Signals, control: &dyn Control) {
    let mut last: Option<Instant> = None;
    loop {
        let number = signals.next().await;
        if number == signals::WINCH {
            if let Some(size) = terminal::size() {
                let _ = control.resize(size).await;
            }
            continue;
        }
        let insists =
            signals::insists(number) && last.replace(Instant::now()).is_some_and(|at| at.elapsed() < INSISTING);
        let _ = match insists {
            true => control.signal(signals::KILL, Target::Tree).await,
            false => control.signal(number, signals::target(number)).await,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        sync::{Arc, Mutex},
        task::{Context, Poll},
    };

    use async_trait::async_trait;
    use cabana_sandbox::{Exit, Output, TermSize};
    use futures_util::stream;

    use super::*;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<(i32, Target)>>);

    #[async_trait]
    impl Control for Recorder {
        async fn signal(&self, signal: i32, to: Target) -> Result<()> {
            self.0.lock().unwrap().push((signal, to));
            Ok(())
        }
        async fn resize(&self, _: TermSize) -> Result<()> {
            Ok(())
        }
    }

    /// Takes everything, or nothing at all.
    enum Sink {
        Keeps(Vec<u8>),
        Fails(io::ErrorKind),
    }

    impl AsyncWrite for Sink {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(match &mut *self {
                Self::Keeps(kept) => {
                    kept.extend_from_slice(bytes);
                    Ok(bytes.len())
                }
                Self::Fails(kind) => Err((*kind).into()),
            })
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn said(bytes: &'static str) -> Result<Event> {
        Ok(Event::Output(Output { at: 0, channel: Channel::Stdout, bytes: bytes.as_bytes().into() }))
    }

    fn exited(code: i32) -> Result<Event> {
        let nothing = Duration::ZERO;
        Ok(Event::Exit(Exit { status: Status::Code(code), wall: nothing, cpu: nothing, peak_rss: 0 }))
    }

    async fn run(events: Vec<Result<Event>>, stdin: Option<Stdin>, out: Sink) -> (Result<Outcome>, Vec<(i32, Target)>) {
        let control = Arc::new(Recorder::default());
        let process = Process { pid: None, stdin, events: stream::iter(events).boxed(), control: control.clone() };
        let ends = Ends { stdin: Some(&b"typed"[..]), stdout: out, stderr: Sink::Keeps(Vec::new()) };
        let outcome = relay(process, ends, &mut Signals::listen().unwrap()).await;
        let signals = control.0.lock().unwrap().clone();
        (outcome, signals)
    }

    #[tokio::test]
    async fn the_exit_is_the_end() {
        let (outcome, signals) = run(vec![said("a"), exited(3)], None, Sink::Keeps(Vec::new())).await;
        assert_eq!(outcome.unwrap(), Outcome::Exited(Status::Code(3)));
        assert_eq!(signals, []);
    }

    #[tokio::test]
    async fn a_command_that_wants_no_input_is_no_failure() {
        let closed = Box::pin(Sink::Fails(io::ErrorKind::BrokenPipe));
        let (outcome, _) = run(vec![said("a"), exited(0)], Some(closed), Sink::Keeps(Vec::new())).await;
        assert_eq!(outcome.unwrap(), Outcome::Exited(Status::Code(0)));
    }

    #[tokio::test]
    async fn a_closed_output_is_a_broken_pipe_for_the_whole_tree() {
        let (outcome, signals) = run(vec![said("a"), exited(0)], None, Sink::Fails(io::ErrorKind::BrokenPipe)).await;
        assert_eq!(outcome.unwrap(), Outcome::NobodyReads);
        assert_eq!(signals, [(signals::PIPE, Target::Tree)]);
    }

    #[tokio::test]
    async fn output_that_cannot_be_written_is_a_failure() {
        let (outcome, _) = run(vec![said("a"), exited(0)], None, Sink::Fails(io::ErrorKind::StorageFull)).await;
        assert!(matches!(outcome, Err(Error::Failed { .. })));
    }

    #[tokio::test]
    async fn an_end_without_an_exit_is_no_success() {
        let (outcome, _) = run(vec![said("a")], None, Sink::Keeps(Vec::new())).await;
        assert!(matches!(outcome, Err(Error::Gone)));
        let (outcome, _) = run(vec![Err(Error::Gone)], None, Sink::Keeps(Vec::new())).await;
        assert!(matches!(outcome, Err(Error::Gone)));
    }
}
