//! Long strings of a server's answers go into the blob store while they come, and never into memory.
//!
//! ```text
//! pipe or HTTP ──▶ filter ──▶ the message, with a token in the place of each long string ──▶ rmcp ──▶ call
//!                    └──▶ decoded, piece by piece ──▶ a file of the blob store ◀── claimed by its token ──┘
//! ```
//! A token is drawn, and what it stands for is kept on this side: a server cannot name what it did not send. What nobody
//! claims – the call has timed out – is content that nothing names, and goes after a day like an upload.

mod decode;
mod filter;
mod originals;

use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use serde_json::{Value, value::RawValue};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_util::{bytes::Bytes, io::StreamReader};
use towline_cluster::ClusterHandle;
use towline_core::Blob;

use filter::{Filter, Framing, MAX_MESSAGE_BYTES, MAX_MESSAGE_LISTS, MAX_MESSAGE_VALUES};
use originals::Originals;

/// Strings that wait to be claimed: more than the calls of one connection have. Beyond it the oldest are forgotten.
const MAX_WAITING: usize = 16_384;

/// Bytes that are read at a time: as many as a pipe holds.
const READ_BYTES: usize = 64 * 1024;

/// How tokens begin.
pub(super) const TOKEN: &str = "towline-spooled-";

/// What became of a long string.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Spooled {
    /// This node has it.
    Kept(Blob),
    /// It is not kept.
    Refused { error_type: &'static str, why: String },
}

impl Spooled {
    /// Why it is not kept.
    pub(super) fn refusal(&self) -> Option<(&'static str, &str)> {
        match self {
            Spooled::Kept(_) => None,
            Spooled::Refused { error_type, why } => Some((error_type, why)),
        }
    }
}

/// The long strings of one server; cheap to clone.
#[derive(Clone)]
pub(super) struct Spool(Arc<Inner>);

struct Inner {
    cluster: Option<ClusterHandle>,
    waiting: Mutex<VecDeque<(String, Spooled)>>,
    originals: Originals,
}

impl Spool {
    /// Without a cluster long strings are refused.
    pub(super) fn new(cluster: Option<ClusterHandle>) -> Self {
        Self(Arc::new(Inner { cluster, waiting: Mutex::default(), originals: Originals::default() }))
    }

    pub(super) fn cluster(&self) -> Option<&ClusterHandle> {
        self.0.cluster.as_ref()
    }

    /// Keeps results as they come for as long as what this returns.
    pub(super) fn want_originals(&self) -> Wanted {
        self.0.originals.want();
        Wanted(self.clone())
    }

    /// What a child process writes, a message per line.
    pub(super) fn lines<R: AsyncRead + Send + Unpin + 'static>(
        &self,
        output: R,
    ) -> impl AsyncRead + Send + Unpin + use<R> {
        let begin = (output, Filter::new(self.clone(), Framing::Lines), vec![0; READ_BYTES]);
        let read = stream::try_unfold(begin, async |(mut output, mut filter, mut buffer)| -> io::Result<_> {
            loop {
                let count = output.read(&mut buffer).await?;
                if count == 0 {
                    return Ok(None);
                }
                filter.feed(&buffer[..count]).await;
                let lines = filter.take();
                if !lines.is_empty() {
                    return Ok(Some((Bytes::from(lines), (output, filter, buffer))));
                }
            }
        });
        StreamReader::new(Box::pin(read))
    }

    /// The events of a response.
    pub(super) fn events<E: std::error::Error + Send + Sync + 'static>(
        &self,
        body: BoxStream<'static, Result<Bytes, E>>,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send + use<E> {
        let begin = (body, Filter::new(self.clone(), Framing::Events));
        stream::try_unfold(begin, async |(mut body, mut filter)| -> io::Result<_> {
            loop {
                let Some(bytes) = body.next().await.transpose().map_err(io::Error::other)? else { return Ok(None) };
                filter.feed(&bytes).await;
                if filter.is_too_much() {
                    return Err(io::Error::other(format!("an event has more than {MAX_MESSAGE_BYTES} bytes")));
                }
                let lines = filter.take();
                if !lines.is_empty() {
                    return Ok(Some((Bytes::from(lines), (body, filter))));
                }
            }
        })
    }

    /// A response that is one message; none if it is too large.
    pub(super) async fn body<E>(&self, mut body: BoxStream<'static, Result<Bytes, E>>) -> Result<Option<Vec<u8>>, E> {
        let mut filter = Filter::new(self.clone(), Framing::Body);
        while let Some(bytes) = body.next().await.transpose()? {
            filter.feed(&bytes).await;
        }
        Ok(filter.end())
    }

    /// What stands for an answer that is too large, under the id of its request.
    pub(super) fn too_large(&self, id: &str) -> String {
        let why = format!(
            "it has more than {MAX_MESSAGE_BYTES} bytes beside its files, {MAX_MESSAGE_VALUES} values, or \
             {MAX_MESSAGE_LISTS} objects and lists"
        );
        let token = self.put(Spooled::Refused { error_type: "too_large", why });
        let content = format!(r#"[{{"type":"text","text":"{token}"}}]"#);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":{content}}}}}"#)
    }

    fn put(&self, spooled: Spooled) -> String {
        let token = format!("{TOKEN}{}", uuid::Uuid::now_v7().simple());
        let mut waiting = self.waiting();
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
        }
        waiting.push_back((token.clone(), spooled));
        token
    }

    /// What the tokens in an answer stand for.
    pub(super) fn claim(&self, answer: &Value) -> BTreeMap<String, Spooled> {
        let mut tokens = Vec::new();
        tokens_in(answer, &mut tokens);
        let mut claimed = BTreeMap::new();
        let mut waiting = self.waiting();
        for token in tokens {
            if let Some(at) = waiting.iter().position(|(known, _)| known == token)
                && let Some((token, spooled)) = waiting.remove(at)
            {
                claimed.insert(token, spooled);
            }
        }
        claimed
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<(String, Spooled)>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Results are kept as they come until this is dropped.
pub(super) struct Wanted(Spool);

impl Wanted {
    /// The result under the id of a request, as its server wrote it.
    pub(super) fn take(&self, id: &str) -> Option<Box<RawValue>> {
        self.0.0.originals.take(id)
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.0.originals.want_no_more();
    }
}

fn tokens_in<'a>(value: &'a Value, tokens: &mut Vec<&'a str>) {
    match value {
        Value::String(text) if text.starts_with(TOKEN) => tokens.push(text),
        Value::Array(items) => items.iter().for_each(|item| tokens_in(item, tokens)),
        Value::Object(fields) => fields.values().for_each(|field| tokens_in(field, tokens)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
