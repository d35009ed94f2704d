//! Sandboxes that another process owns: one with another identity than the test, or with another view of the machine.
//! Requests and answers are lines of JSON over the standard input and output of `cabana-tests-remote`.

use std::path::PathBuf;

use cabana_sandbox::{ExecSpec, SandboxPath, SandboxSpec, Status, User};
use serde::{Deserialize, Serialize};

/// What a sandbox is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    Host,
    Template,
    Image,
    Snapshot,
    Archive,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Becomes the sandbox of this number. The base of `spec` is replaced by `origin`; with `limited` it gets every limit
    /// that can be enforced here.
    Create {
        sandbox: usize,
        origin: Origin,
        limited: bool,
        spec: Box<SandboxSpec>,
    },
    /// The same of a template, or an image, that suggests `/proc/self/fd/N` as the working directory of its commands.
    CreateInDescriptor {
        sandbox: usize,
        origin: Origin,
        limited: bool,
        number: u32,
        spec: Box<SandboxSpec>,
    },
    /// A file of the machine becomes a program inside.
    Install {
        sandbox: usize,
        from: PathBuf,
        at: SandboxPath,
    },
    /// All at once; the answers are in the order of the commands.
    Exec {
        sandbox: usize,
        commands: Vec<ExecSpec>,
    },
    /// Starts a command that goes on, and waits for its first output.
    Start {
        sandbox: usize,
        command: ExecSpec,
    },
    Read {
        sandbox: usize,
        user: User,
        at: SandboxPath,
    },
    Write {
        sandbox: usize,
        user: User,
        at: SandboxPath,
        content: String,
    },
    List {
        sandbox: usize,
        user: User,
        at: SandboxPath,
    },
    Destroy {
        sandbox: usize,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    Done,
    /// Of each command.
    Ran(Vec<Result<Ran, Refusal>>),
    Text(String),
    Refused(Refusal),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ran {
    pub status: Status,
    pub out: String,
    pub err: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// The stable text of the error's code.
    pub code: String,
    pub why: String,
}

/// Where `cabana-tests-remote` finds what it needs, below the directory that is its argument.
pub mod place {
    /// Its data directory.
    pub const DATA: &str = "data";
    /// Held by the process that makes what all of them use.
    pub const LOCK: &str = "lock";
    /// Changes with the sources, and with it the names of what is made from them.
    pub const VERSION: &str = "sources/version";
    /// The root file system of templates, as a directory.
    pub const ROOT: &str = "sources/root";
    /// The same as OCI images: `plain`, and `workdir-N` for what suggests `/proc/self/fd/N`.
    pub const IMAGE: &str = "sources/image";
}
