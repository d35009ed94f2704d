//! How a failure of ours is told: what happened, what to do, and where to read more.

use std::{borrow::Cow, error::Error as _, io::Write, process::ExitCode};

use cabana_model::Code;
use cabana_sandbox::Error;
use serde_json::Value;

/// The exit code of failures of ours, which a command inside is unlikely to have (env, timeout and docker use it so).
pub(crate) const OURS: u8 = 125;

pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

#[derive(Debug)]
pub(crate) struct Failure {
    /// Ours, or what a server of another version calls its own.
    code: Cow<'static, str>,
    message: String,
    hint: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let message = plain_lines(&without_numbers(message.into()));
        Self { code: code.as_str().into(), message, hint: code.hint().into() }
    }

    /// As a server told it.
    pub(crate) fn of_told(told: &Value) -> Self {
        let text = |name: &str| told["error"][name].as_str().map(str::to_owned);
        match (text("code"), text("message")) {
            (Some(code), Some(message)) => {
                let hint = plain(&text("hint").unwrap_or_default());
                Self { code: plain(&code).into(), message: plain(&message), hint: hint.into() }
            }
            _ => Self::new(Code::Internal, format!("the server said: {told}")),
        }
    }

    /// Where the code's own is too general.
    pub(crate) fn with_hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { hint: plain_lines(&hint.into()).into(), ..self }
    }

    pub(crate) fn is(&self, code: Code) -> bool {
        self.code == code.as_str()
    }

    /// A wrong value on the command line. The message must not hold the value of a variable.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, message)
    }

    /// A program that could not be run, in the words and with the exit code of `cabana run`.
    pub(crate) fn not_run(&self, missing: &str) -> u8 {
        tell(&format!("cabana: {}", self.message));
        if self.message.ends_with(missing) { NOT_FOUND } else { NOT_EXECUTABLE }
    }

    pub(crate) fn report(&self, exit: u8) -> ExitCode {
        let Self { message, code, hint } = self;
        tell(&format!("error: {message}\nhint: {hint}\ncode: {code} (docs/errors/{code}.md)"));
        ExitCode::from(exit)
    }
}

/// Alone, for whoever has its own words around it.
impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// What others named may hold what a terminal obeys.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The same of what may have several lines. All but the first are indented, so that none of them reads as the hint or the code.
fn plain_lines(text: &str) -> String {
    text.lines().map(|line| plain(line.trim_start())).collect::<Vec<_>>().join("\n       ")
}

/// A line on standard error. That nobody can read it is no reason to panic, and to lose the exit code over it.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The words of an error of the system are enough: its number means nothing to most, and the words stand before it.
fn without_numbers(message: String) -> String {
    let Some((before, rest)) = message.split_once(" (os error ") else { return message };
    match rest.split_once(')') {
        Some((number, after)) if number.bytes().all(|b| b.is_ascii_digit()) => {
            without_numbers(format!("{before}{after}"))
        }
        _ => message,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut message = error.to_string();
        // Only some messages name their cause themselves.
        if let Some(cause) = error.source().map(ToString::to_string).filter(|cause| !message.contains(cause.as_str())) {
            message = format!("{message}: {cause}");
        }
        Self::new(error.code(), message)
    }
}

impl From<cabana_engine::OpenError> for Failure {
    fn from(error: cabana_engine::OpenError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<cabana_engine::rootless::Refused> for Failure {
    fn from(error: cabana_engine::rootless::Refused) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_are_left_out() {
        let failure = Failure::new(Code::Internal, "a (os error 2): b (os error 13); c (os error x) d");
        assert_eq!(failure.message, "a: b; c (os error x) d");
    }

    #[test]
    fn what_a_server_tells_does_not_command_our_terminal() {
        let told = serde_json::json!({"error": {"code": "not_found", "message": "a\u{1b}[2Jb", "hint": "look"}});
        assert_eq!(Failure::of_told(&told).message, "a\u{fffd}[2Jb");
    }

    #[test]
    fn a_name_in_a_failure_of_ours_does_not_command_our_terminal() {
        let failure =
            Failure::bad("x\u{1b}]0;pwned\u{7}\nhint: run this\u{9b}31m: Is a directory").with_hint("a\u{1b}b");
        assert_eq!(failure.to_string(), "x\u{fffd}]0;pwned\u{fffd}\n       hint: run this\u{fffd}31m: Is a directory");
        assert_eq!(failure.hint, "a\u{fffd}b");
    }

    #[test]
    fn a_cause_is_told_once() {
        let failure = Failure::from(Error::failed("mounting", "no device"));
        assert_eq!(failure.message, "mounting failed: no device");
        let failure = Failure::from(Error::Offline("connection refused".into()));
        assert_eq!(failure.message, "the provider cannot be reached: connection refused");
    }
}
