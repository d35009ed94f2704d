//! Traces for a collector of OpenTelemetry, where a setting names one.
//!
//! Spans that have ended go into a queue, and a task sends them as OTLP over HTTP, in JSON. Nobody waits for it: what finds the
//! queue full, or a collector that does not answer, is dropped and counted. Without the setting there is no layer, so that a
//! span costs a look at a flag.
//!
//! Written here and not taken from the SDK: that is eleven crates, the fronts would have to know them, and it tells nobody how
//! much it has dropped.

mod layer;
mod otlp;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use cabana_model::Code;
use cabana_server::SpanCounts;
use reqwest::{Client, Url, header, redirect::Policy};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(super) use self::layer::Spans;
use self::otlp::Span;
use crate::failure::Failure;

/// As many spans wait to be sent.
const WAIT: usize = 4096;
/// As many are sent at once, or what came within this time.
const BATCH: usize = 512;
const GATHERED: Duration = Duration::from_secs(1);
/// Of a collector, for one answer.
const ANSWER: Duration = Duration::from_secs(5);

pub(super) struct Traces {
    queue: mpsc::Sender<Span>,
    counts: Arc<SpanCounts>,
    ending: CancellationToken,
    tasks: TaskTracker,
}

impl Traces {
    pub(super) fn to(collector: Url) -> Result<Self, Failure> {
        // Another part of the process may have been first, with the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().timeout(ANSWER).redirect(Policy::none()).no_proxy().build();
        let client = client.map_err(|error| Failure::new(Code::Internal, format!("HTTP: {error}")))?;
        let (queue, spans) = mpsc::channel(WAIT);
        let traces =
            Self { queue, counts: Arc::default(), ending: CancellationToken::new(), tasks: TaskTracker::new() };
        let sender = Sender { client, collector, spans, counts: traces.counts.clone(), silent: false };
        traces.tasks.spawn(sender.run(traces.ending.clone()));
        Ok(traces)
    }

    pub(super) fn layer(&self) -> Spans {
        Spans::new(self.queue.clone(), self.counts.clone())
    }

    pub(super) fn counts(&self) -> Arc<SpanCounts> {
        self.counts.clone()
    }

    /// Sends what is there still, unless the collector lets it wait.
    pub(super) async fn close(self) {
        self.ending.cancel();
        self.tasks.close();
        let _ = timeout(ANSWER, self.tasks.wait()).await;
    }
}

struct Sender {
    client: Client,
    collector: Url,
    spans: mpsc::Receiver<Span>,
    counts: Arc<SpanCounts>,
    /// Whether the collector took nothing the last time: that is said once.
    silent: bool,
}

impl Sender {
    async fn run(mut self, ending: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(Some(first)) = ending.run_until_cancelled(self.spans.recv()).await {
            batch.push(first);
            let gather = async {
                while batch.len() < BATCH
                    && let Some(span) = self.spans.recv().await
                {
                    batch.push(span);
                }
            };
            let _ = timeout(GATHERED, ending.run_until_cancelled(gather)).await;
            self.send(&mut batch).await;
        }
        while let Ok(span) = self.spans.try_recv() {
            batch.push(span);
            if batch.len() == BATCH {
                self.send(&mut batch).await;
            }
        }
        self.send(&mut batch).await;
    }

    async fn send(&mut self, batch: &mut Vec<Span>) {
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        let body = otlp::request(batch);
        batch.clear();
        let request = self.client.post(self.collector.clone()).header(header::CONTENT_TYPE, "application/json");
        let sent = request.body(body).send().await.and_then(reqwest::Response::error_for_status);
        match sent {
            Ok(_) => {
                self.silent = false;
                self.counts.sent.fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => {
                self.counts.dropped.fetch_add(count, Ordering::Relaxed);
                if !self.silent {
                    let error = error.without_url(); // it may hold a password
                    tracing::warn!(%error, "the collector takes no traces: they are dropped until it does");
                }
                self.silent = true;
            }
        }
    }
}
