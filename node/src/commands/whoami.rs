//! `towline auth whoami`

use super::client::Client;
use crate::{api::CallerView, auth::KnownBy, error::CliError, output::Output};

/// Where it is asked.
const PATH: &str = "/api/v1/auth/whoami";

pub(crate) async fn run(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = client.get(PATH).await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let view: CallerView = serde_json::from_value(answer).map_err(CliError::other)?;
    Ok(lines(&view).into_iter().try_for_each(|line| output.line(line))?)
}

fn lines(view: &CallerView) -> Vec<String> {
    let CallerView { principal, role, labels, grants, may, evidence, session, until, cluster, node } = view;
    let mut lines = vec![format!("principal  {principal}")];
    lines.extend(role.as_ref().map(|role| format!("role       {role}")));
    let session = session.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
    lines.push(format!("known by   {}{session}", words(*evidence)));
    lines.extend(until.as_ref().map(|until| format!("until      {until}")));
    if !labels.is_empty() {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        lines.push(format!("labels     {}", labels.join(", ")));
    }
    if !grants.is_empty() {
        lines.push(format!("granted    {}", grants.join(", ")));
    }
    let is_operator = role.as_deref() == Some("operator");
    lines.push(format!("may        {}", if is_operator { "everything".to_owned() } else { may.join(", ") }));
    lines.push(format!("at         node {} ({}) of cluster {cluster}", node.id, node.name));
    lines
}

fn words(evidence: KnownBy) -> &'static str {
    match evidence {
        KnownBy::Socket => "a connection to the node's socket, as the user of the node or as root",
        KnownBy::Session => "the token of a session",
        KnownBy::Bearer => "a bearer that a rule in auth.principals names",
        KnownBy::Token => "a signed token of the issuer",
        KnownBy::Certificate => "a client certificate",
        KnownBy::Anybody => "nothing: a rule in auth.principals is for anybody",
        KnownBy::Local => "a connection from this machine, since nothing says who may call",
        KnownBy::Mesh => "a node of the cluster",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::api::NodeView;

    #[test]
    fn a_person_reads_who_they_are_and_until_when() {
        let view = CallerView {
            principal: "user:ada".into(),
            role: Some("user".into()),
            labels: BTreeMap::from([("team".into(), "blue".into())]),
            grants: vec!["cluster.status".into()],
            may: vec!["task.get".into(), "cluster.status".into()],
            evidence: KnownBy::Session,
            session: Some("ds_1".into()),
            until: Some("2026-01-01T00:00:00.000Z".into()),
            cluster: "prod".into(),
            node: NodeView { id: 2, name: "b".into() },
        };
        assert_eq!(
            lines(&view),
            [
                "principal  user:ada",
                "role       user",
                "known by   the token of a session (ds_1)",
                "until      2026-01-01T00:00:00.000Z",
                "labels     team=blue",
                "granted    cluster.status",
                "may        task.get, cluster.status",
                "at         node 2 (b) of cluster prod",
            ]
        );
        let operator = CallerView { role: Some("operator".into()), evidence: KnownBy::Local, ..view };
        assert!(lines(&operator).contains(&"may        everything".to_owned()));
    }
}
