//! Tasks that have ended and were handed to the archive. Of each a stub stays here until the sweep: all that a command can
//! still ask, so that nothing is read from the archive to apply one.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};
use uuid::Uuid;

use super::{
    ListFilter, State, check_message, done, key,
    remembered::Mark,
    stubs::{Kept, Stub},
};
use crate::{Applied, Digest, Level, Message, Principal, Rejection, Reply, Task, TaskId, TaskState, Timestamp, limits};

/// Where the record of a task is.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// Here.
    Live(Arc<Task>),
    /// In the archive.
    Archived,
}

/// One task of a listing.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its id.
    pub id: TaskId,
    /// Since when it has its status.
    pub at: Timestamp,
    /// The task; none when its record is in the archive.
    pub task: Option<Arc<Task>>,
}

/// Which tasks are on a page, newest status first. The archive has the records of some of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// The tasks.
    pub rows: Vec<Row>,
    /// Whether there are more behind them.
    pub more: bool,
    /// How many tasks the filter selects on all pages.
    pub total: usize,
}

/// One page of a listing, newest status first.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPage {
    /// The tasks.
    pub tasks: Vec<Arc<Task>>,
    /// Where the next page goes on, if there is one.
    pub next: Option<(Timestamp, TaskId)>,
    /// How many tasks the filter selects on all pages.
    pub total: usize,
}

impl Listing {
    /// The tasks whose records are in the archive, in order.
    pub fn archived(&self) -> Vec<TaskId> {
        self.rows.iter().filter(|row| row.task.is_none()).map(|row| row.id).collect()
    }

    /// The page, with what the archive gave. A task that it does not have (any more) is left out; the page ends before one
    /// that was not asked for. It also ends early before the task with which it would exceed [`limits::MAX_PAGE_BYTES`] of
    /// what `weigh` says is shown of each. The first one is always on it.
    pub fn page(self, found: &BTreeMap<TaskId, Option<Arc<Task>>>, weigh: impl Fn(&Task) -> usize) -> TaskPage {
        let (rows, total) = (self.rows.len(), self.total);
        let mut tasks: Vec<Arc<Task>> = Vec::new();
        let (mut bytes, mut taken, mut last) = (0, 0, None);
        for row in self.rows {
            let task = match row.task {
                Some(task) => Some(task),
                None => match found.get(&row.id) {
                    Some(found) => found.clone(),
                    None => break,
                },
            };
            if let Some(task) = task {
                bytes += weigh(&task);
                if bytes > limits::MAX_PAGE_BYTES && !tasks.is_empty() {
                    break;
                }
                tasks.push(task);
            }
            taken += 1;
            last = Some((row.at, row.id));
        }
        let more = self.more || taken < rows;
        TaskPage { tasks, next: last.filter(|_| more), total }
    }
}

impl State {
    /// What is kept of a task whose record is in the archive.
    pub fn stub(&self, id: TaskId) -> Option<Stub> {
        self.archived.get(id).map(Kept::stub)
    }

    /// [`State::stub`] as a principal may see it: another's looks as if it did not exist.
    pub fn stub_for(&self, by: &Principal, id: TaskId) -> Option<Stub> {
        self.archived.get(id).filter(|kept| by.may_act_on(kept.owner())).map(Kept::stub)
    }

    /// Where the record of a task is, whoever owns it; none if there is no such task.
    pub fn record(&self, id: TaskId) -> Option<Record> {
        let live = self.tasks.get(&key(id)).map(|task| Record::Live(Arc::clone(task)));
        live.or_else(|| self.archived.get(id).map(|_| Record::Archived))
    }

    /// [`State::record`] as a principal may see it: another's looks as if it did not exist.
    pub fn record_for(&self, by: &Principal, id: TaskId) -> Option<Record> {
        if self.asked_task(by, id).is_some() {
            return self.record(id);
        }
        let owner = self.task(id).map(|task| &task.owner).or_else(|| self.archived.get(id).map(Kept::owner))?;
        by.may_act_on(owner).then(|| self.record(id)).flatten()
    }

    /// The state of a task, wherever its record is.
    pub fn state_of(&self, id: TaskId) -> Option<TaskState> {
        self.task(id).map(|task| task.status.state).or_else(|| self.archived.get(id).map(|kept| kept.state))
    }

    /// Whether a task is known, wherever its record is.
    pub fn knows_task(&self, id: TaskId) -> bool {
        self.state_of(id).is_some()
    }

    /// How many tasks are in the archive.
    pub fn archived_count(&self) -> usize {
        self.archived.len()
    }

    /// The archived tasks behind one, or from the first one on, by virtual shard and id.
    pub fn archived_behind(&self, id: Option<TaskId>) -> impl Iterator<Item = TaskId> + '_ {
        self.archived.ids_behind(id)
    }

    /// The tasks that a task delegated to agents of this mesh, wherever their records are.
    pub fn children_ids(&self, task: TaskId) -> impl Iterator<Item = TaskId> + '_ {
        self.children.get(&task).into_iter().flatten().copied()
    }

    /// The tasks that should go to the archive: those that ended `after_ms` ago or earlier, and the oldest of more than
    /// [`limits::MAX_ENDED_IN_MEMORY`]; as many as one entry takes.
    pub fn archivable(&self, now: Timestamp, after_ms: u64) -> Vec<TaskId> {
        let excess = self.ended.len().saturating_sub(limits::MAX_ENDED_IN_MEMORY);
        let due = |(number, (at, _)): &(usize, &(Timestamp, TaskId))| {
            *number < excess || now.0.saturating_sub(at.0) >= after_ms
        };
        let due = self.ended.iter().enumerate().take_while(due).map(|(_, (_, id))| *id);
        due.take(limits::MAX_ARCHIVED_PER_ENTRY).collect()
    }

    /// The records that a command to archive these tasks takes out of this state, as they are.
    pub fn to_archive(&self, ids: &[TaskId]) -> Vec<Arc<Task>> {
        let ids = if ids.len() > limits::MAX_ARCHIVED_PER_ENTRY { &[] } else { ids };
        let mut tasks: Vec<Arc<Task>> = ids.iter().filter_map(|id| self.ended_task(*id)).cloned().collect();
        tasks.dedup_by_key(|task| task.id);
        tasks
    }

    /// The archived tasks that a sweep may remove, and perhaps more.
    pub fn first_archived(&self) -> Vec<TaskId> {
        self.archived.first_ended(limits::MAX_SWEPT_PER_ENTRY)
    }

    fn ended_task(&self, id: TaskId) -> Option<&Arc<Task>> {
        self.tasks.get(&key(id)).filter(|task| task.status.state.is_terminal())
    }

    /// One page of the tasks that a principal may see, newest status first.
    pub fn list(&self, by: &Principal, filter: &ListFilter, page_size: usize) -> Listing {
        let owner = by.owner();
        let owner = (!by.is_operator()).then_some(&owner);
        let mine =
            self.tasks.values().filter(|task| owner.is_none_or(|owner| *owner == task.owner) && filter.selects(task));
        let mut live: Vec<&Arc<Task>> = mine.collect();
        let total = live.len() + self.archived.count(owner, filter);
        live.retain(|task| filter.after.is_none_or(|after| (task.status.at, task.id) < after));
        live.sort_unstable_by_key(|task| Reverse((task.status.at, task.id)));
        let mut live = live.into_iter().peekable();
        let mut archived = self.archived.selected(owner, filter, filter.after).peekable();
        let mut rows = Vec::new();
        loop {
            let newest = live.peek().map(|task| (task.status.at, task.id));
            let (Some(next), is_live) = (match archived.peek() {
                Some(stub) if newest.is_none_or(|newest| newest < *stub) => (Some(*stub), false),
                Some(_) | None => (newest, true),
            }) else {
                return Listing { rows, more: false, total };
            };
            if rows.len() == page_size {
                return Listing { rows, more: true, total };
            }
            let task = if is_live { live.next().cloned() } else { archived.next().and(None) };
            rows.push(Row { id: next.1, at: next.0, task });
        }
    }

    /// Records of ended tasks leave for the archive. Others of these ids stay as they are.
    pub(super) fn archive(&mut self, ids: &[TaskId]) -> Result<Applied, Rejection> {
        if ids.len() > limits::MAX_ARCHIVED_PER_ENTRY {
            let limit = limits::MAX_ARCHIVED_PER_ENTRY as u64;
            return Err(Rejection::TooLarge { what: "number of tasks to archive".into(), limit });
        }
        for id in ids {
            if self.ended_task(*id).is_none() {
                continue;
            }
            let Some(task) = self.tasks.remove(&key(*id)) else { continue };
            if !self.ended.remove(&(task.status.at, *id)) {
                self.ended.retain(|(_, other)| other != id);
            }
            if self.is_at(Level::BOUNDS) {
                self.remember_by_hash(&task);
            } else {
                self.note_messages(&task);
            }
            self.archived.insert(*id, Stub::of(&task));
        }
        Ok(done(Vec::new()))
    }

    /// What versions noted of messages only with the task is noted with them: the task's history goes.
    fn note_messages(&mut self, task: &Task) {
        for (sender, message) in task.sent() {
            let name = (sender.clone(), message.message_id.clone());
            let Some(sent) = self.dedup.get_mut(&name).filter(|sent| sent.is_of(task.id)) else { continue };
            if sent.note(Digest::of_message(message), task.status.at) {
                self.expiring.insert((task.status.at, name.0, name.1));
            }
        }
    }

    /// The task's messages are kept in fewer bytes.
    fn remember_by_hash(&mut self, task: &Task) {
        for (sender, message) in task.sent() {
            let name = (sender.clone(), message.message_id.clone());
            if !self.dedup.get(&name).is_some_and(|sent| sent.is_of(task.id)) {
                continue;
            }
            let Some(sent) = self.dedup.remove(&name) else { continue };
            let ended = sent.ended().unwrap_or(task.status.at);
            let digest = sent.digest().unwrap_or_else(|| Digest::of_message(message));
            self.remembered.insert(&name.0, &name.1, Mark::of(&sent, digest, ended));
            self.expiring.remove(&(ended, name.0, name.1));
        }
    }

    /// A message to a task that may be in the archive, and is not here.
    pub(super) fn continue_ended(&self, by: &Principal, id: TaskId, message: &Message) -> Result<Applied, Rejection> {
        let stub = self.stub_for(by, id).ok_or(Rejection::UnknownTask { task: id })?;
        check_message(message, self.level)?;
        if message.context_id.as_ref().is_some_and(|context| *context != stub.context) {
            return Err(Rejection::ContextMismatch { task: id });
        }
        Err(Rejection::TaskEnded { task: id, state: stub.state })
    }

    /// A cancel of a task that may be in the archive, and is not here.
    pub(super) fn cancel_ended(&self, by: &Principal, id: TaskId) -> Result<Applied, Rejection> {
        let stub = self.stub_for(by, id).ok_or(Rejection::UnknownTask { task: id })?;
        if stub.state == TaskState::Canceled {
            return Ok(done(Vec::new()));
        }
        Err(Rejection::NotCancelable { task: id, state: stub.state })
    }

    /// A decision about a step of a task that may be in the archive, and is not here.
    pub(super) fn resolve_ended(&self, by: &Principal, id: TaskId, request: Uuid) -> Result<Applied, Rejection> {
        let stub = self.stub_for(by, id).ok_or(Rejection::UnknownTask { task: id })?;
        if stub.was_resolved_by(request) {
            return Ok(Applied { reply: Reply::Continued { task: id }, effects: Vec::new() });
        }
        Err(Rejection::NotInDoubt { task: id, state: stub.state })
    }

    /// What a former owner tells of a task that may be in the archive, and is not here.
    pub(super) fn refuse_of_ended(&self, id: TaskId) -> Rejection {
        match self.stub(id) {
            Some(stub) => Rejection::TaskEnded { task: id, state: stub.state },
            None => Rejection::UnknownTask { task: id },
        }
    }
}
