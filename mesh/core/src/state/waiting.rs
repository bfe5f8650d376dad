//! What tasks wait for that should run and have no owner.

use super::{State, lacking};
use crate::{AgentName, AgentSpec, Labels, Lacking, Node, TaskId, limits};

/// Nodes that are named in one sentence: a person reads it.
const MAX_NODES_NAMED: usize = 5;

impl State {
    /// Whether every member runs a version that knows of labels and free places. Until then tasks are given to nodes as
    /// before: all members have to come to the same owner.
    pub fn all_know_labels(&self) -> bool {
        self.nodes.values().all(|node| node.labels.is_some())
    }

    /// What a task waits for that has no owner and should have one, in words.
    pub fn waits_for(&self, id: TaskId) -> Option<String> {
        if !self.unassigned.contains(&id) {
            return None;
        }
        let agent = &self.task(id)?.agent;
        Some(self.what_lacks(agent).unwrap_or_else(|| "its turn: it is given to a node in a moment".to_owned()))
    }

    /// Why no node is given a task of an agent, in words; none if one is.
    pub fn what_lacks(&self, name: &AgentName) -> Option<String> {
        let Some(agent) = self.agents.get(name) else { return Some(format!("a node that declares agent {name}")) };
        let declares = |node: &&Node| self.can_run(node, name);
        let fits = |node: &&Node| !self.all_know_labels() || node.has_labels(&agent.spec.labels);
        let mut fitting = self.nodes.values().filter(declares).filter(fits).peekable();
        if fitting.peek().is_none() {
            return Some(format!("a node that declares agent {name}{}", with_labels(&agent.spec)));
        }
        let fitting: Vec<&Node> = fitting.collect();
        if !fitting.iter().any(|node| node.takes_tasks()) {
            let named = names(&fitting);
            return Some(format!("a node that hosts agent {name} and takes tasks: {named} not up, drained or leaving"));
        }
        let limit = limits::MAX_LEASED_PER_NODE;
        let has_room = |node: &&Node| node.takes_tasks() && self.load_of(node.id) < limit;
        let placed = |node: &&Node| agent.placed.contains(&node.id);
        if !fitting.iter().copied().filter(placed).any(|node| has_room(&node)) {
            return Some(format!("a place: every node on which agent {name} is placed has {limit} tasks"));
        }
        let candidates = || fitting.iter().copied().filter(placed).filter(|node| has_room(node));
        let lacking: Vec<_> = candidates().filter_map(|node| Some((node, self.lacking(node, name)?))).collect();
        let is_over = |lacking: &Lacking| lacking::is_over(lacking, self.last.at);
        if lacking.len() == candidates().count() && !lacking.iter().any(|(_, lacking)| is_over(lacking)) {
            let lacking = lacking.iter().take(MAX_NODES_NAMED);
            let said: Vec<String> =
                lacking.map(|(node, lacking)| format!("{} on node {}", lacking.what, node.id)).collect();
            let most = limits::LACKING_WAIT_MS / 1_000;
            return Some(format!("what agent {name} lacks, for {most} s at most: {}", said.join("; ")));
        }
        None
    }
}

/// The labels that an agent asks for, as the end of a sentence.
fn with_labels(spec: &AgentSpec) -> String {
    let label = |(name, value): (&String, &String)| format!("{name}={value}");
    match spec.labels.len() {
        0 => String::new(),
        1 => format!(" and has the label {}", text(&spec.labels, label)),
        _ => format!(" and has the labels {}", text(&spec.labels, label)),
    }
}

fn text(labels: &Labels, label: impl Fn((&String, &String)) -> String) -> String {
    labels.iter().map(label).collect::<Vec<_>>().join(", ")
}

fn names(nodes: &[&Node]) -> String {
    let named: Vec<String> =
        nodes.iter().take(MAX_NODES_NAMED).map(|node| format!("{} ({})", node.id, node.name)).collect();
    let (named, others) = (named.join(", "), nodes.len().saturating_sub(MAX_NODES_NAMED));
    match (nodes.len(), others) {
        (1, _) => format!("node {named} is"),
        (_, 0) => format!("nodes {named} are"),
        (_, others) => format!("nodes {named} and {others} more are"),
    }
}
