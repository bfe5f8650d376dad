//! Where spans go, and where they are looked at.

use super::{Check, Patient, Planned, planned, reach};
use towline_trace::Protocol;

const AREA: &str = "telemetry";
/// The variables that say where spans go, where the configuration does not.
const VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

pub(super) fn plan(patient: &Patient) -> Vec<Planned> {
    let settings = patient.config.telemetry.clone();
    let from_env = || VARIABLES.iter().find_map(|name| std::env::var(name).ok().filter(|url| !url.is_empty()));
    let mut plan = Vec::new();
    if let Some(url) = settings.otlp.or_else(from_env) {
        let http = patient.http.clone();
        let grpc = settings.protocol.map_or(!url.contains(":4318"), |protocol| protocol == Protocol::Grpc);
        plan.push(planned(AREA, "OTLP", async move {
            let reached = match grpc || url.starts_with("https://") {
                // With TLS of its own authority a page could not be asked for: a connection says enough.
                true => reach::tcp(&url).await,
                false => reach::http(&http, &url).await.map(|reached| reached.detail),
            };
            let mend = "start the collector, or set telemetry.otlp to where it is (4317 for gRPC, 4318 for HTTP)";
            vec![told("OTLP", reached, &url, mend)]
        }));
    }
    if let Some(url) = settings.jaeger_ui {
        let http = patient.http.clone();
        plan.push(planned(AREA, "Jaeger", async move {
            let reached = reach::http(&http, &url).await.map(|reached| reached.detail);
            vec![told("Jaeger", reached, &url, "start Jaeger, or set telemetry.jaeger_ui to where its pages are")]
        }));
    }
    if let Some(live) = &patient.live {
        let dropped = live.cluster.status().spans;
        plan.push(planned(AREA, "spans", async move { drops(dropped.dropped + dropped.failed) }));
    }
    plan
}

fn told(what: &str, reached: Result<String, String>, url: &str, mend: &str) -> Check {
    match reached {
        Ok(detail) => Check::ok(AREA, what, detail),
        Err(error) => Check::fail(AREA, what, format!("{}: {error}", reach::host(url)), mend),
    }
}

fn drops(dropped: u64) -> Vec<Check> {
    if dropped == 0 {
        return Vec::new();
    }
    let mend = "the collector was away or too slow: see that it runs, or set telemetry.sample to less than 1";
    vec![Check::warn(AREA, "spans", format!("{dropped} did not reach the collector since the start"), mend)]
}
