//! The span handle: started with an explicit parent, ended when it is dropped.

use std::{
    borrow::Cow,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use opentelemetry::{
    Array, Context, InstrumentationScope, KeyValue, StringValue, Value,
    trace::{
        Span as _, SpanBuilder, SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
    },
};
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, SdkTracer, Span as SdkSpan, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use towline_core::TraceContext;

use crate::{Capture, Kind, SpanCounts, SpanRecord, content, export::Pipeline, measured::Measured, names};

/// Longest text of one attribute. The SDK has no such limit, and a batch of 512 spans must fit into the 4 MiB that an
/// OTLP receiver takes.
const MAX_VALUE_BYTES: usize = 4 * 1024;

/// What a process traces with once [`crate::install`] has run.
#[derive(Debug)]
pub(crate) struct Tracing {
    pub tracer: SdkTracer,
    pub scope: InstrumentationScope,
    pub pipeline: Pipeline,
    pub capture: Capture,
    pub ui: Option<String>,
}

static INSTALLED: RwLock<Option<Arc<Tracing>>> = RwLock::new(None);

/// Makes `tracing` the one of this process; false if there is one already.
pub(crate) fn set_installed(tracing: Arc<Tracing>) -> bool {
    let mut slot = INSTALLED.write().unwrap_or_else(PoisonError::into_inner);
    let free = slot.is_none();
    if free {
        *slot = Some(tracing);
    }
    free
}

/// Ends tracing for this process: later spans are no-ops with valid ids.
pub(crate) fn clear_installed() {
    INSTALLED.write().unwrap_or_else(PoisonError::into_inner).take();
}

fn installed() -> Option<Arc<Tracing>> {
    INSTALLED.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A piece of work in a trace. Ends when it is dropped.
///
/// Without an installed exporter, or when the caller asked not to be sampled, it records nothing; its
/// [`context`](Self::context) is valid all the same.
#[derive(Debug)]
pub struct Span {
    context: TraceContext,
    /// The recording span; none if nothing is recorded.
    recording: Option<SdkSpan>,
    /// What the instruments are told when it ends.
    measured: Option<Box<Measured>>,
    capture: Capture,
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(measured) = &self.measured {
            measured.end();
        }
    }
}

impl Span {
    /// Starts a new trace.
    pub fn root(name: impl Into<Cow<'static, str>>, kind: Kind) -> Span {
        start(installed().as_deref(), name.into(), kind, None, None)
    }

    /// Starts a new trace on the word of somebody who is not to choose one: what it said is linked.
    pub fn root_beside(name: impl Into<Cow<'static, str>>, kind: Kind, said: TraceContext) -> Span {
        let mut span = Span::root(name, kind);
        span.link(said, names::link::CALLER);
        span
    }

    /// Starts a span below `parent`, which may live in another process.
    pub fn child(name: impl Into<Cow<'static, str>>, kind: Kind, parent: &TraceContext) -> Span {
        start(installed().as_deref(), name.into(), kind, Some(parent), None)
    }

    /// A span of something that began before it was known to be worth one.
    pub fn child_since(
        name: impl Into<Cow<'static, str>>,
        kind: Kind,
        parent: &TraceContext,
        since: SystemTime,
    ) -> Span {
        start(installed().as_deref(), name.into(), kind, Some(parent), Some(since))
    }

    /// The place of this span in its trace, to be handed on.
    pub fn context(&self) -> TraceContext {
        self.context
    }

    /// Sets an attribute; text beyond 4 KiB is cut.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if self.recording.is_none() && self.measured.is_none() {
            return;
        }
        let value = value.into();
        if let Some(measured) = &mut self.measured {
            measured.note(key, &value);
        }
        let Some(span) = &mut self.recording else { return };
        let (value, cut) = truncated(value);
        span.set_attribute(KeyValue::new(key, value));
        if cut {
            span.set_attribute(KeyValue::new(names::CONTENT_TRUNCATED, true));
        }
    }

    /// Shows what was said, as far as that is asked for: it is made only then.
    pub fn content(&mut self, key: &'static str, content: impl FnOnce() -> serde_json::Value) {
        let Some(span) = &mut self.recording else { return };
        content::attributes(self.capture, key, content).into_iter().for_each(|pair| span.set_attribute(pair));
    }

    /// Records that something happened now.
    pub fn event(&mut self, name: &'static str, attributes: Vec<KeyValue>) {
        if let Some(span) = &mut self.recording {
            span.add_event(name, attributes.into_iter().map(truncated_attribute).collect());
        }
    }

    /// Links to another span; `kind` is one of [`names::link`].
    pub fn link(&mut self, to: TraceContext, kind: &'static str) {
        if let Some(span) = &mut self.recording {
            span.add_link(otel_context(&to, true), vec![KeyValue::new(names::LINK_KIND, kind)]);
        }
    }

    /// Marks the span as failed. `error_type` is of low cardinality, `message` is for people.
    pub fn fail(&mut self, error_type: &str, message: &str) {
        if let Some(measured) = &mut self.measured {
            measured.failed(error_type);
        }
        if let Some(span) = &mut self.recording {
            span.set_attribute(KeyValue::new(names::ERROR_TYPE, error_type.to_owned()));
            span.set_status(Status::error(cut(message).to_owned()));
        }
    }

    /// Ends the span here rather than where it is dropped.
    pub fn end(self) {
        drop(self);
    }
}

fn start(
    tracing: Option<&Tracing>,
    name: Cow<'static, str>,
    kind: Kind,
    parent: Option<&TraceContext>,
    since: Option<SystemTime>,
) -> Span {
    let measured = Measured::of(&name, kind, since);
    let Some(tracing) = tracing else {
        return Span { context: fresh_context(parent), recording: None, measured, capture: Capture::Off };
    };
    let parent_context = match parent {
        Some(parent) => Context::new().with_remote_span_context(otel_context(parent, true)),
        None => Context::new(),
    };
    let mut builder = SpanBuilder::from_name(name).with_kind(kind.into());
    builder.start_time = since;
    let span = tracing.tracer.build_with_context(builder, &parent_context);
    // The SDK hands out an empty context once it has been shut down.
    let context = core_context(span.span_context()).unwrap_or_else(|| fresh_context(parent));
    Span { context, recording: span.is_recording().then_some(span), measured, capture: tracing.capture }
}

fn fresh_context(parent: Option<&TraceContext>) -> TraceContext {
    let ids = RandomIdGenerator::default();
    let trace_id = parent.map_or_else(|| u128::from_be_bytes(ids.new_trace_id().to_bytes()), |parent| parent.trace_id);
    let span_id = u64::from_be_bytes(ids.new_span_id().to_bytes());
    // Zero is not an id, and one draw in 2^64 is zero.
    TraceContext {
        trace_id: trace_id.max(1),
        span_id: span_id.max(1),
        sampled: parent.is_none_or(|parent| parent.sampled),
    }
}

fn core_context(context: &SpanContext) -> Option<TraceContext> {
    context.is_valid().then(|| TraceContext {
        trace_id: u128::from_be_bytes(context.trace_id().to_bytes()),
        span_id: u64::from_be_bytes(context.span_id().to_bytes()),
        sampled: context.is_sampled(),
    })
}

fn otel_context(context: &TraceContext, remote: bool) -> SpanContext {
    let flags = TraceFlags::NOT_SAMPLED.with_sampled(context.sampled);
    SpanContext::new(TraceId::from(context.trace_id), SpanId::from(context.span_id), flags, remote, TraceState::NONE)
}

/// A span that its owner could not end, because its node is gone.
#[derive(Debug, Clone)]
pub struct LostSpan {
    /// Name of the span.
    pub name: String,
    /// Side of the hop.
    pub kind: Kind,
    /// The ids that the lost owner gave it, as the log has them.
    pub context: TraceContext,
    /// The parent's span id; zero for a root.
    pub parent_span_id: u64,
    /// When it began, in milliseconds since 1970.
    pub start_ms: u64,
    /// When its owner was found to be gone.
    pub end_ms: u64,
    /// Further attributes.
    pub attributes: Vec<KeyValue>,
}

/// Exports a lost span under exactly the ids that it had, so that its children have a parent.
pub fn report_lost(span: LostSpan) {
    if let Some(tracing) = installed() {
        report_lost_to(&tracing, span);
    }
}

fn report_lost_to(tracing: &Tracing, span: LostSpan) {
    if !span.context.sampled {
        return;
    }
    let mut attributes =
        vec![KeyValue::new(names::ERROR_TYPE, names::error::NODE_LOST), KeyValue::new(names::SPAN_RECOVERED, true)];
    attributes.extend(span.attributes.into_iter().map(truncated_attribute));
    tracing.pipeline.on_end(SpanData {
        span_context: otel_context(&span.context, false),
        parent_span_id: SpanId::from(span.parent_span_id),
        parent_span_is_remote: false,
        span_kind: span.kind.into(),
        name: span.name.into(),
        start_time: at_ms(span.start_ms),
        end_time: at_ms(span.end_ms.max(span.start_ms)),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::error("the node that ran it is gone"),
        instrumentation_scope: tracing.scope.clone(),
    });
}

/// The recent spans of one trace that this process recorded.
pub fn recent(trace_id: u128) -> Vec<SpanRecord> {
    installed().map(|tracing| tracing.pipeline.recent(trace_id)).unwrap_or_default()
}

/// Where a trace can be looked at, if the settings name a Jaeger UI.
pub fn ui_link(trace_id: u128) -> Option<String> {
    let base = installed()?.ui.clone()?;
    Some(format!("{base}/trace/{trace_id:032x}"))
}

/// What became of the spans of this process.
pub fn counts() -> SpanCounts {
    installed().map(|tracing| tracing.pipeline.counts()).unwrap_or_default()
}

/// Whether spans show what is said, so that it is worth to gather it.
pub fn captures() -> bool {
    installed().is_some_and(|tracing| tracing.capture != Capture::Off)
}

fn at_ms(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

fn truncated_attribute(attribute: KeyValue) -> KeyValue {
    KeyValue::new(attribute.key, truncated(attribute.value).0)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the enum is OpenTelemetry's and may grow")]
fn truncated(value: Value) -> (Value, bool) {
    match value {
        Value::String(text) if text.as_str().len() > MAX_VALUE_BYTES => (cut(text.as_str()).to_owned().into(), true),
        Value::Array(Array::String(texts)) if texts.iter().any(|text| text.as_str().len() > MAX_VALUE_BYTES) => {
            let texts: Vec<StringValue> = texts.iter().map(|text| cut(text.as_str()).to_owned().into()).collect();
            (Value::Array(Array::String(texts)), true)
        }
        whole => (whole, false),
    }
}

/// The longest start of `text` that is within the limit and ends between two characters.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_VALUE_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::{Installation, Settings};

    fn tracing() -> Installation {
        let settings = Settings {
            service_name: "towline".into(),
            node_id: "1".into(),
            node_name: "a".into(),
            cluster: "test".into(),
            ..Settings::default()
        };
        Installation::new(settings).unwrap()
    }

    fn recorded(installation: &Installation, trace_id: u128) -> Vec<SpanRecord> {
        installation.tracing.pipeline.recent(trace_id)
    }

    #[test]
    fn a_child_has_the_trace_and_the_parent_it_was_given() {
        let installation = tracing();
        let tracing = Some(&*installation.tracing);
        let root = start(tracing, "root".into(), Kind::Server, None, None);
        let mut child = start(tracing, "child".into(), Kind::Internal, Some(&root.context()), None);
        child.set(names::AGENT_NAME, "reader");
        child.event(names::event::LEASE_ACQUIRED, vec![KeyValue::new(names::LEASE_EPOCH, 7)]);
        child.link(root.context(), names::link::WOKEN_BY);
        let (root_context, child_context) = (root.context(), child.context());
        child.end();
        root.end();

        let spans = recorded(&installation, root_context.trace_id);
        assert_eq!(spans.len(), 2);
        assert_eq!(spans[0].span_id, child_context.span_id_hex());
        assert_eq!(spans[0].parent_span_id, Some(root_context.span_id_hex()));
        assert_eq!(spans[0].trace_id, root_context.trace_id_hex());
        assert_eq!(spans[0].attributes[names::AGENT_NAME], "reader");
        assert_eq!(spans[0].events[0].attributes[names::LEASE_EPOCH], 7);
        assert_eq!(spans[0].links[0].attributes[names::LINK_KIND], names::link::WOKEN_BY);
        assert_eq!(spans[1].parent_span_id, None);
        assert_eq!((spans[1].kind, spans[1].node.as_str()), (Kind::Server, "a"));
    }

    #[test]
    fn a_caller_that_is_not_sampled_gets_ids_and_no_spans() {
        let installation = tracing();
        let parent = TraceContext { trace_id: 5, span_id: 6, sampled: false };
        let span = start(Some(&installation.tracing), "quiet".into(), Kind::Server, Some(&parent), None);
        let context = span.context();
        span.end();
        assert_eq!(context.trace_id, 5);
        assert_ne!(context.span_id, 0);
        assert!(!context.sampled);
        assert!(recorded(&installation, 5).is_empty());
    }

    #[test]
    fn without_an_exporter_a_span_still_has_valid_ids() {
        let root = start(None, "root".into(), Kind::Internal, None, None);
        let child = start(None, "child".into(), Kind::Internal, Some(&root.context()), None);
        assert_eq!(child.context().trace_id, root.context().trace_id);
        assert_ne!(child.context().span_id, root.context().span_id);
        assert!(child.context().to_string().parse::<TraceContext>().is_ok());
    }

    #[test]
    fn a_lost_span_is_reported_under_the_ids_that_it_had() {
        let installation = tracing();
        let context = TraceContext { trace_id: 0xabc, span_id: 0xdef, sampled: true };
        report_lost_to(
            &installation.tracing,
            LostSpan {
                name: "invoke_agent surveyor".into(),
                kind: Kind::Internal,
                context,
                parent_span_id: 0x12,
                start_ms: 1_000,
                end_ms: 3_500,
                attributes: vec![KeyValue::new(names::LEASE_EPOCH, 4)],
            },
        );
        let spans = recorded(&installation, 0xabc);
        assert_eq!(spans.len(), 1);
        assert_eq!(spans[0].span_id, context.span_id_hex());
        assert_eq!(spans[0].parent_span_id.as_deref(), Some("0000000000000012"));
        assert_eq!((spans[0].start_us, spans[0].end_us), (1_000_000, 3_500_000));
        assert_eq!(spans[0].attributes[names::ERROR_TYPE], "node_lost");
        assert_eq!(spans[0].attributes[names::SPAN_RECOVERED], true);
        assert!(spans[0].error.is_some());
    }

    #[test]
    fn long_text_is_cut_between_characters_and_marked() {
        let installation = tracing();
        let mut span = start(Some(&installation.tracing), "long".into(), Kind::Internal, None, None);
        span.set(names::AGENT_NAME, "ä".repeat(MAX_VALUE_BYTES));
        let trace_id = span.context().trace_id;
        span.end();
        let spans = recorded(&installation, trace_id);
        let text = spans[0].attributes[names::AGENT_NAME].as_str().unwrap();
        assert_eq!(text.len(), MAX_VALUE_BYTES);
        assert_eq!(spans[0].attributes[names::CONTENT_TRUNCATED], true);
    }

    #[test]
    fn a_failed_span_says_what_went_wrong() {
        let installation = tracing();
        let mut span = start(Some(&installation.tracing), "call".into(), Kind::Client, None, None);
        span.fail(names::error::TIMEOUT, "no answer in 2 s");
        let trace_id = span.context().trace_id;
        span.end();
        let spans = recorded(&installation, trace_id);
        assert_eq!(spans[0].error.as_deref(), Some("no answer in 2 s"));
        assert_eq!(spans[0].attributes[names::ERROR_TYPE], "timeout");
    }
}
