//! `towline init` and `towline cluster snapshot restore`: a cluster, and the configuration file of its first node if there
//! is none.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::json;
use towline_cluster::{
    archive::{self, ArchiveError},
    membership::{self, Identity},
};
use towline_core::NodeAddresses;

use crate::{
    cli::InitArgs,
    config::{self, NodeConfig, Overrides},
    error::{CliError, chain},
    output::Output,
    startup,
};

/// The file that is made: the smallest one that runs an agent.
const SAMPLE: &str = config::SAMPLE;

pub(crate) fn run(args: &InitArgs, output: &mut Output) -> Result<(), CliError> {
    let (file, config) = prepare(args, output)?;
    let node = &config.node;
    let identity =
        membership::found(&node.data, &args.name, &node.name, addresses(&config)?).map_err(startup::cluster_error)?;
    if output.is_json() {
        return Ok(output.json(&identity)?);
    }
    tell(&identity, &config, &file, output)
}

/// `towline cluster snapshot restore`: founds a cluster with the state of another.
pub(crate) fn restore(saved: &Path, args: &InitArgs, output: &mut Output) -> Result<(), CliError> {
    // Before anything is made.
    archive::check(saved).map_err(|error| not_restored(saved, &error))?;
    let (file, config) = prepare(args, output)?;
    let node = &config.node;
    let (identity, summary) = archive::restore(&node.data, saved, &args.name, &node.name, addresses(&config)?)
        .map_err(startup::cluster_error)?;
    if output.is_json() {
        return Ok(output.json(&json!({ "identity": identity, "snapshot": summary }))?);
    }
    output.note(format!(
        "{} tasks of cluster {} (up to entry {}) are in the new cluster; those that ran go on when a node starts whose \
         configuration declares their agents; they may have gone on after the save as well, so each asks before a call that \
         must not be made twice",
        summary.tasks, summary.cluster_name, summary.index
    ));
    tell(&identity, &config, &file, output)
}

fn not_restored(file: &Path, error: &ArchiveError) -> CliError {
    CliError::Other(format!("{}: {}", file.display(), chain(error)))
}

/// The configuration of the first node; its file is made if it is not there.
fn prepare(args: &InitArgs, output: &mut Output) -> Result<(PathBuf, NodeConfig), CliError> {
    let file = args.dir.join(&args.config);
    // Before anything is made.
    config::cluster_name(&args.name).map_err(|reason| CliError::Usage(format!("--name {:?}: {reason}", args.name)))?;
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
    Ok((file, config))
}

fn tell(identity: &Identity, config: &NodeConfig, file: &Path, output: &mut Output) -> Result<(), CliError> {
    output.note(format!(
        "founded cluster {} with node {} ({}); its keys are in {}",
        identity.cluster_name,
        identity.node,
        identity.node_name,
        config.node.data.display()
    ));
    output.note("start it, then make a token for each further node; what is printed with it says how that node joins:");
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
        http: node.public_url.clone().unwrap_or_else(|| format!("{}://{}", node.scheme(), node.http)),
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
