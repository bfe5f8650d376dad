//! Follows a stream of events to its end and shows it; takes it up again where it broke.

use std::{collections::BTreeSet, time::Duration};

use futures::StreamExt;
use serde_json::Value;
use towline_a2a::{A2aClient, ClientError, EventStream, StreamEvent, StreamItem};
use towline_core::{Content, Part, TaskState, TraceContext};

use super::{
    client::{call_failed, first_reached},
    state_word, task,
};
use crate::{error::CliError, output::Output};

/// Tries in a row that bring no event before a broken stream is given up: with the pauses some 20 s, more than an
/// adoption and an election take.
const MAX_TRIES: u32 = 10;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// What a stream is about, and how far it was seen.
pub(crate) struct Follow<'a> {
    /// The same endpoint on each node; a broken stream goes on at the next.
    pub endpoints: &'a [A2aClient],
    pub trace: Option<TraceContext>,
    /// The task, as soon as it is known.
    pub task: Option<String>,
    /// The last event that was seen.
    pub last: Option<u64>,
    /// Whether events are shown as they come, or the task as it ends.
    pub shows_events: bool,
    /// The agent, for the sentence that says how to answer it.
    pub agent: Option<String>,
}

impl<'a> Follow<'a> {
    pub(crate) fn new(endpoints: &'a [A2aClient], trace: Option<TraceContext>) -> Self {
        Self { endpoints, trace, task: None, last: None, shows_events: true, agent: None }
    }

    /// Shows `first` until the task ends or asks, and what follows when it breaks; `again` opens it anew while the task is
    /// not known. A stream that cannot be opened at all, at none of the endpoints, is an error at once.
    pub(crate) async fn until_the_end(
        &mut self,
        first: Result<EventStream, ClientError>,
        mut again: impl AsyncFnMut(&A2aClient) -> Result<EventStream, ClientError>,
        output: &mut Output,
    ) -> Result<(), CliError> {
        let mut view = View { agent: self.agent.clone(), ..View::default() };
        let mut stream = first;
        let (mut tries, mut was_open) = (0_u32, false);
        loop {
            let broke = match stream {
                Ok(mut events) => {
                    was_open = true;
                    let (end, progress) = self.show(&mut events, &mut view, output).await?;
                    tries = if progress { 0 } else { tries };
                    match end {
                        End::Done(message) if !self.shows_events => return self.show_end(message, output).await,
                        End::Done(_) => return Ok(view.close(output)?),
                        End::Broke(error) => Some(error),
                        End::Closed => None,
                    }
                }
                Err(error) if error.is_transient() && (was_open || self.others_left(tries)) => Some(error),
                Err(error) => return Err(call_failed(&error)),
            };
            tries += 1;
            if tries > MAX_TRIES {
                return Err(self.given_up(broke));
            }
            let endpoint = &self.endpoints[tries as usize % self.endpoints.len()];
            let reason = reason(broke.as_ref());
            output.note(format!("stream broke ({reason}); taking it up again {}, try {tries}", self.place()));
            tokio::time::sleep((FIRST_PAUSE * 2_u32.pow(tries.min(5))).min(LONGEST_PAUSE)).await;
            stream = match &self.task {
                Some(task) => endpoint.subscribe(task, self.last, self.trace.as_ref()).await,
                None => again(endpoint).await,
            };
        }
    }

    /// Whether there is an endpoint that was not tried yet.
    fn others_left(&self, tries: u32) -> bool {
        (tries as usize) + 1 < self.endpoints.len()
    }

    fn place(&self) -> String {
        self.last.map_or_else(|| "from the start".to_owned(), |event| format!("after event {event}"))
    }

    fn given_up(&self, broke: Option<ClientError>) -> CliError {
        let task = self.task.as_ref();
        let hint = task.map_or_else(String::new, |task| format!("; the task goes on: `towline task subscribe {task}`"));
        let reason = reason(broke.as_ref());
        let text = format!("stream broke and {MAX_TRIES} tries to take it up failed: {reason}{hint}");
        let is_unavailable = broke.is_some_and(|error| error.is_unavailable());
        if is_unavailable { CliError::Unavailable(text) } else { CliError::Unreachable(text) }
    }

    /// Shows events until the stream ends; also says whether there was any.
    async fn show(
        &mut self,
        events: &mut EventStream,
        view: &mut View,
        output: &mut Output,
    ) -> Result<(End, bool), CliError> {
        let mut progress = false;
        while let Some(item) = events.next().await {
            let item = match item {
                Ok(item) => item,
                Err(error) if error.is_transient() => return Ok((End::Broke(error), progress)),
                Err(error) => return Err(call_failed(&error)),
            };
            if self.was_seen(&item) {
                continue;
            }
            progress = true;
            self.note(&item);
            if self.shows_events {
                view.show(&item, output)?;
            }
            if is_last(&item.event) {
                let message = matches!(item.event, StreamEvent::Message(_)).then_some(item);
                return Ok((End::Done(message.map(Box::new)), progress));
            }
        }
        Ok((End::Closed, progress))
    }

    /// Shows the task as it ended, or the message that came instead of one.
    async fn show_end(&self, message: Option<Box<StreamItem>>, output: &mut Output) -> Result<(), CliError> {
        if let Some(message) = message {
            return View::default().show(&message, output);
        }
        let id = self.task.as_deref().unwrap_or_default();
        let trace = self.trace.as_ref();
        let ended = first_reached(self.endpoints, async |endpoint| endpoint.get_task(id, None, trace).await).await?;
        if output.is_json() { Ok(output.json(&ended.raw)?) } else { task::show_result(&ended, output) }
    }

    fn was_seen(&self, item: &StreamItem) -> bool {
        matches!((item.id, self.last), (Some(id), Some(last)) if id <= last) && !is_last(&item.event)
    }

    fn note(&mut self, item: &StreamItem) {
        self.last = item.id.or(self.last);
        match &item.event {
            StreamEvent::Task(task) => self.task = Some(task.id.clone()),
            StreamEvent::Status { task, .. } | StreamEvent::Artifact { task, .. } => self.task = Some(task.clone()),
            StreamEvent::Message(_) => {}
        }
    }
}

/// Why a stream ended.
enum End {
    /// The task ended or asked, or a message came instead of a task.
    Done(Option<Box<StreamItem>>),
    /// The server closed it before that, as a node does that stops.
    Closed,
    Broke(ClientError),
}

fn reason(broke: Option<&ClientError>) -> String {
    broke.map_or_else(|| "the server closed it".to_owned(), |error| crate::error::chain(error))
}

fn is_last(event: &StreamEvent) -> bool {
    let over = |state: TaskState| state.is_terminal() || state.is_interrupted();
    matches!(event, StreamEvent::Message(_)) || event.state().is_some_and(over)
}

/// What a person has seen of a task: artifacts go to standard output as they grow, the rest beside it.
#[derive(Default)]
struct View {
    begun: BTreeSet<String>,
    /// Whether the last thing on standard output ended its line.
    open_line: bool,
    current: Option<String>,
    agent: Option<String>,
}

impl View {
    fn show(&mut self, item: &StreamItem, output: &mut Output) -> Result<(), CliError> {
        if output.is_json() {
            return Ok(output.json_line(&item.raw)?);
        }
        match &item.event {
            StreamEvent::Task(task) => {
                for artifact in &task.artifacts {
                    self.parts(&artifact.artifact_id, &artifact.parts, false, output)?;
                }
                self.status(&task.id, task.state, task.status_text.as_deref(), output)
            }
            StreamEvent::Status { task, state, text, .. } => self.status(task, *state, text.as_deref(), output),
            StreamEvent::Artifact { artifact_id, parts, append, .. } => self.parts(artifact_id, parts, *append, output),
            StreamEvent::Message(message) => self.parts("message", &message.parts, false, output),
        }
    }

    fn parts(&mut self, artifact: &str, parts: &[Part], append: bool, output: &mut Output) -> Result<(), CliError> {
        if is_aside(artifact) {
            self.close(output)?;
            parts.iter().for_each(|part| output.note(aside_text(part)));
            return Ok(());
        }
        let replaces = !append && self.begun.contains(artifact);
        let other = self.current.as_deref().is_some_and(|current| current != artifact);
        if replaces || other {
            self.close(output)?;
        }
        if replaces {
            output.note(format!("artifact {artifact} begins again; what was shown of it does not count"));
        }
        self.begun.insert(artifact.to_owned());
        self.current = Some(artifact.to_owned());
        for part in parts {
            let text = part_text(part);
            self.open_line = !text.is_empty() && !text.ends_with('\n') || (text.is_empty() && self.open_line);
            output.text(&text)?;
        }
        Ok(())
    }

    fn status(
        &mut self,
        task: &str,
        state: TaskState,
        text: Option<&str>,
        output: &mut Output,
    ) -> Result<(), CliError> {
        self.close(output)?;
        let text = text.map_or_else(String::new, |text| format!(": {text}"));
        output.note(format!("task {task} {}{text}", state_word(state)));
        if state.is_interrupted() {
            let agent = self.agent.as_deref().unwrap_or("AGENT");
            output.note(format!("answer with: towline send {agent} --task-id {task} \"…\""));
        }
        Ok(())
    }

    /// Ends the line that was begun on standard output.
    fn close(&mut self, output: &mut Output) -> std::io::Result<()> {
        if std::mem::take(&mut self.open_line) {
            output.line("")?;
        }
        Ok(())
    }
}

/// Whether an artifact is no result, but what a tool said on the way to one.
fn is_aside(artifact: &str) -> bool {
    artifact.starts_with("step-") && (artifact.ends_with("-progress") || artifact.ends_with("-log"))
}

/// It is text from outside: it does not steer the terminal.
fn aside_text(part: &Part) -> String {
    let text = if let Content::Data(said) = &part.content {
        let of = said["total"].as_f64().map(|total| format!(" of {total}")).unwrap_or_default();
        let message = said["message"].as_str().map(|message| format!(": {message}")).unwrap_or_default();
        format!("{} is at {}{of}{message}", said["source"].as_str().unwrap_or("a tool"), said["progress"])
    } else {
        part_text(part).trim_end().to_owned()
    };
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// A part as text: what is no text is described.
pub(crate) fn part_text(part: &Part) -> String {
    let name = || part.filename.as_ref().map_or_else(String::new, |name| format!(" {name}"));
    match &part.content {
        Content::Text(text) => text.clone(),
        Content::Url(url) => url.clone(),
        Content::Data(value @ (Value::Object(_) | Value::Array(_))) => format!("{value:#}"),
        Content::Data(value) => value.to_string(),
        Content::Raw(bytes) => format!("[file{}: {} bytes]", name(), bytes.len()),
        Content::Blob(blob) => format!("[file{}: {} bytes]", name(), blob.length),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        sync::{Arc, Mutex},
    };

    use super::*;
    use crate::output::Format;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn chunk(id: u64, artifact: &str, text: &str, append: bool) -> StreamItem {
        let event = StreamEvent::Artifact {
            task: "t".into(),
            context: "c".into(),
            artifact_id: artifact.into(),
            name: None,
            parts: vec![Part::text(text)],
            append,
            last_chunk: false,
            metadata: Default::default(),
        };
        StreamItem { id: Some(id), event, raw: Value::Null }
    }

    fn shown(items: &[StreamItem]) -> (String, String) {
        let (out, err) = (Shared::default(), Shared::default());
        let mut output = Output::to(Format::Text, Box::new(out.clone()), Box::new(err.clone()));
        let mut view = View::default();
        items.iter().for_each(|item| view.show(item, &mut output).unwrap());
        view.close(&mut output).unwrap();
        (out.text(), err.text())
    }

    #[test]
    fn chunks_of_one_artifact_are_one_text_and_another_begins_a_line() {
        let (out, _) = shown(&[
            chunk(1, "step-1", "Hel", false),
            chunk(2, "step-1", "lo", true),
            chunk(3, "step-2", "Bye", false),
        ]);
        assert_eq!(out, "Hello\nBye\n");
    }

    #[test]
    fn what_a_tool_says_on_the_way_is_no_data() {
        assert!(is_aside("step-3-progress") && is_aside("step-3-log") && !is_aside("step-3") && !is_aside("my-log"));
        let said = serde_json::json!({ "message": "a\u{1b}[2J", "progress": 2.0, "source": "s.t", "total": 4.0 });
        let part =
            Part { content: Content::Data(said), media_type: None, filename: None, metadata: Default::default() };
        assert_eq!(aside_text(&part), "s.t is at 2.0 of 4: a\u{fffd}[2J");
    }

    #[test]
    fn an_artifact_that_begins_again_is_said_beside_the_data() {
        let (out, err) = shown(&[chunk(1, "step-1", "Hel", false), chunk(2, "step-1", "Hello", false)]);
        assert_eq!(out, "Hel\nHello\n");
        assert!(err.contains("step-1 begins again"), "{err}");
    }
}
