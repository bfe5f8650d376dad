//! The command line: what can be written, and what each command does with it.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use towline_core::limits::MAX_STEPS;

use crate::{
    bench::BenchCommand,
    commands,
    demo::DemoArgs,
    dev::DevArgs,
    mcp_files::McpFilesArgs,
    output::{Format, Output},
};

const EXIT_CODES: &str = "\
Exit codes: 0 the command did its job (even if the task failed), 1 other, 2 usage or configuration, 3 unreachable, \
4 not authorised, 5 timeout, 6 a required MCP server is not there, 7 a check of doctor failed, 10 no quorum, 11-13 demo (digest incomplete, events lost or duplicated, task ended before \
the kill).";

/// One binary: an actor-based, distributed agent mesh.
#[derive(Debug, Parser)]
#[command(name = "towline", version, about, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What is to be done.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// How data is written to standard output
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    /// The node to talk to (http://HOST:PORT or unix:///PATH); several, separated by commas: a stream that breaks goes on at
    /// the next. Without it, the context in use, or else http://127.0.0.1:7420
    #[arg(long, global = true, env = "TOWLINE_SERVER", value_name = "URL", value_delimiter = ',')]
    pub server: Vec<String>,
    /// A file with the token to show to the node; the variable TOWLINE_ACCESS_TOKEN may hold the token itself
    #[arg(long, global = true, env = "TOWLINE_ACCESS_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// A PEM file with the authority that has signed the node's certificate, if this machine does not know it
    #[arg(long, global = true, env = "TOWLINE_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows the whole idea on a folder of text files: three nodes, one killed, nothing lost
    #[command(after_help = "Examples:\n  towline demo\n  towline demo --dir ~/notes --files 10 --kill leader")]
    Demo(DemoArgs),
    /// Runs a cluster of three nodes in the foreground, for trying things out
    #[command(
        after_help = "Examples:\n  towline dev\n  towline send surveyor \"Survey the first 5 text files.\"   # in another terminal"
    )]
    Dev(DevArgs),
    /// Founds a cluster: makes its certificate authority and the identity of its first node
    #[command(after_help = "Examples:\n  towline init --name prod\n  towline init --name prod --dir /etc/towline")]
    Init(InitArgs),
    /// Runs one node of a cluster
    #[command(
        after_help = "Examples:\n  towline node -c towline.yaml\n  TOWLINE_TOKEN=T towline node -c towline.yaml --join 10.0.0.1:7421\n  towline node -c towline.yaml --set node.listen.http=127.0.0.1:7520\n\nSignals:\n  SIGTERM, SIGINT   stops in order within lifecycle.drain_timeout (25s); the second ends the node at once, with 128 and its number\n  SIGHUP            is logged; the node goes on, and reads nothing again"
    )]
    Node(NodeArgs),
    /// Sends a message to an agent and shows what comes of it
    #[command(
        after_help = "Examples:\n  towline send surveyor \"Survey the first 5 text files.\"\n  towline send reader -f notes.md \"Report.\"\n  towline send reader --async -o json \"Read README.md and report.\"\n  towline send surveyor --task-id ID \"yes\"          # answers a question\n  towline send reader --max-tokens 50000 --deadline 10m \"Report.\"\n  git diff | towline send reader -f - \"Review.\""
    )]
    Send(SendArgs),
    /// Tasks: look at them, follow them, end them
    #[command(subcommand)]
    Task(TaskCommand),
    /// Agent cards
    #[command(subcommand)]
    Card(CardCommand),
    /// Agents of the cluster
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Agents of others that agents of the cluster may delegate to
    #[command(subcommand)]
    Peer(PeerCommand),
    /// What starts tasks by itself: resources that change, times that come
    #[command(subcommand)]
    Sub(SubCommand),
    /// The cluster and its nodes
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// What happens in the cluster: tasks, nodes, who signs in
    #[command(
        after_help = "Examples:\n  towline events\n  towline events --follow --kind task --kind node.lost\n  towline events --after 4711 --follow -o json"
    )]
    Events(EventsArgs),
    /// MCP servers of a node
    #[command(subcommand)]
    Mcp(McpCommand),
    /// Serves MCP servers over A2E on standard input and output, through a running node
    #[command(after_help = "Examples:\n  towline a2e\n  towline a2e --server https://mesh.example.org")]
    A2e,
    /// Serves the text files of a folder over MCP, read-only
    #[command(after_help = "Examples:\n  towline mcp-files ./docs\n  towline mcp-files ./docs --http 127.0.0.1:8080")]
    McpFiles(McpFilesArgs),
    /// Checks a configuration file and lists every mistake
    #[command(after_help = "Examples:\n  towline validate towline.yaml\n  towline validate -o json towline.yaml")]
    Validate(ValidateArgs),
    /// Measures this binary on this machine, with three nodes that it starts and stops
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Who may call: signing in, and who is signed in
    #[command(subcommand)]
    Auth(AuthCommand),
    /// The cluster that commands go to, and the session there
    #[command(subcommand)]
    Context(ContextCommand),
    /// The log of a node
    #[command(subcommand)]
    Log(LogCommand),
    /// Writes a completion script for a shell
    #[command(
        after_help = "Examples:\n  towline completion bash > /etc/bash_completion.d/towline\n  source <(towline completion zsh)"
    )]
    Completion(CompletionArgs),
    /// Looks at all that a node needs, and says what mends each thing that is wrong; ends with 7 if something fails
    #[command(
        after_help = "Examples:\n  towline doctor                          # a node that runs looks at itself\n  towline doctor --config towline.yaml    # before its first start\n  towline doctor -o json"
    )]
    Doctor(DoctorArgs),
    /// Collects what is needed to find a bug into one file, without secrets and without what people and models said
    #[command(
        after_help = "Examples:\n  towline bug-report\n  towline bug-report -f report.json\n  towline bug-report --config towline.yaml -f -     # of a node that does not start"
    )]
    BugReport(BugReportArgs),
}

/// `towline doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Looks at what this configuration file needs, for a node that does not run
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Looks at this data folder instead of the configured one, for a node that does not run
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Puts VALUE over the setting PATH, as `towline node` does
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = path_and_value, requires = "config")]
    pub set: Vec<(String, String)>,
}

/// `towline bug-report`
#[derive(Debug, Args)]
pub struct BugReportArgs {
    /// The node that it is about.
    #[command(flatten)]
    pub look: DoctorArgs,
    /// The file to make; `-` is standard output [default: towline-bug-report-TIME.json]
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `towline log …`
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Shows what a node writes to its log, or changes it until the node stops
    #[command(
        after_help = "Examples:\n  towline log level\n  towline log level debug,rmcp=info\n  towline log level default"
    )]
    Level {
        /// As in TOWLINE_LOG; default is what the node began with
        filter: Option<String>,
    },
}

/// `towline init`
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Name of the cluster
    #[arg(long, value_name = "CLUSTER")]
    pub name: String,
    /// Where the configuration file is, or is made
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// The configuration file in DIR whose node is the first of the cluster; made if it is not there
    #[arg(short, long, value_name = "FILE", default_value = "towline.yaml")]
    pub config: PathBuf,
}

/// `towline node`
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// The configuration file [default: towline.yaml]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Joins the cluster of the node whose peer listener is at ADDR; does nothing if this node is a member
    #[arg(long, value_name = "ADDR", value_parser = peer_address)]
    pub join: Option<String>,
    /// The join token, made with `towline cluster join-token`; in the environment it is in no list of processes
    #[arg(long, value_name = "TOKEN", env = "TOWLINE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Puts VALUE over the setting PATH of the file and of the environment; may be given again
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = path_and_value)]
    pub set: Vec<(String, String)>,
    /// Runs a cluster of this node alone that keeps everything in memory and leaves nothing behind; without a configuration
    /// file it has one agent that says what it was told
    #[arg(long, conflicts_with = "join")]
    pub ephemeral: bool,
    /// Stops when standard input ends: for nodes that a parent process starts
    #[arg(long, hide = true)]
    pub exit_with_stdin: bool,
}

/// `towline send`
#[derive(Debug, Args)]
pub struct SendArgs {
    /// The agent, by its name in the mesh or by the URL of its A2A endpoint: https://…, or unix:///PATH for a socket
    pub agent: String,
    /// What to say; `-` reads it from standard input
    #[arg(required_unless_present = "file")]
    pub text: Option<String>,
    /// Shows events as they come (the default on a terminal)
    #[arg(long, conflicts_with_all = ["asynchronous", "wait"])]
    pub stream: bool,
    /// Prints the task and does not wait for it
    #[arg(long = "async", visible_alias = "no-wait", conflicts_with = "wait")]
    pub asynchronous: bool,
    /// Waits for the task and prints what it made (the default if standard output is no terminal)
    #[arg(long)]
    pub wait: bool,
    /// Continues this task: answers the question it asked
    #[arg(long, value_name = "ID")]
    pub task_id: Option<String>,
    /// Belongs to this conversation
    #[arg(long, value_name = "ID")]
    pub context_id: Option<String>,
    /// Attaches a file; `-` is standard input; may be given again
    #[arg(short, long, value_name = "FILE")]
    pub file: Vec<PathBuf>,
    /// How long to wait, as in 30s or 5m; the task itself goes on
    #[arg(long, value_name = "DURATION", value_parser = crate::config::duration)]
    pub timeout: Option<std::time::Duration>,
    /// How long the task may take, as in 30s or 5m: then it fails
    #[arg(long, value_name = "DURATION", value_parser = crate::config::duration, conflicts_with = "task_id")]
    pub deadline: Option<std::time::Duration>,
    /// How many tokens of models the task may take, with all that it delegates: then it fails
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "task_id")]
    pub max_tokens: Option<u64>,
    /// How many steps it may take: model calls, tool calls and delegations; at most 4096
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_STEPS as u64), conflicts_with = "task_id")]
    pub max_steps: Option<u64>,
}

/// `towline task …`
#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// Shows a task
    #[command(after_help = "Example:\n  towline task get 0198c0de-0000-7000-8000-000000000000")]
    Get {
        /// Id of the task
        id: String,
    },
    /// Lists tasks, the newest first
    #[command(after_help = "Examples:\n  towline task list\n  towline task list --state working -o json")]
    List(TaskListArgs),
    /// Cancels a task and what it delegated
    #[command(after_help = "Example:\n  towline task cancel 0198c0de-0000-7000-8000-000000000000")]
    Cancel {
        /// Id of the task
        id: String,
    },
    /// Decides about a step in doubt: one whose node or server was lost before it could say what came of it
    #[command(
        after_help = "Examples:\n  towline task resolve ID --step 3 --as done --result \"the letter was sent\"\n  towline task resolve ID --step 3 --as retry\n  towline task resolve ID --step 3 --as failed --reason \"no such account\""
    )]
    Resolve(ResolveArgs),
    /// Waits until a task has ended or asks something, and shows what it made
    #[command(after_help = "Example:\n  towline task wait 0198c0de-0000-7000-8000-000000000000 --timeout 10m")]
    Wait {
        /// Id of the task
        id: String,
        /// How long to wait, as in 30s or 5m; the task itself goes on
        #[arg(long, value_name = "DURATION", value_parser = crate::config::duration)]
        timeout: Option<std::time::Duration>,
    },
    /// Follows the events of a task until it ends or asks
    #[command(
        after_help = "Examples:\n  towline task subscribe ID\n  towline task subscribe ID --from 0     # from its first event"
    )]
    Subscribe {
        /// Id of the task
        id: String,
        /// Shows the events after this one; without it, the task as it stands and what follows
        #[arg(long, value_name = "EVENT")]
        from: Option<u64>,
    },
    /// Shows the trace of a task, gathered from all live nodes; with -o json as Jaeger's UI and tools read it
    #[command(
        after_help = "Examples:\n  towline task trace 0198c0de-0000-7000-8000-000000000000\n  towline task trace ID -o json > trace.json"
    )]
    Trace {
        /// Id of the task
        id: String,
        /// Leaves out the spans of the Raft log, which are most of them
        #[arg(long)]
        no_raft: bool,
        /// Prints where it can be looked at in Jaeger, if the node says so in telemetry.jaeger_ui
        #[arg(long, conflicts_with = "no_raft")]
        open: bool,
    },
    /// Says in one sentence where a task stands: whom it waits for, since when, and what happens next
    #[command(after_help = "Example:\n  towline task why 0198c0de-0000-7000-8000-000000000000")]
    Why {
        /// Id of the task
        id: String,
    },
    /// Webhooks that are told of a task
    #[command(subcommand)]
    Push(PushCommand),
}

/// `towline task push …`
#[derive(Debug, Subcommand)]
pub enum PushCommand {
    /// Shows how the webhooks of a task fare: what each has taken, and what came of the last call
    #[command(after_help = "Example:\n  towline task push list 0198c0de-0000-7000-8000-000000000000")]
    List {
        /// Id of the task
        id: String,
    },
    /// Sets a webhook up: its receiver is posted each event of the task, from how the task stands on
    #[command(
        after_help = "Examples:\n  towline task push create ID --url https://receiver.example/hook\n  towline task push create ID --url https://receiver.example/hook --id audit --hook-bearer-file ./bearer"
    )]
    Create(PushCreateArgs),
    /// Takes a webhook away; one that is not there is no mistake
    #[command(after_help = "Example:\n  towline task push delete ID audit")]
    Delete {
        /// Id of the task
        id: String,
        /// Id of the webhook, as `towline task push list` shows it
        webhook: String,
    },
}

/// `towline task push create`
#[derive(Debug, Args)]
pub struct PushCreateArgs {
    /// Id of the task
    pub id: String,
    /// Where events are posted to
    #[arg(long, value_name = "URL")]
    pub url: String,
    /// The name of the webhook in its task; the same again changes it. Without it, one is made out of the rest
    #[arg(long = "id", value_name = "NAME")]
    pub name: Option<String>,
    /// A file with the token that each event brings, in the header X-A2A-Notification-Token
    #[arg(long, value_name = "FILE")]
    pub hook_token_file: Option<PathBuf>,
    /// A file with the token by which the receiver lets us in, sent as Authorization: Bearer
    #[arg(long, value_name = "FILE")]
    pub hook_bearer_file: Option<PathBuf>,
}

/// `towline task resolve`
#[derive(Debug, Args)]
pub struct ResolveArgs {
    /// Id of the task
    pub id: String,
    /// The step; may be left out when only one is in doubt
    #[arg(long, value_name = "N")]
    pub step: Option<u32>,
    /// What became of it
    #[arg(long = "as", value_enum)]
    pub verdict: VerdictArg,
    /// What the step came to, which `--as done` needs: the model goes on with it as with the answer of the tool
    #[arg(long, value_name = "TEXT", conflicts_with = "reason", required_if_eq("verdict", "done"))]
    pub result: Option<String>,
    /// Why it failed, for `--as failed`: the model is told
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// What a person says about a step in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum VerdictArg {
    /// It happened
    Done,
    /// It runs again, under the same key
    Retry,
    /// It did not happen
    Failed,
}

/// `towline task list`
#[derive(Debug, Args)]
pub struct TaskListArgs {
    /// Only tasks of this conversation
    #[arg(long, value_name = "ID")]
    pub context_id: Option<String>,
    /// Only tasks in this state, as in working, input-required, completed
    #[arg(long, value_name = "STATE", value_parser = task_state)]
    pub state: Option<towline_core::TaskState>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub limit: u32,
    /// Goes on where the last page ended
    #[arg(long, value_name = "TOKEN")]
    pub page_token: Option<String>,
}

/// `towline card …`
#[derive(Debug, Subcommand)]
pub enum CardCommand {
    /// Shows the card of the mesh, or of one agent
    #[command(after_help = "Examples:\n  towline card get\n  towline card get reader -o json")]
    Get {
        /// Name of the agent; without it, the mesh's own card
        agent: Option<String>,
    },
}

/// `towline agent …`
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Lists the agents and the nodes they are placed on
    #[command(after_help = "Example:\n  towline agent list")]
    List,
    /// Lets an agent on any A2A 1.0 server take part: it gets tasks like every agent of the mesh
    #[command(
        after_help = "Examples:\n  towline agent add echo --url http://127.0.0.1:9000\n  towline agent add legal --url https://a.legal.example --url https://b.legal.example --peer-token-secret LEGAL"
    )]
    Add(PeerAddArgs),
    /// Takes such an agent out again
    #[command(after_help = "Example:\n  towline agent remove echo")]
    Remove {
        /// Its name
        name: String,
    },
}

/// `towline peer …`
#[derive(Debug, Subcommand)]
pub enum PeerCommand {
    /// Makes an agent on any A2A 1.0 server known, on all nodes
    #[command(
        after_help = "Examples:\n  towline peer add legal --url https://legal.example --for surveyor --peer-token-secret LEGAL\n  towline peer add echo --url http://127.0.0.1:9000 --for surveyor"
    )]
    Add(PeerAddArgs),
    /// Lists those that were made known while the cluster runs
    #[command(after_help = "Example:\n  towline peer list")]
    List,
    /// Forgets one
    #[command(after_help = "Example:\n  towline peer remove legal")]
    Remove {
        /// Its name
        name: String,
    },
}

/// `towline peer add`, `towline agent add`
#[derive(Debug, Args)]
pub struct PeerAddArgs {
    /// The name that it gets here
    pub name: String,
    /// Where it is (http://, https:// or unix:///PATH); may be given again: the next one is dialled when the first does not
    /// answer
    #[arg(long, value_name = "URL", required = true)]
    pub url: Vec<String>,
    /// Name of the secret with its bearer token: an environment variable of each node, or a file in its folder of secrets
    #[arg(long, value_name = "NAME", conflicts_with = "peer_token_file")]
    pub peer_token_secret: Option<String>,
    /// File with its bearer token, at the same path on each node
    #[arg(long, value_name = "FILE")]
    pub peer_token_file: Option<PathBuf>,
    /// It takes the same message id twice as one message: then a message may be sent again
    #[arg(long)]
    pub idempotent: bool,
    /// An agent that may delegate to it; may be given again
    #[arg(long = "for", value_name = "AGENT")]
    pub for_agents: Vec<String>,
}

/// `towline sub …`
#[derive(Debug, Subcommand)]
pub enum SubCommand {
    /// Shows all of them, who looks after each, and how it goes
    #[command(after_help = "Examples:\n  towline sub list\n  towline sub list -o json")]
    List,
    /// Adds one, on all nodes, until it is removed; webhooks are in the configuration
    #[command(
        after_help = "Examples:\n  towline sub add inbox --agent triage --mcp-server fs --uri file:///data/inbox --prompt \"Triage what is new.\"\n  towline sub add low --agent buyer --mcp-server shop --uri stock://paper --filter \"json.sheets < 500\"\n  towline sub add nightly --agent digest --cron \"30 2 * * *\" --zone Europe/Berlin --missed once"
    )]
    Add(Box<SubAddArgs>),
    /// Takes one away that was added
    #[command(after_help = "Example:\n  towline sub remove inbox")]
    Remove {
        /// Its name
        name: String,
    },
    /// Has one start its task now, and shows the task's id
    #[command(after_help = "Example:\n  towline sub fire inbox")]
    Fire {
        /// Its name
        name: String,
    },
}

/// `towline sub add`
#[derive(Debug, Args)]
pub struct SubAddArgs {
    /// The name that it gets
    pub name: String,
    /// Who does the tasks
    #[arg(long, value_name = "AGENT")]
    pub agent: String,
    /// What the agent is told, before what happened
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Start no other task of it as long as one is open
    #[arg(long)]
    pub coalesce: bool,
    /// The MCP server of the resource that is watched
    #[arg(long, value_name = "SERVER", requires = "uri", conflicts_with_all = ["cron", "every", "at"])]
    pub mcp_server: Option<String>,
    /// The resource that is watched
    #[arg(long, value_name = "URI", requires = "mcp_server")]
    pub uri: Option<String>,
    /// Changes within this time are one
    #[arg(long, value_name = "DURATION", value_parser = crate::config::triggers::debounce, requires = "uri")]
    pub debounce: Option<std::time::Duration>,
    /// How often it is read where its server says nothing by itself
    #[arg(long, value_name = "DURATION", value_parser = crate::config::triggers::poll, requires = "uri")]
    pub poll: Option<std::time::Duration>,
    /// A condition in CEL over text, json, uri and window: what does not meet it starts nothing
    #[arg(long, value_name = "CEL", requires = "uri")]
    pub filter: Option<String>,
    /// How many earlier contents the condition sees
    #[arg(long, value_name = "N", requires = "filter")]
    pub window: Option<u32>,
    /// A line of a crontab
    #[arg(long, value_name = "FIELDS", conflicts_with_all = ["every", "at"])]
    pub cron: Option<String>,
    /// Its time zone, such as Europe/Berlin; UTC if there is none
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub zone: Option<String>,
    /// The time between two
    #[arg(long, value_name = "DURATION", value_parser = crate::config::duration, conflicts_with = "at")]
    pub every: Option<std::time::Duration>,
    /// One moment, as in 2027-01-01T07:30:00Z
    #[arg(long, value_name = "TIME", value_parser = crate::config::triggers::moment)]
    pub at: Option<towline_core::Timestamp>,
    /// What happens to times that nobody was there for: skip, once or all
    #[arg(long, value_name = "POLICY", conflicts_with = "uri")]
    pub missed: Option<String>,
}

/// `towline cluster …`
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Shows nodes, leader, quorum and disk
    #[command(after_help = "Example:\n  towline cluster status")]
    Status,
    /// Makes a token with which one node can join
    #[command(
        after_help = "Examples:\n  towline cluster join-token\n  towline cluster join-token --ttl 10m --role learner"
    )]
    JoinToken {
        /// How long it is good for
        #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = token_ttl)]
        ttl: std::time::Duration,
        /// Whether the node counts for the quorum
        #[arg(long, value_enum, default_value_t = RoleArg::Voter)]
        role: RoleArg,
    },
    /// Takes a node out of the cluster for good: its tasks go to others, and its certificate is worth nothing any more
    #[command(after_help = "Example:\n  towline cluster remove 12")]
    Remove {
        /// Id of the node, as `towline cluster status` shows it
        #[arg(value_name = "NODE", value_parser = node_id)]
        node: u64,
    },
    /// Makes a learner count for the quorum, as soon as it has caught up
    #[command(after_help = "Example:\n  towline cluster promote 12")]
    Promote {
        /// Id of the node, as `towline cluster status` shows it
        #[arg(value_name = "NODE", value_parser = node_id)]
        node: u64,
    },
    /// Makes a voter count for no quorum; it keeps the log and its tasks. A leader hands over first
    #[command(after_help = "Example:\n  towline cluster demote 12")]
    Demote {
        /// Id of the node, as `towline cluster status` shows it
        #[arg(value_name = "NODE", value_parser = node_id)]
        node: u64,
    },
    /// Gives a node no more tasks and moves those away that it runs, each at the end of a step
    #[command(
        after_help = "Examples:\n  towline cluster drain 12 --wait && systemctl stop towline     # on node 12\n  towline cluster drain 12 --wait --timeout 10m"
    )]
    Drain(DrainArgs),
    /// Gives a drained node tasks again
    #[command(after_help = "Example:\n  towline cluster undrain 12")]
    Undrain {
        /// Id of the node, as `towline cluster status` shows it
        #[arg(value_name = "NODE", value_parser = node_id)]
        node: u64,
    },
    /// Has the leader hand over to another voter
    #[command(after_help = "Examples:\n  towline cluster transfer-leader\n  towline cluster transfer-leader --to 12")]
    TransferLeader {
        /// Whom to; without it, the voter that is least behind
        #[arg(long, value_name = "NODE", value_parser = node_id)]
        to: Option<u64>,
    },
    /// Saves what the cluster holds in a file, or begins a new cluster with it
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
}

/// `towline cluster drain`
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Id of the node, as `towline cluster status` shows it
    #[arg(value_name = "NODE", value_parser = node_id)]
    pub node: u64,
    /// How long a step is waited for that another node would run again; one that must not run twice is never cut short, and holds the task there
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = crate::config::duration)]
    pub timeout: std::time::Duration,
    /// Shows how many tasks are left until none is (exit code 0), or the timeout is over (exit code 5)
    #[arg(long)]
    pub wait: bool,
}

/// `towline cluster snapshot …`
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Saves all tasks of the running cluster, as they are at this moment, in a new file
    #[command(after_help = "Example:\n  towline cluster snapshot save prod.towline")]
    Save {
        /// The file to make
        file: PathBuf,
    },
    /// Founds a new cluster in an empty data folder with the tasks of a saved file; those that ran go on
    #[command(
        after_help = "Examples:\n  towline cluster snapshot restore prod.towline --name prod\n  towline cluster snapshot restore prod.towline --name prod --dir /etc/towline"
    )]
    Restore {
        /// The file that `snapshot save` made
        file: PathBuf,
        /// The first node, as for `towline init`
        #[command(flatten)]
        node: InitArgs,
    },
}

/// `towline events`
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Shows what happened behind this index, which is the same on every node; without it, what the node still has, or
    /// with --follow what happens from now on
    #[arg(long, value_name = "INDEX")]
    pub after: Option<u64>,
    /// Goes on showing, and takes it up again at the next node when one goes away
    #[arg(short, long)]
    pub follow: bool,
    /// Only of this kind, as in task.status, or task for all about tasks; may be given again
    #[arg(long, value_name = "KIND")]
    pub kind: Vec<String>,
}

/// `towline mcp …`
#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// Lists the MCP servers of the node and their tools
    #[command(after_help = "Example:\n  towline mcp list")]
    List,
    /// Shows what a server says of itself: capabilities, instructions, tools, resources, prompts
    #[command(after_help = "Examples:\n  towline mcp inspect files\n  towline mcp inspect files -o json")]
    Inspect {
        /// Name of the server in the configuration
        #[arg(value_name = "SERVER")]
        mcp_server: String,
    },
    /// Calls one tool by hand; it is no task's call, and happens once
    #[command(after_help = "Example:\n  towline mcp call files read_file '{\"path\": \"notes.md\"}'")]
    Call {
        /// Name of the server in the configuration
        #[arg(value_name = "SERVER")]
        mcp_server: String,
        /// The tool, as the server names it
        tool: String,
        /// Its arguments, a JSON object
        #[arg(default_value = "{}")]
        arguments: String,
    },
    /// Reads one resource of a server
    #[command(after_help = "Example:\n  towline mcp read files file:///notes.md")]
    Read {
        /// Name of the server in the configuration
        #[arg(value_name = "SERVER")]
        mcp_server: String,
        /// URI of the resource
        uri: String,
    },
    /// Shows the prompts of a server, or has it make one
    #[command(after_help = "Examples:\n  towline mcp prompt files\n  towline mcp prompt files review path=notes.md")]
    Prompt {
        /// Name of the server in the configuration
        #[arg(value_name = "SERVER")]
        mcp_server: String,
        /// The prompt; all are listed if it is left out
        name: Option<String>,
        /// Its arguments
        #[arg(value_name = "NAME=VALUE")]
        arguments: Vec<String>,
    },
    /// Shows what a server says beside its answers: standard error, log messages, progress, announcements
    #[command(after_help = "Examples:\n  towline mcp tail files\n  towline mcp tail files --follow")]
    Tail {
        /// Name of the server in the configuration
        #[arg(value_name = "SERVER")]
        mcp_server: String,
        /// Goes on until it is interrupted
        #[arg(short, long)]
        follow: bool,
    },
    /// Agrees to the tools of a server as they are now, after they have changed
    #[command(after_help = "Example:\n  towline mcp accept files")]
    Accept {
        /// Name of the server in the configuration
        #[arg(value_name = "SERVER")]
        mcp_server: String,
    },
    /// Lets the node use a server that wants OAuth: prints the address where a person logs in
    #[command(after_help = "Examples:\n  towline mcp login tickets\n  towline mcp login tickets --device")]
    Login {
        /// Name of the server in the configuration
        #[arg(value_name = "SERVER")]
        mcp_server: String,
        /// With a code that is typed in on any machine
        #[arg(long)]
        device: bool,
        /// Port of this machine to which the browser comes back, where the client was registered with one
        #[arg(long, default_value_t = 0, conflicts_with = "device")]
        port: u16,
    },
    /// Serves the mesh over MCP on standard input and output, through a running node
    #[command(after_help = "Examples:\n  towline mcp serve\n  towline mcp serve --server https://mesh.example.org")]
    Serve,
}

/// `towline auth …`
#[derive(Debug, Subcommand)]
pub enum AuthCommand {
    /// Signs in: shows a code that an operator approves, and keeps the session for further commands
    #[command(
        after_help = "Examples:\n  towline auth login --server https://mesh.example.org\n  towline auth login --operator"
    )]
    Login(LoginArgs),
    /// Signs out: ends the session of this user and forgets it
    #[command(after_help = "Example:\n  towline auth logout")]
    Logout,
    /// Says who you are to the node: name, role, labels, by what you are known, until when, and what you may
    #[command(after_help = "Examples:\n  towline auth whoami\n  towline auth whoami -o json")]
    Whoami,
    /// Lists who is signed in
    #[command(after_help = "Examples:\n  towline auth sessions\n  towline auth sessions -o json")]
    Sessions,
    /// Ends sessions: their streams close and their requests are refused, on every node
    #[command(
        after_help = "Examples:\n  towline auth revoke ds_1f0c9a2b7d3e4f56\n  towline auth revoke --name ada\n  towline auth revoke --all"
    )]
    Revoke(RevokeArgs),
    /// Devices that ask to be let in
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Reads a token from standard input and prints the hash that a rule in auth.principals names
    #[command(after_help = "Example:\n  openssl rand -hex 32 | tee ci.token | towline auth hash")]
    Hash,
}

/// `towline auth login`
#[derive(Debug, Args)]
pub struct LoginArgs {
    /// Asks to be an operator; it is so only if the configuration allows it and the approver says so too
    #[arg(long)]
    pub operator: bool,
    /// What the operator is shown as the client; without it, the program and the user of this machine
    #[arg(long, value_name = "TEXT")]
    pub client: Option<String>,
}

/// `towline auth revoke`
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct RevokeArgs {
    /// Id of the session, as `towline auth sessions` shows it
    pub session: Option<String>,
    /// All sessions of this name, and what is approved under it and not yet begun
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// All sessions of everybody
    #[arg(long)]
    pub all: bool,
}

/// `towline auth device …`
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Lists the devices that ask
    #[command(after_help = "Example:\n  towline auth device pending")]
    Pending,
    /// Lets in who showed you the code, under a name: everybody let in under one name is one person
    #[command(
        after_help = "Examples:\n  towline auth device approve BCDF-GHJK --as ada\n  towline auth device approve BCDF-GHJK --as ada --role operator"
    )]
    Approve {
        /// The code that the person showed you
        code: String,
        /// Who that is
        #[arg(long = "as", value_name = "NAME")]
        name: String,
        /// What the session may do, at most what was asked for; user if you say nothing
        #[arg(long, value_enum)]
        role: Option<PersonRole>,
    },
    /// Lets nobody in under the code
    #[command(after_help = "Example:\n  towline auth device deny BCDF-GHJK")]
    Deny {
        /// The code
        code: String,
    },
}

/// What a person may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PersonRole {
    /// Talks to agents and manages its own tasks
    User,
    /// Everything
    Operator,
}

impl PersonRole {
    /// As the operator API writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            PersonRole::User => "user",
            PersonRole::Operator => "operator",
        }
    }
}

/// `towline context …`
#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// Has further commands go to a cluster
    #[command(
        after_help = "Examples:\n  towline context use https://mesh.example.org\n  towline context use mesh.example.org     # by its name"
    )]
    Use {
        /// Name of a context, or the URL of a node
        #[arg(value_name = "NAME|URL")]
        context: String,
    },
    /// Lists the contexts and who you are there
    #[command(after_help = "Example:\n  towline context list")]
    List,
    /// Forgets a cluster, and the session there; `towline auth logout` ends that first
    #[command(after_help = "Example:\n  towline context remove mesh.example.org")]
    Remove {
        /// Name of the context, or the URL of a node of it
        #[arg(value_name = "NAME|URL")]
        context: String,
    },
}

/// `towline validate`
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// The configuration file
    pub file: PathBuf,
    /// Puts VALUE over the setting PATH, as `towline node` does
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = path_and_value)]
    pub set: Vec<(String, String)>,
}

/// `towline completion`
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Role of a joining node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum RoleArg {
    /// Counts for the quorum
    Voter,
    /// Holds the log and runs agents, and does not count
    Learner,
    /// Runs agents and keeps no log: there may be hundreds
    Worker,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    // Chosen once for the whole process: TLS, gRPC and HTTP all take it from here.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider was installed before");
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors: clap knows the stream and the code of each.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let mut output = Output::of_process(cli.global.output);
    match commands::run(cli, &mut output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(text) = error.report() {
                output.note(format!("towline: {text}"));
            }
            error.exit_code()
        }
    }
}

fn path_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((path, value)) if !path.is_empty() => Ok((path.to_owned(), value.to_owned())),
        _ => Err("write PATH=VALUE, as in node.listen.http=127.0.0.1:7520".to_owned()),
    }
}

/// Who needs a token later makes one later.
fn token_ttl(text: &str) -> Result<std::time::Duration, String> {
    let ttl = crate::config::duration(text)?;
    if ttl.is_zero() || ttl > crate::api::MAX_TOKEN_TTL {
        return Err(format!(
            "a token is good for {} days at most: write 30m, 1h or 168h",
            crate::api::MAX_TOKEN_TTL.as_secs() / 86_400
        ));
    }
    Ok(ttl)
}

fn peer_address(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains('/')).map(|(_, port)| port);
    match port.and_then(|port| port.parse::<u16>().ok()) {
        Some(_) => Ok(text.to_owned()),
        None => {
            Err("write HOST:PORT of a member's peer listener, as `towline cluster join-token` prints it".to_owned())
        }
    }
}

fn node_id(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write the number that `towline cluster status` shows for the node, as in 12".to_owned())
}

fn task_state(text: &str) -> Result<towline_core::TaskState, String> {
    let wanted = text.to_lowercase().replace('_', "-");
    let wanted = wanted.strip_prefix("task-state-").unwrap_or(&wanted);
    let found = commands::STATES.iter().find(|(_, word)| *word == wanted);
    found.map(|(state, _)| *state).ok_or_else(|| {
        let words: Vec<&str> = commands::STATES.iter().map(|(_, word)| *word).collect();
        format!("states are {}", words.join(", "))
    })
}

#[cfg(test)]
mod manual;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example_in_its_help() {
        fn check(command: &clap::Command) {
            if command.get_subcommands().next().is_none() && command.get_name() != "help" {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Example"), "{}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn a_wrong_command_line_is_usage() {
        for args in [
            &["towline", "send"][..],
            &["towline", "send", "a", "x", "--async", "--wait"],
            &["towline", "node", "--set", "x"],
            &["towline", "nope"],
            &["towline", "cluster", "promote", "b"],
            &["towline", "send", "a", "x", "--max-steps", "0"],
            &["towline", "send", "a", "x", "--max-steps", "4097"],
        ] {
            let error = Cli::try_parse_from(args).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{args:?}");
        }
    }

    #[test]
    fn a_state_is_taken_in_any_spelling() {
        for text in ["input-required", "INPUT_REQUIRED", "TASK_STATE_INPUT_REQUIRED"] {
            assert_eq!(task_state(text), Ok(towline_core::TaskState::InputRequired), "{text}");
        }
        assert!(task_state("done").unwrap_err().contains("completed"));
    }
}
