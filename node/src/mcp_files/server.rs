//! The MCP side: the tools, their schemas, and their answers; and the text files as resources.
//!
//! An answer is structured content, and the same as JSON text for clients that read only text.

use rmcp::{
    RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, JsonObject,
        ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
        ReadResourceResult, Resource, ResourceContents, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
    },
    service::RequestContext,
};
use serde::Serialize;
use serde_json::{Value, json};
use towline_core::TraceContext;
use towline_trace::{Kind, Span, names};

use super::{
    attach::Attachments,
    folder::{Folder, Refusal},
};

/// Serves one folder. Cheap to clone: over HTTP each session has one.
#[derive(Clone)]
pub(super) struct FileServer {
    folder: Folder,
    /// Where whole files are put; none where an answer cannot take them up.
    attachments: Option<Attachments>,
}

impl FileServer {
    pub(super) fn new(folder: Folder) -> Self {
        Self { folder, attachments: None }
    }

    /// Gives whole files as well.
    pub(super) fn with_attachments(self, attachments: Attachments) -> Self {
        Self { attachments: Some(attachments), ..self }
    }

    /// Carries out a call, on a thread that may wait for the disk.
    pub(super) async fn answer(&self, call: Call) -> CallToolResult {
        let (folder, attachments) = (self.folder.clone(), self.attachments.clone());
        let done = tokio::task::spawn_blocking(move || match call {
            Call::ListDirectory { path } => structured(folder.list(path.as_deref())),
            Call::ReadFile { path } => structured(folder.read(&path)),
            Call::SearchFiles { pattern, path } => structured(folder.search(&pattern, path.as_deref())),
            Call::AttachFile { path } => attached(&folder, attachments, &path),
        });
        done.await.unwrap_or_else(|_| refused("the file server failed at this".to_owned()))
    }
}

/// A call with checked arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Call {
    ListDirectory { path: Option<String> },
    ReadFile { path: String },
    SearchFiles { pattern: String, path: Option<String> },
    AttachFile { path: String },
}

/// A call that cannot be carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadCall {
    UnknownTool,
    Arguments(String),
}

impl Call {
    pub(super) fn read(tool: &str, arguments: JsonObject) -> Result<Self, BadCall> {
        let mut arguments = Arguments(arguments);
        let call = match tool {
            "list_directory" => Call::ListDirectory { path: arguments.optional("path")? },
            "read_file" => Call::ReadFile { path: arguments.required("path")? },
            "search_files" => {
                Call::SearchFiles { pattern: arguments.required("pattern")?, path: arguments.optional("path")? }
            }
            "attach_file" => Call::AttachFile { path: arguments.required("path")? },
            _ => return Err(BadCall::UnknownTool),
        };
        arguments.nothing_left()?;
        Ok(call)
    }
}

struct Arguments(JsonObject);

impl Arguments {
    fn optional(&mut self, name: &str) -> Result<Option<String>, BadCall> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(BadCall::Arguments(format!("{name:?} must be a text, not {other}"))),
        }
    }

    fn required(&mut self, name: &str) -> Result<String, BadCall> {
        self.optional(name)?.ok_or_else(|| BadCall::Arguments(format!("{name:?} is missing")))
    }

    fn nothing_left(&self) -> Result<(), BadCall> {
        match self.0.keys().next() {
            Some(name) => Err(BadCall::Arguments(format!("{name:?} is no argument of this tool"))),
            None => Ok(()),
        }
    }
}

fn structured(result: Result<impl Serialize, Refusal>) -> CallToolResult {
    match result.map(|value| serde_json::to_value(value)) {
        Ok(Ok(value)) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(value.to_string())]);
            result.structured_content = Some(value);
            result
        }
        Ok(Err(error)) => refused(format!("write the answer: {error}")),
        Err(refusal) => refused(refusal.to_string()),
    }
}

fn attached(folder: &Folder, attachments: Option<Attachments>, path: &str) -> CallToolResult {
    let Some(attachments) = attachments else {
        return refused("whole files are given over standard output only".to_owned());
    };
    match folder.attach(path) {
        Ok((file, path, bytes)) => {
            let said = ContentBlock::text(format!("{path}: {bytes} bytes"));
            let file = ResourceContents::blob(attachments.put(file), format!("file:///{path}"));
            CallToolResult::success(vec![said, ContentBlock::resource(file)])
        }
        Err(refusal) => refused(refusal.to_string()),
    }
}

fn refused(why: String) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(why)])
}

impl ServerHandler for FileServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_resources().build())
            .with_server_info(Implementation::new("towline-mcp-files", env!("CARGO_PKG_VERSION")))
            .with_instructions("Shows the files of one folder. Paths are relative to it.")
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools(self.attachments.is_some())))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let folder = self.folder.clone();
        let listed = tokio::task::spawn_blocking(move || folder.resources()).await;
        let listed = listed.map_err(|_| ErrorData::internal_error("the file server failed at this", None))?;
        let listed = listed.map_err(|refusal| ErrorData::internal_error(refusal.to_string(), None))?;
        let of = |(uri, name): (String, String)| Resource::new(uri, name);
        Ok(ListResourcesResult::with_all_items(listed.into_iter().map(of).collect()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let (folder, uri) = (self.folder.clone(), request.uri.clone());
        let read = tokio::task::spawn_blocking(move || folder.read_uri(&uri)).await;
        let read = read.map_err(|_| ErrorData::internal_error("the file server failed at this", None))?;
        let file = read.map_err(|refusal| ErrorData::resource_not_found(refusal.to_string(), None))?;
        let contents = vec![ResourceContents::text(file.text, request.uri)];
        Ok(ReadResourceResponse::Complete(ReadResourceResult::new(contents)))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut span = span(&request.name, &context);
        let result = match Call::read(&request.name, request.arguments.unwrap_or_default()) {
            Ok(call) => self.answer(call).await,
            Err(BadCall::Arguments(why)) => refused(format!("{}: {why}", request.name)),
            Err(BadCall::UnknownTool) => {
                let message = format!("unknown tool {:?}", request.name);
                span.fail("-32602", &message);
                return Err(ErrorData::invalid_params(message, None));
            }
        };
        if result.is_error == Some(true) {
            span.fail(names::error::TOOL_ERROR, "the tool refused");
        }
        Ok(CallToolResponse::Complete(result))
    }
}

/// The SERVER span of a call, below the caller's if the caller sent its place in a trace.
fn span(tool: &str, context: &RequestContext<RoleServer>) -> Span {
    let name = format!("{} {tool}", names::span::TOOLS_CALL);
    let parent = context.meta.get_traceparent().and_then(|text| text.parse::<TraceContext>().ok());
    let mut span = match parent {
        Some(parent) => Span::child(name, Kind::Server, &parent),
        None => Span::root(name, Kind::Server),
    };
    span.set(names::MCP_METHOD_NAME, names::span::TOOLS_CALL);
    span.set(names::GEN_AI_OPERATION_NAME, "execute_tool");
    span.set(names::GEN_AI_TOOL_NAME, towline_a2a::shortened(tool));
    span
}

/// The tools, as clients see them.
pub(super) fn tools(attaches: bool) -> Vec<Tool> {
    let folder = json!({ "type": "string", "description": "Folder, relative to the folder that is shown; default: that folder." });
    let file = json!({ "type": "string", "description": "File, relative to the folder that is shown." });
    let attach = tool(
        "attach_file",
        "Gives a file of any kind, whole, to whoever asked for the task: as an artifact that you do not see.",
        json!({ "path": file }),
        &["path"],
    );
    let mut tools = vec![
        tool(
            "list_directory",
            "Lists a folder: name, path, kind, size in bytes and whether it is a text file that read_file reads.",
            json!({ "path": folder }),
            &[],
        ),
        tool(
            "read_file",
            "Reads a UTF-8 text file of at most 1 MiB and counts its lines, words and bytes.",
            json!({ "path": file }),
            &["path"],
        ),
        tool(
            "search_files",
            "Searches the text files below a folder for lines that match a regular expression.",
            json!({ "pattern": { "type": "string", "description": "Regular expression." }, "path": folder }),
            &["pattern"],
        ),
    ];
    tools.extend(attaches.then_some(attach));
    tools
}

fn tool(name: &'static str, description: &'static str, properties: Value, required: &[&str]) -> Tool {
    let schema = JsonObject::from_iter([
        ("type".to_owned(), json!("object")),
        ("properties".to_owned(), properties),
        ("required".to_owned(), json!(required)),
        ("additionalProperties".to_owned(), json!(false)),
    ]);
    let mut tool = Tool::new(name, description, schema);
    tool.annotations = Some(ToolAnnotations::new().read_only(true).idempotent(true).open_world(false));
    tool
}
