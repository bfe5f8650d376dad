//! What stands before each call to a server: how many at the same time, the time that the server asked for, and a circuit
//! breaker, so that a server that does not answer is not asked by everybody, one timeout after the other.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

/// Calls in a row that were not answered until the breaker opens: one is an accident, five are a server that hangs.
const FAILURES_TO_OPEN: u32 = 5;

/// How long the breaker stays open the first time; it doubles while the probe fails.
const FIRST_OPEN: Duration = Duration::from_secs(5);

/// Longest time that it stays open: a server that is well again is noticed within it.
const LONGEST_OPEN: Duration = Duration::from_secs(60);

/// Longest time that a server may ask for with `Retry-After`: beyond it a person has to know.
pub(super) const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// What is waited for where a server that is asked too much does not say how long.
const UNSAID_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The guards of one server; cheap to clone.
#[derive(Clone)]
pub(super) struct Guards(Arc<Inner>);

struct Inner {
    slots: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The server wants no call before.
    not_before: Option<Instant>,
    breaker: Breaker,
}

/// How a call came out, as far as the server is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// It answered, whatever it said.
    Alive,
    /// It did not.
    Silent,
    /// That cannot be said: the caller went away.
    Unknown,
}

/// Why a call is not made now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    /// The server asked for time.
    Asked(Duration),
    /// The breaker is open.
    Open(Duration),
}

/// The right to make one call. Dropped without a word, it says nothing about the server.
pub(super) struct Pass<'a> {
    guards: &'a Guards,
    _slot: SemaphorePermit<'a>,
    told: bool,
}

impl Guards {
    pub(super) fn new(max_calls: usize) -> Self {
        Self(Arc::new(Inner { slots: Semaphore::new(max_calls.max(1)), state: Mutex::default() }))
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// Says why no call is to be made now, and for how long.
    pub(super) async fn enter(&self) -> Result<Pass<'_>, Closed> {
        // The semaphore is never closed.
        let Ok(slot) = self.0.slots.acquire().await else { return Err(Closed::Open(LONGEST_OPEN)) };
        let mut state = self.lock();
        let now = Instant::now();
        if let Some(left) =
            state.not_before.and_then(|until| until.checked_duration_since(now)).filter(|left| !left.is_zero())
        {
            return Err(Closed::Asked(left));
        }
        state.breaker.admit(now).map_err(Closed::Open)?;
        drop(state);
        Ok(Pass { guards: self, _slot: slot, told: false })
    }

    /// The server wants to be left alone for a while.
    pub(super) fn asked_for(&self, said: Option<&str>) -> Duration {
        let wait = said.and_then(retry_after).unwrap_or(UNSAID_RETRY_AFTER).min(LONGEST_RETRY_AFTER);
        let until = Instant::now() + wait;
        let mut state = self.lock();
        state.not_before = Some(state.not_before.map_or(until, |known| known.max(until)));
        wait
    }

    /// A new connection stands: what was true of the last one need not be true of it.
    pub(super) fn reconnected(&self) {
        self.lock().breaker = Breaker::default();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// Says how the call came out, and gives the place back.
    pub(super) fn tell(mut self, sign: Sign) {
        self.told = true;
        self.guards.lock().breaker.heard(sign, Instant::now());
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.guards.lock().breaker.heard(Sign::Unknown, Instant::now());
        }
    }
}

/// `Retry-After`: seconds, or a date.
fn retry_after(said: &str) -> Option<Duration> {
    if let Ok(seconds) = said.trim().parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(said.trim()).ok()?;
    Some(until.duration_since(std::time::SystemTime::now()).unwrap_or_default())
}

/// Closed while calls are answered; open after some that were not; then one call at a time is let through to see.
#[derive(Debug, Default)]
struct Breaker {
    failures: u32,
    open_until: Option<Instant>,
    open_for: Duration,
    probing: bool,
}

impl Breaker {
    fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        let Some(until) = self.open_until else { return Ok(()) };
        let left = until.saturating_duration_since(now);
        if !left.is_zero() {
            return Err(left);
        }
        if self.probing {
            return Err(FIRST_OPEN);
        }
        self.probing = true;
        Ok(())
    }

    fn heard(&mut self, sign: Sign, now: Instant) {
        match sign {
            Sign::Alive => *self = Self::default(),
            Sign::Unknown => self.probing = false,
            Sign::Silent => {
                self.failures += 1;
                if self.probing || self.failures == FAILURES_TO_OPEN {
                    self.open_for = (self.open_for * 2).clamp(FIRST_OPEN, LONGEST_OPEN);
                    self.open_until = Some(now + self.open_for);
                }
                self.probing = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn tell(guards: &Guards, sign: Sign) {
        guards.enter().await.map(|pass| pass.tell(sign)).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_asked_by_one_call_at_a_time_and_ever_more_rarely() {
        let guards = Guards::new(8);
        for _ in 0..FAILURES_TO_OPEN {
            tell(&guards, Sign::Silent).await;
        }
        assert_eq!(guards.enter().await.err(), Some(Closed::Open(FIRST_OPEN)));
        tokio::time::advance(FIRST_OPEN).await;
        let probe = guards.enter().await.unwrap();
        assert!(guards.enter().await.is_err(), "one at a time");
        probe.tell(Sign::Silent);
        assert_eq!(guards.enter().await.err(), Some(Closed::Open(FIRST_OPEN * 2)));
        tokio::time::advance(FIRST_OPEN * 2).await;
        drop(guards.enter().await.unwrap());
        tell(&guards, Sign::Alive).await;
        for _ in 0..FAILURES_TO_OPEN - 1 {
            tell(&guards, Sign::Silent).await;
        }
        assert!(guards.enter().await.is_ok(), "the count began anew");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_given_up_say_nothing_about_the_server() {
        let guards = Guards::new(8);
        for _ in 0..FAILURES_TO_OPEN * 2 {
            drop(guards.enter().await.unwrap());
        }
        assert!(guards.enter().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_asks_for_time_gets_it_within_a_bound() {
        let guards = Guards::new(8);
        assert_eq!(guards.asked_for(Some("7")), Duration::from_secs(7));
        guards.asked_for(Some("2"));
        assert_eq!(guards.enter().await.err(), Some(Closed::Asked(Duration::from_secs(7))));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert!(guards.enter().await.is_ok());
        assert_eq!(guards.asked_for(Some("999999999")), LONGEST_RETRY_AFTER);
        assert_eq!(guards.asked_for(Some("soon")), UNSAID_RETRY_AFTER);
        assert_eq!(guards.asked_for(Some("Thu, 01 Jan 1970 00:00:00 GMT")), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_calls_are_under_way_than_there_are_places() {
        let guards = Guards::new(1);
        let first = guards.enter().await.unwrap();
        let mut second = std::pin::pin!(guards.enter());
        assert!(futures::poll!(&mut second).is_pending());
        first.tell(Sign::Alive);
        assert!(second.await.is_ok());
    }
}
