//! Where spans go: the ring always, OTLP over gRPC when an endpoint is configured.
//!
//! The exporter lives in a runtime of its own, with one worker: a flush then never waits for the application's
//! runtime, and nothing hangs when the collector is gone (at most [`SHUTDOWN_LIMIT`]).

use std::{sync::Arc, time::Duration};

use opentelemetry::{Context, InstrumentationScope, KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{
        BatchConfig, BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Span as SdkSpan, SpanData,
        SpanProcessor,
    },
};
use tokio::runtime::Runtime;

use crate::{
    SpanRecord, names,
    ring::{Bounds, Ring},
    span::{Tracing, clear_installed, set_installed},
};

/// One export may take this long; a collector that accepts and never answers costs exactly this.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Spans wait this long for company: short enough to look at a trace while a person waits.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// A burst of a whole demo fits; what does not fit is dropped and counted by the SDK.
const QUEUE_SPANS: usize = 16_384;
/// 512 spans of ordinary size stay well below the 4 MiB of an OTLP receiver.
const BATCH_SPANS: usize = 512;
/// The last flush may take this long, so that a dead collector never keeps a process alive.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(3);
/// The SDK's instrumentation scope of all our spans.
const SCOPE: &str = "towline";

/// Who this process is, and where its spans go.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `service.name`; `OTEL_SERVICE_NAME` overrides it.
    pub service_name: String,
    /// Numeric id of the node, as text; empty in a command-line client.
    pub node_id: String,
    /// Name of the node.
    pub node_name: String,
    /// Name of the cluster; empty in a command-line client.
    pub cluster: String,
    /// OTLP/gRPC endpoint, with scheme. None: `OTEL_EXPORTER_OTLP_ENDPOINT` decides, else there is no export.
    pub otlp: Option<String>,
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
    /// TLS to a collector is not built in.
    #[error("OTLP endpoint {0:?}: only http:// endpoints are supported; run a collector on this host for TLS")]
    NotHttp(String),
    /// The exporter's runtime did not start.
    #[error("start the telemetry runtime")]
    Runtime(#[source] std::io::Error),
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
    runtime: Option<Runtime>,
}

impl Installation {
    pub(crate) fn new(settings: Settings) -> Result<Self, InstallError> {
        let service = env("OTEL_SERVICE_NAME").unwrap_or_else(|| settings.service_name.clone());
        let resource = resource(&settings, &service);
        let (batch, runtime) = match endpoint(&settings)? {
            Some(endpoint) => {
                let (batch, runtime) = otlp(&endpoint, &resource)?;
                (Some(batch), Some(runtime))
            }
            None => (None, None),
        };
        let ring = Ring::new(Bounds::default());
        let pipeline = Pipeline(Arc::new(Stages { ring, batch, service, node: settings.node_name }));
        let provider =
            SdkTracerProvider::builder().with_span_processor(pipeline.clone()).with_resource(resource).build();
        let scope = InstrumentationScope::builder(SCOPE).with_version(env!("CARGO_PKG_VERSION")).build();
        let tracer = provider.tracer_with_scope(scope.clone());
        Ok(Self { tracing: Arc::new(Tracing { tracer, scope, pipeline }), provider, runtime })
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown_with_timeout(SHUTDOWN_LIMIT) {
            tracing::debug!(%error, "last export of spans");
        }
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

/// The endpoint to export to. Reads the variables that the SDK does not: `OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER`.
fn endpoint(settings: &Settings) -> Result<Option<String>, InstallError> {
    let disabled = env("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let exporter_is_none = env("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
    if disabled || exporter_is_none {
        return Ok(None);
    }
    let from_env = || env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| env("OTEL_EXPORTER_OTLP_ENDPOINT"));
    let Some(endpoint) = settings.otlp.clone().or_else(from_env) else { return Ok(None) };
    match endpoint.split_once("://") {
        None => Err(InstallError::NoScheme(endpoint)),
        Some((scheme, _)) if !scheme.eq_ignore_ascii_case("http") => Err(InstallError::NotHttp(endpoint)),
        Some(_) => Ok(Some(endpoint)),
    }
}

fn otlp(endpoint: &str, resource: &Resource) -> Result<(BatchSpanProcessor, Runtime), InstallError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("towline-telemetry")
        .enable_all()
        .build()
        .map_err(InstallError::Runtime)?;
    // The channel takes the runtime that it is built in.
    let entered = runtime.enter();
    let exporter =
        exporter(endpoint).map_err(|source| InstallError::Exporter { endpoint: endpoint.to_owned(), source })?;
    drop(entered);
    let mut batch = BatchSpanProcessor::builder(exporter).with_batch_config(batch_config()).build();
    batch.set_resource(resource);
    Ok((batch, runtime))
}

fn exporter(endpoint: &str) -> Result<SpanExporter, ExporterBuildError> {
    let builder = SpanExporter::builder().with_tonic().with_endpoint(endpoint);
    let set_outside = env("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT").or_else(|| env("OTEL_EXPORTER_OTLP_TIMEOUT")).is_some();
    if set_outside { builder.build() } else { builder.with_timeout(EXPORT_TIMEOUT).build() }
}

/// Our defaults, where `OTEL_BSP_*` says nothing: what is set in code would win over the environment.
fn batch_config() -> BatchConfig {
    let mut config = BatchConfigBuilder::default();
    if env("OTEL_BSP_MAX_QUEUE_SIZE").is_none() {
        config = config.with_max_queue_size(QUEUE_SPANS);
    }
    if env("OTEL_BSP_SCHEDULE_DELAY").is_none() {
        config = config.with_scheduled_delay(BATCH_DELAY);
    }
    if env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").is_none() {
        config = config.with_max_export_batch_size(BATCH_SPANS);
    }
    config.build()
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Takes every ended span: those of the SDK's tracer, and those that are reported for a lost node.
#[derive(Debug, Clone)]
pub(crate) struct Pipeline(Arc<Stages>);

#[derive(Debug)]
struct Stages {
    ring: Ring,
    batch: Option<BatchSpanProcessor>,
    service: String,
    node: String,
}

impl Pipeline {
    pub(crate) fn recent(&self, trace_id: u128) -> Vec<SpanRecord> {
        let Stages { ring, service, node, .. } = &*self.0;
        ring.trace(trace_id).iter().map(|span| SpanRecord::new(span, service, node)).collect()
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
        batch.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.batch.as_ref().map_or(Ok(()), SpanProcessor::force_flush)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.batch.as_ref().map_or(Ok(()), |batch| batch.shutdown_with_timeout(timeout))
    }
}
