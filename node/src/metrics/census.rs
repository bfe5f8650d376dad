//! How many tasks there are, by state and agent.
//!
//! Nothing counts them on the way of a command. They are counted when somebody asks, one of 256 shards at a time, so that no reader
//! holds up what is applied for longer than the walk over a 256th of them.

use std::collections::BTreeMap;

use towline_a2a::convert::state_name;
use towline_cluster::ClusterHandle;
use towline_core::{NodeId, State, Task, TaskState, VShard};
use towline_trace::{
    metrics::{Family, OTHER, Point},
    names,
};

use super::MAX_NAMED;

/// Label of the state of a task.
const STATE: &str = names::A2A_TASK_STATE;

#[derive(Debug, Default, PartialEq)]
struct Census {
    /// Open tasks, by agent and state.
    open: BTreeMap<(String, &'static str), u64>,
    in_doubt: u64,
    /// How many of them came from a node that was lost.
    adopted: u64,
}

impl Census {
    fn take(&mut self, task: &Task) {
        if task.status.state.is_terminal() {
            return;
        }
        let of = (task.agent.to_string(), state_name(task.status.state));
        *self.open.entry(of).or_default() += 1;
        if task.status.state == TaskState::InputRequired && task.doubtful_steps().next().is_some() {
            self.in_doubt += 1;
        }
        self.adopted += u64::from(!task.adoptions.is_empty());
    }

    fn points(self) -> Vec<Point> {
        let mut agents: Vec<String> = Vec::new();
        let mut points: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
        for ((agent, state), tasks) in self.open {
            if agents.last() != Some(&agent) && agents.len() < MAX_NAMED {
                agents.push(agent.clone());
            }
            let named = if agents.last() == Some(&agent) { agent } else { OTHER.to_owned() };
            *points.entry((named, state)).or_default() += tasks;
        }
        let point = |((agent, state), tasks): ((String, &'static str), u64)| {
            Point::new(tasks as f64, vec![(names::GEN_AI_AGENT_NAME, agent), (STATE, state.to_owned())])
        };
        points.into_iter().map(point).collect()
    }
}

pub(super) fn of_tasks(cluster: &ClusterHandle, node: NodeId) -> Vec<Family> {
    let mut census = Census::default();
    for shard in 0..=u8::MAX {
        cluster.local(|state| state.tasks_in(VShard(shard)).for_each(|task| census.take(task)));
    }
    let (unassigned, leased, archived) =
        cluster.local(|state| (State::unassigned(state), state.load_of(node), state.archived_count()));
    let gauge = |name, help, value: usize| Family::gauge(name, "{task}", help, value as f64);
    let in_doubt = usize::try_from(census.in_doubt).unwrap_or(usize::MAX);
    let adopted = usize::try_from(census.adopted).unwrap_or(usize::MAX);
    vec![
        gauge("towline.task.in_doubt", "Tasks that ask whether a step has happened.", in_doubt),
        gauge("towline.task.adopted", "Open tasks that came from a node that was lost.", adopted),
        gauge("towline.task.unassigned", "Tasks that should run and have no node.", unassigned),
        gauge("towline.task.leased", "Tasks that this node runs.", leased),
        gauge("towline.task.archived", "Finished tasks that are kept in the archive.", archived),
        Family::gauges("towline.task.active", "{task}", "Tasks that have not ended.", census.points()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_beyond_the_bound_are_one() {
        let mut census = Census::default();
        for number in 0..MAX_NAMED + 5 {
            census.open.insert((format!("agent-{number:04}"), "TASK_STATE_WORKING"), 2);
        }
        let points = census.points();
        assert_eq!(points.len(), MAX_NAMED + 1);
        let other = points.iter().find(|point| point.labels[0].1 == OTHER).unwrap();
        assert!((other.value - 10.0).abs() < f64::EPSILON);
    }
}
