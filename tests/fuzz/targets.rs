//! Every decoder of bytes that come from a disk, a node, a client, a peer or an operator. Each is a plain function that
//! must not panic, whatever it is given.

use towline_cluster::fuzz as cluster;

/// One decoder.
pub struct Target {
    /// Its name, and the name of its folder in the corpus.
    pub name: &'static str,
    /// The decoder.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "entry", run: cluster::entry },
    Target { name: "proposal", run: cluster::proposal },
    Target { name: "outcome", run: cluster::outcome },
    Target { name: "wal_segment", run: cluster::wal_segment },
    Target { name: "snapshot", run: cluster::snapshot },
    Target { name: "state", run: cluster::state },
    Target { name: "saved_snapshot", run: cluster::saved_snapshot },
    Target { name: "raft_messages", run: cluster::raft_messages },
    Target { name: "peer_messages", run: cluster::peer_messages },
    Target { name: "blob_file", run: cluster::blob_file },
    Target { name: "blob_messages", run: cluster::blob_messages },
    Target { name: "blob_range", run: towline::fuzz::blob_range },
    Target { name: "enrolment", run: cluster::enrolment },
    Target { name: "join_token", run: cluster::join_token },
    Target { name: "a2a_request", run: towline::fuzz::a2a_request },
    Target { name: "a2a_http_request", run: towline::fuzz::a2a_http_request },
    Target { name: "a2a_answer", run: towline::fuzz::a2a_answer },
    Target { name: "event_stream", run: event_stream },
    Target { name: "signed_token", run: towline::fuzz::signed_token },
    Target { name: "key_set", run: towline::fuzz::key_set },
    Target { name: "client_certificate", run: towline::fuzz::client_certificate },
    Target { name: "caller_headers", run: towline::fuzz::caller_headers },
    Target { name: "configuration", run: towline::fuzz::configuration },
    Target { name: "push_url", run: towline::fuzz::push_url },
    Target { name: "a2e_message", run: towline::fuzz::a2e_message },
    Target { name: "mcp_request", run: towline::fuzz::mcp_request },
    Target { name: "mcp_ids", run: towline::fuzz::mcp_ids },
    Target { name: "mcp_answer", run: towline::fuzz::mcp_answer },
];

/// What a peer streams: server-sent events.
fn event_stream(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime without I/O").block_on(towline_a2a::fuzz_event_stream(bytes));
}
