//! What is asked for, checked: nothing is made before all of it makes sense.

use std::{collections::BTreeMap, path::Path, time::Duration};

use cabana_sandbox::{Base, Lifetime, Limits, NetworkPolicy, SandboxPath, SandboxSpec, Stdio, User};

use super::{Args, Net, mounts, terminal};
use crate::{amounts, failure::Failure};

pub(super) struct Ask {
    pub(super) sandbox: SandboxSpec,
    pub(super) command: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) user: Option<User>,
    pub(super) workdir: Option<SandboxPath>,
    pub(super) timeout: Option<Duration>,
    /// As it was given.
    pub(super) timeout_text: String,
    pub(super) stdio: Stdio,
}

impl Ask {
    pub(super) fn new(args: Args, data: &Path) -> Result<Self, Failure> {
        let limits = limits(&args)?;
        let mut sandbox = SandboxSpec::new(args.template.map_or(Base::Host, Base::Named));
        sandbox.lifetime = Lifetime::Ephemeral;
        sandbox.limits = limits;
        sandbox.sudo = args.sudo;
        sandbox.network = match args.net {
            _ if !args.allow.is_empty() => NetworkPolicy::Allow(args.allow),
            Net::Off => NetworkPolicy::Off,
            Net::Public => NetworkPolicy::Public,
            Net::Host => NetworkPolicy::Host,
        };
        sandbox.views = mounts::views(&args.mount, data)?;
        let stdio = match terminal::size() {
            Some(size) => Stdio::Terminal(size),
            None if terminal::is_input() => Stdio::Output,
            None => Stdio::InputOutput,
        };
        let mut env = variables(&args.env)?;
        if matches!(stdio, Stdio::Terminal(_)) {
            let kind = std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".to_owned());
            env.entry("TERM".to_owned()).or_insert(kind);
        }
        Ok(Self {
            sandbox,
            command: args.command,
            env,
            user: args.user.map(|user| user_of(&user)).transpose()?,
            workdir: args.workdir.map(|dir| path_of("--workdir", &dir)).transpose()?,
            timeout: amount("--timeout", args.timeout.as_deref(), amounts::duration)?,
            timeout_text: args.timeout.unwrap_or_default(),
            stdio,
        })
    }
}

pub(crate) fn user_of(text: &str) -> Result<User, Failure> {
    User::new(text).map_err(|e| Failure::bad(format!("--user {text:?}: {e}")))
}

pub(crate) fn path_of(flag: &str, text: &str) -> Result<SandboxPath, Failure> {
    // A slash at the end is what a shell's completion leaves.
    let plain = if text.len() > 1 { text.trim_end_matches('/') } else { text };
    SandboxPath::new(plain).map_err(|e| Failure::bad(format!("{flag} {text:?}: {e}")))
}

/// Names may be told, values never: they may be secrets.
pub(crate) fn variables(given: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let mut env = BTreeMap::new();
    for (place, text) in given.iter().enumerate() {
        let Some((name, value)) = text.split_once('=') else {
            return Err(Failure::bad(format!("--env number {} has no `=`: write NAME=VALUE", place + 1)));
        };
        if name.is_empty() {
            return Err(Failure::bad(format!("--env number {} has no name before the `=`", place + 1)));
        }
        env.insert(name.to_owned(), value.to_owned());
    }
    Ok(env)
}

pub(crate) fn amount<T>(
    flag: &str,
    text: Option<&str>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, Failure> {
    text.map(|text| read(text).map_err(|why| Failure::bad(format!("{flag} {text:?}: {why}")))).transpose()
}

fn limits(args: &Args) -> Result<Limits, Failure> {
    let limits = Limits {
        memory: amount("--memory", args.memory.as_deref(), amounts::size)?,
        cpu_milli: amount("--cpus", args.cpus.as_deref(), amounts::processors)?,
        pids: args.pids,
        disk: amount("--disk", args.disk.as_deref(), amounts::size)?,
        inodes: args.inodes,
        open_files: args.open_files,
        io: amount("--io", args.io.as_deref(), amounts::size)?,
        ..Limits::default()
    };
    limits.check()?;
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_variable_is_refused_without_its_text() {
        for bad in ["hunter2", "=hunter2"] {
            let failure = variables(&[bad.to_owned()]).unwrap_err();
            assert!(!format!("{failure:?}").contains("hunter2"));
        }
        let env = variables(&["A=1=2".into(), "B=".into()]).unwrap();
        assert_eq!((env["A"].as_str(), env["B"].as_str()), ("1=2", ""));
    }
}
