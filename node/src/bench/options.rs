//! The options of `towline bench`, and their bounds.

use std::{path::PathBuf, time::Duration};

use super::BenchError;

/// Most clients of one point: they share this machine with what they measure.
const MAX_CLIENTS: u32 = 4_096;

/// Longest point: a bench is watched by somebody.
const MAX_SECONDS: u64 = 3_600;

/// Most rounds, kills: each takes seconds.
const MAX_ROUNDS: u32 = 1_000;

/// Most sessions that are revoked: more requests than that do not wait at the same time.
const MAX_REVOKED: u32 = 200;

/// Most idle agents: that many are told to the cluster in one entry, which may have 6 MiB.
const MAX_AGENTS: u32 = 100_000;

/// Most programs that are measured beside this one: each is three more processes on this machine.
const MAX_BESIDE: usize = 4;

/// `towline bench …`
#[derive(Debug, Clone, clap::Subcommand)]
pub enum BenchCommand {
    /// Committed commands and linearizable reads of three nodes
    #[command(
        after_help = "Examples:\n  towline bench cluster --vs etcd\n  towline bench cluster --etcd /usr/bin/etcd --etcd ./etcd-3.7\n  towline bench cluster --clients 16 --seconds 2 -o json"
    )]
    Cluster(ClusterArgs),
    /// Whole tasks of an agent that does nothing, through A2A
    #[command(
        after_help = "Example:\n  towline bench task --clients 1,16,64\n  towline bench task --clients 16 --retained 100000"
    )]
    Task(TaskArgs),
    /// Kills the owner of a task, again and again, and looks what its caller sees
    #[command(after_help = "Example:\n  towline bench adopt --kills 20")]
    Adopt(AdoptArgs),
    /// What nodes and agents cost that do nothing
    #[command(after_help = "Example:\n  towline bench idle --agents 10000")]
    Idle(IdleArgs),
    /// A task that one agent delegates to another, on another node
    #[command(after_help = "Example:\n  towline bench delegation --clients 1,16")]
    Delegation(DelegationArgs),
    /// Memory and open files over minutes of tasks and puts
    #[command(after_help = "Example:\n  towline bench soak --seconds 600")]
    Soak(SoakArgs),
    /// Revokes a session, and looks when its streams end on each node
    #[command(after_help = "Example:\n  towline bench revoke --rounds 20")]
    Revoke(RevokeArgs),
    /// Messages and cards of one node that keeps its log in memory, beside other A2A servers
    #[command(
        after_help = "Examples:\n  towline bench a2a --clients 1,16\n  towline bench a2a --vs python,js --servers tests/a2a_servers"
    )]
    A2a(A2aArgs),
    /// What spans cost, by the span and by the task
    #[command(after_help = "Example:\n  towline bench trace --clients 16")]
    Trace(TraceArgs),
    /// Calls of a tool that does next to nothing, over HTTP and standard input, beside other MCP servers
    #[command(
        after_help = "Examples:\n  towline bench mcp --clients 1,64\n  towline bench mcp --vs rmcp,ts,python --servers tests/mcp_servers"
    )]
    Mcp(McpArgs),
}

impl BenchCommand {
    pub(super) fn common(&self) -> &Common {
        match self {
            BenchCommand::Cluster(args) => &args.common,
            BenchCommand::Task(args) => &args.common,
            BenchCommand::Adopt(args) => &args.common,
            BenchCommand::Idle(args) => &args.common,
            BenchCommand::Delegation(args) => &args.common,
            BenchCommand::Soak(args) => &args.common,
            BenchCommand::Revoke(args) => &args.common,
            BenchCommand::A2a(args) => &args.common,
            BenchCommand::Trace(args) => &args.common,
            BenchCommand::Mcp(args) => &args.common,
        }
    }
}

/// What every bench takes.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Where the nodes keep their data: on the disk that is to be measured
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub(super) dir: PathBuf,
}

/// How long, how often, and by how many.
#[derive(Debug, Clone, clap::Args)]
pub struct Pace {
    /// Seconds of one point in one round
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// How often all points are measured; the subjects take turns
    #[arg(long, value_name = "N", default_value_t = 2)]
    rounds: u32,
}

/// `towline bench cluster`
#[derive(Debug, Clone, clap::Args)]
pub struct ClusterArgs {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) pace: Pace,
    /// What is measured beside it, on the same disk, by the same clients
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(super) vs: Option<Versus>,
    /// An etcd to measure beside it, in place of the one in PATH; may be given again
    #[arg(long, value_name = "PATH")]
    pub(super) etcd: Vec<PathBuf>,
    /// Another build of towline to measure beside it; may be given again
    #[arg(long, value_name = "PATH")]
    pub(super) towline: Vec<PathBuf>,
    /// How many clients, each with one call at a time
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    pub(super) clients: Vec<u32>,
}

/// `towline bench task`
#[derive(Debug, Clone, clap::Args)]
pub struct TaskArgs {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) pace: Pace,
    /// How many clients, each with one task at a time
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 16, 64])]
    pub(super) clients: Vec<u32>,
    /// How many finished tasks the cluster keeps when it begins
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "towline")]
    pub(super) retained: u64,
    /// Another build of towline to measure beside it; may be given again
    #[arg(long, value_name = "PATH")]
    pub(super) towline: Vec<PathBuf>,
}

/// `towline bench delegation`
#[derive(Debug, Clone, clap::Args)]
pub struct DelegationArgs {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) pace: Pace,
    /// How many clients, each with one task at a time
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 16])]
    pub(super) clients: Vec<u32>,
}

/// `towline bench soak`
#[derive(Debug, Clone, clap::Args)]
pub struct SoakArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How long, in seconds
    #[arg(long, value_name = "N", default_value_t = 600)]
    seconds: u64,
    /// How many clients; half of them have tasks done, half of them put notes
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(super) clients: u32,
}

/// `towline bench a2a`
#[derive(Debug, Clone, clap::Args)]
pub struct A2aArgs {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) pace: Pace,
    /// What is measured beside it, by the name of its program in the folder of `--servers`
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) vs: Vec<String>,
    /// Where the programs of other A2A servers are: each is given a port, and serves on it an agent that answers at once
    #[arg(long, value_name = "DIR", default_value = "tests/a2a_servers")]
    pub(super) servers: PathBuf,
    /// How many clients, each with one request at a time
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 16])]
    pub(super) clients: Vec<u32>,
}

/// `towline bench mcp`
#[derive(Debug, Clone, clap::Args)]
pub struct McpArgs {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) pace: Pace,
    /// What is measured beside it, by the name of its program in the folder of `--servers`
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) vs: Vec<String>,
    /// Where the programs of other MCP servers are: each is given a port, or `stdio`, and has a tool `noop`
    #[arg(long, value_name = "DIR", default_value = "tests/mcp_servers")]
    pub(super) servers: PathBuf,
    /// How many clients, or calls that are under way on one pipe
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 64])]
    pub(super) clients: Vec<u32>,
}

/// `towline bench adopt`
#[derive(Debug, Clone, clap::Args)]
pub struct AdoptArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How many owners die; every second one leads the cluster
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(super) kills: u32,
}

/// `towline bench revoke`
#[derive(Debug, Clone, clap::Args)]
pub struct RevokeArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How many sessions are revoked, one after the other
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(super) rounds: u32,
}

/// `towline bench trace`
#[derive(Debug, Clone, clap::Args)]
pub struct TraceArgs {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) pace: Pace,
    /// How many clients, each with one task at a time
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 16])]
    pub(super) clients: Vec<u32>,
    /// How many tasks are open while /metrics is scraped
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(super) tasks: u32,
}

/// `towline bench idle`
#[derive(Debug, Clone, clap::Args)]
pub struct IdleArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// How many agents one node runs
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(super) agents: u32,
}

/// What can be compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Versus {
    /// Three members of the `etcd` in PATH
    Etcd,
}

/// How long and how often, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) seconds: Duration,
    pub(super) rounds: u32,
}

impl Pace {
    pub(super) fn check(&self) -> Result<Plan, BenchError> {
        within("--seconds", self.seconds, MAX_SECONDS)?;
        within("--rounds", self.rounds.into(), MAX_ROUNDS.into())?;
        Ok(Plan { seconds: Duration::from_secs(self.seconds), rounds: self.rounds })
    }
}

pub(super) fn check_clients(clients: &[u32]) -> Result<(), BenchError> {
    clients.iter().try_for_each(|clients| within("--clients", (*clients).into(), MAX_CLIENTS.into()))
}

impl A2aArgs {
    pub(super) fn check(&self) -> Result<Plan, BenchError> {
        check_clients(&self.clients)?;
        check_beside("--vs", self.vs.len())?;
        self.pace.check()
    }
}

impl McpArgs {
    pub(super) fn check(&self) -> Result<Plan, BenchError> {
        check_clients(&self.clients)?;
        check_beside("--vs", self.vs.len())?;
        self.pace.check()
    }
}

impl AdoptArgs {
    pub(super) fn check(&self) -> Result<(), BenchError> {
        within("--kills", self.kills.into(), MAX_ROUNDS.into())
    }
}

impl RevokeArgs {
    pub(super) fn check(&self) -> Result<(), BenchError> {
        within("--rounds", self.rounds.into(), MAX_REVOKED.into())
    }
}

impl ClusterArgs {
    pub(super) fn check(&self) -> Result<Plan, BenchError> {
        check_clients(&self.clients)?;
        check_beside("--etcd", self.etcd.len())?;
        check_beside("--towline", self.towline.len())?;
        self.pace.check()
    }
}

impl TaskArgs {
    pub(super) fn check(&self) -> Result<Plan, BenchError> {
        within("--retained", self.retained.max(1), towline_core::limits::MAX_TERMINAL_TASKS as u64)?;
        check_clients(&self.clients)?;
        check_beside("--towline", self.towline.len())?;
        self.pace.check()
    }
}

impl TraceArgs {
    pub(super) fn check(&self) -> Result<Plan, BenchError> {
        check_clients(&self.clients)?;
        self.pace.check()
    }
}

impl DelegationArgs {
    pub(super) fn check(&self) -> Result<Plan, BenchError> {
        check_clients(&self.clients)?;
        self.pace.check()
    }
}

impl SoakArgs {
    pub(super) fn check(&self) -> Result<Duration, BenchError> {
        check_clients(&[self.clients])?;
        within("--seconds", self.seconds, MAX_SECONDS)?;
        Ok(Duration::from_secs(self.seconds))
    }
}

fn check_beside(option: &'static str, count: usize) -> Result<(), BenchError> {
    if count <= MAX_BESIDE { Ok(()) } else { Err(BenchError::TooMany { option, most: MAX_BESIDE }) }
}

impl IdleArgs {
    pub(super) fn check(&self) -> Result<(), BenchError> {
        within("--agents", self.agents.into(), MAX_AGENTS.into())
    }
}

fn within(option: &'static str, value: u64, most: u64) -> Result<(), BenchError> {
    if (1..=most).contains(&value) { Ok(()) } else { Err(BenchError::Option { option, most }) }
}
