//! The steps of a build as clients send them, and what makes two of them the same.

use cabana_e2b_wire::control::Step as Sent;
use cabana_runtime::Hash;
use cabana_sandbox::User;
use sha2::{Digest, Sha256};

use super::super::brought::Brought;

/// How many steps a build may have, and how much all their words may be.
const MOST: usize = 500;
const MOST_BYTES: usize = 1 << 20;
const MOST_WORD: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Run { script: String, user: Option<User> },
    Copy(Copy),
    Env(Vec<(String, String)>),
    Workdir(String),
    User(User),
}

/// What was uploaded, to where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) from: String,
    pub(super) to: String,
    /// `user`, or `user:group`.
    pub(super) owner: Option<String>,
    /// As digits to the base of eight.
    pub(super) mode: Option<String>,
    pub(super) files: Hash,
}

impl Step {
    pub(super) fn read(sent: &Sent) -> Result<Self, String> {
        let args: Vec<&str> = sent.args.iter().map(String::as_str).collect();
        if args.iter().any(|arg| arg.contains('\0')) {
            return Err(format!("{}: an argument has a null byte in it", sent.r#type));
        }
        let user = |name: &str| User::new(name).map_err(|_| format!("invalid username: '{name}'"));
        match (sent.r#type.as_str(), args.as_slice()) {
            ("RUN", [script, who @ ..]) if who.len() <= 1 => {
                let who = who.first().filter(|who| !who.is_empty());
                let who = who.map(|who| user(who).map_err(|error| not_run(script, &error))).transpose()?;
                Ok(Self::Run { script: (*script).to_owned(), user: who })
            }
            ("COPY", [from, to, more @ ..]) if more.len() <= 2 => {
                let said = |index: usize| more.get(index).filter(|text| !text.is_empty());
                let files = sent.files_hash.as_deref().ok_or("COPY: it has no hash of its files")?;
                let files = files.parse().map_err(|_| "COPY: the hash of its files is none".to_owned())?;
                let owner = said(0).map(|owner| is_owner(owner)).transpose()?;
                let mode = said(1).map(|mode| is_mode(mode)).transpose()?;
                Ok(Self::Copy(Copy { from: (*from).to_owned(), to: (*to).to_owned(), owner, mode, files }))
            }
            ("ENV", pairs) if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
                let pairs = pairs.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned()));
                Ok(Self::Env(pairs.collect()))
            }
            ("WORKDIR", [dir]) if !dir.is_empty() => Ok(Self::Workdir((*dir).to_owned())),
            ("USER", [who]) => Ok(Self::User(user(who)?)),
            ("RUN" | "COPY" | "ENV" | "WORKDIR" | "USER", _) => {
                Err(format!("{}: it does not have the arguments that it needs", sent.r#type))
            }
            (other, _) => Err(format!("{other:?} is no step: there are RUN, COPY, ENV, WORKDIR and USER")),
        }
    }

    /// Whether it leaves files behind.
    pub(super) fn changes_files(&self) -> bool {
        matches!(self, Self::Run { .. } | Self::Copy(_) | Self::Workdir(_))
    }
}

/// As clients expect it.
/// As a log tells it, which readers see. Values of variables are told nowhere.
pub(super) fn told(sent: &Sent) -> String {
    let step = if sent.r#type == "ENV" { 2 } else { 1 };
    let words = sent.args.iter().step_by(step).map(String::as_str);
    std::iter::once(sent.r#type.as_str()).chain(words).collect::<Vec<_>>().join(" ")
}

pub(super) fn not_run(script: &str, why: &str) -> String {
    format!("failed to run command '{script}': command failed: unauthenticated: {why}")
}

fn is_owner(owner: &str) -> Result<String, String> {
    let plain = |name: &str| User::new(name).is_ok();
    match owner.split_once(':') {
        Some((user, group)) if plain(user) && plain(group) => Ok(owner.to_owned()),
        None if plain(owner) => Ok(owner.to_owned()),
        _ => Err(format!("COPY: {owner:?} is neither a user nor user:group")),
    }
}

fn is_mode(mode: &str) -> Result<String, String> {
    let fits = u32::from_str_radix(mode, 8).is_ok_and(|mode| mode <= 0o7777);
    if fits { Ok(mode.to_owned()) } else { Err(format!("COPY: {mode:?} is no mode: as in 0755")) }
}

/// Of each word beside the steps: what a build begins with, and what its sandboxes do first.
pub(super) fn check_words(words: [&Option<String>; 4]) -> Result<(), String> {
    match words.into_iter().flatten().any(|word| word.len() > MOST_WORD) {
        true => Err(format!("a template, an image or a command of a build has at most {MOST_WORD} bytes")),
        false => Ok(()),
    }
}

/// What a client may send at all.
pub(super) fn check(steps: &[Sent]) -> Result<(), String> {
    let words = |step: &Sent| {
        let args: usize = step.args.iter().map(String::len).sum();
        args + step.r#type.len() + step.files_hash.as_ref().map_or(0, String::len)
    };
    let bytes: usize = steps.iter().map(words).sum();
    match (steps.len() > MOST, bytes > MOST_BYTES) {
        (true, _) => Err(format!("a build has at most {MOST} steps")),
        (_, true) => Err(format!("the steps of a build have at most {MOST_BYTES} bytes")),
        _ => Ok(()),
    }
}

/// Of all that a build begins with.
pub(super) fn digest_of_base(base: &str, brought: &Brought) -> [u8; 32] {
    let mut all = Sha256::new();
    part(&mut all, b"a build of templates, 1");
    part(&mut all, base.as_bytes());
    part(&mut all, brought.note().unwrap_or_default().as_bytes());
    all.finalize().into()
}

/// Of a step and all before it. Words are told apart by their lengths: no two lists of them are one text.
pub(super) fn digest(before: &[u8; 32], step: &Sent) -> [u8; 32] {
    let mut all = Sha256::new();
    part(&mut all, before);
    part(&mut all, step.r#type.as_bytes());
    for arg in &step.args {
        part(&mut all, arg.as_bytes());
    }
    part(&mut all, &[u8::from(step.files_hash.is_some())]);
    part(&mut all, step.files_hash.as_deref().unwrap_or_default().as_bytes());
    all.finalize().into()
}

fn part(all: &mut Sha256, bytes: &[u8]) {
    all.update((bytes.len() as u64).to_be_bytes());
    all.update(bytes);
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};

    use super::*;

    #[test]
    fn every_word_of_a_build_counts() {
        let step = |kind: usize, hash: usize| Sent {
            r#type: "R".repeat(kind),
            args: Vec::new(),
            files_hash: Some("h".repeat(hash)),
            force: false,
        };
        assert!(check(&[step(MOST_BYTES / 2, MOST_BYTES / 2)]).is_ok());
        assert!(check(&[step(MOST_BYTES / 2, MOST_BYTES / 2 + 1)]).is_err());
        let (fits, long) = (Some("x".repeat(MOST_WORD)), Some("x".repeat(MOST_WORD + 1)));
        assert!(check_words([&fits, &None, &fits, &fits]).is_ok());
        for place in 0..4 {
            let mut words = [&fits; 4];
            words[place] = &long;
            assert!(check_words(words).is_err(), "{place}");
        }
    }

    prop_compose! {
        fn any_step()(kind in "[A-Z]{1,4}", args in vec("[ab]{0,2}", 0..4), hash in option::of("[ab]{0,2}")) -> Sent {
            Sent { r#type: kind, args, files_hash: hash, force: false }
        }
    }

    fn digest_of_all(steps: &[Sent]) -> [u8; 32] {
        steps.iter().fold(digest_of_base("base", &Brought::default()), |before, step| digest(&before, step))
    }

    proptest! {
        /// Two lists of steps have one digest if they are one list, however little they differ.
        #[test]
        fn a_digest_means_one_history(one in vec(any_step(), 0..4), other in vec(any_step(), 0..4)) {
            prop_assert_eq!(one == other, digest_of_all(&one) == digest_of_all(&other));
            prop_assert_eq!(digest_of_all(&one), digest_of_all(&one.clone()));
        }
    }

    fn sent(kind: &str, args: &[&str], hash: Option<&str>) -> Sent {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Sent { r#type: kind.into(), args, files_hash: hash.map(str::to_owned), force: false }
    }

    #[test]
    fn steps_are_read_as_clients_send_them() {
        let hash = "0a".repeat(32);
        let run = Step::read(&sent("RUN", &["ls", "root"], None)).unwrap();
        assert_eq!(run, Step::Run { script: "ls".into(), user: Some(User::new("root").unwrap()) });
        assert!(run.changes_files() && !Step::read(&sent("USER", &["root"], None)).unwrap().changes_files());
        let Step::Copy(copy) = Step::read(&sent("COPY", &["a", "b", "", "0644"], Some(&hash))).unwrap() else {
            panic!("it is a copy")
        };
        assert_eq!((copy.owner, copy.mode.as_deref()), (None, Some("0644")));
        let env = sent("ENV", &["A", "1", "B", "2"], None);
        assert_eq!(told(&env), "ENV A B");
        assert_eq!(told(&sent("RUN", &["echo 1", "root"], None)), "RUN echo 1 root");
        let env = Step::read(&env).unwrap();
        assert_eq!(env, Step::Env(vec![("A".into(), "1".into()), ("B".into(), "2".into())]));
    }

    #[test]
    fn what_is_no_step_is_refused() {
        let hash = "0a".repeat(32);
        for bad in [
            sent("FROM", &["x"], None),
            sent("RUN", &[], None),
            sent("RUN", &["a\0b"], None),
            sent("RUN", &["ls", "; exit 1"], None),
            sent("COPY", &["a", "b"], None),
            sent("COPY", &["a", "b"], Some("../../etc/passwd")),
            sent("COPY", &["a", "b", "-R x"], Some(&hash)),
            sent("COPY", &["a", "b", "", "99999"], Some(&hash)),
            sent("ENV", &["A"], None),
            sent("USER", &["; exit 1"], None),
            sent("WORKDIR", &[""], None),
        ] {
            Step::read(&bad).unwrap_err();
        }
    }

    /// What differs anywhere has another digest, and what follows it too.
    #[test]
    fn no_two_histories_have_one_digest() {
        let base = digest_of_base("base", &Brought::default());
        let hash = "0a".repeat(32);
        let steps = [
            sent("RUN", &["ab"], None),
            sent("RUN", &["a", "b"], None),
            sent("RUN", &["a", "b", ""], None),
            sent("RUN", &["b", "a"], None),
            sent("COPY", &["a", "b"], None),
            sent("COPY", &["a", "b"], Some("")),
            sent("COPY", &["a", "b"], Some(&hash)),
        ];
        let mut seen = std::collections::BTreeSet::from([base, digest_of_base("bas", &Brought::default())]);
        for step in &steps {
            let first = digest(&base, step);
            assert!(seen.insert(first), "{step:?}");
            for next in &steps {
                assert!(seen.insert(digest(&first, next)), "{step:?} {next:?}");
            }
        }
        let forced = Sent { force: true, ..steps[0].clone() };
        assert_eq!(digest(&base, &forced), digest(&base, &steps[0]), "whether it is done again says nothing of it");
    }
}
