//! Real models through the `genai` crate: OpenAI-compatible chat, Anthropic, Gemini, Ollama.
//!
//! The tool calls of an answer come with its end: until then their arguments are fragments. A stream that stops without
//! its API's own end is `truncated_stream`.

use ::genai::{
    Client, Headers, ModelIden, ServiceTarget,
    adapter::AdapterKind,
    chat::{self, ChatOptions, ChatRequest, ChatStream, ChatStreamEvent, ContentPart, MessageContent, StreamEnd},
    resolver::{AuthData, Endpoint},
};
use async_trait::async_trait;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::{borrow::Cow, collections::VecDeque, time::Duration};
use towline_core::{ToolCall, Usage};

use super::{
    ChatMessage, Delta, ModelError, ModelProvider, ModelRequest, ModelSetupError, ModelStream, ProviderInfo, ToolSchema,
};
use crate::config::{ModelConfig, Provider};

/// Longest part of a provider's error text that is kept: enough to see what it objects to.
const MAX_ERROR_CHARS: usize = 500;

/// Connections kept to one provider: as many calls as a node typically runs at once.
const IDLE_CONNECTIONS: usize = 8;

/// A model behind one of the APIs that genai speaks.
pub struct GenaiProvider {
    client: Client,
    target: ServiceTarget,
    name: &'static str,
}

impl GenaiProvider {
    /// Sets up the client of a model; nothing is sent yet.
    ///
    /// # Errors
    /// When the HTTP client cannot be made, or the provider has no API of its own.
    pub fn new(config: &ModelConfig) -> Result<Self, ModelSetupError> {
        let (kind, name, usual_base) = api(&config.provider)?;
        let http = reqwest::Client::builder()
            .connect_timeout(config.timeouts.connect)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .tcp_nodelay(true)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(ModelSetupError::Http)?;
        let client =
            Client::builder().with_reqwest(http).build().map_err(|error| ModelSetupError::Api(error.to_string()))?;
        let base = config.base_url.as_deref().unwrap_or(usual_base);
        let key = config.api_key.as_ref().map(|key| key.expose().to_owned()).unwrap_or_default();
        let target = ServiceTarget {
            endpoint: Endpoint::from_owned(format!("{}/", base.trim_end_matches('/'))),
            auth: AuthData::Key(key),
            model: ModelIden::new(kind, config.model.as_str()),
        };
        Ok(Self { client, target, name })
    }
}

fn api(provider: &Provider) -> Result<(AdapterKind, &'static str, &'static str), ModelSetupError> {
    match provider {
        Provider::OpenAi => Ok((AdapterKind::OpenAI, "openai", "https://api.openai.com/v1")),
        Provider::Anthropic => Ok((AdapterKind::Anthropic, "anthropic", "https://api.anthropic.com/v1")),
        Provider::Gemini => Ok((AdapterKind::Gemini, "gcp.gemini", "https://generativelanguage.googleapis.com/v1beta")),
        Provider::Ollama => Ok((AdapterKind::Ollama, "ollama", "http://localhost:11434")),
        Provider::Scripted { .. } => Err(ModelSetupError::Api("a scripted model has no API".into())),
    }
}

#[async_trait]
impl ModelProvider for GenaiProvider {
    fn info(&self) -> ProviderInfo {
        ProviderInfo { name: Cow::Borrowed(self.name), simulated: false }
    }

    async fn complete(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let mut target = self.target.clone();
        target.model = ModelIden::new(target.model.adapter_kind, request.model.as_str());
        let options = options(&request);
        let names = WireNames::of(&request.tools);
        let chat = chat_request(request);
        let answer = self.client.exec_chat_stream(target, chat, Some(&options)).await.map_err(model_error)?;
        let needs_reason = matches!(self.target.model.adapter_kind, AdapterKind::Gemini | AdapterKind::Ollama);
        let reading = Reading { answer: answer.stream, names, needs_reason, ready: VecDeque::new(), over: false };
        Ok(stream::unfold(reading, Reading::step).boxed())
    }
}

fn options(request: &ModelRequest) -> ChatOptions {
    let options = ChatOptions::default().with_capture_usage(true).with_capture_tool_calls(true);
    match request.trace {
        Some(trace) => options.with_extra_headers(Headers::from(("traceparent", trace.to_string()))),
        None => options,
    }
}

/// How tool names look to the provider: dots and slashes are not allowed there.
struct WireNames(Vec<(String, String)>);

impl WireNames {
    fn of(tools: &[ToolSchema]) -> Self {
        Self(tools.iter().map(|tool| (wire_name(&tool.name), tool.name.clone())).collect())
    }

    /// The name that we know the tool by. A name that was never offered stays as it is, so that the refusal shows it.
    fn ours(&self, wire: &str) -> String {
        self.0.iter().find(|(theirs, _)| theirs == wire).map_or_else(|| wire.to_owned(), |(_, ours)| ours.clone())
    }
}

fn wire_name(name: &str) -> String {
    name.replace(['.', '/'], "__")
}

fn chat_request(request: ModelRequest) -> ChatRequest {
    let messages = request.messages.into_iter().map(chat_message).collect();
    let mut chat = ChatRequest::new(messages).with_tools(request.tools.into_iter().map(|tool| {
        chat::Tool::new(wire_name(&tool.name)).with_description(tool.description).with_schema(tool.schema)
    }));
    if chat.tools.as_ref().is_some_and(Vec::is_empty) {
        chat.tools = None;
    }
    if request.system.is_empty() { chat } else { chat.with_system(request.system) }
}

fn chat_message(message: ChatMessage) -> chat::ChatMessage {
    match message {
        ChatMessage::User(text) => chat::ChatMessage::user(text),
        ChatMessage::Assistant { text, calls } => {
            let text = (!text.is_empty()).then_some(ContentPart::Text(text));
            let calls = calls.into_iter().map(|call| ContentPart::ToolCall(wire_call(call)));
            chat::ChatMessage::assistant(text.into_iter().chain(calls).collect::<MessageContent>())
        }
        ChatMessage::ToolResult { call_id, name, content, .. } => {
            chat::ChatMessage::from(chat::ToolResponse::new(call_id, content).with_fn_name(wire_name(&name)))
        }
    }
}

fn wire_call(call: ToolCall) -> chat::ToolCall {
    // APIs want an object here, also for a call whose arguments were no JSON.
    let fn_arguments = match call.arguments {
        Value::String(raw) => json!({ "malformed": raw }),
        usual @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => usual,
    };
    chat::ToolCall { call_id: call.id, fn_name: wire_name(&call.name), fn_arguments, thought_signatures: None }
}

/// An answer that is being read.
struct Reading {
    answer: ChatStream,
    names: WireNames,
    /// Whether genai makes up an end for this API when its stream just stops; such an end has no stop reason.
    needs_reason: bool,
    ready: VecDeque<Result<Delta, ModelError>>,
    over: bool,
}

impl Reading {
    async fn step(mut self) -> Option<(Result<Delta, ModelError>, Self)> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                self.over |= delta.is_err();
                return Some((delta, self));
            }
            if self.over {
                return None;
            }
            match self.answer.next().await {
                Some(Ok(event)) => self.take(event),
                Some(Err(error)) => self.ready.push_back(Err(model_error(error))),
                None => self.ready.push_back(Err(truncated())),
            }
        }
    }

    fn take(&mut self, event: ChatStreamEvent) {
        match event {
            ChatStreamEvent::Chunk(chunk) if !chunk.content.is_empty() => {
                self.ready.push_back(Ok(Delta::Text(chunk.content)));
            }
            ChatStreamEvent::End(end) => self.finish(end),
            ChatStreamEvent::Start
            | ChatStreamEvent::Chunk(_)
            | ChatStreamEvent::ReasoningChunk(_)
            | ChatStreamEvent::ThoughtSignatureChunk(_)
            | ChatStreamEvent::ToolCallChunk(_)
            | ChatStreamEvent::Heartbeat => {}
        }
    }

    fn finish(&mut self, end: StreamEnd) {
        self.over = true;
        if self.needs_reason && end.captured_stop_reason.is_none() {
            self.ready.push_back(Err(truncated()));
            return;
        }
        let calls = end.captured_tool_calls().unwrap_or_default();
        let calls: Vec<_> = calls.into_iter().enumerate().map(|(at, call)| our_call(at, call, &self.names)).collect();
        self.ready.extend(calls.into_iter().map(|call| Ok(Delta::Call(call))));
        if let Some(usage) = end.captured_usage {
            let tokens = |count: Option<i32>| count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
            let usage = Usage { input: tokens(usage.prompt_tokens), output: tokens(usage.completion_tokens) };
            self.ready.push_back(Ok(Delta::Usage(usage)));
        }
        self.ready.push_back(Ok(Delta::End));
    }
}

fn our_call(at: usize, call: &chat::ToolCall, names: &WireNames) -> ToolCall {
    let is_blank = call.fn_arguments.as_str().is_some_and(|raw| raw.trim().is_empty());
    let arguments = if is_blank || call.fn_arguments.is_null() { json!({}) } else { call.fn_arguments.clone() };
    let id = if call.call_id.is_empty() { format!("call_{at}") } else { call.call_id.clone() };
    ToolCall { id, name: names.ours(&call.fn_name), arguments }
}

fn truncated() -> ModelError {
    ModelError::passing("truncated_stream", "the model's answer stopped without an end")
}

/// Sorts what went wrong into what a retry can cure and what it cannot.
#[expect(clippy::wildcard_enum_match_arm, reason = "genai has 31 kinds and adds more; the rest is permanent")]
fn model_error(error: ::genai::Error) -> ModelError {
    if let Some(status) = error.status() {
        return status_error(status.as_u16(), retry_after(error.headers()), &error.to_string());
    }
    match error {
        ::genai::Error::WebStream { error, cause, .. } => match error.downcast::<::genai::Error>() {
            Ok(inner) => model_error(*inner),
            Err(other) => transport_error(other.downcast_ref::<reqwest::Error>(), &cause),
        },
        ::genai::Error::ChatResponse { body, .. } => {
            ModelError::permanent("provider_error", format!("the provider answered: {}", short(&body.to_string())))
        }
        other => ModelError::permanent("provider_error", format!("ask the model: {}", short(&other.to_string()))),
    }
}

fn status_error(status: u16, retry_after: Option<Duration>, text: &str) -> ModelError {
    let message = format!("the provider answered HTTP {status}: {}", short(text));
    match status {
        429 => ModelError::passing("rate_limited", message).after(retry_after),
        408 | 500..=599 => ModelError::passing(status.to_string(), message).after(retry_after),
        _ => ModelError::permanent(status.to_string(), message),
    }
}

fn transport_error(error: Option<&reqwest::Error>, cause: &str) -> ModelError {
    let kind = match error {
        Some(error) if error.is_timeout() => "timeout",
        Some(error) if error.is_connect() => "unreachable",
        Some(_) | None => "connection_lost",
    };
    ModelError::passing(kind, format!("read the model's answer: {}", short(cause)))
}

fn retry_after(headers: Option<&http::HeaderMap>) -> Option<Duration> {
    let seconds = headers?.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim().parse::<f64>().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn short(text: &str) -> String {
    text.chars().take(MAX_ERROR_CHARS).collect()
}

#[cfg(test)]
mod tests;
