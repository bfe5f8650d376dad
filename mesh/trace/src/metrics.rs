//! Numbers of this process: instruments with fixed names, labels and bounds, read as a whole when somebody asks.
//!
//! ```text
//! spans that end ─▶ measured.rs ─┐
//! wal, actors, …  ─▶ Instrument ─┴─▶ snapshot() ─┬─▶ open_metrics::text   (/metrics)
//! the state, at that moment ─▶ [`Source`] ───────┘└─▶ push                 (OTLP, if it is asked for)
//! ```
//!
//! An instrument is a static: it costs nothing to hold, needs no set-up and counts the same whether spans are sampled or
//! not. What the replicated state says is not counted here but read when it is asked for.

pub mod instruments;
pub mod open_metrics;
pub(crate) mod push;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

/// Series of one instrument: enough for the agents, models and servers of a node; of what comes beyond, the labels that
/// are not fixed are [`OTHER`].
const MAX_SERIES: usize = 200;

/// Stands for the values of labels that there is no room for.
pub const OTHER: &str = "other";

/// Longest value of a label, in bytes: names are shorter.
const MAX_LABEL_BYTES: usize = 128;

/// Between the values of a key; no name contains it.
const BETWEEN: char = '\u{1f}';

/// What a number is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Type {
    /// Only grows, from zero at the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How many values were at most so large, by these bounds.
    Histogram(&'static [f64]),
}

/// Something that is counted or measured, by labels.
#[derive(Debug)]
pub struct Instrument {
    about: About,
    labels: &'static [&'static str],
    series: Mutex<BTreeMap<String, Cell>>,
}

/// What an instrument is called and means.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct About {
    /// Its name in OpenTelemetry.
    pub name: &'static str,
    /// Its unit by UCUM; an annotation in braces is for people.
    pub unit: &'static str,
    /// What it says, in one sentence.
    pub help: &'static str,
    /// What its numbers are.
    pub kind: Type,
}

#[derive(Debug, Clone, Default)]
struct Cell {
    sum: f64,
    /// Of each bound, and above the last one.
    buckets: Vec<u64>,
}

impl Instrument {
    pub(crate) const fn new(about: About, labels: &'static [&'static str]) -> Self {
        Self { about, labels, series: Mutex::new(BTreeMap::new()) }
    }

    /// Adds to a counter or a gauge, or takes a value into a histogram. The values are those of the labels, in their order; one
    /// that is empty is a label that is not there.
    pub fn add(&self, value: f64, labels: &[&str]) {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key(labels.iter().copied());
        let key = if series.contains_key(&key) || series.len() < MAX_SERIES { key } else { key_of_others(labels) };
        let cell = series.entry(key).or_default();
        cell.sum += value;
        if let Type::Histogram(bounds) = self.about.kind {
            cell.buckets.resize(bounds.len() + 1, 0);
            let at = bounds.partition_point(|bound| *bound < value);
            cell.buckets[at] += 1;
        }
    }

    /// One more.
    pub fn one(&self, labels: &[&str]) {
        self.add(1.0, labels);
    }

    fn family(&self) -> Family {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let points = series.iter().map(|(key, cell)| {
            let values = key.split(BETWEEN).map(str::to_owned);
            let labels = self.labels.iter().copied().zip(values).filter(|(_, value)| !value.is_empty()).collect();
            Point { labels, value: cell.sum, buckets: cell.buckets.clone() }
        });
        let mut points: Vec<Point> = points.collect();
        // Where there is one number it is there from the beginning.
        if points.is_empty() && self.labels.is_empty() && !matches!(self.about.kind, Type::Histogram(_)) {
            points.push(Point::default());
        }
        Family { about: self.about, points }
    }
}

fn key<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let mut key = String::new();
    for (at, value) in values.enumerate() {
        if at > 0 {
            key.push(BETWEEN);
        }
        key.push_str(&value[..value.floor_char_boundary(MAX_LABEL_BYTES)]);
    }
    key
}

fn key_of_others(values: &[&str]) -> String {
    key(values.iter().map(|value| if value.is_empty() { "" } else { OTHER }))
}

/// What one instrument says at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// What it is.
    pub about: About,
    /// By labels.
    pub points: Vec<Point>,
}

/// One number, or one histogram.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Point {
    /// What it is the number of.
    pub labels: Vec<(&'static str, String)>,
    /// The number; of a histogram the sum of all values.
    pub value: f64,
    /// How many values fell into each bucket of a histogram, not added up.
    pub buckets: Vec<u64>,
}

impl Point {
    /// A number.
    pub fn new(value: f64, labels: Vec<(&'static str, String)>) -> Self {
        Self { labels, value, buckets: Vec::new() }
    }
}

impl Family {
    /// A gauge of one number.
    pub fn gauge(name: &'static str, unit: &'static str, help: &'static str, value: f64) -> Self {
        Self::gauges(name, unit, help, vec![Point::new(value, Vec::new())])
    }

    /// A gauge of several numbers.
    pub fn gauges(name: &'static str, unit: &'static str, help: &'static str, points: Vec<Point>) -> Self {
        Self { about: About { name, unit, help, kind: Type::Gauge }, points }
    }

    /// A counter that somebody else keeps.
    pub fn counter(name: &'static str, unit: &'static str, help: &'static str, points: Vec<Point>) -> Self {
        Self { about: About { name, unit, help, kind: Type::Counter }, points }
    }
}

/// Reads what is not counted but true at the moment.
pub type Source = Arc<dyn Fn() -> Vec<Family> + Send + Sync>;

static SOURCE: RwLock<Option<Source>> = RwLock::new(None);

/// Names where the numbers of the state are read from; none when there is no state any more.
pub fn set_source(source: Option<Source>) {
    *SOURCE.write().unwrap_or_else(PoisonError::into_inner) = source;
}

/// All that was counted in this process, what became of its spans, and what its source says, by name.
pub fn snapshot() -> Vec<Family> {
    let source = SOURCE.read().unwrap_or_else(PoisonError::into_inner).clone();
    let mut families: Vec<Family> = instruments::ALL.iter().map(|instrument| instrument.family()).collect();
    families.push(spans());
    families.extend(source.map(|source| source()).unwrap_or_default());
    families.sort_by_key(|family| family.about.name);
    families
}

fn spans() -> Family {
    let counts = crate::counts();
    let of = |outcome: &str, number: u64| Point::new(number as f64, vec![("outcome", outcome.to_owned())]);
    let points = vec![of("exported", counts.exported), of("failed", counts.failed), of("dropped", counts.dropped)];
    let help =
        "Spans by what became of them on their way to the collector: dropped are those that found no room to wait.";
    Family::counter("towline.telemetry.spans", "{span}", help, points)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [f64; 2] = [1.0, 2.0];

    fn instrument(kind: Type) -> Instrument {
        Instrument::new(About { name: "x", unit: "s", help: "x.", kind }, &["agent", "error.type"])
    }

    #[test]
    fn a_value_falls_into_the_first_bucket_that_holds_it() {
        let histogram = instrument(Type::Histogram(&BOUNDS));
        for value in [0.5, 1.0, 1.5, 9.0] {
            histogram.add(value, &["a", ""]);
        }
        let family = histogram.family();
        assert_eq!(family.points[0].buckets, [2, 1, 1]);
        assert_eq!(family.points[0].labels, [("agent", "a".to_owned())], "what is empty is left out");
        assert!((family.points[0].value - 12.0).abs() < f64::EPSILON);
    }

    #[test]
    fn labels_beyond_the_bound_are_other_and_those_that_were_there_go_on() {
        let counter = instrument(Type::Counter);
        for number in 0..2 * MAX_SERIES {
            counter.one(&[&format!("agent-{number:03}"), ""]);
        }
        counter.one(&["agent-000", ""]);
        let points = counter.family().points;
        assert_eq!(points.len(), MAX_SERIES + 1);
        let of = |agent: &str| points.iter().find(|point| point.labels[0].1 == agent).map(|point| point.value);
        assert_eq!(of("agent-000"), Some(2.0));
        assert_eq!(of(OTHER), Some(MAX_SERIES as f64));
    }
}
