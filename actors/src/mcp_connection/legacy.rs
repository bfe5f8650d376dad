//! HTTP with SSE, as servers of 2024-11-05 speak it: one stream on which the server says everything, beginning with where
//! messages are posted to. When the stream ends, the connection has ended.

use futures::{Sink, Stream, StreamExt, stream};
use http::{HeaderName, HeaderValue, header};
use reqwest::Url;
use rmcp::model::{ClientJsonRpcMessage, ErrorCode, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use sse_stream::SseStream;
use std::{collections::HashMap, time::Duration};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::{sync::PollSender, task::AbortOnDropHandle};

use super::{
    credentials::{NotSent, Sender},
    spool::Spool,
};

/// Messages in either direction that wait to be read.
const WAITING: usize = 64;

/// Posts under way: a server answers them at once, and a message of ours waits behind them else.
const MAX_POSTS: usize = 64;

/// Time for a post to be taken: its answer comes on the stream.
const POST_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest address that a server may name for posts.
const MAX_ENDPOINT_BYTES: usize = 4 * 1024;

/// What the server said; none when it has hung up.
type Incoming = Option<ServerJsonRpcMessage>;

/// Both directions of a connection.
pub(super) type Both = (
    std::pin::Pin<Box<dyn Sink<ClientJsonRpcMessage, Error = std::io::Error> + Send>>,
    std::pin::Pin<Box<dyn Stream<Item = ServerJsonRpcMessage> + Send>>,
);

/// Opens the stream, and waits for its first word.
///
/// # Errors
/// When the stream does not open, or names no address of its own host.
pub(super) async fn connect(
    http: Sender,
    endpoint: &str,
    headers: HashMap<HeaderName, HeaderValue>,
    spool: &Spool,
) -> Result<Both, String> {
    let failed = |what: String| format!("HTTP with SSE: {what}");
    let request = headers.iter().fold(http.http().get(endpoint), |request, (name, value)| request.header(name, value));
    let response = http.send(request.header(header::ACCEPT, "text/event-stream")).await;
    let response = response.and_then(successful).map_err(|error| failed(error.to_string()))?;
    let base = response.url().clone();
    let mut events = SseStream::from_bytes_stream(spool.events(response.bytes_stream().boxed())).boxed();
    let target = loop {
        match events.next().await {
            Some(Ok(event)) if event.event.as_deref() == Some("endpoint") => {
                break target(&base, &event.data.unwrap_or_default()).map_err(failed)?;
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(failed(format!("the stream broke: {error}"))),
            None => return Err(failed("the stream ended before it named an endpoint".to_owned())),
        }
    };
    let (outbox, outgoing) = mpsc::channel(WAITING);
    let (incoming, inbox) = mpsc::channel::<Incoming>(WAITING);
    let reading = AbortOnDropHandle::new(tokio::spawn(read(events, incoming.clone())));
    let posting = AbortOnDropHandle::new(tokio::spawn(post(Posts { http, target, headers, incoming }, outgoing)));
    // The tasks end with the stream that holds them.
    let inbox = stream::unfold((inbox, reading, posting), async |(mut inbox, reading, posting)| {
        let message = inbox.recv().await.flatten()?;
        Some((message, (inbox, reading, posting)))
    });
    let outbox = futures::SinkExt::sink_map_err(PollSender::new(outbox), |_| std::io::ErrorKind::BrokenPipe.into());
    Ok((Box::pin(outbox), Box::pin(inbox)))
}

/// Where messages are posted to: credentials go there, so it must be where the stream came from.
fn target(base: &Url, said: &str) -> Result<Url, String> {
    if said.len() > MAX_ENDPOINT_BYTES {
        return Err(format!("the server named an endpoint of more than {MAX_ENDPOINT_BYTES} bytes"));
    }
    let url =
        base.join(said.trim()).map_err(|error| format!("the server named an endpoint that is no URL: {error}"))?;
    if url.origin() != base.origin() {
        return Err(format!("the server named an endpoint of another host: {}", url.host_str().unwrap_or("none")));
    }
    Ok(url)
}

async fn read(
    mut events: stream::BoxStream<'static, Result<sse_stream::Sse, sse_stream::Error>>,
    incoming: mpsc::Sender<Incoming>,
) {
    while let Some(Ok(event)) = events.next().await {
        let Some(data) = event.data else { continue };
        match serde_json::from_str(&data) {
            Ok(message) => {
                if incoming.send(Some(message)).await.is_err() {
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "MCP server sent an event that is no message"),
        }
    }
    // Nobody waits for more where this is not read.
    let _ = incoming.send(None).await;
}

struct Posts {
    http: Sender,
    target: Url,
    headers: HashMap<HeaderName, HeaderValue>,
    incoming: mpsc::Sender<Incoming>,
}

async fn post(posts: Posts, mut outgoing: mpsc::Receiver<ClientJsonRpcMessage>) {
    let mut under_way = JoinSet::new();
    while let Some(message) = outgoing.recv().await {
        while under_way.len() >= MAX_POSTS {
            under_way.join_next().await;
        }
        while under_way.try_join_next().is_some() {}
        let id = match &message {
            JsonRpcMessage::Request(request) => Some(request.id.clone()),
            JsonRpcMessage::Response(_) | JsonRpcMessage::Notification(_) | JsonRpcMessage::Error(_) => None,
        };
        let request = posts.http.http().post(posts.target.clone()).timeout(POST_TIMEOUT).json(&message);
        let request = posts.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        let (incoming, http) = (posts.incoming.clone(), posts.http.clone());
        under_way.spawn(async move {
            let sent = http.send(request).await.and_then(successful);
            if let (Err(error), Some(id)) = (sent, id) {
                // The stream has ended where nobody reads this.
                let _ = incoming.send(Some(refused(id, &error))).await;
            }
        });
    }
}

fn successful(response: reqwest::Response) -> Result<reqwest::Response, NotSent> {
    Ok(response.error_for_status()?)
}

/// What stands for the answer to a message that was not taken.
fn refused(id: RequestId, error: &NotSent) -> ServerJsonRpcMessage {
    let data = ErrorData::new(ErrorCode::INTERNAL_ERROR, format!("the server did not take the message: {error}"), None);
    ServerJsonRpcMessage::error(data, Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_posted_to_the_host_of_the_stream_only() {
        let base: Url = "https://tools.example/sse".parse().unwrap();
        assert_eq!(target(&base, "/messages?id=1").unwrap().as_str(), "https://tools.example/messages?id=1");
        assert_eq!(target(&base, "https://tools.example/m").unwrap().as_str(), "https://tools.example/m");
        for evil in
            ["https://evil.example/m", "//evil.example/m", "http://tools.example/m", "https://tools.example:8/m"]
        {
            assert!(target(&base, evil).unwrap_err().contains("another host"), "{evil}");
        }
        assert!(target(&base, &"x".repeat(5_000)).is_err());
    }
}
