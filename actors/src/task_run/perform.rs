//! Performs what the journal says is to be done: asks the model, calls a tool, has a peer asked.

use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use towline_cluster::{BlobError, ClusterHandle};
use towline_core::{Asked, Intent, Message, Principal, Step, StepNo};
use towline_trace::{KeyValue, Span, names};

use super::{AgentContext, Running, TaskRunMsg, TaskRunState, Work};
use crate::{
    delegation::{DelegationActor, DelegationArguments, Job},
    logs,
    mailbox::Mail,
    model::{ChatMessage, ModelError, ModelRequest},
    prompt, stored, thinking,
};

impl TaskRunState {
    pub(super) async fn perform(&mut self, steps: &[StepNo]) -> Result<(), ActorProcessingErr> {
        for no in steps {
            // The last look before the effect leaves this node.
            if !self.context.shared.cluster.may_act() {
                self.stop();
                return Ok(());
            }
            let Some(step) = self.view.step(*no).cloned() else { continue };
            let work = match &step.intent {
                Intent::Model { .. } => self.think(&step),
                Intent::Tool { server, tool, arguments, .. } => self.call_tool(&step, server, tool, arguments),
                Intent::Delegate { .. } => {
                    if let Some(outcome) = self.refusal(&step) {
                        self.end_step(*no, outcome);
                        continue;
                    }
                    self.delegate(&step).await?
                }
                Intent::Ask { .. } | Intent::Refused { .. } => continue,
            };
            self.running.insert(*no, Running { attempt: step.attempt, work });
        }
        Ok(())
    }

    fn think(&mut self, step: &Step) -> Work {
        if towline_trace::captures()
            && let Some(span) = self.step_spans.get_mut(&step.no)
            && let Some(request) = self.view.history.first()
        {
            let messages = || prompt::conversation(request, &self.view.journal);
            span.content(names::GEN_AI_INPUT_MESSAGES, || messages().iter().map(shown_message).collect());
        }
        let (context, myself) = (Arc::clone(&self.context), self.myself.clone());
        let (no, attempt) = (step.no, step.attempt);
        let request = ModelRequest {
            model: self.model_name(),
            system: String::new(),
            messages: Vec::new(),
            tools: Vec::new(),
            seed: format!("{}/{}", self.id(), self.view.turn.number),
            agent: context.agent.name.to_string(),
            message_id: self.view.last_message_of_client().map(ToString::to_string).unwrap_or_default(),
            trace: Some(step.span),
        };
        let read = (self.view.history.first().cloned(), self.view.journal.clone());
        let cancel = CancellationToken::new();
        let canceled = cancel.clone();
        let task = logs::spawn(&self.logs, async move {
            tokio::select! {
                () = canceled.cancelled() => {}
                () = ask_model(context, myself, (no, attempt), request, read) => {}
            }
            None
        });
        Work::Call { cancel, task: AbortOnDropHandle::new(task), line: None }
    }

    async fn delegate(&self, step: &Step) -> Result<Work, ActorProcessingErr> {
        let Some(job) = self.job(step) else { return Ok(Work::Resting) };
        let arguments = DelegationArguments { job, shared: Arc::clone(&self.context.shared), run: self.myself.clone() };
        let (actor, _) = Actor::spawn_linked(None, DelegationActor, arguments, self.myself.get_cell()).await?;
        Ok(Work::Delegation(actor))
    }

    fn job(&self, step: &Step) -> Option<Job> {
        let Intent::Delegate { target, own_mesh, message, peer_task, handover, .. } = &step.intent else {
            return None;
        };
        let mut message = message.as_ref().clone();
        if !own_mesh {
            message.metadata.extend(self.told_to_peers());
        }
        let answer = match &step.asked {
            Some(Asked::Answered(id)) => self.view.message(id).cloned(),
            Some(Asked::Waiting) | None => None,
        };
        Some(Job {
            task: self.id(),
            step: step.no,
            attempt: step.attempt,
            target: target.clone(),
            own_mesh: *own_mesh,
            message,
            handover: *handover,
            relays: self.context.agent.relays,
            peer_task: peer_task.clone(),
            answer,
            may_repeat: self.may_repeat.contains(&step.no),
            headers: self.headers(step.no),
            trace: step.span,
        })
    }

    fn headers(&self, step: StepNo) -> Vec<(&'static str, String)> {
        let principal =
            Principal::Agent { name: self.view.agent.clone(), on_behalf_of: Box::new(self.view.owner.clone()) };
        let mut headers = vec![
            ("towline-parent-task", self.id().to_string()),
            ("towline-parent-step", step.to_string()),
            ("towline-hop", (self.view.hop + 1).to_string()),
        ];
        headers.extend(serde_json::to_string(&principal).ok().map(|text| ("towline-on-behalf-of", text)));
        headers.extend(self.remaining_ms().map(|ms| ("towline-deadline-ms", ms.to_string())));
        headers
    }
}

async fn ask_model(
    context: Arc<AgentContext>,
    run: ActorRef<Mail<TaskRunMsg>>,
    (step, attempt): (StepNo, u32),
    mut request: ModelRequest,
    read: (Option<Message>, Vec<Step>),
) {
    let read = conversation(&context.shared.cluster, read).await;
    let toolbox = context.shared.toolbox(&context.agent);
    request.system = prompt::system(&context.agent, &toolbox);
    request.tools = prompt::schemas(&toolbox);
    let answer = match (read, context.model()) {
        (Err(error), _) => Err(ModelError::permanent("content_unavailable", format!("read the task: {error}"))),
        (Ok(messages), Some(model)) => {
            request.messages = messages;
            let tell = |progress| {
                // A run that has stopped shows nothing.
                let _ = run.cast(TaskRunMsg::Progress { step, attempt, progress }.into());
            };
            thinking::think(model.provider.as_ref(), request, tell).await
        }
        (Ok(_), None) => {
            Err(ModelError::permanent("unknown_model", format!("model {} is not set up", context.agent.model)))
        }
    };
    // A run that has stopped wants no answer.
    let _ = run.cast(TaskRunMsg::Thought { step, attempt, answer, toolbox }.into());
}

/// A message as spans show it.
fn shown_message(message: &ChatMessage) -> serde_json::Value {
    let (role, content) = match message {
        ChatMessage::User(text) => ("user", text),
        ChatMessage::Assistant { text, .. } => ("assistant", text),
        ChatMessage::ToolResult { content, .. } => ("tool", content),
    };
    serde_json::json!({ "parts": [{ "content": content, "type": "text" }], "role": role })
}

/// The journal as the model sees it, with everything that lies in the blob store in its place.
async fn conversation(
    cluster: &ClusterHandle,
    (request, mut journal): (Option<Message>, Vec<Step>),
) -> Result<Vec<ChatMessage>, BlobError> {
    let Some(mut request) = request else { return Ok(Vec::new()) };
    stored::with_parts(cluster, &mut request).await?;
    stored::with_outcomes(cluster, &mut journal).await?;
    Ok(prompt::conversation(&request, &journal))
}

pub(super) fn set(span: &mut Span, pair: KeyValue) {
    let KeyValue { key, value, .. } = pair;
    // The keys of a connection's attributes are the constants of `names`.
    for name in [
        names::MCP_SERVER,
        names::PEER_SERVICE,
        names::NETWORK_TRANSPORT,
        names::MCP_PROTOCOL_VERSION,
        names::MCP_SESSION_ID,
    ] {
        if key.as_str() == name {
            span.set(name, value.clone());
        }
    }
}
