//! The source limiter: who shows wrong credentials too often is told to wait, and costs no more than that answer.
//!
//! Only a credential that was shown and failed counts, and only such a one is held up. A good one is let in from wherever it
//! comes: it is looked up by its hash, or verified with a key that is here, which costs less than to answer. So nobody who
//! guesses behind the address of others locks them out, and a page, or anybody who shows nothing, counts for nothing. That a
//! right guess would be let in costs no safety: what is configured has at least 20 bytes, and tokens of sessions 256 bits.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Mutex,
    time::{Duration, Instant},
};

use super::recent::Recent;

/// Failures that a source may have at once: a client with an old token tries it a few times.
const BURST: f64 = 20.0;

/// One failure is forgiven in this time: a guesser has 28,800 a day.
const FORGIVEN_EACH: Duration = Duration::from_secs(3);

/// Sources that are remembered; the one that failed longest ago makes room.
const MAX_SOURCES: usize = 4_096;

/// Where a request comes from, as far as one person can choose it: an IPv4 address, or the /64 that an IPv6 host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Source(IpAddr);

impl Source {
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(IpAddr::V4(address)),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self(IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
            }
        }
    }
}

/// The failures of a source that are not forgiven yet.
#[derive(Debug, Clone, Copy)]
struct Failures {
    count: f64,
    at: Instant,
}

impl Failures {
    fn left_at(self, now: Instant) -> f64 {
        let forgiven = now.saturating_duration_since(self.at).as_secs_f64() / FORGIVEN_EACH.as_secs_f64();
        (self.count - forgiven).max(0.0)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct SourceLimiter(Mutex<Recent<Source, Failures>>);

impl Default for SourceLimiter {
    fn default() -> Self {
        Self(Mutex::new(Recent::new(MAX_SOURCES)))
    }
}

impl SourceLimiter {
    /// Counts a wrong credential of this source.
    ///
    /// # Errors
    /// When there were too many: how long to wait with the next.
    pub fn failed(&self, source: Source, now: Instant) -> Result<(), Duration> {
        let mut sources = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let failures = sources.get_or(&source, || Failures { count: 0.0, at: now });
        let left = failures.left_at(now);
        let excess = left - (BURST - 1.0);
        if excess > 0.0 {
            return Err(FORGIVEN_EACH.mul_f64(excess));
        }
        *failures = Failures { count: left + 1.0, at: now };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    #[test]
    fn a_source_has_a_burst_of_failures_and_one_more_every_three_seconds() {
        let (limiter, start) = (SourceLimiter::default(), Instant::now());
        let (guesser, other) = (source("192.0.2.7"), source("192.0.2.8"));
        for _ in 0..20 {
            limiter.failed(guesser, start).unwrap();
        }
        assert_eq!(limiter.failed(guesser, start), Err(Duration::from_secs(3)));
        limiter.failed(other, start).unwrap();
        let later = start + Duration::from_secs(3);
        limiter.failed(guesser, later).unwrap();
        assert!(limiter.failed(guesser, later).is_err());
        for _ in 0..20 {
            limiter.failed(guesser, start + Duration::from_secs(63)).unwrap();
        }
    }

    #[test]
    fn a_source_is_what_one_person_can_choose() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1:2:3"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:192.0.2.7"), source("192.0.2.7"));
        assert_ne!(source("192.0.2.7"), source("192.0.2.8"));
    }

    #[test]
    fn more_sources_than_are_remembered_take_no_more_memory() {
        let (limiter, now) = (SourceLimiter::default(), Instant::now());
        for number in 0..5_000_u32 {
            limiter.failed(Source::of(IpAddr::V4(number.into())), now).unwrap();
        }
        assert_eq!(limiter.0.lock().unwrap().len(), MAX_SOURCES);
    }
}
