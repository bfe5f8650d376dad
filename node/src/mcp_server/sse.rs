//! Server-sent events: how an answer is written that takes its time, and what a server says by itself.

use std::{convert::Infallible, fmt::Display, time::Duration};

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse, Response},
};
use futures::{Stream, future::BoxFuture, stream};
use http::{HeaderName, header};
use serde_json::Value;
use tokio::sync::mpsc;

/// How often a silent stream shows that it is alive, so that proxies and clients do not take it for dead.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What shows that.
const BEAT: &[u8] = b": keep-alive\n\n";

/// Most messages on their way to a stream: who writes more waits for its client.
pub(super) const QUEUE: usize = 16;

/// One message. JSON text has no line breaks, so its data is one line.
pub(super) fn frame(id: Option<&str>, message: &impl Display) -> Bytes {
    Bytes::from(match id {
        Some(id) => format!("id: {id}\ndata: {message}\n\n"),
        None => format!("data: {message}\n\n"),
    })
}

/// An event that says nothing but where its client stands.
pub(super) fn place(id: &str) -> Bytes {
    Bytes::from(format!("id: {id}\ndata:\n\n"))
}

pub(crate) fn beat() -> Bytes {
    Bytes::from_static(BEAT)
}

/// A response whose body is this stream.
pub(crate) fn response(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let frames = futures::StreamExt::map(frames, Ok::<_, Infallible>);
    (headers, Body::from_stream(frames)).into_response()
}

/// A call that is under way.
struct Answering {
    /// What was said already.
    first: Option<Value>,
    messages: mpsc::Receiver<Value>,
    /// None once it has answered.
    answer: Option<BoxFuture<'static, String>>,
}

impl Answering {
    /// The answer, behind what was said just before it.
    fn last(&mut self, answer: &str) -> Bytes {
        let mut frames = Vec::new();
        while let Ok(message) = self.messages.try_recv() {
            frames.extend_from_slice(&frame(None, &message));
        }
        frames.extend_from_slice(&frame(None, &answer));
        Bytes::from(frames)
    }
}

/// At first what was said already, then what `messages` says meanwhile, and in the end the answer. A client that goes away ends the work on it.
pub(super) fn answering(
    first: Option<Value>,
    messages: mpsc::Receiver<Value>,
    answer: BoxFuture<'static, String>,
) -> Response {
    let answering = Answering { first, messages, answer: Some(answer) };
    response(stream::unfold(answering, |mut answering| async move {
        if let Some(first) = answering.first.take() {
            return Some((frame(None, &first), answering));
        }
        let answer = answering.answer.as_mut()?;
        let frame = tokio::select! {
            biased;
            Some(message) = answering.messages.recv() => frame(None, &message),
            message = answer => {
                answering.answer = None;
                answering.last(&message)
            }
            () = tokio::time::sleep(KEEP_ALIVE) => beat(),
        };
        Some((frame, answering))
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn what_is_said_meanwhile_comes_before_the_answer() {
        let (say, messages) = mpsc::channel(QUEUE);
        let answer = Box::pin(async move {
            say.send(json!({ "number": 1 })).await.unwrap();
            tokio::task::yield_now().await;
            say.send(json!({ "number": 2 })).await.unwrap();
            json!({ "result": "done\nsaid" }).to_string()
        });
        let body = answering(Some(json!("first")), messages, answer).into_body();
        let text = axum::body::to_bytes(body, 1_000).await.unwrap();
        let expected =
            "data: \"first\"\n\ndata: {\"number\":1}\n\ndata: {\"number\":2}\n\ndata: {\"result\":\"done\\nsaid\"}\n\n";
        assert_eq!(text, expected);
    }
}
