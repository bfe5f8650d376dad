//! Whether other voters than today's would hold every named blob: asked before the membership changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::timeout;
use towline_core::{BlobHash, NodeId, State};
use towline_proto::v1;

use super::serve;
use crate::{handle::ClusterHandle, peers::Lane};

/// How long a voter may take to say what it does not hold.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a majority of these voters does not hold every named blob; none if it does. Only the leader asks: what it has applied
/// names what counts.
pub(crate) async fn unsafe_reason(cluster: &ClusterHandle, voters: &BTreeSet<u64>) -> Option<String> {
    let (applied, names_any) = cluster.local(|state| (state.last().index, state.named_blobs().next().is_some()));
    if !names_any {
        return None;
    }
    let asked = voters.iter().map(|voter| ask(cluster, NodeId(*voter)));
    let answers = futures::future::join_all(asked).await;
    let mut tally = Tally::new(voters.len());
    for (voter, answer) in voters.iter().zip(answers) {
        match answer {
            Some(answer) if answer.applied >= applied && !answer.more => tally.misses(
                answer.missing.iter().filter_map(|hash| hash.as_ref().try_into().ok()).map(BlobHash::from_bytes),
            ),
            Some(_) => tally.unknown(format!("node {voter} is behind")),
            None => tally.unknown(format!("node {voter} does not say what it holds")),
        }
    }
    cluster.local(|state| tally.reason(state))
}

async fn ask(cluster: &ClusterHandle, voter: NodeId) -> Option<v1::MissingBlobsResponse> {
    if voter == cluster.node_id() {
        return Some(serve::missing(cluster));
    }
    let mut client = cluster.peers().peer(voter, Lane::Calls);
    let answer = timeout(ANSWER_TIMEOUT, client.missing_blobs(v1::MissingBlobsRequest {})).await;
    answer.ok()?.ok().map(tonic::Response::into_inner)
}

/// Which blobs how many voters do not hold.
struct Tally {
    voters: usize,
    missing: BTreeMap<BlobHash, usize>,
    /// Voters that count as holding nothing, and why.
    unknown: Vec<String>,
}

impl Tally {
    fn new(voters: usize) -> Self {
        Self { voters, missing: BTreeMap::new(), unknown: Vec::new() }
    }

    fn misses(&mut self, hashes: impl Iterator<Item = BlobHash>) {
        for hash in hashes {
            *self.missing.entry(hash).or_default() += 1;
        }
    }

    fn unknown(&mut self, why: String) {
        self.unknown.push(why);
    }

    fn reason(&self, state: &State) -> Option<String> {
        // A majority holds a blob as long as no more than these do not.
        let may_miss = (self.voters.saturating_sub(1)) / 2;
        let unknown = self.unknown.len();
        if unknown > may_miss {
            return Some(format!("named content: {}", self.unknown.join(", ")));
        }
        let lacking =
            self.missing.iter().filter(|(hash, count)| **count + unknown > may_miss && state.names_blob(hash));
        let lacking = lacking.count();
        (lacking > 0).then(|| format!("named content: {lacking} blobs are not yet on a majority of the voters to be"))
    }
}
