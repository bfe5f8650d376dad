//! `telemetry:` – where spans go.

use super::{section::Section, values::http_url};

const DEFAULT_SERVICE: &str = "towline";

/// `telemetry:`
#[derive(Debug, Clone)]
pub struct TelemetrySettings {
    /// OTLP/gRPC endpoint.
    pub otlp: Option<String>,
    /// `service.name` of the spans.
    pub service_name: String,
}

pub(crate) fn read(root: &mut Section<'_>) -> TelemetrySettings {
    let mut settings = TelemetrySettings { otlp: None, service_name: DEFAULT_SERVICE.to_owned() };
    let Some(mut section) = root.get("telemetry").and_then(|field| field.section()) else { return settings };
    settings.otlp = section.get("otlp").and_then(|field| {
        let url = field.parse(http_url)?;
        if url.scheme() != "http" {
            field.mistake(
                "is https: run a collector on this host and export to it over http, as in http://127.0.0.1:4317",
            );
        }
        field.text().map(str::to_owned)
    });
    if let Some(name) = section.get("service_name").and_then(|field| field.text()) {
        settings.service_name = name.to_owned();
    }
    section.finish();
    settings
}
