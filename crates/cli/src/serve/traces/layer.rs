//! From what the code says of its spans to spans of a trace.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::SystemTime,
};

use cabana_server::SpanCounts;
use tokio::sync::mpsc;
use tracing::{
    Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    filter::filter_fn,
    layer::Context as Around,
    registry::{LookupSpan, SpanRef},
};

use super::otlp::{Attribute, Context, Kind, Link, Span, Status, Value};

/// The header of the client. It becomes the parent, and no attribute.
const PARENT: &str = "traceparent";
/// What failed has it.
const ERROR: &str = "error.type";
/// Of a text: whoever asks for something decides how long it is.
const LONGEST: usize = 512;

/// Sees each span that is ours begin and end.
pub(in crate::serve) struct Spans {
    queue: mpsc::Sender<Span>,
    counts: Arc<SpanCounts>,
}

impl Spans {
    pub(super) fn new(queue: mpsc::Sender<Span>, counts: Arc<SpanCounts>) -> Self {
        Self { queue, counts }
    }

    pub(in crate::serve) fn filtered<S>(self) -> impl Layer<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let ours = |data: &Metadata<'_>| {
            data.is_span() && *data.level() <= Level::DEBUG && data.target().starts_with("cabana")
        };
        self.with_filter(filter_fn(ours).with_max_level_hint(Level::DEBUG))
    }
}

/// One that goes on. It is kept beside the span.
struct Open {
    context: Context,
    parent: Option<u64>,
    begun: SystemTime,
    /// When it was last worked at: a span whose children go on is closed only with the last of them.
    left: SystemTime,
    fields: Fields,
    links: Vec<Link>,
}

#[derive(Default)]
struct Fields {
    attributes: Vec<Attribute>,
    parent: Option<Context>,
    failed: bool,
}

fn drawn<const N: usize>() -> Option<[u8; N]> {
    let mut drawn = [0; N];
    rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty()).ok().map(|_| drawn)
}

fn context_of<'a, S: LookupSpan<'a>>(span: &SpanRef<'a, S>) -> Option<Context> {
    span.extensions().get::<Open>().map(|open| open.context)
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, around: Around<'_, S>) {
        let Some(span) = around.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let parent = fields.parent.or_else(|| span.parent().and_then(|parent| context_of(&parent)));
        let trace = parent.map(|parent| parent.trace).or_else(|| drawn().map(u128::from_be_bytes));
        let (Some(trace), Some(own)) = (trace, drawn()) else { return };
        let sampled = parent.is_none_or(|parent| parent.sampled);
        let context = Context { trace, span: u64::from_be_bytes(own), sampled };
        let (parent, begun) = (parent.map(|parent| parent.span), SystemTime::now());
        span.extensions_mut().insert(Open { context, parent, begun, left: begun, fields, links: Vec::new() });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, around: Around<'_, S>) {
        let Some(span) = around.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            values.record(&mut open.fields);
        }
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, around: Around<'_, S>) {
        let first = around.span(follows).and_then(|first| context_of(&first));
        let (Some(first), Some(span)) = (first, around.span(id)) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            open.links.push(Link { trace: first.trace, span: first.span });
        }
    }

    fn on_exit(&self, id: &Id, around: Around<'_, S>) {
        let Some(span) = around.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            open.left = SystemTime::now();
        }
    }

    fn on_close(&self, id: Id, around: Around<'_, S>) {
        let Some(span) = around.span(&id) else { return };
        let Some(Open { context, parent, begun, left, fields, links }) = span.extensions_mut().remove() else { return };
        if !context.sampled {
            return;
        }
        let name = span.name();
        let ended = Span {
            trace: context.trace,
            id: context.span,
            parent,
            name,
            kind: if name == "request" { Kind::Server } else { Kind::Internal },
            begun,
            ended: left.max(begun),
            attributes: fields.attributes,
            links,
            status: Status { code: if fields.failed { 2 } else { 0 } },
        };
        if self.queue.try_send(ended).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        self.failed |= field.name() == ERROR;
        self.attributes.push(Attribute { key: field.name(), value });
    }

    fn text(&mut self, field: &Field, mut text: String) {
        if field.name() == PARENT {
            self.parent = Context::parse(&text);
            return;
        }
        text.truncate(text.floor_char_boundary(LONGEST));
        self.add(field, Value::Text(text));
    }
}

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Value::Number(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Value::Number(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::Switch(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, format!("{value:?}"));
    }
}
