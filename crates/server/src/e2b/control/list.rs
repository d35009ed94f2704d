//! Lists of sandboxes, with filters and pages.

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderValue},
};
use cabana_e2b_wire::{
    control::{ListSandboxes, ListedSandbox, Order},
    header, metadata,
};
use cabana_runtime::{Page, SandboxState};

use super::{super::refused::Refused, told};
use crate::{App, auth::Reader};

const MOST: u32 = 100;

type Listed = Result<(HeaderMap, Json<Vec<ListedSandbox>>), Refused>;

pub(super) async fn list_v1(
    state: State<App>,
    reader: Reader,
    query: Result<Query<ListSandboxes>, QueryRejection>,
) -> Listed {
    list(state, reader, query).await
}

pub(super) async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    query: Result<Query<ListSandboxes>, QueryRejection>,
) -> Listed {
    let Query(asked) = query.map_err(|error| Refused::bad(error.body_text()))?;
    let limit = asked.limit.unwrap_or(MOST);
    if !(1..=MOST).contains(&limit) {
        return Err(Refused::bad(format!("limit must be from 1 to {MOST}")));
    }
    let wanted = match &asked.metadata {
        Some(filter) => metadata::read_filter(filter).map_err(|error| Refused::bad(format!("metadata: {error}")))?,
        None => Default::default(),
    };
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let part = app.runtime.sandbox_list(&caller.tenant, None, Page { limit: 1000, after }).await?;
        after = part.last().map(|record| record.cursor()).filter(|_| part.len() == 1000);
        let there = part.iter().filter(|record| record.state != SandboxState::Deleting);
        all.extend(there.filter_map(|record| told::listed(record).ok()));
        if after.is_none() {
            break;
        }
    }
    all.retain(|sandbox| {
        asked.state.contain(sandbox.state)
            && wanted.iter().all(|(name, value)| sandbox.metadata.get(name) == Some(value))
            && asked.template.as_ref().is_none_or(|template| sandbox.template_id == *template)
            && asked.started_after.is_none_or(|after| sandbox.started_at >= after)
    });
    all.sort_by(|a, b| (a.started_at, a.sandbox_id.as_str()).cmp(&(b.started_at, b.sandbox_id.as_str())));
    if asked.order == Order::Desc {
        all.reverse();
    }
    let from = match &asked.next_token {
        None => 0,
        // After the one that the last page ended with; one that has gone since leaves no gap.
        Some(token) => place_of(token, &all, asked.order).ok_or_else(|| Refused::bad("nextToken is none of ours"))?,
    };
    let more = all.len() > from + limit as usize;
    let page: Vec<_> = all.into_iter().skip(from).take(limit as usize).collect();
    let mut headers = HeaderMap::new();
    if let Some(last) = page.last().filter(|_| more) {
        let token = format!("{}.{}", last.started_at.as_microsecond(), last.sandbox_id.as_str());
        if let Ok(token) = HeaderValue::from_str(&token) {
            headers.insert(header::NEXT_TOKEN, token);
        }
    }
    Ok((headers, Json(page)))
}

fn place_of(token: &str, all: &[ListedSandbox], order: Order) -> Option<usize> {
    let (started, id) = token.split_once('.')?;
    let last: (i64, &str) = (started.parse().ok()?, id);
    let is_before = |sandbox: &ListedSandbox| {
        let this = (sandbox.started_at.as_microsecond(), sandbox.sandbox_id.as_str());
        if order == Order::Desc { this >= last } else { this <= last }
    };
    Some(all.iter().take_while(|sandbox| is_before(sandbox)).count())
}
