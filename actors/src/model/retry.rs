//! Tries a model call again when the failure may pass.

use async_trait::async_trait;
use futures::{StreamExt, stream};
use std::time::{Duration, SystemTime};

use super::{ModelError, ModelProvider, ModelRequest, ModelStream, ProviderInfo, attempt};

/// Attempts of one call: a provider that refused three times in a row is down, and the step says so.
pub const MAX_ATTEMPTS: u32 = 3;

/// Wait before the second attempt; it doubles for the third.
pub const FIRST_DELAY: Duration = Duration::from_millis(500);

/// Longest wait that a provider's `Retry-After` can ask for: beyond it the failure is more use than the wait.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(20);

/// A provider that is asked again after 429, 5xx, timeouts and connection errors, as long as nothing of the answer was
/// seen: a delta may already be in the caller's stream.
pub struct WithRetry<P> {
    inner: P,
}

impl<P: ModelProvider> WithRetry<P> {
    /// Wraps a provider.
    pub fn new(inner: P) -> Self {
        Self { inner }
    }

    /// The stream of one attempt, if its first delta came.
    async fn attempt(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let mut answer = self.inner.complete(request).await?;
        let Some(first) = answer.next().await else { return Ok(answer) };
        let first = first?;
        Ok(stream::once(async move { Ok(first) }).chain(answer).boxed())
    }
}

#[async_trait]
impl<P: ModelProvider> ModelProvider for WithRetry<P> {
    fn info(&self) -> ProviderInfo {
        self.inner.info()
    }

    async fn complete(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let mut number = 1;
        loop {
            let since = SystemTime::now();
            let error = match self.attempt(request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some(delay) = delay_after(number, &error) else { return Err(error) };
            attempt::failed(&request, number, since, &error, delay);
            tracing::info!(
                attempt = number,
                delay_ms = delay.as_millis() as u64,
                error_type = %error.error_type,
                model = request.model,
                "model call is tried again"
            );
            tokio::time::sleep(delay).await;
            number += 1;
        }
    }
}

/// How long to wait before the next attempt; `None` if there is none.
fn delay_after(attempt: u32, error: &ModelError) -> Option<Duration> {
    if !error.retryable || attempt >= MAX_ATTEMPTS {
        return None;
    }
    let own = FIRST_DELAY * 2u32.pow(attempt - 1);
    match error.retry_after {
        Some(asked) if asked > MAX_RETRY_AFTER => None,
        Some(asked) => Some(asked.max(Duration::from_millis(1))),
        None => Some(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Delta, tests::request};
    use futures::TryStreamExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Fails with `error` for the first `times` calls; if `late`, after a first delta.
    struct Fails {
        times: u32,
        error: ModelError,
        late: bool,
        calls: AtomicU32,
    }

    #[async_trait]
    impl ModelProvider for Fails {
        fn info(&self) -> ProviderInfo {
            ProviderInfo { name: "fails".into(), simulated: true }
        }

        async fn complete(&self, _: ModelRequest) -> Result<ModelStream, ModelError> {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            if call >= self.times {
                return Ok(stream::iter([Ok(Delta::Text("yes".into())), Ok(Delta::End)]).boxed());
            }
            if self.late {
                return Ok(stream::iter([Ok(Delta::Text("ha".into())), Err(self.error.clone())]).boxed());
            }
            Err(self.error.clone())
        }
    }

    fn fails(times: u32, error: ModelError, late: bool) -> WithRetry<Fails> {
        WithRetry::new(Fails { times, error, late, calls: AtomicU32::new(0) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_limited_call_is_tried_again() {
        let provider = fails(2, ModelError::passing("rate_limited", "429"), false);
        let deltas: Vec<_> = provider.complete(request("hi")).await.unwrap().try_collect().await.unwrap();
        assert_eq!(deltas.last(), Some(&Delta::End));
    }

    #[tokio::test(start_paused = true)]
    async fn the_third_failure_is_final() {
        let provider = fails(3, ModelError::passing("rate_limited", "429"), false);
        assert!(provider.complete(request("hi")).await.is_err());
        assert_eq!(provider.inner.calls.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_after_the_first_delta_is_not_retried() {
        let provider = fails(1, ModelError::passing("truncated_stream", "cut"), true);
        let answer = provider.complete(request("hi")).await.unwrap();
        assert!(answer.try_collect::<Vec<_>>().await.is_err());
        assert_eq!(provider.inner.calls.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permanent_failure_is_not_retried() {
        let provider = fails(1, ModelError::permanent("401", "bad key"), false);
        assert!(provider.complete(request("hi")).await.is_err());
        assert_eq!(provider.inner.calls.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_that_the_provider_asked_for_is_honoured() {
        let started = tokio::time::Instant::now();
        let error = ModelError::passing("rate_limited", "429").after(Some(Duration::from_secs(7)));
        drop(fails(1, error, false).complete(request("hi")).await.unwrap());
        assert_eq!(started.elapsed().as_secs(), 7);
    }
}
