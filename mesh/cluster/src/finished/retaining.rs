//! A cluster that begins with many finished tasks in its archive: to measure what they cost.

use std::{collections::BTreeMap, path::Path};

use towline_core::{
    AgentName, AgentSpec, BootId, Command, Founder, Labels, Level, Message, MessageId, NodeAddresses, NodeId,
    OwnerReport, OwnerWord, Part, Placement, Principal, Proposal, Role, Stamp, State, Submission, TaskId, TaskState,
    Timestamp, TraceContext, limits::MAX_ARCHIVED_PER_ENTRY,
};
use uuid::Uuid;

use super::first;
use crate::{
    ClusterError, Identity, archive,
    leader::wall_clock,
    membership::{self, Founding},
    raft,
};

const NODE: NodeId = NodeId(1);

/// Founds a cluster in an empty folder, as if `count` tasks of an agent had ended in it by now.
///
/// # Errors
/// As for [`membership::found`].
pub fn found(
    data: &Path,
    cluster_name: &str,
    node_name: &str,
    addresses: NodeAddresses,
    (agent, count): (&AgentName, u64),
) -> Result<Identity, ClusterError> {
    // As many entries as are applied below, and some.
    let founder = NodeId(4 * count + 16);
    let founding = Founding { cluster_name, node: founder, node_name, addresses: addresses.clone() };
    membership::found_with(data, founding, |identity, snapshots| {
        let unwritten =
            |source| ClusterError::File { action: "write the archive in", path: snapshots.to_owned(), source };
        let store = first(snapshots)?;
        let mut history = History::begin(agent, addresses)?;
        for number in 0..count {
            history.task(agent, number)?;
            if number % MAX_ARCHIVED_PER_ENTRY as u64 == 0 || number + 1 == count {
                store.put(history.archive()?);
            }
            if store.is_full() {
                store.write_out().map_err(unwritten)?;
            }
        }
        store.put(history.archive()?);
        store.write_out().map_err(unwritten)?;
        let (name, node_name) = (identity.cluster_name.clone(), identity.node_name.clone());
        let addresses = identity.addresses.clone();
        history.state.refound(identity.cluster, name, Founder { node: founder, name: node_name, addresses });
        raft::state_machine::write_first_snapshot(snapshots, &archive::first_meta(identity)?, &history.state)?;
        Ok(())
    })
}

/// A log that nobody keeps.
struct History {
    state: State,
    index: u64,
}

impl History {
    fn begin(agent: &AgentName, addresses: NodeAddresses) -> Result<Self, ClusterError> {
        let mut history = Self { state: State::default(), index: 0 };
        let found = Command::Found {
            cluster: Uuid::now_v7(),
            name: "history".to_owned(),
            node_name: "history".to_owned(),
            addresses: addresses.clone(),
        };
        let spec = AgentSpec {
            name: agent.clone(),
            description: String::new(),
            placement: Placement::EveryNode,
            tags: Vec::new(),
            queue: None,
            labels: Labels::new(),
        };
        let up = Command::NodeUp {
            node: NODE,
            boot: BootId::from_uuid(Uuid::now_v7()),
            addresses,
            version: String::new(),
            capacity: 1,
            agents: vec![spec],
            labels: None,
            level: Level::KNOWN.number(),
        };
        history.apply(Principal::Node(NODE), found)?;
        history.apply(Principal::Node(NODE), up)?;
        history.apply(Principal::Node(NODE), Command::Raise { level: Level::KNOWN })?;
        Ok(history)
    }

    fn apply(&mut self, by: Principal, command: Command) -> Result<(), ClusterError> {
        self.index += 1;
        let at: Timestamp = wall_clock();
        let applied = self.state.apply(Proposal { by, command }, Stamp { index: self.index, at });
        applied.map(|_| ()).map_err(|rejection| ClusterError::Fatal { reason: rejection.to_string() })
    }

    /// A task from its message to its end.
    fn task(&mut self, agent: &AgentName, number: u64) -> Result<(), ClusterError> {
        let invalid = |error: towline_core::InvalidId| ClusterError::Fatal { reason: error.to_string() };
        let task = TaskId::from_uuid(Uuid::now_v7());
        let span = TraceContext { trace_id: u128::from(number) + 1, span_id: 1, sampled: true };
        let message = Message {
            message_id: MessageId::try_from(task.to_string()).map_err(invalid)?,
            context_id: None,
            task_id: None,
            role: Role::User,
            parts: vec![Part::text("go")],
            metadata: BTreeMap::new(),
            extensions: Vec::new(),
            reference_task_ids: Vec::new(),
        };
        let submission = Submission {
            task,
            fresh_context: Uuid::now_v7().to_string().try_into().map_err(invalid)?,
            agent: agent.clone(),
            message,
            prefer: NODE,
            parent: None,
            hop: 0,
            deadline_ms: None,
            most_open: None,
            labels: towline_core::Labels::new(),
            trace: span,
        };
        self.apply(Principal::Operator, Command::Submit(Box::new(submission)))?;
        let lease = self.state.task(task).and_then(|task| task.lease.clone());
        let Some(lease) = lease else { return Ok(()) };
        let words =
            vec![OwnerWord::TurnStarted { span }, OwnerWord::Finished { state: TaskState::Completed, message: None }];
        let report = OwnerReport { task, epoch: lease.epoch, number: 1, words };
        self.apply(Principal::Node(NODE), Command::Report(report))
    }

    /// Sends what has ended to the archive, and forgets messages as a sweep does.
    fn archive(&mut self) -> Result<Vec<std::sync::Arc<towline_core::Task>>, ClusterError> {
        let tasks = self.state.archivable(self.state.last().at, 0);
        let records = self.state.to_archive(&tasks);
        self.apply(Principal::Node(NODE), Command::Archive { tasks })?;
        self.apply(Principal::Node(NODE), Command::Sweep)?;
        Ok(records)
    }
}
