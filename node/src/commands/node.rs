//! `towline node`

use std::path::Path;

use towline_core::AgentName;

use crate::{
    cli::NodeArgs,
    config::{self, NodeConfig, Overrides},
    ephemeral::Ephemeral,
    error::CliError,
    output::Output,
    startup::{self, StartOptions},
    telemetry,
};

/// The configuration where none is named.
const CONFIG_FILE: &str = "towline.yaml";

pub(crate) fn run(args: NodeArgs, output: &mut Output) -> Result<(), CliError> {
    telemetry::start_logs()?;
    let overrides = Overrides::of_process(args.set);
    let mut config = read(args.config.as_deref(), args.ephemeral, &overrides)?;
    let folder = args.ephemeral.then(|| Ephemeral::take_over(&mut config)).transpose()?;
    for (name, model) in &config.mesh.models {
        if matches!(model.provider, towline_actors::Provider::Scripted { .. }) {
            output.note(format!("model {name} is scripted: it answers by rules and is no AI"));
        }
    }
    let join = match (args.join, args.token) {
        (Some(address), Some(token)) => Some((address, token)),
        (Some(_), None) => {
            let text =
                "--join needs a token: make one with `towline cluster join-token` on a member, and set TOWLINE_TOKEN";
            return Err(CliError::Usage(text.to_owned()));
        }
        (None, _) => None,
    };
    if let Some(folder) = &folder {
        output
            .note(format!("this node keeps everything in {} until it ends, and leaves nothing behind", folder.place()));
        if let Some(line) = config.front_door.as_ref().and_then(|agent| try_line(&config, agent)) {
            output.note(line);
        }
    }
    let options = StartOptions { join, exit_with_stdin: args.exit_with_stdin, ephemeral: args.ephemeral };
    startup::run(config, options)
}

/// What a person types to talk to this node; none where its port is not known yet.
fn try_line(config: &NodeConfig, agent: &AgentName) -> Option<String> {
    let node = &config.node;
    let bound = (node.http.port() != 0).then(|| format!("{}://{}", node.scheme(), node.http));
    let url = node.public_url.clone().or(bound)?;
    // What TLS and rules ask for is not in the configuration in a form that could be shown.
    let ca = if node.tls.is_some() { " --ca-file AUTHORITY.pem" } else { "" };
    let token = if config.auth.is_configured() { " --token-file TOKEN" } else { "" };
    Some(format!("try, in another terminal: towline --server {url}{ca}{token} send {agent} \"Hello.\""))
}

/// The configuration; that of a node that leaves nothing behind need not be there, unless it is named.
fn read(named: Option<&Path>, ephemeral: bool, overrides: &Overrides) -> Result<NodeConfig, CliError> {
    let file = named.unwrap_or(Path::new(CONFIG_FILE));
    let needs_none = ephemeral && named.is_none() && !file.exists();
    let read = if needs_none { config::read_sample(overrides) } else { config::load(file, overrides) };
    read.map_err(|error| CliError::Usage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_is_told_to_type_reaches_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(folder.path().join("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        let tls = "tls: { certificate: cert.pem, key: key.pem }";
        let rule = format!(
            "auth: {{ principals: [ {{ id: a, role: user, bearer: {{ sha256: \"{}\" }} }} ] }}",
            "0".repeat(64)
        );
        for (node, auth, command) in [
            ("listen: { http: \"127.0.0.1:7\" }", "", Some("--server http://127.0.0.1:7 send reader")),
            (
                &*format!("{tls}, listen: {{ http: \"127.0.0.1:7\" }}"),
                "",
                Some("--server https://127.0.0.1:7 --ca-file"),
            ),
            ("public_url: \"https://m.example\"", &*rule, Some("--server https://m.example --token-file TOKEN send")),
            ("listen: { http: \"127.0.0.1:0\" }", "", None),
        ] {
            let text = format!(
                "node: {{ name: a, {node} }}\nmodels: {{ default: {{ provider: ollama, model: m }} }}\n\
                 agents: [ {{ name: reader, instruction: Read. }} ]\n{auth}\n"
            );
            let config = config::read(&text, folder.path().into(), &Overrides::default()).unwrap();
            let line = try_line(&config, &"reader".parse().unwrap());
            match command {
                Some(command) => assert!(line.as_deref().is_some_and(|line| line.contains(command)), "{line:?}"),
                None => assert_eq!(line, None),
            }
        }
    }
}
