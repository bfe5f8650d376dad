//! Where a task stands, in one sentence: whom it waits for, since when, and what happens next.
//!
//! It is read from the replicated state alone, so any node says the same, and a task whose spans nobody has any more is
//! explained as well.

use std::time::{SystemTime, UNIX_EPOCH};

use towline_core::{Asked, Intent, NodeHealth, NodeId, Principal, State, Step, Task, TaskState, Timestamp};

/// Longest text of a question or a reason.
const MAX_QUOTED_CHARS: usize = 160;

/// The sentence about a task, as of now.
pub(crate) fn why(state: &State, task: &Task) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    at(state, task, u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

fn at(state: &State, task: &Task, now_ms: u64) -> String {
    let since = |at: Timestamp| age(now_ms.saturating_sub(at.0));
    let changed = since(task.status.at);
    let said = task.status.message.as_ref().map(|message| quoted(&message.text()));
    match task.status.state {
        TaskState::Completed => format!("completed {changed} ago: nothing more happens"),
        TaskState::Canceled => format!("canceled {changed} ago: nothing more happens"),
        TaskState::Failed | TaskState::Rejected => {
            let word = if task.status.state == TaskState::Failed { "failed" } else { "rejected" };
            let reason = said.unwrap_or_else(|| "no reason was given".to_owned());
            format!("{word} {changed} ago: {reason}; nothing more happens")
        }
        TaskState::InputRequired | TaskState::AuthRequired => interrupted(task, &changed, said),
        TaskState::Submitted | TaskState::Working => open(state, task, &since),
    }
}

/// A task that waits for a person.
fn interrupted(task: &Task, changed: &str, said: Option<String>) -> String {
    if let Some(step) = task.doubtful_steps().next() {
        let call = what(&step.intent);
        return format!(
            "waits since {changed} for a decision about step {}, {call}, which may or may not have happened; it goes on after \
             `towline task resolve {} --as done|retry|failed`",
            step.no, task.id
        );
    }
    let asks = |step: &&Step| matches!(step.intent, Intent::Ask { .. }) || step.asked == Some(Asked::Waiting);
    let to = task.open_steps().find(asks).and_then(|step| match &step.intent {
        Intent::Ask { to, .. } => to.clone(),
        Intent::Model { .. } | Intent::Tool { .. } | Intent::Delegate { .. } | Intent::Refused { .. } => None,
    });
    let whom = to.unwrap_or_else(|| person(&task.owner));
    let question = said.map_or_else(String::new, |text| format!(" to {text}"));
    let how = if task.status.state == TaskState::AuthRequired { "credentials" } else { "an answer" };
    format!(
        "waits since {changed} for {how} of {whom}{question}; it goes on after `towline send {} --task-id {} \"…\"`",
        task.agent, task.id
    )
}

/// A task that works, or is to.
fn open(state: &State, task: &Task, since: &impl Fn(Timestamp) -> String) -> String {
    let Some(lease) = &task.lease else {
        let what = state.waits_for(task.id).unwrap_or_else(|| "a node".to_owned());
        return format!("waits since {} for {what}; then it is given to a node", since(task.status.at));
    };
    let node = named(state, lease.node);
    if state.node(lease.node).is_none_or(|node| node.health != NodeHealth::Up) {
        return format!(
            "its owner, {node}, does not answer; another node takes the task over once the session has ended"
        );
    }
    let then = "then it goes on there; if that node is lost, another goes on from the log";
    if task.turn.span.is_none() {
        return format!(
            "was given to {node} {} ago, where it waits for a place to work or for its tools; {then}",
            since(task.status.at)
        );
    }
    let mut steps = task.open_steps();
    let Some(step) = steps.next() else {
        return format!("{node} decides what comes next, since {}", since(task.turn.started));
    };
    let others = match steps.count() {
        0 => String::new(),
        1 => " and for 1 other step".to_owned(),
        more => format!(" and for {more} other steps"),
    };
    let again = if step.attempt > 1 { format!(", attempt {}", step.attempt) } else { String::new() };
    format!("{node} waits since {} for {}{again}{others}; {then}", since(step.started), what(&step.intent))
}

/// What a step is about.
fn what(intent: &Intent) -> String {
    match intent {
        Intent::Model { model } => format!("model {model}"),
        Intent::Tool { server, tool, .. } => format!("tool {server}.{tool}"),
        Intent::Delegate { target, peer_task: Some(task), .. } => format!("agent {target} (task {task})"),
        Intent::Delegate { target, peer_task: None, .. } => format!("agent {target}, which was not reached yet"),
        Intent::Ask { question, .. } => format!("an answer to {}", quoted(question)),
        Intent::Refused { name, .. } => format!("the call of {name}, which cannot be made"),
    }
}

fn named(state: &State, node: NodeId) -> String {
    state.node(node).map_or_else(|| format!("node {node}"), |known| format!("node {node} ({})", known.name))
}

fn person(owner: &Principal) -> String {
    match owner {
        Principal::Operator => "the operator".to_owned(),
        Principal::Named { id, .. } => id.to_string(),
        Principal::Node(_) | Principal::Agent { .. } => owner.to_string(),
    }
}

fn quoted(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_QUOTED_CHARS).collect();
    if text.chars().nth(MAX_QUOTED_CHARS).is_some() {
        line.push('…');
    }
    format!("{line:?}")
}

/// A length of time, in its largest unit.
fn age(ms: u64) -> String {
    match ms / 1_000 {
        0 => format!("{ms} ms"),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;
