//! What a call is made of.

use std::{
    collections::HashMap,
    future::Future,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use cabana_model::{CallId, Code, Outcome, SandboxId, Scope, Tenant};
use cabana_sandbox::Sandbox;
use cabana_store::{Log, Record, SnapshotStep, Token};
use futures_util::{FutureExt as _, future::BoxFuture};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    AnswerTurn, Caller, Error, Result, Runtime, Wanted,
    memory::MemoryCharge,
    quotas::Pass,
    sandboxes::{Awake, Kind, Slot},
    shares::Share,
    words,
};

/// Who asks for something, and where.
pub struct Ask {
    pub caller: Caller,
    pub place: Place,
    pub key: Option<IdempotencyKey>,
    /// What the caller says it has on the sandbox: nothing is done once that has ended.
    pub lease: Option<Token>,
    /// Which way it came in.
    pub front: &'static str,
}

impl Ask {
    /// Under which its call is found again: another user's is another call, whatever key they send.
    pub(crate) fn idempotency_key(&self) -> Option<[u8; 32]> {
        let key = self.key?.key;
        Some(match self.caller.subject.user() {
            None => key,
            Some(user) => Sha256::new().chain_update(key).chain_update(user).finalize().into(),
        })
    }
}

/// Which sandbox a call is for.
#[derive(Clone, Debug)]
pub enum Place {
    /// The scope's. If there is none it becomes what is wanted, or the usual.
    Scope(Scope, Option<Wanted>),
    /// The chat's, whoever its user is. If there is none, it is made for this user.
    Chat {
        app: String,
        chat: String,
        user: Option<String>,
    },
    Sandbox(SandboxId),
    /// A new one, which stays.
    New(Option<Wanted>),
    /// One of its own, which ends with the call (SK-8).
    Once(Option<Wanted>),
    Nowhere,
}

/// What a client sent so that a repeated request is known. Of any length: it is kept as a digest (SK-22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub(crate) key: [u8; 32],
    /// What was asked, where the call itself does not tell: one that is to end so long from now is another one at each try.
    pub(crate) asked: Option<[u8; 32]>,
}

impl IdempotencyKey {
    pub fn new(text: &[u8]) -> Self {
        Self { key: Sha256::digest(text).into(), asked: None }
    }

    /// The same key with this is the same request, whatever the call is made of.
    pub fn asking(self, what: &[u8]) -> Self {
        Self { asked: Some(Sha256::digest(what).into()), ..self }
    }
}

/// What has to be there before the work begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    Record,
    Running,
}

/// Something that changes things. One file a verb; every front calls the same.
pub trait Act: Send + Sized + 'static {
    const VERB: &'static str;
    /// Whether it begins a command in the background.
    const BEGINS_TASK: bool = false;
    /// What it is to the sandbox while it goes on.
    const KIND: Kind = Kind::Call;
    /// Small: whoever repeats the call reads it back. Bulk goes into the output.
    type Answer: Serialize + DeserializeOwned + Send;
    fn needs(&self) -> Needs;
    /// Of all that was asked: under one Idempotency-Key there is one.
    fn digest(&self) -> [u8; 32];
    /// For the ledger: names and numbers, never a secret.
    fn argv(&self) -> Vec<String>;
    fn run(self, cx: Cx) -> impl Future<Output = Result<Self::Answer>> + Send;
    /// How much of what the client sent is in memory until the act has run. Its client may leave before.
    fn held_bytes(&self) -> usize {
        self.argv().iter().map(String::len).sum()
    }
    /// Whether it leaves something that is kept: whoever stores too much may not. What removes something may always.
    fn stores(&self) -> bool {
        true
    }
    /// Whether it ends or removes something. It may be recorded where the rest is not, since what is there in the end is less.
    fn removes(&self) -> bool {
        false
    }
    /// Asked of one that repeats another, and so is not run. What came with it as a stream is in no digest: it is compared here.
    fn repeats(self, first: Call<Self::Answer>) -> impl Future<Output = Result<()>> + Send {
        drop(first);
        std::future::ready(Ok(()))
    }
}

/// Something that changes nothing.
pub trait Look: Send + Sized + 'static {
    const VERB: &'static str;
    type Answer: Send;
    fn needs(&self) -> Needs;
    fn argv(&self) -> Vec<String>;
    fn run(self, cx: Cx) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// What an act works with.
#[derive(Clone)]
pub struct Cx {
    pub call: CallId,
    pub caller: Caller,
    pub runtime: Runtime,
    pub(crate) record: Option<Arc<Record>>,
    pub(crate) slot: Option<Arc<Slot>>,
    /// Whether the sandbox was not there before the call.
    pub(crate) made: bool,
    pub(crate) sandbox: Option<Arc<dyn Sandbox>>,
    pub output: Arc<Log>,
    pub cancel: CancellationToken,
    pub(crate) notes: Arc<Mutex<Notes>>,
    pub(crate) awake: Option<Arc<Awake>>,
    pub(crate) lease: Option<Token>,
}

/// What only the act itself knows of what the ledger wants to know, and whoever waits.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) tell: Option<watch::Sender<Option<Outcome>>>,
    pub(crate) exit: Option<i64>,
    pub(crate) input: Option<[u8; 32]>,
    /// For what the client sent, until the act has run or takes it.
    pub(crate) memory: Option<MemoryCharge>,
    /// For the task that it begins.
    pub(crate) task: Option<Pass>,
    /// Held from when the call was accepted, until the act has it.
    pub(crate) awake: Option<Awake>,
    /// It was to end or remove something, and has found nothing.
    pub(crate) is_void: bool,
    /// What its end means for a snapshot.
    pub(crate) snapshot: Option<SnapshotStep>,
}

impl Cx {
    /// There for an act that needs it.
    pub fn sandbox(&self) -> Result<&Arc<dyn Sandbox>> {
        self.sandbox.as_ref().ok_or(Error::Sandbox(cabana_sandbox::Error::Gone))
    }

    pub fn record(&self) -> Result<&Arc<Record>> {
        self.record.as_ref().ok_or(Error::Sandbox(cabana_sandbox::Error::Gone))
    }

    /// What its sandbox was asked to be, parsed once for all calls.
    pub(crate) fn wanted(&self) -> Result<Arc<Wanted>> {
        self.slot.as_ref().ok_or(Error::Sandbox(cabana_sandbox::Error::Gone))?.wanted()
    }

    /// For an act that stores something.
    pub(crate) fn check_room(&self) -> Result<()> {
        self.runtime.0.keeper.space.check()
    }

    pub(crate) async fn slot(&self) -> Result<Arc<Slot>> {
        self.runtime.0.sandboxes.of_id(&self.caller, &self.record()?.id).await
    }

    /// Whoever waits hears why there is no answer yet. The work goes on.
    pub(crate) fn away(&self, error: &cabana_store::Error) {
        let away = outcome_of(Err(error.clone().into()));
        self.note(|notes| notes.tell.as_ref().map(|tell| tell.send(Some(away)).is_ok()));
    }

    pub(crate) fn note<T>(&self, note: impl FnOnce(&mut Notes) -> T) -> T {
        note(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An act, whatever its types are.
pub(crate) trait Work: Send {
    fn run(self: Box<Self>, cx: Cx) -> BoxFuture<'static, Result<Bytes>>;
    fn repeats(self: Box<Self>, first: RawCall) -> BoxFuture<'static, Result<()>>;
}

pub(crate) struct Acting<A> {
    pub(crate) act: A,
    /// As long as the act waits.
    pub(crate) memory: MemoryCharge,
}

impl<A: Act> Work for Acting<A> {
    fn run(self: Box<Self>, cx: Cx) -> BoxFuture<'static, Result<Bytes>> {
        Box::pin(async move {
            let Self { act, memory } = *self;
            cx.note(|notes| notes.memory = Some(memory));
            let answer = act.run(cx).await?;
            let answer = serde_json::to_vec(&answer);
            answer.map(Into::into).map_err(|error| Error::invalid("answer", error.to_string()))
        })
    }

    fn repeats(self: Box<Self>, first: RawCall) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let Self { act, memory: _until_compared } = *self;
            act.repeats(Call(first, PhantomData, None)).await
        })
    }
}

/// A handle on work that goes on without it.
#[derive(Clone)]
pub(crate) struct RawCall {
    pub(crate) id: CallId,
    pub(crate) output: Arc<Log>,
    done: watch::Receiver<Option<Outcome>>,
    pub(crate) cancel: CancellationToken,
}

impl RawCall {
    pub(crate) fn new(id: CallId, output: Arc<Log>) -> (Self, watch::Sender<Option<Outcome>>) {
        let (tell, done) = watch::channel(None);
        (Self { id, output, done, cancel: CancellationToken::new() }, tell)
    }

    pub(crate) fn done(id: CallId, output: Arc<Log>, outcome: Outcome) -> Self {
        Self { id, output, done: watch::channel(Some(outcome)).1, cancel: CancellationToken::new() }
    }

    pub(crate) async fn outcome(mut self) -> Outcome {
        match self.done.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Outcome::Unknown),
            // The next server settles it.
            Err(_) => Outcome::Failed {
                code: Code::ProviderOffline,
                message: "the server ends, and the call is left to the next one".into(),
            },
        }
    }
}

/// A handle on a call. Dropping it changes nothing.
pub struct Call<T>(pub(crate) RawCall, pub(crate) PhantomData<fn() -> T>, pub(crate) Option<Following>);

/// What one that repeats another has until it is answered. It did nothing itself: it may be asked again, and so is refused where there is
/// no room for its answer.
pub(crate) struct Following {
    pub(crate) runtime: Runtime,
    pub(crate) tenant: Tenant,
    pub(crate) removes: bool,
    pub(crate) _pass: Option<Pass>,
    pub(crate) _place: Share,
}

impl Following {
    /// Once the first has ended: very many may have waited for it.
    fn check(&self) -> Result<()> {
        if self.removes { Ok(()) } else { self.runtime.check_answers(&self.tenant) }
    }
}

/// Of an outcome. What is no longer is kept by one that waits for its turn.
const SHORT: usize = 4 << 10;

impl<T: DeserializeOwned> Call<T> {
    pub fn id(&self) -> CallId {
        self.0.id
    }

    pub fn output(&self) -> &Arc<Log> {
        &self.0.output
    }

    pub fn cancel(&self) {
        self.0.cancel.cancel();
    }

    /// As recorded: the same for everybody who asks, however often.
    pub async fn answer(self) -> Result<T> {
        let Self(call, _, following) = self;
        let outcome = call.outcome().await;
        following.as_ref().map_or(Ok(()), Following::check)?;
        Self::parse(outcome)
    }

    /// The same for who makes a long answer of it: see [`Runtime::answer_turn`]. A long one is read back when its turn comes.
    pub async fn answer_in_turn(self, runtime: &Runtime, tenant: &Tenant) -> Result<(T, AnswerTurn)> {
        let Self(call, _, following) = self;
        let id = call.id;
        let outcome = call.outcome().await;
        if let Some(following) = following {
            let turn = runtime.making_turn(tenant).await; // who repeats a call shares what it answered with all who do
            following.check()?;
            return Ok((Self::parse(outcome)?, turn));
        }
        if let Some(turn) = runtime.answer_turn(tenant).now_or_never() {
            return Ok((Self::parse(outcome)?, turn));
        }
        let short =
            Some(outcome).filter(|outcome| !matches!(outcome, Outcome::Answered(answer) if answer.len() > SHORT));
        let turn = runtime.answer_turn(tenant).await;
        let outcome = match short {
            Some(outcome) => outcome,
            None => runtime.0.store.call(tenant, id).await?.and_then(|row| row.outcome).unwrap_or(Outcome::Unknown),
        };
        Ok((Self::parse(outcome)?, turn))
    }

    fn parse(outcome: Outcome) -> Result<T> {
        serde_json::from_slice(&answer_of(outcome)?)
            .map_err(|error| Error::Store(cabana_store::Error::Corrupt(format!("the answer of a call: {error}"))))
    }
}

pub(crate) fn answer_of(outcome: Outcome) -> Result<Bytes> {
    match outcome {
        Outcome::Answered(answer) => Ok(answer),
        Outcome::Failed { code, message } => Err(Error::Recorded { code, message }),
        Outcome::Cancelled => Err(Error::Cancelled),
        Outcome::Unknown => Err(Error::Unknown),
    }
}

pub(crate) fn outcome_of(result: Result<Bytes>) -> Outcome {
    match result {
        Ok(answer) => Outcome::Answered(answer),
        Err(Error::Cancelled) => Outcome::Cancelled,
        Err(Error::Unknown) => Outcome::Unknown,
        Err(error) => Outcome::Failed { code: error.code(), message: words::recorded_message(error.to_string()) },
    }
}

/// Those under way. One is here before its row is, and until its outcome is.
#[derive(Clone, Default)]
pub(crate) struct UnderWay(Arc<Mutex<HashMap<CallId, RawCall>>>);

impl UnderWay {
    fn all<T>(&self, act: impl FnOnce(&mut HashMap<CallId, RawCall>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn add(&self, call: RawCall) {
        self.all(|calls| calls.insert(call.id, call));
    }

    pub(crate) fn get(&self, id: CallId) -> Option<RawCall> {
        self.all(|calls| calls.get(&id).cloned())
    }

    pub(crate) fn remove(&self, id: CallId) {
        self.all(|calls| calls.remove(&id));
    }

    pub(crate) fn count(&self) -> usize {
        self.all(|calls| calls.len())
    }
}
