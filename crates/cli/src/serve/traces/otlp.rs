//! Spans as a collector reads them: OTLP in JSON, where ids are hexadecimal and numbers of 64 bits are texts.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

/// Which span of which trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) trace: u128,
    pub(super) span: u64,
    /// Whether whoever began the trace wants it to be kept.
    pub(super) sampled: bool,
}

impl Context {
    /// From the header `traceparent` of W3C Trace Context. What a later version adds at its end is left aside.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, trace) = (hex(parts.next()?, 2)?, hex(parts.next()?, 32)?);
        let (span, flags) = (hex(parts.next()?, 16)?, hex(parts.next()?, 2)?);
        let whole = version != 0xff && (version != 0 || parts.next().is_none()) && trace != 0 && span != 0;
        whole.then_some(Self { trace, span: u64::try_from(span).ok()?, sampled: flags & 1 == 1 })
    }
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let plain = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| u128::from_str_radix(text, 16).ok())?
}

/// One that has ended.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Span {
    #[serde(rename = "traceId", serialize_with = "trace_id")]
    pub(super) trace: u128,
    #[serde(rename = "spanId", serialize_with = "span_id")]
    pub(super) id: u64,
    #[serde(rename = "parentSpanId", serialize_with = "maybe_span_id", skip_serializing_if = "Option::is_none")]
    pub(super) parent: Option<u64>,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    #[serde(rename = "startTimeUnixNano", serialize_with = "nanoseconds")]
    pub(super) begun: SystemTime,
    #[serde(rename = "endTimeUnixNano", serialize_with = "nanoseconds")]
    pub(super) ended: SystemTime,
    pub(super) attributes: Vec<Attribute>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) links: Vec<Link>,
    pub(super) status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Internal = 1,
    Server = 2,
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(*self as u8)
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Attribute {
    pub(super) key: &'static str,
    pub(super) value: Value,
}

#[derive(Debug, Serialize)]
pub(super) enum Value {
    #[serde(rename = "stringValue")]
    Text(String),
    #[serde(rename = "intValue", serialize_with = "number")]
    Number(i64),
    #[serde(rename = "boolValue")]
    Switch(bool),
}

/// Of a span that goes on by itself, to the one that began it.
#[derive(Debug, Serialize)]
pub(super) struct Link {
    #[serde(rename = "traceId", serialize_with = "trace_id")]
    pub(super) trace: u128,
    #[serde(rename = "spanId", serialize_with = "span_id")]
    pub(super) span: u64,
}

/// 0 where nothing is said, 2 for an error.
#[derive(Debug, Default, Serialize)]
pub(super) struct Status {
    pub(super) code: u8,
}

/// The body of a request.
pub(super) fn request(spans: &[Span]) -> Vec<u8> {
    let text = |key, value: &str| Attribute { key, value: Value::Text(value.to_owned()) };
    let version = env!("CARGO_PKG_VERSION");
    let attributes = [text("service.name", "cabana"), text("service.version", version)];
    let scope = Scope { name: "cabana", version };
    let of_resource = ResourceSpans { resource: Resource { attributes }, scope_spans: [ScopeSpans { scope, spans }] };
    // Only what cannot be written as JSON fails, and of that there is nothing here.
    serde_json::to_vec(&Request { resource_spans: [of_resource] }).unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: Resource,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Serialize)]
struct Resource {
    attributes: [Attribute; 2],
}

#[derive(Serialize)]
struct ScopeSpans<'a> {
    scope: Scope,
    spans: &'a [Span],
}

#[derive(Serialize)]
struct Scope {
    name: &'static str,
    version: &'static str,
}

fn trace_id<S: Serializer>(id: &u128, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{id:032x}"))
}

fn span_id<S: Serializer>(id: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{id:016x}"))
}

fn maybe_span_id<S: Serializer>(id: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    span_id(&id.unwrap_or_default(), to)
}

fn number<S: Serializer>(number: &i64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(number)
}

fn nanoseconds<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_the_standard_says() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = Context::parse(good).unwrap();
        assert_eq!(context.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((context.span, context.sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert!(!Context::parse(&good.replace("-01", "-00")).unwrap().sampled);
        assert_eq!(Context::parse(&good.replace("00-4", "01-4")), Some(context));
        assert_eq!(Context::parse(&(good.replace("00-4", "cc-4") + "-more")), Some(context));
        let zero = "0".repeat(32);
        let bad = [
            good.to_uppercase(),
            good.replace("00-4", "ff-4"),
            good.replace("4bf92f3577b34da6a3ce929d0e0e4736", &zero),
            good.replace("00f067aa0ba902b7", &zero[..16]),
            format!("{good}-more"),
            good[..54].to_owned(),
            good.replace('-', "_"),
            good.replace("00f0", "+0f0"),
            String::new(),
        ];
        for text in bad {
            assert_eq!(Context::parse(&text), None, "{text}");
        }
    }
}
