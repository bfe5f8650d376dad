//! The load generator: clients that do one operation at a time for as long as a point lasts.
//!
//! ```text
//! ├─ warm-up ─┼──────────── window ────────────┤
//!              only operations that begin and end in here count, and CPU time is read at its edges
//! ```

use std::{
    future::Future,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::BenchError;

/// What comes before the window: connections are made, caches and batches fill.
const WARM_UP: Duration = Duration::from_millis(500);

/// Longest latency that is told apart, in microseconds; longer ones count as this.
const LONGEST_US: u64 = 60_000_000;

/// Digits of a latency that are kept.
const DIGITS: u8 = 3;

/// Rest after a failed operation: a subject that is down is not asked a million times.
const FAILURE_PAUSE: Duration = Duration::from_millis(10);

/// One client.
pub(super) trait Worker: Send + 'static {
    /// Does one operation, from sending it to having read its answer. An error says what was answered instead.
    fn once(&mut self) -> impl Future<Output = Result<(), String>> + Send;
}

/// What was seen in one window, or in several.
pub(super) struct Measured {
    /// In microseconds.
    pub(super) latencies: Histogram<u64>,
    pub(super) failed: u64,
    pub(super) first_failure: Option<String>,
    pub(super) window: Duration,
    /// CPU time of the servers.
    pub(super) cpu: Duration,
}

impl Measured {
    pub(super) fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LONGEST_US, DIGITS).expect("these bounds are allowed");
        Self { latencies, failed: 0, first_failure: None, window: Duration::ZERO, cpu: Duration::ZERO }
    }

    pub(super) fn done(&self) -> u64 {
        self.latencies.len()
    }

    pub(super) fn add(&mut self, other: &Measured) {
        self.latencies.add(&other.latencies).expect("all histograms have the same bounds");
        self.failed += other.failed;
        self.first_failure = self.first_failure.take().or_else(|| other.first_failure.clone());
        self.window += other.window;
        self.cpu += other.cpu;
    }

    pub(super) fn record(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(LONGEST_US);
        self.latencies.saturating_record(us.max(1));
    }

    pub(super) fn per_second(&self) -> f64 {
        self.done() as f64 / self.window.as_secs_f64().max(f64::EPSILON)
    }

    pub(super) fn quantile_ms(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1_000.0
    }

    pub(super) fn cpu_us_per_operation(&self) -> f64 {
        self.cpu.as_micros() as f64 / (self.done().max(1)) as f64
    }

    /// Refuses a point at which nothing worked.
    pub(super) fn check(&self, operation: &str) -> Result<(), BenchError> {
        if self.done() > 0 {
            return Ok(());
        }
        let reason = self.first_failure.clone().unwrap_or_else(|| "none ended in time".to_owned());
        Err(BenchError::NothingDone { operation: operation.to_owned(), reason })
    }
}

/// Lets all workers work for a window; `cpu` reads what the servers have used so far.
pub(super) async fn drive<W: Worker>(workers: Vec<W>, window: Duration, cpu: impl Fn() -> Duration) -> Measured {
    let begins = Instant::now() + WARM_UP;
    let ends = begins + window;
    let mut clients = JoinSet::new();
    for worker in workers {
        clients.spawn(work(worker, begins, ends));
    }
    tokio::time::sleep_until(begins.into()).await;
    let used_before = cpu();
    tokio::time::sleep_until(ends.into()).await;
    let used = cpu().saturating_sub(used_before);
    let mut all = Measured::new();
    while let Some(measured) = clients.join_next().await {
        match measured {
            Ok(measured) => all.add(&measured),
            Err(error) => all.first_failure = Some(format!("a client ended badly: {error}")),
        }
    }
    all.window = window;
    all.cpu = used;
    all
}

async fn work<W: Worker>(mut worker: W, begins: Instant, ends: Instant) -> Measured {
    let mut measured = Measured::new();
    loop {
        let began = Instant::now();
        if began >= ends {
            return measured;
        }
        let outcome = worker.once().await;
        let ended = Instant::now();
        match outcome {
            Ok(()) if began >= begins && ended <= ends => measured.record(ended - began),
            Ok(()) => {}
            Err(reason) => {
                measured.failed += 1;
                measured.first_failure.get_or_insert(reason);
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sleeps(u32);

    impl Worker for Sleeps {
        async fn once(&mut self) -> Result<(), String> {
            self.0 += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
            if self.0.is_multiple_of(2) { Err("even".to_owned()) } else { Ok(()) }
        }
    }

    #[tokio::test]
    async fn what_works_is_counted_and_what_fails_is_told() {
        let measured = drive(vec![Sleeps(0), Sleeps(0)], Duration::from_millis(300), || Duration::ZERO).await;
        assert!(measured.done() > 4 && measured.failed > 4, "{} and {}", measured.done(), measured.failed);
        assert!(measured.quantile_ms(0.5) >= 2.0);
        assert_eq!(measured.first_failure.as_deref(), Some("even"));
        measured.check("sleep").unwrap();
    }

    #[test]
    fn a_point_without_an_operation_is_no_result() {
        assert!(Measured::new().check("put").unwrap_err().to_string().contains("no put succeeded"));
    }
}
