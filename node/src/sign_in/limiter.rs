//! How often a source may try: a bucket for each, that fills again with time.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Most sources that are counted apart; beyond it the one goes that was quiet for the longest time.
const MAX_SOURCES: usize = 4_096;

/// A person asks for a code once, and an office that comes to work has one address: twenty at the same time, then one each
/// three seconds. How many wait at the same time has its own bound, so this one only keeps the log from being filled.
pub(super) fn of_asks() -> Limiter {
    Limiter::new(20, Duration::from_secs(3))
}

/// Devices ask every five seconds, and there may be some behind one address.
pub(super) fn of_polls() -> Limiter {
    Limiter::new(30, Duration::from_secs(1))
}

/// A launch code has 256 bits: whoever fails does not guess it, and is only kept from costing much.
pub(super) fn of_launches() -> Limiter {
    Limiter::new(20, Duration::from_secs(3))
}

/// Counts tries by source.
pub(super) struct Limiter {
    burst: u32,
    /// After this time one more try is free.
    every: Duration,
    sources: Mutex<HashMap<String, Bucket>>,
}

struct Bucket {
    /// Tries that are not forgiven yet, in time.
    owed: Duration,
    at: Instant,
}

impl Limiter {
    fn new(burst: u32, every: Duration) -> Self {
        Self { burst, every, sources: Mutex::default() }
    }

    /// Counts a try.
    ///
    /// # Errors
    /// When there were too many: how long to wait for the next.
    pub(super) fn try_from(&self, source: &str, now: Instant) -> Result<(), Duration> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if sources.len() >= MAX_SOURCES && !sources.contains_key(source) {
            let quiet = sources.iter().min_by_key(|(_, bucket)| bucket.at).map(|(source, _)| source.clone());
            quiet.map(|source| sources.remove(&source));
        }
        let bucket = sources.entry(source.to_owned()).or_insert(Bucket { owed: Duration::ZERO, at: now });
        bucket.owed = bucket.owed.saturating_sub(now.saturating_duration_since(bucket.at));
        bucket.at = now;
        let room = self.every * (self.burst - 1);
        if bucket.owed > room {
            return Err(bucket.owed - room);
        }
        bucket.owed += self.every;
        Ok(())
    }
}

/// What tries are counted by: an IPv4 address, or the network that one subscriber has of IPv6.
pub(super) fn source_of(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_its_burst_and_then_one_try_each_while() {
        let limiter = Limiter::new(3, Duration::from_secs(10));
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(limiter.try_from("a", start), Ok(()));
        }
        assert_eq!(limiter.try_from("a", start), Err(Duration::from_secs(10)));
        assert_eq!(limiter.try_from("b", start), Ok(()), "another source is another matter");
        let later = start + Duration::from_secs(10);
        assert_eq!(limiter.try_from("a", later), Ok(()));
        assert!(limiter.try_from("a", later).is_err());
        for _ in 0..3 {
            assert_eq!(limiter.try_from("a", later + Duration::from_secs(60)), Ok(()));
        }
    }

    #[test]
    fn the_list_of_sources_has_a_bound_and_forgets_the_quiet_ones() {
        let limiter = Limiter::new(1, Duration::from_secs(3600));
        let start = Instant::now();
        limiter.try_from("first", start).unwrap();
        for number in 0..MAX_SOURCES {
            let at = start + Duration::from_millis(1 + number as u64);
            limiter.try_from(&format!("source-{number}"), at).unwrap();
        }
        assert_eq!(limiter.sources.lock().unwrap().len(), MAX_SOURCES);
        assert_eq!(limiter.try_from("first", start + Duration::from_secs(60)), Ok(()));
    }

    #[test]
    fn a_source_is_an_address_or_a_network_of_one_subscriber() {
        for (address, source) in [
            ("10.1.2.3", "10.1.2.3"),
            ("::ffff:10.1.2.3", "10.1.2.3"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ] {
            assert_eq!(source_of(address.parse().unwrap()), source);
        }
    }
}
