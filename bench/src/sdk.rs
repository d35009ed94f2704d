//! E2B's Python SDK, unmodified: what it takes to a first command, from Cabana and from a server that has nothing to do.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
    net::{TcpListener, TcpStream},
    task::{JoinSet, spawn_blocking},
};

use crate::rhythm::Rhythm;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/sdk/create_exec.py");
/// As scripts/setup installs it.
const PYTHON: &str = "cabana/e2b/python-2.63.0/bin/python";

/// A process that has the SDK loaded, and its connections open.
struct Sdk {
    process: Child,
    asks: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Sdk {
    fn start(url: &str, key: &str) -> Result<Self> {
        let python = cache()?.join(PYTHON);
        ensure!(python.exists(), "there is no {}: `make setup` installs it", python.display());
        let mut command = Command::new(python);
        command.arg(SCRIPT).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("E2B_API_URL", url).env("E2B_SANDBOX_URL", url).env("E2B_API_KEY", key);
        let mut process = command.spawn()?;
        let asks = process.stdin.take().context("the SDK has no input")?;
        let told = process.stdout.take().context("the SDK has no output")?;
        Ok(Self { process, asks, told: BufReader::new(told) })
    }

    fn once(mut self) -> Result<(Self, f64)> {
        self.asks.write_all(b"\n")?;
        let mut told = String::new();
        ensure!(self.told.read_line(&mut told)? > 0, "the SDK ended: what it said is above");
        let told = told.trim().parse()?;
        Ok((self, told))
    }
}

impl Drop for Sdk {
    fn drop(&mut self) {
        // It may have ended already; then nothing is left to end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn cache() -> Result<PathBuf> {
    let set = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    set.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set")
}

pub(crate) async fn create_exec(url: &str, key: &str, rhythm: Rhythm) -> Result<Vec<f64>> {
    let mut sdk = Sdk::start(url, key)?;
    let mut turns = rhythm.turns();
    while turns.next().await {
        let took;
        (sdk, took) = spawn_blocking(move || sdk.once()).await??;
        turns.tell(took);
    }
    Ok(turns.told())
}

/// What the SDK itself costs: every answer is there before it asks.
pub(crate) async fn against_nothing(rhythm: Rhythm) -> Result<Vec<f64>> {
    let door = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", door.local_addr()?);
    // Both end when the measuring does.
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut clients = JoinSet::new();
        while let Ok((stream, _)) = door.accept().await {
            clients.spawn(serve(stream));
        }
    });
    create_exec(&url, "e2b_00", rhythm).await
}

async fn serve(stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufStream::new(stream);
    while let Some(asked) = asked(&mut stream).await? {
        stream.write_all(&answer(&asked)).await?;
        stream.flush().await?;
    }
    Ok(())
}

/// Its first line, once its body was read too. `None`: there is no more.
async fn asked(stream: &mut BufStream<TcpStream>) -> Result<Option<String>> {
    let (mut first, mut length, mut chunked) = (String::new(), 0, false);
    if stream.read_line(&mut first).await? == 0 {
        return Ok(None);
    }
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim().to_lowercase();
        match line.split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse()?,
            Some(("transfer-encoding", value)) => chunked = value.trim() == "chunked",
            Some(_) => {}
            None if line.is_empty() => break,
            None => {}
        }
    }
    loop {
        if chunked {
            let mut size = String::new();
            stream.read_line(&mut size).await?;
            length = usize::from_str_radix(size.trim(), 16)? + 2;
        }
        stream.read_exact(&mut vec![0; length]).await?;
        if !chunked || length == 2 {
            return Ok(Some(first));
        }
    }
}

fn answer(asked: &str) -> Vec<u8> {
    const SANDBOX: &str = r#"{"templateID":"base","sandboxID":"i00000000000000000000","clientID":"none","envdVersion":"0.6.13","envdAccessToken":"00"}"#;
    let (status, kind, body) = match asked.split(' ').nth(1) {
        Some("/v2/sandboxes") => ("201 Created", "application/json", SANDBOX.as_bytes().to_vec()),
        Some("/process.Process/Start") => {
            let started = frame(0, r#"{"event":{"start":{"pid":7}}}"#);
            let ended = frame(0, r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#);
            ("200 OK", "application/connect+json", [started, ended, frame(2, "{}")].concat())
        }
        _ => ("204 No Content", "application/json", Vec::new()),
    };
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.into_bytes(), body].concat()
}

fn frame(flags: u8, message: &str) -> Vec<u8> {
    [&[flags][..], &(message.len() as u32).to_be_bytes(), message.as_bytes()].concat()
}
