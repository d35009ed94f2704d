//! Templates and builds in E2B's words.

use axum::{extract::State, response::Response};
use cabana_e2b_wire::control::{
    BuildInfo, BuildLogEntry, BuildReason, BuildStatus, BuildStatusQuery, LogLevel, Template, TemplateBuild,
    TemplateWithBuilds,
};
use cabana_runtime::{Build, BuildState, ListedBuild, ListedTemplate, OwnTemplate};

use super::{
    super::{ENVD_VERSION, brought::Brought, refused::Refused},
    owned,
};
use crate::{App, auth::Reader, extract::Path, long_answer};

/// Of one answer.
const MOST_ENTRIES: u32 = 100;

fn status(state: BuildState) -> BuildStatus {
    match state {
        BuildState::Waiting => BuildStatus::Waiting,
        BuildState::Building => BuildStatus::Building,
        BuildState::Ready => BuildStatus::Ready,
        BuildState::Failed => BuildStatus::Error,
    }
}

/// What it says behind the entries that the client has.
pub(super) fn build(
    own: &OwnTemplate,
    build: &Build,
    live: Option<Vec<BuildLogEntry>>,
    asked: BuildStatusQuery,
) -> BuildInfo {
    let kept = || build.log.as_deref().and_then(|log| serde_json::from_str(log).ok()).unwrap_or_default();
    let mut entries: Vec<BuildLogEntry> = live.unwrap_or_else(kept);
    let least = asked.level.unwrap_or(LogLevel::Debug);
    entries.retain(|entry| entry.level >= least);
    let limit = asked.limit.unwrap_or(MOST_ENTRIES).min(MOST_ENTRIES);
    let part = entries.iter().skip(asked.logs_offset as usize).take(limit as usize).cloned();
    let part: Vec<BuildLogEntry> = part.collect();
    let reason = build.reason.as_ref().map(|reason| BuildReason {
        message: reason.clone(),
        step: build.step.clone(),
        log_entries: entries.into_iter().filter(|entry| build.step.is_some() && entry.step == build.step).collect(),
    });
    BuildInfo {
        logs: part.iter().map(|entry| entry.message.clone()).collect(),
        log_entries: part,
        template_id: own.id.to_string(),
        build_id: build.id.uuid().to_string(),
        status: status(build.state),
        reason: reason.map(|reason| BuildReason { log_entries: last(reason.log_entries), ..reason }),
    }
}

/// An answer stays small.
fn last(mut entries: Vec<BuildLogEntry>) -> Vec<BuildLogEntry> {
    entries.split_off(entries.len().saturating_sub(MOST_ENTRIES as usize))
}

/// What it wished for; where it did not, it is as the server has it, which is told as nothing.
fn wishes(build: Option<&ListedBuild>) -> (u32, u32) {
    let brought = Brought::of_note(build.map(|build| build.about.as_str()));
    (brought.cpus.unwrap_or(1), brought.memory_mb.unwrap_or(0))
}

pub(super) fn template(listed: ListedTemplate) -> Template {
    let ListedTemplate { template: own, builds, newest, ready } = listed;
    let shown = ready.as_ref().or(newest.as_ref());
    let (cpu_count, memory_mb) = wishes(shown);
    Template {
        template_id: own.id.to_string(),
        build_id: shown.map(|build| build.id.uuid().to_string()).unwrap_or_default(),
        cpu_count,
        memory_mb,
        disk_size_mb: 0,
        public: false,
        aliases: vec![own.name.clone()],
        names: vec![own.name],
        created_at: own.created,
        updated_at: newest.as_ref().map_or(own.created, |build| build.ended.unwrap_or(build.created)),
        created_by: None,
        last_spawned_at: None,
        spawn_count: 0,
        build_count: builds,
        envd_version: ENVD_VERSION.to_owned(),
        build_status: newest.map_or(BuildStatus::Waiting, |build| status(build.state)),
    }
}

/// The tenant's own, by name.
pub(super) async fn list(State(app): State<App>, Reader(caller): Reader) -> Result<Response, Refused> {
    let templates = app.runtime.listed_templates(&caller.tenant).await?;
    let mut memory = app.runtime.list_memory(&caller.tenant);
    long_answer::charge(&mut memory, &templates)?;
    let body = move || templates.into_iter().map(template).collect::<Vec<_>>();
    Ok(long_answer::json(memory, body).await?)
}

pub(super) async fn show(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(template): Path<String>,
) -> Result<Response, Refused> {
    let (own, _) = owned(&app, &caller.tenant, &template).await?;
    let builds = app.runtime.builds(&caller.tenant, own.id).await?;
    let mut memory = app.runtime.list_memory(&caller.tenant);
    long_answer::charge(&mut memory, &builds)?;
    let updated_at = builds.first().map_or(own.created, |build| build.ended.unwrap_or(build.created));
    let told = |build: &ListedBuild| {
        let (cpu_count, memory_mb) = wishes(Some(build));
        TemplateBuild {
            build_id: build.id.uuid().to_string(),
            status: status(build.state),
            created_at: build.created,
            updated_at: build.ended.unwrap_or(build.created),
            finished_at: build.ended,
            cpu_count,
            memory_mb,
        }
    };
    let body = move || TemplateWithBuilds {
        template_id: own.id.to_string(),
        public: false,
        aliases: vec![own.name.clone()],
        names: vec![own.name],
        created_at: own.created,
        updated_at,
        last_spawned_at: None,
        spawn_count: 0,
        builds: builds.iter().map(told).collect(),
    };
    Ok(long_answer::json(memory, body).await?)
}
