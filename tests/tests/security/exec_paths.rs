//! What is looked up for a command before it is one: its user, its working directory, its program and what that needs.

use std::time::Duration;

use cabana_sandbox::{Code, ExecSpec, Result, SandboxPath, Status, User, run};

use crate::{
    attacks::{OUTSIDE, PLANT, SWAP, on_host},
    inside::{Inside, named, passing, path, rest, soon, unique},
};

/// Runs it; `Err` is the code of what was not started.
async fn tried(inside: &Inside, mut spec: ExecSpec) -> std::result::Result<(Status, String), Code> {
    spec.timeout = Some(Duration::from_secs(20));
    let ran: Result<_> = soon("a command", run(&*inside.sandbox, spec, 1 << 16)).await;
    let ran = ran.map_err(|error| error.code())?;
    Ok((ran.exit.status, String::from_utf8_lossy(&ran.stdout.whole().unwrap_or_default()).into_owned()))
}

fn program(user: &str, words: &[&str], cwd: &str) -> ExecSpec {
    ExecSpec { user: Some(named(user)), ..ExecSpec::argv(words.iter().copied(), path(cwd)) }
}

#[tokio::test]
async fn a_working_directory_that_is_no_directory() {
    let inside = Inside::new().await;
    let make = "cd /tmp && touch file && mkfifo pipe && ln -s nowhere dangling && ln -s circle circle && ln -s /dev/zero zero && \
        mkdir fine && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/socket\")'";
    inside.root(make).await.ok();
    for user in ["root", "user"] {
        for name in ["file", "pipe", "dangling", "circle", "zero", "socket", "file/below", "pipe/below"] {
            let ran = tried(&inside, program(user, &["true"], &format!("/tmp/{name}"))).await;
            assert!(ran.is_err(), "{name} as {user}: {ran:?}");
        }
        assert_eq!(tried(&inside, program(user, &["pwd"], "/tmp/fine")).await.unwrap().1, "/tmp/fine\n");
    }
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn a_working_directory_that_the_user_may_not_enter() {
    let inside = Inside::new().await;
    inside.root("mkdir -p /srv/closed/below && chmod 700 /srv/closed && chmod 777 /srv/closed/below").await.ok();
    for cwd in ["/srv/closed", "/srv/closed/below", "/root"] {
        assert!(tried(&inside, program("user", &["true"], cwd)).await.is_err(), "{cwd}");
        assert!(tried(&inside, program("root", &["true"], cwd)).await.is_ok(), "root may: {cwd}");
    }
    inside.end().await;
}

/// A directory that was removed while somebody stood in it is nowhere: neither inside nor outside.
#[tokio::test]
async fn a_working_directory_that_is_gone() {
    let inside = Inside::new().await;
    let standing = "mkdir /tmp/gone && cd /tmp/gone && rmdir /tmp/gone && echo $$ && sleep 300";
    let mut process = inside.sandbox.exec(program("user", &["sh", "-c", standing], "/")).await.unwrap();
    let pid = match futures_util::StreamExt::next(&mut process.events).await {
        Some(Ok(cabana_sandbox::Event::Output(output))) => String::from_utf8_lossy(&output.bytes).trim().to_owned(),
        other => panic!("it did not begin: {other:?}"),
    };
    assert_eq!(inside.user(&format!("readlink /proc/{pid}/cwd")).await.ok(), "/tmp/gone (deleted)");
    let ran =
        tried(&inside, program("user", &["sh", "-c", "ls .. ; cat ../etc/hostname"], &format!("/proc/{pid}/cwd")))
            .await;
    let inside_name = inside.user("cat /etc/hostname").await.ok();
    assert!(ran.as_ref().map_or(true, |(_, out)| out.is_empty() || out.contains(&inside_name)), "{ran:?}");
    inside.end().await;
}

#[tokio::test]
async fn a_working_directory_by_the_doors_of_other_processes() {
    let (dir, word) = (tempfile::tempdir().unwrap(), unique("canary"));
    std::fs::write(dir.path().join("canary"), &word).unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let relative = dir.path().strip_prefix("/").unwrap().join("canary").to_str().unwrap().to_owned();
    let words = [relative.as_str(), word.as_str(), "tmp"];
    // Where such a door leads to the host, the program finds it.
    let control = on_host(&format!("cd /proc/self/root && {} {relative} {word} tmp", OUTSIDE.on_host().display()));
    assert_eq!(control.report().of("reading it from the working directory"), "done");
    let inside = Inside::new().await;
    let look = inside.bring(&OUTSIDE).await.remove(0);
    let (_sleeper, pid) = sleeping(&inside).await;
    for user in ["root", "user"] {
        for who in ["1", "self", "thread-self", &pid] {
            for door in ["root", "cwd", "task/1/root", "fd/0", "fd/1", "map_files", "ns", "fdinfo", "attr", "net"] {
                let spec = program(user, &[&[look.as_str()][..], &words[..]].concat(), &format!("/proc/{who}/{door}"));
                if let Ok((_, out)) = tried(&inside, spec).await {
                    assert!(
                        !out.contains("reading it from the working directory done"),
                        "{who}/{door} as {user}: {out}"
                    );
                }
            }
        }
    }
    inside.still_works().await;
    inside.end().await;
}

async fn sleeping(inside: &Inside) -> (cabana_sandbox::Process, String) {
    let process = inside.sandbox.exec(program("user", &["sleep", "300"], "/")).await.unwrap();
    let pid = process.pid.expect("a pid").to_string();
    (process, pid)
}

/// The directory changes places with a link to where a descriptor may lead, as fast as can be, while commands start in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_working_directory_that_becomes_a_link_while_commands_start() {
    let (dir, word) = (tempfile::tempdir().unwrap(), unique("canary"));
    std::fs::write(dir.path().join("canary"), &word).unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let relative = dir.path().strip_prefix("/").unwrap().join("canary").to_str().unwrap().to_owned();
    let inside = Inside::new().await;
    let look = inside.bring(&OUTSIDE).await.remove(0);
    let (mut plain, mut refused) = (0, 0);
    for target in ["/proc/self/fd/7", "/proc/self/fd/8", "/proc/1/root", "/proc/self/cwd"] {
        inside.user(&format!("rm -rf /tmp/s && mkdir -p /tmp/s/d && ln -s {target} /tmp/s/l")).await.ok();
        let swap = inside.start("user", &SWAP, &["/tmp/s/d", "/tmp/s/l", "/tmp/s/stop"]).await;
        for _ in 0..40 {
            match tried(&inside, program("user", &[&look, &relative, &word, "nowhere"], "/tmp/s/d")).await {
                Ok((_, out)) => {
                    assert!(!out.contains("done"), "{target}: {out}");
                    plain += 1;
                }
                Err(_) => refused += 1,
            }
        }
        inside.user("touch /tmp/s/stop").await.ok();
        let (said, _) = rest(swap).await;
        assert!(said.trim().parse::<u64>().unwrap() > 100, "the names were exchanged: {said}");
    }
    assert!(plain > 0 && refused > 0, "both were met: {plain} started, {refused} refused");
    inside.end().await;
}

#[tokio::test]
async fn a_program_that_is_none() {
    let inside = Inside::new().await;
    let make = "cd /tmp && mkdir dir && mkfifo pipe && ln -s circle circle && ln -s /dev/zero zero && touch empty plain && \
        chmod 755 empty && cp /bin/true fine && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/socket\")' && \
        head -c 4096 /dev/urandom > noise && chmod 755 noise pipe";
    inside.root(make).await.ok();
    for user in ["root", "user"] {
        for name in
            ["dir", "pipe", "circle", "zero", "plain", "socket", "noise", "/proc/self/mem", "/proc/1/exe", "/dev/fd/0"]
        {
            let name = if name.starts_with('/') { name.to_owned() } else { format!("/tmp/{name}") };
            let ran = tried(&inside, program(user, &[&name], "/")).await;
            assert!(!matches!(ran, Ok((Status::Code(0), _))), "{name} as {user}: {ran:?}");
        }
        assert_eq!(tried(&inside, program(user, &["/tmp/fine"], "/")).await.unwrap().0, Status::Code(0));
    }
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_changes_places_with_another_while_it_starts() {
    let inside = Inside::new().await;
    inside.user("mkdir /tmp/p && cp /bin/echo /tmp/p/a && ln -s /proc/1/exe /tmp/p/b").await.ok();
    let swap = inside.start("user", &SWAP, &["/tmp/p/a", "/tmp/p/b", "/tmp/p/stop"]).await;
    let (mut said, mut refused) = (0, 0);
    for round in 0..200 {
        if said > 5 && refused > 5 && round > 50 {
            break;
        }
        match tried(&inside, program("user", &["/tmp/p/a", "hello"], "/")).await {
            Ok((Status::Code(0), out)) => {
                assert_eq!(out, "hello\n");
                said += 1;
            }
            Ok(other) => panic!("something else was started: {other:?}"),
            Err(_) => refused += 1,
        }
    }
    inside.user("touch /tmp/p/stop").await.ok();
    rest(swap).await;
    assert!(said > 0 && refused > 0, "{said} times it was itself, and {refused} times refused");
    inside.end().await;
}

#[tokio::test]
async fn interpreters_that_lead_in_circles() {
    let inside = Inside::new().await;
    let plant = inside.bring(&PLANT).await.remove(0);
    for (interpreter, at) in [
        ("/tmp/b", "/tmp/a"),
        ("/tmp/a", "/tmp/b"),
        ("/tmp/self", "/tmp/self"),
        ("/bin/echo", "/tmp/one"),
        ("/tmp/one", "/tmp/two"),
    ] {
        inside.root(&format!("{plant} script {interpreter} {at}")).await.ok();
    }
    for name in ["/tmp/a", "/tmp/self"] {
        for user in ["root", "user"] {
            assert!(tried(&inside, program(user, &[name], "/")).await.is_err(), "{name}");
        }
    }
    let chain = tried(&inside, program("user", &["/tmp/two"], "/")).await.unwrap();
    assert_eq!(chain, (Status::Code(0), "/tmp/one /tmp/two\n".to_owned()), "one that ends is followed");
    inside.still_works().await;
    inside.end().await;
}

/// What opens an interpreter waits for it as for any file: it must be the command that waits.
#[tokio::test]
async fn an_interpreter_that_nobody_can_open() {
    let inside = Inside::new().await;
    let plant = inside.bring(&PLANT).await.remove(0);
    inside.root("mkfifo /tmp/pipe && chmod 777 /tmp/pipe && cp /bin/echo /tmp/echo").await.ok();
    for interpreter in ["/tmp/pipe", "/dev/zero", "/dev/tty", "/dev/ptmx", "/proc/self/mem", "/proc/kmsg", "/tmp"] {
        inside.root(&format!("{plant} script {interpreter} /tmp/script")).await.ok();
        for user in ["root", "user"] {
            let ran = tried(&inside, program(user, &["/tmp/script"], "/")).await;
            assert!(!matches!(ran, Ok((Status::Code(0), _))), "{interpreter} as {user}: {ran:?}");
        }
    }
    inside.root(&format!("{plant} script /tmp/echo /tmp/script")).await.ok();
    assert_eq!(tried(&inside, program("user", &["/tmp/script"], "/")).await.unwrap().1, "/tmp/script\n");
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn programs_whose_headers_are_broken() {
    let inside = Inside::new().await;
    let make = "import random
good = open('/bin/true', 'rb').read()
chance = random.Random(15)
for number in range(120):
    bad = bytearray(good)
    for _ in range(chance.choice([1, 2, 8, 32])):
        bad[chance.randrange(16, 0x400)] = chance.choice([0, 1, 0x7f, 0x80, 0xff, chance.randrange(256)])
    if number % 10 == 0: bad = bad[:chance.randrange(4, 0x400)]
    open('/tmp/elf/%d' % number, 'wb').write(bad)
open('/tmp/elf/good', 'wb').write(good)";
    inside.user(&format!("mkdir /tmp/elf && python3 - <<'EOF'\n{make}\nEOF\nchmod 755 /tmp/elf/*")).await.ok();
    let mut not_started = 0;
    for number in 0..120 {
        let ran = tried(&inside, program("user", &[&format!("/tmp/elf/{number}")], "/")).await;
        not_started += u32::from(!matches!(ran, Ok((Status::Code(0), _))));
    }
    assert!(not_started > 40, "most of them are no programs any more: {not_started}");
    assert_eq!(tried(&inside, program("user", &["/tmp/elf/good"], "/")).await.unwrap().0, Status::Code(0));
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn words_and_variables_beyond_what_the_kernel_takes() {
    let inside = Inside::new().await;
    let spec = |word: String, count: usize| {
        let mut spec = program("user", &["true"], "/");
        spec.command = cabana_sandbox::Command::Argv([vec!["true".to_owned()], vec![word; count]].concat());
        spec
    };
    assert!(tried(&inside, spec("x".repeat(100_000), 1)).await.is_ok(), "what it takes is taken");
    for (word, count) in [("x".repeat(1 << 18), 1), ("x".repeat(1 << 16), 64), ("x".to_owned(), 400_000)] {
        let length = word.len();
        assert!(tried(&inside, spec(word, count)).await.is_err(), "{count} words of {length}");
        let mut spec = program("user", &["true"], "/");
        spec.env = (0..count.min(2000)).map(|number| (format!("V{number}"), "x".repeat(length.max(2000)))).collect();
        assert!(tried(&inside, spec).await.is_err(), "{count} variables of {length}");
    }
    inside.still_works().await;
    inside.end().await;
}

/// What changes how programs start is for the program that was named: one that gains rights does not believe it.
#[tokio::test]
async fn a_library_of_the_user_in_a_program_that_becomes_root() {
    let inside = Inside::with(cabana_sandbox::SandboxSpec { sudo: true, ..passing() }).await;
    let source = "#include <stdio.h>\\n__attribute__((constructor)) static void f(void) { puts(\"loaded\"); }";
    inside.user(&format!("printf '{source}' > /tmp/x.c && cc -shared -fPIC -o /tmp/x.so /tmp/x.c")).await.ok();
    inside.root("cp /usr/bin/id /srv/id && chmod 4755 /srv/id").await.ok();
    for variable in ["LD_PRELOAD", "LD_AUDIT"] {
        let mut spec = program("user", &["/usr/bin/id", "-u"], "/");
        spec.env.insert(variable.into(), "/tmp/x.so".into());
        let plain = tried(&inside, spec).await.unwrap().1;
        assert!(variable == "LD_AUDIT" || plain == "loaded\n1000\n", "one that gains nothing loads it: {plain}");
        let mut spec = program("user", &["/srv/id", "-u"], "/");
        spec.env.insert(variable.into(), "/tmp/x.so".into());
        assert_eq!(tried(&inside, spec).await.unwrap().1, "0\n", "{variable}");
    }
    inside.end().await;
}

#[tokio::test]
async fn users_by_names_that_could_be_numbers_or_paths() {
    let inside = Inside::new().await;
    assert_eq!(tried(&inside, program("0", &["id", "-u"], "/")).await.unwrap().1, "0\n", "by its number root is root");
    // Other spellings of that number are that number.
    let names = [
        "-0",
        "0x0",
        " 0",
        "0 ",
        "0\n",
        "root ",
        " root",
        "root\n",
        "ROOT",
        "root:x",
        "../root",
        "/root",
        "0.0",
        "４",
        "",
        "4294967296",
        "18446744073709551616",
        "-1",
        "4294967295",
        "65535:0",
    ];
    for name in names {
        let Ok(user) = User::new(name) else { continue };
        let spec = ExecSpec { user: Some(user), ..ExecSpec::argv(["id", "-u"], SandboxPath::root()) };
        let ran = tried(&inside, spec).await;
        assert!(!matches!(&ran, Ok((_, out)) if out == "0\n"), "{name:?} is root: {ran:?}");
    }
    inside.end().await;
}

/// A name of a user that a line of the file of users has in another field.
#[tokio::test]
async fn a_file_of_users_with_lines_within_lines() {
    let inside = Inside::new().await;
    let lines = r"root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\nfirst:x:1001:1001:evil\rsecond:x:0:0::/:/bin/sh\nthird:x: 0:0::/:/bin/sh\nfourth:x:0 :0::/:/bin/sh\nfifth:x:1002:1002\n:x:0:0::/:/bin/sh\n";
    inside.root(&format!("printf '{lines}' > /etc/passwd")).await.ok();
    assert_eq!(tried(&inside, program("user", &["id", "-u"], "/")).await.unwrap().1, "1000\n", "a plain line is read");
    for name in ["first", "second", "third", "fourth", "evil"] {
        let ran = tried(&inside, program(name, &["id", "-u"], "/")).await;
        assert!(!matches!(&ran, Ok((_, out)) if out == "0\n"), "{name}: {ran:?}");
    }
    inside.end().await;
}
