//! Digests of what was said: the same on every node and in every build, whatever order a JSON object keeps.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use uuid::Uuid;

use crate::{BlobForm, Content, Message, Metadata, Role};

/// Characters of a digest that people compare: enough that two calls of one task do not meet by chance.
const SHOWN_CHARS: usize = 16;

/// BLAKE3 of a value in a fixed form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of a JSON value.
    pub fn of_json(value: &Value) -> Self {
        let mut hasher = Hasher::default();
        hasher.json(value);
        hasher.end()
    }

    /// Of what [`Message::same_content`] compares: equal exactly if that says so.
    pub fn of_message(message: &Message) -> Self {
        let mut hasher = Hasher::default();
        hasher.bytes(match message.role {
            Role::User => b"user",
            Role::Agent => b"agent",
        });
        hasher.optional(message.context_id.as_ref().map(crate::ContextId::as_str));
        hasher.optional(message.task_id.map(|task| task.to_string()).as_deref());
        hasher.count(message.reference_task_ids.len());
        message.reference_task_ids.iter().for_each(|task| hasher.bytes(task.as_bytes()));
        hasher.count(message.parts.len());
        for part in &message.parts {
            hasher.content(&part.content);
            hasher.optional(part.media_type.as_deref());
            hasher.optional(part.filename.as_deref());
            hasher.metadata(&part.metadata);
        }
        hasher.end()
    }
}

impl Digest {
    /// The first half, which tells what one sender says under one id from what else it may say.
    pub(crate) fn half(&self) -> Uuid {
        half(&self.0)
    }
}

/// The first half of a BLAKE3 hash, as something that is small in every encoding.
pub(crate) fn half(hash: &[u8; 32]) -> Uuid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    Uuid::from_bytes(bytes)
}

impl fmt::Display for Digest {
    /// The start of it in hex, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(SHOWN_CHARS / 2).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Feeds values so that no two different ones give the same bytes: each has a tag or a length.
#[derive(Default)]
struct Hasher(blake3::Hasher);

impl Hasher {
    fn end(self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }

    fn tag(&mut self, tag: u8) {
        self.0.update(&[tag]);
    }

    fn count(&mut self, count: usize) {
        self.0.update(&(count as u64).to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }

    fn optional(&mut self, text: Option<&str>) {
        match text {
            None => self.tag(0),
            Some(text) => {
                self.tag(1);
                self.bytes(text.as_bytes());
            }
        }
    }

    fn content(&mut self, content: &Content) {
        match content {
            Content::Text(text) => {
                self.tag(0);
                self.bytes(text.as_bytes());
            }
            Content::Raw(bytes) => {
                self.tag(1);
                self.bytes(bytes);
            }
            Content::Url(url) => {
                self.tag(2);
                self.bytes(url.as_bytes());
            }
            Content::Data(value) => {
                self.tag(3);
                self.json(value);
            }
            Content::Blob(blob) => {
                self.tag(4);
                self.bytes(blob.hash.as_bytes());
                self.count(usize::try_from(blob.length).unwrap_or(usize::MAX));
                self.tag(match blob.form {
                    BlobForm::Text => 0,
                    BlobForm::Raw => 1,
                    BlobForm::Data => 2,
                });
            }
        }
    }

    fn metadata(&mut self, metadata: &Metadata) {
        self.count(metadata.len());
        for (key, value) in metadata {
            self.bytes(key.as_bytes());
            self.json(value);
        }
    }

    fn json(&mut self, value: &Value) {
        match value {
            Value::Null => self.tag(0),
            Value::Bool(value) => {
                self.tag(1);
                self.tag(u8::from(*value));
            }
            Value::Number(number) => {
                self.tag(2);
                self.bytes(number.to_string().as_bytes());
            }
            Value::String(text) => {
                self.tag(3);
                self.bytes(text.as_bytes());
            }
            Value::Array(items) => {
                self.tag(4);
                self.count(items.len());
                items.iter().for_each(|item| self.json(item));
            }
            Value::Object(fields) => {
                self.tag(5);
                self.count(fields.len());
                // Whether an object keeps the order of its fields or sorts them is a feature of a build.
                let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
                fields.sort_unstable_by_key(|(key, _)| *key);
                for (key, value) in fields {
                    self.bytes(key.as_bytes());
                    self.json(value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_fields_does_not_count_and_everything_else_does() {
        let parse = |text: &str| Digest::of_json(&serde_json::from_str(text).unwrap());
        assert_eq!(parse(r#"{"a":1,"b":[2]}"#), parse(r#"{"b":[2],"a":1}"#));
        let different = ["1", "\"1\"", "[1]", "[[1]]", "{\"1\":1}", "{}", "[]", "null", "true", "1.0"];
        for (at, one) in different.iter().enumerate() {
            for other in &different[at + 1..] {
                assert_ne!(parse(one), parse(other), "{one} and {other}");
            }
        }
        assert_eq!(parse("1").to_string().len(), SHOWN_CHARS);
    }
}
