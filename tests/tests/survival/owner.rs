//! A process that has sandboxes, and that a test can kill.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use cabana_sandbox::{ExecId, SandboxId};

pub(crate) struct Owner {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Owner {
    pub(crate) fn start(data: &Path) -> Self {
        Self::start_with(data, &[])
    }

    /// One that will be killed at a certain place, or that speaks another protocol.
    pub(crate) fn start_with(data: &Path, env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cabana-tests-owner"));
        command.arg(data).stdin(Stdio::piped()).stdout(Stdio::piped()).envs(env.iter().copied());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// What it answers; `None` when it was killed.
    pub(crate) fn ask(&mut self, what: &str) -> Option<String> {
        writeln!(self.input, "{what}").ok()?;
        let mut line = String::new();
        self.output.read_line(&mut line).ok()?;
        line.strip_suffix('\n').map(str::to_owned)
    }

    pub(crate) fn tell(&mut self, what: &str) {
        assert_eq!(self.ask(what).as_deref(), Some("done"), "{what}");
    }

    pub(crate) fn exec(&mut self, sandbox: &SandboxId, exec: ExecId, stdio: &str, script: &str) {
        self.tell(&exec_line(sandbox, exec, stdio, script));
    }

    /// From beside, while it is asked things.
    pub(crate) fn kill_in(&self, time: Duration) -> std::thread::JoinHandle<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        std::thread::spawn(move || {
            std::thread::sleep(time);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        })
    }

    /// At once, wherever it is.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill(); // it may be dead already
        self.child.wait().unwrap();
    }

    /// For one that was to be killed at a certain place.
    pub(crate) fn was_killed(mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        drop(self.input); // one that still lives ends in order
        self.child.wait().unwrap().signal() == Some(9)
    }
}

pub(crate) fn exec_line(sandbox: &SandboxId, exec: ExecId, stdio: &str, script: &str) -> String {
    format!("exec {sandbox} {:032x} {stdio} {script}", exec.as_u128())
}
