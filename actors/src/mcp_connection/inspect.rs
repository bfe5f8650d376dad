//! What an operator looks at by hand: everything that a server says of itself, and its prompts.

use rmcp::model::{
    ClientRequest, GetPromptRequest, GetPromptRequestParams, JsonObject, Prompt, ResourceTemplate, ServerResult,
};
use rmcp::service::PeerRequestOptions;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, time::Duration};

use super::{
    CallError, McpHandle, McpServerStatus, ResourceInfo, ToolInfo,
    call::{self, Patience},
    pages, text,
};

/// How long an operator waits for a connection.
const WAIT_FOR_SERVER: Duration = Duration::from_secs(5);

/// Time to make a prompt.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest description that is shown, in characters.
const MAX_DESCRIPTION_CHARS: usize = 1_024;

/// What a server is and has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct McpInspection {
    /// Where the connection stands.
    #[serde(flatten)]
    pub status: McpServerStatus,
    /// What the server said that it has.
    pub capabilities: Vec<String>,
    /// What it says of how it is used: text from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Its tools, as agents are shown them.
    pub tool_details: Vec<ToolInfo>,
    /// Its resources.
    pub resources: Vec<ResourceInfo>,
    /// Its templates of resources: nothing subscribes to them.
    pub templates: Vec<TemplateInfo>,
    /// Its prompts.
    pub prompts: Vec<PromptInfo>,
}

/// A template of resources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateInfo {
    /// As in RFC 6570.
    pub uri_template: String,
    /// In the words of the server.
    pub label: String,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptInfo {
    /// Its name.
    pub name: String,
    /// In the words of the server.
    pub description: String,
    /// Names of its arguments; those that it needs end with `*`.
    pub arguments: Vec<String>,
}

impl McpHandle {
    /// Looks at the server. What it does not have is not asked for; a list that cannot be had is told in its status.
    ///
    /// # Errors
    /// When the server is not there.
    pub async fn inspect(&self) -> Result<McpInspection, CallError> {
        let live = call::live(self, WAIT_FOR_SERVER, Patience::NextTry).await?;
        let has = live.capabilities;
        let (mut templates, mut prompts, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        let mut unlisted = BTreeMap::new();
        if has.resources {
            match pages::drain(&live.peer, &pages::TEMPLATES).await {
                Ok(listed) => {
                    templates = listed.items.into_iter().map(template).collect();
                    left_out.extend(listed.left_out);
                }
                Err(error) => drop(unlisted.insert(pages::TEMPLATES.what.to_owned(), error.message)),
            }
        }
        if has.prompts {
            match pages::drain(&live.peer, &pages::PROMPTS).await {
                Ok(listed) => {
                    prompts = listed.items.into_iter().map(prompt).collect();
                    left_out.extend(listed.left_out);
                }
                Err(error) => drop(unlisted.insert(pages::PROMPTS.what.to_owned(), error.message)),
            }
        }
        let mut status = self.status();
        status.left_out.extend(left_out);
        status.unlisted.extend(unlisted);
        Ok(McpInspection {
            status,
            capabilities: has.names().into_iter().map(str::to_owned).collect(),
            instructions: live.instructions.clone(),
            tool_details: self.tools(),
            resources: self.resources(),
            templates,
            prompts,
        })
    }

    /// Has the server make a prompt; the result as it came.
    ///
    /// # Errors
    /// When the server is not there, has no prompts, or refuses.
    pub async fn prompt(&self, name: &str, arguments: Option<JsonObject>) -> Result<Value, CallError> {
        let what = format!("get prompt {name:?} of {}", self.name());
        let live = call::live(self, WAIT_FOR_SERVER, Patience::NextTry).await?;
        if !live.capabilities.prompts {
            let message = format!("{what}: the server has no prompts");
            return Err(CallError { error_type: "capability_missing".into(), message, may_have_happened: false });
        }
        let mut params = GetPromptRequestParams::new(name);
        params.arguments = arguments;
        let request = ClientRequest::GetPromptRequest(GetPromptRequest::new(params));
        let options = PeerRequestOptions::with_timeout(PROMPT_TIMEOUT);
        let failed = |failure| call::call_error(&what, &failure);
        let sent = live.peer.send_request_with_option(request, options).await.map_err(failed)?;
        let answer = sent.await_response().await.map_err(failed)?;
        let malformed = |why: &str| CallError {
            error_type: "malformed_response".into(),
            message: format!("{what}: {why}"),
            may_have_happened: false,
        };
        let ServerResult::GetPromptResult(prompt) = &answer else {
            return Err(malformed("the server's answer is no prompt"));
        };
        serde_json::to_value(prompt).map_err(|error| malformed(&error.to_string()))
    }
}

fn template(template: ResourceTemplate) -> TemplateInfo {
    let label = template.title.or(template.description).unwrap_or(template.name);
    TemplateInfo {
        uri_template: text::plain_line(&template.uri_template, text::MAX_URI_BYTES),
        label: text::plain_line(&label, MAX_DESCRIPTION_CHARS),
    }
}

fn prompt(prompt: Prompt) -> PromptInfo {
    let argument = |argument: rmcp::model::PromptArgument| {
        let mark = if argument.required == Some(true) { "*" } else { "" };
        format!("{}{mark}", text::plain_line(&argument.name, text::MAX_NAME_BYTES))
    };
    PromptInfo {
        name: text::plain_line(&prompt.name, text::MAX_NAME_BYTES),
        description: text::plain_line(&prompt.description.unwrap_or_default(), MAX_DESCRIPTION_CHARS),
        arguments: prompt.arguments.into_iter().flatten().map(argument).collect(),
    }
}
