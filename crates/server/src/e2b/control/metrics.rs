//! What sandboxes use, and did while somebody looked.

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use cabana_e2b_wire::control::{MetricsQuery, SandboxMetric, SandboxesWithMetrics};
use cabana_runtime::Sample;
use cabana_sandbox::Limits;
use futures_util::{StreamExt, stream};
use serde::Deserialize;

use super::{super::refused::Refused, one::One};
use crate::{App, auth::Reader, extract::Path};

/// Of one question about several.
const MOST: usize = 100;
/// Measured at a time.
const TOGETHER: usize = 8;

/// `GET /sandboxes/{id}/metrics`. Its bounds are whole seconds, and both are inside.
pub(super) async fn of_one(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
    query: Result<Query<MetricsQuery>, QueryRejection>,
) -> Result<Json<Vec<SandboxMetric>>, Refused> {
    let Query(MetricsQuery { start, end }) = query.map_err(|error| Refused::bad(error.body_text()))?;
    if let (Some(start), Some(end)) = (start, end)
        && start > end
    {
        return Err(Refused::bad("start must not be later than end"));
    }
    let one = One::find(&app, caller, &sandbox).await?;
    let mut metrics = of(&app, &one).await?;
    metrics.retain(|metric| {
        start.is_none_or(|start| metric.timestamp_unix >= start) && end.is_none_or(|end| metric.timestamp_unix <= end)
    });
    Ok(Json(metrics))
}

#[derive(Deserialize)]
pub(super) struct Several {
    /// Joined by commas.
    sandbox_ids: String,
}

/// `GET /sandboxes/metrics`: the last of each. What is not there is left out, whosever it is.
pub(super) async fn of_several(
    State(app): State<App>,
    Reader(caller): Reader,
    query: Result<Query<Several>, QueryRejection>,
) -> Result<Json<SandboxesWithMetrics>, Refused> {
    let Query(Several { sandbox_ids }) = query.map_err(|error| Refused::bad(error.body_text()))?;
    let ids: Vec<&str> = sandbox_ids.split(',').filter(|id| !id.is_empty()).collect();
    if ids.len() > MOST {
        return Err(Refused::bad(format!(
            "sandbox_ids names {} sandboxes: ask for at most {MOST} at a time",
            ids.len()
        )));
    }
    let (app, caller) = (&app, &caller);
    let last = async |id: &str| {
        let one = One::find(app, caller.clone(), id).await.ok()?;
        Some((id.to_owned(), *of(app, &one).await.ok()?.last()?))
    };
    let sandboxes = stream::iter(ids).map(last).buffer_unordered(TOGETHER).filter_map(std::future::ready).collect();
    Ok(Json(SandboxesWithMetrics { sandboxes: sandboxes.await }))
}

async fn of(app: &App, one: &One) -> Result<Vec<SandboxMetric>, Refused> {
    let samples = app.runtime.samples(&one.caller, &one.record.id).await?;
    Ok(samples.iter().map(|sample| told(sample, &one.spec.wanted.sandbox.limits)).collect())
}

fn told(sample: &Sample, limits: &Limits) -> SandboxMetric {
    let Sample { at, usage, busy } = sample;
    let processors = processors(limits);
    SandboxMetric {
        timestamp: *at,
        timestamp_unix: at.as_second(),
        cpu_count: processors,
        cpu_used_pct: (busy * 100.0 / f64::from(processors)).clamp(0.0, 100.0),
        mem_used: usage.memory,
        mem_total: limits.memory.unwrap_or(usage.memory),
        mem_cache: 0,
        disk_used: usage.disk,
        disk_total: limits.disk.unwrap_or(usage.disk),
    }
}

/// As many as it may keep busy: all of them, where there is no limit.
pub(in super::super) fn processors(limits: &Limits) -> u32 {
    let all = std::thread::available_parallelism().map_or(1, |processors| processors.get() as u32);
    limits.cpu_milli.map_or(all, |milli| milli.div_ceil(1000)).max(1)
}
