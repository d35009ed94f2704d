//! `cabana exec`: a command in a sandbox of the server.

mod follow;

use std::{
    cell::{Cell, OnceCell},
    collections::BTreeMap,
    io::Read,
    pin::pin,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cabana_model::{CallId, Code};
use cabana_sandbox::NotRun;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::follow::Following;
use super::{
    output::Stuck,
    place::{Place, Scope},
    server::{At, Server, with_json},
    table,
};
use crate::{
    amounts,
    failure::{Failure, OURS, tell},
    run::{self, Signals, by_signal},
};

/// Run a command in a sandbox, which is made or started if it has to be
///
/// What it says comes as it says it. Its exit code is passed through, as by `cabana run`: death by signal N is 128+N, a
/// timeout 124, a failure of cabana itself 125, a program that cannot be executed 126, one that is not there 127.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cabana exec box -- uname -a\n  cabana exec user:ann --workdir /workspace -- make\n  \
                        cabana exec box --background -- python3 server.py"
)]
pub(crate) struct Args {
    /// The scope whose sandbox is meant: fixed:NAME, user:NAME, project_agent:PROJECT/AGENT or chat:APP/USER/CHAT
    #[arg(long, value_name = "SCHEME:VALUE")]
    scope: Option<String>,
    /// What the sandbox is made from if it is not there yet
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// The snapshot that it begins with, if it is not there yet
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "template")]
    snapshot: Option<String>,
    /// Defaults by name, some of them locked, if it is made now
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// What makes it behave as another system expects, if it is made now
    #[arg(long, value_name = "DIALECT")]
    dialect: Option<String>,
    /// A volume, or a directory of the server's machine, that the sandbox sees, if it is made now; may be repeated
    #[arg(long, value_name = "VOLUME|/DIR:INSIDE[:ro]")]
    mount: Vec<String>,
    /// End the command and all that it started after this time: 500ms, 10s, 2m, 1h
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// Who runs it inside, by name or number
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// A variable for the command; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Where the command starts, inside
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// Give it our standard input, once that has ended
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Let it go on without us: prints the task, for `cabana logs`, `ps` and `stop`
    #[arg(short = 'd', long)]
    background: bool,
    /// For programs: the whole answer as one JSON object, once there is one
    #[arg(long)]
    json: bool,
    /// The sandbox: its id, SCHEME:VALUE, or a plain name, which is the scope fixed:NAME. Not with --scope
    sandbox: Option<String>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

/// As the interface takes it.
#[derive(Serialize)]
struct Body {
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<Scope>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<BTreeMap<&'static str, Value>>,
    argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdin_b64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    background: bool,
}

/// How a command ended.
#[derive(Deserialize)]
pub(super) struct Exit {
    status: String,
    exit_code: Option<i32>,
    signal: Option<i32>,
}

impl Exit {
    pub(super) fn read(told: &Value) -> Result<Self, Failure> {
        Self::deserialize(told).map_err(|error| Failure::new(Code::Internal, format!("the answer: {error}")))
    }

    /// As ours.
    pub(super) fn code(&self, timeout: Option<&str>) -> u8 {
        match (self.status.as_str(), self.exit_code, self.signal) {
            ("exited", Some(code), _) => u8::try_from(code & 0xff).unwrap_or(OURS),
            ("timed_out", ..) => {
                tell(&match timeout {
                    Some(timeout) => format!("cabana: timed out after {timeout}"),
                    None => "cabana: timed out".to_owned(),
                });
                run::TIMED_OUT
            }
            ("out_of_memory", ..) => {
                tell("cabana: out of memory: the command was killed");
                by_signal(run::KILL)
            }
            ("disk_full", ..) => {
                tell("cabana: no room on the disk, or its limit is reached: the command was killed");
                by_signal(run::KILL)
            }
            (_, _, Some(signal)) => by_signal(signal),
            (status, ..) => {
                tell(&format!("cabana: the command ended as {status}"));
                OURS
            }
        }
    }
}

pub(super) async fn work(args: Args, server: &Server) -> Result<u8, Failure> {
    let (background, json, timeout) = (args.background, args.json, args.timeout.clone());
    let (path, body) = asked(args)?;
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let at = At(&path, &[]);
    let ended = match (background, json) {
        (true, json) => {
            let task: Value = server.post(at, &body).await?;
            if json {
                table::json(&task);
            } else {
                table::print(&format!("{}\n", task["id"].as_str().unwrap_or_default()));
            }
            Ok(0)
        }
        (false, true) => match server.post::<Value>(at, &body).await {
            Ok(answer) => {
                table::json(&answer);
                Ok(Exit::read(&answer)?.code(timeout.as_deref()))
            }
            Err(failure) => Err(failure),
        },
        (false, false) => waited(server, at, &body, timeout.as_deref()).await,
    };
    ended.or_else(|failure| match failure.is(Code::ProgramNotFound) {
        true => Ok(failure.not_run(&NotRun::Missing.to_string())),
        false => Err(failure),
    })
}

/// The path of the request, and what it asks.
fn asked(args: Args) -> Result<(Vec<String>, Body), Failure> {
    let mut argv = args.command;
    let place = Place::given(args.sandbox.as_deref(), args.scope.as_deref())?;
    if args.scope.is_some() {
        // Then the first word was the command's.
        argv.splice(0..0, args.sandbox);
    }
    if argv.is_empty() {
        return Err(Failure::bad("there is no command: write it behind the sandbox, as in `cabana exec box -- ls`"));
    }
    let stdin_b64 = match args.stdin {
        false => None,
        true => {
            let mut bytes = Vec::new();
            std::io::stdin()
                .read_to_end(&mut bytes)
                .map_err(|error| Failure::new(Code::Internal, format!("reading standard input: {error}")))?;
            Some(STANDARD.encode(bytes))
        }
    };
    let timeout = run::amount("--timeout", args.timeout.as_deref(), amounts::duration)?;
    let (path, scope) = match place {
        Place::Sandbox(id) => (vec!["v1".to_owned(), "sandboxes".into(), id.to_string(), "exec".into()], None),
        Place::Scope(scope) => (vec!["v1".to_owned(), "exec".into()], Some(scope)),
    };
    let base = args.template.map(|name| ("template", name)).or(args.snapshot.map(|id| ("snapshot", id)));
    let named = [args.profile.map(|name| ("profile", name)), args.dialect.map(|name| ("dialect", name))];
    let named = base.into_iter().chain(named.into_iter().flatten()).map(|(name, value)| (name, Value::from(value)));
    let mut spec: BTreeMap<_, _> = named.collect();
    if !args.mount.is_empty() {
        spec.insert("extra_mounts", args.mount.iter().map(|text| mount(text)).collect::<Result<_, _>>()?);
    }
    if let (None, Some(flag)) = (&scope, spec.keys().next()) {
        let flag = if *flag == "extra_mounts" { "mount" } else { flag };
        let why = format!("--{flag} is for a sandbox that is not there yet, and an id names one that is");
        return Err(Failure::bad(why));
    }
    let body = Body {
        scope,
        spec: Some(spec).filter(|spec| !spec.is_empty()),
        argv,
        cwd: args.workdir,
        env: run::variables(&args.env)?,
        user: args.user,
        stdin_b64,
        timeout_ms: timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
        background: args.background,
    };
    Ok((path, body))
}

/// What has a slash is a directory, and else a volume.
fn mount(text: &str) -> Result<Value, Failure> {
    let mut parts = text.split(':');
    let (source, inside, mode) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let mode = match mode {
        None => Value::Null,
        Some("ro" | "rw") => mode.into(),
        Some(_) => return Err(Failure::bad(format!("--mount {text}: the mode is ro or rw"))),
    };
    let (Some(inside), None, false) = (inside.filter(|inside| !inside.is_empty()), parts.next(), source.is_empty())
    else {
        return Err(Failure::bad(format!(
            "--mount {text}: write it as VOLUME:/inside or /directory:/inside, with :ro behind it"
        )));
    };
    let kind = if source.contains('/') { "host_path" } else { "volume" };
    Ok(json!({ kind: source, "mount_path": inside, "mode": mode }))
}

/// Whoever ends us ends the command: it is ours as long as we wait for it.
async fn waited(server: &Server, at: At<'_>, body: &Body, timeout: Option<&str>) -> Result<u8, Failure> {
    let failed = |error| Failure::new(Code::Internal, format!("listening for signals: {error}"));
    let mut signals = Signals::listen().map_err(failed)?;
    let once = CallId::now().to_string();
    let request = || {
        let request = with_json(server.request(Method::POST, at), body);
        request.header("Accept", "text/event-stream").header("Idempotency-Key", &once)
    };
    let (call, ending) = (OnceCell::new(), Cell::new(false));
    let mut following = pin!(Following { server, call: &call, ending: &ending }.until_the_end(request));
    let mut by = None;
    loop {
        tokio::select! {
            ended = &mut following => return match (ended, by) {
                (_, Some(signal)) => Ok(by_signal(signal)),
                (Ok(exit), None) => Ok(exit.code(timeout)),
                (Err(Stuck::NobodyReads), None) => {
                    follow::cancel(server, call.get()).await;
                    Ok(by_signal(run::PIPE))
                }
                (Err(Stuck::Failed(failure)), None) => Err(failure),
            },
            signal = signals.deadly() => {
                if by.replace(signal).is_some() {
                    return Ok(by_signal(signal));
                }
                ending.set(true);
                follow::cancel(server, call.get()).await;
            }
        }
    }
}
