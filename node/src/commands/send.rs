//! `towline send`: one message, and what comes of it.

use std::{io::Read, path::Path, time::Duration};

use towline_a2a::{A2aClient, SendOptions, SendReply};
use towline_core::{
    BUDGET_KEY, Budget, Content, DEADLINE_KEY, Message, MessageId, Metadata, Part, Role, TaskId, TaskState,
    limits::MAX_CONTENT_BYTES,
};
use towline_trace::{Kind, Settings, Span, names};

use super::{
    client::{Client, first_reached},
    follow::Follow,
    task,
};
use crate::{cli::SendArgs, error::CliError, output::Output};

/// A larger file is uploaded: base64 makes it a third larger, and a request may have 4 MiB.
const MAX_SENT_BYTES: u64 = 2 * 1024 * 1024 + 512 * 1024;

pub(crate) async fn run(args: SendArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let message = message(&args, client).await?;
    let _tracing = trace_this_process();
    let mut span = Span::root(names::span::CLI_SEND, Kind::Internal);
    span.set(names::CLI_COMMAND, format!("send {}", args.agent));
    let result = send(&args, message, client, &span, output).await;
    if let Ok(Some(task)) = &result {
        tell_trace(task, client, output).await;
    }
    if let Err(error) = &result {
        span.fail("cli", &error.to_string());
    }
    result.map(|_| ())
}

/// Says where the trace can be looked at, if the node knows. Nobody waits for it who reads JSON, and the task is done without it.
async fn tell_trace(task: &str, client: &Client, output: &mut Output) {
    if output.is_json() {
        return;
    }
    match task::jaeger_url(task, client).await {
        Ok(url) => url.into_iter().for_each(|url| output.note(format!("trace {url}"))),
        Err(error) => tracing::debug!(%error, "where the trace is"),
    }
}

/// The task that it made, if it made one.
async fn send(
    args: &SendArgs,
    message: Message,
    client: &Client,
    span: &Span,
    output: &mut Output,
) -> Result<Option<String>, CliError> {
    let endpoints = client.agent(&args.agent)?;
    // Who waits for the end reads the stream as well: it names the task at once, and goes on at another node.
    let streams = !args.asynchronous;
    let method = if streams { names::span::SEND_STREAMING_MESSAGE } else { names::span::SEND_MESSAGE };
    let mut call = Span::child(method, Kind::Client, &span.context());
    call.set(names::A2A_METHOD_NAME, method);
    call.set(names::A2A_MESSAGE_ID, message.message_id.as_str().to_owned());
    call.set(names::GEN_AI_AGENT_NAME, args.agent.clone());
    let trace = Some(call.context());
    let options = SendOptions {
        return_immediately: args.asynchronous,
        task_id: args.task_id.clone(),
        context_id: args.context_id.clone(),
        timeout: args.timeout,
        ..SendOptions::default()
    };
    // The same message again is safe: its id makes it one task.
    let unary = async |endpoint: &A2aClient| endpoint.send(&message, options.clone(), trace.as_ref()).await;
    let again = async |endpoint: &A2aClient| endpoint.stream(&message, options.clone(), trace.as_ref()).await;
    if !streams {
        let reply = first_reached(&endpoints, unary).await?;
        let task = match &reply {
            SendReply::Task(task) => Some(task.id.clone()),
            SendReply::Message(_) => None,
        };
        return show_reply(reply, true, output).map(|()| task);
    }
    let mut follow = Follow::new(&endpoints, trace);
    follow.shows_events = args.stream || (!args.wait && output.is_terminal());
    follow.agent = Some(args.agent.clone());
    let limit = args.timeout;
    let followed = async {
        let first = again(&endpoints[0]).await;
        if matches!(&first, Err(error) if error.has_no_streams()) {
            return match first_reached(&endpoints, unary).await? {
                // Its answer may come before the end of the task: from there on the task is asked for.
                SendReply::Task(task) if !is_settled(task.state) => {
                    follow.task = Some(task.id.clone());
                    task::show_settled(&task::settled(&task.id, &endpoints, output).await?, output)
                }
                reply @ (SendReply::Task(_) | SendReply::Message(_)) => show_reply(reply, false, output),
            };
        }
        follow.until_the_end(first, again, output).await
    };
    let followed = match limit {
        Some(limit) => tokio::time::timeout(limit, followed).await.unwrap_or_else(|_| Err(too_long(limit, &follow))),
        None => followed.await,
    };
    followed.map(|()| follow.task)
}

fn is_settled(state: TaskState) -> bool {
    state.is_terminal() || state.is_interrupted()
}

fn show_reply(reply: SendReply, asynchronous: bool, output: &mut Output) -> Result<(), CliError> {
    match reply {
        SendReply::Task(task) if output.is_json() => Ok(output.json(&task.raw)?),
        SendReply::Task(task) if asynchronous => {
            output.note(format!("follow it with: towline task subscribe {}", task.id));
            Ok(output.line(&task.id)?)
        }
        SendReply::Task(task) => task::show_result(&task, output),
        SendReply::Message(message) if output.is_json() => Ok(output.json(&*message)?),
        SendReply::Message(message) => Ok(output.line(message.text())?),
    }
}

fn too_long(limit: Duration, follow: &Follow<'_>) -> CliError {
    let how = follow.task.as_ref().map_or_else(
        || "if it was accepted it goes on; find it with `towline task list`".to_owned(),
        |task| format!("task {task} goes on; follow it with `towline task subscribe {task}`"),
    );
    CliError::Timeout(format!("no end within {limit:?}: {how}"))
}

/// The command line is the root of the trace; its spans go to a collector if the environment names one.
fn trace_this_process() -> Option<towline_trace::Guard> {
    let settings =
        Settings { service_name: "towline-cli".to_owned(), node_name: "cli".to_owned(), ..Settings::default() };
    towline_trace::install(settings).ok()
}

async fn message(args: &SendArgs, client: &Client) -> Result<Message, CliError> {
    let mut parts = Vec::new();
    let stdin_uses =
        args.file.iter().filter(|path| is_stdin(path)).count() + usize::from(args.text.as_deref() == Some("-"));
    if stdin_uses > 1 {
        return Err(CliError::Usage("standard input (-) can be read once only".to_owned()));
    }
    match args.text.as_deref() {
        Some("-") => parts.push(Part::text(typed(&read(Path::new("-"))?))),
        Some(text) => parts.push(Part::text(text)),
        None => {}
    }
    for path in &args.file {
        parts.push(if is_large(path) { upload(path, client).await? } else { file_part(path, read(path)?) });
    }
    let size: usize = parts.iter().map(Part::size).sum();
    if size > MAX_CONTENT_BYTES {
        let text = format!("message has {size} bytes; the limit is {MAX_CONTENT_BYTES}: send less, or a link to it");
        return Err(CliError::Usage(text));
    }
    let message_id: MessageId = uuid::Uuid::now_v7().to_string().parse().map_err(CliError::other)?;
    let task_id = args.task_id.as_deref().and_then(|id| id.parse::<TaskId>().ok());
    Ok(Message {
        message_id,
        context_id: None,
        task_id,
        role: Role::User,
        parts,
        metadata: bounds(args),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    })
}

/// What the task may spend, and how long it may take.
fn bounds(args: &SendArgs) -> Metadata {
    let budget = Budget { tokens: args.max_tokens, steps: args.max_steps }.to_json();
    let deadline = args.deadline.map(|deadline| u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
    let named = [(BUDGET_KEY, budget), (DEADLINE_KEY, deadline.map(Into::into))];
    named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// What a person or a pipe gave as the text: the end of its last line is not part of it.
fn typed(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.strip_suffix('\n').map_or(&*text, |text| text.strip_suffix('\r').unwrap_or(text)).to_owned()
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let too_much = u64::try_from(MAX_CONTENT_BYTES).unwrap_or(u64::MAX) + 1;
    let mut bytes = Vec::new();
    let read = if is_stdin(path) {
        std::io::stdin().lock().take(too_much).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(too_much).read_to_end(&mut bytes))
    };
    read.map_err(|error| CliError::Usage(format!("read {}: {error}", path.display())))?;
    Ok(bytes)
}

/// Whether a file does not fit into a request.
fn is_large(path: &Path) -> bool {
    !is_stdin(path) && std::fs::metadata(path).is_ok_and(|file| file.len() > MAX_SENT_BYTES)
}

/// A file as a part that names it: its content goes ahead of the message.
async fn upload(path: &Path, client: &Client) -> Result<Part, CliError> {
    let file = tokio::fs::File::open(path).await;
    let file = file.map_err(|error| CliError::Usage(format!("read {}: {error}", path.display())))?;
    let url = client.upload(file).await?;
    Ok(Part {
        content: Content::Url(url),
        media_type: Some("application/octet-stream".to_owned()),
        filename: name_of(path),
        metadata: Default::default(),
    })
}

/// A file as a part: as text where it is text, so that a model can read it.
fn file_part(path: &Path, bytes: Vec<u8>) -> Part {
    let filename = if is_stdin(path) { Some("stdin".to_owned()) } else { name_of(path) };
    let (content, media_type) = match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => (Content::Text(text), "text/plain"),
        Ok(text) => (Content::Raw(text.into_bytes()), "application/octet-stream"),
        Err(error) => (Content::Raw(error.into_bytes()), "application/octet-stream"),
    };
    Part { content, media_type: Some(media_type.to_owned()), filename, metadata: Default::default() }
}

fn name_of(path: &Path) -> Option<String> {
    path.file_name().map(|name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_last_line_is_no_text() {
        assert_eq!(["a\n", "a\r\n", "a", "a\n\n", ""].map(|text| typed(text.as_bytes())), ["a", "a", "a", "a\n", ""]);
    }

    #[test]
    fn a_text_file_is_a_text_part_and_another_is_raw() {
        let text = file_part(Path::new("a/notes.md"), b"# Hi".to_vec());
        assert_eq!((text.content, text.filename.as_deref()), (Content::Text("# Hi".into()), Some("notes.md")));
        let binary = file_part(Path::new("x.bin"), vec![0xff, 0]);
        assert_eq!(binary.content, Content::Raw(vec![0xff, 0]));
    }
}
