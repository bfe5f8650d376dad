//! Which node dies, and when: in the middle of the work, so that there is something to lose on both sides.

use std::time::SystemTime;

use towline_core::{NodeId, Task};

use super::{cluster::RunningCluster, error::DemoError, options::KillChoice, progress::Delegations};

/// Reader results that must be committed before a node dies, and delegations that must be outstanding.
const MIN_ON_EACH_SIDE: usize = 3;

/// Whether this is the moment.
pub(crate) fn is_the_moment(delegations: Delegations) -> bool {
    delegations.ended >= MIN_ON_EACH_SIDE && delegations.open >= MIN_ON_EACH_SIDE
}

/// What the nodes are to the task at the moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Roles {
    pub(crate) owner: NodeId,
    pub(crate) leader: NodeId,
    /// The node that the caller's stream is attached to.
    pub(crate) attached: NodeId,
}

impl Roles {
    /// The node that the choice means; `dice` decides where it means any.
    pub(crate) fn victim(&self, choice: KillChoice, nodes: &[NodeId], dice: u64) -> NodeId {
        match choice {
            KillChoice::Owner => self.owner,
            KillChoice::Leader => self.leader,
            KillChoice::Entry => self.attached,
            KillChoice::Random => {
                let at = usize::try_from(dice % nodes.len().max(1) as u64).unwrap_or(0);
                nodes.get(at).copied().unwrap_or(self.owner)
            }
        }
    }
}

/// A death, as it happened.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Kill {
    pub(crate) choice: KillChoice,
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) pid: Option<u32>,
    pub(crate) was_leader: bool,
    pub(crate) was_owner: bool,
    pub(crate) was_entry: bool,
    /// Delegations with an outcome at that moment.
    pub(crate) delegations_ended: usize,
    /// Delegations without one.
    pub(crate) delegations_open: usize,
    #[serde(skip)]
    pub(crate) at: SystemTime,
}

/// Kills the node that the choice means.
pub(crate) async fn kill(
    cluster: &mut RunningCluster,
    choice: KillChoice,
    record: &Task,
    attached: NodeId,
) -> Result<Kill, DemoError> {
    let leader = cluster.leader().await?;
    let owner = record.lease.as_ref().map_or(attached, |lease| lease.node);
    let roles = Roles { owner, leader, attached };
    let nodes: Vec<NodeId> = cluster.alive().map(|node| node.id).collect();
    let node = roles.victim(choice, &nodes, dice());
    let name = cluster.name_of(node);
    let Delegations { ended, open } = Delegations::of(record);
    let at = SystemTime::now();
    let pid = cluster.kill(node).await?;
    Ok(Kill {
        choice,
        node,
        name,
        pid,
        was_leader: node == leader,
        was_owner: node == owner,
        was_entry: node == attached,
        delegations_ended: ended,
        delegations_open: open,
        at,
    })
}

/// A number that nobody chose: the random part of a fresh UUID.
fn dice() -> u64 {
    let (_, low) = uuid::Uuid::now_v7().as_u64_pair();
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_moment_is_when_both_sides_have_three() {
        assert!(is_the_moment(Delegations { ended: 3, open: 3 }));
        assert!(!is_the_moment(Delegations { ended: 2, open: 9 }));
        assert!(!is_the_moment(Delegations { ended: 9, open: 2 }));
    }

    #[test]
    fn each_choice_means_its_node() {
        let roles = Roles { owner: NodeId(1), leader: NodeId(2), attached: NodeId(3) };
        let nodes = [NodeId(1), NodeId(2), NodeId(3)];
        let victim = |choice| roles.victim(choice, &nodes, 4);
        assert_eq!(victim(KillChoice::Owner), NodeId(1));
        assert_eq!(victim(KillChoice::Leader), NodeId(2));
        assert_eq!(victim(KillChoice::Entry), NodeId(3));
        assert_eq!(victim(KillChoice::Random), NodeId(2));
    }
}
