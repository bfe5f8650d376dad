//! What an answer is taken for.

use std::task::Wake;

use futures::task::noop_waker_ref;
use openraft::EntryPayload;

use super::*;
use crate::{
    fences::Fences,
    raft::{RaftEntry, RaftLeaderId, RaftVote},
};

type Request = AppendEntriesRequest<TypeConfig>;

#[test]
fn an_answer_is_held_back_while_an_empty_request_up_to_the_same_entry_has_none() {
    let sent = Sent::default();
    send(&sent, [request(0, 5), request(5, 5), request(5, 8)]);

    assert!(is_held_back(&sent), "it would be taken for the answer to the empty request as well");
    assert!(!is_held_back(&sent), "the empty request has its own, and the one behind it goes further");
    assert!(!is_held_back(&sent));
}

#[test]
fn an_answer_is_held_back_while_a_request_that_it_reaches_into_has_none() {
    let sent = Sent::default();
    send(&sent, [request(0, 5), request(3, 8)]);

    assert!(is_held_back(&sent));
    assert!(!is_held_back(&sent));
}

#[test]
fn nothing_is_sent_while_a_result_is_handed_on() {
    let sent = Sent::default();
    send(&sent, [request(0, 5)]);
    let last = sent.pop().unwrap().last;
    assert!(!sent.holds_back(last));

    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut more = stream::iter([request(5, 5)]);
    let mut cx = Context::from_waker(&waker);
    assert!(sent.poll_request(&mut more, &mut cx, note).is_pending());
    assert!(!woken.is());

    sent.came_back();
    assert!(woken.is(), "who waited to send is told");
    assert!(sent.poll_request(&mut more, &mut cx, note).is_ready());
    assert!(sent.pop().is_some(), "what is sent waits for its answer");
}

#[derive(Default)]
struct Woken(Mutex<bool>);

impl Woken {
    fn is(&self) -> bool {
        *self.0.lock().unwrap()
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() = true;
    }
}

/// Whether the answer to the oldest request is; if not, openraft takes it in.
fn is_held_back(sent: &Sent) -> bool {
    let last = sent.pop().unwrap().last;
    let is = sent.holds_back(last);
    sent.came_back();
    is
}

fn send(sent: &Sent, requests: impl IntoIterator<Item = Request>) {
    let mut requests = stream::iter(requests);
    let mut cx = Context::from_waker(noop_waker_ref());
    while let Poll::Ready(Some(_)) = sent.poll_request(&mut requests, &mut cx, note) {}
}

fn note(request: &Request) -> Unanswered {
    Unanswered::new(request, Fences::default().certain(NodeId(2), &request.vote))
}

/// With the entries behind `prev` up to `last`.
fn request(prev: u64, last: u64) -> Request {
    let entries = (prev + 1..=last).map(|index| RaftEntry { log_id: log_id(index), payload: EntryPayload::Blank });
    AppendEntriesRequest {
        vote: RaftVote::new(1, 1),
        prev_log_id: (prev > 0).then(|| log_id(prev)),
        entries: entries.collect(),
        leader_commit: None,
    }
}

fn log_id(index: u64) -> RaftLogId {
    RaftLogId::new(RaftLeaderId { term: 1, node_id: 1 }, index)
}
