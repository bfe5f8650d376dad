//! `towline cluster …`

use serde_json::json;
use towline_cluster::{ClusterStatus, MemberStatus};
use towline_core::{NodeHealth, NodeRole};

use super::{client::Client, init, snapshot};
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
            };
            let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
            let answer = client.post("/api/v1/join-tokens", &json!({ "role": role, "ttl_ms": ttl_ms })).await?;
            if output.is_json() {
                return Ok(output.json(&answer)?);
            }
            output.note("good for one node; on it: towline node -c FILE --join THIS_NODE:PEER_PORT --token TOKEN");
            Ok(output.line(answer["token"].as_str().unwrap_or_default())?)
        }
        ClusterCommand::Remove { node } => {
            let answer = client.delete(&format!("/api/v1/cluster/nodes/{node}")).await?;
            if output.is_json() {
                return Ok(output.json(&answer)?);
            }
            output.note("it stops within two seconds if it runs; its data folder is of no more use");
            if answer["keeps_authority"] == true {
                output.note("it kept the key that signs certificates: no further node can join this cluster");
            }
            Ok(output.line(format!("node {node} is removed"))?)
        }
        ClusterCommand::Snapshot(SnapshotCommand::Save { file }) => snapshot::save(&file, client, output).await,
        ClusterCommand::Snapshot(SnapshotCommand::Restore { file, node }) => init::restore(&file, &node, output),
    }
}

async fn status(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = client.get("/api/v1/cluster").await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let status: ClusterStatus = serde_json::from_value(answer).map_err(CliError::other)?;
    let leader = status.leader.map_or_else(|| "none".to_owned(), |id| id.to_string());
    output.line(format!("cluster  {} (term {}, leader {leader})", status.cluster, status.term))?;
    output.line(format!("quorum   {}", status.quorum))?;
    output.line(format!(
        "log      committed {}, applied {} on this node ({})",
        status.committed, status.applied, status.node
    ))?;
    output.line(format!("disk     {:?}{}", status.disk.health, detail(&status.disk.detail)).to_lowercase())?;
    if status.contents > 0 {
        let missing = match status.contents_missing {
            0 => "all held by this node".to_owned(),
            missing => format!("{missing} not yet held by this node"),
        };
        output.line(format!("content  {} beside the log, {missing}", status.contents))?;
    }
    if let Some(reason) = &status.waits_for_content {
        output.line(format!("waits    a change of the voters: {reason}"))?;
    }
    let rows = status.members.iter().map(|member| row(&status, member)).collect();
    Ok(output.table(&["NODE", "NAME", "ROLE", "HEALTH", "HTTP", "PEER", "TASKS", "LAG", "VERSION"], rows)?)
}

fn detail(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

fn row(status: &ClusterStatus, member: &MemberStatus) -> Vec<String> {
    let role = match member.role {
        _ if status.leader == Some(member.id) => "leader",
        NodeRole::Voter if member.voting => "voter",
        NodeRole::Voter => "voter (catching up)",
        NodeRole::Learner => "learner",
    };
    let health = match member.health {
        _ if member.fenced => "fenced",
        NodeHealth::Enrolled => "enrolled",
        NodeHealth::Up => "up",
        NodeHealth::Lost => "lost",
    };
    vec![
        member.id.to_string(),
        member.name.clone(),
        role.to_owned(),
        health.to_owned(),
        member.addresses.http.clone(),
        member.addresses.peer.clone(),
        format!("{}/{}", member.load, member.capacity),
        member.lag.map_or_else(|| "-".to_owned(), |lag| lag.to_string()),
        member.version.clone(),
    ]
}
