//! An answer over HTTP/2 that comes before the whole request has been read. When its body is dropped the stream is reset, and
//! clients that still send (curl does) take that for a broken connection and never show the answer. So what nobody read is
//! read and thrown away behind the answer, for a moment: who sees an answer stops sending.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use http::{Request, Response, Version};
use hyper::body::{Frame, SizeHint};
use tokio::time::Sleep;

/// How long a client may take to see the answer.
const MOMENT: Duration = Duration::from_secs(1);
/// Most that is thrown away: what is on its way through the buffers of both sides.
const MOST_BYTES: usize = 1024 * 1024;

/// Where the body of a request comes back to when nobody reads it any more.
type Rest<B> = Arc<Mutex<Option<B>>>;

/// Lends the body of a request out, over HTTP/2; the second is what is left of it.
pub(super) fn lend<B>(request: Request<B>) -> (Request<Body>, Option<Rest<B>>)
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<axum::BoxError>,
{
    if request.version() != Version::HTTP_2 || request.body().is_end_stream() {
        return (request.map(Body::new), None);
    }
    let rest = Rest::default();
    let lend = |body| Body::new(Lent { body: Some(body), rest: Arc::clone(&rest) });
    (request.map(lend), Some(Arc::clone(&rest)))
}

/// A response behind which the rest of its request is thrown away.
pub(super) fn behind<B>(response: Response<Body>, rest: Option<Rest<B>>) -> Response<Body>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
{
    let Some(rest) = rest else { return response };
    response.map(|body| Body::new(Answer { body, rest, thrown: 0, moment: None }))
}

fn held<B>(rest: &Rest<B>) -> MutexGuard<'_, Option<B>> {
    rest.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Lent<B: HttpBody> {
    /// None once it is given back.
    body: Option<B>,
    rest: Rest<B>,
}

impl<B: HttpBody + Unpin> HttpBody for Lent<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl<B: HttpBody> Drop for Lent<B> {
    fn drop(&mut self) {
        *held(&self.rest) = self.body.take().filter(|body| !body.is_end_stream());
    }
}

struct Answer<B> {
    body: Body,
    rest: Rest<B>,
    thrown: usize,
    moment: Option<Pin<Box<Sleep>>>,
}

impl<B: HttpBody<Data = Bytes> + Unpin> Answer<B> {
    /// Ready once there is nothing left that is worth to be waited for.
    fn throw_away(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let moment = self.moment.get_or_insert_with(|| Box::pin(tokio::time::sleep(MOMENT)));
        let is_over = moment.as_mut().poll(context).is_ready();
        let mut rest = held(&self.rest);
        while let Some(body) = rest.as_mut().filter(|_| !is_over && self.thrown <= MOST_BYTES) {
            match Pin::new(body).poll_frame(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(frame))) => self.thrown += frame.data_ref().map_or(0, Bytes::len),
                Poll::Ready(None | Some(Err(_))) => *rest = None,
            }
        }
        *rest = None;
        Poll::Ready(())
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Answer<B> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let next = Pin::new(&mut self.body).poll_frame(context);
        if matches!(next, Poll::Ready(None)) { self.throw_away(context).map(|()| None) } else { next }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && held(&self.rest).is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use tokio::sync::mpsc;

    use super::*;

    type Piece = Result<Bytes, std::convert::Infallible>;

    /// The body of a request whose client sends what it is given.
    fn sent() -> (mpsc::Sender<Piece>, Body) {
        let (sender, mut receiver) = mpsc::channel(64);
        (sender, Body::from_stream(futures::stream::poll_fn(move |context| receiver.poll_recv(context))))
    }

    fn request(version: Version, body: Body) -> Request<Body> {
        Request::builder().version(version).body(body).unwrap()
    }

    async fn frame(body: &mut Body) -> Option<Bytes> {
        let next = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        next.await.map(|frame| frame.unwrap().into_data().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_when_its_client_has_stopped_and_no_later_than_a_moment() {
        for stops in [true, false] {
            let (sender, body) = sent();
            let (request, rest) = lend(request(Version::HTTP_2, body));
            drop(request);
            let mut answer = behind("refused".into_response(), rest).into_body();
            assert!(!answer.is_end_stream(), "the stream is not closed with the answer");
            assert_eq!(frame(&mut answer).await.unwrap(), "refused");
            sender.send(Ok(Bytes::from_static(b"more"))).await.unwrap();
            let kept = (!stops).then_some(sender);
            assert_eq!(frame(&mut answer).await, None, "{stops}");
            drop(kept);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_stop_is_not_read_for_ever() {
        let (sender, body) = sent();
        let (request, rest) = lend(request(Version::HTTP_2, body));
        drop(request);
        let sending = tokio::spawn(async move {
            let piece = Bytes::from(vec![0; 64 * 1024]);
            let mut pieces = 0;
            while sender.send(Ok(piece.clone())).await.is_ok() {
                pieces += 1;
            }
            pieces
        });
        let mut answer = behind("refused".into_response(), rest).into_body();
        while frame(&mut answer).await.is_some() {}
        drop(answer);
        assert!(sending.await.unwrap() < 200);
    }

    #[tokio::test]
    async fn what_was_read_and_what_came_over_another_http_is_answered_as_it_is() {
        let (request, rest) = lend(request(Version::HTTP_2, Body::from("whole")));
        assert_eq!(axum::body::to_bytes(request.into_body(), 64).await.unwrap(), "whole");
        let mut answer = behind("fine".into_response(), rest).into_body();
        assert_eq!(frame(&mut answer).await.unwrap(), "fine");
        assert!(answer.is_end_stream());
        let (_sender, body) = sent();
        assert!(lend(super::tests::request(Version::HTTP_11, body)).1.is_none());
    }
}
