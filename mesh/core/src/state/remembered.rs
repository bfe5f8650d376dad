//! Messages of archived tasks, so that none is taken twice: by a hash of who sent it and under which id, with half of the
//! digest of what it said. Nobody finds two messages with one hash, and a message whose hash is known came before.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use super::dedup::Sent;
use crate::{AgentName, Digest, MessageId, Principal, TaskId, Timestamp, chunked::Chunked, digest::half};

/// Where a message went, what it said, and when its task ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Mark {
    task: TaskId,
    said: Uuid,
    agent: u64,
    ended: Timestamp,
}

/// All of them: 88 bytes of memory for each.
#[derive(Debug, Clone, Default)]
pub(super) struct Remembered {
    marks: Chunked<Uuid, Mark>,
    /// By when they may be forgotten.
    expiring: Chunked<(Timestamp, Uuid), ()>,
}

/// The order follows from the marks.
impl PartialEq for Remembered {
    fn eq(&self, other: &Self) -> bool {
        self.marks == other.marks
    }
}

impl Serialize for Remembered {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.marks.iter())
    }
}

impl<'de> Deserialize<'de> for Remembered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let marks: Vec<(Uuid, Mark)> = Vec::deserialize(deserializer)?;
        let expiring = marks.iter().map(|(name, mark)| ((mark.ended, *name), ())).collect();
        Ok(Self { expiring, marks: marks.into_iter().collect() })
    }
}

impl Mark {
    pub(super) fn of(sent: &Sent, digest: Digest, ended: Timestamp) -> Self {
        Self { task: sent.task, said: digest.half(), agent: agent_of(&sent.agent), ended }
    }

    pub(super) fn task(&self) -> TaskId {
        self.task
    }

    pub(super) fn ended(&self) -> Timestamp {
        self.ended
    }

    pub(super) fn is_for(&self, agent: &AgentName) -> bool {
        self.agent == agent_of(agent)
    }

    pub(super) fn says(&self, digest: Digest) -> bool {
        self.said == digest.half()
    }
}

impl Remembered {
    pub(super) fn is_empty(&self) -> bool {
        self.marks.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    pub(super) fn get(&self, owner: &Principal, message: &MessageId) -> Option<&Mark> {
        // Most states of tests and small clusters have none, and hash nothing.
        if self.is_empty() { None } else { self.marks.get(&name_of(owner, message)) }
    }

    /// An id that was used again after its time stands for the later message.
    pub(super) fn insert(&mut self, owner: &Principal, message: &MessageId, mark: Mark) {
        let name = name_of(owner, message);
        if let Some(before) = self.marks.insert(name, mark) {
            self.expiring.remove(&(before.ended, name));
        }
        self.expiring.insert((mark.ended, name), ());
    }

    /// When the task ended whose message may be forgotten first.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        self.expiring.iter().next().map(|((ended, _), ())| *ended)
    }

    pub(super) fn forget_oldest(&mut self) {
        let Some(first) = self.expiring.iter().next().map(|(first, ())| *first) else { return };
        self.expiring.remove(&first);
        self.marks.remove(&first.1);
    }
}

fn name_of(owner: &Principal, message: &MessageId) -> Uuid {
    let owner = serde_json::to_vec(owner).expect("a principal is made of texts and numbers");
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(owner.len() as u64).to_le_bytes());
    hasher.update(&owner);
    hasher.update(message.as_str().as_bytes());
    half(hasher.finalize().as_bytes())
}

fn agent_of(agent: &AgentName) -> u64 {
    half(blake3::hash(agent.as_str().as_bytes()).as_bytes()).as_u64_pair().0
}
