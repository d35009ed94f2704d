//! What is counted, as Prometheus reads it. The names are stable: docs/guides/metrics.md.

use std::{
    fmt::{Display, Write as _},
    sync::atomic::Ordering,
};

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use cabana_runtime::{BUCKETS, Role, Runtime, Tenant, Verb};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App,
    auth::Reader,
    error::{Answer, ErrorBody},
    listen,
};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Counters for Prometheus: of the key's tenant, and with a key of the role admin of all and of the server itself.
#[utoipa::path(get, path = "/metrics", tag = "health", responses(
    (status = 200, content_type = "text/plain"),
    (status = "default", body = ErrorBody),
))]
async fn metrics(State(app): State<App>, Reader(caller): Reader) -> Answer<Response> {
    caller.require_all_users()?;
    let runtime = &app.runtime;
    let all = caller.role == Role::Admin;
    let mut page = Page::default();
    page.calls(&runtime.metrics().verbs((!all).then_some(&caller.tenant)));
    page.refusals(&runtime.metrics().refusals((!all).then_some(&caller.tenant)));
    if all {
        let (sandboxes, calls) = runtime.load();
        page.one("cabana_sandboxes_live", "gauge", "Sandboxes that run.", sandboxes);
        page.one("cabana_calls_under_way", "gauge", "Calls that have begun and not ended.", calls);
        page.one("cabana_tasks_live", "gauge", "Commands in the background that run.", runtime.live_tasks());
        let left = "Sandboxes, tasks and calls of the last server that are not taken up yet.";
        page.one("cabana_recovering", "gauge", left, runtime.recovering());
        page.one("cabana_http_connections", "gauge", "Connections of clients.", listen::open_connections());
        let failed = "Keys that opened nothing.";
        page.one("cabana_failed_auth_total", "counter", failed, app.failed_auth.total());
        let rows = runtime.metrics().ledger_rows();
        page.one("cabana_ledger_rows_total", "counter", "Rows written to ledgers.", rows);
        page.retention(runtime);
        let (arrived, failed) = runtime.deliveries();
        page.one("cabana_webhook_deliveries_total", "counter", "Deliveries to webhooks that have arrived.", arrived);
        page.one("cabana_webhook_failures_total", "counter", "Tries to deliver that have failed.", failed);
        if let Some(counts) = &app.options.traced {
            let (sent, dropped) = (counts.sent.load(Ordering::Relaxed), counts.dropped.load(Ordering::Relaxed));
            page.one("cabana_spans_sent_total", "counter", "Spans of traces that the collector has taken.", sent);
            page.one("cabana_spans_dropped_total", "counter", "Spans of traces that were dropped.", dropped);
        }
        if let Some(memory) = resident() {
            page.one("process_resident_memory_bytes", "gauge", "Memory of the server itself.", memory);
        }
    } else {
        let live = runtime.live_sandboxes(&caller.tenant);
        page.one("cabana_sandboxes_live", "gauge", "Sandboxes that run.", live);
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page.0).into_response())
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{text}"); // a text takes whatever is written
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(format_args!("{name} {value}"));
    }

    fn retention(&mut self, runtime: &Runtime) {
        let (removed, passes) = runtime.removed();
        self.one("cabana_gc_passes_total", "counter", "Times that what was kept long enough was removed.", passes);
        self.head("cabana_gc_removed_total", "counter", "What was removed since it was kept long enough, by kind.");
        for (kind, count, _) in &removed {
            self.line(format_args!("cabana_gc_removed_total{{kind=\"{kind}\"}} {count}"));
        }
        self.head("cabana_gc_freed_bytes_total", "counter", "What that took on the disk, by kind.");
        for (kind, _, bytes) in &removed {
            self.line(format_args!("cabana_gc_freed_bytes_total{{kind=\"{kind}\"}} {bytes}"));
        }
        let (room, refused) = runtime.room();
        if let Some(room) = room {
            self.one(
                "cabana_disk_free_bytes",
                "gauge",
                "What the disk of the data directory has left.",
                room.bytes.free,
            );
            if let Some(inodes) = room.inodes {
                self.one("cabana_disk_free_inodes", "gauge", "Files that it can still have.", inodes.free);
            }
            let low = u8::from(room.is_low());
            self.one("cabana_disk_low", "gauge", "Whether that is so little that nothing new is made.", low);
        }
        self.one("cabana_disk_refused_total", "counter", "What was refused since the disk was nearly full.", refused);
    }

    fn refusals(&mut self, refusals: &[(Tenant, &'static str, u64)]) {
        let name = "cabana_calls_refused_total";
        self.head(name, "counter", "Calls that a quota refused.");
        for (tenant, quota, count) in refusals {
            self.line(format_args!("{name}{{tenant=\"{tenant}\",quota=\"{quota}\"}} {count}"));
        }
    }

    /// Tenants and verbs are plain words: nothing in them needs to be quoted.
    fn calls(&mut self, verbs: &[(Tenant, String, Verb)]) {
        self.head("cabana_calls_total", "counter", "Calls that have ended, by verb and outcome.");
        for (tenant, verb, counted) in verbs {
            for (outcome, count) in &counted.outcomes {
                self.line(format_args!(
                    "cabana_calls_total{{tenant=\"{tenant}\",verb=\"{verb}\",outcome=\"{outcome}\"}} {count}"
                ));
            }
        }
        let name = "cabana_call_duration_seconds";
        self.head(name, "histogram", "How long calls took, from their beginning to their record.");
        for (tenant, verb, counted) in verbs {
            let of = format!("tenant=\"{tenant}\",verb=\"{verb}\"");
            let mut below = 0;
            for (end, count) in BUCKETS.iter().zip(&counted.buckets) {
                below += count;
                self.line(format_args!("{name}_bucket{{{of},le=\"{end}\"}} {below}"));
            }
            self.line(format_args!("{name}_bucket{{{of},le=\"+Inf\"}} {}", counted.count));
            self.line(format_args!("{name}_sum{{{of}}} {}", counted.seconds));
            self.line(format_args!("{name}_count{{{of}}} {}", counted.count));
        }
    }
}

fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}
