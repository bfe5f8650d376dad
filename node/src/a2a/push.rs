//! Push notification configs: the four operations about the webhooks of a task, and the config that comes with a message.
//!
//! A URL is looked at before anything is proposed; whoever delivers looks again at each dial. Where the operator has not
//! turned push notifications on, all of it is refused.

use a2a::methods;
use serde_json::{Value, json};
use towline_a2a::{
    Field, WireError,
    convert::{self, ListPushConfigs},
};
use towline_core::{Command, Principal, Proposal, SetWebhook, TaskId, Webhook, WebhookConfig, WebhookName};
use towline_trace::{Span, names};

use super::{
    A2aSettings,
    handler::{not_proposed, task_id, unavailable},
};

/// The operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PushMethod {
    Create,
    Get,
    List,
    Delete,
}

impl PushMethod {
    pub(super) fn name(self) -> &'static str {
        match self {
            PushMethod::Create => methods::CREATE_PUSH_CONFIG,
            PushMethod::Get => methods::GET_PUSH_CONFIG,
            PushMethod::List => methods::LIST_PUSH_CONFIGS,
            PushMethod::Delete => methods::DELETE_PUSH_CONFIG,
        }
    }
}

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PushCall {
    Create { task: TaskId, config: WebhookConfig },
    Get(WebhookName),
    List { task: TaskId, request: ListPushConfigs },
    Delete(WebhookName),
}

/// Reads a request.
pub(super) fn decide(method: PushMethod, params: Value) -> Result<PushCall, WireError> {
    let name = |params| -> Result<WebhookName, WireError> {
        let name = convert::push_config_name(params)?;
        Ok(WebhookName { task: task_id(&name.task)?, id: name.id })
    };
    Ok(match method {
        PushMethod::Create => {
            let request = convert::create_push_config(params)?;
            PushCall::Create { task: task_id(&request.task)?, config: request.config }
        }
        PushMethod::Get => PushCall::Get(name(params)?),
        PushMethod::List => {
            let request = convert::list_push_configs(params)?;
            PushCall::List { task: task_id(&request.task)?, request }
        }
        PushMethod::Delete => PushCall::Delete(name(params)?),
    })
}

/// Does what is asked.
pub(super) async fn perform(
    settings: &A2aSettings,
    by: &Principal,
    call: PushCall,
    span: &mut Span,
) -> Result<Value, WireError> {
    match call {
        PushCall::Create { task, config } => {
            span.set(names::A2A_TASK_ID, task.to_string());
            // Who may not see the task learns nothing of where a URL leads.
            webhooks(settings, by, task).await?;
            check(settings, &config, "").await?;
            let shown = convert::push_config(&task.to_string(), &config);
            set(settings, by, task, config, None, span).await?;
            shown
        }
        PushCall::Get(name) => {
            span.set(names::A2A_TASK_ID, name.task.to_string());
            let webhooks = webhooks(settings, by, name.task).await?;
            let found = webhooks.into_iter().find(|webhook| webhook.config.id == name.id);
            let found = found.ok_or_else(|| WireError::unknown_push_config(&name.id))?;
            convert::push_config(&name.task.to_string(), &found.config)
        }
        PushCall::List { task, request } => {
            span.set(names::A2A_TASK_ID, task.to_string());
            convert::push_configs(&request, &webhooks(settings, by, task).await?)
        }
        PushCall::Delete(name) => {
            span.set(names::A2A_TASK_ID, name.task.to_string());
            propose(settings, by, Command::RemoveWebhook(name), span).await?;
            Ok(json!({}))
        }
    }
}

/// Refuses a URL that leads where clients may not have this node dial. `path` is where the config stands in the request.
pub(super) async fn check(settings: &A2aSettings, config: &WebhookConfig, path: &str) -> Result<(), WireError> {
    let policy = settings.push.as_ref().ok_or_else(WireError::no_push)?;
    let refused = |refused: towline_actors::egress::Refused| Field::new(format!("{path}url"), refused.to_string());
    policy.check(&config.url).await.map_err(refused)?;
    Ok(())
}

/// Sets a webhook up: `from` is the last event that its receiver knows. The same again changes nothing.
pub(super) async fn set(
    settings: &A2aSettings,
    by: &Principal,
    task: TaskId,
    config: WebhookConfig,
    from: Option<u64>,
    span: &Span,
) -> Result<(), WireError> {
    let set = SetWebhook { task, config, from, prefer: settings.cluster.node_id() };
    propose(settings, by, Command::SetWebhook(Box::new(set)), span).await
}

async fn webhooks(settings: &A2aSettings, by: &Principal, task: TaskId) -> Result<Vec<Webhook>, WireError> {
    let look = |state: &towline_core::State| {
        state.webhooks_for(by, task).map(|webhooks| webhooks.into_iter().cloned().collect::<Vec<Webhook>>())
    };
    let found = settings.cluster.read(look).await.map_err(unavailable)?;
    found.ok_or_else(|| WireError::unknown_task(&task.to_string()))
}

async fn propose(settings: &A2aSettings, by: &Principal, command: Command, span: &Span) -> Result<(), WireError> {
    let proposal = Proposal { by: by.clone(), command };
    settings.cluster.propose(proposal, Some(&span.context())).await.map_err(not_proposed)?;
    Ok(())
}
