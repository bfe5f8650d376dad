//! Where a client wants to be told of the events of its task, and how far that has come.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::{BootId, Epoch, NodeId, TaskId, Timestamp};

/// A webhook, as its client set it up.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookConfig {
    /// Unique within the task.
    pub id: String,
    /// Where events are posted to.
    pub url: String,
    /// Sent with each event, for the receiver to know it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// How the sender shows the receiver who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication: Option<WebhookAuth>,
}

/// The `Authorization` header of a webhook.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookAuth {
    /// Such as `Bearer`.
    pub scheme: String,
    /// What follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
}

impl WebhookConfig {
    /// An id for a client that gives none. The same webhook has the same one, so that a request that is sent again makes no
    /// second webhook.
    pub fn derived_id(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let auth = self.authentication.as_ref();
        let scheme = auth.map(|auth| auth.scheme.as_str());
        let credentials = auth.and_then(|auth| auth.credentials.as_deref());
        for text in [Some(self.url.as_str()), self.token.as_deref(), scheme, credentials] {
            hasher.update(&[u8::from(text.is_some())]);
            hasher.update(text.unwrap_or_default().as_bytes());
            hasher.update(&[0]);
        }
        hasher.finalize().to_hex()[..32].to_owned()
    }
}

/// Tokens and credentials, which URLs contain as well, are not for logs.
impl fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookConfig").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The scheme is not secret.
impl fmt::Debug for WebhookAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookAuth").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// Which webhook.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WebhookName {
    /// The task.
    pub task: TaskId,
    /// The webhook's id in it.
    pub id: String,
}

/// A client wants to be told, or told otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetWebhook {
    /// Of what.
    pub task: TaskId,
    /// Where and how.
    pub config: WebhookConfig,
    /// The last event that the client knows; none: it is sent the task as it stands, and then what follows. A webhook that
    /// is there goes on where it is.
    pub from: Option<u64>,
    /// The node that took the request: it tells the receiver, as long as it is up.
    pub prefer: NodeId,
}

/// A webhook, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// As its client set it up.
    pub config: WebhookConfig,
    /// When that was.
    pub created: Timestamp,
    /// Index of the last event that the receiver has taken; none: it is sent the task as it stands.
    pub after: Option<u64>,
    /// Who tells the receiver.
    pub lease: Option<WebhookLease>,
    /// How often the receiver was called.
    pub attempts: u64,
    /// How often it took what it was sent.
    pub delivered: u64,
    /// What came of the last call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastAttempt>,
    /// Set while the receiver does not take the next event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<Failing>,
    /// Why nothing is sent any more, until its client sets it up again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead: Option<String>,
}

/// The right to call the receiver of a webhook. Like that of a task: one at a time, and void when the node is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookLease {
    /// Who has it.
    pub node: NodeId,
    /// The life of its process to which it was given.
    pub boot: BootId,
    /// The fencing token.
    pub epoch: Epoch,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastAttempt {
    /// When it was reported.
    pub at: Timestamp,
    /// A status code, or what went wrong.
    pub said: String,
}

/// The receiver does not take the next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    /// Since when.
    pub since: Timestamp,
    /// How often in a row.
    pub times: u32,
    /// How long the next try waits, in milliseconds from the last.
    pub wait_ms: u64,
}

/// What the owner of a webhook says of its calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookReport {
    /// Which one.
    pub webhook: WebhookName,
    /// The lease under which it called.
    pub epoch: Epoch,
    /// How often the receiver was called, these calls included: a report that does not say more than is known changes nothing.
    pub attempts: u64,
    /// How often it took what it was sent, these calls included.
    pub delivered: u64,
    /// Index of the last event that the receiver has taken.
    pub after: Option<u64>,
    /// What came of the last call.
    pub said: String,
    /// Set if the last call failed.
    pub failed: Option<FailedCall>,
}

/// A call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCall {
    /// How long the next try waits, in milliseconds.
    pub wait_ms: u64,
    /// The receiver said that it wants no more.
    pub is_final: bool,
}

/// What all webhooks come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookTotals {
    /// How many there are.
    pub webhooks: usize,
    /// Of them, how many have something to be sent.
    pub pending: usize,
    /// Of them, how many do not take it at the moment.
    pub failing: usize,
    /// How many were given up.
    pub dead: usize,
    /// How many calls were made for them.
    pub attempts: u64,
    /// How many of these calls were taken.
    pub delivered: u64,
}

impl Webhook {
    /// Whether there is something to be sent, of a task whose last event is `generation`.
    pub fn is_pending(&self, generation: u64) -> bool {
        self.dead.is_none() && self.after.is_none_or(|after| after < generation)
    }

    /// How many events the receiver does not have, of a task whose last event is `generation`.
    pub fn behind(&self, generation: u64) -> u64 {
        generation.saturating_sub(self.after.unwrap_or(0))
    }
}
