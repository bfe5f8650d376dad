//! What a bench found, for people and for programs.

use serde::Serialize;

use super::{BenchError, load::Measured, machine::Machine};
use crate::output::Output;

/// One point. The first eight fields are always there; those that make no sense for a bench are null.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) bench: String,
    pub(super) subject: String,
    pub(super) clients: u32,
    pub(super) per_second: Option<f64>,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    /// CPU time of the servers for one operation.
    pub(super) cpu_us: Option<f64>,
    /// `per_second` of this binary: in its own row to the first subject it is compared with, in another's row to that one.
    pub(super) ratio: Option<f64>,
    /// `p99_ms`, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p99_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p95_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_ms: Option<f64>,
    /// Operations that are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) done: Option<u64>,
    /// Operations that failed, over the whole time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) entries_per_task: Option<f64>,
    /// Events that a caller did not see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lost: Option<u64>,
    /// Events that a caller saw twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) duplicated: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rss_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) spawn_s: Option<f64>,
    /// Delegations that stayed on the node of the one who delegates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stayed: Option<u64>,
    /// Where in a soak this was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at_s: Option<f64>,
    /// Open files of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) open_files: Option<u64>,
    /// Threads of a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) threads: Option<u64>,
}

impl Row {
    /// The row of a point that was driven by the load generator.
    pub(super) fn of(bench: &str, subject: &str, clients: u32, measured: &Measured) -> Self {
        Self {
            per_second: Some(rounded(measured.per_second(), 10.0)),
            cpu_us: Some(rounded(measured.cpu_us_per_operation(), 10.0)),
            failed: Some(measured.failed),
            ..Self::timed(bench, subject, clients, measured)
        }
    }

    /// The row of times alone.
    pub(super) fn timed(bench: &str, subject: &str, clients: u32, measured: &Measured) -> Self {
        let quantile = |quantile| Some(rounded(measured.quantile_ms(quantile), 1_000.0));
        Self {
            bench: bench.to_owned(),
            subject: subject.to_owned(),
            clients,
            p50_ms: quantile(0.5),
            p95_ms: quantile(0.95),
            p99_ms: quantile(0.99),
            max_ms: quantile(1.0),
            done: Some(measured.done()),
            ..Self::default()
        }
    }

    /// Says how this row stands to another subject's.
    pub(super) fn compared_with(mut self, other: &Row) -> Self {
        let ratio = |mine: Option<f64>, others: Option<f64>| Some(rounded(mine? / others.filter(|x| *x > 0.0)?, 100.0));
        self.ratio = ratio(self.per_second, other.per_second);
        self.p99_ratio = ratio(self.p99_ms, other.p99_ms);
        self
    }
}

/// A number with as many places as the power of ten has zeros.
pub(super) fn rounded(value: f64, places: f64) -> f64 {
    (value * places).round() / places
}

/// Everything that a bench says.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    /// Runnable processes over the last minute, after the last point.
    pub(super) load_after: f64,
    /// Versions of what was measured, by name.
    pub(super) subjects: std::collections::BTreeMap<String, String>,
    pub(super) rows: Vec<Row>,
}

impl Report {
    pub(super) fn write(&self, output: &mut Output) -> Result<(), BenchError> {
        if output.is_json() {
            return output.json(self).map_err(BenchError::Output);
        }
        output.line(&self.machine)?;
        for (subject, version) in &self.subjects {
            output.line(format!("{subject}: {version}"))?;
        }
        let header =
            ["bench", "subject", "clients", "/s", "p50 ms", "p99 ms", "max ms", "CPU µs", "ratio", "p99 ratio", "more"];
        output.table(&header, self.rows.iter().map(cells).collect())?;
        output.line(format!("load after: {:.2}", self.load_after)).map_err(BenchError::Output)
    }
}

fn cells(row: &Row) -> Vec<String> {
    let number =
        |value: Option<f64>, places: usize| value.map_or_else(String::new, |value| format!("{value:.places$}"));
    vec![
        row.bench.clone(),
        row.subject.clone(),
        row.clients.to_string(),
        number(row.per_second, 0),
        number(row.p50_ms, 2),
        number(row.p99_ms, 2),
        number(row.max_ms, 1),
        number(row.cpu_us, 0),
        number(row.ratio, 2),
        number(row.p99_ratio, 2),
        more(row),
    ]
}

/// What only some rows say.
fn more(row: &Row) -> String {
    let mut said = Vec::new();
    said.extend(row.at_s.map(|at| format!("at {at:.0} s")));
    said.extend(row.failed.filter(|failed| *failed > 0).map(|failed| format!("{failed} failed")));
    said.extend(row.entries_per_task.map(|entries| format!("{entries:.2} log entries")));
    said.extend(row.lost.map(|lost| format!("{lost} lost")));
    said.extend(row.duplicated.map(|twice| format!("{twice} duplicated")));
    said.extend(row.rss_mb.map(|rss| format!("{rss:.1} MB")));
    said.extend(row.stayed.filter(|stayed| *stayed > 0).map(|stayed| format!("{stayed} stayed on their node")));
    said.extend(row.open_files.map(|files| format!("{files} open files")));
    said.extend(row.threads.map(|threads| format!("{threads} threads")));
    said.extend(row.spawn_s.map(|spawn| format!("{spawn:.1} s to start")));
    said.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(per_second: f64, p99_ms: f64) -> Row {
        Row { per_second: Some(per_second), p99_ms: Some(p99_ms), ..Row::default() }
    }

    #[test]
    fn a_row_is_compared_by_rate_and_tail() {
        let ours = row(300.0, 2.0).compared_with(&row(200.0, 8.0));
        assert_eq!((ours.ratio, ours.p99_ratio), (Some(1.5), Some(0.25)));
        assert_eq!(row(300.0, 2.0).compared_with(&row(0.0, 0.0)).ratio, None);
    }

    #[test]
    fn the_eight_fields_are_there_even_when_null() {
        let json = serde_json::to_value(Row::default()).unwrap();
        for field in ["bench", "subject", "clients", "per_second", "p50_ms", "p99_ms", "cpu_us", "ratio"] {
            assert!(json.get(field).is_some(), "{field}");
        }
    }
}
