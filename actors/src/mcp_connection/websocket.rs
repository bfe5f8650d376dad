//! WebSockets: each message is one message of the protocol. The request that opens one is an ordinary request, with the headers,
//! credentials and certificates of any other; what comes behind it is framed.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::{SinkExt as _, StreamExt as _, future, stream};
use http::{HeaderName, HeaderValue, StatusCode, header};
use ring::{
    digest,
    rand::{SecureRandom as _, SystemRandom},
};
use rmcp::model::ClientJsonRpcMessage;
use std::{collections::HashMap, io};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{Role, WebSocketConfig},
    },
};

use super::{credentials::Sender, legacy::Both};

/// Longest message: what an answer of a tool may have beside its files, which have no other way here.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// Bytes that wait to be sent; one message is always taken.
const MAX_UNSENT_BYTES: usize = MAX_MESSAGE_BYTES + 1024 * 1024;

/// Read and written at a time. The default is for servers with less to say.
const BUFFER_BYTES: usize = 16 * 1024;

/// What both sides add to the key, so that none takes another protocol for this one (RFC 6455).
const ACCEPT_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The protocol, as servers call it.
const PROTOCOL: &str = "mcp";

/// Whether a URL is that of a WebSocket.
pub(crate) fn is_websocket(endpoint: &str) -> bool {
    let scheme = endpoint.split(':').next().unwrap_or_default();
    scheme.eq_ignore_ascii_case("ws") || scheme.eq_ignore_ascii_case("wss")
}

/// Opens one.
///
/// # Errors
/// When the server does not take it.
pub(super) async fn connect(
    sender: &Sender,
    endpoint: &str,
    headers: HashMap<HeaderName, HeaderValue>,
) -> Result<Both, String> {
    let failed = |what: String| format!("WebSocket: {what}");
    // `ws` becomes `http`, and `wss` becomes `https`.
    let url = format!("http{}", &endpoint[2..]);
    let mut nonce = [0; 16];
    SystemRandom::new().fill(&mut nonce).map_err(|_| failed("this machine gives no randomness".to_owned()))?;
    let key = STANDARD.encode(nonce);
    let request = headers.iter().fold(sender.http().get(url), |request, (name, value)| request.header(name, value));
    let request = request
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
        .header(header::SEC_WEBSOCKET_KEY, &key);
    let response = sender.send(request).await.map_err(|error| failed(error.to_string()))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(failed(format!("HTTP {} in the place of a WebSocket", response.status())));
    }
    let said = |name: HeaderName| response.headers().get(name).and_then(|value| value.to_str().ok());
    if said(header::SEC_WEBSOCKET_ACCEPT) != Some(accept(&key).as_str()) {
        return Err(failed("the server did not take this request for one".to_owned()));
    }
    if let Some(other) = said(header::SEC_WEBSOCKET_PROTOCOL).filter(|other| *other != PROTOCOL) {
        return Err(failed(format!("the server speaks {:?}, and not {PROTOCOL}", super::text::plain_line(other, 64))));
    }
    let connection = response.upgrade().await.map_err(|error| failed(error.to_string()))?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES))
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(MAX_UNSENT_BYTES);
    let socket = WebSocketStream::from_raw_socket(connection, Role::Client, Some(config)).await;
    let (outgoing, incoming) = socket.split();
    let outgoing = outgoing.sink_map_err(io::Error::other).with(|message: ClientJsonRpcMessage| {
        future::ready(serde_json::to_string(&message).map(Message::text).map_err(io::Error::other))
    });
    let incoming = stream::unfold(incoming, async |mut incoming| {
        loop {
            match incoming.next().await? {
                Ok(Message::Text(text)) => {
                    // The values of a message cost a hundred times its bytes.
                    if let Err(why) = towline_a2a::convert::check_answer(text.as_bytes()) {
                        tracing::warn!(why, "a message of an MCP server is not read: its WebSocket is closed");
                        return None;
                    }
                    match serde_json::from_str(&text) {
                        Ok(message) => return Some((message, incoming)),
                        Err(error) => tracing::debug!(%error, "MCP server sent what is no message"),
                    }
                }
                // Pings are answered below this.
                Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                Ok(Message::Close(_)) => return None,
                Err(error) => {
                    tracing::warn!(%error, "the WebSocket of an MCP server broke");
                    return None;
                }
            }
        }
    });
    Ok((Box::pin(outgoing), Box::pin(incoming)))
}

fn accept(key: &str) -> String {
    let text = format!("{key}{ACCEPT_SUFFIX}");
    STANDARD.encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_answered_as_in_the_example_of_the_standard() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(is_websocket("wss://a.example") && is_websocket("ws://a") && !is_websocket("https://ws.example"));
    }
}
