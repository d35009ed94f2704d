//! A world of the test's own: network namespaces with servers at public addresses, and names that only they know.
//!
//! [`in_world`] runs the calling test again as a process of its own, in a network and a mount namespace: what is "the host"
//! there has a loopback, one inner address and a way out, which leads into a second namespace, the world. Whatever listens
//! in the world is a real server of a real client. Nothing of it is left when the process ends, by whatever end.

mod dns;
mod tls;

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::{fd::AsFd as _, linux::fs::MetadataExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Sender, channel, sync_channel},
    },
    time::{Duration, Instant},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use self::dns::Names;
pub use self::tls::Certificate;

const INSIDE: &str = "CABANA_TEST_WORLD";

/// The inner addresses of what is the host in there.
pub const HOST: &str = "10.77.0.1";
pub const HOST_V6: &str = "fd77::1";
/// Its public ones: they are its own, too.
pub const HOST_PUBLIC: &str = "93.184.216.1";
pub const HOST_PUBLIC_V6: &str = "2606:2800:220:1::1";

/// Far more than anything takes: what never comes fails instead.
const PATIENCE: Duration = Duration::from_secs(60);

type Act = Box<dyn FnOnce() + Send>;

pub struct World {
    dir: PathBuf,
    acts: Sender<Act>,
    names: Arc<Names>,
    children: Mutex<Vec<Child>>,
}

/// Runs the test in a world of its own. Must be called from the test's own thread, which has its name.
pub fn in_world(test: impl AsyncFnOnce(Arc<World>)) {
    match std::env::var_os(INSIDE) {
        Some(dir) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
            let world = Arc::new(World::make(dir.into()));
            runtime.block_on(test(world.clone()));
            world.end();
        }
        None => again(),
    }
}

fn again() {
    let thread = std::thread::current();
    let name = thread.name().filter(|name| name.contains("::")).expect("the thread of a test has its name");
    let dir = Scratch::new();
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--propagation", "private", "setpriv", "--pdeathsig", "KILL"]);
    command.arg(std::env::current_exe().expect("a test is a program")).args(["--exact", name, "--nocapture"]);
    let output = command.env(INSIDE, &dir.0).stdin(Stdio::null()).output().expect("unshare and setpriv are there");
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told.contains("1 passed"), "{told}{}", dir.logs());
}

/// A directory that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let made =
            Command::new("mktemp").args(["-d", "-t", "cabana-world-XXXXXXXX"]).output().expect("mktemp is there");
        let path = String::from_utf8(made.stdout).expect("a plain path");
        let path = PathBuf::from(path.trim());
        // The users of the servers go through it.
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
        Self(path)
    }

    /// What the servers said.
    fn logs(&self) -> String {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path());
        let logs = files.filter(|path| path.extension().is_some_and(|end| end == "log"));
        logs.map(|path| format!("--- {}\n{}", path.display(), fs::read_to_string(&path).unwrap_or_default())).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl World {
    fn make(dir: PathBuf) -> Self {
        run(&["ip", "link", "set", "lo", "up"]);
        let acts = thread_in_a_namespace();
        let world = Self { dir, acts, names: Arc::default(), children: Mutex::default() };
        let answering = world.names.clone();
        let resolver: SocketAddr = ([93, 184, 216, 53], 53).into();
        for address in ["10.77.0.2/24", "fd77::2/64"] {
            world.inside(move || run(&["ip", "address", "add", address, "dev", "in", "nodad"]));
        }
        world.inside(|| {
            run(&["ip", "link", "set", "lo", "up"]);
            run(&["ip", "link", "set", "in", "up"]);
            run(&["ip", "route", "add", "default", "via", HOST]);
            run(&["ip", "-6", "route", "add", "default", "via", HOST_V6]);
        });
        for arguments in [
            "address add 10.77.0.1/24 dev out",
            "address add fd77::1/64 dev out nodad",
            "address add 93.184.216.1/32 dev out",
            "address add 2606:2800:220:1::1/128 dev out nodad",
            "link set out up",
            "route add default via 10.77.0.2",
            "-6 route add default via fd77::2",
        ] {
            let words: Vec<&str> = std::iter::once("ip").chain(arguments.split(' ')).collect();
            run(&words);
        }
        world.address(&resolver.ip().to_string());
        world.inside(move || dns::serve(resolver, answering));
        let file = world.dir.join("resolv.conf");
        fs::write(&file, format!("nameserver {}\n", resolver.ip())).expect("a file");
        run(&["mount", "--bind", file.to_str().expect("a plain path"), "/etc/resolv.conf"]);
        world
    }

    /// Where the servers keep what they need; gone afterwards.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Does something on a thread that is in the world. What it starts is there, too, and ends with the test.
    pub fn inside<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = sync_channel(1);
        let act = Box::new(move || drop(done.send(act())));
        self.acts.send(act).expect("the world's thread lives");
        result.recv().expect("it did what it was told")
    }

    /// The world has this address from now on.
    pub fn address(&self, address: &str) {
        let length = if address.contains(':') { 128 } else { 32 };
        let address = format!("{address}/{length}");
        self.inside(move || run(&["ip", "address", "add", &address, "dev", "lo", "nodad"]));
    }

    /// The name has these addresses. Each answer is given once to each kind of question, the last one for ever.
    pub fn name(&self, name: &str, answers: &[&[&str]]) {
        let parse = |answer: &&[&str]| -> Vec<IpAddr> {
            answer.iter().map(|address| address.parse().expect("an address")).collect()
        };
        self.names.set(name, &answers.iter().map(parse).collect::<Vec<_>>());
    }

    /// A name with one address, which the world gets.
    pub fn site(&self, name: &str, addresses: &[&str]) {
        for address in addresses {
            self.address(address);
        }
        self.name(name, &[addresses]);
    }

    pub fn resolved(&self) -> Vec<String> {
        self.names.asked()
    }

    /// Starts a server in the world. What it says goes to a log that a failing test shows.
    pub fn start(&self, log: &str, command: &[&str]) {
        let log = File::create(self.dir.join(format!("{log}.log"))).expect("a log");
        let words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let child = self.inside(move || {
            let errors = log.try_clone().expect("a descriptor");
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL"]).args(words).stdin(Stdio::null()).stdout(log).stderr(errors);
            command.spawn().expect("the server is installed")
        });
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }

    /// Runs a program in the world to its end, which must be good.
    pub fn run(&self, command: &[&str]) -> String {
        let words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        self.inside(move || run(&words.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// Until something listens there, as seen from the host.
    pub fn wait_for(&self, address: &str) {
        let address: SocketAddr = address.parse().expect("an address with a port");
        let began = Instant::now();
        while TcpStream::connect_timeout(&address, PATIENCE).is_err() {
            assert!(began.elapsed() < PATIENCE, "nothing listens on {address}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A web server on all addresses of the world, of both families.
    pub fn web(&self, port: u16) -> Web {
        self.inside(move || Web::serve(TcpListener::bind(("::", port)).expect("a free port"), OK))
    }

    /// The same with an answer of its own.
    pub fn web_that_says(&self, port: u16, answer: &'static str) -> Web {
        self.inside(move || Web::serve(TcpListener::bind(("::", port)).expect("a free port"), answer))
    }

    fn end(&self) {
        for mut child in self.children.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nserved";

/// Keeps the address of each connection that it got, and the beginning of what it was asked.
#[derive(Clone, Default)]
pub struct Web {
    seen: Arc<Mutex<Vec<(IpAddr, String)>>>,
}

impl Web {
    /// In the namespace of the calling thread.
    pub fn serve(listener: TcpListener, answer: &'static str) -> Self {
        let web = Self::default();
        let seen = web.seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let seen = seen.clone();
                std::thread::spawn(move || {
                    let at = stream.local_addr().map_or(IpAddr::from([0; 4]), |at| at.ip().to_canonical());
                    let place = {
                        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                        seen.push((at, String::new()));
                        seen.len() - 1
                    };
                    let mut head = [0; 8192];
                    let length = stream.read(&mut head).unwrap_or(0);
                    let text = String::from_utf8_lossy(&head[..length]).into_owned();
                    seen.lock().unwrap_or_else(PoisonError::into_inner)[place].1 = text;
                    let _ = stream.write_all(answer.as_bytes());
                    let _ = stream.shutdown(Shutdown::Write);
                    // What the client still sends is read, so that it reads the answer before a reset.
                    while matches!(stream.read(&mut head), Ok(1..)) {}
                });
            }
        });
        web
    }

    /// Everything that is on this port of the host, over both families.
    pub fn on_host(port: u16) -> Self {
        Self::serve(TcpListener::bind(("::", port)).expect("a free port"), OK)
    }

    pub fn seen(&self) -> Vec<(IpAddr, String)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Nobody has come.
    #[track_caller]
    pub fn is_untouched(&self) {
        assert_eq!(self.seen(), [], "somebody got through");
    }
}

/// The namespace lives as long as this thread or something that it started.
fn thread_in_a_namespace() -> Sender<Act> {
    let (acts, todo) = channel::<Act>();
    let (made, ready) = sync_channel(1);
    let thread = std::thread::Builder::new().name("world".into());
    let thread = thread.spawn(move || {
        let holder = ["--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"];
        let holder = Command::new("setpriv").args(holder).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut holder = holder.expect("setpriv and unshare are there");
        let path = format!("/proc/{}/ns/net", holder.id());
        let own = fs::metadata("/proc/thread-self/ns/net").expect("our namespace").st_ino();
        let began = Instant::now();
        while fs::metadata(&path).is_ok_and(|there| there.st_ino() == own) {
            assert!(began.elapsed() < PATIENCE, "no namespace was made");
            std::thread::sleep(Duration::from_millis(1));
        }
        let pid = holder.id().to_string();
        run(&["ip", "link", "add", "out", "type", "veth", "peer", "name", "in", "netns", &pid]);
        let namespace = File::open(&path).expect("its namespace");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
        let _ = holder.kill();
        let _ = holder.wait();
        let _ = made.send(());
        for act in todo {
            act();
        }
    });
    thread.expect("a thread");
    ready.recv().expect("the world is made");
    acts
}

#[track_caller]
fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output().expect("the program is there");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
