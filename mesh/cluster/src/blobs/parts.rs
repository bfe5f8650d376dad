//! Parts and outcomes on their way into the log, and back to a reader.
//!
//! Content above [`MAX_INLINE_BYTES`] is kept in the blob store and named in its place. The same content always gets the same
//! name, so that a message that is sent again says the same.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;
use towline_core::{Blob, BlobForm, Content, Intent, Message, Outcome, OwnerWord, Part, limits::MAX_INLINE_BYTES};

use super::BlobError;
use crate::handle::ClusterHandle;

/// Parts of one message that are kept or read at the same time: each waits for a disk or another node.
const AT_ONCE: usize = 8;

impl ClusterHandle {
    /// Keeps the large parts of a message, and names them in their place.
    ///
    /// # Errors
    /// As for [`ClusterHandle::keep_content`].
    pub async fn keep_message(&self, message: &mut Message) -> Result<(), BlobError> {
        self.keep_parts(message.parts.iter_mut().collect()).await
    }

    /// Keeps what is large in an owner's words. A chunk of streamed text stays: it is to be joined with the others, and small.
    ///
    /// # Errors
    /// As for [`ClusterHandle::keep_content`].
    pub async fn keep_words(&self, words: &mut [OwnerWord]) -> Result<(), BlobError> {
        for word in words {
            match word {
                OwnerWord::StepStarted { intent: Intent::Delegate { message, .. }, .. } => {
                    self.keep_message(message).await?;
                }
                OwnerWord::StepEnded { outcome, .. } => self.keep_outcome(outcome).await?,
                OwnerWord::Chunk { parts, .. } => {
                    self.keep_parts(parts.iter_mut().filter(|part| !is_streamed(part)).collect()).await?;
                }
                OwnerWord::AskPerson { message, .. }
                | OwnerWord::Doubt { message, .. }
                | OwnerWord::Finished { message: Some(message), .. } => self.keep_message(message).await?,
                OwnerWord::TurnStarted { .. }
                | OwnerWord::StepStarted { .. }
                | OwnerWord::StepRestarted { .. }
                | OwnerWord::PeerTask { .. }
                | OwnerWord::Finished { message: None, .. }
                | OwnerWord::OutsideInput { .. }
                | OwnerWord::Released => {}
            }
        }
        Ok(())
    }

    /// Puts the content of blobs up to a size in the place of their names.
    ///
    /// # Errors
    /// When one of them cannot be read.
    pub async fn show_parts(&self, parts: Vec<&mut Part>, up_to: u64) -> Result<(), BlobError> {
        let mut work = Vec::new();
        for part in parts {
            if let Some(blob) = part.blob().copied().filter(|blob| blob.length <= up_to) {
                work.push(self.show_part(part, blob));
            }
        }
        all(work).await
    }

    /// The text of an outcome that is kept in the store; `None` for any other.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn stored_text(&self, outcome: &Outcome) -> Result<Option<String>, BlobError> {
        match outcome {
            Outcome::Stored { blob, .. } => match self.content_of(blob).await? {
                Content::Text(text) => Ok(Some(text)),
                Content::Raw(_) | Content::Url(_) | Content::Data(_) | Content::Blob(_) => Ok(None),
            },
            Outcome::Answered(_) | Outcome::Returned { .. } | Outcome::Failed { .. } => Ok(None),
        }
    }

    async fn keep_parts(&self, parts: Vec<&mut Part>) -> Result<(), BlobError> {
        let large = |part| self.keep_part(part);
        let work: Vec<_> = parts.into_iter().filter_map(large).collect();
        all(work).await
    }

    /// None where the part is small enough for the log.
    fn keep_part<'a>(&'a self, part: &'a mut Part) -> Option<impl Future<Output = Result<(), BlobError>> + 'a> {
        let (form, bytes) = large_content(&part.content)?;
        Some(async move {
            part.content = Content::Blob(self.keep(form, bytes).await?);
            Ok(())
        })
    }

    async fn show_part(&self, part: &mut Part, blob: Blob) -> Result<(), BlobError> {
        part.content = self.content_of(&blob).await?;
        Ok(())
    }

    async fn keep_outcome(&self, outcome: &mut Outcome) -> Result<(), BlobError> {
        if let Outcome::Returned { content, is_error } = outcome
            && content.len() > MAX_INLINE_BYTES
        {
            let blob = self.keep(BlobForm::Text, Bytes::from(content.clone())).await?;
            *outcome = Outcome::Stored { blob, is_error: *is_error };
        }
        Ok(())
    }

    /// Boxed, since little is large: a future holds the frames of all that it may wait for, and is moved with them.
    async fn keep(&self, form: BlobForm, bytes: Bytes) -> Result<Blob, BlobError> {
        let length = bytes.len() as u64;
        Ok(Blob { hash: Box::pin(self.keep_content(bytes)).await?, length, form })
    }

    async fn content_of(&self, blob: &Blob) -> Result<Content, BlobError> {
        let whole = async { self.open_blob(blob.hash, blob.length).await?.whole().await };
        let bytes = Box::pin(whole).await?;
        let wrong = || BlobError::Damaged { hash: blob.hash, what: "it is not what its part says" };
        match blob.form {
            BlobForm::Raw => Ok(Content::Raw(bytes)),
            BlobForm::Text => String::from_utf8(bytes).map(Content::Text).map_err(|_| wrong()),
            BlobForm::Data => serde_json::from_slice(&bytes).map(Content::Data).map_err(|_| wrong()),
        }
    }
}

/// Does so many of them at once. Mostly there are none, and then nothing is set up for them.
async fn all(work: Vec<impl Future<Output = Result<(), BlobError>>>) -> Result<(), BlobError> {
    if work.is_empty() {
        return Ok(());
    }
    Box::pin(futures::stream::iter(work).buffer_unordered(AT_ONCE).try_collect()).await
}

/// What streams to a reader as it is said.
fn is_streamed(part: &Part) -> bool {
    matches!(part.content, Content::Text(_)) && part.filename.is_none()
}

/// The bytes of content that is too large for the log.
fn large_content(content: &Content) -> Option<(BlobForm, Bytes)> {
    let (form, bytes) = match content {
        Content::Text(text) if text.len() > MAX_INLINE_BYTES => (BlobForm::Text, Bytes::from(text.clone())),
        Content::Raw(bytes) if bytes.len() > MAX_INLINE_BYTES => (BlobForm::Raw, Bytes::from(bytes.clone())),
        Content::Data(value) => (BlobForm::Data, Bytes::from(sorted(value).to_string())),
        Content::Text(_) | Content::Raw(_) | Content::Url(_) | Content::Blob(_) => return None,
    };
    (bytes.len() > MAX_INLINE_BYTES).then_some((form, bytes))
}

/// The value with the fields of all objects in the order of their names: their order is no part of what was said.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().map(|(name, value)| (name.clone(), sorted(value))).collect();
            fields.sort_by(|one, other| one.0.cmp(&other.0));
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structured_data_has_one_form_whatever_the_order_of_its_fields() {
        let text = "x".repeat(MAX_INLINE_BYTES);
        let one = serde_json::from_str(&format!(r#"{{"b":[{{"d":1,"c":2}}],"a":"{text}"}}"#)).unwrap();
        let other = serde_json::from_str(&format!(r#"{{"a":"{text}","b":[{{"c":2,"d":1}}]}}"#)).unwrap();
        assert_eq!(large_content(&Content::Data(one)), large_content(&Content::Data(other)));
    }

    #[test]
    fn small_content_and_links_stay_in_the_log() {
        let small = "x".repeat(MAX_INLINE_BYTES);
        for content in [Content::Text(small.clone()), Content::Raw(small.into()), Content::Url("x".repeat(90_000))] {
            assert_eq!(large_content(&content), None);
        }
        let large = "x".repeat(MAX_INLINE_BYTES + 1);
        assert!(large_content(&Content::Text(large.clone())).is_some());
        assert!(large_content(&Content::Raw(large.into())).is_some());
    }
}
