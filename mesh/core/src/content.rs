//! Messages, parts and artifacts, as A2A 1.0 defines them (spec section 4.1), without its wire types.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{Blob, ContextId, MessageId, TaskId, limits::MAX_SHOWN_BLOB_BYTES};

/// Free-form JSON that travels with a message, part or artifact.
pub type Metadata = BTreeMap<String, serde_json::Value>;

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The client.
    User,
    /// The agent.
    Agent,
}

/// What a part holds: exactly one of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Content {
    /// Text.
    Text(String),
    /// Bytes of a file.
    Raw(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Where a file is.
    Url(String),
    /// Structured data.
    Data(serde_json::Value),
    /// Text, bytes or structured data that lie in the blob store.
    Blob(Blob),
}

/// One part of a message or artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The content.
    pub content: Content,
    /// IANA media type, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Name of the file, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// Free-form metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: Metadata,
}

impl Part {
    /// A part that holds text and nothing else.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: Content::Text(text.into()), media_type: None, filename: None, metadata: Metadata::new() }
    }

    /// A part that holds structured data and nothing else.
    pub fn data(value: serde_json::Value) -> Self {
        Self { content: Content::Data(value), media_type: None, filename: None, metadata: Metadata::new() }
    }

    /// Bytes of content that a reader is shown, for the bounds in [`crate::limits`]. Structured data counts as its JSON
    /// text; a blob that is shown as a link counts as nothing.
    pub fn size(&self) -> usize {
        match &self.content {
            Content::Text(text) | Content::Url(text) => text.len(),
            Content::Raw(bytes) => bytes.len(),
            Content::Data(value) => value.to_string().len(),
            Content::Blob(blob) if blob.length <= MAX_SHOWN_BLOB_BYTES => {
                usize::try_from(blob.length).unwrap_or(usize::MAX)
            }
            Content::Blob(_) => 0,
        }
    }

    fn extra_size(&self) -> usize {
        let name = |name: &Option<String>| name.as_ref().map_or(0, String::len);
        json_size(&self.metadata) + name(&self.media_type) + name(&self.filename)
    }

    /// The blob that it names, if it does.
    pub fn blob(&self) -> Option<&Blob> {
        match &self.content {
            Content::Blob(blob) => Some(blob),
            Content::Text(_) | Content::Raw(_) | Content::Url(_) | Content::Data(_) => None,
        }
    }
}

/// A message from a client or an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Chosen by the sender.
    pub message_id: MessageId,
    /// The conversation, if the sender named one or the cluster has assigned it.
    pub context_id: Option<ContextId>,
    /// The task that the message continues or belongs to.
    pub task_id: Option<TaskId>,
    /// Who wrote it.
    pub role: Role,
    /// Never empty.
    pub parts: Vec<Part>,
    /// Free-form metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: Metadata,
    /// URIs of the extensions that contributed to the message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<String>,
    /// Other tasks that the message refers to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reference_task_ids: Vec<String>,
}

impl Message {
    /// All text parts, joined by line breaks.
    pub fn text(&self) -> String {
        join_text(&self.parts)
    }

    /// Bytes of content in all parts.
    pub fn size(&self) -> usize {
        self.parts.iter().map(Part::size).sum()
    }

    /// Bytes of what it says beside the content of its parts: metadata, media types, names of files, extensions, references.
    pub fn extra_size(&self) -> usize {
        let lengths = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
        let parts: usize = self.parts.iter().map(Part::extra_size).sum();
        json_size(&self.metadata) + lengths(&self.extensions) + lengths(&self.reference_task_ids) + parts
    }

    /// The blobs that its parts name.
    pub fn blobs(&self) -> impl Iterator<Item = &Blob> {
        self.parts.iter().filter_map(Part::blob)
    }

    /// Whether both say the same thing by the rule of deduplication: role, parts, context, task and references;
    /// metadata is left out, since a retry may carry another trace.
    pub fn same_content(&self, other: &Message) -> bool {
        self.role == other.role
            && self.parts == other.parts
            && self.context_id == other.context_id
            && self.task_id == other.task_id
            && self.reference_task_ids == other.reference_task_ids
    }
}

/// Something that a task made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Artifact {
    /// Unique in its task.
    pub artifact_id: String,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The content. Text chunks that were streamed are joined into one part.
    pub parts: Vec<Part>,
    /// Free-form metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: Metadata,
}

impl Artifact {
    /// All text parts, one right after the other: the chunks of a stream stay parts on servers that do not join them.
    pub fn text(&self) -> String {
        texts(&self.parts).collect()
    }

    /// Appends the parts of a chunk. A text part that follows plain text extends it, so that concatenating the chunks
    /// of a stream gives exactly the text that is stored.
    pub fn append(&mut self, parts: &[Part]) {
        for part in parts {
            let extended = match (self.parts.last_mut(), &part.content) {
                (Some(Part { content: Content::Text(text), media_type, filename: None, .. }), Content::Text(more))
                    if part.filename.is_none() && *media_type == part.media_type =>
                {
                    text.push_str(more);
                    true
                }
                _ => false,
            };
            if !extended {
                self.parts.push(part.clone());
            }
        }
    }
}

/// Bytes of metadata as JSON, about: without what stands between the pairs.
fn json_size(metadata: &Metadata) -> usize {
    metadata.iter().map(|(name, value)| name.len() + value.to_string().len()).sum()
}

fn join_text(parts: &[Part]) -> String {
    texts(parts).collect::<Vec<_>>().join("\n")
}

fn texts(parts: &[Part]) -> impl Iterator<Item = &str> {
    parts.iter().filter_map(|part| match &part.content {
        Content::Text(text) => Some(text.as_str()),
        Content::Raw(_) | Content::Url(_) | Content::Data(_) | Content::Blob(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chunks_of_an_artifact_are_one_text_and_the_parts_of_a_message_are_lines() {
        let parts = vec![Part::text("A rope is "), Part::data(serde_json::json!(1)), Part::text("a line.")];
        let artifact =
            Artifact { artifact_id: "a".into(), name: None, description: None, parts, metadata: Metadata::new() };
        assert_eq!(artifact.text(), "A rope is a line.");
        assert_eq!(join_text(&artifact.parts), "A rope is \na line.");
    }
}
