//! `towline dev`: the demo's cluster, left running in the foreground. Its folder is kept between runs, so tasks are there
//! again, and its configuration files may be edited: they are written once and then belong to the person.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::config::{self, Overrides};
use crate::demo::{
    CONFIG_FILE, Console, DemoError, MeshSpec, ModelArgs, NAMES, NodePlan, RunningCluster, file, interrupted,
    is_for_nodes, write_configs,
};

/// Name of the development cluster.
const CLUSTER: &str = "dev";

/// The ports that are tried first: the first node is where `towline` looks for a server.
const USUAL_PORTS: [(u16, u16); 3] = [(7420, 7421), (7422, 7423), (7424, 7425)];

/// How often the nodes are looked at while they run.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Runs three nodes in the foreground, with the demo's agents on a folder of yours. Ctrl-C stops them.
#[derive(Debug, Clone, clap::Args)]
pub struct DevArgs {
    /// The folder that the agents can read
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Where the cluster lives: configurations, data and logs, kept between runs
    #[arg(long, value_name = "DIR", default_value = ".towline/dev")]
    home: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
}

/// Starts the cluster, says how to use it, and keeps it until it is interrupted.
///
/// # Errors
/// When a node does not start, or ends by itself.
pub async fn run(args: DevArgs, mut console: Console) -> Result<(), DemoError> {
    args.model.check()?;
    let folder = args.dir.canonicalize().map_err(|source| DemoError::Folder { dir: args.dir.clone(), source })?;
    let home = make_home(&args.home)?;
    let program = std::env::current_exe().map_err(|source| file("find", Path::new("this program"), source))?;
    let nodes = match existing(&home)? {
        Some(nodes) => {
            let kept = "the folder and the model are those of its configuration files, which are yours to edit";
            console
                .say(format!("going on in {}: {kept}; --dir and --model count for a new --home only", home.display()));
            nodes
        }
        None => {
            let nodes = first_plan(&home)?;
            let spec = MeshSpec { cluster: CLUSTER, folder: &folder, program: &program, model: &args.model };
            write_configs(&home, &nodes, &spec)?;
            console.say(format!("made {}", home.display()));
            if args.model.is_scripted() {
                console.say(
                    "the agents' model is scripted: rules, no AI, no network (a real one: --model, for a new --home)",
                );
            }
            nodes
        }
    };
    let started = tokio::select! {
        started = RunningCluster::start(&program, CLUSTER, nodes) => started?,
        () = interrupted() => return Err(DemoError::Interrupted),
    };
    introduce(&started, &mut console);
    serve(started, &mut console).await
}

/// The folder, absolute, and closed to others: it holds the cluster's keys.
fn make_home(home: &Path) -> Result<PathBuf, DemoError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(home);
    made.map_err(|source| file("make folder", home, source))?;
    home.canonicalize().map_err(|source| file("find", home, source))
}

/// The nodes of an earlier run, with the addresses that their configuration files say.
fn existing(home: &Path) -> Result<Option<Vec<NodePlan>>, DemoError> {
    if !home.join(NAMES[0]).join(CONFIG_FILE).exists() {
        return Ok(None);
    }
    NAMES.iter().map(|name| planned(home, name)).collect::<Result<_, _>>().map(Some)
}

/// Three nodes on the usual ports, or on free ones where those are taken.
fn first_plan(home: &Path) -> Result<Vec<NodePlan>, DemoError> {
    let mut taken = Vec::new();
    let mut plans = Vec::new();
    for (name, (http, peer)) in NAMES.iter().zip(USUAL_PORTS) {
        let http = free_address(http, home, &mut taken)?;
        let peer = free_address(peer, home, &mut taken)?;
        plans.push(NodePlan::new(home, name, http, peer));
    }
    Ok(plans)
}

/// This port if nobody listens on it, or any free one. It stays taken until all were found.
fn free_address(port: u16, home: &Path, taken: &mut Vec<TcpListener>) -> Result<SocketAddr, DemoError> {
    let bind = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let failed = |source| file("find a free port for", home, source);
    let listener = bind(port).or_else(|_| bind(0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    taken.push(listener);
    Ok(address)
}

fn introduce(cluster: &RunningCluster, console: &mut Console) {
    console.say("");
    for node in cluster.nodes() {
        let (plan, url) = (&node.plan, node.plan.url());
        console.say(format!("node {} ({})", node.id, plan.name));
        console.say(format!("  A2A             {url}/"));
        console.say(format!("  surveyor        {url}/agents/surveyor"));
        console.say(format!("  reader          {url}/agents/reader"));
        console.say(format!("  card            {url}/.well-known/agent-card.json"));
        console.say(format!("  configuration   {}", plan.config.display()));
        console.say(format!("  log             {}", plan.log.display()));
    }
    let urls: Vec<String> = cluster.nodes().iter().map(|node| node.plan.url()).collect();
    let [a, b, c] = urls.as_slice() else { return };
    let usual = format!("http://{}", SocketAddr::from((Ipv4Addr::LOCALHOST, USUAL_PORTS[0].0)));
    if *a != usual {
        console.say("");
        console
            .say(format!("port {} was taken: commands without --server ask what listens there; set", USUAL_PORTS[0].0));
        console.say(format!("  export TOWLINE_SERVER={}", urls.join(",")));
    }
    console.say("");
    console.say("try, in another terminal:");
    console.say(format!("  towline --server {a} cluster status"));
    console.say(format!("  towline --server {b} send surveyor \"Survey the first 5 text files.\""));
    console.say(format!("  towline --server {c} task list"));
    console.say(format!("  towline --server {a} task trace TASK-ID"));
    console.say(format!("  curl -s {a}/.well-known/agent-card.json"));
    console.say("");
    console.say("Ctrl-C stops all three");
}

/// Waits for the end: of the person's patience, or of the last node. One that ends alone is what a cluster is for.
async fn serve(mut cluster: RunningCluster, console: &mut Console) -> Result<(), DemoError> {
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut stop = std::pin::pin!(interrupted());
    let end = loop {
        tokio::select! {
            () = &mut stop => break Ok(()),
            _ = look.tick() => {
                let (ends, any_left) = cluster.newly_ended();
                let mut ends = ends.into_iter().peekable();
                while let Some(error) = ends.next() {
                    if !any_left && ends.peek().is_none() {
                        return Err(error);
                    }
                    console.say(error);
                    console.say("the others go on; `towline node -c FILE` with the configuration of that node starts it again");
                }
            }
        }
    };
    console.say("stopping");
    for name in cluster.stop().await {
        console.say(format!("node {name} did not stop in time and was killed"));
    }
    end
}

/// A node of an earlier run, where its configuration file says that it listens.
fn planned(home: &Path, name: &str) -> Result<NodePlan, DemoError> {
    let file = home.join(name).join(CONFIG_FILE);
    let mut overrides = Overrides::of_process(Vec::new());
    overrides.env.retain(|name, _| is_for_nodes(name));
    let config = config::load(&file, &overrides).map_err(DemoError::Config)?;
    Ok(NodePlan::new(home, name, config.node.http, config.node.peer))
}
