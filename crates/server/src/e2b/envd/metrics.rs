//! `GET /metrics`: what the sandbox uses now.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use cabana_e2b_wire::files::Metrics;
use cabana_runtime::acts::measure::{Measure, Measured};

use super::super::{control::processors, guest::Guest, refused::Refused};
use crate::App;

const MIB: u64 = 1 << 20;

pub(super) async fn serve(app: &App, guest: &Guest) -> Response {
    let measured = match app.runtime.look(guest.ask(), Measure).await {
        Ok((_, measured)) => measured,
        Err(error) => return Refused::from(error).into_response(),
    };
    let Measured { usage, limits, busy } = measured;
    let processors = processors(&limits);
    let memory = limits.memory.unwrap_or(usage.memory);
    Json(Metrics {
        ts: app.runtime.clock().now().as_second(),
        cpu_count: processors,
        cpu_used_pct: (busy * 100.0 / f64::from(processors)).clamp(0.0, 100.0),
        mem_total: memory,
        mem_used: usage.memory,
        mem_cache: 0,
        mem_total_mib: memory / MIB,
        mem_used_mib: usage.memory / MIB,
        disk_used: usage.disk,
        disk_total: limits.disk.unwrap_or(usage.disk),
    })
    .into_response()
}
