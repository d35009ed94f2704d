//! The host's own programs inside: they work, what is installed stays inside, and nothing else of the host is seen.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
    process::{Child, Command},
};

use cabana_engine::Engine;
use cabana_sandbox::{Base, ExecSpec, Provider, SandboxEvent, SandboxId, SandboxSpec, write_all};
use futures_util::{FutureExt, StreamExt};

use crate::{
    inside::{Inside, command, host, marked, named, path, python, shell, unique, unique_sleep, until},
    stage,
};

#[tokio::test]
async fn awk_of_the_host_works_inside() {
    let inside = Inside::new().await;
    assert_eq!(inside.user("printf '1 2\\n3 4\\n' | awk '{ sum += $2 } END { print sum }'").await.ok(), "6");
    inside.end().await;
}

#[tokio::test]
async fn a_c_program_is_compiled_and_runs_inside() {
    let inside = Inside::new().await;
    let source = "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 6 * 7); return 3; }\n";
    write_all(&*inside.files("user"), &path("/home/user/a.c"), source).await.unwrap();
    assert_eq!(inside.user("cd && cc -O1 -Wall -o a a.c && { ./a; echo $?; }").await.ok(), "42\n3");
    inside.end().await;
}

#[tokio::test]
async fn python_of_the_host_works_inside() {
    let inside = Inside::new().await;
    let script = "import json, sqlite3, ssl, threading, subprocess, tempfile
thread = threading.Thread(target=lambda: print(json.dumps({'sum': sqlite3.connect(':memory:').execute('select 40+2').fetchone()[0]})))
thread.start()
thread.join()
with tempfile.NamedTemporaryFile() as f: print(subprocess.run(['stat', '-c', '%U', f.name], capture_output=True, text=True).stdout)";
    assert_eq!(inside.python("user", script).await.ok(), "{\"sum\": 42}\nuser");
    inside.end().await;
}

#[tokio::test]
async fn git_of_the_host_works_inside() {
    let inside = Inside::new().await;
    let script = "set -e; cd; git init -q -b main repo; cd repo; echo one > a; git add a
        git -c user.name=N -c user.email=n@e.test commit -qm first; git log --format=%s; git status --short | wc -l";
    assert_eq!(inside.user(script).await.ok(), "first\n0");
    inside.end().await;
}

#[tokio::test]
async fn node_of_the_host_works_inside() {
    let inside = Inside::new().await;
    let script = "node -e 'setTimeout(() => console.log([1, 2].map(x => x * 21).at(-1)), 5)'";
    assert_eq!(inside.user(script).await.ok(), "42");
    inside.end().await;
}

/// A package that brings one file and makes another when it is installed.
fn package(dir: &Path, name: &str) -> Vec<u8> {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("DEBIAN")).unwrap();
    fs::create_dir_all(tree.join("usr/share").join(name)).unwrap();
    fs::write(tree.join("usr/share").join(name).join("brought"), "by the package\n").unwrap();
    let control = format!(
        "Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <n@e.test>\nDescription: for a test\n"
    );
    fs::write(tree.join("DEBIAN/control"), control).unwrap();
    let script = format!(
        "#!/bin/sh\nset -e\nmkdir -p /var/lib/{name}\nid -u > /var/lib/{name}/configured\nchown user /var/lib/{name}/configured\n"
    );
    fs::write(tree.join("DEBIAN/postinst"), script).unwrap();
    fs::set_permissions(tree.join("DEBIAN/postinst"), fs::Permissions::from_mode(0o755)).unwrap();
    let file = dir.join("package.deb");
    host("dpkg-deb", &["--root-owner-group", "-b", tree.to_str().unwrap(), file.to_str().unwrap()]);
    fs::read(file).unwrap()
}

#[tokio::test]
async fn apt_get_install_of_a_local_deb_stays_in_the_sandboxs_own_layer() {
    let dir = tempfile::tempdir().unwrap();
    let name = unique("cabana-probe");
    let engine = stage::engine().await;
    let id = SandboxId::random();
    let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
    let files = sandbox.files(Some(&named("root")));
    write_all(&*files, &path("/tmp/x.deb"), package(dir.path(), &name)).await.unwrap();

    let install = "cd /tmp && DEBIAN_FRONTEND=noninteractive apt-get install -y ./x.deb";
    shell(&*sandbox, "root", install).await.ok();

    let look = format!(
        "cat /usr/share/{name}/brought /var/lib/{name}/configured; stat -c %U /var/lib/{name}/configured
         dpkg -s {name} | grep ^Status"
    );
    let installed = "by the package\n0\nuser\nStatus: install ok installed";
    assert_eq!(shell(&*sandbox, "user", &look).await.ok(), installed);

    assert!(!fs::read_to_string("/var/lib/dpkg/status").unwrap().contains(&name), "in the host's own database");
    assert!(!Path::new("/usr/share").join(&name).exists(), "on the host");
    let other = engine.create(&SandboxId::random(), &crate::inside::passing()).await.unwrap();
    shell(&*other, "root", &format!("dpkg -s {name}")).await.refused();
    shell(&*other, "root", &format!("ls /usr/share/{name}")).await.refused();

    engine.stop(&id).await.unwrap();
    let sandbox = engine.start(&id).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", &look).await.ok(), installed, "after a stop and a start");
    shell(&*sandbox, "root", &format!("apt-get remove -y {name}")).await.ok();
    shell(&*sandbox, "root", &format!("ls /usr/share/{name}")).await.refused();
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

/// Writes a wheel as its format asks for: a zip of the module, its metadata and the list of both.
const WHEEL: &str = r#"
import base64, hashlib, zipfile
parts = {
    "cabana_probe.py": "def answer():\n    return 42\n",
    "cabana_probe-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: cabana-probe\nVersion: 1.0\n",
    "cabana_probe-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
record = ""
with zipfile.ZipFile("/tmp/cabana_probe-1.0-py3-none-any.whl", "w") as wheel:
    for name, text in parts.items():
        wheel.writestr(name, text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text)}\n"
    wheel.writestr("cabana_probe-1.0.dist-info/RECORD", record + "cabana_probe-1.0.dist-info/RECORD,,\n")
"#;

#[tokio::test]
async fn pip_install_of_a_local_wheel_stays_inside() {
    let inside = Inside::new().await;
    inside.python("user", WHEEL).await.ok();
    let use_it = "python3 -c 'import cabana_probe; print(cabana_probe.answer(), cabana_probe.__file__)'";
    let install = "pip install --no-index --no-cache-dir --disable-pip-version-check --break-system-packages";
    let wheel = "/tmp/cabana_probe-1.0-py3-none-any.whl";

    inside.user(&format!("cd && {install} --user {wheel}")).await.ok();
    let said = inside.user(&format!("cd && HOME=/home/user {use_it}")).await.ok();
    assert!(said.starts_with("42 /home/user/.local/"), "{said}");

    inside.root(&format!("{install} --root-user-action=ignore {wheel}")).await.ok();
    let said = inside.root(use_it).await.ok();
    assert!(said.starts_with("42 /usr/local/lib/"), "{said}");
    let place = said.split_once(' ').unwrap().1;
    assert!(!Path::new(place).exists(), "{place} is on the host");

    let other = inside.engine.create(&SandboxId::random(), &crate::inside::passing()).await.unwrap();
    shell(&*other, "root", use_it).await.refused();
    inside.end().await;
}

#[tokio::test]
async fn pip_works_in_a_virtual_environment_inside() {
    let inside = Inside::new().await;
    inside.python("user", WHEEL).await.ok();
    let script = "set -e; cd; python3 -m venv --without-pip v
        pip --python v/bin/python install --no-index --no-cache-dir --disable-pip-version-check \\
            /tmp/cabana_probe-1.0-py3-none-any.whl >/dev/null
        v/bin/python -c 'import cabana_probe; print(cabana_probe.answer(), cabana_probe.__file__)'";
    let said = inside.user(script).await.ok();
    assert!(said.starts_with("42 /home/user/v/lib/"), "{said}");
    inside.end().await;
}

/// Something put on the host for a while. It goes away with the test.
struct OnHost(PathBuf);

impl OnHost {
    fn new(path: impl Into<PathBuf>, make: impl FnOnce(&Path)) -> Self {
        let path = path.into();
        make(&path);
        Self(path)
    }

    fn file(path: impl Into<PathBuf>, content: &str) -> Self {
        Self::new(path, |path| fs::write(path, content).unwrap())
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0).or_else(|_| fs::remove_file(&self.0));
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn no_file_of_the_hosts_homes_tmp_and_run_is_visible() {
    let name = unique(".cabana-canary");
    let _canaries: Vec<OnHost> = ["/root", "/home", "/tmp", "/run", "/var/tmp", "/srv", "/opt", "/mnt"]
        .iter()
        .map(|dir| OnHost::file(Path::new(dir).join(&name), "canary"))
        .collect();
    let inside = Inside::new().await;
    let find = format!(
        "find / -xdev -path /proc -prune -o -name '{name}' -print; ls -a /root /home /tmp /run | grep -c canary"
    );
    let found = inside.root(&find).await;
    assert_eq!(found.out.trim(), "0");
    assert_eq!(inside.root("ls /home").await.ok(), "user");
    inside.end().await;
}

#[tokio::test]
async fn no_process_of_the_host_is_visible() {
    let marker = unique_sleep();
    let _running = Running(Command::new("sleep").arg(&marker).spawn().unwrap());
    until("the process is there", || !marked(&marker).is_empty()).await;
    let inside = Inside::new().await;
    // Written so that the search does not find itself.
    let pattern = format!("sleep.{}", marker.replace('.', "[.]"));
    let seen = inside.root("ps -e -o pid=,comm= | sort -n").await.ok();
    let names: Vec<&str> = seen.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(names.first(), Some(&"cabana-init"), "{seen}");
    assert!(names[1..].iter().all(|name| ["bash", "ps", "sort"].contains(name)), "{seen}");
    assert_eq!(inside.root(&format!("cat /proc/[0-9]*/cmdline | grep -ac '{pattern}'")).await.out.trim(), "0");
    inside.root(&format!("kill -0 {}", std::process::id())).await.refused();
    inside.end().await;
}

#[tokio::test]
async fn no_socket_of_the_host_is_visible() {
    let name = unique("cabana-canary.sock");
    let places = [Path::new("/run").join(&name), Path::new("/tmp").join(&name)];
    let mut listeners = Vec::new();
    let _sockets: Vec<OnHost> =
        places.iter().map(|at| OnHost::new(at, |at| listeners.push(UnixListener::bind(at).unwrap()))).collect();
    use std::os::linux::net::SocketAddrExt;
    let hidden = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    listeners.push(UnixListener::bind_addr(&hidden).unwrap());

    let inside = Inside::new().await;
    assert_eq!(inside.root("find / -xdev -path /proc -prune -o -type s -print").await.ok(), "");
    let script = format!(
        "import socket
for at in '/run/{name}', '/tmp/{name}', '\\0{name}':
    try:
        socket.socket(socket.AF_UNIX).connect(at)
        print('reached', at)
    except (FileNotFoundError, ConnectionRefusedError):
        print('absent')"
    );
    assert_eq!(inside.python("root", &script).await.ok(), "absent\nabsent\nabsent");
    inside.end().await;
}

#[tokio::test]
async fn the_environment_of_the_server_stays_outside() {
    let ours = std::env::var("CARGO_MANIFEST_DIR").expect("tests have it");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let env = shell(&*inside.sandbox, user, "env; cat /proc/self/environ").await.ok();
        assert!(!env.contains(&ours) && !env.contains("CARGO"), "{env}");
        let given: Vec<&str> = env.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
        assert!(given.contains(&"PATH") && given.contains(&"HOME"), "{env}");
    }
    inside.end().await;
}

#[tokio::test]
async fn accounts_keys_and_passwords_of_the_host_stay_outside() {
    let inside = Inside::new().await;
    let shadow = inside.root("cat /etc/shadow").await.ok();
    let passwords: Vec<&str> = shadow.lines().filter_map(|line| line.split(':').nth(1)).collect();
    assert!(!passwords.is_empty() && passwords.iter().all(|word| word.starts_with(['*', '!'])), "{shadow}");
    let people = inside.root("awk -F: '$3 >= 1000 && $3 != 65534 { print $1 }' /etc/passwd").await.ok();
    assert_eq!(people, "user");
    for secret in
        ["/etc/ssh", "/root/.ssh", "/etc/machine-id", "/etc/krb5.keytab", "/etc/docker", "/var/run/docker.sock"]
    {
        inside.root(&format!("ls {secret}")).await.refused();
    }
    let private = "grep -rlE 'BEGIN [A-Z ]*PRIVATE KEY' /etc /root /home /var 2>/dev/null";
    assert_eq!(inside.root(private).await.out.trim(), "");
    inside.end().await;
}

#[tokio::test]
async fn no_mount_of_the_host_shows_and_the_name_is_another() {
    let inside = Inside::new().await;
    let mounts = inside.root("cat /proc/self/mountinfo").await.ok();
    for line in mounts.lines() {
        let (place, kind) = line.split_once(" - ").unwrap();
        let kind = kind.split(' ').next().unwrap();
        assert!(["overlay", "proc", "tmpfs", "devpts"].contains(&kind), "{line}");
        let data = stage::shared_data();
        assert!(!line.contains(data.to_str().unwrap()) && !place.contains("/tmp/"), "{line}");
    }
    assert_eq!(
        inside.root("cat /proc/sys/kernel/hostname; uname -n; cat /etc/hostname").await.ok(),
        "cabana\ncabana\ncabana"
    );
    assert_eq!(inside.root("ls -A /sys | wc -l").await.ok(), "0");
    inside.end().await;
}

/// An engine whose base nobody else uses.
async fn own_engine(data: &Path) -> std::sync::Arc<Engine> {
    Engine::open(stage::config(data.join("data"))).await.unwrap()
}

#[tokio::test]
async fn what_not_everybody_on_the_host_may_read_is_hidden_from_root_inside() {
    let name = unique("cabana-canary");
    // A directory whose time is no part of the fingerprint: other engines need not make their base again.
    let at = Path::new("/usr/share/doc").join(&name);
    let _secret = OnHost::new(&at, |at| {
        let write = |name: &str, mode| {
            fs::write(at.join(name), "secret").unwrap();
            fs::set_permissions(at.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::create_dir_all(at.join("closed")).unwrap();
        write("private", 0o600);
        write("group", 0o640);
        write("public", 0o644);
        write("closed/public", 0o644);
        fs::set_permissions(at.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    });
    let dir = tempfile::tempdir().unwrap();
    let engine = own_engine(dir.path()).await;
    let sandbox = engine.create(&SandboxId::random(), &crate::inside::passing()).await.unwrap();
    let look = format!("cd /usr/share/doc/{name} && ls && cat public");
    assert_eq!(shell(&*sandbox, "root", &look).await.ok(), "public\nsecret");
    for hidden in ["private", "group", "closed", "closed/public"] {
        let at = format!("/usr/share/doc/{name}/{hidden}");
        shell(&*sandbox, "root", &format!("cat {at}")).await.refused();
        let stat = sandbox.files(Some(&named("root"))).stat(&path(&at)).await;
        assert_eq!(stat.unwrap_err().code(), cabana_sandbox::Code::NotFound, "{hidden}");
    }
    engine.close().await;
}

/// Run by the next test in mounts of its own, so that the base changes for nobody else.
#[tokio::test]
async fn a_base_that_changes() {
    let Ok(other) = std::env::var(OTHER_PROGRAMS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let engine = own_engine(dir.path()).await;
    let mut events = engine.events();
    let id = SandboxId::random();
    engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
    engine.stop(&id).await.unwrap();
    host("mount", &["--bind", &other, "/usr/local/bin"]);
    let sandbox = engine.start(&id).await.unwrap();
    let (of, event) = events.next().now_or_never().flatten().expect("something is told").unwrap();
    assert_eq!(of, id);
    match event {
        SandboxEvent::BaseChanged { was, now } => assert_ne!(was, now),
        other => panic!("{other:?}"),
    }
    assert_eq!(shell(&*sandbox, "user", "echo works").await.ok(), "works");
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

const OTHER_PROGRAMS: &str = "CABANA_TEST_OTHER_PROGRAMS";

#[tokio::test]
async fn a_changed_base_is_reported() {
    let other = tempfile::tempdir().unwrap();
    let run = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(std::env::current_exe().unwrap())
        .args(["host_base::a_base_that_changes", "--exact", "--nocapture"])
        .env(OTHER_PROGRAMS, other.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
}

#[tokio::test]
async fn the_default_user_its_home_and_its_path_are_as_promised() {
    let inside = Inside::new().await;
    let defaults = inside.sandbox.defaults().clone();
    assert_eq!((defaults.user.as_str(), defaults.workdir.to_string().as_str()), ("user", "/home/user"));
    let said =
        inside.user("id -un; id -u; pwd; cd; pwd; touch here /workspace/there /tmp/x && echo written").await.ok();
    assert_eq!(said, "user\n1000\n/\n/home/user\nwritten");
    let argv = ExecSpec::argv(["awk", "BEGIN { print \"by name\" }"], defaults.workdir);
    assert_eq!(command(&*inside.sandbox, "user", argv).await.ok(), "by name");
    assert_eq!(python(&*inside.sandbox, "user", "import os; print(os.umask(0))").await.ok(), "18");
    inside.end().await;
}
