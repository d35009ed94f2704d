//! `COPY`: what a client uploaded, at the place where it is to be.
//!
//! The archive is unpacked inside the sandbox, by what never leaves the directory that it is given, whatever names and links are
//! in it. From there a script moves it, inside the sandbox's walls as any other command of the build.

use std::time::Duration;

use bytes::Bytes;
use cabana_sandbox::{Error as SandboxError, Stream};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{
    super::brought::Brought,
    inside::{Inside, Script, failure, patiently},
    steps::Copy,
};

const PATIENCE: Duration = Duration::from_secs(600);

/// $1: where the archive was unpacked; $2: what of it is meant; $3: `tree` or `entry`; $4: where to; $5: whose; $6: its mode.
const MOVE: &str = r#"set -eu
top=$1/$2
[ -e "$top" ] || [ -L "$top" ] || { echo "nothing that was uploaded is at $2" >&2; exit 1; }
chown -Rh -- "$5" "$1"
[ -z "$6" ] || chmod -R -- "$6" "$top"
owned_dir() { [ -d "$1" ] || { mkdir -p -- "$1"; chown -- "$2" "$1"; }; }
if [ "$3" = tree ] || { [ -d "$top" ] && [ ! -L "$top" ]; }; then
  owned_dir "$4" "$5"
  for entry in "$top"/* "$top"/.[!.]* "$top"/..?*; do
    if [ -e "$entry" ] || [ -L "$entry" ]; then cp -a -- "$entry" "$4/"; fi
  done
else
  to=$4
  case $to in */) owned_dir "$to" "$5" ;; *) owned_dir "$(dirname -- "$to")" "$5" ;; esac
  if [ -d "$to" ]; then to=${to%/}/$(basename -- "$top"); fi
  rm -f -- "$to"
  cp -a -- "$top" "$to"
fi
rm -rf -- "$1""#;

impl Copy {
    /// What of the archive is meant, and whether it is all that lies below it.
    fn part(&self) -> (String, &'static str) {
        let is_glob = |part: &str| part.contains(['*', '?', '[', '{', '!', '(']);
        let parts: Vec<&str> = self.from.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        match parts.iter().position(|part| is_glob(part)) {
            Some(first) => (parts[..first].join("/"), "tree"),
            None => (parts.join("/"), if parts.is_empty() { "tree" } else { "entry" }),
        }
    }

    pub(super) async fn run(
        &self,
        inside: &Inside<'_>,
        brought: &Brought,
        (owner, workdir): (&str, &str),
        stage: String,
    ) -> Result<(), String> {
        let (runtime, tenant) = (&inside.app.runtime, &inside.caller.tenant);
        let unpacked = patiently(|| async {
            let Some(upload) = runtime.upload(tenant, &self.files).await? else { return Ok(None) };
            let tar = bounded(plain(inside, upload).await, runtime.settings().template_cap);
            inside.unpack(&stage, tar).await.map(Some)
        });
        let unpacked = unpacked.await;
        let unpacked =
            unpacked.map_err(|error| format!("the files of '{}' could not be unpacked: {error}", self.from))?;
        unpacked.ok_or_else(|| format!("the files of '{}' were not uploaded", self.from))?;
        let to = match self.to.starts_with('/') {
            true => self.to.clone(),
            false => format!("{}/{}", brought.workdir.as_deref().unwrap_or(workdir), self.to),
        };
        let (part, how) = self.part();
        let owner = self.owner.as_deref().unwrap_or(owner);
        let args = [stage.as_str(), &part, how, &to, owner, self.mode.as_deref().unwrap_or_default()];
        let user = Some(cabana_sandbox::User::root());
        let script = Script { text: MOVE, args: &args, user, is_login: false, timeout: PATIENCE };
        // Where it begins is no matter of the template's: that may have gone.
        let moved = inside.run(&script, &Brought { workdir: Some("/".to_owned()), ..Brought::default() }, None).await;
        let moved = moved.map_err(|error| format!("'{}' could not be put into place: {error}", self.from))?;
        failure(&moved).map_or(Ok(()), |why| Err(format!("'{}' could not be put into place: {why}", self.from)))
    }
}

/// Packed or not, as it begins.
async fn plain(inside: &Inside<'_>, mut body: Stream<Bytes>) -> Stream<Bytes> {
    let first = body.next().await;
    let is_packed = matches!(&first, Some(Ok(bytes)) if bytes.starts_with(&[0x1f, 0x8b]));
    let whole = stream::iter(first).chain(body).boxed();
    if is_packed { inside.app.gzip.unpack(&inside.caller.tenant, whole) } else { whole }
}

/// A little can become very much.
fn bounded(body: Stream<Bytes>, most: u64) -> Stream<Bytes> {
    let mut length = 0;
    let counted = body.and_then(move |bytes| {
        length += bytes.len() as u64;
        std::future::ready(if length > most { Err(SandboxError::TooLarge { cap: most }) } else { Ok(bytes) })
    });
    counted.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(from: &str) -> (String, &'static str) {
        let files = "0a".repeat(32).parse().unwrap();
        Copy { from: from.into(), to: "x".into(), owner: None, mode: None, files }.part()
    }

    #[test]
    fn what_is_meant_is_what_lies_before_the_first_pattern() {
        assert_eq!(part("folder/*"), ("folder".into(), "tree"));
        assert_eq!(part("./a/b/"), ("a/b".into(), "entry"));
        assert_eq!(part("a/**/*.py"), ("a".into(), "tree"));
        assert_eq!(part("*.txt"), (String::new(), "tree"));
        assert_eq!(part("."), (String::new(), "tree"));
    }

    #[tokio::test]
    async fn what_becomes_too_much_breaks_off() {
        let pieces = || stream::iter([b"abc"; 3]).map(|piece| Ok(Bytes::from_static(piece))).boxed();
        bounded(pieces(), 8).try_collect::<Vec<_>>().await.unwrap_err();
        assert_eq!(bounded(pieces(), 9).try_collect::<Vec<_>>().await.unwrap().len(), 3);
    }
}
