//! Whether a client still takes part in its connection: who asks for nothing and takes nothing is let go.
//!
//! An open request waits for us, as long as its answer is being made, or for the client, which takes that. A connection on which
//! nothing waits for us and nothing moves is idle, whatever else goes on there: a client of HTTP/2 can open requests, take nothing
//! of their answers, and reply to every ping. An answer of which nothing is taken is given up by itself, with the memory and the
//! descriptors that it has.
//!
//! While a socket is full the kernel judges, since it takes large steps at a time: it knows how much has arrived, and ends the
//! connection if that is nothing (`TCP_USER_TIMEOUT`). So an answer has much longer then.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;

use crate::Bounds;

/// What a client has to take within the time, so that it is not idle: one frame of HTTP/2.
const PIECE: usize = 16 << 10;
/// As many times as long has an answer whose socket is full.
const WHILE_BLOCKED: u32 = 10;

/// Of one connection. All clones are one.
#[derive(Clone)]
pub(super) struct Progress(Arc<Shared>);

struct Shared {
    /// As long as a client may take nothing.
    quiet: Duration,
    /// As long as it may stay that nothing has let in.
    stranger: Duration,
    state: Mutex<State>,
}

struct State {
    /// Requests that wait for us.
    ours: usize,
    /// The kernel takes no more for now.
    is_blocked: bool,
    /// Since when it takes something.
    unblocked: Instant,
    /// When something last moved.
    last: Instant,
    /// How long nothing may.
    limit: Duration,
    /// By when something has to have let the client in, whatever goes on until then.
    let_in_by: Option<Instant>,
    /// A port or an agent is open to everybody, and has let the client in for what it asks of that.
    is_visitor: bool,
    /// Requests whose answers were not taken as a whole.
    open: usize,
    /// Those that a client has begun to take.
    answers: HashMap<u64, Weak<Mutex<Answer>>>,
    next_answer: u64,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    /// The head of the first request has as long as that of any other.
    pub(super) fn new(bounds: &Bounds) -> Self {
        let (now, limit, answers) = (Instant::now(), bounds.head, HashMap::new());
        let let_in_by = Some(now + bounds.stranger);
        let (is_blocked, unblocked) = (false, now);
        let (is_visitor, ours, open, next_answer) = (false, 0, 0, 0);
        let last = now;
        let state =
            State { ours, is_blocked, unblocked, last, limit, let_in_by, is_visitor, open, answers, next_answer };
        Self(Arc::new(Shared { quiet: bounds.quiet, stranger: bounds.stranger, state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0.state)
    }

    /// A request has come.
    pub(super) fn begin(&self) -> OpenRequest {
        let mut state = self.state();
        state.limit = self.0.quiet;
        state.open += 1;
        drop(state);
        let mut request = OpenRequest { progress: self.clone(), is_ours: false };
        request.waits_for_us();
        request
    }

    /// The client is no stranger any more.
    pub(super) fn let_in(&self) {
        let mut state = self.state();
        (state.let_in_by, state.is_visitor) = (None, false);
    }

    /// It is none as long as what it asks for now goes on.
    pub(super) fn visit(&self) {
        let mut state = self.state();
        if state.let_in_by.take().is_some() {
            state.is_visitor = true;
        }
    }

    /// Whether the kernel takes no more for now.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        let mut state = self.state();
        if state.is_blocked || is_blocked {
            let now = Instant::now();
            (state.is_blocked, state.unblocked, state.last) = (is_blocked, now, now);
        }
    }

    /// Nothing could be asked before.
    pub(super) fn restart(&self) {
        self.state().last = Instant::now();
    }

    /// It was told to end, and has so long for that.
    pub(super) fn last_chance(&self, limit: Duration) {
        let mut state = self.state();
        let now = Instant::now();
        (state.limit, state.last) = (limit, now);
        state.let_in_by = state.let_in_by.map(|_| now + limit); // whatever goes on
    }

    /// Returns once it is idle, and gives up answers of which nothing is taken until then.
    pub(super) async fn idle(&self) {
        loop {
            let left = self.left();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(self.give_up_stalled())).await;
        }
    }

    fn left(&self) -> Duration {
        let state = self.state();
        let is_used = state.ours > 0 || state.is_blocked;
        let left = if is_used { state.limit } else { state.limit.saturating_sub(state.last.elapsed()) };
        let let_in = |by: Instant| by.saturating_duration_since(Instant::now());
        state.let_in_by.map_or(left, |by| left.min(let_in(by)))
    }

    /// How long it is until the next one may be.
    fn give_up_stalled(&self) -> Duration {
        let (quiet, mut next) = (self.0.quiet, self.0.quiet);
        let (answers, is_blocked, unblocked) = {
            let state = self.state();
            let answers: Vec<_> = state.answers.values().filter_map(Weak::upgrade).collect();
            (answers, state.is_blocked, state.unblocked)
        };
        for answer in answers {
            let mut answer = locked(&answer);
            let Some(since) = answer.waits_since else { continue };
            let mut left = (quiet * WHILE_BLOCKED).saturating_sub(since.elapsed());
            if !is_blocked {
                // What could not be sent before may be taken now.
                left = left.min(quiet.saturating_sub(since.max(unblocked).elapsed()));
            }
            match left.is_zero() {
                true => answer.give_up(),
                false => next = next.min(left),
            }
        }
        next
    }
}

/// One that has come and whose answer was not taken as a whole.
pub(super) struct OpenRequest {
    progress: Progress,
    is_ours: bool,
}

impl OpenRequest {
    fn waits_for_us(&mut self) {
        if !std::mem::replace(&mut self.is_ours, true) {
            self.progress.state().ours += 1;
        }
    }

    fn waits_for_client(&mut self) {
        if std::mem::replace(&mut self.is_ours, false) {
            let mut state = self.progress.state();
            (state.ours, state.last) = (state.ours - 1, Instant::now());
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.waits_for_client();
        let stranger = self.progress.0.stranger;
        let mut state = self.progress.state();
        state.open -= 1;
        if state.is_visitor && state.open == 0 && state.let_in_by.is_none() {
            state.let_in_by = Some(Instant::now() + stranger);
        }
    }
}

/// What is left of it.
struct Answer {
    /// Until it is given up.
    body: Option<Body>,
    rest: Bytes,
    /// As long as it waits for the client.
    waits_since: Option<Instant>,
}

impl Answer {
    fn give_up(&mut self) {
        *self = Self { body: None, rest: Bytes::new(), waits_since: None };
    }
}

/// The body of an answer. It is asked for more as soon as the client has room for that.
pub(super) struct AnswerBody {
    answer: Arc<Mutex<Answer>>,
    /// Among those of its connection.
    number: u64,
    request: OpenRequest,
}

impl AnswerBody {
    pub(super) fn new(body: Body, mut request: OpenRequest) -> Self {
        request.waits_for_client();
        let answer = Answer { body: Some(body), rest: Bytes::new(), waits_since: Some(Instant::now()) };
        let answer = Arc::new(Mutex::new(answer));
        let mut state = request.progress.state();
        let number = state.next_answer;
        state.next_answer += 1;
        state.answers.insert(number, Arc::downgrade(&answer));
        drop(state);
        Self { answer, number, request }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.request.progress.state().answers.remove(&self.number);
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.request.waits_for_us();
        let answer = self.answer.clone();
        let mut answer = locked(&answer);
        answer.waits_since = None;
        if answer.rest.is_empty() {
            let Some(body) = &mut answer.body else {
                let why = io::Error::new(io::ErrorKind::TimedOut, "nothing of it was taken for too long");
                return Poll::Ready(Some(Err(axum::Error::new(why))));
            };
            let frame = match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => frame.into_data(),
                end => return Poll::Ready(end),
            };
            match frame {
                Ok(data) => answer.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        // A large one would be asked about again only when all of it was taken, however steadily that goes.
        let length = answer.rest.len().min(PIECE);
        let piece = answer.rest.split_to(length);
        answer.waits_since = Some(Instant::now());
        self.request.waits_for_client();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        let answer = locked(&self.answer);
        answer.rest.is_empty() && answer.body.as_ref().is_some_and(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let answer = locked(&self.answer);
        let Some(body) = &answer.body else { return SizeHint::new() };
        let (rest, of_body) = (answer.rest.len() as u64, body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + rest);
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
