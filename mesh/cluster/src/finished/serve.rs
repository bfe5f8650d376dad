//! What this node does for others with its archive: it gives records.

use std::{collections::VecDeque, pin::Pin};

use bytes::Bytes;
use futures::{Stream, stream};
use tonic::Status;
use towline_core::TaskId;
use towline_proto::v1;

use super::{ASKED_TOGETHER, Store};
use crate::seams;

/// Bytes of a record in one message.
const CHUNK_BYTES: usize = 1024 * 1024;
/// Records that are read at a time, unless they are large.
const READ_TOGETHER: usize = 32;
/// Bytes that are read at a time, or one record.
const READ_BYTES: usize = 1024 * 1024;

/// Records as they are sent.
pub(crate) type ChunkStream = Pin<Box<dyn Stream<Item = Result<v1::FinishedChunk, Status>> + Send>>;

/// Gives records, in the order in which they are asked for, and says which are not here. They are not fetched from elsewhere: who asks
/// does that.
pub(crate) fn serve(store: Store, request: v1::FinishedRequest) -> Result<ChunkStream, Status> {
    if request.tasks.len() > ASKED_TOGETHER {
        return Err(Status::invalid_argument(format!("at most {ASKED_TOGETHER} tasks are asked for at a time")));
    }
    let ids = request.tasks.iter().map(|id| uuid::Uuid::from_slice(id).map(TaskId::from_uuid));
    let ids: VecDeque<TaskId> =
        ids.collect::<Result<_, _>>().map_err(|_| Status::invalid_argument("id of a task has not 16 bytes"))?;
    let answer = Answer { store, ids, read: VecDeque::new() };
    Ok(Box::pin(stream::try_unfold(answer, Answer::next)))
}

struct Answer {
    store: Store,
    ids: VecDeque<TaskId>,
    /// What was read and not sent yet; none is not here.
    read: VecDeque<(TaskId, Option<Bytes>)>,
}

impl Answer {
    async fn next(mut self) -> Result<Option<(v1::FinishedChunk, Self)>, Status> {
        if self.read.is_empty() {
            self = self.read_more().await?;
        }
        let Some((id, record)) = self.read.pop_front() else { return Ok(None) };
        let task = Bytes::copy_from_slice(id.as_uuid().as_bytes());
        let Some(mut data) = record else {
            let absent = v1::FinishedChunk { task, data: Bytes::new(), last: true, absent: true };
            return Ok(Some((absent, self)));
        };
        let rest = data.split_off(data.len().min(CHUNK_BYTES));
        let last = rest.is_empty();
        if !last {
            self.read.push_front((id, Some(rest)));
        }
        Ok(Some((v1::FinishedChunk { task, data, last, absent: false }, self)))
    }

    async fn read_more(mut self) -> Result<Self, Status> {
        let read = seams::blocking(move || {
            let mut bytes = 0;
            while self.read.len() < READ_TOGETHER && bytes < READ_BYTES {
                let Some(id) = self.ids.pop_front() else { break };
                let record = self.store.bytes(id)?;
                bytes += record.as_ref().map_or(0, Vec::len);
                self.read.push_back((id, record.map(Bytes::from)));
            }
            Ok::<_, std::io::Error>(self)
        });
        read.await
            .and_then(|read| read)
            .map_err(|error| Status::unavailable(format!("archive cannot be read: {error}")))
    }
}
