//! What the demo found out, as numbers, and how it is told.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use towline_core::{Adoption, NodeId, Task};
use towline_trace::SpanRecord;

use super::{
    DemoError,
    cluster::RunningCluster,
    digest::{Digest, Row},
    folder::FileFacts,
    kill::Kill,
    operator::OperatorClient,
    progress,
    tally::{NextEvent, Tally, millis},
};

/// Everything that the demo found out.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Report {
    pub(crate) task: String,
    pub(crate) state: towline_core::TaskState,
    pub(crate) nodes: Vec<NodeNote>,
    /// The node that the task was sent to.
    pub(crate) entry: NodeId,
    pub(crate) kill: Option<KillNote>,
    pub(crate) events: EventsNote,
    pub(crate) digest: DigestNote,
    /// How many of the readers' tasks ended on which node.
    pub(crate) readers: BTreeMap<NodeId, usize>,
    /// Of the surveyor's task and of the readers'.
    pub(crate) adoptions: Vec<AdoptionNote>,
    pub(crate) trace: TraceNote,
    pub(crate) elapsed_ms: u64,
    /// Why the demo failed, if it did.
    pub(crate) failure: Option<String>,
}

/// A node at the start.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct NodeNote {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) leader_at_start: bool,
    pub(crate) url: String,
}

/// The death of a node and what came next.
#[derive(Debug, serde::Serialize)]
pub(crate) struct KillNote {
    #[serde(flatten)]
    pub(crate) kill: Kill,
    pub(crate) at_ms: u64,
    pub(crate) next_event: Option<NextEvent>,
    /// From the kill until the surveyor's task had a new owner, if it needed one.
    pub(crate) adopted_ms: Option<u64>,
}

#[derive(Debug, serde::Serialize)]
pub(crate) struct EventsNote {
    #[serde(flatten)]
    pub(crate) tally: Tally,
    /// How often the caller's stream was taken up again at another node.
    pub(crate) resumed: usize,
}

#[derive(Debug, serde::Serialize)]
pub(crate) struct DigestNote {
    pub(crate) text: String,
    pub(crate) files: usize,
    pub(crate) rows: Vec<Row>,
    pub(crate) mistakes: Vec<String>,
}

/// One task that another node took over.
#[derive(Debug, serde::Serialize)]
pub(crate) struct AdoptionNote {
    pub(crate) task: String,
    pub(crate) agent: String,
    #[serde(flatten)]
    pub(crate) adoption: Adoption,
}

#[derive(Debug, serde::Serialize)]
pub(crate) struct TraceNote {
    pub(crate) trace_id: String,
    /// Names of the nodes that spans were recorded on.
    pub(crate) nodes: BTreeSet<String>,
    pub(crate) spans: Vec<SpanRecord>,
}

/// What the readers' task records say.
pub(crate) struct Readers {
    pub(crate) ended_on: BTreeMap<NodeId, usize>,
    pub(crate) adoptions: Vec<AdoptionNote>,
}

/// Reads where the readers ran, and which tasks were adopted, out of the task records.
pub(crate) async fn read_readers(operator: &OperatorClient, url: &str, record: &Task) -> Result<Readers, DemoError> {
    let mut readers = Readers { ended_on: BTreeMap::new(), adoptions: adoptions(record) };
    for id in progress::child_tasks(record) {
        let child = operator.task(url, &id).await?;
        if let Some(node) = child.ran_on.last() {
            *readers.ended_on.entry(*node).or_default() += 1;
        }
        readers.adoptions.extend(adoptions(&child));
    }
    Ok(readers)
}

fn adoptions(task: &Task) -> Vec<AdoptionNote> {
    let note = |adoption: &Adoption| AdoptionNote {
        task: task.id.to_string(),
        agent: task.agent.to_string(),
        adoption: adoption.clone(),
    };
    task.adoptions.iter().map(note).collect()
}

impl KillNote {
    pub(crate) fn new(kill: Kill, next_event: Option<NextEvent>, record: &Task) -> Self {
        let at_ms = millis(kill.at);
        let adoption = record.adoptions.iter().find(|adoption| adoption.from == kill.node);
        let adopted_ms = adoption.map(|adoption| adoption.at.0.saturating_sub(at_ms));
        KillNote { kill, at_ms, next_event, adopted_ms }
    }
}

impl DigestNote {
    pub(crate) fn new(text: String, files: &[FileFacts]) -> Self {
        let digest = Digest::read(&text);
        let mistakes = digest.mistakes(files);
        DigestNote { text, files: files.len(), rows: digest.rows, mistakes }
    }
}

impl TraceNote {
    pub(crate) fn new(record: &Task, spans: Vec<SpanRecord>) -> Self {
        let nodes = spans.iter().map(|span| span.node.clone()).filter(|node| !node.is_empty()).collect();
        TraceNote { trace_id: record.trace.trace_id_hex(), nodes, spans }
    }
}

impl Report {
    /// The first reason why the demo failed, if there is one.
    pub(crate) fn verdict(&self) -> Result<(), DemoError> {
        if !self.events.tally.is_clean() {
            let Tally { lost, duplicated, differing, .. } = &self.events.tally;
            let (lost, duplicated, differing) = (lost.len(), duplicated.len(), differing.len());
            return Err(DemoError::Events { lost, duplicated, differing });
        }
        if !self.digest.mistakes.is_empty() {
            return Err(DemoError::Digest { mistakes: self.digest.mistakes.clone() });
        }
        Ok(())
    }

    /// The report for people, line by line.
    pub(crate) fn lines(&self, cluster: &RunningCluster) -> Vec<String> {
        let name = |id: NodeId| cluster.name_of(id);
        let mut lines = vec![String::new(), "digest".to_owned(), String::new()];
        lines.extend(self.digest.text.lines().map(str::to_owned));
        lines.push(String::new());
        lines.push(format!("task      {} ({:?})", self.task, self.state));
        lines.push(format!("entry     node {} ({})", self.entry, name(self.entry)));
        lines.push(match &self.kill {
            None => "killed    nothing".to_owned(),
            Some(note) => note.line(),
        });
        lines.extend(self.kill.as_ref().map(KillNote::next_line));
        let Tally { seen, in_log, lost, duplicated, differing } = &self.events.tally;
        lines.push(format!(
            "events    {seen} seen, {in_log} in the log, {} lost, {} duplicated, {} different; stream resumed {} times",
            lost.len(),
            duplicated.len(),
            differing.len(),
            self.events.resumed
        ));
        let readers: Vec<String> =
            self.readers.iter().map(|(node, count)| format!("{count} on {}", name(*node))).collect();
        lines.push(format!("readers   {}", readers.join(", ")));
        lines.extend(self.adoptions.iter().map(|note| note.line(&name)));
        lines.push(match self.digest.mistakes.as_slice() {
            [] => format!("checked   {} files, every number as counted here", self.digest.files),
            mistakes => format!("checked   {} files: {}", self.digest.files, mistakes.join("; ")),
        });
        lines.push(format!("took      {:.1} s", Duration::from_millis(self.elapsed_ms).as_secs_f64()));
        lines.push(String::new());
        let nodes: Vec<&str> = self.trace.nodes.iter().map(String::as_str).collect();
        let told = crate::waterfall::without_raft(&self.trace.spans);
        let left_out = self.trace.spans.len() - told.len();
        lines.push(format!(
            "trace     {}: {} spans on {}; left out here: {left_out} of the Raft log (all of them: -o json)",
            self.trace.trace_id,
            self.trace.spans.len(),
            nodes.join(", ")
        ));
        lines.push(String::new());
        lines.extend(crate::waterfall::render(&told).lines().map(str::to_owned));
        lines.push(String::new());
        lines.push(match &self.failure {
            None => "verdict   the digest is complete, and the caller saw each event once".to_owned(),
            Some(failure) => format!("verdict   {failure}"),
        });
        lines
    }
}

impl KillNote {
    fn line(&self) -> String {
        let Kill { node, name, was_leader, was_owner, was_entry, .. } = &self.kill;
        let is = |yes: bool, what: &str| if yes { what.to_owned() } else { format!("not {what}") };
        let roles =
            [is(*was_owner, "the task's owner"), is(*was_leader, "the leader"), is(*was_entry, "the caller's entry")];
        let time = clock(self.at_ms);
        format!("killed    node {node} ({name}) at {time} with SIGKILL: {}", roles.join(", "))
    }

    fn next_line(&self) -> String {
        let next = match self.next_event {
            Some(NextEvent { index, after_ms }) => format!("next event (number {index}) {after_ms} ms after the kill"),
            None => "no event came after the kill".to_owned(),
        };
        match self.adopted_ms {
            Some(ms) => format!("          adopted {ms} ms after the kill, {next}"),
            None => format!("          {next}"),
        }
    }
}

impl AdoptionNote {
    fn line(&self, name: &impl Fn(NodeId) -> String) -> String {
        let Adoption { from, to, generation, .. } = &self.adoption;
        format!(
            "adopted   {} {} by {} from {}, after event {generation}",
            self.agent,
            self.task,
            name(*to),
            name(*from)
        )
    }
}

fn clock(at_ms: u64) -> String {
    let at = i64::try_from(at_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| format!("{at_ms} ms"), |at| format!("{at:.3}"))
}
