//! Where a task stands inside the mesh, for clients that ask: never needed to speak A2A with it.

use serde_json::{Value, json};
use towline_core::{Intent, Outcome, Step, Task, Usage};

/// Most links of one task that are told: more delegations are counted, and found with `ListTasks`.
const MAX_LINKS: usize = 64;

/// The annotations of a task: who runs it under which epoch, how often it was begun, its trace, its cost, its links.
pub(super) fn annotations(task: &Task) -> Value {
    let steps = |kind: fn(&Intent) -> bool| task.journal.iter().filter(|step| kind(&step.intent)).count();
    let usage = task.journal.iter().filter_map(usage).fold(Usage::default(), |sum, usage| Usage {
        input: sum.input.saturating_add(usage.input),
        output: sum.output.saturating_add(usage.output),
    });
    json!({
        "attempt": task.adoptions.len() + 1,
        "cost": {
            "delegations": steps(|intent| matches!(intent, Intent::Delegate { .. })),
            "inputTokens": usage.input,
            "modelCalls": steps(|intent| matches!(intent, Intent::Model { .. })),
            "outputTokens": usage.output,
            "toolCalls": steps(|intent| matches!(intent, Intent::Tool { .. })),
        },
        "epoch": task.lease.as_ref().map(|lease| lease.epoch.0),
        "links": links(task),
        "node": task.lease.as_ref().map(|lease| lease.node.0).or_else(|| task.ran_on.last().map(|node| node.0)),
        "ranOn": task.ran_on.iter().map(|node| node.0).collect::<Vec<_>>(),
        "spanId": task.trace.span_id_hex(),
        "traceId": task.trace.trace_id_hex(),
    })
}

fn usage(step: &Step) -> Option<Usage> {
    match &step.ended.as_ref()?.outcome {
        Outcome::Answered(answer) => Some(answer.usage),
        Outcome::Returned { .. } | Outcome::Stored { .. } | Outcome::Failed { .. } => None,
    }
}

/// The task that delegated it, then those that it delegated.
fn links(task: &Task) -> Vec<Value> {
    let parent = task.parent.iter().map(|parent| json!({ "rel": "parent", "task": parent.task.to_string() }));
    let delegates = task.journal.iter().filter_map(|step| match &step.intent {
        Intent::Delegate { target, peer_task: Some(peer_task), .. } => {
            Some(json!({ "agent": target, "rel": "delegate", "task": peer_task }))
        }
        Intent::Delegate { peer_task: None, .. }
        | Intent::Model { .. }
        | Intent::Tool { .. }
        | Intent::Ask { .. }
        | Intent::Refused { .. } => None,
    });
    parent.chain(delegates).take(MAX_LINKS).collect()
}
