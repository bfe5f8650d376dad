//! Models: one trait, the scripted provider, real providers, and what every one of them is wrapped in.
//!
//! ```text
//! caller ──▶ WithRetry ──▶ Bounded (timeouts, End required) ──▶ Scripted | Genai
//! ```
//!
//! A stream of deltas ends with [`Delta::End`] or with an error, never silently: a stream that just stops is the error
//! `truncated_stream`, since an answer cut short looks like an answer.

pub(crate) mod attempt;
mod bounded;
mod genai;
mod retry;
mod scripted;

use async_trait::async_trait;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, sync::Arc, time::Duration};
use towline_core::{Part, ToolCall, TraceContext, Usage};

pub use bounded::Bounded;
pub use genai::GenaiProvider;
pub use retry::WithRetry;
pub use scripted::{RuleMistake, RuleMistakes, ScriptedProvider};

use crate::config::{ModelConfig, Provider};

/// Something that answers prompts.
#[async_trait]
pub trait ModelProvider: Send + Sync {
    /// What it is, for spans and for the metadata of replies.
    fn info(&self) -> ProviderInfo;

    /// Starts an answer.
    ///
    /// # Errors
    /// When the provider refused or could not be reached; nothing of the answer was seen then.
    async fn complete(&self, request: ModelRequest) -> Result<ModelStream, ModelError>;
}

/// Makes the provider of a model, with its timeouts and retries around it.
///
/// # Errors
/// When the rules of a scripted model are wrong, or the address or key of a real one cannot be used.
pub fn provider(config: &ModelConfig) -> Result<Arc<dyn ModelProvider>, ModelSetupError> {
    Ok(match &config.provider {
        Provider::Scripted { rules, strict } => wrapped(ScriptedProvider::from_yaml(rules, *strict)?, config),
        Provider::OpenAi | Provider::Anthropic | Provider::Gemini | Provider::Ollama => {
            wrapped(GenaiProvider::new(config)?, config)
        }
    })
}

fn wrapped(provider: impl ModelProvider + 'static, config: &ModelConfig) -> Arc<dyn ModelProvider> {
    Arc::new(WithRetry::new(Bounded::new(provider, config.timeouts)))
}

/// A model that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ModelSetupError {
    /// The rules of a scripted model are wrong.
    #[error("read the rules of the scripted model")]
    Rules(#[from] RuleMistakes),
    /// The HTTP client could not be made.
    #[error("make the HTTP client of the model")]
    Http(#[source] reqwest::Error),
    /// genai refused the settings.
    #[error("set up the model's API: {0}")]
    Api(String),
}

/// What a provider is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderInfo {
    /// `gen_ai.provider.name`.
    pub name: Cow<'static, str>,
    /// Whether it only plays a model by rules: its spans and replies say so.
    pub simulated: bool,
}

/// The deltas of one answer. The last item is `Ok(Delta::End)` or an `Err`.
pub type ModelStream = BoxStream<'static, Result<Delta, ModelError>>;

/// What a model is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// The model, as the provider names it.
    pub model: String,
    /// The instruction of the agent.
    pub system: String,
    /// The conversation, oldest first.
    pub messages: Vec<ChatMessage>,
    /// The tools on offer.
    pub tools: Vec<ToolSchema>,
    /// Task id and turn: what a deterministic provider derives its choices from.
    pub seed: String,
    /// The agent that asks.
    pub agent: String,
    /// Id of the client's last message; empty where there is none.
    pub message_id: String,
    /// The span of the model call; sent as `traceparent`.
    pub trace: Option<TraceContext>,
}

impl ModelRequest {
    /// The text of the last message that a user wrote, empty if there is none.
    pub fn last_user_text(&self) -> &str {
        let texts = self.messages.iter().rev().filter_map(|message| match message {
            ChatMessage::User(text) => Some(text.as_str()),
            ChatMessage::Assistant { .. } | ChatMessage::ToolResult { .. } => None,
        });
        texts.into_iter().next().unwrap_or_default()
    }

    /// The messages after the last one that a user wrote.
    pub fn since_last_user_text(&self) -> &[ChatMessage] {
        let last = self.messages.iter().rposition(|message| matches!(message, ChatMessage::User(_)));
        &self.messages[last.map_or(0, |at| at + 1)..]
    }
}

/// One message of a conversation with a model.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatMessage {
    /// From the one who asks.
    User(String),
    /// From the model.
    Assistant {
        /// Its text, possibly empty.
        text: String,
        /// The calls it asked for.
        calls: Vec<ToolCall>,
    },
    /// What came of a call.
    ToolResult {
        /// The model's id of the call.
        call_id: String,
        /// The qualified name of the tool.
        name: String,
        /// The text that the model is shown, fenced as data.
        content: String,
        /// Whether the call failed.
        is_error: bool,
    },
}

/// A tool on offer.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    /// Qualified name, `server.tool`.
    pub name: String,
    /// What it does, in the words of its server.
    pub description: String,
    /// JSON Schema of its arguments.
    pub schema: serde_json::Value,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// More text.
    Text(String),
    /// A complete tool call.
    Call(ToolCall),
    /// Content that is no text of the answer: it becomes an artifact of the task.
    Artifact(MadeArtifact),
    /// The text is a plain reply and no result of work: a client that waits is answered with it as a message.
    Reply,
    /// Tokens of the whole answer, when the provider says so.
    Usage(Usage),
    /// The answer is complete.
    End,
}

/// Content that a model makes beside its text.
#[derive(Debug, Clone, PartialEq)]
pub struct MadeArtifact {
    /// What it is called.
    pub name: Option<String>,
    /// Its content; never empty.
    pub parts: Vec<Part>,
}

/// A model call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// Low-cardinality class, as on the span: `rate_limited`, `timeout`, `truncated_stream`, an HTTP status.
    pub error_type: Cow<'static, str>,
    /// Whether the same request may do better later.
    pub retryable: bool,
    /// How long the provider asked to wait.
    pub retry_after: Option<Duration>,
    /// What was tried and what went wrong.
    pub message: String,
}

impl ModelError {
    /// An error that the same request would meet again.
    pub fn permanent(error_type: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { error_type: error_type.into(), retryable: false, retry_after: None, message: message.into() }
    }

    /// An error that may pass.
    pub fn passing(error_type: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { error_type: error_type.into(), retryable: true, retry_after: None, message: message.into() }
    }

    /// The same error with the delay that the provider asked for.
    pub fn after(mut self, delay: Option<Duration>) -> Self {
        self.retry_after = delay;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with one user text and nothing else.
    pub(super) fn request(text: &str) -> ModelRequest {
        ModelRequest {
            model: "scripted-1".into(),
            system: String::new(),
            messages: vec![ChatMessage::User(text.into())],
            tools: Vec::new(),
            seed: "seed".into(),
            agent: "agent".into(),
            message_id: "message".into(),
            trace: None,
        }
    }
}
