//! An agent on the official Rust server (a2a-server-lf) with its own handler and store: it says what it was told. A task has four
//! events, as those of the servers beside it.
//!
//! Usage: sdk-server PORT

use std::{env, error::Error, sync::Arc};

use a2a::{
    A2AError, AgentCard, Artifact, Message, Part, PartContent, StreamResponse, Task, TaskArtifactUpdateEvent,
    TaskState, TaskStatus, TaskStatusUpdateEvent,
};
use a2a_server::{
    AgentExecutor, DefaultRequestHandler, ExecutorContext, InMemoryTaskStore, StaticAgentCard,
    agent_card::agent_card_router, jsonrpc::jsonrpc_router,
};
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::json;

type Events = BoxStream<'static, Result<StreamResponse, A2AError>>;

struct Echo;

impl AgentExecutor for Echo {
    fn execute(&self, context: ExecutorContext) -> Events {
        let (task_id, context_id) = context.task_info();
        let text = context.message.as_ref().map(said).unwrap_or_default();
        let submitted = Task {
            id: task_id.clone(),
            context_id: context_id.clone(),
            status: status(TaskState::Submitted),
            artifacts: None,
            history: context.message.map(|message| vec![message]),
            metadata: None,
        };
        let update = |state| {
            let (task_id, context_id) = (task_id.clone(), context_id.clone());
            StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
                task_id,
                context_id,
                status: status(state),
                metadata: None,
            })
        };
        let artifact = Artifact {
            artifact_id: "echo".to_owned(),
            name: None,
            description: None,
            parts: vec![Part::text(format!("Rust was told: {text}"))],
            metadata: None,
            extensions: None,
        };
        let made = StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
            task_id: task_id.clone(),
            context_id: context_id.clone(),
            artifact,
            append: Some(false),
            last_chunk: Some(true),
            metadata: None,
        });
        let events = [StreamResponse::Task(submitted), update(TaskState::Working), made, update(TaskState::Completed)];
        stream::iter(events.map(Ok)).boxed()
    }

    fn cancel(&self, context: ExecutorContext) -> Events {
        let (task_id, context_id) = context.task_info();
        let canceled =
            TaskStatusUpdateEvent { task_id, context_id, status: status(TaskState::Canceled), metadata: None };
        stream::iter([Ok(StreamResponse::StatusUpdate(canceled))]).boxed()
    }
}

fn status(state: TaskState) -> TaskStatus {
    TaskStatus { state, message: None, timestamp: None }
}

fn said(message: &Message) -> String {
    let text = |part: &Part| if let PartContent::Text(text) = &part.content { text.clone() } else { String::new() };
    message.parts.iter().map(text).collect()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = env::args().nth(1).ok_or("usage: sdk-server PORT")?.parse()?;
    let interface =
        json!({ "url": format!("http://127.0.0.1:{port}/"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0" });
    let card: AgentCard = serde_json::from_value(json!({
        "name": "echo",
        "description": "Says what it was told.",
        "version": "1",
        "supportedInterfaces": [interface],
        "capabilities": { "streaming": true },
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{ "id": "echo", "name": "echo", "description": "Says what it was told.", "tags": ["echo"] }],
    }))?;
    let handler = Arc::new(DefaultRequestHandler::new(Echo, InMemoryTaskStore::new()));
    let routes = jsonrpc_router(handler).merge(agent_card_router(Arc::new(StaticAgentCard::new(card))));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    Ok(axum::serve(listener, routes).await?)
}
