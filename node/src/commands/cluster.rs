//! `towline cluster …`

use serde_json::json;
use towline_cluster::{ClusterStatus, MemberStatus};
use towline_core::{NodeHealth, NodeRole};

use super::{client::Client, init, members, snapshot};
use crate::{
    cli::{ClusterCommand, RoleArg, SnapshotCommand},
    error::CliError,
    output::Output,
};

pub(crate) async fn run(command: ClusterCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        ClusterCommand::Status => status(client, output).await,
        ClusterCommand::JoinToken { ttl, role } => {
            let role = match role {
                RoleArg::Voter => "voter",
                RoleArg::Learner => "learner",
                RoleArg::Worker => "worker",
            };
            let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
            let answer = client.post("/api/v1/join-tokens", &json!({ "role": role, "ttl_ms": ttl_ms })).await?;
            if output.is_json() {
                return Ok(output.json(&answer)?);
            }
            let address = answer["join"].as_str().unwrap_or("PEER_ADDRESS_OF_A_MEMBER");
            output.note("good for one node; on that one, so that the token is in no list of processes:");
            output.note("  read -r TOWLINE_TOKEN && export TOWLINE_TOKEN      # paste the token");
            output.note(format!("  towline node -c FILE --join {address}"));
            if is_loopback(address) {
                output.note(format!(
                    "{address} is reached from this machine only: for nodes on others set node.listen.peer or node.advertise_peer"
                ));
            }
            Ok(output.line(answer["token"].as_str().unwrap_or_default())?)
        }
        ClusterCommand::Remove { node } => {
            let answer = client.delete(&format!("/api/v1/cluster/nodes/{node}")).await?;
            if output.is_json() {
                return Ok(output.json(&answer)?);
            }
            let left = answer["leaving"] != true;
            output.note(if left {
                "it has stopped, or stops at once; its data folder is of no more use"
            } else {
                "its session has not ended yet; its name and address are free once `towline cluster status` names it no more"
            });
            if answer["others_sign"] == false {
                output.note(
                    "no other node has the key that signs certificates: no node can join, and certificates cannot be \
                     renewed; begin a new cluster with `towline cluster snapshot save` and `restore` before they end",
                );
            }
            Ok(output.line(format!("node {node} {}", if left { "is removed" } else { "leaves" }))?)
        }
        ClusterCommand::Promote { node } => members::promote(node, client, output).await,
        ClusterCommand::Demote { node } => members::demote(node, client, output).await,
        ClusterCommand::Drain(args) => members::drain(args, client, output).await,
        ClusterCommand::Undrain { node } => members::undrain(node, client, output).await,
        ClusterCommand::TransferLeader { to } => members::transfer(to, client, output).await,
        ClusterCommand::Snapshot(SnapshotCommand::Save { file }) => snapshot::save(&file, client, output).await,
        ClusterCommand::Snapshot(SnapshotCommand::Restore { file, node }) => init::restore(&file, &node, output),
    }
}

async fn status(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = client.get("/api/v1/cluster").await?;
    if output.is_json() {
        output.json(&answer)?;
    }
    let status: ClusterStatus = serde_json::from_value(answer).map_err(CliError::other)?;
    if !output.is_json() {
        show(&status, output)?;
    }
    if status.in_touch {
        return Ok(());
    }
    let node = status.node;
    Err(CliError::Unavailable(format!("node {node} knows of no quorum: what it shows of the others may be old")))
}

fn show(status: &ClusterStatus, output: &mut Output) -> Result<(), CliError> {
    let leader = match status.leader {
        Some(leader) if status.in_touch => leader.to_string(),
        Some(leader) => format!("{leader}, which does not answer"),
        None => "none".to_owned(),
    };
    output.line(format!("cluster  {} (term {}, leader {leader})", status.cluster, status.term))?;
    output.line(format!("quorum   {}", status.quorum))?;
    for note in &status.notes {
        output.line(format!("note     {note}"))?;
    }
    output.line(format!(
        "log      committed {}, applied {} on this node ({})",
        status.committed, status.applied, status.node
    ))?;
    if let Some(feeder) = status.fed_by {
        output.line(format!("fed by   node {feeder}: this node is a worker"))?;
    }
    output.line(format!("disk     {:?}{}", status.disk.health, detail(&status.disk.detail)).to_lowercase())?;
    if status.contents > 0 {
        let missing = match status.contents_missing {
            0 => "all held by this node".to_owned(),
            missing => format!("{missing} not yet held by this node"),
        };
        output.line(format!("content  {} beside the log, {missing}", status.contents))?;
    }
    if status.archived > 0 {
        output.line(format!("archive  {} finished tasks, {}", status.archived, who_holds_records(status)))?;
    }
    if let Some(reason) = &status.waits_for_content {
        output.line(format!("waits    a change of the voters: {reason}"))?;
    }
    if let Some(trouble) = &status.certificate_trouble {
        output.line(format!("trouble  {trouble}"))?;
    }
    let rows = status.members.iter().map(|member| row(status, member)).collect();
    let header = ["NODE", "NAME", "ROLE", "HEALTH", "HTTP", "PEER", "TASKS", "LAG", "CERTIFICATE", "VERSION", "WAITS"];
    Ok(output.table(&header, rows)?)
}

/// A worker keeps no archive: it asks for a record when somebody reads it.
fn who_holds_records(status: &ClusterStatus) -> String {
    let is_worker = |member: &MemberStatus| member.id == status.node && member.role == NodeRole::Worker;
    match status.archived_missing {
        _ if status.members.iter().any(is_worker) => {
            "held by the voters and learners: this node is a worker".to_owned()
        }
        0 => "all held by this node".to_owned(),
        missing => format!("{missing} of their records missing on this node"),
    }
}

fn detail(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

fn row(status: &ClusterStatus, member: &MemberStatus) -> Vec<String> {
    let role = match member.role {
        _ if status.leader == Some(member.id) => "leader",
        NodeRole::Voter if member.voting => "voter",
        NodeRole::Voter => "voter (catching up)",
        NodeRole::Learner if member.voting => "learner (still votes)",
        NodeRole::Learner => "learner",
        NodeRole::Worker => "worker",
    };
    let health = match member.health {
        _ if member.fenced => "fenced",
        NodeHealth::Up if !status.in_touch && member.id != status.node => "was up",
        NodeHealth::Enrolled => "enrolled",
        NodeHealth::Up => "up",
        NodeHealth::Lost => "lost",
    };
    let health = match (member.leaving, member.draining) {
        (true, _) => format!("{health}, leaving"),
        (false, true) => format!("{health}, drained"),
        (false, false) => health.to_owned(),
    };
    vec![
        member.id.to_string(),
        member.name.clone(),
        role.to_owned(),
        health,
        member.addresses.http.clone(),
        member.addresses.peer.clone(),
        format!("{}/{}", member.load, member.capacity),
        member.lag.map_or_else(|| "-".to_owned(), |lag| lag.to_string()),
        certificate(member),
        member.version.clone(),
        member.waits.clone().unwrap_or_default(),
    ]
}

/// Until when its certificate is good, and whether it signs those of others.
fn certificate(member: &MemberStatus) -> String {
    let ends = member.certificate_ends_ms.and_then(|ms| i64::try_from(ms).ok());
    let Some(ends) = ends.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()) else { return "-".to_owned() };
    let when = ends.strftime("%Y-%m-%d %H:%MZ");
    let word = if ends <= jiff::Timestamp::now() { "ended" } else { "to" };
    let signs = if member.signs { ", signs" } else { "" };
    format!("{word} {when}{signs}")
}

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
