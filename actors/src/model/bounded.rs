//! Timeouts on a provider, and the rule that an answer has an end.

use async_trait::async_trait;
use futures::{StreamExt, stream};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

use super::{Delta, ModelError, ModelProvider, ModelRequest, ModelStream, ProviderInfo};
use crate::config::ModelTimeouts;

/// A provider that always ends in time: with [`Delta::End`], or with an error.
pub struct Bounded<P> {
    inner: P,
    timeouts: ModelTimeouts,
}

impl<P: ModelProvider> Bounded<P> {
    /// Wraps a provider.
    pub fn new(inner: P, timeouts: ModelTimeouts) -> Self {
        Self { inner, timeouts }
    }
}

#[async_trait]
impl<P: ModelProvider> ModelProvider for Bounded<P> {
    fn info(&self) -> ProviderInfo {
        self.inner.info()
    }

    async fn complete(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let started = Instant::now();
        let total = started + self.timeouts.total;
        let first = total.min(started + self.timeouts.first);
        let answer = timeout_at(first, self.inner.complete(request)).await.map_err(|_| timed_out("an answer"))??;
        let state = Reading { answer, next: first, total, idle: self.timeouts.idle, over: false };
        Ok(stream::unfold(state, Reading::step).boxed())
    }
}

/// A stream that is being read against its deadlines.
struct Reading {
    answer: ModelStream,
    next: Instant,
    total: Instant,
    idle: Duration,
    over: bool,
}

impl Reading {
    async fn step(mut self) -> Option<(Result<Delta, ModelError>, Self)> {
        if self.over {
            return None;
        }
        let item = match timeout_at(self.next, self.answer.next()).await {
            Ok(Some(item)) => item,
            Ok(None) => Err(truncated()),
            Err(_) => Err(timed_out("the next part of the answer")),
        };
        self.over = matches!(item, Ok(Delta::End) | Err(_));
        self.next = self.total.min(Instant::now() + self.idle);
        Some((item, self))
    }
}

fn timed_out(what: &str) -> ModelError {
    ModelError::passing("timeout", format!("wait for {what} of the model: timed out"))
}

fn truncated() -> ModelError {
    ModelError::passing("truncated_stream", "the model's answer stopped without an end")
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt;

    struct Plays(Vec<Delta>, bool);

    #[async_trait]
    impl ModelProvider for Plays {
        fn info(&self) -> ProviderInfo {
            ProviderInfo { name: "plays".into(), simulated: true }
        }

        async fn complete(&self, _: ModelRequest) -> Result<ModelStream, ModelError> {
            let deltas = stream::iter(self.0.clone().into_iter().map(Ok));
            Ok(if self.1 { deltas.chain(stream::pending()).boxed() } else { deltas.boxed() })
        }
    }

    #[tokio::test]
    async fn a_stream_without_an_end_is_an_error() {
        let provider = Bounded::new(Plays(vec![Delta::Text("half".into())], false), ModelTimeouts::default());
        let answer = provider.complete(super::super::tests::request("hi")).await.unwrap();
        let error = answer.try_collect::<Vec<_>>().await.unwrap_err();
        assert_eq!(error.error_type, "truncated_stream");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_times_out() {
        let provider = Bounded::new(Plays(vec![Delta::Text("half".into())], true), ModelTimeouts::default());
        let answer = provider.complete(super::super::tests::request("hi")).await.unwrap();
        let error = answer.try_collect::<Vec<_>>().await.unwrap_err();
        assert_eq!(error.error_type, "timeout");
    }

    #[tokio::test]
    async fn nothing_comes_after_the_end() {
        let provider =
            Bounded::new(Plays(vec![Delta::End, Delta::Text("late".into())], true), ModelTimeouts::default());
        let answer = provider.complete(super::super::tests::request("hi")).await.unwrap();
        assert_eq!(answer.try_collect::<Vec<_>>().await.unwrap(), vec![Delta::End]);
    }
}
