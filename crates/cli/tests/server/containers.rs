//! A server in a container, with the very flags of the guide, and the manifest that says the same to Kubernetes.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{root, stage::PATIENCE};

const IMAGE: &str = "cabana-test";

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// The flags of this block of the guide.
fn flags(block: &str) -> Vec<String> {
    let guide = file("docs/guides/containers.md");
    let text = guide.split(&format!("```{block}\n")).nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let lines = text.lines().map(|line| line.trim_end_matches('\\').trim()).filter(|line| line.starts_with("--"));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// What it does with the image.
fn serve() -> String {
    let guide = file("docs/guides/containers.md");
    let line = guide.lines().find_map(|line| line.strip_prefix("  IMAGE ")).unwrap();
    line.to_owned()
}

/// A daemon of the test's own: its data, its socket, and none of the machine's networks.
struct Docker {
    daemon: Child,
    dir: tempfile::TempDir,
}

impl Docker {
    fn start() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new("dockerd");
        for (flag, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
            command.arg(flag).arg(dir.path().join(name));
        }
        command.args(["--host", &host(dir.path()), "--iptables=false", "--ip-masq=false", "--bridge=none"]);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let daemon = command.spawn().expect("dockerd is there: run scripts/setup");
        let mut docker = Self { daemon, dir };
        let until = Instant::now() + PATIENCE;
        while !docker.client(&["version"]).output().unwrap().status.success() {
            assert!(docker.daemon.try_wait().unwrap().is_none() && Instant::now() < until, "{}", docker.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        docker
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn client(&self, words: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(["--host", &host(self.dir.path())]).args(words).stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn says(&self, words: &[&str]) -> String {
        let done = self.client(words).output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{words:?}: {}{told}", String::from_utf8_lossy(&done.stdout));
        String::from_utf8(done.stdout).unwrap()
    }

    /// The program, a shell, and a template.
    fn make_image(&self) {
        let at = self.dir.path().join("root");
        root::make(&at);
        root::tar(&at, &self.dir.path().join("base.tar"));
        let small = self.dir.path().join("cabana");
        let stripped =
            Command::new("strip").args(["-o", small.to_str().unwrap(), env!("CARGO_BIN_EXE_cabana")]).status();
        assert!(stripped.unwrap().success());
        root::add(&at, small.to_str().unwrap(), "cabana");
        fs::rename(self.dir.path().join("base.tar"), at.join("base.tar")).unwrap();
        for dir in ["proc", "sys", "dev", "tmp"] {
            fs::create_dir_all(at.join(dir)).unwrap();
        }
        let tar = self.dir.path().join("image.tar");
        root::tar(&at, &tar);
        self.says(&["import", "--change", "ENTRYPOINT [\"/bin/cabana\"]", tar.to_str().unwrap(), IMAGE]);
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let _ = self.client(&["rm", "--force", "live"]).output();
        let _ = kill_process(Pid::from_child(&self.daemon), Signal::TERM);
        let _ = self.daemon.wait();
    }
}

fn host(dir: &Path) -> String {
    format!("unix://{}", dir.join("socket").display())
}

/// A published port needs a network of Docker's own, which this machine is not to have; all else is as it is written.
fn of_guide(own_ids: bool, volume: &str) -> Vec<String> {
    let mut flags = flags("docker");
    if own_ids {
        flags.extend(self::flags("docker-own-ids"));
    }
    let published = flags.iter().position(|flag| flag == "--publish").unwrap();
    flags.drain(published..published + 2);
    flags.iter_mut().for_each(|flag| *flag = flag.replace("cabana:/var", &format!("{volume}:/var")));
    flags
}

#[test]
fn a_server_in_a_container_with_the_flags_of_the_guide_serves_drains_and_keeps_its_files() {
    let docker = Docker::start();
    docker.make_image();
    for own_ids in [false, true] {
        let (volume, flags) = (format!("volume-{own_ids}"), of_guide(own_ids, &format!("volume-{own_ids}")));
        let run = |words: &[&str]| {
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            docker.says(&[&["run", "--network", "none"], flags.as_slice(), words].concat())
        };
        run(&["--rm", IMAGE, "template", "add", "base", "--from", "/base.tar"]);
        assert_eq!(run(&["--rm", IMAGE, "run", "--template", "base", "--", "id", "-u"]), "1000\n", "{flags:?}");
        assert_eq!(run(&["--rm", IMAGE, "run", "--template", "base", "--user", "root", "--", "id", "-u"]), "0\n");
        for round in ["first", "second"] {
            let serve = serve();
            let serve: Vec<&str> = serve.split(' ').collect();
            run(&[&["--detach", "--name", "live", IMAGE], serve.as_slice()].concat());
            let until = Instant::now() + PATIENCE;
            while !docker.client(&["exec", "live", "/bin/cabana", "ls"]).output().unwrap().status.success() {
                assert!(Instant::now() < until, "{}", docker.says(&["logs", "live"]));
                std::thread::sleep(Duration::from_millis(50));
            }
            let exec = |words: &[&str]| {
                docker.says(
                    &[&["exec", "live", "/bin/cabana", "exec", "--template", "base", "box", "--"], words].concat(),
                )
            };
            match round {
                "first" => assert_eq!(exec(&["sh", "-c", "echo kept > /home/user/file; echo fine"]), "fine\n"),
                _ => assert_eq!(exec(&["cat", "/home/user/file"]), "kept\n"),
            }
            docker.says(&["stop", "live"]);
            let ended = docker.says(&["inspect", "--format", "{{.State.ExitCode}}", "live"]);
            assert_eq!(ended.trim(), "0", "it ends by itself, and in time");
            docker.says(&["rm", "live"]);
        }
        docker.says(&["volume", "rm", &volume]);
    }
}

/// By a reader of YAML, which is no part of what is shipped.
fn manifest() -> Vec<Value> {
    let script = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)";
    let mut python = Command::new("python3");
    let mut python = python.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    python.stdin.take().unwrap().write_all(file("packaging/kubernetes.yaml").as_bytes()).unwrap();
    let done = python.wait_with_output().unwrap();
    assert!(done.status.success(), "python3 reads YAML: run scripts/setup");
    serde_json::from_slice(&done.stdout).unwrap()
}

#[test]
fn the_manifest_gives_a_pod_what_the_flags_give_a_container_and_no_more() {
    let all = manifest();
    let set = all.iter().find(|part| part["kind"] == "StatefulSet").unwrap();
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let mut given = BTreeSet::new();
    for (field, value) in container["securityContext"].as_object().unwrap() {
        match (field.as_str(), value) {
            ("seccompProfile", profile) if *profile == json!({ "type": "Unconfined" }) => given.insert("seccomp"),
            ("appArmorProfile", profile) if *profile == json!({ "type": "Unconfined" }) => given.insert("apparmor"),
            ("procMount", mount) if *mount == json!("Unmasked") => given.insert("systempaths"),
            (field, value) => panic!("the guide has no flag for {field}: {value}"),
        };
    }
    assert_eq!(pod["hostUsers"], false, "without it, Kubernetes refuses procMount");
    let flags = flags("docker");
    let value = |flag: &str| flags.iter().position(|found| found == flag).map(|at| flags[at + 1].clone()).unwrap();
    let opened: BTreeSet<&str> = flags.iter().filter_map(|flag| flag.strip_suffix("=unconfined")).collect();
    assert_eq!(given, opened);
    assert!(!flags.iter().any(|flag| flag == "--cap-add" || flag == "--privileged"));
    assert_eq!(container["volumeMounts"][0]["mountPath"], value("--volume").split_once(':').unwrap().1);
    assert_eq!(pod["terminationGracePeriodSeconds"].to_string(), value("--stop-timeout"));
    let args: Vec<&str> = container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    assert_eq!(args.join(" "), serve());
    let service = all.iter().find(|part| part["kind"] == "Service").unwrap();
    assert_eq!(service["spec"]["selector"], set["spec"]["template"]["metadata"]["labels"]);
}
