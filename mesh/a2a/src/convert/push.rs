//! Push notification configs: what a client asks, and what it is shown. Its token and credentials are taken and never shown again:
//! with either of them somebody else could pass for this node at the receiver.

use a2a_pb::pbconv;
use serde_json::{Value, json};
use towline_core::{Webhook, WebhookAuth, WebhookConfig};

use super::{Field, requests, results};
use crate::WireError;

/// Most configs on one page of a list: as many as a task can have.
const MAX_PAGE_SIZE: usize = 100;

/// A new config, or one that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatePushConfig {
    /// The task, as the client wrote it.
    pub task: String,
    /// What it wants.
    pub config: WebhookConfig,
}

/// One config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushConfigName {
    /// The task, as the client wrote it.
    pub task: String,
    /// The config's id.
    pub id: String,
}

/// A page of the configs of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPushConfigs {
    /// The task, as the client wrote it.
    pub task: String,
    /// How many on a page.
    pub page_size: usize,
    /// The id of the last config of the page before.
    pub after: Option<String>,
}

/// Reads the parameters of `CreateTaskPushNotificationConfig`.
///
/// # Errors
/// The field that is missing or wrong.
pub fn create_push_config(params: Value) -> Result<CreatePushConfig, Field> {
    let wire = requests::decode::<a2a::TaskPushNotificationConfig>(params)?;
    let task = requests::required_text("taskId", wire.task_id.clone())?;
    Ok(CreatePushConfig { task, config: webhook_config(&wire, "")? })
}

/// The config that a message brings with it.
pub(super) fn webhook_config(wire: &a2a_pb::TaskPushNotificationConfig, path: &str) -> Result<WebhookConfig, Field> {
    let config = pbconv::from_proto_task_push_notification_config(wire);
    let url = requests::required_text(&format!("{path}url"), config.url)?;
    let authentication = config.authentication.map(|auth| webhook_auth(auth, path)).transpose()?;
    if let Some(token) = config.token.as_deref().filter(|token| !is_header_text(token)) {
        let problem = format!("has {} characters, some of which a header cannot hold", token.chars().count());
        return Err(Field::new(format!("{path}token"), problem));
    }
    let mut webhook = WebhookConfig { id: String::new(), url, token: config.token, authentication };
    webhook.id = config.id.unwrap_or_else(|| webhook.derived_id());
    Ok(webhook)
}

fn webhook_auth(auth: a2a::AuthenticationInfo, path: &str) -> Result<WebhookAuth, Field> {
    let is_token_char = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let scheme = requests::required_text(&format!("{path}authentication.scheme"), auth.scheme)?;
    if !scheme.chars().all(is_token_char) {
        let problem = "is no name of an HTTP authentication scheme, such as Bearer";
        return Err(Field::new(format!("{path}authentication.scheme"), problem));
    }
    let credentials = auth.credentials.filter(|credentials| !credentials.is_empty());
    if credentials.as_deref().is_some_and(|credentials| !is_header_text(credentials)) {
        return Err(Field::new(
            format!("{path}authentication.credentials"),
            "have characters that a header cannot hold",
        ));
    }
    Ok(WebhookAuth { scheme, credentials })
}

fn is_header_text(text: &str) -> bool {
    text.chars().all(|c| c == ' ' || c.is_ascii_graphic())
}

/// Reads the parameters of `GetTaskPushNotificationConfig` and `DeleteTaskPushNotificationConfig`.
///
/// # Errors
/// The field that is missing or wrong.
pub fn push_config_name(params: Value) -> Result<PushConfigName, Field> {
    let wire = requests::decode::<a2a::GetTaskPushNotificationConfigRequest>(params)?;
    let task = requests::required_text("taskId", wire.task_id)?;
    Ok(PushConfigName { task, id: requests::required_text("id", wire.id)? })
}

/// Reads the parameters of `ListTaskPushNotificationConfigs`.
///
/// # Errors
/// The field that is missing or wrong.
pub fn list_push_configs(params: Value) -> Result<ListPushConfigs, Field> {
    let wire = requests::decode::<a2a::ListTaskPushNotificationConfigsRequest>(params)?;
    let task = requests::required_text("taskId", wire.task_id)?;
    // Protobuf cannot tell zero from absent here.
    let page_size = match usize::try_from(wire.page_size) {
        Ok(0) => MAX_PAGE_SIZE,
        Ok(size) if size <= MAX_PAGE_SIZE => size,
        Ok(_) | Err(_) => return Err(Field::new("pageSize", format!("must be from 1 to {MAX_PAGE_SIZE}"))),
    };
    let after = (!wire.page_token.is_empty()).then_some(wire.page_token);
    Ok(ListPushConfigs { task, page_size, after })
}

/// One config, as Create and Get answer it.
///
/// # Errors
/// When it cannot be encoded: a bug.
pub fn push_config(task: &str, config: &WebhookConfig) -> Result<Value, WireError> {
    results::encode(&shown(task, config))
}

/// A page of configs, which are in the order of their ids.
///
/// # Errors
/// When it cannot be encoded: a bug.
pub fn push_configs(request: &ListPushConfigs, webhooks: &[Webhook]) -> Result<Value, WireError> {
    let behind = |webhook: &&Webhook| request.after.as_ref().is_none_or(|after| webhook.config.id > *after);
    let mut rest = webhooks.iter().filter(behind);
    let page: Vec<&Webhook> = rest.by_ref().take(request.page_size).collect();
    let next = page.last().filter(|_| rest.next().is_some()).map(|last| last.config.id.clone());
    let configs = page.iter().map(|webhook| shown(&request.task, &webhook.config)).collect();
    let mut encoded = results::encode(&a2a::ListTaskPushNotificationConfigsResponse {
        configs,
        next_page_token: Some(next.unwrap_or_default()),
    })?;
    if let Value::Object(fields) = &mut encoded {
        fields.entry("configs").or_insert_with(|| json!([]));
        fields.entry("nextPageToken").or_insert_with(|| json!(""));
    }
    Ok(encoded)
}

fn shown(task: &str, config: &WebhookConfig) -> a2a::TaskPushNotificationConfig {
    let authentication = config.authentication.as_ref();
    a2a::TaskPushNotificationConfig {
        url: config.url.clone(),
        id: Some(config.id.clone()),
        task_id: task.to_owned(),
        token: None,
        authentication: authentication
            .map(|auth| a2a::AuthenticationInfo { scheme: auth.scheme.clone(), credentials: None }),
        tenant: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str = "0198c0de-0000-7000-8000-000000000000";

    fn create(change: Value) -> Result<CreatePushConfig, Field> {
        let mut params = json!({ "taskId": TASK, "url": "https://receiver.example/hook" });
        params.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        create_push_config(params)
    }

    #[test]
    fn a_config_says_where_and_how_and_its_token_and_credentials_are_not_shown_again() {
        let auth = json!({ "scheme": "Bearer", "credentials": "secret" });
        let read = create(json!({ "id": "a", "token": "t", "authentication": auth })).unwrap();
        assert_eq!(read.config.authentication.as_ref().unwrap().credentials.as_deref(), Some("secret"));
        let shown = push_config(TASK, &read.config).unwrap();
        let expected = json!({ "id": "a", "taskId": TASK, "url": "https://receiver.example/hook",
            "authentication": { "scheme": "Bearer" } });
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_config_without_an_id_is_given_one_that_is_the_same_each_time() {
        let id = create(json!({})).unwrap().config.id;
        assert_eq!(create(json!({})).unwrap().config.id, id);
        assert_ne!(create(json!({ "token": "t" })).unwrap().config.id, id);
    }

    #[test]
    fn what_no_header_can_hold_is_refused_by_the_name_of_its_field() {
        for (change, field) in [
            (json!({ "url": "" }), "url"),
            (json!({ "taskId": "" }), "taskId"),
            (json!({ "token": "a\r\nX: y" }), "token"),
            (json!({ "authentication": { "credentials": "c" } }), "authentication.scheme"),
            (json!({ "authentication": { "scheme": "Bear er" } }), "authentication.scheme"),
            (json!({ "authentication": { "scheme": "Bearer", "credentials": "a\nb" } }), "authentication.credentials"),
        ] {
            assert_eq!(create(change).unwrap_err().field, field);
        }
    }

    #[test]
    fn a_list_has_all_its_fields_and_goes_on_behind_the_last_config_of_a_page() {
        let webhook = |id: &str| Webhook {
            config: WebhookConfig { id: id.into(), url: "https://a.example".into(), token: None, authentication: None },
            created: towline_core::Timestamp(0),
            after: None,
            lease: None,
            attempts: 0,
            delivered: 0,
            last: None,
            failing: None,
            dead: None,
        };
        let webhooks = [webhook("a"), webhook("b"), webhook("c")];
        let page = |params: Value| push_configs(&list_push_configs(params).unwrap(), &webhooks).unwrap();
        let first = page(json!({ "taskId": TASK, "pageSize": 2 }));
        assert_eq!((first["configs"].as_array().unwrap().len(), &first["nextPageToken"]), (2, &json!("b")));
        let second = page(json!({ "taskId": TASK, "pageSize": 2, "pageToken": "b" }));
        assert_eq!((&second["configs"][0]["id"], &second["nextPageToken"]), (&json!("c"), &json!("")));
        let empty = push_configs(&list_push_configs(json!({ "taskId": TASK })).unwrap(), &[]).unwrap();
        assert_eq!(empty, json!({ "configs": [], "nextPageToken": "" }));
        assert_eq!(list_push_configs(json!({ "taskId": TASK, "pageSize": 101 })).unwrap_err().field, "pageSize");
    }
}
