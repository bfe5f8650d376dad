//! The node in its cluster, as it sees it itself.

use towline_cluster::{ClusterStatus, DiskHealth};

use super::{Check, Live, Patient, Planned, planned};

const AREA: &str = "cluster";
/// More than what is applied while one looks.
const LAG: u64 = 1_000;

pub(super) fn plan(patient: &Patient) -> Vec<Planned> {
    let Some(Live { cluster, .. }) = patient.live.clone() else { return Vec::new() };
    vec![planned(AREA, "this node", async move { judge(&cluster.status()) })]
}

fn judge(status: &ClusterStatus) -> Vec<Check> {
    let name = &status.cluster;
    let mut checks = vec![match (status.in_touch, status.leader) {
        (true, Some(leader)) => {
            Check::ok(AREA, name, format!("node {leader} leads in term {}, {}", status.term, status.quorum))
        }
        (true, None) | (false, _) => {
            let mend = "start the voters that are down: `towline cluster status` names them; a majority has to run and reach \
                        each other's node.listen.peer";
            Check::fail(AREA, name, format!("no leader answers, {}", status.quorum), mend)
        }
    }];
    match status.disk.health {
        DiskHealth::Ok => {}
        DiskHealth::Full => {
            checks.push(Check::fail(AREA, "log", status.disk.detail.clone(), "make room on the disk of node.data"));
        }
        DiskHealth::Failed => {
            let mend = "put node.data on a disk that works: remove this node, and join again with an empty folder";
            checks.push(Check::fail(AREA, "log", status.disk.detail.clone(), mend));
        }
    }
    let behind = status.committed.saturating_sub(status.applied);
    if behind > LAG {
        let mend = "look again: if it grows, this machine is too slow or its disk is";
        checks.push(Check::warn(AREA, "log", format!("{behind} committed entries are not applied yet"), mend));
    }
    if let Some(trouble) = &status.certificate_trouble {
        checks.push(Check::warn(
            AREA,
            "certificate",
            trouble.clone(),
            "start a voter that this node reaches: it signs another one",
        ));
    }
    for (what, missing) in [("content", status.contents_missing), ("finished tasks", status.archived_missing)] {
        if missing > 0 {
            let mend = "it is fetched from the other nodes: start those that are down";
            checks.push(Check::warn(AREA, what, format!("{missing} are not held by this node"), mend));
        }
    }
    checks
}
