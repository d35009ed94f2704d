//! One command in a sandbox: its words, its bytes, its end.

use std::{fs, io::Write, process::Stdio};

use crate::kit::{Ended, Ends, binary, cabana, data, lives, mark, run, sh, wait_until};

#[test]
fn the_exit_code_is_passed_through() {
    assert_eq!(sh("exit 0").ends().code, 0);
    assert_eq!(sh("exit 7").ends().code, 7);
    assert_eq!(sh("exit 255").ends().code, 255);
    assert_eq!(sh("kill -TERM $$").ends().code, 128 + 15);
    assert_eq!(sh("kill -KILL $$").ends().code, 128 + 9);
}

#[test]
fn a_program_that_cannot_run_has_the_codes_of_a_shell() {
    let ended = run(&["--", "no-such-program"]).ends();
    assert_eq!(ended.code, 127, "{ended:?}");
    assert!(ended.stderr.contains("no-such-program"), "{ended:?}");
    assert_eq!(run(&["--", "/etc/passwd"]).ends().code, 126);
    assert_eq!(run(&["--", "/"]).ends().code, 126);
}

#[test]
fn whoever_keeps_its_own_files_to_itself_has_sandboxes_as_well() {
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = "umask 077; exec \"$0\" run --net off --data \"$1\" -- sh -c 'echo fine; cat /etc/passwd > /dev/null'";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, binary()]).arg(data.path());
    assert_eq!(command.ends().well(), "fine\n");
}

#[test]
fn output_keeps_its_two_channels() {
    let ended = sh("echo out; echo err >&2; printf 'no end of line'").ends();
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str(), ended.code), ("out\nno end of line", "err\n", 0));
}

#[test]
fn arguments_arrive_as_they_are() {
    let ended = run(&["--", "printf", "%s|", "a b", "", "$HOME", "--flag", "--", "ü"]).ends();
    assert_eq!(ended.well(), "a b||$HOME|--flag|--|ü|");
    assert_eq!(run(&["echo", "-n", "without the dashes"]).ends().well(), "without the dashes");
}

#[test]
fn input_goes_in_byte_for_byte_and_ends() {
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut child = run(&["--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    assert!(output.stdout == bytes, "{} of {} bytes came back", output.stdout.len(), bytes.len());
}

#[test]
fn without_input_a_reader_sees_the_end() {
    assert_eq!(run(&["--", "cat"]).stdin(Stdio::null()).ends().well(), "");
    let closed = format!("CABANA_DATA={} {} run -- cat <&-", data().display(), binary());
    assert_eq!(std::process::Command::new("sh").args(["-c", &closed]).ends().well(), "");
}

#[test]
fn a_command_that_does_not_read_ends_all_the_same() {
    let mut child = run(&["--", "echo", "done"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let kept_open = child.stdin.take();
    let ended = Ended::from(child.wait_with_output().unwrap());
    drop(kept_open);
    assert_eq!(ended.well(), "done\n");
}

#[test]
fn without_a_command_a_shell_reads_its_script() {
    let mut child = run(&[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"echo $((6 * 7)); exit 3\n").unwrap();
    let ended = Ended::from(child.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.stdout.as_str()), (3, "42\n"));
}

#[test]
fn a_closed_output_ends_the_command_as_in_any_pipeline() {
    let mark = mark();
    let line = format!(
        "CABANA_DATA={} {} run -- sh -c 'sleep {mark} & exec yes' | head -n 1; echo ${{PIPESTATUS[0]}}",
        data().display(),
        binary()
    );
    assert_eq!(std::process::Command::new("bash").args(["-c", &line]).ends().well(), "y\n141\n");
    wait_until("nothing of it is left", || !lives(&mark));
}

#[test]
fn an_output_that_takes_nothing_is_told_where_it_can_be() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let told = Ended::from(
        run(&["--", "echo", "hi"]).stdout(full()).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap(),
    );
    assert!(told.fails(125, "internal").contains("writing the output"));
    let silent = run(&["--", "no-such-program"]).stderr(full()).status().unwrap();
    assert_eq!(silent.code(), Some(127), "an exit code is not lost with its words");
}

#[test]
fn a_timeout_ends_the_whole_tree_and_keeps_what_was_said() {
    let mark = mark();
    let script = format!("echo partial; setsid sleep {mark} & sleep {mark}");
    let ended = run(&["--timeout", "700ms", "--", "sh", "-c", &script]).ends();
    assert_eq!((ended.code, ended.stdout.as_str()), (124, "partial\n"), "{ended:?}");
    assert!(ended.stderr.contains("timed out after 700ms"), "{ended:?}");
    wait_until("nothing of it is left", || !lives(&mark));
}

#[test]
fn user_env_and_workdir_are_what_was_asked_for() {
    let words = ["--user", "root", "--env", "A=one two\nthree", "--env", "B=", "--workdir", "/tmp/"];
    let ended = run(&words).args(["--", "sh", "-c", "id -u; pwd; echo \"$A\"; echo \"${B-unset}\""]).ends();
    assert_eq!(ended.well(), "0\n/tmp\none two\nthree\n\n");
}

#[test]
fn nothing_of_our_own_environment_goes_in() {
    let ended = run(&["--", "env"]).env("MY_SECRET", "hunter2").ends();
    assert!(!ended.well().contains("hunter2"));
}

#[test]
fn what_does_not_exist_inside_is_told_by_name() {
    let told = run(&["--user", "nobody-knows", "--", "true"]).ends().fails(125, "unknown_user");
    assert!(told.contains("nobody-knows"), "{told}");
    let told = run(&["--workdir", "/no/such/dir", "--", "true"]).ends().fails(125, "workdir_not_found");
    assert!(told.contains("/no/such/dir"), "{told}");
    let told = run(&["--template", "no-such-template", "--", "true"]).ends().fails(125, "template_not_found");
    assert!(told.contains("no-such-template"), "{told}");
}

#[test]
fn a_mount_is_there_inside_and_writable_unless_it_is_not() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("in.txt"), "from outside\n").unwrap();
    let host = home.path().display();
    let script = "cat in.txt && echo 'from inside' > out.txt && mkdir -p deep/er";
    run(&["--mount", &format!("{host}:/project"), "--workdir", "/project", "--", "sh", "-c", script]).ends().well();
    assert_eq!(fs::read_to_string(home.path().join("out.txt")).unwrap(), "from inside\n");
    assert!(home.path().join("deep/er").is_dir());

    let read_only = format!("{host}:/project:ro");
    let ended =
        run(&["--mount", &read_only, "--", "sh", "-c", "cat /project/out.txt; echo x > /project/new.txt"]).ends();
    assert_eq!(ended.stdout, "from inside\n", "{ended:?}");
    assert_ne!(ended.code, 0);
    assert!(!home.path().join("new.txt").exists());
}

#[test]
fn a_relative_mount_and_a_single_file_work() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("in.txt"), "hello\n").unwrap();
    let ended = run(&["--mount", ".:/project:ro", "--", "cat", "/project/in.txt"]).current_dir(home.path()).ends();
    assert_eq!(ended.well(), "hello\n");
    let ended =
        run(&["--mount", "in.txt:/opt/given.txt:ro", "--", "cat", "/opt/given.txt"]).current_dir(home.path()).ends();
    assert_eq!(ended.well(), "hello\n");
}

#[test]
fn nothing_is_left_after_a_run() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let before = mounts();
    for script in ["echo x > /workspace/file", "exit 9", "kill -9 $$"] {
        sh(script).env("CABANA_DATA", &data).ends();
    }
    cabana().args(["run", "--", "no-such-program"]).env("CABANA_DATA", &data).ends();
    assert_eq!(mounts(), before);
    assert_eq!(fs::read_dir(data.join("sandboxes")).unwrap().count(), 0);
    let ephemeral = |dir: &str| fs::read_dir(data.join(dir)).map_or(0, Iterator::count);
    assert_eq!(ephemeral("ephemeral"), 0);
}

#[test]
fn limits_are_kept_and_what_breaks_them_is_said() {
    let hog = "hold = bytearray(200 << 20)";
    let ended = run(&["--memory", "64M", "--", "python3", "-c", hog]).ends();
    assert_eq!(ended.code, 128 + 9, "{ended:?}");
    assert!(ended.stderr.contains("out of memory"), "{ended:?}");
    assert_eq!(run(&["--memory", "1G", "--cpus", "1.5", "--pids", "64", "--", "python3", "-c", hog]).ends().code, 0);
    let many = "import os, time\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(600)\nexcept OSError as e: print(e.errno, flush=True)\nos._exit(0)";
    assert_eq!(run(&["--pids", "16", "--", "python3", "-c", many]).stdin(Stdio::null()).ends().stdout.trim(), "11");
}

#[test]
fn the_disk_is_limited_and_who_fills_it_is_told() {
    let fill = "dd if=/dev/zero of=/home/user/fill bs=1M count=4000 2>/dev/null";
    let ended = run(&["--disk", "16M", "--", "sh", "-c", fill]).ends();
    assert_eq!(ended.code, 128 + 9, "{ended:?}");
    assert!(ended.stderr.contains("disk limit"), "{ended:?}");
    let asked =
        ["--disk", "1G", "--inodes", "10000", "--io", "1G", "--open-files", "64", "--", "sh", "-c", "ulimit -Hn"];
    assert_eq!(run(&asked).ends().well().trim(), "64");
}

#[test]
fn what_must_not_be_mounted_is_refused_with_the_mount_that_is_meant() {
    let dir = tempfile::tempdir().unwrap();
    let fine = |inside: &str| format!("{}:{inside}", dir.path().display());
    let ours = format!("{}:/seen", data().display());
    for (mount, why) in [
        ("/:/seen", "much more"),
        ("/proc:/seen", "part of the system"),
        ("/run:/seen", "part of the system"),
        (&ours, "data directory"),
        ("/no/such/place:/seen", "does not exist"),
        (&fine("/"), "would hide"),
        (&fine("/dev"), "would hide"),
        (&fine("/etc/passwd"), "would hide"),
    ] {
        let ended = run(&["--mount", &fine("/fine"), "--mount", mount, "--", "true"]).ends();
        assert_eq!(ended.code, 125, "{mount}: {ended:?}");
        assert!(ended.stderr.contains(mount) && ended.stderr.contains(why), "{mount}: {ended:?}");
    }
}

#[test]
fn a_limit_that_makes_no_sense_is_refused_before_anything_is_made() {
    for limit in [
        ["--memory", "12"],
        ["--memory", "1K"],
        ["--cpus", "none"],
        ["--cpus", "0"],
        ["--pids", "1"],
        ["--disk", "12"],
        ["--disk", "1K"],
        ["--inodes", "1"],
        ["--io", "1K"],
        ["--open-files", "1"],
    ] {
        let ended = run(&[limit[0], limit[1], "--", "true"]).ends();
        assert_eq!(ended.code, 125, "{limit:?}: {ended:?}");
        assert!(!ended.stderr.is_empty(), "{limit:?}");
    }
}

#[test]
fn sudo_gains_rights_only_where_it_was_asked_for() {
    let asked = run(&["--sudo", "--user", "user", "--", "sudo", "-n", "id", "-u"]).ends();
    assert_eq!(asked.well().trim(), "0");
    let not = run(&["--user", "user", "--", "sudo", "-n", "id", "-u"]).ends();
    assert!(not.code != 0 && not.stderr.contains("no new privileges"), "{not:?}");
}

#[test]
fn the_network_is_what_was_asked_for() {
    let connect =
        "import socket\ntry: socket.create_connection(('192.0.2.1', 80), 20)\nexcept OSError as e: print(e.errno)";
    let unreachable = run(&["--net", "off", "--", "python3", "-c", connect]).ends();
    assert_eq!(unreachable.well().trim(), "101");
    // A connection is taken in and reset: an address of documents is no public one.
    let sent = "import socket\ntry: print(socket.create_connection(('192.0.2.1', 80), 20).recv(1))\nexcept OSError as e: print(e.errno)";
    assert_eq!(run(&["--", "python3", "-c", sent]).ends().well().trim(), "104");
    assert_eq!(run(&["--allow", "example.com:443", "--", "python3", "-c", sent]).ends().well().trim(), "104");
    let bad = run(&["--allow", "http://example.com", "--", "true"]).ends();
    assert!(bad.code == 125 && bad.stderr.contains("http://example.com"), "{bad:?}");
}
