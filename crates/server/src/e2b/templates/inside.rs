//! What is done in a sandbox for a template: commands with what the template brings, and files.

use std::time::Duration;

use bytes::Bytes;
use cabana_runtime::{
    Act, Ask, Caller, Code, Error, Place, SandboxId,
    acts::{
        Asked,
        exec::{Answer, Ending, Exec, Keep},
        files::{At, Unpack},
    },
};
use cabana_sandbox::{Command, Stream, User};

use super::{
    super::{brought::Brought, guest::FRONT},
    log::BuildLog,
};
use crate::App;

/// Between two tries.
const AGAIN: Duration = Duration::from_millis(300);

/// The first that is there.
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];

pub(super) struct Inside<'a> {
    pub(super) app: &'a App,
    pub(super) caller: &'a Caller,
    pub(super) sandbox: SandboxId,
}

/// Who runs what, and where.
pub(super) struct Script<'a> {
    pub(super) text: &'a str,
    pub(super) args: &'a [&'a str],
    pub(super) user: Option<User>,
    /// None of a login, for what is ours.
    pub(super) is_login: bool,
    pub(super) timeout: Duration,
}

impl Inside<'_> {
    pub(super) async fn call<A: Act>(&self, act: A) -> Result<A::Answer, Error> {
        self.app.runtime.call(self.ask(), act).await?.answer().await
    }

    fn ask(&self) -> Ask {
        let place = Place::Sandbox(self.sandbox.clone());
        Ask { caller: self.caller.clone(), place, key: None, lease: None, front: FRONT }
    }

    fn asked(shell: &str, script: &Script<'_>, brought: &Brought) -> Asked {
        let options = if script.is_login { "-lc" } else { "-c" };
        let argv = [shell, options, script.text, shell].into_iter().chain(script.args.iter().copied());
        Asked {
            cwd: brought.workdir.clone(),
            env: brought.env.clone(),
            user: script.user.clone().or_else(|| brought.user.clone()),
            timeout: Some(script.timeout),
            ..Asked::new(Command::Argv(argv.map(str::to_owned).collect()))
        }
    }

    /// By bash where there is one. What it says goes into the log.
    pub(super) async fn run(
        &self,
        script: &Script<'_>,
        brought: &Brought,
        log: Option<(&BuildLog, &str)>,
    ) -> Result<Answer, Error> {
        let mut last = None;
        for shell in SHELLS {
            let exec =
                || Exec { asked: Self::asked(shell, script, brought), keep: Keep::tail(2 << 10), clamped: Vec::new() };
            let call = patiently(|| async { self.app.runtime.call(self.ask(), exec()).await }).await?;
            let output = call.output().clone();
            let following = async {
                if let Some((log, step)) = log {
                    log.follow(step, &output).await;
                }
            };
            match tokio::join!(call.answer(), following).0 {
                Err(error) if error.code() == Code::ProgramNotFound => last = Some(error),
                answered => return answered,
            }
        }
        Err(last.unwrap_or(Error::Cancelled))
    }

    pub(super) async fn unpack(&self, path: &str, body: Stream<Bytes>) -> Result<(), Error> {
        let at = At { user: Some(User::root()), ..At::new(path) };
        self.call(Unpack { at, body }).await
    }
}

/// A build has time: where its tenant has made too many calls in a second, it waits for the next one.
pub(super) async fn patiently<T, F: Future<Output = Result<T, Error>>>(call: impl Fn() -> F) -> Result<T, Error> {
    const TIMES: usize = 120;
    for _ in 0..TIMES {
        match call().await {
            Err(error) if error.code() == Code::RateLimited => tokio::time::sleep(AGAIN).await,
            called => return called,
        }
    }
    call().await
}

/// In the words of whoever looks for the reason. `None`: it succeeded.
pub(super) fn failure(answer: &Answer) -> Option<String> {
    let why = match (answer.exit.status, answer.exit.exit_code, answer.exit.signal) {
        (_, Some(0), _) => return None,
        (_, Some(code), _) => format!("exit status {code}"),
        (Ending::TimedOut, ..) => "it took too long".to_owned(),
        (Ending::OutOfMemory, ..) => "it ran out of memory".to_owned(),
        (Ending::DiskFull, ..) => "its disk is full".to_owned(),
        (_, _, Some(signal)) => format!("signal {signal}"),
        _ => "it did not end by itself".to_owned(),
    };
    let said =
        String::from_utf8_lossy(&answer.stderr.tail.0).into_owned() + &String::from_utf8_lossy(&answer.stderr.head.0);
    let said = said.trim();
    let last = said.lines().last().map(str::trim).filter(|line| !line.is_empty());
    Some(last.map_or(why.clone(), |last| format!("{why}: {last}")))
}
