//! `List`: the processes of a sandbox, whatever a client has begun there: each in part where it is long, and all of them within bounds.

use std::collections::BTreeMap;

use axum::response::Response;
use cabana_e2b_wire::{
    connect::Error,
    process::{ListResponse, ProcessConfig, ProcessInfo},
};
use cabana_runtime::{Seen, acts::Asked};
use cabana_sandbox::Command;

use super::{
    super::super::{guest::Guest, refused::connect_error},
    Note,
};
use crate::{App, long_answer};

/// What is shown of one process: of its words, its directory and its variables.
const MAX_WORDS: usize = 1 << 10;
const MAX_CWD: usize = 4 << 10;
const MAX_ENV: usize = 4 << 10;
/// Of all of them. Those that come later are told by number and tag alone.
const MAX_LIST: usize = 1 << 20;
/// What a word takes beside its bytes.
const WORD: usize = 32;

pub(super) async fn serve(app: &App, guest: &Guest) -> Result<Response, Error> {
    let seen = super::seen_tasks(app, guest).await?;
    let mut memory = app.runtime.list_memory(&guest.record.tenant);
    let made_of = (seen.len() * (MAX_WORDS + MAX_CWD + MAX_ENV)).min(MAX_LIST);
    let answer = match memory.grow(made_of) {
        true => long_answer::json(memory, move || list(&seen)).await,
        false => Err(cabana_runtime::Error::ListsTooLarge),
    };
    answer.map_err(|error| connect_error(&error))
}

fn list(seen: &[Seen]) -> ListResponse {
    let mut running: Vec<_> = seen.iter().filter(|seen| !seen.has_ended).collect();
    running.sort_by_key(|seen| seen.pid);
    let mut room = MAX_LIST;
    let process = |seen: &Seen| {
        let Note { config, tag } = Note::of(seen)?;
        let config = ProcessConfig { envs: shown_env(&seen.env), ..config };
        let size = size(&config);
        let config = if size <= room { config } else { ProcessConfig::default() };
        room = room.saturating_sub(size);
        Some(ProcessInfo { config, pid: seen.pid, tag })
    };
    ListResponse { processes: running.into_iter().filter_map(process).collect() }
}

fn size(config: &ProcessConfig) -> usize {
    let words = config.args.iter().map(|word| word.len() + WORD);
    let env = config.envs.iter().map(|(name, value)| name.len() + value.len() + WORD);
    config.cmd.len() + config.cwd.as_ref().map_or(0, String::len) + words.sum::<usize>() + env.sum::<usize>()
}

fn shown_env(env: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut room = MAX_ENV;
    let fits = |(name, value): &(&String, &String)| {
        let size = name.len() + value.len() + WORD;
        let fits = size <= room;
        room -= if fits { size } else { 0 };
        fits
    };
    env.iter().filter(fits).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// What is kept of a command for it: the beginning of a long one. The directory is as it was given, which may be many times as
/// long as what it means.
pub(super) fn shown(asked: &Asked, cwd: Option<String>) -> ProcessConfig {
    let Command::Argv(argv) = &asked.command else { return ProcessConfig::default() };
    let (mut words, mut room) = (Vec::new(), MAX_WORDS);
    for word in argv {
        let end = word.floor_char_boundary(room);
        if end < word.len() {
            words.push(format!("{}…", &word[..end]));
            break;
        }
        words.push(word.clone());
        room = room.saturating_sub(word.len() + WORD);
    }
    let args = words.split_off(words.len().min(1));
    let cwd = cwd.filter(|cwd| cwd.len() <= MAX_CWD);
    ProcessConfig { cmd: words.pop().unwrap_or_default(), args, envs: BTreeMap::new(), cwd }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cabana_runtime::{TaskId, Typed};
    use serde_json::json;

    use super::*;

    fn seen(pid: u32, args: Vec<String>, env: usize) -> Seen {
        let asked = Asked::new(Command::Argv([vec!["/bin/sh".to_owned()], args].concat()));
        let note = Note { config: shown(&asked, None), tag: Some(format!("tag {pid}")) };
        Seen {
            task: TaskId::now(),
            pid,
            typed: Typed::Whole,
            note: Some(Arc::new(json!(note))),
            env: Arc::new(BTreeMap::from([("A".to_owned(), "\u{1}".repeat(env)), ("B".to_owned(), "b".to_owned())])),
            has_ended: false,
        }
    }

    #[test]
    fn a_long_process_is_listed_in_part() {
        let list = list(&[seen(2, vec!["x".into()], 10), seen(3, vec!["y".repeat(100_000)], 100_000)]);
        let [short, long] = &list.processes[..] else { panic!("{list:?}") };
        assert_eq!((&short.config.args[..], short.config.envs.len()), (&["x".to_owned()][..], 2));
        assert!(long.config.args[0].ends_with("y…") && long.config.args[0].len() <= MAX_WORDS + WORD);
        assert_eq!(long.config.envs.keys().collect::<Vec<_>>(), ["B"], "what is short of a long one");
    }

    #[test]
    fn a_list_of_very_many_processes_is_bounded_and_names_each() {
        let many: Vec<_> = (1..=2000).rev().map(|pid| seen(pid, vec!["\u{1}".repeat(16 << 10)], 3000)).collect();
        let list = list(&many);
        let pids = list.processes.iter().map(|process| process.pid);
        assert!(pids.eq(1..=2000));
        assert!(list.processes.iter().all(|process| process.tag == Some(format!("tag {}", process.pid))));
        let first = &list.processes[0].config;
        assert!(first.cmd == "/bin/sh" && first.envs.len() == 2, "the control");
        let shown: usize = list.processes.iter().map(|process| size(&process.config)).sum();
        assert!(shown <= MAX_LIST, "{shown}");
    }
}
