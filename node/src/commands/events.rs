//! `towline events`

use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;

use super::client::Client;
use crate::{cli::EventsArgs, error::CliError, output::Output};

/// Tries in a row that bring no event before a broken stream is given up: with the pauses some 20 s, more than the restart
/// of a node takes.
const MAX_TRIES: u32 = 20;

/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest silence of a stream: it shows that it is alive every 15 s.
const SILENCE: Duration = Duration::from_secs(45);

/// Longest line that is read: an entry of some hundred events is far below.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

pub(crate) async fn run(args: EventsArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let kinds = args.kind.join(",");
    if args.follow {
        follow(args.after, &kinds, client, output).await
    } else {
        list(args.after, &kinds, client, output).await
    }
}

/// The path that asks for events behind an index.
fn path(after: Option<u64>, kinds: &str, follow: bool) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    if let Some(after) = after {
        query.append_pair("after", &after.to_string());
    }
    if !kinds.is_empty() {
        query.append_pair("kinds", kinds);
    }
    if follow {
        query.append_pair("follow", "true");
    }
    format!("/api/v1/events?{}", query.finish())
}

/// Everything that there is, page by page.
async fn list(mut after: Option<u64>, kinds: &str, client: &Client, output: &mut Output) -> Result<(), CliError> {
    loop {
        let page = client.get(&path(after, kinds, false)).await?;
        let entries = page["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
        entries.iter().try_for_each(|entry| show(entry, output))?;
        let Some(last) = page["last"].as_u64().filter(|_| !entries.is_empty()) else {
            output.note(format!("go on with --after {}", page["last"]));
            return Ok(());
        };
        after = Some(last);
    }
}

/// One line for each event; in JSON one for each entry.
fn show(entry: &Value, output: &mut Output) -> Result<(), CliError> {
    let events = entry["events"].as_array().map(Vec::as_slice).unwrap_or_default();
    if events.is_empty() {
        return Ok(());
    }
    if output.is_json() {
        return Ok(output.json_line(entry)?);
    }
    let at = entry["at"].as_str().unwrap_or("-");
    let index = entry["index"].to_string();
    events.iter().try_for_each(|event| Ok(output.line(format!("{index:>8}  {at}  {}", line(event)))?))
}

fn line(event: &Value) -> String {
    let kind = event["kind"].as_str().unwrap_or("-");
    let facts =
        event.as_object().into_iter().flatten().filter(|(name, _)| !["kind", "contextId"].contains(&name.as_str()));
    let facts: Vec<String> = facts
        .map(|(name, value)| format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
        .collect();
    format!("{kind:<16} {}", facts.join(" "))
}

/// Why a stream ended.
enum End {
    /// It broke, or its node stops.
    Broke(String),
    /// The node will not go on.
    Closed(String),
}

async fn follow(after: Option<u64>, kinds: &str, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let mut place = after;
    let (mut tries, mut was_open) = (0, false);
    loop {
        let before = place;
        let end = match client.download(&path(place, kinds, true)).await {
            Ok(answer) => {
                was_open = true;
                read(answer, &mut place, output).await?
            }
            Err(error @ (CliError::Unreachable(_) | CliError::Unavailable(_) | CliError::Timeout(_)))
                if was_open && tries < MAX_TRIES =>
            {
                End::Broke(error.report().unwrap_or_default())
            }
            Err(error) => return Err(error),
        };
        let reason = match end {
            End::Closed(reason) => return Err(CliError::Other(reason)),
            End::Broke(reason) => reason,
        };
        tries = if place == before { tries + 1 } else { 0 };
        if tries > MAX_TRIES {
            return Err(CliError::Unreachable(format!(
                "stream broke and {MAX_TRIES} tries to take it up failed: {reason}"
            )));
        }
        let from = place.map_or_else(String::new, |place| format!(" behind {place}"));
        output.note(format!("stream broke ({reason}); taking it up again{from}"));
        tokio::time::sleep(PAUSE).await;
    }
}

/// Shows a stream until it ends; `place` is where it stands.
async fn read(answer: reqwest::Response, place: &mut Option<u64>, output: &mut Output) -> Result<End, CliError> {
    let mut pieces = answer.bytes_stream();
    let mut buffer = Vec::new();
    loop {
        let piece = match tokio::time::timeout(SILENCE, pieces.next()).await {
            Err(_) => return Ok(End::Broke(format!("silent for {SILENCE:?}"))),
            Ok(None) => return Ok(End::Broke("ended".to_owned())),
            Ok(Some(Err(error))) => return Ok(End::Broke(crate::error::chain(&error))),
            Ok(Some(Ok(piece))) => piece,
        };
        buffer.extend_from_slice(&piece);
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let Some(data) = line.strip_prefix(b"data: ") else { continue };
            let entry: Value = serde_json::from_slice(data).map_err(CliError::other)?;
            if let Some(message) = entry.pointer("/closed/message") {
                return Ok(End::Closed(message.as_str().unwrap_or("closed").to_owned()));
            }
            show(&entry, output)?;
            // Of an entry in pieces, only the last is a place to go on from.
            if entry.get("more").is_none() {
                *place = entry["index"].as_u64().or(*place);
            }
        }
        if buffer.len() > MAX_LINE_BYTES {
            return Err(CliError::Other("the node sends a line without an end".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_one_line_that_can_be_searched() {
        let event = json!({ "kind": "task.status", "task": "t", "contextId": "c", "state": "TASK_STATE_WORKING", "generation": 2 });
        assert_eq!(line(&event), "task.status      task=t state=TASK_STATE_WORKING generation=2");
    }

    #[test]
    fn a_question_for_events_says_from_where_on_and_of_what_kind() {
        assert_eq!(path(None, "", false), "/api/v1/events?");
        assert_eq!(path(Some(7), "task,node.up", true), "/api/v1/events?after=7&kinds=task%2Cnode.up&follow=true");
    }
}
