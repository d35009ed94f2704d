//! What is asked for, checked: nothing is made before all of it makes sense.

use std::{collections::BTreeMap, path::Path, time::Duration};

use cabana_sandbox::{Base, Lifetime, Limits, NetworkPolicy, SandboxPath, SandboxSpec, Stdio, User};

use super::{Args, Net, mounts, terminal};
use crate::failure::Failure;

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
            timeout: args.timeout.as_deref().map(duration).transpose()?,
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

fn limits(args: &Args) -> Result<Limits, Failure> {
    let limits = Limits {
        memory: args.memory.as_deref().map(|text| size("--memory", text)).transpose()?,
        cpu_milli: args.cpus.as_deref().map(processors).transpose()?,
        pids: args.pids,
        disk: args.disk.as_deref().map(|text| size("--disk", text)).transpose()?,
        inodes: args.inodes,
        open_files: args.open_files,
        io: args.io.as_deref().map(|text| size("--io", text)).transpose()?,
        ..Limits::default()
    };
    limits.check()?;
    Ok(limits)
}

/// Bytes. The units are powers of 1024, as for those who name memory.
fn size(flag: &str, text: &str) -> Result<u64, Failure> {
    let bad = |why: &str| Failure::bad(format!("{flag} {text:?}: {why}, as in 512M or 2G"));
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| bad("give it a unit"))?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| bad("give a whole number and a unit"))?;
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(bad("the units are B, K, M, G and T")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| bad("that is too much"))
}

/// Thousandths of a processor.
fn processors(text: &str) -> Result<u32, Failure> {
    let bad = |why: &str| Failure::bad(format!("--cpus {text:?}: {why}, as in 0.5 or 2"));
    let number: f64 = text.parse().map_err(|_| bad("give a number"))?;
    // The cast takes what is no number, too little or too much to the ends of the range, which are refused.
    match (number * 1000.0).round() as u32 {
        0 => Err(bad("must be more than zero")),
        u32::MAX => Err(bad("that is too much")),
        milli => Ok(milli),
    }
}

fn duration(text: &str) -> Result<Duration, Failure> {
    let bad = |why: &str| Failure::bad(format!("--timeout {text:?}: {why}, as in 500ms, 10s, 2m or 1h"));
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| bad("give it a unit"))?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| bad("give a whole number and a unit"))?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad("the units are ms, s, m and h")),
    };
    match number.checked_mul(unit_ms) {
        Some(0) => Err(bad("must be longer than zero")),
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Err(bad("that is too long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit_and_fits() {
        for (text, bytes) in [("64M", 64 << 20), ("2GiB", 2 << 30), ("1tb", 1 << 40), ("5000b", 5000)] {
            assert_eq!(size("--memory", text).ok(), Some(bytes), "{text}");
        }
        for text in ["", "64", "M", "1.5G", "-1G", "99999999T", "1X", "1 G"] {
            assert!(size("--memory", text).is_err(), "{text}");
        }
    }

    #[test]
    fn processors_are_counted_in_thousandths() {
        for (text, milli) in [("2", 2000), ("0.5", 500), (".25", 250), ("1.0004", 1000)] {
            assert_eq!(processors(text).ok(), Some(milli), "{text}");
        }
        for text in ["", "0", "-1", "NaN", "inf", "1e30", "two", "0.0001"] {
            assert!(processors(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_timeout_has_a_unit() {
        for (text, ms) in [("500ms", 500), ("10s", 10_000), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for bad in
            ["", "10", "s", "-1s", "1.5s", "10 s", "10sec", "0s", "99999999999999999999s", "18446744073709551615h", "é"]
        {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }

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
