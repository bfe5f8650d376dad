//! Which messages were taken, so that none is taken twice: by their sender and message id, for as long as the task is open
//! and [`limits::DEDUP_AFTER_END_MS`] longer, also when the task itself is gone by then.

use serde::{Deserialize, Serialize};

use super::State;
use crate::{
    AgentName, Digest, Message, MessageId, Principal, Rejection, Task, TaskId, Timestamp, limits,
    mutants::{self, Mutant},
};

/// Where a message went when it came first, and what it said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Sent {
    pub(super) task: TaskId,
    pub(super) agent: AgentName,
    /// None in states of versions that kept none: then the task's history holds what it said.
    #[serde(default)]
    digest: Option<Digest>,
    /// When the task ended.
    #[serde(default)]
    ended: Option<Timestamp>,
}

impl Sent {
    pub(super) fn is_of(&self, task: TaskId) -> bool {
        self.task == task
    }

    pub(super) fn digest(&self) -> Option<Digest> {
        self.digest
    }

    pub(super) fn ended(&self) -> Option<Timestamp> {
        self.ended
    }

    /// Notes what the message said and when its task ended, where that was not noted. Returns whether the end was not.
    pub(super) fn note(&mut self, digest: Digest, ended: Timestamp) -> bool {
        self.digest.get_or_insert(digest);
        let unnoted = self.ended.is_none();
        self.ended.get_or_insert(ended);
        unnoted
    }
}

/// An entry of the index of what may be forgotten, and since when: the time that the task ended comes first.
pub(super) type Expiring = (Timestamp, Principal, MessageId);

impl State {
    /// The task that the same message of this sender made or continued before.
    pub(super) fn sent_before(
        &self,
        sender: &Principal,
        message: &Message,
        agent: Option<&AgentName>,
        now: Timestamp,
    ) -> Result<Option<TaskId>, Rejection> {
        if mutants::on(Mutant::DedupOff) {
            return Ok(None);
        }
        let sent = self.dedup.get(&(sender.clone(), message.message_id.clone()));
        let Some(sent) = sent.filter(|sent| sent.ended.is_none_or(|ended| !is_over(ended, now))) else {
            return self.remembered_before(sender, message, agent, now);
        };
        let same = agent.is_none_or(|agent| *agent == sent.agent) && self.said_the_same(sent, message);
        if same { Ok(Some(sent.task)) } else { Err(reused(message, sent.task)) }
    }

    /// The same, of messages of archived tasks.
    fn remembered_before(
        &self,
        sender: &Principal,
        message: &Message,
        agent: Option<&AgentName>,
        now: Timestamp,
    ) -> Result<Option<TaskId>, Rejection> {
        let mark = self.remembered.get(sender, &message.message_id);
        let Some(mark) = mark.filter(|mark| !is_over(mark.ended(), now)) else { return Ok(None) };
        let same = agent.is_none_or(|agent| mark.is_for(agent)) && mark.says(Digest::of_message(message));
        if same { Ok(Some(mark.task())) } else { Err(reused(message, mark.task())) }
    }

    fn said_the_same(&self, sent: &Sent, message: &Message) -> bool {
        if let Some(digest) = sent.digest {
            return digest == Digest::of_message(message);
        }
        let history = self.task(sent.task).into_iter().flat_map(|task| &task.history);
        history.filter(|first| first.message_id == message.message_id).any(|first| first.same_content(message))
    }

    pub(super) fn remember(&mut self, sender: &Principal, message: &Message, task: &Task) {
        let digest = Some(Digest::of_message(message));
        let sent = Sent { task: task.id, agent: task.agent.clone(), digest, ended: None };
        self.dedup.insert((sender.clone(), message.message_id.clone()), sent);
    }

    /// The task has ended: from here on the time runs after which its messages are forgotten.
    pub(super) fn let_messages_expire(&mut self, id: TaskId, ended: Timestamp) {
        let Some(task) = self.tasks.get(&super::key(id)) else { return };
        for (sender, message) in task.sent() {
            let name = (sender.clone(), message.message_id.clone());
            let Some(sent) = self.dedup.get_mut(&name).filter(|sent| sent.task == id) else { continue };
            sent.ended = Some(ended);
            self.expiring.insert((ended, name.0, name.1));
        }
    }

    /// Whether a sweep would forget a message.
    pub(super) fn has_expired_messages(&self, now: Timestamp) -> bool {
        self.expiring.len() + self.remembered.len() > limits::MAX_REMEMBERED_MESSAGES
            || self.expiring.first().is_some_and(|(ended, _, _)| is_over(*ended, now))
            || self.remembered.oldest().is_some_and(|ended| is_over(ended, now))
    }

    /// Forgets messages past their time, and the oldest of more than are remembered.
    pub(super) fn forget_messages(&mut self, now: Timestamp) {
        for _ in 0..limits::MAX_SWEPT_PER_ENTRY {
            if !self.has_expired_messages(now) {
                return;
            }
            let oldest = self.expiring.first().map(|(ended, _, _)| *ended);
            if self.remembered.oldest().is_some_and(|ended| oldest.is_none_or(|oldest| ended < oldest)) {
                self.remembered.forget_oldest();
                continue;
            }
            let Some((ended, sender, message)) = self.expiring.pop_first() else { return };
            let name = (sender, message);
            // The id may have been used again since: then it is another message's.
            if self.dedup.get(&name).is_some_and(|sent| sent.ended == Some(ended)) {
                self.dedup.remove(&name);
            }
        }
    }

    /// A swept task's messages whose end was not noted, by a version that did not, go with the task.
    pub(super) fn forget_unnoted(&mut self, task: &Task) {
        for (sender, message) in task.sent() {
            let name = (sender.clone(), message.message_id.clone());
            if self.dedup.get(&name).is_some_and(|sent| sent.task == task.id && sent.ended.is_none()) {
                self.dedup.remove(&name);
            }
        }
    }
}

fn reused(message: &Message, task: TaskId) -> Rejection {
    Rejection::MessageReused { message: message.message_id.to_string(), task }
}

fn is_over(ended: Timestamp, now: Timestamp) -> bool {
    now.0.saturating_sub(ended.0) >= limits::DEDUP_AFTER_END_MS
}
