//! Content that is too large for the log, at the edge: the large parts of a message are kept before it is proposed, and what
//! an answer names is put in its place, as content up to 1 MiB and as a link above.

use std::sync::Arc;

use http::Uri;
use towline_a2a::{
    WireError,
    convert::{Answer, Field},
};
use towline_cluster::{BlobError, ClusterHandle};
use towline_core::{
    AgentName, Blob, BlobForm, BlobHash, Command, Content, Message, Principal, Rejection, State, TaskId,
    limits::{MAX_INLINE_BYTES, MAX_SHOWN_BLOB_BYTES},
};

use super::{A2aSettings, handler::unavailable};

/// Where blobs are read and uploaded.
pub(super) const PATH: &str = towline_a2a::BLOB_PATH;

/// Keeps the large parts of what a command says, and finds the uploads that it links to.
pub(super) async fn keep(settings: &A2aSettings, by: &Principal, command: &mut Command) -> Result<(), WireError> {
    let is_answer = matches!(command, Command::Continue { .. });
    let place = if let Command::Submit(submission) = command {
        Place::Agent(submission.agent.clone())
    } else if let Command::Continue { task, .. } | Command::IfGeneration { task, .. } = command {
        Place::Task(*task)
    } else {
        return Ok(());
    };
    let Some(message) = command.message_mut() else { return Ok(()) };
    find_uploads(settings, by, message).await?;
    if message.size() > MAX_INLINE_BYTES {
        check_place(settings, by, place).await?;
    }
    let kept = if is_answer {
        keep_answer(&settings.cluster, message).await
    } else {
        settings.cluster.keep_message(message).await
    };
    kept.map_err(not_kept)
}

/// Where a message goes.
enum Place {
    Agent(AgentName),
    Task(TaskId),
}

/// Refuses a large message that would be refused anyway, before its content is on the disks of a majority.
async fn check_place(settings: &A2aSettings, by: &Principal, place: Place) -> Result<(), WireError> {
    let refused = |state: &State| match &place {
        Place::Agent(agent) if state.agent(agent).is_none() => {
            let known = state.agents().map(|agent| agent.spec.name.clone()).collect();
            Some(Rejection::UnknownAgent { agent: agent.clone(), known })
        }
        Place::Task(task) if state.record_for(by, *task).is_none() => Some(Rejection::UnknownTask { task: *task }),
        Place::Agent(_) | Place::Task(_) => None,
    };
    match settings.cluster.read(refused).await.map_err(unavailable)? {
        Some(rejection) => Err(rejection.into()),
        None => Ok(()),
    }
}

/// The text of an answer stays in the log: the core reads it to settle what was asked.
async fn keep_answer(cluster: &ClusterHandle, message: &mut Message) -> Result<(), BlobError> {
    let is_text = |content: &Content| matches!(content, Content::Text(_));
    let texts: Vec<(usize, Content)> = message
        .parts
        .iter_mut()
        .enumerate()
        .filter(|(_, part)| is_text(&part.content))
        .map(|(at, part)| (at, std::mem::replace(&mut part.content, Content::Text(String::new()))))
        .collect();
    let kept = cluster.keep_message(message).await;
    for (at, text) in texts {
        message.parts[at].content = text;
    }
    kept
}

/// Puts what was uploaded in the place of links to it. Who did not upload it is told the same as if nobody had.
async fn find_uploads(settings: &A2aSettings, by: &Principal, message: &mut Message) -> Result<(), WireError> {
    let linked: Vec<(usize, BlobHash)> = message
        .parts
        .iter()
        .enumerate()
        .filter_map(|(at, part)| match &part.content {
            Content::Url(url) => upload_in(settings, url).map(|hash| (at, hash)),
            Content::Text(_) | Content::Raw(_) | Content::Data(_) | Content::Blob(_) => None,
        })
        .collect();
    if linked.is_empty() {
        return Ok(());
    }
    let look = |state: &towline_core::State| linked.iter().map(|(_, hash)| state.upload(by, *hash)).collect::<Vec<_>>();
    let found = settings.cluster.read(look).await.map_err(unavailable)?;
    for ((at, hash), length) in linked.into_iter().zip(found) {
        let field =
            || Field::new(format!("message.parts[{at}].url"), "names no upload of yours: POST it to /blobs first");
        let length = length.ok_or_else(field)?;
        settings.cluster.hold_content(hash, length).await.map_err(not_kept)?;
        message.parts[at].content = Content::Blob(Blob { hash, length, form: BlobForm::Raw });
    }
    Ok(())
}

/// The upload that a link leads to, if it leads to a node of this cluster.
fn upload_in(settings: &A2aSettings, url: &str) -> Option<BlobHash> {
    let (base, hash) = url.rsplit_once('/')?;
    let base = base.strip_suffix(PATH)?;
    let hash = hash.parse().ok()?;
    let is_node = |base: &str| {
        settings.cluster.local(|state| state.nodes().any(|node| node.addresses.http.trim_end_matches('/') == base))
    };
    let is_ours = base == settings.public_url || is_loopback(base) || is_node(base);
    is_ours.then_some(hash)
}

/// The operator reaches a node under names that it does not know of.
fn is_loopback(base: &str) -> bool {
    let host = base.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
    host.is_some_and(|host| super::principal::is_loopback_name(host.trim_matches(['[', ']'])))
}

/// Puts what an answer names in its place.
pub(super) async fn show(settings: &A2aSettings, answer: &mut Answer) -> Result<(), WireError> {
    let mut shown = Vec::new();
    for (task, part) in answer.parts_mut() {
        match part.blob() {
            None => {}
            Some(blob) if blob.length <= MAX_SHOWN_BLOB_BYTES => shown.push(part),
            Some(blob) => part.content = Content::Url(towline_a2a::blob_link(&settings.public_url, task, blob.hash)),
        }
    }
    settings.cluster.show_parts(shown, MAX_SHOWN_BLOB_BYTES).await.map_err(not_shown)
}

/// [`show`], and the answer as it goes over the wire.
pub(super) async fn shown(settings: &Arc<A2aSettings>, mut answer: Answer) -> Result<serde_json::Value, WireError> {
    show(settings, &mut answer).await?;
    answer.encode()
}

fn not_kept(error: BlobError) -> WireError {
    if let BlobError::TooLarge { limit } = error {
        return Rejection::TooLarge { what: "content of one part in bytes".to_owned(), limit }.into();
    }
    WireError::unavailable(chain(&error))
}

fn not_shown(error: BlobError) -> WireError {
    WireError::unavailable(chain(&error))
}

fn chain(error: &BlobError) -> String {
    crate::error::chain(error)
}
