//! What comes together in an agent: sensitive data, a way out, and text from outside. An agent that has all three could be
//! talked into sending the data away, so such a file is refused, unless it says that this is meant.

use std::collections::{BTreeMap, BTreeSet};

use towline_actors::{AgentConfig, McpServerConfig, Traits};

use super::section::Field;

/// Something that an agent has, and what it brings.
type Source = (String, Traits);

/// Notes on each agent what comes together in it, and a mistake where that is all three.
///
/// Data and ways out are also those of the agents that it may delegate to: it gets the one from them and uses the other
/// through them. Text from outside is not: a result that holds some is withheld from such an agent when it comes.
pub(crate) fn judge(
    fields: &[(usize, Field<'_>)],
    agents: &mut [AgentConfig],
    servers: &[McpServerConfig],
    peers: &BTreeSet<&str>,
) {
    let own: BTreeMap<String, Vec<Source>> =
        agents.iter().map(|agent| (agent.name.to_string(), sources(agent, servers, peers))).collect();
    let reached: Vec<Vec<Source>> = agents.iter().map(|agent| behind(agent, agents, &own)).collect();
    for (at, agent) in agents.iter_mut().enumerate() {
        let direct = &own[agent.name.as_str()];
        let all = sum(direct).and(Traits { untrusted: false, ..sum(&reached[at]) });
        agent.traits = all;
        if all.is_trifecta() && !agent.allow_trifecta {
            let named = |has: fn(&Traits) -> bool, of: &[Source]| {
                let names: BTreeSet<&str> =
                    of.iter().filter(|(_, traits)| has(traits)).map(|(name, _)| name.as_str()).collect();
                names.into_iter().collect::<Vec<_>>().join(", ")
            };
            let everything: Vec<Source> = direct.iter().chain(&reached[at]).cloned().collect();
            let message = format!(
                "agent {:?} would hold sensitive data ({}), have a way out ({}) and read text from outside ({}): whoever \
                 writes that text could have the data sent away. Take one of the three from it, or write allow_trifecta: \
                 true if this is meant",
                agent.name.as_str(),
                named(|traits| traits.sensitive, &everything),
                named(|traits| traits.egress, &everything),
                named(|traits| traits.untrusted, direct),
            );
            if let Some((_, field)) = fields.iter().find(|(index, _)| *index == at) {
                field.mistake(message);
            }
        }
    }
}

fn sum(sources: &[Source]) -> Traits {
    sources.iter().map(|(_, traits)| *traits).fold(Traits::default(), Traits::and)
}

fn sources(agent: &AgentConfig, servers: &[McpServerConfig], peers: &BTreeSet<&str>) -> Vec<Source> {
    let mut sources = vec![("its own tags".to_owned(), Traits::of_tags(&agent.tags))];
    let used = servers.iter().filter(|server| {
        agent.tools.iter().any(|glob| {
            let of_server = glob.split_once('.').map_or(glob.as_str(), |(server, _)| server);
            of_server.contains("**") || glob_match::glob_match(of_server, &server.name)
        }) || agent.resources.iter().any(|glob| glob_match::glob_match(glob, &server.name))
    });
    sources.extend(used.map(|server| (format!("server {}", server.name), server.traits)));
    let asked = agent.delegates.iter().filter(|name| peers.contains(name.as_str()));
    sources.extend(asked.map(|name| (format!("peer {name}"), Traits::PEER)));
    sources
}

/// What the agents have that this one may delegate to, and those below them.
fn behind(agent: &AgentConfig, agents: &[AgentConfig], own: &BTreeMap<String, Vec<Source>>) -> Vec<Source> {
    let (mut seen, mut open) = (BTreeSet::from([agent.name.as_str()]), agent.delegates.iter().collect::<Vec<_>>());
    let mut found = Vec::new();
    while let Some(name) = open.pop() {
        let Some(next) = agents.iter().find(|agent| agent.name.as_str() == name).filter(|_| seen.insert(name)) else {
            continue;
        };
        let of = |(source, traits): &Source| (format!("{source} of agent {name}"), *traits);
        found.extend(own.get(name).into_iter().flatten().map(of));
        open.extend(&next.delegates);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::{NodeConfig, Overrides, read};

    fn with(agents: &str) -> Result<NodeConfig, Vec<String>> {
        let text = format!(
            "node: {{ name: a }}\nmodels: {{ default: {{ provider: ollama, model: m }} }}\nmcp:\n  servers:\n    \
             - {{ name: crm, command: [crm], tags: [sensitive] }}\n    - {{ name: web, command: [web], tags: [untrusted, egress] }}\n    \
             - {{ name: mail, command: [mail], tags: [egress] }}\nagents:\n{agents}\npeers: [ {{ name: legal, url: \"https://legal.example\" }} ]\n"
        );
        let read = read(&text, "/nowhere".into(), &Overrides::default());
        read.map_err(|mistakes| mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect())
    }

    #[test]
    fn an_agent_with_all_three_is_refused_with_where_each_comes_from() {
        for (agent, says) in [
            ("tools: [\"crm.*\", \"web.*\"]", "way out (server web) and read text from outside (server web)"),
            ("tools: [\"crm.*\"], delegates: [legal]", "have a way out (peer legal)"),
            ("tools: [\"web.*\"], tags: [sensitive]", "sensitive data (its own tags)"),
        ] {
            let mistakes = with(&format!("  - {{ name: boss, instruction: I., {agent} }}")).unwrap_err();
            assert!(mistakes.len() == 1 && mistakes[0].contains(says), "{mistakes:?}");
            assert!(
                mistakes[0].starts_with("agents[0]: ") && mistakes[0].contains("allow_trifecta: true"),
                "{mistakes:?}"
            );
            with(&format!("  - {{ name: boss, instruction: I., allow_trifecta: true, {agent} }}")).unwrap();
        }
    }

    #[test]
    fn a_way_out_through_another_agent_counts_and_its_text_from_outside_does_not() {
        let through = "  - { name: boss, instruction: I., tools: [\"crm.*\"], tags: [untrusted], delegates: [writer] }\n  - { name: writer, instruction: W., tools: [\"mail.*\"] }";
        let mistakes = with(through).unwrap_err();
        assert!(mistakes[0].contains("way out (server mail of agent writer)"), "{mistakes:?}");

        let reader = "  - { name: boss, instruction: I., tools: [\"crm.*\", \"mail.*\"], delegates: [reader] }\n  - { name: reader, instruction: R., tools: [\"web.*\"] }";
        let config = with(reader).unwrap();
        assert!(config.mesh.agents[0].traits.must_stay_clean() && !config.mesh.agents[0].traits.untrusted);
    }

    #[test]
    fn a_server_has_no_other_tags() {
        let text = "node: { name: a }\nmcp: { servers: [ { name: crm, command: [crm], tags: [sensible] } ] }\n";
        let mistakes = read(text, "/nowhere".into(), &Overrides::default()).unwrap_err();
        assert!(mistakes[0].message.contains("known: sensitive, egress, untrusted"), "{mistakes:?}");
    }
}
