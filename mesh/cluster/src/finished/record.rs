//! The record of a finished task as bytes: the same in the archive of every node, between nodes and in saved snapshots.
//!
//! ```text
//! record = format(1) | first half of BLAKE3 over id and body (16) | body: the task in MessagePack with named fields
//! ```

use towline_core::{Task, TaskId};

use crate::wire::{self, WireError};

/// The version that this binary writes, and the only one that it reads.
const FORMAT: u8 = 1;
const CHECKSUM: usize = 16;
const HEADER: usize = 1 + CHECKSUM;
const WHAT: &str = "record of a finished task";

pub(crate) fn encode(task: &Task) -> Result<Vec<u8>, WireError> {
    let body = wire::encode(WHAT, task)?;
    let mut record = Vec::with_capacity(HEADER + body.len());
    record.push(FORMAT);
    record.extend_from_slice(&checksum(task.id, &body));
    record.extend_from_slice(&body);
    Ok(record)
}

/// Checks that bytes are the record of a task, unchanged.
pub(crate) fn check(id: TaskId, record: &[u8]) -> Result<&[u8], WireError> {
    let Some((header, body)) = record.split_at_checked(HEADER) else {
        return Err(WireError::Missing { message: WHAT, field: "checksum" });
    };
    if header[0] != FORMAT {
        return Err(WireError::Format { message: WHAT, found: header[0].into(), known: FORMAT.into() });
    }
    if header[1..] != checksum(id, body) {
        return Err(WireError::Checksum { what: WHAT });
    }
    Ok(body)
}

pub(crate) fn decode(id: TaskId, record: &[u8]) -> Result<Task, WireError> {
    let task: Task = wire::decode(WHAT, check(id, record)?)?;
    if task.id == id {
        Ok(task)
    } else {
        Err(WireError::Foreign { what: WHAT, reason: format!("{id} is that of {}", task.id) })
    }
}

fn checksum(id: TaskId, body: &[u8]) -> [u8; CHECKSUM] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(id.as_uuid().as_bytes());
    hasher.update(body);
    let mut first = [0; CHECKSUM];
    hasher.finalize_xof().fill(&mut first);
    first
}
