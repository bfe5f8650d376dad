//! How much one principal may ask: requests in a time, and streams at once. Operators are not held up: who looks after a
//! cluster must reach it also when it is asked too much.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use towline_core::{Principal, PrincipalId, PrincipalRole};

use super::recent::Recent;

/// Default of `limits.requests_per_second`, which is also how many may come at once: a busy program, and not a core's worth.
pub(crate) const DEFAULT_REQUESTS_PER_SECOND: u32 = 200;

/// Default of `limits.streams_per_principal`: a stream costs a connection and a page of events.
pub(crate) const DEFAULT_STREAMS: u32 = 1_024;

/// Principals that are remembered: whose bucket is forgotten begins with a full one.
const MAX_PRINCIPALS: usize = 4_096;

/// What a principal may still ask, and when that was so.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rates {
    per_second: f64,
    most_streams: usize,
    buckets: Mutex<Recent<PrincipalId, Bucket>>,
    streams: Arc<Mutex<HashMap<PrincipalId, usize>>>,
}

/// The place of an open stream; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct StreamPlace {
    streams: Arc<Mutex<HashMap<PrincipalId, usize>>>,
    owner: Option<PrincipalId>,
}

impl Rates {
    pub fn new(per_second: u32, most_streams: u32) -> Self {
        Self {
            per_second: f64::from(per_second),
            most_streams: most_streams as usize,
            buckets: Mutex::new(Recent::new(MAX_PRINCIPALS)),
            streams: Arc::default(),
        }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// When the next one may come.
    pub fn request(&self, by: &Principal, now: Instant) -> Result<(), Duration> {
        let Some(id) = limited(by) else { return Ok(()) };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.get_or(id, || Bucket { left: self.per_second, at: now });
        let gained = now.saturating_duration_since(bucket.at).as_secs_f64() * self.per_second;
        *bucket = Bucket { left: (bucket.left + gained).min(self.per_second), at: now };
        if bucket.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.left) / self.per_second));
        }
        bucket.left -= 1.0;
        Ok(())
    }

    /// A place for one more stream, if its principal has not too many.
    pub fn stream(&self, by: &Principal) -> Option<StreamPlace> {
        let owner = limited(by).cloned();
        if let Some(owner) = &owner {
            let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            let open = streams.entry(owner.clone()).or_default();
            if *open >= self.most_streams {
                return None;
            }
            *open += 1;
        }
        Some(StreamPlace { streams: Arc::clone(&self.streams), owner })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let Some(owner) = &self.owner else { return };
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = streams.get_mut(owner) {
            *open -= 1;
            if *open == 0 {
                streams.remove(owner);
            }
        }
    }
}

/// Who is held up: agents of the mesh are bounded by the tasks that they run.
fn limited(by: &Principal) -> Option<&PrincipalId> {
    match by {
        Principal::Named { id, role } => (*role != PrincipalRole::Operator).then_some(id),
        Principal::Operator | Principal::Node(_) | Principal::Agent { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: &str, role: PrincipalRole) -> Principal {
        Principal::Named { id: id.parse().unwrap(), role }
    }

    #[test]
    fn a_principal_has_its_own_rate_whatever_its_role_is() {
        let (rates, start) = (Rates::new(10, 1), Instant::now());
        let (ada, bob) = (named("ada", PrincipalRole::User), named("bob", PrincipalRole::User));
        for _ in 0..10 {
            rates.request(&ada, start).unwrap();
        }
        let wait = rates.request(&ada, start).unwrap_err();
        assert_eq!(wait, Duration::from_millis(100));
        assert!(rates.request(&named("ada", PrincipalRole::Agent), start).is_err());
        rates.request(&bob, start).unwrap();
        rates.request(&ada, start + wait).unwrap();
        for _ in 0..100 {
            rates.request(&Principal::Operator, start).unwrap();
            rates.request(&named("ada", PrincipalRole::Operator), start).unwrap();
        }
    }

    #[test]
    fn a_stream_has_a_place_until_it_ends() {
        let rates = Rates::new(10, 2);
        let ada = named("ada", PrincipalRole::User);
        let first = rates.stream(&ada).unwrap();
        let _second = rates.stream(&ada).unwrap();
        assert!(rates.stream(&ada).is_none());
        assert!(rates.stream(&named("bob", PrincipalRole::User)).is_some());
        assert!((0..10).map(|_| rates.stream(&Principal::Operator)).all(|place| place.is_some()));
        drop(first);
        assert!(rates.stream(&ada).is_some());
    }
}
