//! `towline a2e`: the host on standard input and output, one message per line, for agents that start their hosts themselves. Each
//! line goes to a running node, and what the stream of the session brings is written line by line. Standard output belongs to the
//! protocol; what else is to be said goes to standard error.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use reqwest::Method;
use serde_json::Value;
use tokio::{io::BufReader, sync::mpsc};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::message::{self, Code, Failure};
use crate::{
    commands::client::Client,
    error::CliError,
    mcp_files,
    mcp_server::stdio::{Events, MAX_WAITING, read, write},
};

/// How long a node may take to accept a message.
const ACCEPT_WITHIN: Duration = Duration::from_secs(30);

/// How often a message is sent that a node did not take.
const TRIES: u32 = 3;

/// Pause before a message is sent again, and before a stream that was lost is opened again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long the last answers may take once the agent has said all. Agents give a host 3 s to leave.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Serves until standard input ends.
///
/// # Errors
/// When standard input or output cannot be used, or no node begins a session.
pub(crate) async fn serve(client: &Client) -> Result<(), CliError> {
    let output = mcp_files::output()?;
    let input = BufReader::new(mcp_files::input()?);
    let session = begin(client).await?;
    let (say, said) = mpsc::channel(MAX_WAITING);
    // One: what the agent says next stays in its pipe until there is room for it.
    let (hear, mut heard) = mpsc::channel(1);
    let mut writing = AbortOnDropHandle::new(tokio::spawn(write(said, output)));
    let _reading = AbortOnDropHandle::new(tokio::spawn(read(input, hear)));
    let over = CancellationToken::new();
    let host = Host { client, session, say, has_ended: AtomicBool::new(false), over: over.clone() };
    let sending = async {
        while let Some(line) = heard.recv().await {
            let Some(line) = line else {
                host.refuse("", Failure::new(Code::InvalidMessage, "a line is too long")).await;
                continue;
            };
            if !line.iter().all(u8::is_ascii_whitespace) && !host.take(&line).await {
                break;
            }
        }
        // The agent has said all: it may still read what it has asked for.
        host.has_ended.store(true, Ordering::Relaxed);
        host.end().await;
        drop(tokio::time::timeout(LAST_ANSWERS, over.cancelled()).await);
        over.cancel();
    };
    tokio::join!(sending, host.listen());
    drop(host);
    // What was answered is written before this process ends; an agent that has gone reads nothing.
    drop(tokio::time::timeout(LAST_ANSWERS, &mut writing).await);
    Ok(())
}

async fn begin(client: &Client) -> Result<String, CliError> {
    let answer = client.door(Method::POST, "/a2e/session", &[], None).await?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(CliError::other)?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    match body["session_id"].as_str() {
        Some(session) if status.is_success() => Ok(session.to_owned()),
        _ if matches!(status.as_u16(), 401 | 403) => {
            Err(CliError::Auth(format!("begin a session: HTTP {status}: sign in with `towline auth login`")))
        }
        _ => {
            let why = body["message"].as_str().unwrap_or("no session_id came back");
            Err(CliError::Other(format!("begin a session: HTTP {status}: {why}")))
        }
    }
}

struct Host<'a> {
    client: &'a Client,
    session: String,
    say: mpsc::Sender<String>,
    /// Whether standard input has.
    has_ended: AtomicBool,
    /// Canceled when the session is over.
    over: CancellationToken,
}

impl Host<'_> {
    fn head(&self) -> Vec<(&'static str, String)> {
        vec![("x-session-id", self.session.clone())]
    }

    async fn refuse(&self, id: &str, failure: Failure) {
        // Nobody reads any more: there is nobody to tell that.
        drop(self.say.send(message::error(id, &failure).to_string()).await);
    }

    /// Sends a line; whether there may be another.
    async fn take(&self, line: &[u8]) -> bool {
        let id = match message::parse(line) {
            Ok(message) => message.id,
            Err((id, failure)) => {
                self.refuse(&id, failure).await;
                return true;
            }
        };
        let text = String::from_utf8_lossy(line);
        let (mut why, head) = (String::new(), self.head());
        for _ in 0..TRIES {
            let sent = self.client.door(Method::POST, "/a2e/send", &head, Some(&text));
            match tokio::time::timeout(ACCEPT_WITHIN, sent).await {
                Ok(Ok(answer)) if answer.status().is_success() => return true,
                Ok(Ok(answer)) if answer.status().as_u16() == 404 => {
                    self.refuse(&id, Failure::new(Code::Runtime, "the session is over: start this host again")).await;
                    return false;
                }
                Ok(Ok(answer)) => why = format!("the node answers HTTP {}", answer.status()),
                Ok(Err(error)) => why = error.to_string(),
                Err(_) => why = format!("the node has not answered within {ACCEPT_WITHIN:?}"),
            }
            tokio::time::sleep(AGAIN).await;
        }
        self.refuse(&id, Failure::new(Code::Busy, why)).await;
        true
    }

    /// Writes what the session is told, for as long as it lasts.
    async fn listen(&self) {
        let listening = async {
            let mut last = None;
            while self.hear(&mut last).await && !self.has_ended.load(Ordering::Relaxed) {
                tokio::time::sleep(AGAIN).await;
            }
        };
        tokio::select! {
            () = listening => self.over.cancel(),
            () = self.over.cancelled() => {}
        }
    }

    /// Reads one stream to its end; whether there may be another.
    async fn hear(&self, last: &mut Option<String>) -> bool {
        let mut head = self.head();
        head.extend(last.iter().map(|last| ("last-event-id", last.clone())));
        let Ok(answer) = self.client.door(Method::GET, "/a2e/stream", &head, None).await else { return true };
        match answer.status().as_u16() {
            200 => {}
            429 | 500..=599 => return true,
            status => {
                tracing::debug!(status, "the session is over");
                return false;
            }
        }
        let mut events = Events::of(answer);
        while let Ok(Some(event)) = events.next().await {
            if event.message().is_some() && self.say.send(event.data.clone()).await.is_err() {
                return false;
            }
            if event.id.is_some() {
                *last = event.id;
            }
        }
        true
    }

    /// Has the session end with what is under way, if it is not over.
    async fn end(&self) {
        let shutdown = message::outgoing("shutdown", serde_json::json!({ "timeout": 1 })).to_string();
        let head = self.head();
        let sent = self.client.door(Method::POST, "/a2e/send", &head, Some(&shutdown));
        drop(tokio::time::timeout(LAST_ANSWERS, sent).await);
    }
}
