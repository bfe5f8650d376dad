//! `towline bench revoke`: somebody is signed in and follows a task at each node; the session is revoked, and the time is taken
//! until each of the streams has ended. From the call of the revocation: commit, apply and close are all in it.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use futures::StreamExt;
use tokio::task::JoinHandle;
use towline_a2a::{A2aClient, EventStream, SendOptions, SendReply};
use towline_cluster::PeerCaller;
use towline_core::{
    Approve, Command, DeviceAsk, NodeId, Principal, PrincipalRole, Proposal, Revoke, SecretHash, SessionId, SignIn,
    UserCode,
};

use super::{
    BenchError,
    load::Measured,
    machine::{Machine, load},
    nodes::Nodes,
    options::RevokeArgs,
    report::{Report, Row},
    task::{endpoint, http_client, message},
};

/// How long a stream may stay open.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a session is good: longer than the round that it is for.
const TTL_MS: u64 = 3_600_000;

/// Where a stream was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    Leader,
    Follower,
}

impl At {
    fn name(self) -> &'static str {
        match self {
            At::Leader => "stream at the leader",
            At::Follower => "stream at a follower",
        }
    }
}

pub(super) async fn run(args: &RevokeArgs, dir: &Path) -> Result<Report, BenchError> {
    args.check()?;
    let machine = Machine::of_this(dir);
    let nodes = Nodes::start_signing_in(dir).await?;
    let measured = rounds(&nodes, args.rounds).await;
    nodes.stop().await;
    let rows = measured?.iter().map(|(at, measured)| Row::timed("revoke", at.name(), 1, measured)).collect();
    let subjects = BTreeMap::from([("towline".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
    Ok(Report { machine, load_after: load(), subjects, rows })
}

async fn rounds(nodes: &Nodes, rounds: u32) -> Result<BTreeMap<At, Measured>, BenchError> {
    let leader = nodes.leader().await?;
    let other = nodes.cluster.nodes().iter().map(|node| node.id).find(|id| *id != leader);
    let credentials = nodes.credentials().await?;
    let caller = credentials.caller(leader, &nodes.peer_address(leader))?;
    let mut hand = Hand { caller, node: other.unwrap_or(leader) };
    let http = http_client()?;
    let mut measured = BTreeMap::from([(At::Leader, Measured::new()), (At::Follower, Measured::new())]);
    for round in 0..rounds {
        let (token, session) = hand.sign_in(round).await?;
        let client = |url: &str| {
            let client = A2aClient::new(http.clone(), endpoint(url, "slow"));
            client.with_header("authorization", &format!("Bearer {token}")).map_err(|error| waited("a client", &error))
        };
        let url = nodes.cluster.node(leader).map(|node| node.plan.url()).unwrap_or_default();
        let task = submit(&client(&url)?).await?;
        let mut streams: Vec<(At, JoinHandle<Result<Instant, BenchError>>)> = Vec::new();
        for node in nodes.cluster.nodes() {
            let opened = client(&node.plan.url())?.subscribe(&task, Some(0), None).await;
            let stream = opened.map_err(|source| BenchError::A2a { action: "follow the task", source })?;
            let at = if node.id == leader { At::Leader } else { At::Follower };
            streams.push((at, tokio::spawn(ended(first_seen(stream).await?))));
        }
        let began = Instant::now();
        hand.change(Principal::Operator, SignIn::Revoke(Revoke::Session(session))).await?;
        for (at, stream) in streams {
            let end = stream.await.map_err(|error| waited("a stream", &error))??;
            measured.entry(at).or_insert_with(Measured::new).record(end.saturating_duration_since(began));
        }
    }
    Ok(measured)
}

/// Changes who is signed in, as a node and as the operator.
struct Hand {
    caller: PeerCaller,
    node: NodeId,
}

impl Hand {
    async fn change(&mut self, by: Principal, change: SignIn) -> Result<(), BenchError> {
        let proposal = Proposal { by, command: Command::SignIn(Box::new(change)) };
        self.caller.propose(&proposal).await.map(|_| ()).map_err(|error| waited("a change of the sessions", &error))
    }

    /// A new session; its token and its id. The whole way of one that an operator approves, without HTTP.
    async fn sign_in(&mut self, round: u32) -> Result<(String, SessionId), BenchError> {
        let node = Principal::Node(self.node);
        // Of the form of a token: 43 letters.
        let token = format!("towline_st_bench--{}", uuid::Uuid::now_v7());
        let device = SecretHash::of(&format!("device of {token}"));
        let code = UserCode::drawn(round.into());
        let ask = DeviceAsk {
            device: device.clone(),
            code: code.clone(),
            client: "bench".to_owned(),
            source: round.to_string(),
            wants: PrincipalRole::User,
            ttl_ms: 1_000,
        };
        self.change(node.clone(), SignIn::Ask(ask)).await?;
        let name = "user:bench".parse().map_err(|error| waited("a name", &error))?;
        let approve = Approve { code, name, role: PrincipalRole::User, ttl_ms: TTL_MS };
        self.change(Principal::Operator, SignIn::Approve(approve)).await?;
        let session: SessionId = format!("ds_bench-{round}").parse().map_err(|error| waited("an id", &error))?;
        let redeem = SignIn::Redeem { device, session: session.clone(), token: SecretHash::of(&token) };
        self.change(node, redeem).await?;
        Ok((token, session))
    }
}

async fn submit(client: &A2aClient) -> Result<String, BenchError> {
    let options = SendOptions { return_immediately: true, ..SendOptions::default() };
    match client.send(&message(), options, None).await {
        Ok(SendReply::Task(task)) => Ok(task.id),
        Ok(SendReply::Message(_)) => Err(waited("a task", &"a message was answered")),
        Err(source) => Err(BenchError::A2a { action: "submit a task", source }),
    }
}

/// A stream whose first event has come: it is open on both sides.
async fn first_seen(mut stream: EventStream) -> Result<EventStream, BenchError> {
    match tokio::time::timeout(PATIENCE, stream.next()).await {
        Ok(Some(Ok(_))) => Ok(stream),
        Ok(Some(Err(error))) => Err(waited("the first event", &error)),
        Ok(None) | Err(_) => Err(waited("the first event", &"none came")),
    }
}

/// When a stream ended; an error if its task did.
async fn ended(mut stream: EventStream) -> Result<Instant, BenchError> {
    let end = async {
        while let Some(Ok(item)) = stream.next().await {
            if item.event.state().is_some_and(towline_core::TaskState::is_terminal) {
                return Err(waited("the end of a stream", &"its task ended first"));
            }
        }
        Ok(Instant::now())
    };
    tokio::time::timeout(PATIENCE, end).await.unwrap_or_else(|_| Err(waited("the end of a stream", &"it stays open")))
}

fn waited(what: &str, reason: &impl std::fmt::Display) -> BenchError {
    BenchError::Waited { what: what.to_owned(), reason: reason.to_string() }
}
