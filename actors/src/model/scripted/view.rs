//! What rules see of a request.

use serde::Serialize;
use serde_json::Value;

use crate::{
    model::{ChatMessage, ModelRequest, ToolSchema},
    prompt,
};

/// A request, sorted for rules.
pub(super) struct View<'a> {
    pub agent: &'a str,
    pub user: &'a str,
    /// Id of the client's last message.
    pub message_id: &'a str,
    /// Answers since the last user text.
    pub step: usize,
    /// Answers in the whole conversation: ids of calls are made from it.
    pub answers: usize,
    /// Results of the last answer's calls.
    pub results: Vec<SeenResult>,
    /// All results since the last user text.
    pub history: Vec<SeenResult>,
    pub tools: &'a [ToolSchema],
}

/// A tool result.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SeenResult {
    pub name: String,
    /// Without its fence.
    pub content: String,
    /// The content, if it is JSON.
    pub json: Option<Value>,
    pub is_error: bool,
    /// What the call was made with.
    pub arguments: Value,
}

impl<'a> View<'a> {
    pub(super) fn of(request: &'a ModelRequest) -> Self {
        let recent = request.since_last_user_text();
        let is_answer = |message: &ChatMessage| matches!(message, ChatMessage::Assistant { .. });
        let last_answer = recent.iter().rposition(is_answer);
        Self {
            agent: &request.agent,
            user: request.last_user_text(),
            message_id: &request.message_id,
            step: recent.iter().filter(|message| is_answer(message)).count(),
            answers: request.messages.iter().filter(|message| is_answer(message)).count(),
            results: seen(&recent[last_answer.unwrap_or(0)..]),
            history: seen(recent),
            tools: &request.tools,
        }
    }
}

fn seen(messages: &[ChatMessage]) -> Vec<SeenResult> {
    let arguments = |id: &str| {
        let calls = messages.iter().filter_map(|message| match message {
            ChatMessage::Assistant { calls, .. } => Some(calls),
            ChatMessage::User(_) | ChatMessage::ToolResult { .. } => None,
        });
        calls.flatten().find(|call| call.id == id).map_or(Value::Null, |call| call.arguments.clone())
    };
    let result = |message: &ChatMessage| match message {
        ChatMessage::ToolResult { call_id, name, content, is_error } => {
            let content = prompt::unfence(content).map_or_else(|| content.clone(), |(_, text)| text);
            let json = serde_json::from_str(&content).ok();
            Some(SeenResult { name: name.clone(), json, content, is_error: *is_error, arguments: arguments(call_id) })
        }
        ChatMessage::User(_) | ChatMessage::Assistant { .. } => None,
    };
    messages.iter().filter_map(result).collect()
}

/// Characters of the whole prompt, for the estimate of its tokens.
pub(super) fn prompt_chars(request: &ModelRequest) -> usize {
    let message = |message: &ChatMessage| match message {
        ChatMessage::User(text) => text.len(),
        ChatMessage::Assistant { text, calls } => {
            text.len() + calls.iter().map(|call| call.arguments.to_string().len()).sum::<usize>()
        }
        ChatMessage::ToolResult { content, .. } => content.len(),
    };
    let tools = request.tools.iter().map(|tool| tool.description.len() + tool.schema.to_string().len());
    request.system.len() + request.messages.iter().map(message).sum::<usize>() + tools.sum::<usize>()
}
