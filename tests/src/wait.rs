//! Waiting for a state, with a limit.

use std::{future::Future, time::Duration};

/// The usual limit: far above what anything takes on a machine that is busy with other builds.
pub const LONG: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(40);

/// Asks until `state` gives a value; fails the test after [`LONG`], saying `what` it waited for.
pub async fn eventually<T, F>(what: &str, state: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    within(LONG, what, state).await
}

/// Asks until `state` gives a value; fails the test after `limit`, saying `what` it waited for.
pub async fn within<T, F>(limit: Duration, what: &str, mut state: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let asked = tokio::time::timeout(limit, async {
        loop {
            if let Some(value) = state().await {
                return value;
            }
            tokio::time::sleep(POLL).await;
        }
    });
    asked.await.unwrap_or_else(|_| panic!("waited {limit:?} in vain for {what}"))
}
