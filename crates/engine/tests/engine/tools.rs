//! The tools that people and agents work with, each at real work inside a sandbox on the host base; what root and the
//! user may do there; and what does not work, as docs/guides/inside.md says.

mod data;
mod debuggers;
mod languages;
mod refusals;
mod rights;
mod shells;

use cabana_sandbox::ExecSpec;

use crate::inside::{Inside, Ran, command, path, shell};

/// A script of bash at the ordinary user's home, in a sandbox of its own. Every line of it must succeed.
async fn work(script: &str) -> String {
    let inside = Inside::new().await;
    let said = strict(&inside, script).await.ok();
    inside.end().await;
    said
}

async fn strict(inside: &Inside, script: &str) -> Ran {
    let spec = ExecSpec::argv(["bash", "-euo", "pipefail", "-c", script], path("/home/user"));
    command(&*inside.sandbox, "user", spec).await
}

/// What is seen where something does not work: it fails, and says this.
async fn fails(user: &str, tries: &[(&str, &str)]) {
    let inside = Inside::new().await;
    for (script, says) in tries {
        let ran = shell(&*inside.sandbox, user, script).await;
        let said = format!("{}{}", ran.out, ran.err);
        ran.refused();
        assert!(said.contains(says), "{script}: {said}");
    }
    inside.end().await;
}
