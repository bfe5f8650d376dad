//! `towline mcp serve`: the mesh on standard input and output, for clients that start their servers themselves. Each line goes to
//! a running node as a request of Streamable HTTP, and what comes back is written line by line: a session goes on at
//! another node when the first is gone. Standard output belongs to the protocol; what else is to be said goes to standard error.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered};
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    sync::mpsc,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    headers,
    message::{self, Incoming, Request, RpcError, code},
};
use crate::{
    commands::client::Client,
    error::CliError,
    mcp_files::{self, Output},
};

/// Longest line: what a node takes as the body of a request.
const MAX_LINE: usize = 4 * 1024 * 1024;

/// Longest message of a node: a page of tasks with their content, in JSON.
const MAX_EVENT: usize = 64 * 1024 * 1024;

/// Requests that are under way at the same time; the client's next line waits.
const MAX_CALLS: usize = 64;

/// Messages that wait to be written: a client that does not read holds up what it has asked for.
pub(crate) const MAX_WAITING: usize = 64;

/// How long a node may take to accept what is no request.
const ACCEPT_WITHIN: Duration = Duration::from_secs(30);

/// How long answers are waited for once the client has said all.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// Pause before a stream that was lost is opened again.
const REOPEN: Duration = Duration::from_secs(1);

/// Serves until standard input ends.
///
/// # Errors
/// When standard input or output cannot be used.
pub(crate) async fn serve(client: &Client) -> Result<(), CliError> {
    let output = mcp_files::output()?;
    let input = BufReader::new(mcp_files::input()?);
    let (say, said) = mpsc::channel(MAX_WAITING);
    // One: what the client says next stays in its pipe until there is room for it.
    let (hear, heard) = mpsc::channel(1);
    let mut writing = AbortOnDropHandle::new(tokio::spawn(write(said, output)));
    let _reading = AbortOnDropHandle::new(tokio::spawn(read(input, hear)));
    let bridge =
        Bridge { client, say, session: Mutex::default(), calls: Mutex::default(), over: CancellationToken::new() };
    bridge.run(heard).await;
    drop(bridge);
    // What was answered is written before this process ends; a client that has gone reads nothing.
    drop(tokio::time::timeout(LAST_ANSWERS, &mut writing).await);
    Ok(())
}

pub(crate) async fn write(mut said: mpsc::Receiver<String>, mut output: Output) {
    while let Some(mut line) = said.recv().await {
        line.push('\n');
        if output.write_all(line.as_bytes()).await.is_err() || output.flush().await.is_err() {
            return;
        }
    }
}

/// A line, or none where it was too long.
pub(crate) type Line = Option<Vec<u8>>;

pub(crate) async fn read(mut input: impl AsyncBufRead + Unpin, hear: mpsc::Sender<Line>) {
    loop {
        match next_line(&mut input).await {
            Ok(Some(line)) => {
                if hear.send(line).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => return tracing::debug!(%error, "standard input ends"),
        }
    }
}

/// The next line without its end; none at the end of the input.
async fn next_line(input: &mut (impl AsyncBufRead + Unpin)) -> std::io::Result<Option<Line>> {
    let (mut line, mut is_too_long) = (Vec::new(), false);
    loop {
        let read = input.fill_buf().await?;
        if read.is_empty() {
            let is_over = line.is_empty() && !is_too_long;
            return Ok((!is_over).then_some((!is_too_long).then_some(line)));
        }
        let end = read.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(read.len());
        is_too_long |= line.len() + taken > MAX_LINE;
        if is_too_long {
            line.clear();
        } else {
            line.extend_from_slice(&read[..taken]);
        }
        input.consume(end.map_or(taken, |end| end + 1));
        if end.is_some() {
            return Ok(Some((!is_too_long).then_some(line)));
        }
    }
}

/// What a client and a node have agreed on.
#[derive(Debug, Clone, Default)]
struct Session {
    id: Option<String>,
    version: Option<String>,
}

struct Bridge<'a> {
    client: &'a Client,
    say: mpsc::Sender<String>,
    session: Mutex<Session>,
    /// What takes a call back, by the id of its request.
    calls: Mutex<HashMap<String, CancellationToken>>,
    /// Canceled when the client has said all.
    over: CancellationToken,
}

impl<'a> Bridge<'a> {
    async fn run(&self, mut heard: mpsc::Receiver<Line>) {
        let mut calls = FuturesUnordered::new();
        loop {
            tokio::select! {
                line = heard.recv(), if calls.len() < MAX_CALLS => {
                    let Some(line) = line else { break };
                    calls.extend(self.take(line).await);
                }
                Some(()) = calls.next(), if !calls.is_empty() => {}
            }
        }
        self.over.cancel();
        let rest = async { while calls.next().await.is_some() {} };
        if tokio::time::timeout(LAST_ANSWERS, rest).await.is_err() {
            tracing::warn!("the node has not answered all: standard input has ended");
        }
        if self.session().id.is_some() {
            let head = self.head(None);
            let ended = self.client.mcp(Method::DELETE, &head, None);
            drop(tokio::time::timeout(ACCEPT_WITHIN, ended).await);
        }
    }

    /// Takes a line. What takes its time is given back.
    async fn take(&self, line: Line) -> Option<LocalBoxFuture<'_, ()>> {
        let Some(line) = line else {
            let error = RpcError::invalid_request(format!("a line is longer than {MAX_LINE} bytes"));
            self.tell(&error.answer(Value::Null)).await;
            return None;
        };
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        let incoming = match message::parse(&line) {
            Ok(incoming) => incoming,
            Err((id, error)) => {
                self.tell(&error.answer(id)).await;
                return None;
            }
        };
        let text = String::from_utf8_lossy(&line).into_owned();
        match incoming {
            // What follows it belongs to the session that it begins.
            Incoming::Request(request) if request.method == "initialize" => {
                self.call(request, text, CancellationToken::new()).await;
                None
            }
            Incoming::Request(request) => {
                let taken_back = CancellationToken::new();
                self.calls().insert(request.key(), taken_back.clone());
                Some(self.call(request, text, taken_back).boxed_local())
            }
            Incoming::Notification { method, params } => {
                if self.session().id.is_none() {
                    // Without a session a call is taken back by the end of its stream.
                    let call = params.get("requestId").filter(|_| method == "notifications/cancelled");
                    if let Some(call) = call.and_then(|id| self.calls().get(&id.to_string()).cloned()) {
                        call.cancel();
                    }
                    return None;
                }
                self.post(text).await;
                (method == "notifications/initialized").then(|| self.listen().boxed_local())
            }
            Incoming::Response { .. } => {
                self.post(text).await;
                None
            }
        }
    }

    /// Sends what is no request.
    async fn post(&self, text: String) {
        let head = self.head(None);
        let sent = self.client.mcp(Method::POST, &head, Some(&text));
        match tokio::time::timeout(ACCEPT_WITHIN, sent).await {
            Ok(Ok(answer)) if answer.status().is_success() => {}
            Ok(Ok(answer)) => tracing::warn!(status = %answer.status(), "the node does not take a message"),
            Ok(Err(error)) => tracing::warn!(%error, "the node does not take a message"),
            Err(_) => tracing::warn!("the node does not take a message in time"),
        }
    }

    /// Sends a request, and writes what comes back until it is answered.
    async fn call(&self, request: Request, text: String, taken_back: CancellationToken) {
        let answered = tokio::select! {
            answered = self.answered(&request, text) => answered,
            () = taken_back.cancelled() => Ok(()),
        };
        self.calls().remove(&request.key());
        if let Err(error) = answered {
            self.tell(&RpcError::new(code::UNAVAILABLE, error).answer(request.id)).await;
        }
    }

    async fn answered(&self, request: &Request, text: String) -> Result<(), String> {
        let head = self.head(Some(request));
        let sent = self.client.mcp(Method::POST, &head, Some(&text)).await;
        let answer = sent.map_err(|error| error.to_string())?;
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        if let Some(session) = header("mcp-session-id").filter(|_| request.method == "initialize") {
            self.lock().id = Some(session);
        }
        if header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let is_answer = |message: &Value| message.get("id") == Some(&request.id) && message.get("method").is_none();
            let mut is_answered = false;
            let mut events = Events::of(answer);
            while let Some(event) = events.next().await? {
                let Some(message) = event.message() else { continue };
                is_answered |= is_answer(&message);
                self.tell(&message).await;
            }
            return if is_answered { Ok(()) } else { Err("the stream of the answer broke off".to_owned()) };
        }
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| format!("the answer broke off: {error}"))?;
        let mut message: Value =
            serde_json::from_slice(&body).map_err(|_| format!("the node answers HTTP {status}"))?;
        if message.get("jsonrpc").is_none() {
            return Err(format!("the node answers HTTP {status}"));
        }
        if message.get("id") == Some(&Value::Null) {
            message["id"] = request.id.clone();
        }
        if request.method == "initialize" {
            let version = message.pointer("/result/protocolVersion").and_then(Value::as_str);
            self.lock().version = version.map(str::to_owned);
        }
        self.tell(&message).await;
        Ok(())
    }

    /// Writes what the node says by itself, for as long as the session lasts.
    async fn listen(&self) {
        let listening = async {
            let mut last = None;
            while self.hear(&mut last).await {
                tokio::time::sleep(REOPEN).await;
            }
        };
        tokio::select! {
            () = listening => {}
            () = self.over.cancelled() => {}
        }
    }

    /// Reads one stream to its end; whether there may be another.
    async fn hear(&self, last: &mut Option<String>) -> bool {
        let mut head = self.head(None);
        head.extend(last.iter().map(|last| ("last-event-id", last.clone())));
        let Ok(answer) = self.client.mcp(Method::GET, &head, None).await else { return true };
        match answer.status().as_u16() {
            200 => {}
            429 | 500..=599 => return true,
            status => {
                tracing::debug!(status, "the node has no stream for this session");
                return false;
            }
        }
        let mut events = Events::of(answer);
        while let Ok(Some(event)) = events.next().await {
            if let Some(message) = event.message() {
                self.tell(&message).await;
            }
            if event.id.is_some() {
                *last = event.id;
            }
        }
        true
    }

    /// The headers of a message.
    fn head(&self, request: Option<&Request>) -> Vec<(&'static str, String)> {
        let mut head = vec![("accept", "application/json, text/event-stream".to_owned())];
        let version = request.and_then(|request| request.meta("io.modelcontextprotocol/protocolVersion"));
        if let (Some(version), Some(request)) = (version.and_then(Value::as_str), request) {
            head.push(("mcp-protocol-version", version.to_owned()));
            head.extend(headers::of(request));
            return head;
        }
        let session = self.session();
        head.extend(session.id.map(|id| ("mcp-session-id", id)));
        head.extend(session.version.map(|version| ("mcp-protocol-version", version)));
        head
    }

    async fn tell(&self, message: &Value) {
        // Nobody reads any more: there is nobody to tell that.
        drop(self.say.send(message.to_string()).await);
    }

    fn session(&self) -> Session {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) data: String,
}

impl Event {
    pub(crate) fn message(&self) -> Option<Value> {
        serde_json::from_str(&self.data).ok()
    }
}

/// The events of a response.
pub(crate) struct Events {
    answer: Response,
    unread: Vec<u8>,
    /// How much of it has no end of an event.
    looked_at: usize,
}

impl Events {
    pub(crate) fn of(answer: Response) -> Self {
        Self { answer, unread: Vec::new(), looked_at: 0 }
    }

    /// The next event; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, String> {
        loop {
            if let Some(event) = cut_event(&mut self.unread, &mut self.looked_at) {
                return Ok(Some(event));
            }
            if self.unread.len() > MAX_EVENT {
                return Err(format!("a message of the node is longer than {MAX_EVENT} bytes"));
            }
            match self.answer.chunk().await {
                Ok(Some(chunk)) => self.unread.extend_from_slice(&chunk),
                Ok(None) => return Ok(None),
                Err(error) => return Err(format!("the stream broke off: {error}")),
            }
        }
    }
}

/// Takes the first whole event out of what was read. Events of a node are separated by one empty line.
fn cut_event(unread: &mut Vec<u8>, looked_at: &mut usize) -> Option<Event> {
    let Some(end) = unread[*looked_at..].windows(2).position(|pair| pair == b"\n\n") else {
        *looked_at = unread.len().saturating_sub(1);
        return None;
    };
    let end = std::mem::take(looked_at) + end;
    let text = String::from_utf8_lossy(&unread[..end]).into_owned();
    unread.drain(..end + 2);
    let mut event = Event::default();
    for line in text.lines() {
        if let Some(data) = line.strip_prefix("data:") {
            event.data.push_str(data.trim_start());
        } else if let Some(id) = line.strip_prefix("id:") {
            event.id = Some(id.trim_start().to_owned());
        }
    }
    Some(event)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn lines_are_read_one_by_one_and_one_that_is_too_long_is_passed_over() {
        let long = "x".repeat(MAX_LINE + 1);
        let text = format!("one\n\n{long}\ntwo\nthree");
        let mut input = BufReader::new(text.as_bytes());
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input).await.unwrap() {
            lines.push(line.map(|line| String::from_utf8(line).unwrap()));
        }
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(lines, [some("one"), some(""), None, some("two"), some("three")]);
    }

    #[test]
    fn events_are_cut_out_of_what_was_read() {
        let mut looked_at = 0;
        let mut unread = b": beat\n\nid: 7\ndata: {\"a\":1}\n\ndata: {\"half\"".to_vec();
        assert_eq!(cut_event(&mut unread, &mut looked_at), Some(Event::default()));
        let event = cut_event(&mut unread, &mut looked_at).unwrap();
        assert_eq!((event.id.as_deref(), event.message()), (Some("7"), Some(json!({ "a": 1 }))));
        assert_eq!(cut_event(&mut unread, &mut looked_at), None, "the rest is to come");
    }
}
