//! Every span, event and attribute name that Towline writes.
//!
//! A snapshot of the conventions as of 2026-11-29: HTTP (stable) and RPC (release candidate) of the OpenTelemetry
//! semantic conventions, GenAI and MCP of `semantic-conventions-genai` (development), A2A of its pull request 195
//! (draft). They change often and have no stable crate, so they are spelled out here once. Our own names start with
//! `towline.`.

/// Names of spans. Where a name has a variable part, the constant is what comes before it.
pub mod span {
    /// Root span of `towline send`.
    pub const CLI_SEND: &str = "towline send";
    /// Root span of `towline demo`.
    pub const CLI_DEMO: &str = "towline demo";
    /// `raft.propose COMMAND`: from the proposal until this node has applied the entry.
    pub const RAFT_PROPOSE: &str = "raft.propose";
    /// The forwarding of a proposal to the leader, CLIENT and SERVER.
    pub const PEER_PROPOSE: &str = "towline.v1.Peer/Propose";
    /// `invoke_agent AGENT`: a turn (INTERNAL), or a delegation (CLIENT).
    pub const INVOKE_AGENT: &str = "invoke_agent";
    /// `chat MODEL`: one model call.
    pub const CHAT: &str = "chat";
    /// `tools/call TOOL`: one MCP tool call.
    pub const TOOLS_CALL: &str = "tools/call";
    /// The listing of a server's tools.
    pub const TOOLS_LIST: &str = "tools/list";
    /// A question to a person.
    pub const ASK_HUMAN: &str = "ask_human";
    /// A2A methods, CLIENT and SERVER.
    pub const SEND_MESSAGE: &str = "SendMessage";
    /// Streaming send.
    pub const SEND_STREAMING_MESSAGE: &str = "SendStreamingMessage";
    /// Get a task.
    pub const GET_TASK: &str = "GetTask";
    /// List tasks.
    pub const LIST_TASKS: &str = "ListTasks";
    /// Cancel a task.
    pub const CANCEL_TASK: &str = "CancelTask";
    /// Subscribe to a task.
    pub const SUBSCRIBE_TO_TASK: &str = "SubscribeToTask";
    /// `trigger NAME`: something happened that starts a task.
    pub const TRIGGER: &str = "trigger";
    /// A stream of events, from its head to its end: below the request that opened it, which ends with its head.
    pub const STREAM: &str = "a2a.stream";
    /// A call of a webhook.
    pub const PUSH: &str = "push POST";
}

/// Names of span events.
pub mod event {
    /// A task changed its state; attributes [`super::FROM`] and [`super::TO`].
    pub const TASK_STATE: &str = "task.state";
    /// This node took the lease of a task.
    pub const LEASE_ACQUIRED: &str = "lease.acquired";
    /// A model call is tried again.
    pub const MODEL_RETRY: &str = "model.retry";
    /// The entry of a proposal is committed, and the leader has applied it.
    pub const RAFT_COMMITTED: &str = "raft.committed";
    /// The node that proposed it has applied it.
    pub const RAFT_APPLIED: &str = "raft.applied";
    /// A broken stream was taken up again.
    pub const STREAM_RESUMED: &str = "stream.resumed";
    /// What a tool answered has a mark of a fence in it; attribute [`super::MCP_SERVER`].
    pub const FENCE_IN_DATA: &str = "mcp.fence_in_data";
}

/// Values of [`LINK_KIND`].
pub mod link {
    /// To the turn that a dead owner left behind.
    pub const RESUMED_FROM: &str = "resumed_from";
    /// To the request that woke a waiting task.
    pub const WOKEN_BY: &str = "woken_by";
    /// To the request that submitted the task.
    pub const TASK_SUBMITTED: &str = "task_submitted";
    /// To the request of an earlier turn, from one that another request has begun.
    pub const EARLIER_TURN: &str = "earlier_turn";
    /// To what a caller said that it is part of, from the trace of its own that its request got.
    pub const CALLER: &str = "caller";
    /// To the context of the transport, where the message itself names another one.
    pub const TRANSPORT: &str = "transport";
    /// To the asking end of a proposal that was sent on to the leader.
    pub const FORWARDED: &str = "forwarded";
    /// To a second context that came with a request, beside the parent.
    pub const METADATA: &str = "metadata";
}

/// Values of [`ERROR_TYPE`] that more than one crate writes.
pub mod error {
    /// The node that ran the span is gone.
    pub const NODE_LOST: &str = "node_lost";
    /// A deadline passed.
    pub const TIMEOUT: &str = "timeout";
    /// A tool answered with `isError`.
    pub const TOOL_ERROR: &str = "tool_error";
    /// The far side said: slow down.
    pub const RATE_LIMITED: &str = "rate_limited";
    /// No quorum.
    pub const UNAVAILABLE: &str = "unavailable";
    /// The work was canceled.
    pub const CANCELED: &str = "canceled";
}

// General.
/// Low-cardinality kind of failure.
pub const ERROR_TYPE: &str = "error.type";
/// Previous state, on [`event::TASK_STATE`].
pub const FROM: &str = "from";
/// Next state, on [`event::TASK_STATE`].
pub const TO: &str = "to";
/// The uninstrumented callee of a leaf span.
pub const PEER_SERVICE: &str = "peer.service";
/// Host of the far side.
pub const SERVER_ADDRESS: &str = "server.address";
/// Port of the far side.
pub const SERVER_PORT: &str = "server.port";
/// Address of the caller.
pub const CLIENT_ADDRESS: &str = "client.address";
/// `tcp` or `pipe`.
pub const NETWORK_TRANSPORT: &str = "network.transport";
/// Id of a JSON-RPC request.
pub const JSONRPC_REQUEST_ID: &str = "jsonrpc.request.id";

// Resource.
/// Name of the service.
pub const SERVICE_NAME: &str = "service.name";
/// Version of the binary.
pub const SERVICE_VERSION: &str = "service.version";
/// One process of the service.
pub const SERVICE_INSTANCE_ID: &str = "service.instance.id";
/// Numeric id of the node.
pub const NODE_ID: &str = "towline.node.id";
/// Name of the node.
pub const NODE_NAME: &str = "towline.node.name";
/// Name of the cluster.
pub const CLUSTER_ID: &str = "towline.cluster.id";

// HTTP and RPC.
/// Request method.
pub const HTTP_REQUEST_METHOD: &str = "http.request.method";
/// Route template.
pub const HTTP_ROUTE: &str = "http.route";
/// Response status.
pub const HTTP_RESPONSE_STATUS_CODE: &str = "http.response.status_code";
/// `http` or `https`.
pub const URL_SCHEME: &str = "url.scheme";
/// `grpc`.
pub const RPC_SYSTEM_NAME: &str = "rpc.system.name";
/// `package.Service/Method`.
pub const RPC_METHOD: &str = "rpc.method";
/// Status of the call.
pub const RPC_RESPONSE_STATUS_CODE: &str = "rpc.response.status_code";

// A2A.
/// A2A method.
pub const A2A_METHOD_NAME: &str = "a2a.method.name";
/// A2A version of the request.
pub const A2A_PROTOCOL_VERSION: &str = "a2a.protocol.version";
/// Task id.
pub const A2A_TASK_ID: &str = "a2a.task.id";
/// Task state, in the protocol's spelling.
pub const A2A_TASK_STATE: &str = "a2a.task.state";
/// Message id.
pub const A2A_MESSAGE_ID: &str = "a2a.message.id";
/// Tasks that a message refers to.
pub const A2A_MESSAGE_REFERENCE_TASK_IDS: &str = "a2a.message.reference_task_ids";

// GenAI.
/// `chat`, `invoke_agent`, `execute_tool`.
pub const GEN_AI_OPERATION_NAME: &str = "gen_ai.operation.name";
/// Context id.
pub const GEN_AI_CONVERSATION_ID: &str = "gen_ai.conversation.id";
/// Agent.
pub const GEN_AI_AGENT_NAME: &str = "gen_ai.agent.name";
/// `agent`, on a delegation.
pub const GEN_AI_CALLER_TYPE: &str = "gen_ai.caller.type";
/// The delegating agent.
pub const GEN_AI_CALLER_NAME: &str = "gen_ai.caller.name";
/// Provider.
pub const GEN_AI_PROVIDER_NAME: &str = "gen_ai.provider.name";
/// Model that was asked for.
pub const GEN_AI_REQUEST_MODEL: &str = "gen_ai.request.model";
/// Model that answered.
pub const GEN_AI_RESPONSE_MODEL: &str = "gen_ai.response.model";
/// Why the model stopped.
pub const GEN_AI_RESPONSE_FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
/// Input tokens.
pub const GEN_AI_USAGE_INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
/// Output tokens.
pub const GEN_AI_USAGE_OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
/// Tool.
pub const GEN_AI_TOOL_NAME: &str = "gen_ai.tool.name";
/// Id of the tool call.
pub const GEN_AI_TOOL_CALL_ID: &str = "gen_ai.tool.call.id";
/// What a tool was called with, where content is captured.
pub const GEN_AI_TOOL_CALL_ARGUMENTS: &str = "gen_ai.tool.call.arguments";
/// What it answered, likewise.
pub const GEN_AI_TOOL_CALL_RESULT: &str = "gen_ai.tool.call.result";
/// What a model was told, likewise.
pub const GEN_AI_INPUT_MESSAGES: &str = "gen_ai.input.messages";
/// What it answered, likewise.
pub const GEN_AI_OUTPUT_MESSAGES: &str = "gen_ai.output.messages";

// MCP.
/// MCP method.
pub const MCP_METHOD_NAME: &str = "mcp.method.name";
/// MCP session.
pub const MCP_SESSION_ID: &str = "mcp.session.id";
/// Negotiated MCP version.
pub const MCP_PROTOCOL_VERSION: &str = "mcp.protocol.version";

// Ours.
/// Command line of a root span.
pub const CLI_COMMAND: &str = "towline.cli.command";
/// Agent, on spans that are not GenAI's.
pub const AGENT_NAME: &str = "towline.agent.name";
/// Number of the turn in its task.
pub const TURN_NUMBER: &str = "towline.turn.number";
/// Number of the step in its task.
pub const STEP_NUMBER: &str = "towline.step.number";
/// How many times the step was begun.
pub const STEP_ATTEMPT: &str = "towline.step.attempt";
/// Epoch of the lease under which the work ran.
pub const LEASE_EPOCH: &str = "towline.lease.epoch";
/// Milliseconds between the effect and the start of the work.
pub const MAILBOX_WAIT_MS: &str = "towline.mailbox.wait_ms";
/// Milliseconds that a run waited for a permit.
pub const PERMIT_WAIT_MS: &str = "towline.permit.wait_ms";
/// Hops of a delegation.
pub const DELEGATION_DEPTH: &str = "towline.delegation.depth";
/// Node that a delegation was sent to.
pub const DELEGATION_NODE: &str = "towline.delegation.node";
/// Attempt of a model call.
pub const MODEL_ATTEMPT: &str = "towline.model.attempt";
/// How long the next attempt waits, in milliseconds.
pub const MODEL_RETRY_DELAY_MS: &str = "towline.model.retry_delay_ms";
/// Present and true when no model was asked: a script answered.
pub const MODEL_SIMULATED: &str = "towline.model.simulated";
/// MCP server.
pub const MCP_SERVER: &str = "towline.mcp.server";
/// Command of a proposal.
pub const RAFT_COMMAND: &str = "towline.raft.command";
/// Term of the entry.
pub const RAFT_TERM: &str = "towline.raft.term";
/// Index of the entry.
pub const RAFT_INDEX: &str = "towline.raft.index";
/// Role of the node that took the proposal.
pub const RAFT_ROLE: &str = "towline.raft.role";
/// Size of the entry.
pub const RAFT_BYTES: &str = "towline.raft.bytes";
/// Why a command was refused.
pub const RAFT_REJECTION: &str = "towline.raft.rejection";
/// What a link means: one of [`link`].
pub const LINK_KIND: &str = "towline.link.kind";
/// True on a span that another node reported for its dead owner.
pub const SPAN_RECOVERED: &str = "towline.span.recovered";
/// Node that ran a recovered span.
pub const SPAN_LOST_NODE: &str = "towline.span.lost_node";
/// True when an attribute was longer than the limit and was cut.
pub const CONTENT_TRUNCATED: &str = "towline.content.truncated";
/// Node that forwarded a proposal.
pub const PEER_NODE: &str = "towline.peer.node";
/// Index of the last event that a stream has shown.
pub const STREAM_EVENT: &str = "towline.stream.event";
/// Index of the event that a webhook is told of.
pub const PUSH_EVENT: &str = "towline.push.event";
