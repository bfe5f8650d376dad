//! Stands in for the crate of this name, which openraft counts its batch sizes with.
//!
//! The original builds tables for all of its sixteen resolutions when the first histogram is made: 26 MB in every process.
//! Nothing here reads openraft's statistics, so this keeps no samples: the parts of the interface that openraft uses are
//! there, and every histogram is empty. `[patch.crates-io]` in the manifest of the workspace puts it in place.

#![forbid(unsafe_code)]

use std::marker::PhantomData;

/// A histogram without samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram<T = ()>(PhantomData<T>);

impl<T> Histogram<T> {
    /// An empty histogram.
    pub fn new() -> Self {
        Self(PhantomData)
    }

    /// Forgets a sample.
    pub fn record(&mut self, _sample: u64) {}

    /// Forgets a sample that came several times.
    pub fn record_n(&mut self, _sample: u64, _times: u64) {}

    /// How many samples there are: none.
    pub fn total(&self) -> u64 {
        0
    }

    /// The statistics of no samples.
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats::default()
    }
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Percentiles of a histogram, which has no samples: each field is the one of its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PercentileStats {
    pub samples: u64,
    pub p0_1: u64,
    pub p1: u64,
    pub p5: u64,
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl std::fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no samples")
    }
}

/// A chart of histograms, which shows nothing.
#[derive(Debug, Clone, Default)]
pub struct AsciiChart;

impl AsciiChart {
    /// An empty chart.
    pub fn new() -> Self {
        Self
    }

    /// Leaves a histogram out.
    #[must_use]
    pub fn add(self, _name: &str, _histogram: Histogram) -> Self {
        self
    }

    /// The chart at large.
    pub fn detailed(&self) -> &Self {
        self
    }
}

impl std::fmt::Display for AsciiChart {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}
