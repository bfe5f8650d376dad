//! A finished span as data: what the ring keeps, what nodes send each other, what the operator API shows.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use opentelemetry::{
    Array, KeyValue, Value,
    trace::{SpanId, SpanKind, Status},
};
use opentelemetry_sdk::trace::SpanData;
use serde::{Deserialize, Serialize};

/// Which side of a hop a span is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Kind {
    /// Work inside this process.
    Internal,
    /// The asking side of a hop.
    Client,
    /// The answering side of a hop.
    Server,
}

impl From<Kind> for SpanKind {
    fn from(kind: Kind) -> SpanKind {
        match kind {
            Kind::Internal => SpanKind::Internal,
            Kind::Client => SpanKind::Client,
            Kind::Server => SpanKind::Server,
        }
    }
}

/// A finished span; ids are lower-case hex, times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpanRecord {
    /// 32 hex digits.
    pub trace_id: String,
    /// 16 hex digits.
    pub span_id: String,
    /// 16 hex digits; none on a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<String>,
    /// Name of the span.
    pub name: String,
    /// Side of the hop.
    pub kind: Kind,
    /// `service.name` of the process.
    pub service: String,
    /// Name of the node that recorded it.
    pub node: String,
    /// Start.
    pub start_us: u64,
    /// End.
    pub end_us: u64,
    /// Attributes.
    #[serde(default)]
    pub attributes: BTreeMap<String, serde_json::Value>,
    /// Links to other spans.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkRecord>,
    /// Events inside the span.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventRecord>,
    /// Message of a failed span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A link to another span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// 32 hex digits.
    pub trace_id: String,
    /// 16 hex digits.
    pub span_id: String,
    /// Attributes of the link.
    #[serde(default)]
    pub attributes: BTreeMap<String, serde_json::Value>,
}

/// Something that happened at one moment of a span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Name of the event.
    pub name: String,
    /// Microseconds since 1970.
    pub at_us: u64,
    /// Attributes of the event.
    #[serde(default)]
    pub attributes: BTreeMap<String, serde_json::Value>,
}

impl SpanRecord {
    pub(crate) fn new(span: &SpanData, service: &str, node: &str) -> Self {
        let parent = (span.parent_span_id != SpanId::INVALID).then(|| span.parent_span_id.to_string());
        Self {
            trace_id: span.span_context.trace_id().to_string(),
            span_id: span.span_context.span_id().to_string(),
            parent_span_id: parent,
            name: span.name.to_string(),
            kind: kind_of(&span.span_kind),
            service: service.to_owned(),
            node: node.to_owned(),
            start_us: micros(span.start_time),
            end_us: micros(span.end_time),
            attributes: json_map(&span.attributes),
            links: span.links.iter().map(link_record).collect(),
            events: span.events.iter().map(event_record).collect(),
            error: error_of(span),
        }
    }
}

fn kind_of(kind: &SpanKind) -> Kind {
    match kind {
        SpanKind::Client | SpanKind::Producer => Kind::Client,
        SpanKind::Server | SpanKind::Consumer => Kind::Server,
        SpanKind::Internal => Kind::Internal,
    }
}

fn error_of(span: &SpanData) -> Option<String> {
    match &span.status {
        Status::Error { description } if description.is_empty() => Some("error".to_owned()),
        Status::Error { description } => Some(description.to_string()),
        Status::Unset | Status::Ok => None,
    }
}

fn link_record(link: &opentelemetry::trace::Link) -> LinkRecord {
    LinkRecord {
        trace_id: link.span_context.trace_id().to_string(),
        span_id: link.span_context.span_id().to_string(),
        attributes: json_map(&link.attributes),
    }
}

fn event_record(event: &opentelemetry::trace::Event) -> EventRecord {
    EventRecord {
        name: event.name.to_string(),
        at_us: micros(event.timestamp),
        attributes: json_map(&event.attributes),
    }
}

fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn json_map(attributes: &[KeyValue]) -> BTreeMap<String, serde_json::Value> {
    attributes.iter().map(|attribute| (attribute.key.to_string(), json(&attribute.value))).collect()
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the enum is OpenTelemetry's and may grow")]
fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(value) => (*value).into(),
        Value::I64(value) => (*value).into(),
        Value::F64(value) => (*value).into(),
        Value::String(value) => value.as_str().into(),
        Value::Array(Array::Bool(values)) => values.clone().into(),
        Value::Array(Array::I64(values)) => values.clone().into(),
        Value::Array(Array::F64(values)) => values.clone().into(),
        Value::Array(Array::String(values)) => values.iter().map(|value| value.as_str().to_owned()).collect(),
        other => other.to_string().into(),
    }
}
