//! A lease on files of a sandbox, which no guest is given: whoever opens one waits. It holds a command between clone and exec, where
//! it can be looked at, and stands for whatever makes an open long.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use crate::{attacks::LEASE, host_process::HostProcess, inside::Inside};

/// Held by a process of the host, until it is dropped.
pub(crate) struct Lease {
    holder: Child,
    said: Option<BufReader<ChildStdout>>,
}

impl Lease {
    pub(crate) async fn on(inside: &Inside, files: &[&str]) -> Self {
        let all = HostProcess::all_of(inside).await;
        let root = all.iter().find(|process| process.is_init()).expect("it has an init").path("root");
        let files = files.iter().map(|file| root.join(file.trim_start_matches('/')));
        let mut holder = Command::new(LEASE.on_host()).args(files).stdout(Stdio::piped()).spawn().expect("it starts");
        let said = holder.stdout.take().map(BufReader::new);
        let mut lease = Self { holder, said };
        assert_eq!(lease.says().await, "held");
        lease
    }

    /// Until somebody opens one of the files.
    pub(crate) async fn asked(&mut self) {
        assert_eq!(self.says().await, "asked");
    }

    async fn says(&mut self) -> String {
        let mut said = self.said.take().expect("one asks at a time");
        let read = move || {
            let mut line = String::new();
            said.read_line(&mut line).expect("it can be read");
            (line.trim().to_owned(), said)
        };
        let (line, said) = tokio::task::spawn_blocking(read).await.expect("it is read");
        self.said = Some(said);
        line
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
