//! Where spans go: the ring always, a collector when one is configured.
//!
//! The exporter lives in a runtime of its own, with one worker: a flush then never waits for the application's
//! runtime, and nothing hangs when the collector is gone (at most [`SHUTDOWN_LIMIT`]).

use std::{sync::Arc, time::Duration};

use opentelemetry::{Context, InstrumentationScope, KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{
        BatchConfig, BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, Span as SdkSpan, SpanData,
        SpanProcessor,
    },
};
use tokio::runtime::Runtime;

use crate::{
    Capture, Protocol, SpanCounts, SpanRecord,
    gate::Gate,
    metrics::push::Pusher,
    names,
    otlp::{Signal, Target, env},
    ring::{Bounds, Ring},
    span::{Tracing, clear_installed, set_installed},
};

/// Spans wait this long for company. What waits is lost with a node that is killed, so it is not long.
const BATCH_DELAY: Duration = Duration::from_millis(200);
/// A burst of a whole demo fits; what does not fit is dropped and counted.
const QUEUE_SPANS: usize = 16_384;
/// Spans that the SDK's queue has room for beyond those that wait by our count, since the two are not counted at the same moment.
const SPARE_SPANS: usize = 1_024;
/// 512 spans of ordinary size stay well below the 4 MiB of an OTLP receiver.
const BATCH_SPANS: usize = 512;
/// The same where content is captured, which makes a span up to 16 KiB.
const BATCH_SPANS_WITH_CONTENT: usize = 128;
/// The last flush may take this long, so that a dead collector never keeps a process alive.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(3);
/// The SDK's instrumentation scope of all our spans.
const SCOPE: &str = "towline";

/// Who this process is, and where its spans go.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// `service.name`; `OTEL_SERVICE_NAME` overrides it.
    pub service_name: String,
    /// Numeric id of the node, as text; empty in a command-line client.
    pub node_id: String,
    /// Name of the node.
    pub node_name: String,
    /// Name of the cluster; empty in a command-line client.
    pub cluster: String,
    /// OTLP endpoint, with scheme. None: `OTEL_EXPORTER_OTLP_ENDPOINT` decides, else there is no export.
    pub otlp: Option<String>,
    /// How spans travel there. None: `OTEL_EXPORTER_OTLP_PROTOCOL` decides, else gRPC.
    pub protocol: Option<Protocol>,
    /// Headers of each export, beside those of `OTEL_EXPORTER_OTLP_HEADERS`.
    pub headers: Vec<(String, String)>,
    /// The authority of the endpoint, as PEM. None: `OTEL_EXPORTER_OTLP_CERTIFICATE` names a file of it.
    pub ca: Option<Vec<u8>>,
    /// Which part of the traces that begin here is sampled, from 0 to 1; a caller's decision is kept. None:
    /// `OTEL_TRACES_SAMPLER` decides, else all.
    pub sample: Option<f64>,
    /// How much of what people and models say goes on spans.
    pub capture: Capture,
    /// Whether metrics are pushed to the endpoint as well.
    pub push_metrics: bool,
    /// Base URL of a Jaeger UI that shows the traces, without a slash at the end.
    pub ui: Option<String>,
}

/// Why tracing could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A second call in one process.
    #[error("tracing is already installed in this process")]
    AlreadyInstalled,
    /// The endpoint has no scheme: the SDK would silently take it for https.
    #[error("OTLP endpoint {0:?} has no scheme: write http://{0}")]
    NoScheme(String),
    /// Nothing that spans can be sent to.
    #[error("OTLP endpoint {0:?}: only http:// and https:// endpoints are supported")]
    NotHttp(String),
    /// Not a protocol.
    #[error("OTEL_EXPORTER_OTLP_PROTOCOL: {0}")]
    Protocol(String),
    /// The authority of the collector cannot be read.
    #[error("read the authority of the collector from {path}")]
    Ca {
        /// Which file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The exporter's runtime did not start.
    #[error("start the telemetry runtime")]
    Runtime(#[source] std::io::Error),
    /// The endpoint cannot be used.
    #[error("OTLP endpoint {endpoint}: {reason}")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The exporter could not be built.
    #[error("build the OTLP exporter for {endpoint}")]
    Exporter {
        /// The endpoint.
        endpoint: String,
        /// The cause.
        #[source]
        source: ExporterBuildError,
    },
}

/// Starts tracing for this process. The guard ends it: drop it after the application's runtime is gone.
///
/// # Errors
/// When it is installed already, or the exporter cannot be built.
pub fn install(settings: Settings) -> Result<Guard, InstallError> {
    let installation = Installation::new(settings)?;
    if !set_installed(Arc::clone(&installation.tracing)) {
        return Err(InstallError::AlreadyInstalled);
    }
    Ok(Guard { _installation: installation })
}

/// Keeps tracing alive; when it is dropped, spans are flushed and later ones are no-ops.
#[derive(Debug)]
#[must_use = "tracing ends when the guard is dropped"]
pub struct Guard {
    _installation: Installation,
}

impl Drop for Guard {
    fn drop(&mut self) {
        clear_installed();
    }
}

/// Provider, ring and exporter runtime; flushes when dropped.
#[derive(Debug)]
pub(crate) struct Installation {
    pub tracing: Arc<Tracing>,
    provider: SdkTracerProvider,
    pusher: Option<Pusher>,
    runtime: Option<Runtime>,
}

impl Installation {
    pub(crate) fn new(settings: Settings) -> Result<Self, InstallError> {
        let service = env("OTEL_SERVICE_NAME").unwrap_or_else(|| settings.service_name.clone());
        let resource = resource(&settings, &service);
        let queue = env("OTEL_BSP_MAX_QUEUE_SIZE").and_then(|text| text.parse().ok()).unwrap_or(QUEUE_SPANS);
        let gate = Arc::new(Gate::of(queue));
        let capture = if captures_by_environment() { Capture::Full } else { settings.capture };
        let (spans, metrics) = (Target::of(&settings, Signal::Traces)?, Target::of(&settings, Signal::Metrics)?);
        let runtime = (spans.is_some() || metrics.is_some()).then(start_runtime).transpose()?;
        // Channels take the runtime that they are built in.
        let entered = runtime.as_ref().map(Runtime::enter);
        let batch = spans.map(|target| batches(target, batch_config(capture, queue), &gate, &resource)).transpose()?;
        let pusher = metrics.map(|target| Pusher::start(target, &resource)).transpose()?;
        drop(entered);
        let ring = Ring::new(Bounds::default());
        let pipeline = Pipeline(Arc::new(Stages { ring, batch, gate, service, node: settings.node_name }));
        let builder = SdkTracerProvider::builder().with_span_processor(pipeline.clone()).with_resource(resource);
        let provider = match settings.sample {
            Some(ratio) => {
                builder.with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)))).build()
            }
            None => builder.build(),
        };
        let scope = InstrumentationScope::builder(SCOPE).with_version(env!("CARGO_PKG_VERSION")).build();
        let tracer = provider.tracer_with_scope(scope.clone());
        Ok(Self {
            tracing: Arc::new(Tracing { tracer, scope, pipeline, capture, ui: settings.ui }),
            provider,
            pusher,
            runtime,
        })
    }
}

/// The variable of the GenAI conventions, for who sets it for all programs.
fn captures_by_environment() -> bool {
    env("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT").is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

impl Drop for Installation {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown_with_timeout(SHUTDOWN_LIMIT) {
            tracing::debug!(%error, "last export of spans");
        }
        drop(self.pusher.take());
        // Never waits: the application may drop the guard inside a runtime of its own.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn resource(settings: &Settings, service: &str) -> Resource {
    let node = [
        (names::SERVICE_INSTANCE_ID, &settings.node_id),
        (names::NODE_ID, &settings.node_id),
        (names::NODE_NAME, &settings.node_name),
        (names::CLUSTER_ID, &settings.cluster),
    ];
    let node = node.into_iter().filter(|(_, value)| !value.is_empty());
    Resource::builder()
        .with_service_name(service.to_owned())
        .with_attribute(KeyValue::new(names::SERVICE_VERSION, env!("CARGO_PKG_VERSION")))
        .with_attributes(node.map(|(key, value)| KeyValue::new(key, value.clone())))
        .build()
}

fn start_runtime() -> Result<Runtime, InstallError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).thread_name("towline-telemetry").enable_all().build().map_err(InstallError::Runtime)
}

/// The way of the spans. To be called inside the runtime that sends.
fn batches(
    target: Target,
    config: BatchConfig,
    gate: &Arc<Gate>,
    resource: &Resource,
) -> Result<BatchSpanProcessor, InstallError> {
    let exporter = target.exporter(Arc::clone(gate))?;
    let mut batch = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    batch.set_resource(resource);
    Ok(batch)
}

/// Our defaults, where `OTEL_BSP_*` says nothing: what is set in code would win over the environment. The queue is
/// bounded by the gate.
fn batch_config(capture: Capture, queue: usize) -> BatchConfig {
    let mut config = BatchConfigBuilder::default().with_max_queue_size(queue + SPARE_SPANS);
    if env("OTEL_BSP_SCHEDULE_DELAY").is_none() {
        config = config.with_scheduled_delay(BATCH_DELAY);
    }
    if env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").is_none() {
        let shows_content = matches!(capture, Capture::Redacted | Capture::Full);
        config = config.with_max_export_batch_size(if shows_content { BATCH_SPANS_WITH_CONTENT } else { BATCH_SPANS });
    }
    config.build()
}

/// Takes every ended span: those of the SDK's tracer, and those that are reported for a lost node.
#[derive(Debug, Clone)]
pub(crate) struct Pipeline(Arc<Stages>);

#[derive(Debug)]
struct Stages {
    ring: Ring,
    batch: Option<BatchSpanProcessor>,
    gate: Arc<Gate>,
    service: String,
    node: String,
}

impl Pipeline {
    pub(crate) fn recent(&self, trace_id: u128) -> Vec<SpanRecord> {
        let Stages { ring, service, node, .. } = &*self.0;
        ring.trace(trace_id).iter().map(|span| SpanRecord::new(span, service, node)).collect()
    }

    pub(crate) fn counts(&self) -> SpanCounts {
        self.0.gate.counts()
    }
}

impl SpanProcessor for Pipeline {
    fn on_start(&self, span: &mut SdkSpan, context: &Context) {
        if let Some(batch) = &self.0.batch {
            batch.on_start(span, context);
        }
    }

    fn on_end(&self, span: SpanData) {
        let trace_id = u128::from_be_bytes(span.span_context.trace_id().to_bytes());
        let Some(batch) = &self.0.batch else { return self.0.ring.push(trace_id, span) };
        self.0.ring.push(trace_id, span.clone());
        // The SDK's queue takes none that is not sampled, and would not tell the gate that it is gone.
        if span.span_context.is_sampled() && self.0.gate.admits() {
            batch.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.batch.as_ref().map_or(Ok(()), SpanProcessor::force_flush)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.batch.as_ref().map_or(Ok(()), |batch| batch.shutdown_with_timeout(timeout))
    }
}
