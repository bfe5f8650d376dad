//! `telemetry:` – where spans go, how many, and what they show.

use towline_trace::{Capture, Protocol};

use super::{section::Section, values::http_url};

const DEFAULT_SERVICE: &str = "towline";

/// `telemetry:`
#[derive(Debug, Clone)]
pub struct TelemetrySettings {
    /// OTLP endpoint.
    pub otlp: Option<String>,
    /// How spans travel there.
    pub protocol: Option<Protocol>,
    /// Headers of each export.
    pub headers: Vec<(String, String)>,
    /// The authority of the endpoint, as PEM.
    pub ca: Option<Vec<u8>>,
    /// Whether metrics are pushed there as well.
    pub push_metrics: bool,
    /// `service.name` of the spans.
    pub service_name: String,
    /// Which part of the traces that begin here is sampled, from 0 to 1.
    pub sample: Option<f64>,
    /// How much of what people and models say goes on spans.
    pub content: Capture,
    /// Whether callers choose the trace that their tasks are part of.
    pub trust_callers: bool,
    /// Base URL of the Jaeger UI, for links.
    pub jaeger_ui: Option<String>,
}

impl Default for TelemetrySettings {
    fn default() -> Self {
        Self {
            otlp: None,
            protocol: None,
            headers: Vec::new(),
            ca: None,
            push_metrics: false,
            service_name: DEFAULT_SERVICE.to_owned(),
            sample: None,
            content: Capture::Off,
            trust_callers: true,
            jaeger_ui: None,
        }
    }
}

pub(crate) fn read(root: &mut Section<'_>) -> TelemetrySettings {
    let mut settings = TelemetrySettings::default();
    let Some(mut section) = root.get("telemetry").and_then(|field| field.section()) else { return settings };
    settings.otlp = section.get("otlp").and_then(|field| {
        field.parse(http_url)?;
        field.text().map(str::to_owned)
    });
    settings.protocol = section.get("protocol").and_then(|field| field.parse(str::parse));
    if let Some(headers) = section.get("headers") {
        let written =
            |(name, field): (&str, super::section::Field<'_>)| Some((name.to_owned(), field.text()?.to_owned()));
        settings.headers = headers.entries().into_iter().filter_map(written).collect();
    }
    settings.ca = section.get("ca").and_then(|field| {
        let path = field.context.base.join(field.text()?);
        let read = std::fs::read(&path);
        read.map_err(|error| field.mistake(format!("read {}: {error}", path.display()))).ok()
    });
    if let Some(name) = section.get("service_name").and_then(|field| field.text()) {
        settings.service_name = name.to_owned();
    }
    settings.push_metrics = section.flag("push_metrics", false);
    settings.sample = section.get("sample").and_then(|field| field.part());
    settings.content = section.get("content").and_then(|field| field.parse(str::parse)).unwrap_or_default();
    settings.trust_callers = section.flag("trust_callers", true);
    settings.jaeger_ui = section.get("jaeger_ui").and_then(|field| {
        let url = field.parse(http_url)?;
        Some(url.as_str().trim_end_matches('/').to_owned())
    });
    section.finish();
    settings
}
