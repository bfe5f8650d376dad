//! Which blobs are named: by tasks, and by uploads that no task names yet.
//!
//! A task names every blob that it ever named until it is swept, so that its events can be read for as long as it is there.
//! An upload names its blob for [`limits::UPLOAD_KEPT_MS`]; only who made it may name it in a message.

use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{State, done, key};
use crate::{
    Applied, Blob, BlobHash, Message, OwnerWord, Principal, Rejection, Stamp, Task, TaskId, Timestamp, limits,
};

/// When another try is worth it after a principal's share was full: uploads that nothing names go within a day, tasks
/// within a week.
const RETRY_AFTER_MS: u64 = 3_600_000;

/// An upload that comes again this soon is the same one, proposed twice: it changes nothing.
const SAME_UPLOAD_MS: u64 = 3_600_000;

/// All blobs that something names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Named {
    blobs: BTreeMap<BlobHash, NamedBlob>,
    uploads: BTreeMap<(Principal, BlobHash), Upload>,
    /// Uploads by when they were made.
    expiring: BTreeSet<(Timestamp, Principal, BlobHash)>,
    /// Bytes that a principal's tasks and uploads name.
    bytes: BTreeMap<Principal, u64>,
    /// Log index of the last entry that named a blob.
    changed: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct NamedBlob {
    length: u64,
    /// How many tasks and uploads name it.
    names: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Upload {
    length: u64,
    at: Timestamp,
}

impl Named {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn name(&mut self, owner: &Principal, hash: BlobHash, length: u64, index: u64) {
        self.blobs.entry(hash).or_insert(NamedBlob { length, names: 0 }).names += 1;
        *self.bytes.entry(owner.clone()).or_default() += length;
        self.changed = index;
    }

    fn unname(&mut self, owner: &Principal, hash: BlobHash, length: u64) {
        if let Some(named) = self.blobs.get_mut(&hash) {
            named.names -= 1;
            if named.names == 0 {
                self.blobs.remove(&hash);
            }
        }
        if let Some(bytes) = self.bytes.get_mut(owner) {
            *bytes = bytes.saturating_sub(length);
            if *bytes == 0 {
                self.bytes.remove(owner);
            }
        }
    }
}

impl State {
    /// Every blob that something names, and its length.
    pub fn named_blobs(&self) -> impl Iterator<Item = (BlobHash, u64)> {
        self.named.blobs.iter().map(|(hash, named)| (*hash, named.length))
    }

    /// How many blobs something names.
    pub fn named_blob_count(&self) -> usize {
        self.named.blobs.len()
    }

    /// Whether something names this blob.
    pub fn names_blob(&self, hash: &BlobHash) -> bool {
        self.named.blobs.contains_key(hash)
    }

    /// Log index of the last entry that named a blob: as long as it is the same, nothing new is named.
    pub fn blobs_named_at(&self) -> u64 {
        self.named.changed
    }

    /// The length of what a principal has uploaded under this hash, if it may still name it.
    pub fn upload(&self, by: &Principal, hash: BlobHash) -> Option<u64> {
        self.named.uploads.get(&(by.owner(), hash)).map(|upload| upload.length)
    }

    /// A principal has uploaded content. Again, but not at once: it may name it for longer.
    pub(super) fn take_upload(
        &mut self,
        by: &Principal,
        hash: BlobHash,
        length: u64,
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        let owner = by.owner();
        let name = (owner.clone(), hash);
        if let Some(before) = self.named.uploads.get_mut(&name) {
            if stamp.at.0.saturating_sub(before.at.0) < SAME_UPLOAD_MS {
                return Ok(done(Vec::new()));
            }
            let old = std::mem::replace(&mut before.at, stamp.at);
            self.named.expiring.remove(&(old, owner.clone(), hash));
            self.named.expiring.insert((stamp.at, owner, hash));
            return Ok(done(Vec::new()));
        }
        check_length(length)?;
        self.check_share(&owner, length)?;
        if self.named.uploads.len() >= limits::MAX_UPLOADS {
            return Err(full("the list of uploads".to_owned(), limits::MAX_UPLOADS as u64));
        }
        self.named.name(&owner, hash, length, stamp.index);
        self.named.uploads.insert(name, Upload { length, at: stamp.at });
        self.named.expiring.insert((stamp.at, owner, hash));
        Ok(done(Vec::new()))
    }

    /// Refuses blobs that exceed what a task or its principal may name. None is the task that is about to be made.
    pub(super) fn check_blobs(&self, owner: &Principal, task: Option<&Task>, more: &[Blob]) -> Result<(), Rejection> {
        let known = |hash: &BlobHash| task.is_some_and(|task| task.blobs.contains_key(hash));
        let new: BTreeMap<BlobHash, u64> =
            more.iter().filter(|blob| !known(&blob.hash)).map(|blob| (blob.hash, blob.length)).collect();
        if new.is_empty() {
            return Ok(());
        }
        new.values().try_for_each(|length| check_length(*length))?;
        let (count, bytes) = task.map_or((0, 0), |task| (task.blobs.len(), task.blobs.values().sum::<u64>()));
        let added: u64 = new.values().sum();
        if count + new.len() > limits::MAX_BLOBS_PER_TASK {
            return Err(too_large("number of large parts of the task", limits::MAX_BLOBS_PER_TASK as u64));
        }
        if bytes + added > limits::MAX_BLOB_BYTES_PER_TASK {
            return Err(too_large("large parts of the task in bytes", limits::MAX_BLOB_BYTES_PER_TASK));
        }
        self.check_share(owner, added)
    }

    fn check_share(&self, owner: &Principal, added: u64) -> Result<(), Rejection> {
        let limit = limits::MAX_BLOB_BYTES_PER_PRINCIPAL;
        let used = self.named.bytes.get(owner).copied().unwrap_or_default();
        if used + added > limit {
            Err(full(format!("the blob store's share of {owner}, in bytes,"), limit))
        } else {
            Ok(())
        }
    }

    /// A task names these blobs from here on.
    pub(super) fn name_blobs(&mut self, id: TaskId, blobs: &[Blob], stamp: Stamp) {
        if blobs.is_empty() {
            return;
        }
        let Some(task) = self.tasks.get_mut(&key(id)).map(Arc::make_mut) else { return };
        for blob in blobs {
            if task.blobs.insert(blob.hash, blob.length).is_none() {
                self.named.name(&task.owner, blob.hash, blob.length, stamp.index);
            }
        }
    }

    /// A task is gone, and names nothing more.
    pub(super) fn unname_blobs<'a>(
        &mut self,
        owner: &Principal,
        blobs: impl IntoIterator<Item = (&'a BlobHash, &'a u64)>,
    ) {
        for (hash, length) in blobs {
            self.named.unname(owner, *hash, *length);
        }
    }

    /// Whether a sweep would forget an upload.
    pub(super) fn has_expired_uploads(&self, now: Timestamp) -> bool {
        self.named.expiring.first().is_some_and(|(at, _, _)| is_over(*at, now))
    }

    /// Forgets uploads past their time. What a task names by then stays for its sake.
    pub(super) fn forget_uploads(&mut self, now: Timestamp) {
        for _ in 0..limits::MAX_SWEPT_PER_ENTRY {
            if !self.has_expired_uploads(now) {
                return;
            }
            let Some((_, owner, hash)) = self.named.expiring.pop_first() else { return };
            if let Some(upload) = self.named.uploads.remove(&(owner.clone(), hash)) {
                self.named.unname(&owner, hash, upload.length);
            }
        }
    }
}

/// The blobs that a message names.
pub(super) fn of_message(message: &Message) -> Vec<Blob> {
    message.blobs().copied().collect()
}

/// The blobs that an owner's words name.
pub(super) fn of_words(words: &[OwnerWord]) -> Vec<Blob> {
    words.iter().flat_map(OwnerWord::blobs).collect()
}

fn is_over(at: Timestamp, now: Timestamp) -> bool {
    now.0.saturating_sub(at.0) >= limits::UPLOAD_KEPT_MS
}

fn check_length(length: u64) -> Result<(), Rejection> {
    if length > limits::MAX_BLOB_BYTES {
        return Err(too_large("content of one part in bytes", limits::MAX_BLOB_BYTES));
    }
    Ok(())
}

fn too_large(what: &str, limit: u64) -> Rejection {
    Rejection::TooLarge { what: what.to_owned(), limit }
}

fn full(what: String, limit: u64) -> Rejection {
    Rejection::Full { what, limit, retry_after_ms: RETRY_AFTER_MS }
}
