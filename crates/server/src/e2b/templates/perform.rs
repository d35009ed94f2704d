//! What each step of a build does in the build's sandbox.

use std::time::Duration;

use cabana_runtime::{Code, MAX_KEPT_ENV, check_kept_env};
use cabana_sandbox::User;

use super::{
    super::brought::Brought,
    inside::{Inside, Script, failure},
    job::Job,
    steps::{self, Step},
    words::{Part, parts},
};

impl Job {
    /// `Err`: why it failed, in words.
    pub(super) async fn step(
        &self,
        inside: &Inside<'_>,
        number: &str,
        step: &Step,
        brought: &mut Brought,
    ) -> Result<(), String> {
        let timeout = self.app.runtime.settings().exec_timeout_most;
        let log = Some((&*self.log, number));
        match step {
            Step::Run { script, user } => {
                let run = Script { text: script, args: &[], user: user.clone(), is_login: true, timeout };
                let who = user.as_ref().or(brought.user.as_ref()).map(User::to_string).unwrap_or_default();
                let answer = inside.run(&run, brought, log).await.map_err(|error| match error.code() {
                    Code::UnknownUser => steps::not_run(script, &format!("invalid username: '{who}'")),
                    _ => format!("failed to run command '{script}': {error}"),
                })?;
                failure(&answer).map_or(Ok(()), |why| Err(format!("failed to run command '{script}': {why}")))
            }
            Step::Copy(copy) => {
                let (who, home) = self.defaults(inside, brought).await?;
                let stage = format!("/tmp/.copy-{}-{number}", self.build.id);
                copy.run(inside, brought, (&who, &home), stage).await
            }
            Step::Env(pairs) => {
                for (name, value) in pairs {
                    let value = self.expanded(inside, brought, value).await?;
                    brought.env.insert(name.clone(), value);
                    check_kept_env(&brought.env).map_err(|error| error.to_string())?;
                }
                Ok(())
            }
            Step::Workdir(dir) => {
                let (who, home) = self.defaults(inside, brought).await?;
                let dir = match dir.starts_with('/') {
                    true => dir.clone(),
                    false => format!("{}/{dir}", brought.workdir.as_deref().unwrap_or(&home)),
                };
                let text = r#"[ -d "$1" ] || { mkdir -p -- "$1" && chown -- "$2" "$1"; }"#;
                let (args, user) = ([dir.as_str(), who.as_str()], Some(User::root()));
                let make = Script { text, args: &args, user, is_login: false, timeout };
                let made = inside.run(&make, &Brought::default(), log).await.map_err(|error| error.to_string())?;
                if let Some(why) = failure(&made) {
                    return Err(format!("the working directory '{dir}' could not be made: {why}"));
                }
                brought.workdir = Some(dir);
                Ok(())
            }
            Step::User(user) => {
                let there = Script { text: "true", args: &[], user: Some(user.clone()), is_login: false, timeout };
                inside.run(&there, &Brought::default(), None).await.map_err(|error| match error.code() {
                    Code::UnknownUser => format!("invalid username: '{user}'"),
                    _ => error.to_string(),
                })?;
                brought.user = Some(user.clone());
                Ok(())
            }
        }
    }

    /// Whose files are that nobody names an owner for, and where relative paths begin.
    async fn defaults(&self, inside: &Inside<'_>, brought: &Brought) -> Result<(String, String), String> {
        let script = Script {
            text: r#"printf '%s\n%s' "$(id -un)" "$(pwd)""#,
            args: &[],
            user: None,
            is_login: false,
            timeout: Duration::from_secs(60),
        };
        let as_whom = Brought { user: brought.user.clone(), ..Brought::default() };
        let answer = inside.run(&script, &as_whom, None).await.map_err(|error| error.to_string())?;
        if let Some(why) = failure(&answer) {
            return Err(format!("whose files they become is not to be found out: {why}"));
        }
        let said = [&answer.stdout.head.0[..], &answer.stdout.tail.0[..]].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let (who, dir) = said.split_once('\n').unwrap_or((&said, "/"));
        Ok((who.to_owned(), dir.to_owned()))
    }

    /// `$NAME` and `${NAME}` stand for what the variable is so far; with a backslash before it, a `$` is one. A value that names long ones
    /// again and again would grow without end, so it ends at what all variables may have.
    async fn expanded(&self, inside: &Inside<'_>, brought: &Brought, value: &str) -> Result<String, String> {
        let mut whole = String::new();
        for part in parts(value) {
            if whole.len() > MAX_KEPT_ENV {
                return Err(format!("ENV: a value has more than {MAX_KEPT_ENV} bytes"));
            }
            match part {
                Part::Text(text) => whole.push_str(text),
                Part::Name(name) => match brought.env.get(name) {
                    Some(value) => whole.push_str(value),
                    None => {
                        let script = Script {
                            text: r#"printenv -- "$1" || true"#,
                            args: &[name],
                            user: None,
                            is_login: true,
                            timeout: Duration::from_secs(60),
                        };
                        let answer = inside.run(&script, brought, None).await.map_err(|error| error.to_string())?;
                        let said = [&answer.stdout.head.0[..], &answer.stdout.tail.0[..]].concat();
                        whole.push_str(String::from_utf8_lossy(&said).trim_end_matches('\n'));
                    }
                },
            }
        }
        Ok(whole)
    }
}
