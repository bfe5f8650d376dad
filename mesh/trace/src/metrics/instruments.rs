//! Every instrument that counts, with its labels and bounds. Names are those of the conventions where there are any, as of the
//! same day as [`crate::names`], else ours.

use super::{About, Instrument, Type};
use crate::names;

/// Of what takes from milliseconds to minutes; those of the MCP conventions, and finer below.
const SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Of what takes from microseconds to seconds.
const SHORT_SECONDS: [f64; 13] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// Of calls of models: those of the GenAI conventions.
const MODEL_SECONDS: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

/// Of tokens: those of the GenAI conventions.
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Kind of an actor.
pub const ACTOR_TYPE: &str = "towline.actor.type";
/// Kind of tokens: `input` or `output`.
const TOKEN_TYPE: &str = "gen_ai.token.type";

const fn histogram(
    name: &'static str,
    bounds: &'static [f64],
    help: &'static str,
    labels: &'static [&'static str],
) -> Instrument {
    Instrument::new(About { name, unit: "s", help, kind: Type::Histogram(bounds) }, labels)
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
) -> Instrument {
    Instrument::new(About { name, unit, help, kind: Type::Counter }, labels)
}

/// Messages that wait for an actor.
pub static MAILBOX_DEPTH: Instrument = Instrument::new(
    About {
        name: "towline.actor.mailbox.depth",
        unit: "{message}",
        help: "Messages that actors of a kind were sent and have not begun to handle.",
        kind: Type::Gauge,
    },
    &[ACTOR_TYPE],
);
/// How long they wait.
pub static MAILBOX_WAIT: Instrument = histogram(
    "towline.actor.mailbox.wait",
    &SHORT_SECONDS,
    "How long a message waits until its actor begins to handle it.",
    &[ACTOR_TYPE],
);
/// Actors that were started again.
pub static RESTARTS: Instrument =
    counter("towline.actor.restarts", "{restart}", "Actors that crashed and are started again.", &[ACTOR_TYPE]);

/// Proposals, from the asking node's side.
pub static PROPOSAL_DURATION: Instrument = histogram(
    "towline.raft.proposal.duration",
    &SECONDS,
    "From a proposal on this node until it has applied the entry, or has given up.",
    &[names::RAFT_COMMAND, names::ERROR_TYPE],
);
/// Writes of the log that are waited for.
pub static LOG_SYNC_DURATION: Instrument = histogram(
    "towline.raft.log.sync.duration",
    &SHORT_SECONDS,
    "How long the disk takes to make what was written to the log durable.",
    &[],
);
/// Elections that this node won.
pub static LEADER_CHANGES: Instrument =
    counter("towline.raft.leader_changes", "{change}", "How often this node became the leader.", &[]);

/// From the lease until the run begins.
pub static QUEUE_WAIT: Instrument = histogram(
    "towline.task.queue.wait",
    &SECONDS,
    "From the moment at which a node took the lease of a task until its turn begins; places are part of it.",
    &[names::GEN_AI_AGENT_NAME],
);
/// From the loss of an owner until the next one goes on.
pub static ADOPTION_WAIT: Instrument = histogram(
    "towline.task.adoption.wait",
    &SECONDS,
    "From the entry that took a task away from a lost node until the next owner goes on with it.",
    &[names::GEN_AI_AGENT_NAME],
);

/// Tasks that have ended.
pub static TASKS_ENDED: Instrument = counter(
    "towline.task.ended",
    "{task}",
    "Tasks of the cluster that have ended since this node started; every node counts the same.",
    &[names::GEN_AI_AGENT_NAME, names::A2A_TASK_STATE],
);
/// Tasks that another node went on with.
pub static TASK_ADOPTIONS: Instrument = counter(
    "towline.task.adoptions",
    "{task}",
    "Tasks of the cluster that another node took over since this node started; every node counts the same.",
    &[names::GEN_AI_AGENT_NAME],
);

/// Turns of agents.
pub static TURN_DURATION: Instrument = histogram(
    "gen_ai.invoke_agent.duration",
    &SECONDS,
    "Turns of agents on this node.",
    &[names::GEN_AI_AGENT_NAME, names::ERROR_TYPE],
);
/// Calls of models.
pub static MODEL_DURATION: Instrument = histogram(
    "gen_ai.client.operation.duration",
    &MODEL_SECONDS,
    "Calls of models, with all their attempts.",
    &[names::GEN_AI_REQUEST_MODEL, names::GEN_AI_PROVIDER_NAME, names::ERROR_TYPE],
);
/// Until a model says the first word.
pub static MODEL_FIRST_CHUNK: Instrument = histogram(
    "gen_ai.client.operation.time_to_first_chunk",
    &MODEL_SECONDS,
    "From the call of a model until the first piece of its answer.",
    &[names::GEN_AI_REQUEST_MODEL, names::GEN_AI_PROVIDER_NAME],
);
/// Tokens of one call.
pub static MODEL_TOKENS: Instrument = Instrument::new(
    About {
        name: "gen_ai.client.token.usage",
        unit: "{token}",
        help: "Tokens of calls of models.",
        kind: Type::Histogram(&TOKENS),
    },
    &[names::GEN_AI_REQUEST_MODEL, names::GEN_AI_PROVIDER_NAME, TOKEN_TYPE],
);
/// Attempts that failed and were made again.
pub static MODEL_RETRIES: Instrument = counter(
    "towline.model.retries",
    "{retry}",
    "Attempts at models that failed and are made again.",
    &[names::GEN_AI_REQUEST_MODEL, names::ERROR_TYPE],
);

/// Requests to MCP servers.
pub static MCP_CLIENT_DURATION: Instrument = histogram(
    "mcp.client.operation.duration",
    &SECONDS,
    "Calls of tools of MCP servers.",
    &[names::MCP_METHOD_NAME, names::MCP_SERVER, names::ERROR_TYPE],
);
/// Requests to this MCP server.
pub static MCP_SERVER_DURATION: Instrument = histogram(
    "mcp.server.operation.duration",
    &SECONDS,
    "Requests to the MCP server of this node.",
    &[names::MCP_METHOD_NAME, names::ERROR_TYPE],
);

/// Requests over A2A to this node.
pub static A2A_SERVER_DURATION: Instrument = histogram(
    "towline.a2a.server.operation.duration",
    &SECONDS,
    "A2A requests to this node, until the head of the answer; a stream goes on behind it.",
    &[names::A2A_METHOD_NAME, names::ERROR_TYPE],
);
/// Requests over A2A to other agents.
pub static A2A_CLIENT_DURATION: Instrument = histogram(
    "towline.a2a.client.operation.duration",
    &SECONDS,
    "A2A requests of this node to other nodes and to peers; a stream until its end.",
    &[names::A2A_METHOD_NAME, names::ERROR_TYPE],
);
/// Streams that are open.
pub static A2A_STREAMS: Instrument = Instrument::new(
    About {
        name: "towline.a2a.streams.active",
        unit: "{stream}",
        help: "Streams of events that are open on this node.",
        kind: Type::Gauge,
    },
    &[],
);
/// Posts to webhooks.
pub static PUSH_DURATION: Instrument = histogram(
    "towline.a2a.push.delivery.duration",
    &SECONDS,
    "Posts to webhooks; those that were not taken have an error.type.",
    &[names::ERROR_TYPE],
);

/// Pushes of all this to a collector.
pub static METRIC_PUSHES: Instrument = counter(
    "towline.telemetry.metric_pushes",
    "{push}",
    "Pushes of metrics to the collector, by what became of them.",
    &["outcome"],
);

/// All of them.
pub(super) static ALL: [&Instrument; 22] = [
    &MAILBOX_DEPTH,
    &MAILBOX_WAIT,
    &RESTARTS,
    &PROPOSAL_DURATION,
    &LOG_SYNC_DURATION,
    &LEADER_CHANGES,
    &QUEUE_WAIT,
    &ADOPTION_WAIT,
    &TASKS_ENDED,
    &TASK_ADOPTIONS,
    &TURN_DURATION,
    &MODEL_DURATION,
    &MODEL_FIRST_CHUNK,
    &MODEL_TOKENS,
    &MODEL_RETRIES,
    &MCP_CLIENT_DURATION,
    &MCP_SERVER_DURATION,
    &A2A_SERVER_DURATION,
    &A2A_CLIENT_DURATION,
    &A2A_STREAMS,
    &PUSH_DURATION,
    &METRIC_PUSHES,
];
