//! Keeps this node's certificate good, and what it needs to know and to sign: renews it before it ends, fetches the key of
//! the authority when this node is a voter, asks about nodes that are not known, and tells the cluster what it has.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};
use towline_core::{Command, NodeCertificate, NodeId, NodeRole, Principal, Proposal, Timestamp};
use towline_proto::v1;

use crate::{
    ClusterError,
    certificates::{self, Authority, CertificateDer, LONGEST_LIFE, Validity},
    enrolment::signers,
    handle::ClusterHandle,
    leader::wall_clock,
    membership::Folder,
    peers::{self, Lane},
    roster::Members,
    seams,
};

/// How often it is looked whether something is to be done.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a worker keeps on disk who is a member: of hundreds, some come and go all the time, and to find one that feeds
/// it after a start it needs few of them.
const WORKER_KEEPS_EVERY: Duration = Duration::from_secs(30);
/// A question to another node.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two rounds of questions about nodes that are not known: anybody with a certificate can cause one.
const ASK_PAUSE: Duration = Duration::from_millis(300);
/// First pause after something came to nothing; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause: a certificate has a third of its life left when its renewal begins.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The life that is configured may be rounded in a certificate.
const ROUNDING: Duration = Duration::from_secs(2);

/// What stands in the way of a renewal, for the status.
#[derive(Debug, Default)]
pub(crate) struct Trouble(Mutex<Option<String>>);

impl Trouble {
    pub(crate) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, trouble: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}

/// Keeps on disk who is a member, and asks about nodes that are not known. Runs as long as the node does.
pub(crate) async fn keep_roster(cluster: ClusterHandle, folder: Arc<Folder>) {
    let roster = Arc::clone(cluster.roster());
    let mut kept: Option<Instant> = None;
    loop {
        tokio::select! {
            biased;
            () = sleep(LOOK_EVERY) => {}
            () = roster.wanted() => {
                ask_members(&cluster).await;
                sleep(ASK_PAUSE).await;
            }
        }
        let is_worker = cluster.leadership().routes().is_some();
        if is_worker && kept.is_some_and(|kept| kept.elapsed() < WORKER_KEEPS_EVERY) {
            continue;
        }
        let Some(members) = roster.news() else { continue };
        kept = Some(Instant::now());
        match on_disk(&folder, {
            let members = members.clone();
            move |folder| folder.keep_members(&members)
        })
        .await
        {
            Ok(()) => roster.keep(members),
            Err(error) => tracing::debug!(%error, "members are kept later"),
        }
    }
}

async fn ask_members(cluster: &ClusterHandle) {
    let me = cluster.node_id();
    let known = cluster.roster().members();
    let others = known.nodes.iter().filter(|member| !member.worker).map(|member| member.id).filter(|node| *node != me);
    let answers = join_all(others.map(|node| members_of(cluster, node))).await;
    for members in answers.into_iter().flatten() {
        // Who is newer than the state here may have to be asked for the state.
        members.nodes.iter().for_each(|member| cluster.peers().book().hear(member.id, &member.peer));
        cluster.roster().learn(members);
    }
}

/// Who is a member, as another node knows it.
async fn members_of(cluster: &ClusterHandle, node: NodeId) -> Option<Members> {
    let call = async { cluster.peers().peer(node, Lane::Session).members(v1::MembersRequest {}).await };
    match timeout(ASK_TIMEOUT, call).await {
        Ok(Ok(answer)) => Some(Members::from_proto(answer.into_inner())),
        Ok(Err(status)) => {
            tracing::debug!(%node, reason = peers::root_cause(&status), "was asked about members");
            None
        }
        Err(_) => {
            tracing::debug!(%node, "was asked about members and did not answer");
            None
        }
    }
}

/// Keeps the certificate good. Runs as long as the node does.
pub(crate) async fn keep_certificate(cluster: ClusterHandle, folder: Arc<Folder>) {
    let mut keeper = Keeper {
        due: due_at(cluster.credentials().validity()),
        cluster,
        folder,
        renewal: Pause::default(),
        fetching: Pause::default(),
        telling: Pause::default(),
        understand: BTreeSet::new(),
    };
    loop {
        keeper.look().await;
        sleep(LOOK_EVERY).await;
    }
}

struct Keeper {
    cluster: ClusterHandle,
    folder: Arc<Folder>,
    /// When the certificate in use is to be renewed.
    due: Timestamp,
    renewal: Pause,
    fetching: Pause,
    telling: Pause,
    /// Members that run a version which knows of certificates in the log: an earlier one would stop at such an entry.
    understand: BTreeSet<NodeId>,
}

impl Keeper {
    async fn look(&mut self) {
        if self.lacks_authority() && self.fetching.is_over() {
            let fetched = self.fetch_authority().await;
            if let Err(reason) = &fetched {
                tracing::debug!(reason, "the key of the authority is fetched later");
            }
            self.fetching.after(fetched.is_ok());
        }
        if self.is_due() && self.renewal.is_over() {
            let renewed = self.renew().await;
            self.renewal.after(renewed.is_ok());
            self.tell_trouble(renewed.err());
        }
        if self.has_news() && self.telling.is_over() {
            let told = self.tell().await;
            self.telling.after(told);
        }
    }

    fn is_due(&self) -> bool {
        let validity = self.cluster.credentials().validity();
        let signer = self.cluster.signer();
        // A node that signs for itself goes by what is configured here; others got what the signer has configured.
        let longest = signer.authority().map_or(LONGEST_LIFE, |_| signer.life().length + ROUNDING);
        wall_clock() >= self.due || validity.life() > longest
    }

    async fn renew(&mut self) -> Result<(), String> {
        let certificate = match self.cluster.signer().authority() {
            Some(authority) => self.cluster.credentials().sign(&authority, self.cluster.signer().life()),
            None => Ok(self.ask_for_certificate().await?),
        };
        let certificate = certificate.map_err(|error| error.to_string())?;
        self.use_certificate(certificate).await.map_err(|error| error.to_string())?;
        let validity = self.cluster.credentials().validity();
        self.due = due_at(validity);
        if wall_clock() >= self.due {
            return Err("what was signed is over already by the clock of this machine: is it right?".to_owned());
        }
        tracing::info!(good_for = ?validity.life(), "certificate of this node was renewed");
        Ok(())
    }

    async fn ask_for_certificate(&self) -> Result<CertificateDer<'static>, String> {
        let me = self.cluster.node_id();
        let certificate_request = self.cluster.credentials().request().map_err(|error| error.to_string())?;
        let request =
            v1::RenewRequest { node: me.0, certificate_request: certificate_request.into(), forwarded: false };
        let mut reasons = Vec::new();
        for node in self.nodes_to_ask() {
            let client = self.cluster.peers().enrol(node, self.cluster.credentials());
            let mut client = client.map_err(|error| error.to_string())?;
            match timeout(ASK_TIMEOUT, client.renew(request.clone())).await {
                Ok(Ok(answer)) => return Ok(CertificateDer::from(answer.into_inner().certificate.to_vec())),
                Ok(Err(status)) => {
                    self.heed_removal(&status);
                    reasons.push(format!("node {node}: {}", peers::root_cause(&status)));
                }
                Err(_) => reasons.push(format!("node {node}: no answer within {ASK_TIMEOUT:?}")),
            }
        }
        Err(if reasons.is_empty() { "no voter is known".to_owned() } else { reasons.join("; ") })
    }

    /// A node whose certificate has ended cannot keep its session alive, so it learns here that it is a member no more.
    fn heed_removal(&self, status: &Status) {
        if status.code() == Code::PermissionDenied {
            self.cluster.own_session().end_for_good();
        }
    }

    /// Voters, and where the state is not there yet all members that are known.
    fn nodes_to_ask(&self) -> Vec<NodeId> {
        let me = self.cluster.node_id();
        let signers = self.cluster.local(|state| signers(state, me));
        if !signers.is_empty() {
            return signers;
        }
        self.cluster.log_keepers()
    }

    async fn use_certificate(&self, certificate: CertificateDer<'static>) -> Result<(), ClusterError> {
        self.cluster.credentials().check(&certificate)?;
        let kept = certificate.clone();
        on_disk(&self.folder, move |folder| folder.keep_certificate(&kept)).await?;
        self.cluster.credentials().show(certificate)
    }

    fn tell_trouble(&self, reason: Option<String>) {
        let trouble = reason.map(|reason| {
            let ended = self.cluster.credentials().validity().has_ended(wall_clock());
            let what = if ended { "has ended, and other nodes refuse it" } else { "is to be renewed" };
            format!(
                "certificate of this node {what}; renewal: {reason}; tried again until a voter that runs can be reached"
            )
        });
        if let Some(trouble) = &trouble {
            tracing::warn!("{trouble}");
        }
        self.cluster.trouble().set(trouble);
    }

    /// Whether this node is a voter that cannot sign yet.
    fn lacks_authority(&self) -> bool {
        let me = self.cluster.node_id();
        self.cluster.signer().authority().is_none()
            && self
                .cluster
                .local(|state| state.node(me).is_some_and(|node| node.role == NodeRole::Voter && !node.leaving))
    }

    async fn fetch_authority(&self) -> Result<(), String> {
        let me = self.cluster.node_id();
        let mut reason = "no voter is known".to_owned();
        for node in self.cluster.local(|state| signers(state, me)) {
            let mut client = self.cluster.peers().peer(node, Lane::Calls);
            let key = match timeout(ASK_TIMEOUT, client.authority_key(v1::AuthorityKeyRequest {})).await {
                Ok(Ok(answer)) => answer.into_inner().key,
                Ok(Err(status)) => {
                    reason = format!("node {node}: {}", peers::root_cause(&status));
                    continue;
                }
                Err(_) => {
                    reason = format!("node {node}: no answer within {ASK_TIMEOUT:?}");
                    continue;
                }
            };
            return self.take_authority(&key).await.map_err(|error| error.to_string());
        }
        Err(reason)
    }

    async fn take_authority(&self, key: &[u8]) -> Result<(), ClusterError> {
        let pem = String::from_utf8_lossy(key).into_owned();
        let authority = Authority::open(self.cluster.credentials().authority(), certificates::read_key(&pem)?)?;
        on_disk(&self.folder, move |folder| folder.keep_authority_key(&pem)).await?;
        self.cluster.signer().take_up(authority);
        tracing::info!("this node can sign certificates");
        Ok(())
    }

    /// Whether the cluster knows something else of this node's certificate than what is in use, and can be told.
    fn has_news(&self) -> bool {
        let me = self.cluster.node_id();
        let own = self.own();
        self.cluster.leadership().leader().is_some()
            && self.cluster.local(|state| {
                state.node(me).is_some_and(|node| !node.leaving && node.certificate.as_ref() != Some(&own))
            })
    }

    /// Asks members for what earlier versions do not answer.
    async fn all_understand(&mut self) -> bool {
        // Workers come only where all members know, and with a version that does.
        if self.cluster.leadership().routes().is_some() {
            return true;
        }
        let me = self.cluster.node_id();
        let others: Vec<NodeId> =
            self.cluster.local(|state| state.nodes().filter(|node| node.keeps_log()).map(|node| node.id).collect());
        let open = others.into_iter().filter(|node| *node != me && !self.understand.contains(node));
        let cluster = &self.cluster;
        let asked = join_all(open.map(|node| async move { (node, members_of(cluster, node).await) })).await;
        let all = asked.iter().all(|(_, members)| members.is_some());
        self.understand.extend(asked.into_iter().filter(|(_, members)| members.is_some()).map(|(node, _)| node));
        all
    }

    async fn tell(&mut self) -> bool {
        if !self.all_understand().await {
            return false;
        }
        let node = self.cluster.node_id();
        let command = Command::Certify { node, certificate: self.own() };
        let told = self.cluster.propose(Proposal { by: Principal::Node(node), command }, None).await;
        if let Err(error) = &told {
            tracing::debug!(%error, "the cluster is told of this node's certificate later");
        }
        told.is_ok()
    }

    fn own(&self) -> NodeCertificate {
        let says = self.cluster.credentials().says();
        NodeCertificate { key: says.key, ends: Some(says.ends), signs: self.cluster.signer().authority().is_some() }
    }
}

/// At two thirds of the life, and a little earlier by chance, so that nodes that began together do not all ask at once.
fn due_at(validity: Validity) -> Timestamp {
    let life = u64::try_from(validity.life().as_millis()).unwrap_or(u64::MAX);
    let mut chance = [0; 8];
    // Without randomness they all ask at once.
    let _ = getrandom::fill(&mut chance);
    let earlier = u64::from_le_bytes(chance) % (life / 15).max(1);
    Timestamp(validity.ends.0.saturating_sub(life / 3 + earlier))
}

async fn on_disk(
    folder: &Arc<Folder>,
    write: impl FnOnce(&Folder) -> Result<(), ClusterError> + Send + 'static,
) -> Result<(), ClusterError> {
    let folder = Arc::clone(folder);
    let written = seams::blocking(move || write(&folder)).await;
    written.unwrap_or_else(|error| Err(ClusterError::Fatal { reason: error.to_string() }))
}

/// How long is waited after something came to nothing.
#[derive(Debug, Default)]
struct Pause {
    until: Option<Instant>,
    length: Duration,
}

impl Pause {
    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    fn after(&mut self, success: bool) {
        self.length = if success { Duration::ZERO } else { (self.length * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE) };
        self.until = Some(Instant::now() + self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_a_little_before_two_thirds_of_its_life() {
        const DAY: u64 = 24 * 3_600_000;
        let skew = 600_000;
        let validity = Validity { from: Timestamp(DAY - skew), ends: Timestamp(31 * DAY) };
        let dues: Vec<u64> = (0..50).map(|_| due_at(validity).0).collect();
        assert!(dues.iter().all(|due| (19 * DAY..=21 * DAY).contains(due)), "{dues:?}");
        assert!(dues.iter().any(|due| *due != dues[0]), "nodes do not all ask at once");
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_end_with_success() {
        let mut pause = Pause::default();
        assert!(pause.is_over());
        let mut lengths = Vec::new();
        for _ in 0..10 {
            pause.after(false);
            lengths.push(pause.length);
        }
        assert_eq!(lengths[..3], [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]);
        assert_eq!(lengths[9], LONGEST_PAUSE);
        assert!(!pause.is_over());
        pause.after(true);
        assert!(pause.is_over());
    }
}
