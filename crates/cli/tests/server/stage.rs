//! A real server for one test: its own data, its own port, and an end that leaves nothing.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    os::{
        fd::AsFd,
        unix::{fs::MetadataExt, process::ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};
use serde_json::{Value, json};

pub(crate) const CABANA: &str = env!("CARGO_BIN_EXE_cabana");
/// For what has to come, on a loaded machine too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where scripts/setup puts what is from no Debian package.
pub(crate) fn cache() -> PathBuf {
    let of = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    of.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"))).unwrap().join("cabana")
}

/// Runs the test again where it can mount what it likes. False: that is done.
pub(crate) fn alone(test: &str) -> bool {
    const TOLD: &str = "CABANA_TEST_ALONE";
    if std::env::var_os(TOLD).is_some() {
        return true;
    }
    let mut again = Command::new("unshare");
    again.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
    let run = again.args([test, "--exact", "--nocapture"]).env(TOLD, "").output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
    false
}

pub(crate) struct Server {
    data: tempfile::TempDir,
    child: Option<Child>,
    flags: Vec<String>,
    pub(crate) url: String,
    pub(crate) key: String,
    /// What it has written to standard error.
    said: Arc<Mutex<Vec<String>>>,
    client: reqwest::Client,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(flags: &[&str]) -> Self {
        Self::prepared(flags, |_| ())
    }

    /// Once something was done to its data.
    pub(crate) fn start_after(prepare: impl FnOnce(&Path)) -> Self {
        Self::prepared(&[], prepare)
    }

    pub(crate) fn prepared(flags: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        prepare(data.path());
        if !data.path().join("version").exists() {
            take_base(data.path());
        }
        let mut server = Self {
            data,
            child: None,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            url: String::new(),
            key: String::new(),
            said: Arc::default(),
            client: client(),
        };
        server.run();
        server
    }

    /// On the same data, wherever there is a free port.
    pub(crate) fn run(&mut self) {
        assert!(self.spawn(&[]), "the server says where it serves");
    }

    /// One that is killed when it passes this place for so many times. False: it was, before it served anybody.
    pub(crate) fn run_until(&mut self, place: &str, time: u64) -> bool {
        let serves = self.spawn(&[("CABANA_FAULT", &format!("{place}@{time}"))]);
        if !serves {
            self.is_killed();
        }
        serves
    }

    /// One that is killed after a while, wherever it is then.
    pub(crate) fn run_for(&mut self, while_: Duration) {
        let mut child = self.command().stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(while_);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Waits until it has taken up what the one before left. True: it was killed at that.
    pub(crate) async fn is_killed_recovering(&mut self) -> bool {
        let ended = until(|| async {
            let Ok(metrics) = self.request(Method::GET, "/metrics").send().await else { return Some(true) };
            let metrics = metrics.text().await;
            metrics.map_or(Some(true), |text| text.contains("\ncabana_recovering 0\n").then_some(false))
        });
        let is_killed = ended.await;
        if is_killed {
            self.is_killed();
        }
        is_killed
    }

    pub(crate) fn is_there(&self) -> bool {
        self.child.is_some()
    }

    /// Waits until it is, by itself.
    pub(crate) fn is_killed(&mut self) {
        let ended = self.child.take().unwrap().wait().unwrap();
        assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()), "{ended}");
    }

    fn command(&self) -> Command {
        let mut command = Command::new(CABANA);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(&self.flags).arg("--data").arg(self.data.path());
        command.env_remove("CABANA_SERVER_LISTEN").env("CABANA_LOG_LEVEL", "warn");
        command.env("CABANA_FAULT_CLOCK", self.clock());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Whether it serves.
    fn spawn(&mut self, env: &[(&str, &str)]) -> bool {
        let mut child = self.command().envs(env.iter().copied()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = self.said.clone();
        // For whoever looks at a test that failed, too.
        let hear = move |line: &str| {
            eprintln!("server: {line}");
            said.lock().unwrap().push(line.to_owned());
        };
        let url = lines.by_ref().map(Result::unwrap).find_map(|line| {
            hear(&line);
            let in_json = || serde_json::from_str::<Value>(&line).ok()?["url"].as_str().map(str::to_owned);
            line.strip_prefix("Cabana serves at ").map(str::to_owned).or_else(in_json)
        });
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| hear(&line)));
        self.child = Some(child);
        let Some(url) = url else { return false };
        self.url = url;
        self.key = fs::read_to_string(self.data.path().join("admin.key")).unwrap().trim().to_owned();
        true
    }

    /// What the next one is started with.
    pub(crate) fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    fn clock(&self) -> PathBuf {
        self.data.path().join("clock-of-the-test")
    }

    /// Moves its clock: so many seconds pass at once. Nobody waits for them.
    pub(crate) fn pass(&self, seconds: i64) {
        let before = fs::read_to_string(self.clock()).map_or(0, |text| text.parse::<i64>().unwrap());
        let new = self.clock().with_extension("new");
        fs::write(&new, (before + seconds).to_string()).unwrap();
        fs::rename(new, self.clock()).unwrap();
    }

    /// Everything that is due by now is done then.
    pub(crate) async fn reap(&self) -> Value {
        good(self.request(Method::POST, "/v1/reap").send().await.unwrap()).await
    }

    /// The record of the sandbox of this scope; null where there is none.
    pub(crate) async fn record(&self, scope: &str) -> Value {
        let all = self.get("/v1/sandboxes?limit=1000").await;
        let of_it = all["sandboxes"].as_array().unwrap().iter().find(|one| one["scope"]["value"] == scope);
        of_it.cloned().unwrap_or(Value::Null)
    }

    pub(crate) fn data(&self) -> &Path {
        self.data.path()
    }

    /// All lines that it has written to standard error by now.
    pub(crate) fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// As the kernel ends it: no word to anybody.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Kills it, and does not wait for its end.
    pub(crate) fn shoot(&mut self) -> Child {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child
    }

    /// As an operator ends it.
    pub(crate) fn stop(&mut self) {
        kill_process(Pid::from_child(self.child.as_ref().unwrap()), Signal::TERM).unwrap();
        self.has_ended();
    }

    /// Waits until it has, as it should.
    pub(crate) fn has_ended(&mut self) {
        assert!(self.child.take().unwrap().wait().unwrap().success());
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.key)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.request(Method::POST, path).json(body)
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        good(self.request(Method::GET, path).send().await.unwrap()).await
    }

    /// A shell command in the scope of this name, whatever comes of it.
    pub(crate) async fn exec_in(&self, scope: &str, command: &str) -> Response {
        let body = json!({ "scope": { "scheme": "fixed", "name": scope }, "command": command });
        self.post("/v1/exec", &body).send().await.unwrap()
    }

    pub(crate) async fn exec(&self, scope: &str, command: &str) -> Value {
        good(self.exec_in(scope, command).await).await
    }

    pub(crate) async fn stdout(&self, scope: &str, command: &str) -> String {
        let answer = self.exec(scope, command).await;
        assert_eq!(answer["exit_code"], 0, "{answer}");
        answer["stdout"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn ensure(&self, scope: &str) -> Value {
        let body = json!({ "scope": { "scheme": "fixed", "name": scope } });
        good(self.post("/v1/sandboxes:ensure", &body).send().await.unwrap()).await
    }

    /// A command in the background; its task.
    pub(crate) async fn begin(&self, scope: &str, command: &str) -> String {
        let body = json!({ "scope": { "scheme": "fixed", "name": scope }, "command": command, "background": true });
        let answer = self.post("/v1/exec", &body).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
        answer.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()
    }

    /// The task, once it has ended.
    pub(crate) async fn ended(&self, task: &str) -> Value {
        let path = format!("/v1/tasks/{task}");
        until(|| async { Some(self.get(&path).await).filter(|task| task["state"] != "running") }).await
    }

    /// A key of another tenant or role.
    pub(crate) async fn key_for(&self, tenant: &str, role: &str) -> String {
        let answer =
            good(self.post("/v1/keys", &json!({ "tenant": tenant, "role": role })).send().await.unwrap()).await;
        answer["key"].as_str().unwrap().to_owned()
    }

    /// What runs in sandboxes, but for their first processes.
    pub(crate) fn commands(&self) -> Vec<Pid> {
        let children = |init: u32| fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap_or_default();
        let all: Vec<String> = self.inits().into_iter().map(children).collect();
        all.iter().flat_map(|pids| pids.split_whitespace()).filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// Directories of sandboxes. Those that are made ahead, or on their way out, have no name of one.
    pub(crate) fn homes(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.data.path().join("sandboxes")).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with('.')).collect()
    }

    /// Processes of sandboxes that this server's data knows of, as the host numbers them.
    pub(crate) fn inits(&self) -> Vec<u32> {
        inits_of(self.data.path())
    }
}

/// A number of a long run.
pub(crate) fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

pub(crate) fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default(); // another test may have been first
    reqwest::Client::new()
}

pub(crate) fn inits_of(data: &Path) -> Vec<u32> {
    let homes = fs::read_dir(data.join("sandboxes")).into_iter().flatten().flatten();
    homes.filter_map(|home| init_of(&home.path())).collect()
}

fn init_of(home: &Path) -> Option<u32> {
    let note: Value = serde_json::from_slice(&fs::read(home.join("live.json")).ok()?).ok()?;
    let pid = u32::try_from(note["pid"].as_u64()?).ok()?;
    // A number is soon another process's. After the name: the state is the first field, and the start the twentieth.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let is_it = name == "cabana-init" && fields[0] != "Z" && fields[19].parse() == Ok(note["started"].as_u64()?);
    is_it.then_some(pid)
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // What a server makes outlives it, and must not outlive its test.
        for pid in self.inits() {
            let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
        }
        // A disk that the test brought goes with it: nobody could remove the directory otherwise.
        for disk in ["db", "outputs", ""] {
            let _ = rustix::mount::unmount(self.data.path().join(disk), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// The machine's own programs as a base are the same for all: made once, and linked into each test's data.
pub(crate) fn take_base(data: &Path) {
    let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("server-base");
    fs::create_dir_all(&base).unwrap();
    let lock = fs::File::create(base.with_extension("lock")).unwrap();
    flock(lock.as_fd(), FlockOperation::LockExclusive).unwrap();
    let made = Command::new(CABANA).args(["run", "--net", "off", "--data"]).arg(&base).args(["--", "true"]).status();
    assert!(made.unwrap().success());
    // A test may have brought a disk of its own.
    let how = if fs::metadata(&base).unwrap().dev() == fs::metadata(data).unwrap().dev() { "-al" } else { "-a" };
    for part in ["ids", "layers", "templates", "version"] {
        let copied = Command::new("cp").arg(how).arg(base.join(part)).arg(data).status().unwrap();
        assert!(copied.success());
    }
}

/// The body of an answer that says yes.
pub(crate) async fn good(response: Response) -> Value {
    let status = response.status();
    let text = response.text().await.unwrap();
    assert!(status.is_success(), "{status}: {text}");
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

/// The code of an answer that says no, with its status.
pub(crate) async fn refused(response: Response) -> (u16, String) {
    let status = response.status();
    let body: Value = response.json().await.unwrap();
    assert!(!status.is_success(), "{body}");
    let error = &body["error"];
    for field in ["message", "hint", "docs"] {
        assert!(error[field].as_str().is_some_and(|text| !text.is_empty()), "{body}");
    }
    (status.as_u16(), error["code"].as_str().unwrap().to_owned())
}

/// Asks until there is something.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(mut ask: impl FnMut() -> F) -> T {
    let asked = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it comes in time")
}
