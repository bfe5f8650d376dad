//! `towline init`: a cluster, and the configuration file of its first node if there is none.

use std::{fs, io::Write, path::Path};

use towline_cluster::membership;
use towline_core::NodeAddresses;

use crate::{
    cli::InitArgs,
    config::{self, NodeConfig, Overrides},
    error::CliError,
    output::Output,
    startup,
};

/// The file that is made: the smallest one that runs an agent.
const SAMPLE: &str = include_str!("sample.yaml");

pub(crate) fn run(args: &InitArgs, output: &mut Output) -> Result<(), CliError> {
    let file = args.dir.join(&args.config);
    if !file.exists() {
        write_sample(&file, &args.name)?;
        output.note(format!("wrote {}", file.display()));
    }
    let overrides = Overrides::of_process(Vec::new());
    let config = config::load(&file, &overrides).map_err(|error| CliError::Usage(error.to_string()))?;
    if let Some(name) = config.cluster.as_ref().filter(|name| **name != args.name) {
        let text = format!("{} says cluster.name: {name}, and --name says {}", file.display(), args.name);
        return Err(CliError::Usage(text));
    }
    let node = &config.node;
    let identity =
        membership::found(&node.data, &args.name, &node.name, addresses(&config)?).map_err(startup::cluster_error)?;
    if output.is_json() {
        return Ok(output.json(&identity)?);
    }
    output.note(format!(
        "founded cluster {} with node {} ({}); its keys are in {}",
        identity.cluster_name,
        identity.node,
        identity.node_name,
        node.data.display()
    ));
    output.note("start it, then make a token for each further node:");
    output.line(format!("towline node -c {}", file.display()))?;
    Ok(output.line("towline cluster join-token")?)
}

/// What the node will advertise; it says so again each time it starts.
fn addresses(config: &NodeConfig) -> Result<NodeAddresses, CliError> {
    let node = &config.node;
    let fixed = |port: u16, setting: &str| match port {
        0 => Err(CliError::Usage(format!("{setting} has port 0: a cluster is founded on addresses that stay"))),
        _ => Ok(()),
    };
    fixed(node.http.port(), "node.listen.http")?;
    fixed(node.peer.port(), "node.listen.peer")?;
    Ok(NodeAddresses {
        http: node.public_url.clone().unwrap_or_else(|| format!("http://{}", node.http)),
        peer: node.advertise_peer.clone().unwrap_or_else(|| node.peer.to_string()),
    })
}

fn write_sample(file: &Path, cluster: &str) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::Other(format!("write {}: {error}", file.display()));
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    // Never over a file that appeared in between.
    let mut made = fs::File::create_new(file).map_err(failed)?;
    made.write_all(SAMPLE.replace("CLUSTER", cluster).as_bytes()).map_err(failed)
}
