//! `towline cluster snapshot save`: a running cluster in one file, which is there whole and checked or not at all.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::Duration,
};

use towline_cluster::archive;

use super::client::Client;
use crate::{
    error::{CliError, chain},
    output::Output,
};

/// What the file is called until it is whole.
const UNFINISHED: &str = "unfinished";
/// The node makes the file while it is read, so a pause as long as this means that it is gone.
const PAUSE: Duration = Duration::from_secs(30);

pub(crate) async fn save(file: &Path, client: &Client, output: &mut Output) -> Result<(), CliError> {
    if file.exists() {
        return Err(CliError::Usage(format!("{} is there: name a new file", file.display())));
    }
    let answer = client.download("/api/v1/cluster/snapshot").await?;
    let unfinished = file.with_added_extension(UNFINISHED);
    let saved = receive(answer, &unfinished, client.server()).await.and_then(|()| {
        let summary = archive::check(&unfinished).map_err(|error| not_saved(file, &chain(&error)))?;
        publish(&unfinished, file).map_err(|error| not_saved(file, &error.to_string()))?;
        Ok(summary)
    });
    let summary = match saved {
        Ok(summary) => summary,
        Err(error) => {
            // What is left of it is of no use to anybody.
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
    };
    if output.is_json() {
        return Ok(output.json(&summary)?);
    }
    output.note(format!("saved {} tasks, up to entry {}, and checked the file", summary.tasks, summary.index));
    Ok(output.line(file.display())?)
}

async fn receive(mut answer: reqwest::Response, into: &Path, server: &str) -> Result<(), CliError> {
    let failed = |error: io::Error| not_saved(into, &error.to_string());
    // It holds all messages, so it is for its owner alone.
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(into).map_err(failed)?;
    loop {
        let chunk = tokio::time::timeout(PAUSE, answer.chunk()).await;
        let chunk = chunk.map_err(|_| CliError::Timeout(format!("{server} stopped sending the snapshot")))?;
        match chunk {
            Ok(Some(bytes)) => file.write_all(&bytes).map_err(failed)?,
            Ok(None) => return file.sync_all().map_err(failed),
            Err(error) => {
                return Err(CliError::Unreachable(format!("{server} broke off the snapshot: {}", chain(&error))));
            }
        }
    }
}

/// Gives the file its name. The name is taken only if nobody else has made it meanwhile.
fn publish(unfinished: &Path, file: &Path) -> io::Result<()> {
    fs::hard_link(unfinished, file)?;
    fs::remove_file(unfinished)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn not_saved(file: &Path, reason: &str) -> CliError {
    CliError::Other(format!("save the snapshot in {}: {reason}", file.display()))
}
