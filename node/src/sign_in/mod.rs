//! How people sign in at a node, and what their sessions open.
//!
//! ```text
//! POST /oauth/device_authorization ─▶ a request under a code      device.rs     RFC 8628
//! towline auth device approve      ─▶ a decision                  api/sign_in.rs
//! POST /oauth/token                ─▶ a session and its token     device.rs
//! Authorization: Bearer towline_st_… ─▶ guard ─▶ auth::gate      sessions.rs, known.rs
//! a code of this process           ─▶ a session of the operator   launch.rs
//! ```
//! Requests and sessions are in the replicated state, as hashes of their secrets: any node and any restart knows them, and a
//! revocation ends what a session has opened on every node. What counts tries is in the memory of each node.

mod device;
mod known;
mod launch;
mod limiter;
mod looks;
mod secrets;
mod sessions;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;
use towline_cluster::{ClusterHandle, ProposeError};
use towline_core::{Command, Principal, Proposal, SecretHash, SignIn, Timestamp};

use device::Polls;
use launch::Launches;
use limiter::Limiter;
use looks::Looks;

pub(crate) use device::{DEVICE_AUTHORIZATION, GRANT_TYPE, REVOKE, TOKEN};
pub use sessions::guard;

/// How long a session of the device grant is good, where the configuration does not say.
pub const DEFAULT_SESSION_TTL: Duration = Duration::from_secs(8 * 3600);

/// What the configuration says about the device grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceGrantSettings {
    /// Whether devices may ask at all.
    pub enabled: bool,
    /// How long a session is good.
    pub session_ttl: Duration,
    /// Whether an approver may give the role of an operator.
    pub allow_operator: bool,
}

impl Default for DeviceGrantSettings {
    fn default() -> Self {
        Self { enabled: false, session_ttl: DEFAULT_SESSION_TTL, allow_operator: false }
    }
}

/// Signing in, at one node.
pub struct SignIns {
    cluster: ClusterHandle,
    settings: DeviceGrantSettings,
    /// Base URL under which devices and people reach this node, without a slash at the end.
    public_url: String,
    /// Requests for a code, by source.
    asks: Limiter,
    /// Questions after a token, by source.
    polls_of_sources: Limiter,
    /// Questions after a token, by device code.
    polls: Polls,
    launches: Launches,
    looks: Looks,
    /// Counts the moments at which sessions may have ended.
    ended: watch::Sender<u64>,
    /// Sessions that were used, and whose mark of that is old.
    used: Mutex<BTreeSet<SecretHash>>,
}

impl SignIns {
    /// Signing in at the node of `cluster`, which is reached at `public_url`.
    pub fn new(cluster: ClusterHandle, settings: DeviceGrantSettings, public_url: String) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            settings,
            public_url,
            asks: limiter::of_asks(),
            polls_of_sources: limiter::of_polls(),
            polls: Polls::default(),
            launches: Launches::new(),
            looks: Looks::default(),
            ended: watch::Sender::new(0),
            used: Mutex::default(),
        })
    }

    /// What the configuration says about the device grant.
    pub fn settings(&self) -> DeviceGrantSettings {
        self.settings
    }

    async fn propose(&self, change: SignIn) -> Result<(), ProposeError> {
        let by = Principal::Node(self.cluster.node_id());
        let command = Command::SignIn(Box::new(change));
        self.cluster.propose(Proposal { by, command }, None).await.map(|_| ())
    }

    fn used(&self) -> MutexGuard<'_, BTreeSet<SecretHash>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The moment by which sessions are over: the clock of this node, and never before what the log says.
pub(crate) fn now(cluster: &ClusterHandle) -> Timestamp {
    let clock = Timestamp(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0));
    cluster.local(|state| state.last().at).max(clock)
}
