//! A server as its clients meet it: over HTTP, with a key, on connections that are kept.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
    net::TcpStream,
};

use crate::rhythm::{Rhythm, nanoseconds};

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
        let program = std::env::current_exe()?.with_file_name("cabana");
        ensure!(program.exists(), "there is no {}: `make bench` builds it", program.display());
        let mut command = Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).env("CABANA_LOG_LEVEL", "off");
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

    async fn client(&self) -> Result<Client> {
        let stream = TcpStream::connect(self.at).await?;
        stream.set_nodelay(true)?;
        Ok(Client {
            stream: BufStream::new(stream),
            head: format!("Host: {}\r\nAuthorization: Bearer {}", self.at, self.key),
        })
    }

    /// A name that no scope has had.
    fn fresh(&self) -> String {
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

struct Client {
    stream: BufStream<TcpStream>,
    head: String,
}

impl Client {
    async fn exec(&mut self, scope: &str) -> Result<()> {
        let body = format!(r#"{{"scope":{{"scheme":"fixed","name":"{scope}"}},"argv":["/bin/true"]}}"#);
        let answer = self.ask("POST /v1/exec", &body).await?;
        ensure!(answer.contains(r#""exit_code":0"#), "a command ended badly: {answer}");
        Ok(())
    }

    async fn delete(&mut self, scope: &str) -> Result<()> {
        let body = format!(r#"{{"scope":{{"scheme":"fixed","name":"{scope}"}}}}"#);
        let answer = self.ask("POST /v1/sandboxes:ensure", &body).await?;
        let answer: serde_json::Value = serde_json::from_str(&answer)?;
        let id = answer["id"].as_str().context("a sandbox has no id")?;
        self.ask(&format!("DELETE /v1/sandboxes/{id}"), "").await.map(drop)
    }

    /// One request and its answer. What a real client would do beside it is not measured.
    async fn ask(&mut self, what: &str, body: &str) -> Result<String> {
        let request = format!("{what} HTTP/1.1\r\n{}\r\nContent-Length: {}\r\n\r\n{body}", self.head, body.len());
        self.stream.write_all(request.as_bytes()).await?;
        self.stream.flush().await?;
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
