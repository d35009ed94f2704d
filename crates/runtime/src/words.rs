//! What callers say in words, and how much of it: commands, variables, and what is written down of either.
//!
//! What runs is kept in memory several times as long as it runs, what a sandbox has as long as it is there, and what is recorded for ever.
//! The kernel's own bounds are megabytes, and no limit of a sandbox counts what the server keeps.

use std::collections::BTreeMap;

use cabana_sandbox::{Command, check_env};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// Of a command, with its program.
const MAX_ARGUMENTS: usize = 4096;
const MAX_ARGUMENT_BYTES: usize = 256 << 10;
/// Of the variables of a command, with their names.
const MAX_ENV: usize = 256 << 10;
/// Of those that a sandbox or a template keeps for all its commands.
pub const MAX_KEPT_ENV: usize = 64 << 10;
/// Of the variables of a command that runs: what is shown of them.
const MAX_SHOWN_ENV: usize = 16 << 10;
/// Of what is recorded of one call, and of one that has changed nothing.
const MAX_RECORDED: usize = 8 << 10;
const MAX_BRIEF: usize = 512;
/// What a word costs beside its bytes, however it is written.
const WORD: usize = 8;

pub(crate) fn check_command(command: &Command) -> Result<()> {
    let (words, bytes) = match command {
        Command::Argv(argv) => (argv.len(), argv.iter().map(|word| word.len() + 1).sum()),
        Command::Shell(script) => (1, script.len()),
    };
    let why = match () {
        () if words > MAX_ARGUMENTS => format!("has {words} arguments: at most {MAX_ARGUMENTS}"),
        () if bytes > MAX_ARGUMENT_BYTES => format!("has {bytes} bytes: at most {MAX_ARGUMENT_BYTES}"),
        () => return Ok(()),
    };
    Err(Error::invalid("command", format!("{why}. Give it the rest by its input or in a file")))
}

/// Of one command.
pub(crate) fn check_command_env(env: &BTreeMap<String, String>) -> Result<()> {
    check_env(env)?;
    within(env, MAX_ENV)
}

/// Of a sandbox or a template.
pub fn check_kept_env(env: &BTreeMap<String, String>) -> Result<()> {
    check_env(env)?;
    within(env, MAX_KEPT_ENV)
}

fn within(env: &BTreeMap<String, String>, most: usize) -> Result<()> {
    let bytes: usize = env.iter().map(|(name, value)| variable(name, value)).sum();
    match bytes > most {
        true => Err(Error::invalid("env", format!("has {bytes} bytes in all: at most {most}"))),
        false => Ok(()),
    }
}

/// As the kernel counts it.
fn variable(name: &str, value: &str) -> usize {
    name.len() + value.len() + 2
}

/// As many of them as are shown while the command runs.
pub(crate) fn shown_env(env: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut room = MAX_SHOWN_ENV;
    let mut fits = |(name, value): &(&String, &String)| match room.checked_sub(variable(name, value)) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    };
    let shown = env.iter().filter(|pair| fits(pair));
    shown.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// All of the words, or as many as are recorded and the digest of all.
pub(crate) fn recorded(words: Vec<String>) -> Vec<String> {
    cut(words, MAX_RECORDED)
}

/// The same of what was refused or only read, and where the disk has little left.
pub(crate) fn recorded_briefly(words: Vec<String>) -> Vec<String> {
    cut(words, MAX_BRIEF)
}

/// About how much a call takes that is recorded with these words: in its own row and in that of the ledger.
pub(crate) fn record_bytes(words: &[String]) -> u64 {
    const ROWS: usize = 1 << 10;
    (ROWS + 2 * words.iter().map(|word| word.len() + WORD).sum::<usize>()) as u64
}

/// An error may say what was wrong in the caller's own words.
pub(crate) fn recorded_message(message: String) -> String {
    const MAX_MESSAGE: usize = 2 << 10;
    match message.len() > MAX_MESSAGE {
        true => format!("{}…", &message[..message.floor_char_boundary(MAX_MESSAGE)]),
        false => message,
    }
}

fn cut(words: Vec<String>, most: usize) -> Vec<String> {
    if words.iter().map(|word| word.len() + WORD).sum::<usize>() <= most {
        return words;
    }
    let (mut digest, mut bytes) = (Sha256::new(), 0);
    for word in &words {
        digest.update((word.len() as u64).to_le_bytes());
        digest.update(word);
        bytes += word.len();
    }
    let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let all = format!("[{} words, {bytes} bytes, sha256 {digest}]", words.len());
    let (mut kept, mut room) = (Vec::new(), most);
    for word in words {
        match room.checked_sub(word.len() + WORD) {
            Some(left) => {
                room = left;
                kept.push(word);
            }
            None => {
                let end = word.floor_char_boundary(room.saturating_sub(WORD));
                kept.push(format!("{}…", &word[..end]));
                break;
            }
        }
    }
    kept.push(all);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_are_recorded_in_part_with_a_digest_of_all() {
        let few = vec!["echo".to_owned(), "x".repeat(8000)];
        assert_eq!(recorded(few.clone()), few);
        let many = |last: &str| vec!["echo".to_owned(), "é".repeat(10_000), last.to_owned()];
        let (one, other) = (recorded(many("1")), recorded(many("2")));
        assert_eq!((one[0].as_str(), one.len()), ("echo", 3));
        assert!(one[1].starts_with("éé") && one[1].ends_with("é…") && one[1].len() <= MAX_RECORDED);
        assert!(one[2].starts_with("[3 words, 20005 bytes, sha256 ") && one[2] != other[2], "{}", one[2]);
        let short = recorded(vec![String::new(); 100_000]);
        assert!(short.len() < 1100, "{}", short.len());
        assert!(recorded_briefly(many("1")).concat().len() < 700);
    }

    #[test]
    fn commands_and_variables_are_bounded() {
        let argv = |words: usize, length: usize| Command::Argv(vec!["x".repeat(length); words]);
        assert!(check_command(&argv(4096, 10)).is_ok() && check_command(&argv(2, 100_000)).is_ok());
        assert!(check_command(&argv(4097, 1)).is_err() && check_command(&argv(3, 100_000)).is_err());
        assert!(check_command(&Command::Shell("x".repeat(300_000))).is_err());
        let env = |length: usize| BTreeMap::from([("A".to_owned(), "x".repeat(length))]);
        assert!(check_kept_env(&env(65_000)).is_ok() && check_kept_env(&env(66_000)).is_err());
        assert!(check_command_env(&env(200_000)).is_ok() && check_command_env(&env(300_000)).is_err());
        assert_eq!((shown_env(&env(16_000)).len(), shown_env(&env(17_000)).len()), (1, 0));
    }
}
