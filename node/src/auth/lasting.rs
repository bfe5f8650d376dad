//! Responses that last no longer than what they were asked with: a token, a certificate, a session. The body of a response ends
//! with that, and says why where its binding has a place for it: in the trailers of gRPC, and in a comment at the end of
//! server-sent events. A session may be revoked, and then what waits for it is refused too; a request that came with a token
//! in its time is answered.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use hyper::body::{Frame, SizeHint};
use serde_json::json;

use super::jwt;

/// Answers up to this are on their way at once, and nothing is gained by watching over them.
const SHORT_ANSWER: u64 = 64 * 1024;

/// How long the end is slept towards before the clock is looked at again, which somebody may have set.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Why a response ends that lasted as long as its token or certificate.
pub(super) const OVER: &str = "the credential that this was asked with is over: show a new one";

/// Ready once what a request was asked with is over.
pub(crate) type Over = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns when this time of the wall clock, since 1970, has come.
pub(super) async fn past(end: Duration) {
    loop {
        let left = end.saturating_sub(jwt::now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK_AGAIN)).await;
    }
}

/// The response as it comes, as long as `over` is not ready; `why` says what that means.
pub(crate) async fn until(
    mut over: Over,
    why: &'static str,
    is_grpc: bool,
    response: impl Future<Output = Response>,
) -> Response {
    let response = tokio::select! {
        response = response => response,
        () = &mut over => return refused(why, is_grpc),
    };
    ending_with(over, why, is_grpc, response)
}

/// A response whose body ends when `over` is ready.
pub(super) fn ending_with(over: Over, why: &'static str, is_grpc: bool, response: Response) -> Response {
    let (parts, body) = response.into_parts();
    let end = End { why, how: How::of(is_grpc, &parts.headers) };
    Response::from_parts(parts, guarded(body, over, end))
}

/// Whether a request is one of gRPC.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    starts_with(headers, "application/grpc")
}

fn starts_with(headers: &HeaderMap, content_type: &str) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(content_type.as_bytes()))
}

/// The answer to a request that waited until what it was asked with was over.
fn refused(why: &'static str, is_grpc: bool) -> Response {
    if is_grpc {
        return ([(header::CONTENT_TYPE, "application/grpc")], grpc_status(why), Body::empty()).into_response();
    }
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::WWW_AUTHENTICATE, "Bearer realm=\"towline\", error=\"invalid_token\""),
    ];
    let body = json!({ "error": { "code": "unauthenticated", "message": why } });
    (StatusCode::UNAUTHORIZED, headers, body.to_string()).into_response()
}

/// What gRPC says for it.
fn grpc_status(why: &'static str) -> HeaderMap {
    HeaderMap::from_iter([
        (HeaderName::from_static("grpc-status"), HeaderValue::from_static("16")),
        (HeaderName::from_static("grpc-message"), HeaderValue::from_static(why)),
    ])
}

/// How a body says why it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Grpc,
    Events,
    Silent,
}

impl How {
    fn of(is_grpc: bool, response: &HeaderMap) -> Self {
        match (is_grpc, starts_with(response, "text/event-stream")) {
            (true, _) => How::Grpc,
            (false, true) => How::Events,
            (false, false) => How::Silent,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct End {
    why: &'static str,
    how: How,
}

impl End {
    fn frame(self) -> Option<Frame<Bytes>> {
        match self.how {
            How::Grpc => Some(Frame::trailers(grpc_status(self.why))),
            How::Events => Some(Frame::data(Bytes::from(format!(": {}\n\n", self.why)))),
            How::Silent => None,
        }
    }
}

fn guarded(body: Body, over: Over, end: End) -> Body {
    if body.is_end_stream() || body.size_hint().exact().is_some_and(|length| length <= SHORT_ANSWER) {
        return body;
    }
    Body::new(Guarded { body, over: Some(over), end })
}

/// A body that ends with what it was asked with.
struct Guarded {
    body: Body,
    /// None once it is over.
    over: Option<Over>,
    end: End,
}

impl HttpBody for Guarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(over) = &mut self.over else { return Poll::Ready(None) };
        if over.as_mut().poll(context).is_ready() {
            self.over = None;
            self.body = Body::empty();
            return Poll::Ready(self.end.frame().map(Ok));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.over.is_none() || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.over.is_none() { SizeHint::with_exact(0) } else { SizeHint::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response that says one word and stays open until the sender says that it is over.
    async fn open(content_type: &'static str, is_grpc: bool) -> (tokio::sync::oneshot::Sender<()>, Body) {
        use futures::StreamExt as _;
        let (end, ended) = tokio::sync::oneshot::channel();
        let words =
            futures::stream::iter([Ok::<_, std::convert::Infallible>("word")]).chain(futures::stream::pending());
        let response = ([(header::CONTENT_TYPE, content_type)], Body::from_stream(words)).into_response();
        let over: Over = Box::pin(async { drop(ended.await) });
        (end, until(over, "it is over", is_grpc, async { response }).await.into_body())
    }

    async fn frame(body: &mut Body) -> Option<Frame<Bytes>> {
        let next = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        tokio::time::timeout(Duration::from_secs(30), next).await.expect("a frame, or the end").map(Result::unwrap)
    }

    #[tokio::test]
    async fn a_body_ends_with_what_it_was_asked_with_and_says_why_where_it_can() {
        let (end, mut body) = open("application/octet-stream", false).await;
        assert_eq!(frame(&mut body).await.unwrap().into_data().unwrap(), "word");
        end.send(()).unwrap();
        assert!(frame(&mut body).await.is_none());
        assert!(frame(&mut body).await.is_none(), "and stays so");

        let (end, mut body) = open("text/event-stream", false).await;
        frame(&mut body).await.unwrap();
        end.send(()).unwrap();
        assert_eq!(frame(&mut body).await.unwrap().into_data().unwrap(), ": it is over\n\n");
        assert!(frame(&mut body).await.is_none());

        let (end, mut body) = open("application/grpc+proto", true).await;
        frame(&mut body).await.unwrap();
        end.send(()).unwrap();
        let trailers = frame(&mut body).await.unwrap().into_trailers().unwrap();
        assert_eq!(
            (trailers["grpc-status"].as_bytes(), trailers["grpc-message"].as_bytes()),
            (&b"16"[..], &b"it is over"[..])
        );
        assert!(frame(&mut body).await.is_none());
    }

    #[tokio::test]
    async fn a_request_that_waits_is_refused_once_that_is_over() {
        for (is_grpc, status) in [(false, 401), (true, 200)] {
            let over: Over = Box::pin(past(jwt::now() + Duration::from_millis(20)));
            let answer = until(over, "it is over", is_grpc, std::future::pending()).await;
            assert_eq!(answer.status().as_u16(), status);
            assert_eq!(answer.headers().contains_key("grpc-status"), is_grpc);
        }
    }
}
