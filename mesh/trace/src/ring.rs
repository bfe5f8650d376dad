//! The recent spans of this process, in memory. Bounded in spans and bytes; what goes, goes as a whole trace.
//!
//! They are kept as the SDK made them: most are never asked for, and to make a record of one costs more than to end it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::trace::SpanData;

/// What a ring may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Spans of all traces.
    pub spans: usize,
    /// Estimated bytes of all traces.
    pub bytes: usize,
    /// Spans of one trace, so that one endless task does not push all others out.
    pub spans_per_trace: usize,
}

impl Default for Bounds {
    /// 20,000 spans are some hundreds of tasks; 64 MiB is what a node may spend on looking back.
    fn default() -> Self {
        Self { spans: 20_000, bytes: 64 << 20, spans_per_trace: 5_000 }
    }
}

#[derive(Debug, Default)]
struct Trace {
    spans: Vec<SpanData>,
    bytes: usize,
    last_write: u64,
}

#[derive(Debug, Default)]
struct Inner {
    traces: HashMap<u128, Trace>,
    /// Traces by their last write, the oldest first.
    order: BTreeMap<u64, u128>,
    writes: u64,
    spans: usize,
    bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Ring {
    bounds: Bounds,
    inner: Mutex<Inner>,
}

impl Ring {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, inner: Mutex::default() }
    }

    /// Keeps a span; the traces that were written longest ago make room for it.
    pub(crate) fn push(&self, trace_id: u128, span: SpanData) {
        let weight = weight(&span);
        let mut inner = self.lock();
        let full = inner.traces.get(&trace_id).is_some_and(|trace| trace.spans.len() >= self.bounds.spans_per_trace);
        if full || weight > self.bounds.bytes {
            return;
        }
        inner.keep(trace_id, span, weight);
        while inner.spans > self.bounds.spans || inner.bytes > self.bounds.bytes {
            inner.evict_oldest();
        }
    }

    /// The spans of one trace in the order in which they ended.
    pub(crate) fn trace(&self, trace_id: u128) -> Vec<SpanData> {
        self.lock().traces.get(&trace_id).map(|trace| trace.spans.clone()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn keep(&mut self, trace_id: u128, span: SpanData, weight: usize) {
        self.writes += 1;
        let trace = self.traces.entry(trace_id).or_default();
        self.order.remove(&trace.last_write);
        self.order.insert(self.writes, trace_id);
        trace.last_write = self.writes;
        trace.bytes += weight;
        trace.spans.push(span);
        self.bytes += weight;
        self.spans += 1;
    }

    fn evict_oldest(&mut self) {
        let Some((_, trace_id)) = self.order.pop_first() else { return };
        let Some(trace) = self.traces.remove(&trace_id) else { return };
        self.spans -= trace.spans.len();
        self.bytes -= trace.bytes;
    }
}

/// Roughly what a span takes in memory.
fn weight(span: &SpanData) -> usize {
    const FIXED: usize = 400;
    let more = span.links.iter().map(|link| &link.attributes).chain(span.events.iter().map(|event| &event.attributes));
    FIXED
        + span.name.len()
        + attributes_weight(&span.attributes)
        + more.map(|attributes| FIXED / 4 + attributes_weight(attributes)).sum::<usize>()
}

fn attributes_weight(attributes: &[KeyValue]) -> usize {
    attributes.iter().map(|attribute| size_of::<KeyValue>() + value_weight(&attribute.value)).sum()
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the enum is OpenTelemetry's and may grow")]
fn value_weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.as_str().len(),
        Value::Bool(_) | Value::I64(_) | Value::F64(_) => 0,
        other => other.to_string().len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    use opentelemetry::{
        InstrumentationScope,
        trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
    };

    fn span(trace_id: u128, name: &str) -> SpanData {
        let (trace, span) = (TraceId::from(trace_id), SpanId::from(7));
        SpanData {
            span_context: SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default()),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.to_owned().into(),
            start_time: SystemTime::UNIX_EPOCH,
            end_time: SystemTime::UNIX_EPOCH,
            attributes: vec![KeyValue::new("key", "value")],
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::default(),
        }
    }

    #[test]
    fn a_full_ring_drops_the_trace_that_was_written_longest_ago_as_a_whole() {
        let ring = Ring::new(Bounds { spans: 4, bytes: usize::MAX, spans_per_trace: 10 });
        for (trace, name) in [(1, "a"), (2, "b"), (2, "c"), (1, "d"), (3, "e")] {
            ring.push(trace, span(trace, name));
        }
        assert_eq!(ring.trace(1).len(), 2, "trace 1 was written after trace 2");
        assert_eq!(ring.trace(2).len(), 0);
        assert_eq!(ring.trace(3).len(), 1);
    }

    #[test]
    fn bytes_are_bounded_too() {
        let weight = weight(&span(1, "a"));
        let ring = Ring::new(Bounds { spans: 100, bytes: 2 * weight, spans_per_trace: 10 });
        for trace in 1..=3 {
            ring.push(trace, span(trace, "a"));
        }
        assert!(ring.trace(1).is_empty());
        assert_eq!(ring.trace(3).len(), 1);
    }

    #[test]
    fn one_long_trace_does_not_push_the_others_out() {
        let ring = Ring::new(Bounds { spans: 100, bytes: usize::MAX, spans_per_trace: 3 });
        ring.push(1, span(1, "kept"));
        for _ in 0..50 {
            ring.push(2, span(2, "many"));
        }
        assert_eq!(ring.trace(1).len(), 1);
        assert_eq!(ring.trace(2).len(), 3);
    }
}
