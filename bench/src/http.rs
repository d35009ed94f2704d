//! A server as its clients meet it: over HTTP, with a key, on connections that are kept.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
    net::TcpStream,
};

use crate::{
    rhythm::{Rhythm, nanoseconds},
    sdk,
};

/// As many clients, on as many sandboxes, ask at once.
pub(crate) const CLIENTS: usize = 200;
pub(crate) const SANDBOXES: usize = 50;

/// `cabana serve`, which lies beside the bench.
pub(crate) struct Served {
    process: Child,
    at: SocketAddr,
    key: String,
    next: AtomicUsize,
}

impl Served {
    pub(crate) fn start(data: &Path) -> Result<Self> {
        Self::start_with(data, &[])
    }

    pub(crate) fn start_with(data: &Path, flags: &[&str]) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("cabana");
        ensure!(program.exists(), "there is no {}: `make bench` builds it", program.display());
        let mut command = Command::new(program);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .args(flags)
            .env("CABANA_LOG_LEVEL", "off");
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut said = BufReader::new(process.stderr.take().context("the server has no output")?).lines();
        let url = said
            .by_ref()
            .map_while(|line| line.ok())
            .find_map(|line| line.strip_prefix("Cabana serves at http://").map(str::to_owned));
        let Some(url) = url else {
            let _ = process.kill();
            bail!("the server does not say where it serves");
        };
        // What it says later is read, so that it never waits to say it.
        std::thread::spawn(move || said.for_each(drop));
        let key = std::fs::read_to_string(data.join("admin.key"))?.trim().to_owned();
        Ok(Self { process, at: url.parse()?, key, next: AtomicUsize::new(0) })
    }

    pub(crate) async fn client(&self) -> Result<Client> {
        let stream = TcpStream::connect(self.at).await?;
        stream.set_nodelay(true)?;
        Ok(Client {
            stream: BufStream::new(stream),
            head: format!("Host: {}\r\nAuthorization: Bearer {}", self.at, self.key),
        })
    }

    /// A name that no scope has had.
    pub(crate) fn fresh(&self) -> String {
        format!("bench-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// In a sandbox that runs.
    pub(crate) async fn exec(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        let mut client = self.client().await?;
        let scope = self.fresh();
        client.exec(&scope).await?;
        let mut turns = rhythm.turns();
        while turns.next().await {
            let start = Instant::now();
            client.exec(&scope).await?;
            turns.tell(nanoseconds(start));
        }
        client.delete(&scope).await?;
        Ok(turns.told())
    }

    pub(crate) async fn by_sdk(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        sdk::create_exec(&format!("http://{}", self.at), &self.key, rhythm).await
    }

    /// In a sandbox that was stopped a moment ago.
    pub(crate) async fn wake_exec(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        let mut client = self.client().await?;
        let scope = self.fresh();
        let id = client.ensure(&scope).await?;
        let mut turns = rhythm.turns();
        while turns.next().await {
            client.ask(&format!("POST /v1/sandboxes/{id}/stop"), "").await?;
            let start = Instant::now();
            client.exec(&scope).await?;
            turns.tell(nanoseconds(start));
        }
        client.delete(&scope).await?;
        Ok(turns.told())
    }

    /// Ends it as an operator would: all that it has is written down then.
    pub(crate) fn end(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.process.wait()?;
        Ok(())
    }

    /// All that it has had by now.
    pub(crate) fn processor_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        let fields = stat.rsplit_once(')').context("no name in the stat of the server")?.1;
        let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<u64>);
        let mut next = || ticks.next().context("too few numbers")?.context("no number");
        let ticks = next()? + next()?;
        Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }

    /// In a scope that has no sandbox yet.
    pub(crate) async fn create_exec(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        let mut client = self.client().await?;
        let mut turns = rhythm.turns();
        while turns.next().await {
            let scope = self.fresh();
            let start = Instant::now();
            client.exec(&scope).await?;
            turns.tell(nanoseconds(start));
            client.delete(&scope).await?;
        }
        Ok(turns.told())
    }

    /// As [`Self::exec`], while a thousand streams are open that say nothing, and ten that say much and nobody reads.
    pub(crate) async fn exec_beside_streams(&self, rhythm: Rhythm) -> Result<Vec<f64>> {
        const IDLE: usize = 1000;
        const SLOW: usize = 10;
        allow_open_files()?;
        let mut open = Vec::with_capacity(IDLE + SLOW);
        for _ in 0..IDLE {
            let mut client = self.client().await?;
            client.begin("GET /v1/events", "").await?;
            open.push(client);
        }
        let scope = self.fresh();
        let sandbox = self.client().await?.ensure(&scope).await?;
        for n in 0..SLOW {
            let mut client = self.client().await?;
            client.head.push_str("\r\nAccept: text/event-stream");
            let loud = format!(r#"{{"command":"head -c 8000000 /dev/zero; touch said-{n}; sleep 600"}}"#);
            client.begin(&format!("POST /v1/sandboxes/{sandbox}/exec"), &loud).await?;
            open.push(client);
        }
        // None of them waits for its reader.
        let all = format!("until [ $(ls said-* | wc -l) = {SLOW} ]; do sleep 0.05; done");
        self.client().await?.run(&sandbox, &["sh", "-c", &all]).await?;
        let told = self.exec(rhythm).await;
        drop(open);
        self.client().await?.delete(&scope).await?;
        told
    }

    /// Its memory after some thousand commands, and after ten times as many, in KiB.
    pub(crate) async fn memory_of_calls(&self) -> Result<[f64; 2]> {
        const CLIENTS: usize = 20;
        const FIRST: usize = 10_000;
        const ALL: usize = 100_000;
        let scopes: Vec<_> = (0..CLIENTS / 2).map(|_| self.fresh()).collect();
        let mut clients = Vec::with_capacity(CLIENTS);
        for _ in 0..CLIENTS {
            clients.push(self.client().await?);
        }
        let mut after = [0.0; 2];
        for (calls, after) in [FIRST, ALL - FIRST].into_iter().zip(&mut after) {
            let work = clients.iter_mut().enumerate().map(|(n, client)| {
                let scope = &scopes[n % scopes.len()];
                async move {
                    for _ in 0..calls / CLIENTS {
                        client.exec(scope).await?;
                    }
                    anyhow::Ok(())
                }
            });
            futures_util::future::try_join_all(work).await?;
            *after = self.memory("VmRSS:")?;
        }
        for scope in &scopes {
            clients[0].delete(scope).await?;
        }
        Ok(after)
    }

    /// What the kernel says of it, in KiB.
    pub(crate) fn memory(&self, what: &str) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(what)).context("the server has no memory")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    pub(crate) fn forget_peak(&self) -> Result<()> {
        Ok(std::fs::write(format!("/proc/{}/clear_refs", self.process.id()), "5")?)
    }

    /// The time of one command where very many are asked for at once: all of it, shared by all.
    pub(crate) async fn throughput(&self, samples: usize) -> Result<Vec<f64>> {
        const EACH: usize = 10;
        let scopes: Vec<_> = (0..SANDBOXES).map(|_| self.fresh()).collect();
        let mut clients = Vec::with_capacity(CLIENTS);
        for n in 0..CLIENTS {
            let mut client = self.client().await?;
            client.exec(&scopes[n % SANDBOXES]).await?;
            clients.push(client);
        }
        let mut told = Vec::with_capacity(samples);
        for _ in 0..samples {
            let start = Instant::now();
            let work = clients.iter_mut().enumerate().map(|(n, client)| {
                let scope = &scopes[n % SANDBOXES];
                async move {
                    for _ in 0..EACH {
                        client.exec(scope).await?;
                    }
                    anyhow::Ok(())
                }
            });
            futures_util::future::try_join_all(work).await?;
            told.push(nanoseconds(start) / (CLIENTS * EACH) as f64);
        }
        for scope in &scopes {
            clients[0].delete(scope).await?;
        }
        Ok(told)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Each stream is one.
fn allow_open_files() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

pub(crate) struct Client {
    pub(crate) stream: BufStream<TcpStream>,
    /// What each request says beside what it wants.
    pub(crate) head: String,
}

impl Client {
    pub(crate) async fn exec(&mut self, scope: &str) -> Result<()> {
        let body = format!(r#"{{"scope":{{"scheme":"fixed","name":"{scope}"}},"argv":["/bin/true"]}}"#);
        let answer = self.ask("POST /v1/exec", &body).await?;
        ensure!(answer.contains(r#""exit_code":0"#), "a command ended badly: {answer}");
        Ok(())
    }

    pub(crate) async fn run(&mut self, sandbox: &str, argv: &[&str]) -> Result<()> {
        let body = serde_json::json!({ "argv": argv }).to_string();
        let answer = self.ask(&format!("POST /v1/sandboxes/{sandbox}/exec"), &body).await?;
        ensure!(answer.contains(r#""exit_code":0"#), "{argv:?} ended badly: {answer}");
        Ok(())
    }

    /// Gives the id of the scope's sandbox.
    pub(crate) async fn ensure(&mut self, scope: &str) -> Result<String> {
        let body = format!(r#"{{"scope":{{"scheme":"fixed","name":"{scope}"}}}}"#);
        let answer = self.ask("POST /v1/sandboxes:ensure", &body).await?;
        let answer: serde_json::Value = serde_json::from_str(&answer)?;
        Ok(answer["id"].as_str().context("a sandbox has no id")?.to_owned())
    }

    async fn delete(&mut self, scope: &str) -> Result<()> {
        let id = self.ensure(scope).await?;
        self.ask(&format!("DELETE /v1/sandboxes/{id}"), "").await.map(drop)
    }

    /// A request whose answer goes on: its first line is there.
    async fn begin(&mut self, what: &str, body: &str) -> Result<()> {
        self.say(what, body).await?;
        let mut status = String::new();
        self.stream.read_line(&mut status).await?;
        ensure!(status.starts_with("HTTP/1.1 2"), "{what}: {}", status.trim());
        Ok(())
    }

    async fn say(&mut self, what: &str, body: &str) -> Result<()> {
        let request = format!("{what} HTTP/1.1\r\n{}\r\nContent-Length: {}\r\n\r\n{body}", self.head, body.len());
        self.stream.write_all(request.as_bytes()).await?;
        Ok(self.stream.flush().await?)
    }

    /// One request and its answer. What a real client would do beside it is not measured.
    pub(crate) async fn ask(&mut self, what: &str, body: &str) -> Result<String> {
        self.say(what, body).await?;
        self.answer(what).await
    }

    pub(crate) async fn answer(&mut self, what: &str) -> Result<String> {
        let (mut status, mut length) = (String::new(), 0);
        self.stream.read_line(&mut status).await?;
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).await?;
            match line.trim().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.trim().parse()?,
                Some(_) => {}
                None => break,
            }
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).await?;
        let answer = String::from_utf8(answer)?;
        ensure!(status.starts_with("HTTP/1.1 2"), "{what}: {} {answer}", status.trim());
        Ok(answer)
    }
}
