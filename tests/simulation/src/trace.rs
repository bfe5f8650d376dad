//! The log of a run: what nodes and the world say, by the time of the world.

use std::{fmt, fs::File, io, path::Path, sync::Mutex};

use tracing_subscriber::{
    EnvFilter,
    fmt::{format::Writer, time::FormatTime},
};

use crate::world;

/// What goes into the log.
const LOGGED: &str =
    "info,towline_cluster=debug,towline_simulation=debug,openraft=warn,h2=off,hyper=off,tonic=off,tower=off";

/// Has everything logged to a file from here on, or nowhere.
///
/// # Errors
/// When the file cannot be made.
pub fn begin(path: Option<&Path>) -> io::Result<()> {
    // The same is done without a file, since it draws hash keys as it goes.
    let file: Box<dyn io::Write + Send> = match path {
        Some(path) => {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            Box::new(io::LineWriter::new(File::create(path)?))
        }
        None => Box::new(io::sink()),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_timer(WorldTime)
        .with_env_filter(EnvFilter::new(LOGGED))
        .with_writer(Mutex::new(file))
        .finish();
    tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)
}

/// The time of the world, and the node that speaks.
struct WorldTime;

impl FormatTime for WorldTime {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        let node = world::current().map_or_else(|| "world".to_owned(), |node| format!("node {}", node + 1));
        write!(w, "{:>9.3} {node}", world::now().as_secs_f64())
    }
}
