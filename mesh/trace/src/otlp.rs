//! The way to a collector: OTLP over gRPC, or protobuf over HTTP; plain or over TLS, with headers.
//!
//! What the configuration leaves open the standard variables say. The SDK reads most of them; those that it does not read
//! are read here: `OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER`, `OTEL_EXPORTER_OTLP_PROTOCOL` and the variables of the
//! HTTP exporter, which is our own: the SDK's would bring a second HTTP client, and loses all spans when it is asynchronous.

use std::{sync::Arc, time::Duration};

use opentelemetry_otlp::{ExporterBuildError, WithExportConfig, WithTonicConfig};
use opentelemetry_proto::{
    tonic::collector::{
        metrics::v1::{ExportMetricsServiceRequest, metrics_service_client::MetricsServiceClient},
        trace::v1::ExportTraceServiceRequest,
    },
    transform::{common::tonic::ResourceAttributesWithSchema, trace::tonic::group_spans_by_resource_and_scope},
};
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    trace::{SpanData, SpanExporter},
};
use prost::Message;
use tokio::runtime::Handle;
use tonic::{
    metadata::{Ascii, MetadataKey, MetadataMap},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

use crate::{
    export::{InstallError, Settings},
    gate::Gate,
};

/// One export may take this long; a collector that accepts and never answers costs exactly this.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Waits before an HTTP export is tried again; then its spans are given up, and the next batch is sent.
const HTTP_PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    /// As the variables spell it.
    fn name(self) -> &'static str {
        match self {
            Signal::Traces => "TRACES",
            Signal::Metrics => "METRICS",
        }
    }

    /// Where an HTTP collector takes it, if its address has no path.
    fn path(self) -> &'static str {
        match self {
            Signal::Traces => "/v1/traces",
            Signal::Metrics => "/v1/metrics",
        }
    }

    /// Whether the variables, or else the settings, want it exported. Collectors of traces alone refuse metrics, so those are sent
    /// only where somebody asks for it.
    fn is_wanted(self, settings: &Settings) -> bool {
        let disabled = env("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let exporter = env(&format!("OTEL_{}_EXPORTER", self.name()));
        let exporter = exporter.as_deref();
        let by_default = match self {
            Signal::Traces => true,
            Signal::Metrics => {
                settings.push_metrics
                    || exporter == Some("otlp")
                    || env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT").is_some()
            }
        };
        !disabled && exporter != Some("none") && by_default
    }
}

/// How spans travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC, usually port 4317.
    Grpc,
    /// Protobuf over HTTP, usually port 4318.
    HttpProtobuf,
}

impl std::str::FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "grpc" => Ok(Protocol::Grpc),
            "http/protobuf" => Ok(Protocol::HttpProtobuf),
            other => Err(format!("{other:?} is no protocol for spans: write grpc or http/protobuf")),
        }
    }
}

/// Where to, and how.
#[derive(Debug)]
pub(crate) struct Target {
    pub endpoint: String,
    protocol: Protocol,
    headers: Vec<(String, String)>,
    /// Whom to trust, as PEM; none means whom the machine trusts.
    ca: Option<Vec<u8>>,
    timeout: Duration,
}

impl Target {
    /// What the settings and the environment say; none where nothing is to be exported.
    pub(crate) fn of(settings: &Settings, signal: Signal) -> Result<Option<Self>, InstallError> {
        if !signal.is_wanted(settings) {
            return Ok(None);
        }
        let of_signal = |what: &str| {
            let own = env(&format!("OTEL_EXPORTER_OTLP_{}_{what}", signal.name()));
            own.or_else(|| env(&format!("OTEL_EXPORTER_OTLP_{what}")))
        };
        let protocol = match (settings.protocol, of_signal("PROTOCOL")) {
            (Some(protocol), _) => protocol,
            (None, Some(text)) => text.parse::<Protocol>().map_err(InstallError::Protocol)?,
            (None, None) => Protocol::Grpc,
        };
        let at_path = |base: String| match protocol {
            Protocol::HttpProtobuf => format!("{}{}", base.trim_end_matches('/'), signal.path()),
            Protocol::Grpc => base,
        };
        // A path that is written is that of the traces.
        let whole = |url: String| match (signal, url.strip_suffix(Signal::Traces.path())) {
            (Signal::Metrics, Some(base)) => format!("{base}{}", signal.path()),
            (Signal::Metrics, None) | (Signal::Traces, _) => url,
        };
        let configured = settings.otlp.clone().map(|url| if has_path(&url) { whole(url) } else { at_path(url) });
        let endpoint = configured
            .or_else(|| env(&format!("OTEL_EXPORTER_OTLP_{}_ENDPOINT", signal.name())))
            .or_else(|| env("OTEL_EXPORTER_OTLP_ENDPOINT").map(at_path));
        let Some(endpoint) = endpoint else { return Ok(None) };
        match endpoint.split_once("://") {
            None => return Err(InstallError::NoScheme(endpoint)),
            Some(("http" | "https", _)) => {}
            Some(_) => return Err(InstallError::NotHttp(endpoint)),
        }
        let mut headers = settings.headers.clone();
        // The gRPC exporter of spans reads them itself.
        if (protocol, signal) != (Protocol::Grpc, Signal::Traces) {
            headers.extend(of_signal("HEADERS").map(|more| pairs(&more)).unwrap_or_default());
        }
        let ca = match (&settings.ca, of_signal("CERTIFICATE")) {
            (Some(pem), _) => Some(pem.clone()),
            (None, Some(path)) => Some(std::fs::read(&path).map_err(|source| InstallError::Ca { path, source })?),
            (None, None) => None,
        };
        let timeout = of_signal("TIMEOUT").and_then(|ms| ms.parse().ok()).map_or(EXPORT_TIMEOUT, Duration::from_millis);
        Ok(Some(Self { endpoint, protocol, headers, ca, timeout }))
    }

    /// Builds the exporter. To be called inside the runtime that sends.
    pub(crate) fn exporter(self, gate: Arc<Gate>) -> Result<Exporter, InstallError> {
        let endpoint = self.endpoint.clone();
        let kind = match self.protocol {
            Protocol::Grpc => Kind::Grpc(Box::new(self.grpc()?)),
            Protocol::HttpProtobuf => Kind::Http(self.http()?),
        };
        Ok(Exporter { kind, gate, endpoint })
    }

    /// The way that metrics take. To be called inside the runtime that sends.
    pub(crate) fn metric_sender(self) -> Result<MetricSender, InstallError> {
        match self.protocol {
            Protocol::Grpc => {
                let (channel, metadata) = self.channel()?;
                Ok(MetricSender::Grpc(Box::new(MetricsServiceClient::new(channel)), metadata))
            }
            Protocol::HttpProtobuf => self.http().map(MetricSender::Http),
        }
    }

    fn channel(&self) -> Result<(Channel, MetadataMap), InstallError> {
        let cannot = |reason: String| InstallError::Endpoint { endpoint: self.endpoint.clone(), reason };
        let mut channel = Endpoint::from_shared(self.endpoint.clone()).map_err(|error| cannot(chain(&error)))?;
        if self.endpoint.starts_with("https:") {
            let why = "over gRPC the authority of a collector has to be named: set telemetry.ca, or telemetry.protocol: \
                       http/protobuf, which trusts whom this machine trusts";
            let pem = self.ca.clone().ok_or_else(|| cannot(why.to_owned()))?;
            let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
            channel = channel.tls_config(tls).map_err(|error| cannot(chain(&error)))?;
        }
        let mut metadata = MetadataMap::new();
        for (name, value) in &self.headers {
            let name: MetadataKey<Ascii> = name.to_lowercase().parse().map_err(|_| cannot(bad_header(name)))?;
            metadata.insert(name.clone(), value.parse().map_err(|_| cannot(bad_header(name.as_str())))?);
        }
        Ok((channel.timeout(self.timeout).connect_lazy(), metadata))
    }

    fn grpc(self) -> Result<opentelemetry_otlp::SpanExporter, InstallError> {
        let (channel, metadata) = self.channel()?;
        let builder = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_channel(channel)
            .with_metadata(metadata)
            .with_timeout(self.timeout);
        let failed = |source: ExporterBuildError| InstallError::Exporter { endpoint: self.endpoint.clone(), source };
        builder.build().map_err(failed)
    }

    fn http(self) -> Result<HttpExporter, InstallError> {
        let cannot = |reason: String| InstallError::Endpoint { endpoint: self.endpoint.clone(), reason };
        let mut headers = reqwest::header::HeaderMap::new();
        for (name, value) in &self.headers {
            let name: reqwest::header::HeaderName = name.parse().map_err(|_| cannot(bad_header(name)))?;
            headers.insert(name.clone(), value.parse().map_err(|_| cannot(bad_header(name.as_str())))?);
        }
        let mut builder = reqwest::Client::builder().timeout(self.timeout).no_proxy().default_headers(headers);
        if let Some(pem) = &self.ca {
            let authorities = reqwest::Certificate::from_pem_bundle(pem).map_err(|error| cannot(chain(&error)))?;
            builder = builder.tls_certs_only(authorities);
        }
        let client = builder.build().map_err(|error| cannot(chain(&error)))?;
        let resource = Arc::default();
        Ok(HttpExporter { client, endpoint: self.endpoint.clone(), resource, runtime: Handle::current() })
    }
}

/// Sends spans and counts what became of them.
#[derive(Debug)]
pub(crate) struct Exporter {
    kind: Kind,
    gate: Arc<Gate>,
    endpoint: String,
}

#[derive(Debug)]
enum Kind {
    Grpc(Box<opentelemetry_otlp::SpanExporter>),
    Http(HttpExporter),
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let sent = match &self.kind {
            Kind::Grpc(exporter) => exporter.export(batch).await,
            Kind::Http(exporter) => exporter.export(batch).await,
        };
        self.gate.sent(spans, sent.as_ref().err(), &self.endpoint);
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        match &self.kind {
            Kind::Grpc(exporter) => exporter.shutdown_with_timeout(timeout),
            Kind::Http(_) => Ok(()),
        }
    }

    fn set_resource(&mut self, resource: &Resource) {
        match &mut self.kind {
            Kind::Grpc(exporter) => exporter.set_resource(resource),
            Kind::Http(exporter) => exporter.resource = Arc::new(resource.into()),
        }
    }
}

#[derive(Debug)]
pub(crate) struct HttpExporter {
    client: reqwest::Client,
    endpoint: String,
    resource: Arc<ResourceAttributesWithSchema>,
    /// Where requests run: the SDK asks for an export on a thread that has no reactor.
    runtime: Handle,
}

impl HttpExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let body = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        let sending = post(self.client.clone(), self.endpoint.clone(), body);
        let sent = self.runtime.spawn(sending).await.unwrap_or_else(|error| Err(error.to_string()));
        sent.map_err(OTelSdkError::InternalFailure)
    }
}

/// Sends metrics.
#[derive(Debug)]
pub(crate) enum MetricSender {
    Grpc(Box<MetricsServiceClient<Channel>>, MetadataMap),
    Http(HttpExporter),
}

impl MetricSender {
    pub(crate) async fn send(&mut self, metrics: ExportMetricsServiceRequest) -> Result<(), String> {
        match self {
            MetricSender::Grpc(client, metadata) => {
                let request = tonic::Request::from_parts(metadata.clone(), tonic::Extensions::new(), metrics);
                client.export(request).await.map(drop).map_err(|status| chain(&status))
            }
            MetricSender::Http(http) => post(http.client.clone(), http.endpoint.clone(), metrics.encode_to_vec()).await,
        }
    }
}

async fn post(client: reqwest::Client, endpoint: String, body: Vec<u8>) -> Result<(), String> {
    let body = bytes::Bytes::from(body);
    let mut pauses = HTTP_PAUSES.into_iter();
    loop {
        let request = client.post(&endpoint).header("content-type", "application/x-protobuf").body(body.clone());
        let (why, may_pass) = match request.send().await {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            Ok(answer) => {
                let may_pass = matches!(answer.status().as_u16(), 429 | 502 | 503 | 504);
                (format!("it answers {}", answer.status()), may_pass)
            }
            Err(error) => (chain(&error), !error.is_timeout()),
        };
        let Some(pause) = pauses.next().filter(|_| may_pass) else { return Err(why) };
        tokio::time::sleep(pause).await;
    }
}

/// Whether a URL has more than a host.
fn has_path(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split_once('/').is_some_and(|(_, path)| !path.is_empty())
}

/// `a=1,b=2`, as the variables write headers; values are percent-encoded.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_owned(), percent_decoded(value.trim()))).collect()
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail.get(..2).and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        match (first, code) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn bad_header(name: &str) -> String {
    format!("the header {name:?} or its value fits into no request")
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// A variable that is set to something.
pub(crate) fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_the_variables_write_them() {
        let read = pairs("authorization=Bearer%20x, tenant=a%2Cb,nonsense");
        assert_eq!(read, [("authorization", "Bearer x"), ("tenant", "a,b")].map(|(a, b)| (a.into(), b.into())));
        assert_eq!(percent_decoded("100%"), "100%");
    }

    #[test]
    fn a_path_is_added_for_http_where_there_is_none() {
        let of = |url: &str, protocol| {
            let settings = Settings { otlp: Some(url.to_owned()), protocol: Some(protocol), ..Settings::default() };
            Target::of(&settings, Signal::Traces).unwrap().unwrap().endpoint
        };
        assert_eq!(of("http://x:4318", Protocol::HttpProtobuf), "http://x:4318/v1/traces");
        assert_eq!(of("http://x:4318/", Protocol::HttpProtobuf), "http://x:4318/v1/traces");
        assert_eq!(of("http://x/in", Protocol::HttpProtobuf), "http://x/in");
        assert_eq!(of("http://x:4317", Protocol::Grpc), "http://x:4317");
    }

    #[test]
    fn metrics_go_where_spans_go_if_they_are_asked_for() {
        let of = |url: &str, protocol, push_metrics| {
            let (otlp, protocol) = (Some(url.to_owned()), Some(protocol));
            let settings = Settings { otlp, protocol, push_metrics, ..Settings::default() };
            Target::of(&settings, Signal::Metrics).unwrap().map(|target| target.endpoint)
        };
        assert_eq!(of("http://x:4318", Protocol::HttpProtobuf, false), None);
        assert_eq!(of("http://x:4318", Protocol::HttpProtobuf, true).as_deref(), Some("http://x:4318/v1/metrics"));
        assert_eq!(of("http://x/o/v1/traces", Protocol::HttpProtobuf, true).as_deref(), Some("http://x/o/v1/metrics"));
        assert_eq!(of("http://x:4317", Protocol::Grpc, true).as_deref(), Some("http://x:4317"));
    }

    #[test]
    fn what_cannot_be_exported_to_is_refused_with_the_way_out() {
        let refused = |url: &str| {
            let settings = Settings { otlp: Some(url.to_owned()), ..Settings::default() };
            let target = Target::of(&settings, Signal::Traces);
            target.and_then(|target| target.unwrap().exporter(Arc::default())).unwrap_err().to_string()
        };
        assert!(refused("x:4317").contains("has no scheme"));
        assert!(refused("ftp://x").contains("http"));
        assert!(refused("https://x:4317").contains("telemetry.ca"), "{}", refused("https://x:4317"));
    }
}
