//! What passes between a task and agents elsewhere: a task that is handed on as a whole, what a message says of the chain
//! above it, and which of what comes back is taken in.

use towline_core::{
    CHAIN_KEY, ChainLink, ContextId, DEADLINE_KEY, Handover, Intent, Message, MessageId, Metadata, OnAdoption, Outcome,
    OwnerWord, Role, Step, StepNo, TaskState,
};

use super::TaskRunState;
use crate::{
    delegation::{self, Chunk},
    orphans,
    toolbox::step_key,
};

/// Deepest chain of delegations, over all meshes: what needs more goes in a circle, or in the wrong direction.
pub const MAX_DEPTH: usize = 8;

/// The id of the call that hands a task on: no model made it.
const RELAYED: &str = "relay";

/// Metadata key under which a peer is told on whose behalf it is asked.
pub(crate) const ON_BEHALF_OF_KEY: &str = "dev.towline/onBehalfOf";

impl TaskRunState {
    /// Hands the task on to the peer of that name: its only step.
    pub(super) fn relay(&mut self) {
        let Some(request) = self.view.history.first() else { return };
        let step = self.next_step(0);
        let key = step_key(self.id(), step);
        let name = self.context.agent.name.to_string();
        let is_idempotent = self.context.shared.peer(&name).ok().flatten().is_some_and(|peer| peer.idempotent);
        let message = Message {
            message_id: MessageId::try_from(key.clone()).expect("a task id and a number are printable and short"),
            context_id: Some(ContextId::try_from(key).expect("a task id and a number are printable and short")),
            task_id: None,
            role: Role::User,
            parts: request.parts.clone(),
            metadata: Metadata::new(),
            extensions: Vec::new(),
            reference_task_ids: vec![self.id().to_string()],
        };
        let mut intent = Intent::Delegate {
            call_id: RELAYED.to_owned(),
            target: name,
            own_mesh: false,
            message: Box::new(message),
            peer_task: None,
            on_adoption: if is_idempotent { OnAdoption::Retry } else { OnAdoption::Ask },
            handover: Handover::Delegation,
        };
        match self.grant(&mut intent, 1) {
            Ok(()) => self.start_step(step, intent),
            Err(outcome) => self.refuse(step, intent, outcome),
        }
    }

    /// A chunk of what the peer makes is a chunk of what the task makes.
    pub(super) fn relay_chunk(&mut self, chunk: Chunk) {
        let Chunk { artifact_id, name, parts, append, last_chunk } = chunk;
        let metadata = Metadata::new();
        self.outbox.push(OwnerWord::Chunk { artifact_id, name, parts, append, last_chunk, metadata });
        self.pump();
    }

    /// Why a delegation is not begun: it would close a circle, or the chain above it is too long. One that has begun goes on.
    pub(super) fn refusal(&self, step: &Step) -> Option<Outcome> {
        let Intent::Delegate { target, own_mesh, peer_task: None, .. } = &step.intent else { return None };
        let chain = self.chain();
        let failed = |error_type: &str, message: String| {
            Some(Outcome::Failed {
                error_type: error_type.to_owned(),
                message: format!("delegate to {target}: {message}"),
            })
        };
        if *own_mesh && chain.iter().any(|link| link.agent == *target) {
            return failed("delegation_circle", format!("it has delegated this itself: {}", shown(&chain, target)));
        }
        if chain.len() > MAX_DEPTH {
            return failed("too_many_hops", format!("the chain is {MAX_DEPTH} long: {}", shown(&chain, target)));
        }
        None
    }

    fn chain(&self) -> Vec<ChainLink> {
        self.context.shared.cluster.local(|state| state.chain_of(self.view.id))
    }

    /// What a peer outside of this mesh is told beside the message: the chain above it, when its caller gives up and, where
    /// the configuration says so, on whose behalf it is asked.
    pub(super) fn told_to_peers(&self) -> Metadata {
        let chain: Vec<serde_json::Value> = self.chain().iter().map(ChainLink::to_json).collect();
        let mut told = Metadata::from([(CHAIN_KEY.to_owned(), chain.into())]);
        told.extend(self.remaining_ms().map(|ms| (DEADLINE_KEY.to_owned(), ms.into())));
        told.insert(ON_BEHALF_OF_KEY.to_owned(), self.view.owner.to_string().into());
        told
    }

    /// The outcome of a delegation as it is taken in. What is outside input stays out of a context that holds sensitive
    /// data and has a way out; elsewhere the task says from here on that it holds some.
    pub(super) fn taken_in(&mut self, step: StepNo, outcome: Outcome) -> Outcome {
        let Some(reason) = self.outside.remove(&step) else { return outcome };
        if self.context.agent.must_stay_clean() {
            let agent = &self.context.agent.name;
            let message = format!(
                "the result is withheld: it is outside input ({reason}), and agent {agent} holds sensitive data and can \
                 send things out; have an agent read it that lacks one of the two, or set allow_trifecta for {agent}"
            );
            return Outcome::Failed { error_type: "withheld".to_owned(), message };
        }
        self.note_outside(reason);
        outcome
    }

    /// A tool of a server that is tagged as untrusted has answered.
    pub(super) fn note_untrusted(&mut self, step: StepNo) {
        let Some(Intent::Tool { server, .. }) = self.view.step(step).map(|step| &step.intent) else { return };
        let servers = &self.context.shared.config.servers;
        if servers.iter().any(|known| known.name == *server && known.traits.untrusted) {
            self.note_outside(format!("answer of server {server}"));
        }
    }

    fn note_outside(&mut self, reason: String) {
        if !self.view.outside_input.contains(&reason) {
            self.outbox.push(OwnerWord::OutsideInput { reason });
        }
    }

    /// What was sent to peers outside of this mesh goes on when the task has completed, and ends with it otherwise; in this
    /// mesh the core sees to that.
    pub(super) fn cancel_what_was_sent(&self) {
        if self.view.state == TaskState::Completed {
            return;
        }
        for orphan in self.view.journal.iter().filter(|step| orphans::was_sent(step)).filter_map(orphans::orphan) {
            let shared = std::sync::Arc::clone(&self.context.shared);
            let errand = delegation::cancel_orphan(shared, self.id(), orphan);
            self.context.shared.errands.run("cancellation of a peer's task", errand);
        }
    }
}

fn shown(chain: &[ChainLink], target: &str) -> String {
    let links = chain.iter().map(|link| format!("{} ({})", link.agent, link.task));
    links.chain([target.to_owned()]).collect::<Vec<_>>().join(" → ")
}
