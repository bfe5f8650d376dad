//! Webhooks of a task, as its owner sets them up and takes them away. Over JSON-RPC, which the command line speaks.

use a2a::methods;
use serde_json::{Value, json};
use towline_core::TraceContext;

use super::{A2aClient, Binding, ClientError};

impl A2aClient {
    /// `CreateTaskPushNotificationConfig`: `config` in ProtoJSON, with the task in it; the answer is what was set up.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Malformed`] on a client of another binding than JSON-RPC.
    pub async fn create_webhook(&self, config: Value, trace: Option<&TraceContext>) -> Result<Value, ClientError> {
        self.ask_of_webhooks(methods::CREATE_PUSH_CONFIG, config, trace).await
    }

    /// `DeleteTaskPushNotificationConfig`: one that is not there is no error.
    ///
    /// # Errors
    /// As for [`A2aClient::create_webhook`].
    pub async fn delete_webhook(&self, task: &str, id: &str, trace: Option<&TraceContext>) -> Result<(), ClientError> {
        let name = json!({ "id": id, "taskId": task });
        self.ask_of_webhooks(methods::DELETE_PUSH_CONFIG, name, trace).await.map(|_| ())
    }

    async fn ask_of_webhooks(
        &self,
        method: &str,
        params: Value,
        trace: Option<&TraceContext>,
    ) -> Result<Value, ClientError> {
        if self.binding != Binding::JsonRpc {
            return Err(self.malformed("webhooks are set up over JSON-RPC"));
        }
        self.call(method, params, self.answers_within, trace).await
    }
}
