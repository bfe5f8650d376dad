//! Appends to one follower as a stream: a request does not wait for the answer to the one before it.
//!
//! ```text
//! openraft ──requests──▶ sent (prev, last, when) ──▶ gRPC ──▶ Raft::stream_append of the follower
//!          ◀──results─── matched with what was sent first ◀── gRPC ◀── one answer each, in order
//! ```
//! Answers carry no index: the transport keeps their order, so each belongs to the oldest request without one. A stream ends
//! with its first answer that is no success, and openraft opens another.
//!
//! openraft takes an answer for the answer to each request up to the entry that it acknowledges, later ones without entries
//! too, and counts the follower as heard from since the last of them was sent. A late answer would so confirm a leader that
//! nobody follows any more, and its reads. Therefore an answer is held back until the requests that it would speak for have
//! theirs, and none is sent while one is handed on.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use futures::{Stream, StreamExt, stream};
use openraft::{
    OptionalSend,
    base::BoxStream,
    network::RPCTypes,
    raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult},
};
use tokio::time::{Instant, timeout};
use tonic::{Status, Streaming};
use towline_core::NodeId;
use towline_proto::v1;

use super::super::RaftLogId;
use super::{
    APPEND_TIMEOUT, BACKOFF, Network, RPCError, Raft, RpcError, TypeConfig, append_request_from_proto,
    append_request_to_proto, append_response_from_proto, append_response_to_proto, fenced, stopped,
};
use crate::fences::{Asked, Certain};

type Answers = Pin<Box<dyn Stream<Item = Result<v1::AppendEntriesResponse, Status>> + Send>>;

/// A request that has no answer yet.
struct Unanswered {
    asked: Asked,
    /// What the follower had to hold before it was sent.
    certain: Certain,
    prev: Option<RaftLogId>,
    last: Option<RaftLogId>,
    sent: Instant,
}

impl Unanswered {
    fn new(request: &AppendEntriesRequest<TypeConfig>, certain: Certain) -> Self {
        let (asked, prev, sent) = (Asked::of(request), request.prev_log_id, Instant::now());
        let last = request.entries.last().map(|entry| entry.log_id).or(prev);
        Self { asked, certain, prev, last, sent }
    }
}

/// The requests without an answer, the oldest first. openraft bounds them: a follower takes 64 before it answers.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Flight>>);

#[derive(Default)]
struct Flight {
    unanswered: VecDeque<Unanswered>,
    /// Whether a result is handed on and openraft has not come back for the next.
    handing_on: bool,
    /// Who waits to send meanwhile.
    sender: Option<Waker>,
}

impl Sent {
    /// The next request of `input`, once it may be sent; what `note` makes of it is kept until it is answered.
    fn poll_request<S, R>(
        &self,
        input: &mut S,
        cx: &mut Context<'_>,
        note: impl FnOnce(&R) -> Unanswered,
    ) -> Poll<Option<R>>
    where
        S: Stream<Item = R> + Unpin,
    {
        let mut flight = self.lock();
        if flight.handing_on {
            flight.sender = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let request = input.poll_next_unpin(cx);
        if let Poll::Ready(Some(request)) = &request {
            flight.unanswered.push_back(note(request));
        }
        request
    }

    fn pop(&self) -> Option<Unanswered> {
        self.lock().unanswered.pop_front()
    }

    /// Whether `matching` would be taken for the answer to a request that has none. If not it is handed on, and nothing is
    /// sent until openraft comes back.
    fn holds_back(&self, matching: Option<RaftLogId>) -> bool {
        let mut flight = self.lock();
        let speaks_for = |next: &Unanswered| next.last <= matching || next.prev < matching;
        flight.handing_on = !flight.unanswered.front().is_some_and(speaks_for);
        !flight.handing_on
    }

    /// openraft has taken in what was handed on.
    fn came_back(&self) {
        let mut flight = self.lock();
        flight.handing_on = false;
        if let Some(sender) = flight.sender.take() {
            sender.wake();
        }
    }

    fn is_late(&self) -> bool {
        self.lock().unanswered.front().is_some_and(|oldest| oldest.sent.elapsed() >= APPEND_TIMEOUT)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Flight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a stream to a follower, and pauses if that fails: openraft pauses where it makes the first request, which a stream
/// that is not opened never asks for.
pub(super) async fn open<'s, S>(
    network: &'s mut Network,
    input: S,
) -> Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RpcError>>, RpcError>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
{
    let opened = try_open(network, input).await;
    if opened.is_err() {
        tokio::time::sleep(BACKOFF).await;
    }
    opened
}

/// A follower that does not know streams is remembered, and sent one call at a time from then on.
async fn try_open<'s, S>(
    network: &'s mut Network,
    input: S,
) -> Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RpcError>>, RpcError>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
{
    network.check_fence()?;
    let sent = Sent::default();
    let (noted, fences, node, mut input) = (sent.clone(), Arc::clone(&network.fences), NodeId(network.to), input);
    let requests = stream::poll_fn(move |cx| {
        let note = |request: &_| Unanswered::new(request, fences.certain(node, &request.vote));
        noted.poll_request(&mut input, cx, note)
    });
    let requests = requests.map(|request| append_request_to_proto(&request));
    let mut client = network.client.clone();
    let answers = match timeout(APPEND_TIMEOUT, client.stream_append(requests)).await {
        Ok(Ok(answers)) => answers.into_inner(),
        Ok(Err(status)) => {
            network.knows_streams = status.code() != tonic::Code::Unimplemented;
            return Err(network.failed(&status));
        }
        Err(_) => return Err(RPCError::Timeout(network.late(RPCTypes::AppendEntries, APPEND_TIMEOUT))),
    };
    let network = &*network;
    let results = stream::unfold(Some((answers, sent)), move |state| async move {
        let (mut answers, sent) = state?;
        let result = next_result(network, &mut answers, &sent).await?;
        let goes_on = matches!(result, Ok(Ok(_)));
        Some((result, goes_on.then_some((answers, sent))))
    });
    Ok(Box::pin(results))
}

/// The result of the oldest request, or of the last of those that one answer would be taken for. What is held back is lost if
/// another answer is none: openraft then sends the same again.
async fn next_result(
    network: &Network,
    answers: &mut Streaming<v1::AppendEntriesResponse>,
    sent: &Sent,
) -> Option<Result<StreamAppendResult<TypeConfig>, RpcError>> {
    sent.came_back();
    loop {
        let result = result_of_oldest(network, answers, sent).await?;
        match result {
            Ok(Ok(matching)) if sent.holds_back(matching) => {}
            result => return Some(result),
        }
    }
}

/// The result of the oldest request. A stream may be silent for as long as nothing is asked of it.
async fn result_of_oldest(
    network: &Network,
    answers: &mut Streaming<v1::AppendEntriesResponse>,
    sent: &Sent,
) -> Option<Result<StreamAppendResult<TypeConfig>, RpcError>> {
    let answer = loop {
        match timeout(APPEND_TIMEOUT, answers.message()).await {
            Ok(Ok(answer)) => break answer?,
            Ok(Err(status)) => return Some(Err(network.failed(&status))),
            Err(_) if sent.is_late() => {
                return Some(Err(RPCError::Timeout(network.late(RPCTypes::AppendEntries, APPEND_TIMEOUT))));
            }
            Err(_) => {}
        }
    };
    let Some(Unanswered { asked, certain, prev, last, .. }) = sent.pop() else {
        let status = Status::invalid_argument("an answer without a request");
        return Some(Err(network.failed(&status)));
    };
    let answer = append_response_from_proto(answer);
    if let Ok(answer) = &answer
        && let Err(fence) = network.fences.judge(NodeId(network.to), certain, &asked, answer)
    {
        return Some(Err(fenced(&fence)));
    }
    Some(match answer {
        Ok(AppendEntriesResponse::Conflict) if prev.is_none() => {
            Err(network.failed(&Status::invalid_argument("a conflict before the first entry")))
        }
        Ok(answer) => Ok(answer.into_stream_result(prev, last)),
        Err(status) => Err(network.failed(&status)),
    })
}

/// The follower's side: ends behind a request that is malformed.
pub(super) fn answer(raft: &Raft, requests: Streaming<v1::AppendEntriesRequest>) -> Answers {
    let requests = requests.map(|request| append_request_from_proto(request?)).scan((), |(), request| {
        let request = request.inspect_err(|status| tracing::debug!(%status, "append stream ends"));
        std::future::ready(request.ok())
    });
    Box::pin(raft.stream_append(requests).map(|result| match result {
        Ok(result) => Ok(append_response_to_proto(AppendEntriesResponse::from(result))),
        Err(fatal) => Err(stopped(fatal)),
    }))
}

#[cfg(test)]
mod tests;
