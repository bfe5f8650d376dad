//! `towline mcp-files`: a read-only file server over MCP.
//!
//! It shows one folder and nothing outside of it, whichever way a path is spelled, and it never writes. What it refuses,
//! it refuses with an `isError` result that says why, so that a model can read it. Its log goes to standard error:
//! standard output belongs to the protocol.

mod attach;
mod folder;
mod server;
mod text;
mod transport;

use clap::Args;
use std::{io, net::SocketAddr, path::PathBuf};

pub(crate) use transport::{Output, input, output};

use folder::Folder;
use server::FileServer;

/// `towline mcp-files`
#[derive(Debug, Clone, Args)]
pub struct McpFilesArgs {
    /// The folder to show
    pub dir: PathBuf,
    /// Serve Streamable HTTP at this loopback address instead of standard input and output
    #[arg(long, value_name = "ADDR")]
    pub http: Option<SocketAddr>,
}

/// Names a collector: the server's spans go there, below those of its callers.
const COLLECTOR: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// Why the file server could not run.
#[derive(Debug, thiserror::Error)]
pub enum McpFilesError {
    /// The log or the traces could not be started.
    #[error("start log and traces of the file server: {0}")]
    Telemetry(String),
    /// The folder cannot be shown.
    #[error("open the folder {}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Nothing but this machine may see the files.
    #[error("serve files at {0}: only a loopback address is allowed, since nobody is asked for credentials")]
    NotLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("listen on {address} (--http)")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Standard input or output cannot be used.
    #[error("use standard input and output")]
    Stdio(#[source] io::Error),
    /// The protocol broke down.
    #[error("serve MCP: {0}")]
    Serve(String),
}

/// Serves until the client is gone, or, over HTTP, until the process is told to stop.
///
/// # Errors
/// When the folder cannot be read, or the transport cannot be set up.
pub async fn run(args: McpFilesArgs) -> Result<(), McpFilesError> {
    let _flushes_when_dropped = start_telemetry()?;
    let folder = Folder::open(&args.dir).map_err(|source| McpFilesError::Folder { path: args.dir.clone(), source })?;
    let server = FileServer::new(folder);
    match args.http {
        Some(address) => transport::serve_http(server, address).await,
        None => transport::serve_stdio(server).await,
    }
}

fn start_telemetry() -> Result<Option<towline_trace::Guard>, McpFilesError> {
    crate::telemetry::start_logs().map_err(|error| McpFilesError::Telemetry(error.to_string()))?;
    if std::env::var_os(COLLECTOR).is_none() {
        return Ok(None);
    }
    let settings =
        towline_trace::Settings { service_name: "towline-mcp-files".to_owned(), ..towline_trace::Settings::default() };
    towline_trace::install(settings).map(Some).map_err(|error| McpFilesError::Telemetry(error.to_string()))
}

#[cfg(test)]
mod tests;
