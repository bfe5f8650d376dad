//! Sends what the instruments say to a collector, each `OTEL_METRIC_EXPORT_INTERVAL`, over OTLP.
//!
//! It runs in the runtime of the exporter of spans, so a collector that hangs holds nobody up. Counters and histograms are
//! cumulative, or what came since the last push that was taken, as `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE` says.

use std::{
    collections::BTreeMap,
    sync::mpsc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use opentelemetry_proto::{
    tonic::{
        collector::metrics::v1::ExportMetricsServiceRequest,
        common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
        metrics::v1::{
            AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
            ScopeMetrics, Sum, metric, number_data_point,
        },
        resource::v1::Resource as WireResource,
    },
    transform::common::tonic::ResourceAttributesWithSchema,
};
use opentelemetry_sdk::Resource;
use tokio::{runtime::Handle, sync::oneshot};

use super::{Family, Point, Type, instruments, snapshot};
use crate::otlp::{MetricSender, Target, env};

/// Between two pushes, where the standard variable says nothing; the default of the specification.
const INTERVAL: Duration = Duration::from_secs(60);
/// The last push may take this long.
const LAST_PUSH: Duration = Duration::from_secs(2);
/// The instrumentation scope of all our metrics.
const SCOPE: &str = "towline";

/// Owns the task that pushes.
#[derive(Debug)]
pub(crate) struct Pusher {
    stop: Option<oneshot::Sender<()>>,
    done: mpsc::Receiver<()>,
}

impl Pusher {
    /// Starts pushing. To be called inside the runtime that sends.
    pub(crate) fn start(target: Target, resource: &Resource) -> Result<Self, crate::InstallError> {
        let (stop, stopped) = oneshot::channel();
        let (tell, done) = mpsc::channel();
        let state = State {
            endpoint: target.endpoint.clone(),
            sender: target.metric_sender()?,
            resource: ResourceAttributesWithSchema::from(resource),
            delta: wants_delta(),
            since: SystemTime::now(),
            before: BTreeMap::new(),
            in_trouble: false,
        };
        Handle::current().spawn(async move {
            state.run(stopped).await;
            // Who ended it may have stopped waiting.
            let _ = tell.send(());
        });
        Ok(Self { stop: Some(stop), done })
    }
}

impl Drop for Pusher {
    /// The last numbers are sent, within a limit.
    fn drop(&mut self) {
        if self.stop.take().is_some_and(|stop| stop.send(()).is_ok()) {
            // A collector that takes too long does not get them.
            let _ = self.done.recv_timeout(LAST_PUSH);
        }
    }
}

fn wants_delta() -> bool {
    env("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE")
        .is_some_and(|wanted| ["delta", "lowmemory"].iter().any(|delta| wanted.eq_ignore_ascii_case(delta)))
}

fn interval() -> Duration {
    let millis = env("OTEL_METRIC_EXPORT_INTERVAL").and_then(|text| text.parse().ok()).filter(|millis| *millis > 0);
    millis.map_or(INTERVAL, Duration::from_millis)
}

struct State {
    endpoint: String,
    sender: MetricSender,
    resource: ResourceAttributesWithSchema,
    delta: bool,
    /// Since when the next numbers count.
    since: SystemTime,
    /// What was said with the last push that was taken, if only the difference is said.
    before: BTreeMap<String, Point>,
    in_trouble: bool,
}

impl State {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut ticks = tokio::time::interval(interval());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            let is_last = tokio::select! {
                _ = ticks.tick() => false,
                _ = &mut stopped => true,
            };
            self.push().await;
            if is_last {
                return;
            }
        }
    }

    async fn push(&mut self) {
        let (families, now) = (snapshot(), SystemTime::now());
        let sent = self.sender.send(self.request(&families, now)).await;
        instruments::METRIC_PUSHES.one(&[if sent.is_ok() { "taken" } else { "failed" }]);
        if sent.is_ok() && self.delta {
            self.since = now;
            self.before = by_key(families);
        }
        let endpoint = &self.endpoint;
        match (&sent, std::mem::replace(&mut self.in_trouble, sent.is_err())) {
            (Err(error), false) => tracing::warn!(endpoint, error, "metrics do not reach the collector"),
            (Ok(()), true) => tracing::info!(endpoint, "metrics reach the collector again"),
            (Err(_), true) | (Ok(()), false) => {}
        }
    }

    fn request(&self, families: &[Family], now: SystemTime) -> ExportMetricsServiceRequest {
        let times = (nanos(self.since), nanos(now));
        let metrics = families.iter().filter(|family| !family.points.is_empty());
        let metrics = metrics.map(|family| self.metric(family, times)).collect();
        let scope = InstrumentationScope {
            name: SCOPE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let attributes = self.resource.attributes.0.clone();
        ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(WireResource { attributes, ..WireResource::default() }),
                scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics, schema_url: String::new() }],
                schema_url: self.resource.schema_url.clone().unwrap_or_default(),
            }],
        }
    }

    fn metric(&self, family: &Family, times: (u64, u64)) -> Metric {
        let about = family.about;
        let temporality =
            if self.delta { AggregationTemporality::Delta } else { AggregationTemporality::Cumulative } as i32;
        let new =
            |point: &Point| self.before.get(&key(about.name, point)).map_or_else(|| point.clone(), |b| less(point, b));
        let numbers = |points: Vec<Point>| points.into_iter().map(|point| number(point, times)).collect();
        let data = match about.kind {
            Type::Gauge => metric::Data::Gauge(Gauge { data_points: numbers(family.points.clone()) }),
            Type::Counter => metric::Data::Sum(Sum {
                data_points: numbers(family.points.iter().map(new).collect()),
                aggregation_temporality: temporality,
                is_monotonic: true,
            }),
            Type::Histogram(bounds) => metric::Data::Histogram(Histogram {
                data_points: family.points.iter().map(|point| distribution(new(point), bounds, times)).collect(),
                aggregation_temporality: temporality,
            }),
        };
        Metric {
            name: about.name.to_owned(),
            description: about.help.to_owned(),
            unit: about.unit.to_owned(),
            data: Some(data),
            ..Metric::default()
        }
    }
}

fn by_key(families: Vec<Family>) -> BTreeMap<String, Point> {
    let points = families.into_iter().flat_map(|family| {
        let name = family.about.name;
        family.points.into_iter().map(move |point| (key(name, &point), point))
    });
    points.collect()
}

fn key(name: &str, point: &Point) -> String {
    format!("{name} {:?}", point.labels)
}

/// What came since.
fn less(point: &Point, before: &Point) -> Point {
    let buckets = point.buckets.iter().zip(&before.buckets).map(|(now, then)| now.saturating_sub(*then)).collect();
    Point { labels: point.labels.clone(), value: point.value - before.value, buckets }
}

fn number(point: Point, (since, now): (u64, u64)) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(point.labels),
        start_time_unix_nano: since,
        time_unix_nano: now,
        value: Some(number_data_point::Value::AsDouble(point.value)),
        ..NumberDataPoint::default()
    }
}

fn distribution(point: Point, bounds: &[f64], (since, now): (u64, u64)) -> HistogramDataPoint {
    HistogramDataPoint {
        attributes: attributes(point.labels),
        start_time_unix_nano: since,
        time_unix_nano: now,
        count: point.buckets.iter().sum(),
        sum: Some(point.value),
        bucket_counts: point.buckets,
        explicit_bounds: bounds.to_vec(),
        ..HistogramDataPoint::default()
    }
}

fn attributes(labels: Vec<(&'static str, String)>) -> Vec<KeyValue> {
    let value = |text| AnyValue { value: Some(any_value::Value::StringValue(text)) };
    let attribute =
        |(key, text): (&str, String)| KeyValue { key: key.to_owned(), value: Some(value(text)), ..KeyValue::default() };
    labels.into_iter().map(attribute).collect()
}

fn nanos(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_of_a_histogram_is_what_fell_into_it_since() {
        let labels = || vec![("a", "x".to_owned())];
        let before = Point { labels: labels(), value: 1.0, buckets: vec![1, 0] };
        let now = Point { labels: labels(), value: 4.0, buckets: vec![2, 3] };
        assert_eq!(less(&now, &before), Point { labels: labels(), value: 3.0, buckets: vec![1, 3] });
    }
}
