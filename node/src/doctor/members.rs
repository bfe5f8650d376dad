//! The other nodes: whether this one reaches their peer listeners, their versions, and how far their clocks are from its own.

use std::time::{Duration, SystemTime};

use towline_cluster::{ClusterHandle, MemberStatus};
use towline_core::NodeHealth;

use super::{Check, Live, Patient, Planned, planned};
use crate::error::chain;

const AREA: &str = "node";
const CLOCK: &str = "clock";
/// Times of tasks, deadlines and tokens are off by that much; one second is what an answer tells of a clock.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);
/// A certificate that was signed this moment is not good yet for who is so far behind.
const CLOCKS_DIFFER_MUCH: Duration = Duration::from_secs(30);
const SET_CLOCKS: &str = "have both machines keep time: `timedatectl set-ntp true`, or chrony";

pub(super) fn plan(patient: &Patient) -> Vec<Planned> {
    let Some(Live { cluster, .. }) = patient.live.clone() else { return Vec::new() };
    let own = cluster.node_id();
    let members = cluster.status().members;
    let planned = members.into_iter().filter(|member| member.id != own).map(|member| {
        let cluster = cluster.clone();
        planned(AREA, member.name.clone(), async move { look(&cluster, &member).await })
    });
    planned.collect()
}

async fn look(cluster: &ClusterHandle, member: &MemberStatus) -> Vec<Check> {
    let name = &member.name;
    let address = &member.addresses.peer;
    let Some(url) = cluster.peer_url(member.id) else {
        return vec![Check::fail(AREA, name, "this node knows no address of it", "start it: it says where it is")];
    };
    let before = SystemTime::now();
    // Any answer comes over mutual TLS: both are members for each other.
    let answer = match cluster.peer_http().get(format!("{url}/livez")).send().await {
        Ok(answer) => answer,
        Err(error) => {
            let mend = format!(
                "start it (`towline node -c FILE`), and let this machine reach {address}: its node.listen.peer, or what \
                 node.advertise_peer says; if it is gone for good: `towline cluster remove {}`",
                member.id.0
            );
            return vec![Check::fail(AREA, name, format!("{address}: {}", chain(&error.without_url())), mend)];
        }
    };
    let mut checks = vec![version(member, env!("CARGO_PKG_VERSION"))];
    let date = answer.headers().get(http::header::DATE).and_then(|date| date.to_str().ok());
    if let Some(date) = date.and_then(|date| httpdate::parse_http_date(date).ok()) {
        checks.push(clock(name, apart(date, before, SystemTime::now())));
    }
    checks
}

fn version(member: &MemberStatus, own: &str) -> Check {
    let name = &member.name;
    let (at, theirs) = (&member.addresses.peer, &member.version);
    match member.health {
        NodeHealth::Lost | NodeHealth::Enrolled => {
            let mend = "its log says why: `journalctl -u towline`, or where its standard error goes";
            Check::fail(AREA, name, format!("{at} answers, and its session does not go on"), mend)
        }
        NodeHealth::Up if theirs != own => {
            let mend = "put the same version on all nodes, one after the other";
            Check::warn(AREA, name, format!("{at} answers, version {theirs}; this node has {own}"), mend)
        }
        NodeHealth::Up => Check::ok(AREA, name, format!("{at} answers, version {theirs}")),
    }
}

/// How far two clocks are apart at least, where `told` was the other one's at some moment between the two, less than a second
/// ago by that clock.
fn apart(told: SystemTime, before: SystemTime, after: SystemTime) -> Duration {
    let ahead = told.duration_since(after).unwrap_or_default();
    let behind = before.duration_since(told + Duration::from_secs(1)).unwrap_or_default();
    ahead.max(behind)
}

fn clock(name: &str, apart: Duration) -> Check {
    let detail = format!("{:.1} s from the clock of this machine, at least", apart.as_secs_f64());
    if apart >= CLOCKS_DIFFER_MUCH {
        Check::fail(CLOCK, name, detail, SET_CLOCKS)
    } else if apart >= CLOCKS_DIFFER {
        Check::warn(CLOCK, name, detail, SET_CLOCKS)
    } else {
        Check::ok(CLOCK, name, "as on this machine, to a second")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn clocks_are_apart_by_what_the_way_and_the_rounding_do_not_explain() {
        let at = |seconds: f64| SystemTime::UNIX_EPOCH + Duration::from_secs_f64(1_000.0 + seconds);
        for (told, before, after, least) in
            [(0.0, 0.5, 0.9, 0), (0.0, 0.9, 3.0, 0), (5.0, 0.9, 3.0, 2), (0.0, 4.0, 4.1, 3), (60.0, 0.0, 1.0, 59)]
        {
            assert_eq!(apart(at(told), at(before), at(after)), Duration::from_secs(least), "{told} {before} {after}");
        }
        let verdict = |seconds| clock("b", Duration::from_secs(seconds)).verdict;
        assert_eq!((verdict(0), verdict(2), verdict(40)), (Verdict::Ok, Verdict::Warn, Verdict::Fail));
    }
}
