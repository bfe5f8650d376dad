//! The commands, one file each. All but `node` are clients: they speak A2A and the operator API to a running node.

mod agent;
mod auth;
mod card;
pub(crate) mod client;
mod cluster;
mod completion;
mod context;
mod contexts;
mod doctor;
mod events;
mod follow;
mod init;
mod log;
mod mcp;
mod mcp_login;
mod members;
mod node;
mod peer;
mod push;
mod send;
mod sign_in;
mod snapshot;
mod sub;
mod task;
mod validate;
mod whoami;

use towline_core::TaskState;

use crate::{
    bench::BenchError,
    cli::{AuthCommand, Cli, Command, Global},
    demo::{Console, DemoError},
    error::CliError,
    output::Output,
};

use client::Client;

/// The states of a task and the word for each on the command line.
pub(crate) const STATES: [(TaskState, &str); 8] = [
    (TaskState::Submitted, "submitted"),
    (TaskState::Working, "working"),
    (TaskState::InputRequired, "input-required"),
    (TaskState::AuthRequired, "auth-required"),
    (TaskState::Completed, "completed"),
    (TaskState::Failed, "failed"),
    (TaskState::Canceled, "canceled"),
    (TaskState::Rejected, "rejected"),
];

/// The word for a state.
pub(crate) fn state_word(state: TaskState) -> &'static str {
    STATES.iter().find(|(known, _)| *known == state).map_or("unknown", |(_, word)| word)
}

/// Runs one command.
///
/// # Errors
/// When it did not do its job; the error has the exit code.
#[expect(clippy::wildcard_enum_match_arm, reason = "all others run in the async runtime, where each has its arm")]
pub fn run(cli: Cli, output: &mut Output) -> Result<(), CliError> {
    match cli.command {
        Command::Node(args) => node::run(args, output),
        Command::Init(args) => init::run(&args, output),
        Command::Validate(args) => validate::run(&args, output),
        Command::Completion(args) => completion::run(&args, output),
        Command::Context(command) => context::run(command, cli.global.ca_file.as_deref(), output),
        Command::Auth(AuthCommand::Hash) => auth::hash(output),
        command => runtime(&command)?.block_on(run_async(command, &cli.global, output)),
    }
}

/// What puts load on nodes takes all cores; what waits for a node needs no second thread.
fn runtime(command: &Command) -> Result<tokio::runtime::Runtime, CliError> {
    let mut builder = if matches!(command, Command::Bench(_) | Command::Demo(_) | Command::Dev(_)) {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    builder.enable_all().build().map_err(|error| CliError::Other(format!("start the async runtime: {error}")))
}

async fn run_async(command: Command, global: &Global, output: &mut Output) -> Result<(), CliError> {
    match command {
        Command::Demo(args) => crate::demo::run(args, console(output)).await.map_err(demo_error),
        Command::Dev(args) => crate::dev::run(args, console(output)).await.map_err(demo_error),
        Command::Bench(command) => crate::bench::run(command, output).await.map_err(bench_error),
        Command::McpFiles(args) => crate::mcp_files::run(args).await.map_err(CliError::other),
        Command::Send(args) => send::run(args, &client(global).await?, output).await,
        Command::Task(command) => task::run(command, &client(global).await?, output).await,
        Command::Card(command) => card::run(command, &client(global).await?, output).await,
        Command::Agent(command) => agent::run(command, &client(global).await?, output).await,
        Command::Peer(command) => peer::run(command, &client(global).await?, output).await,
        Command::Cluster(command) => cluster::run(command, &client(global).await?, output).await,
        Command::Sub(command) => sub::run(command, &client(global).await?, output).await,
        Command::Events(args) => events::run(args, &client(global).await?, output).await,
        Command::Log(command) => log::run(command, &client(global).await?, output).await,
        Command::Mcp(command) => mcp::run(&command, &client(global).await?, output).await,
        Command::A2e => crate::a2e::stdio::serve(&client(global).await?).await,
        Command::Doctor(args) => doctor::run(args, global, output).await,
        Command::BugReport(args) => doctor::bug_report(args, global, output).await,
        Command::Auth(command) => sign_in::run(command, &client(global).await?, output).await,
        Command::Node(_) | Command::Init(_) | Command::Validate(_) | Command::Completion(_) | Command::Context(_) => {
            unreachable!("run takes the commands that need no runtime of ours")
        }
    }
}

async fn client(global: &Global) -> Result<Client, CliError> {
    Ok(Client::new(global)?.passing_over_who_hangs().await)
}

fn console(output: &Output) -> Console {
    Console::new(Box::new(std::io::stdout()), Box::new(std::io::stderr()), output.is_json())
}

fn bench_error(error: BenchError) -> CliError {
    let text = crate::error::chain(&error);
    if matches!(error, BenchError::Option { .. } | BenchError::TooMany { .. }) {
        CliError::Usage(text)
    } else {
        CliError::Other(text)
    }
}

fn demo_error(error: DemoError) -> CliError {
    CliError::Demo { code: error.exit_code(), message: crate::error::chain(&error) }
}
