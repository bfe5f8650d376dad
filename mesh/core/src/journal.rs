//! The journal of a task: what was intended, and what came of it.
//!
//! An intent is committed before its effect is sent, the outcome after it came back. A step with an intent and no outcome
//! is one whose effect may have happened.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::{Blob, Message, MessageId, Resolution, Timestamp, TraceContext};

/// Number of a step in its task, from 0. With the task id it is the idempotency key of the step's effect, the same on
/// every attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepNo(pub u32);

impl fmt::Display for StepNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What happens to a step whose owner was lost between intent and outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnAdoption {
    /// It is read-only or idempotent: it runs again.
    Retry,
    /// Its outcome is in doubt: a person decides.
    Ask,
    /// It counts as failed.
    Fail,
}

/// A tool call as a model asked for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The model's id of the call.
    pub id: String,
    /// Server-qualified tool name (`fs.read_file`), or `delegate` or `ask_human`.
    pub name: String,
    /// The arguments. A string when the model's JSON could not be parsed: then it is its text.
    pub arguments: serde_json::Value,
}

/// Tokens that a model call took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens in the prompt.
    pub input: u64,
    /// Tokens in the answer.
    pub output: u64,
}

/// What a model said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelAnswer {
    /// Its text, possibly empty.
    pub text: String,
    /// The calls it asked for; none means that the turn ends.
    pub calls: Vec<ToolCall>,
    /// Tokens, if the provider said.
    pub usage: Usage,
}

/// What a step waits for that gives work to another agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Handover {
    /// The end of the peer's task, which ends with this one.
    #[default]
    Delegation,
    /// That the peer has it: its task goes on when this one has completed.
    Send,
    /// The end of a task that an earlier step sent.
    Wait,
}

impl Handover {
    fn is_delegation(&self) -> bool {
        *self == Handover::Delegation
    }
}

/// What a step is about to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Intent {
    /// Ask the model. Its input is the journal up to here.
    Model {
        /// Name of the model, as the provider knows it.
        model: String,
    },
    /// Call a tool of an MCP server.
    Tool {
        /// The model's id of the call.
        call_id: String,
        /// The MCP server.
        server: String,
        /// The tool, as the server names it.
        tool: String,
        /// The arguments.
        arguments: serde_json::Value,
        /// What an adopter does with it.
        on_adoption: OnAdoption,
    },
    /// Delegate to another agent over A2A.
    Delegate {
        /// The model's id of the call.
        call_id: String,
        /// The agent or the configured peer.
        target: String,
        /// Whether `target` is an agent of this mesh.
        own_mesh: bool,
        /// The exact message; its id comes from task and step, its context is unique to the step.
        message: Box<Message>,
        /// The peer's task id, once it was seen.
        peer_task: Option<String>,
        /// What an adopter does when the peer's task id is not known and cannot be found.
        on_adoption: OnAdoption,
        /// What is waited for.
        #[serde(default, skip_serializing_if = "Handover::is_delegation")]
        handover: Handover,
    },
    /// Ask a person.
    Ask {
        /// The model's id of the call.
        call_id: String,
        /// The question.
        question: String,
        /// The one principal that may answer it; none is whoever owns the task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// A call that cannot be made (unknown tool, malformed arguments); its outcome says why.
    Refused {
        /// The model's id of the call.
        call_id: String,
        /// The name that the model used.
        name: String,
    },
}

impl Intent {
    /// The model's id of the call, for all but model steps.
    pub fn call_id(&self) -> Option<&str> {
        match self {
            Intent::Model { .. } => None,
            Intent::Tool { call_id, .. }
            | Intent::Delegate { call_id, .. }
            | Intent::Ask { call_id, .. }
            | Intent::Refused { call_id, .. } => Some(call_id),
        }
    }

    /// What comes of it when its task moves to another node before it has an outcome.
    pub fn when_interrupted(&self) -> Interruption {
        match self {
            Intent::Model { .. } => Interruption::Repeated,
            Intent::Tool { on_adoption: OnAdoption::Retry, .. } => Interruption::Repeated,
            Intent::Tool { on_adoption: OnAdoption::Ask | OnAdoption::Fail, .. } => Interruption::InDoubt,
            Intent::Delegate { own_mesh, peer_task, on_adoption, .. } => {
                let is_found_again = *own_mesh || peer_task.is_some() || *on_adoption == OnAdoption::Retry;
                if is_found_again { Interruption::Harmless } else { Interruption::InDoubt }
            }
            Intent::Ask { .. } | Intent::Refused { .. } => Interruption::Harmless,
        }
    }

    /// What an adopter does when it finds the intent without an outcome.
    pub fn on_adoption(&self) -> OnAdoption {
        match self {
            Intent::Model { .. } | Intent::Ask { .. } | Intent::Refused { .. } => OnAdoption::Retry,
            Intent::Tool { on_adoption, .. } | Intent::Delegate { on_adoption, .. } => *on_adoption,
        }
    }
}

/// What it costs to interrupt a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// Nothing: the next owner goes on with it.
    Harmless,
    /// The next owner does it again.
    Repeated,
    /// Its effect may have happened, and must not happen twice.
    InDoubt,
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// The model answered.
    Answered(ModelAnswer),
    /// The tool, the peer or the person answered. `is_error` is the tool's own word: the model sees it as an observation.
    Returned {
        /// The text that the model is shown.
        content: String,
        /// MCP `isError`, or a peer's task that failed.
        is_error: bool,
    },
    /// The tool, the peer or the person answered at length: the text lies in the blob store.
    Stored {
        /// The text that the model is shown.
        blob: Blob,
        /// As for [`Outcome::Returned`].
        is_error: bool,
    },
    /// The call did not work: a protocol error, a timeout, a refusal.
    Failed {
        /// Low-cardinality class, as on the span: `timeout`, `unknown_tool`, a JSON-RPC code.
        error_type: String,
        /// What was tried and what went wrong.
        message: String,
    },
}

/// An outcome and when it was committed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// What came of it.
    pub outcome: Outcome,
    /// When.
    pub at: Timestamp,
}

/// Where the question about a step stands whose effect may have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Doubt {
    /// A person was asked.
    Asked,
    /// The person said: run it again.
    Retry,
}

/// Where a question stands that a peer asked in the middle of a delegation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asked {
    /// The client was asked on the peer's behalf.
    Waiting,
    /// The client answered with this message of the task's history; it goes to the peer.
    Answered(MessageId),
}

/// One step of a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its number.
    pub no: StepNo,
    /// The turn it belongs to.
    pub turn: u32,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// What it does.
    pub intent: Intent,
    /// Span of the current attempt.
    pub span: TraceContext,
    /// Span id of the turn that the attempt ran in.
    pub parent_span: u64,
    /// When the current attempt's intent was committed.
    pub started: Timestamp,
    /// Set when its owner was lost and only a person can say what became of it.
    #[serde(default)]
    pub doubt: Option<Doubt>,
    /// Set when the peer of a delegation asked its client something.
    #[serde(default)]
    pub asked: Option<Asked>,
    /// Set when an operator settled its doubt.
    #[serde(default)]
    pub resolved: Option<Resolution>,
    /// What came of it.
    pub ended: Option<StepRecord>,
}
