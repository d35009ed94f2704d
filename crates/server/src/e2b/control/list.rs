//! Lists of sandboxes, with filters and pages.

use std::{collections::BTreeMap, sync::LazyLock};

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::HeaderValue,
    response::Response,
};
use cabana_e2b_wire::{
    control::{ListSandboxes, ListedSandbox, Order},
    header, metadata,
};
use cabana_runtime::{Begun, BegunPage, Error, MemoryCharge, Record, SandboxState, Time, Turn, Turns};

use super::{super::refused::Refused, told};
use crate::{App, auth::Reader, long_answer, specs::Spec};

const MOST: u32 = 100;
/// Of those who read a part of a list, from the store until it was looked through: it has megabytes, and takes a thread.
static READERS: LazyLock<Turns> = LazyLock::new(|| Turns::new(2, 4));

pub(super) async fn list_v1(
    state: State<App>,
    reader: Reader,
    query: Result<Query<ListSandboxes>, QueryRejection>,
) -> Result<Response, Refused> {
    list(state, reader, query).await
}

pub(super) async fn list(
    State(app): State<App>,
    Reader(caller): Reader,
    query: Result<Query<ListSandboxes>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(asked) = query.map_err(|error| Refused::bad(error.body_text()))?;
    let limit = asked.limit.unwrap_or(MOST);
    if !(1..=MOST).contains(&limit) {
        return Err(Refused::bad(format!("limit must be from 1 to {MOST}")));
    }
    let metadata = match &asked.metadata {
        Some(filter) => metadata::read_filter(filter).map_err(|error| Refused::bad(format!("metadata: {error}")))?,
        None => Default::default(),
    };
    let is_asked = |state: &SandboxState| *state != SandboxState::Deleting && asked.state.contain(told::state(*state));
    // After the one that the last page ended with; one that has gone since leaves no gap.
    let after = asked.next_token.as_deref().map(|token| read_token(token).ok_or_else(not_ours)).transpose()?;
    let mut next = Some(BegunPage {
        limit: limit + 1, // whether there are more
        after,
        newest_first: asked.order == Order::Desc,
        since: asked.started_after,
        states: SandboxState::ALL.iter().copied().filter(is_asked).collect(),
    });
    let filter = Filter { metadata: metadata.into_iter().collect(), template: asked.template };
    let (most, mut page) = (limit as usize, Vec::new());
    let mut memory = app.runtime.list_memory(&caller.tenant);
    // A part at a time: what another front made, and what is not asked for, is not known before it is read.
    while let Some(part) = next.take().filter(|_| page.len() <= most) {
        // The store has a queue for each tenant: whoever waits in its own has no turn that others need.
        let turn = READERS.of_tenant(&caller.tenant).await;
        let records = app.runtime.sandboxes_by_start(&caller, part.clone()).await?;
        let mut of_records = app.runtime.list_memory(&caller.tenant);
        long_answer::charge(&mut of_records, &records)?;
        let turn = READERS.of_all(turn).await;
        next = part.next(&records);
        let chosen = filter.clone().chosen(records, most + 1 - page.len(), (turn, of_records)).await?;
        // Held while the next part waits for its turn.
        if !memory.grow(chosen.iter().map(size).sum()) {
            return Err(Error::ListsTooLarge.into());
        }
        page.extend(chosen);
    }
    let more = page.len() > most;
    page.truncate(most);
    let token = page.last().filter(|_| more).map(write_token);
    let mut response = long_answer::json(memory, move || page).await?;
    if let Some(Ok(token)) = token.map(|token| HeaderValue::from_str(&token)) {
        response.headers_mut().insert(header::NEXT_TOKEN, token);
    }
    Ok(response)
}

/// What only the whole of a record says.
#[derive(Clone)]
struct Filter {
    metadata: BTreeMap<String, String>,
    template: Option<String>,
}

impl Filter {
    /// Off the workers: records may be long, and each is parsed.
    async fn chosen(
        self,
        records: Vec<Record>,
        most: usize,
        held: (Turn, MemoryCharge),
    ) -> Result<Vec<ListedSandbox>, Refused> {
        let choose = move || {
            let _held = held; // also where the client has gone
            let listed = records.iter().filter_map(|record| told::listed(record, &Spec::parse(&record.spec).ok()?));
            listed.filter(|sandbox| self.admits(sandbox)).take(most).collect()
        };
        let chosen = tokio::task::spawn_blocking(choose).await;
        Ok(chosen.map_err(|error| Error::from(cabana_sandbox::Error::failed("making a list", error)))?)
    }

    fn admits(&self, sandbox: &ListedSandbox) -> bool {
        self.metadata.iter().all(|(name, value)| sandbox.metadata.get(name) == Some(value))
            && self.template.as_ref().is_none_or(|template| sandbox.template_id == *template)
    }
}

/// About how many bytes it takes.
fn size(sandbox: &ListedSandbox) -> usize {
    let metadata: usize = sandbox.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    size_of::<ListedSandbox>() + 2 * sandbox.template_id.len() + metadata
}

fn not_ours() -> Refused {
    Refused::bad("nextToken is none of ours")
}

fn write_token(last: &ListedSandbox) -> String {
    format!("{}.{}", last.started_at.as_microsecond(), last.sandbox_id.as_str())
}

fn read_token(token: &str) -> Option<Begun> {
    let (at, id) = token.split_once('.')?;
    Some(Begun { at: Time::from_microsecond(at.parse().ok()?).ok()?, id: id.to_owned() })
}
