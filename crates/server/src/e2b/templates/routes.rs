//! How builds are asked for, begun and looked at.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Query, State, rejection::QueryRejection},
    http::StatusCode,
    response::Response,
    routing::{delete, get, post, put},
};
use cabana_e2b_wire::{
    DEFAULT_TAG, TemplateRef,
    control::{BuildStart, BuildStatusQuery, NewTemplate, NewTemplateAnswer, TemplateAlias},
};
use cabana_runtime::{
    Build, BuildId, BuildState, Caller, Error, Subject,
    acts::build::{Ask as AskBuild, Begin, Remove},
};
use tokio::sync::oneshot;

use super::{
    super::{
        brought::Brought,
        control::{
            base::{missing, of_operator},
            snapshots,
        },
        refused::Refused,
    },
    job::Job,
    log::BuildLog,
    own, owned,
    seats::MOST as MOST_BUILDS,
    steps, tags,
    tags::nowhere,
    told, upload,
};
use crate::{
    App,
    auth::{Reader, User},
    extract::{Body, Path},
    long_answer,
};

/// What a template may wish for: more is no machine of ours.
const MOST_CPUS: u32 = 256;
const MOST_MEMORY_MB: u32 = 1 << 20;

pub(in super::super) fn routes() -> Router<App> {
    Router::new()
        .route("/v3/templates", post(ask))
        .route("/v2/templates", post(ask_v2))
        .route("/templates", get(told::list))
        .route("/templates/{template}", get(told::show).delete(remove))
        .route("/templates/aliases/{alias}", get(alias))
        .route("/templates/{template}/files/{hash}", get(upload::link))
        .route("/e2b/uploads/{token}", put(upload::put))
        .route("/v2/templates/{template}/builds/{build}", post(begin))
        .route("/templates/{template}/builds/{build}/status", get(status))
        .route("/templates/tags", post(tags::assign).merge(delete(tags::remove)))
        .route("/templates/{template}/tags", get(tags::list))
}

async fn ask(
    State(app): State<App>,
    User(caller): User,
    Body(new): Body<NewTemplate>,
) -> Result<(StatusCode, Json<NewTemplateAnswer>), Refused> {
    Ok((StatusCode::ACCEPTED, Json(asked(&app, caller, new).await?)))
}

/// Older clients expect all of the template with it.
async fn ask_v2(
    State(app): State<App>,
    User(caller): User,
    Body(new): Body<NewTemplate>,
) -> Result<(StatusCode, Json<cabana_e2b_wire::control::Template>), Refused> {
    let tenant = caller.tenant.clone();
    let answer = asked(&app, caller, new).await?;
    let (own, _) = owned(&app, &tenant, &answer.template_id).await?;
    let template = told::template(app.runtime.listed_template(&tenant, own.id).await?);
    Ok((StatusCode::ACCEPTED, Json(cabana_e2b_wire::control::Template { build_id: answer.build_id, ..template })))
}

async fn asked(app: &App, caller: Caller, new: NewTemplate) -> Result<NewTemplateAnswer, Refused> {
    let name = new.name().ok_or_else(|| Refused::bad("the template has no name"))?;
    let named: TemplateRef = name.parse().map_err(|error| Refused::bad(format!("name: {error}")))?;
    if named.name.starts_with("tmpl_") || named.name.starts_with("snap_") {
        return Err(Refused::bad("name: what begins with tmpl_ or snap_ is an id, and no name"));
    }
    let mut tags: Vec<String> = named.tag.into_iter().chain(new.tags).collect();
    if tags.is_empty() {
        tags.push(DEFAULT_TAG.to_owned());
    }
    tags.sort();
    tags.dedup();
    tags::check(&tags)?;
    if new.cpu_count.is_some_and(|cpus| !(1..=MOST_CPUS).contains(&cpus)) {
        return Err(Refused::bad(format!("cpuCount must be from 1 to {MOST_CPUS}")));
    }
    if new.memory_mb.is_some_and(|mib| !(128..=MOST_MEMORY_MB).contains(&mib)) {
        return Err(Refused::bad(format!("memoryMB must be from 128 to {MOST_MEMORY_MB}")));
    }
    let wishes = Brought { cpus: new.cpu_count, memory_mb: new.memory_mb, ..Brought::default() };
    let act = AskBuild { name: named.name.clone(), tags: tags.clone(), about: wishes.note().unwrap_or_default() };
    let made = app.runtime.call(nowhere(caller), act).await?.answer().await?;
    Ok(NewTemplateAnswer {
        template_id: made.template.to_string(),
        build_id: made.build.uuid().to_string(),
        public: false,
        names: vec![named.name.clone()],
        tags,
        aliases: vec![named.name],
    })
}

/// Of a template of the tenant's.
async fn found_build(app: &App, caller: &Caller, template: &str, build: &str) -> Result<Build, Refused> {
    let (own, _) = owned(app, &caller.tenant, template).await?;
    let missing = || Refused::not_found(format!("build '{build}' not found"));
    let id: BuildId = build.replace('-', "").parse().map_err(|_| missing())?;
    let found = app.runtime.build(&caller.tenant, id).await.ok();
    found.filter(|found| found.template == own.id).ok_or_else(missing)
}

/// It goes on without whoever asked for it.
async fn begin(
    State(app): State<App>,
    User(caller): User,
    Path((template, build)): Path<(String, String)>,
    Body(asked): Body<BuildStart>,
) -> Result<StatusCode, Refused> {
    caller.require_all_users()?;
    let caller = Caller { subject: Subject::Anybody, ..caller }; // what is built is for all users, whoever this key means
    let found = found_build(&app, &caller, &template, &build).await?;
    steps::check(&asked.steps).map_err(Refused::bad)?;
    let words = [&asked.from_template, &asked.from_image, &asked.start_cmd, &asked.ready_cmd];
    steps::check_words(words).map_err(Refused::bad)?;
    let begun_before = || Refused::new(StatusCode::CONFLICT, format!("build '{build}' was begun before"));
    if found.state != BuildState::Waiting {
        return Err(begun_before());
    }
    let log = Arc::new(BuildLog::new(app.runtime.clock().clone()));
    let seat = app.builds.sit(&caller.tenant, found.id, &log).ok_or_else(|| {
        Refused::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!("{MOST_BUILDS} builds are under way or in the queue: wait until one of them has ended"),
        )
    })?;
    // Before it is begun: a revocation that comes from here on ends it.
    let key = app.runtime.access().life(caller.key).await?;
    let begin = Begin { template: found.template, build: found.id };
    let wishes = Brought::of_note(Some(&found.about));
    let (runtime, by) = (app.runtime.clone(), caller.clone());
    let job = Job { app, caller, build: found, asked, wishes, log, key };
    let (told, begun) = oneshot::channel();
    // What has begun goes on: who asked may be gone before it is known that it has. It gives its seat back once its record has all.
    runtime.clone().in_background(async move {
        let begun = async { runtime.call(nowhere(by), begin).await?.answer().await }.await;
        let is_ours = matches!(begun, Ok(true));
        let _ = told.send(begun);
        if is_ours {
            Box::pin(job.run(seat)).await;
        }
    });
    // Nobody tells where the server ends.
    if begun.await.unwrap_or(Err(Error::Left))? { Ok(StatusCode::ACCEPTED) } else { Err(begun_before()) }
}

async fn status(
    State(app): State<App>,
    Reader(caller): Reader,
    Path((template, build)): Path<(String, String)>,
    query: Result<Query<BuildStatusQuery>, QueryRejection>,
) -> Result<Response, Refused> {
    caller.require_all_users()?;
    let Query(asked) = query.map_err(|error| Refused::bad(error.body_text()))?;
    let (own, _) = owned(&app, &caller.tenant, &template).await?;
    let mut found = found_build(&app, &caller, &template, &build).await?;
    let live = match found.state {
        BuildState::Building => app.builds.log(&caller.tenant, found.id),
        _ => None,
    };
    if live.is_none() && found.state == BuildState::Building {
        // It ended between the two looks: its record has all of it by now.
        found = found_build(&app, &caller, &template, &build).await?;
    }
    let mut memory = app.runtime.list_memory(&caller.tenant);
    // What is kept, and what it is parsed to.
    let kept = found.log.as_ref().map_or(0, String::len);
    if !memory.grow(2 * kept.max(live.as_ref().map_or(0, |log| log.bytes()))) {
        return Err(Error::ListsTooLarge.into());
    }
    let body = move || told::build(&own, &found, live.map(|log| log.entries()), asked);
    Ok(long_answer::json(memory, body).await?)
}

async fn alias(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(alias): Path<String>,
) -> Result<Json<TemplateAlias>, Refused> {
    let named: TemplateRef = alias.parse().map_err(|_| missing(&alias))?;
    if let Some(own) = own(&app, &caller.tenant, &named).await? {
        return Ok(Json(TemplateAlias { template_id: own.id.to_string(), public: false }));
    }
    let found = of_operator(&app, &named.name).await?;
    found.map(|_| Json(TemplateAlias { template_id: named.name, public: true })).ok_or_else(|| missing(&alias))
}

/// A snapshot is one of them, too.
async fn remove(
    State(app): State<App>,
    User(caller): User,
    Path(template): Path<String>,
) -> Result<StatusCode, Refused> {
    let named: TemplateRef = template.parse().map_err(|_| missing(&template))?;
    if let Some(own) = own(&app, &caller.tenant, &named).await? {
        app.runtime.call(nowhere(caller), Remove(own.id)).await?.answer().await?;
        return Ok(StatusCode::NO_CONTENT);
    }
    if snapshots::remove(&app, &caller, &named).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    match of_operator(&app, &named.name).await? {
        Some(_) => Err(Refused::new(
            StatusCode::FORBIDDEN,
            format!("template '{template}' is the operator's: `cabana template remove` removes it"),
        )),
        None => Err(missing(&template)),
    }
}
