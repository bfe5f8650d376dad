//! The events of the cluster as its readers see them: in the order of the log, from an index on, each reader what it may hear.
//!
//! The index of an entry of the log is the cursor. It means the same on every node, so a reader goes on at another node where
//! it stood. A reader holds no queue: it reads from the ring of its node at its own pace. Who is so slow that the ring has
//! passed it by is told so with the index that it has, and closed.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use towline_a2a::{convert::state_name, time_text};
use towline_cluster::{ClusterHandle, FeedEntry, FeedGone, FeedPage, Unavailable};
use towline_core::{Happening, NodeChange, NodeRole, Principal, SignInChange, TaskChange, TriggerNews};

use crate::auth::StreamPlace;

/// Entries that are taken out of the ring at once: a reader is behind by no more than it can write.
const PAGE_ENTRIES: usize = 256;

/// Things in one frame: the loss of a node may move thousands of tasks in one entry.
const MAX_IN_FRAME: usize = 256;

/// How often a reader that is told nothing hears where the feed stands: so it can go on from there, however little is for it.
const BEAT: Duration = Duration::from_secs(15);

/// Which kinds of events a reader wants; all of them if none is named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kinds(BTreeSet<String>);

impl Kinds {
    /// Kinds by name, as `task.status`, or by the word before the dot, as `task`.
    ///
    /// # Errors
    /// Names what is no kind, and the kinds that there are.
    pub fn read<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        // Each counts once: so there are no more than there are kinds, however many are named.
        let names: BTreeSet<String> = names.into_iter().filter(|name| !name.is_empty()).map(str::to_owned).collect();
        match names.iter().find(|name| !Happening::KINDS.iter().any(|kind| is_of(kind, name))) {
            Some(unknown) => {
                let shown = towline_a2a::shortened(unknown);
                Err(format!("{shown:?} is no kind of event; there are {}", Happening::KINDS.join(", ")))
            }
            None => Ok(Self(names)),
        }
    }

    fn wants(&self, kind: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|name| is_of(kind, name))
    }
}

fn is_of(kind: &str, name: &str) -> bool {
    kind == name || kind.split_once('.').is_some_and(|(group, _)| group == name)
}

/// What a reader asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FeedRequest {
    /// It has everything up to and with this index.
    pub after: Option<u64>,
    /// What it wants.
    pub kinds: Kinds,
}

/// Why nothing is read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FeedRefused {
    /// What follows is not kept here any more.
    #[error(transparent)]
    Gone(#[from] FeedGone),
    /// The cluster has not come so far.
    #[error("index {after} is not there yet: the last one of this cluster is {last}")]
    Ahead {
        /// What was asked for.
        after: u64,
        /// The last index.
        last: u64,
    },
    /// Whether the index is one of this cluster cannot be found out now.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// A page of what happened.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Page {
    /// The entries by which something happened that its reader may hear.
    pub entries: Vec<Value>,
    /// Where the reader stands behind them.
    pub last: u64,
    /// The oldest index to go on from at this node.
    pub oldest: u64,
}

impl Page {
    pub(crate) fn to_json(&self) -> Value {
        json!({ "entries": self.entries, "last": self.last, "oldest": self.oldest })
    }
}

/// What happened behind an index, up to so many entries; from the oldest that is kept if no index is named.
///
/// # Errors
/// When what follows is gone, or the index is not there yet.
pub(crate) async fn page(
    cluster: &ClusterHandle,
    by: &Principal,
    request: FeedRequest,
    most: usize,
) -> Result<Page, FeedRefused> {
    let mut last = match request.after {
        Some(after) => reached(cluster, after).await?,
        None => oldest(cluster),
    };
    let mut entries = Vec::new();
    loop {
        let found = cluster.feed(last, PAGE_ENTRIES.min(most))?;
        for entry in &found.entries {
            let seen = told(entry, by, &request.kinds);
            if !seen.is_empty() {
                entries.push(of_entry(entry, seen));
            }
            last = entry.index;
            if entries.len() == most {
                return Ok(Page { entries, last, oldest: found.oldest });
            }
        }
        if found.entries.is_empty() {
            return Ok(Page { entries, last: found.through, oldest: found.oldest });
        }
    }
}

/// The oldest index that a reader can go on from at this node.
fn oldest(cluster: &ClusterHandle) -> u64 {
    match cluster.feed(u64::MAX, 0) {
        Ok(page) => page.oldest,
        Err(gone) => gone.oldest,
    }
}

fn applied(cluster: &ClusterHandle) -> u64 {
    match cluster.feed(u64::MAX, 0) {
        Ok(page) => page.applied,
        Err(gone) => gone.applied,
    }
}

/// The index, once this node has applied it: another node may have told of it that is ahead.
async fn reached(cluster: &ClusterHandle, after: u64) -> Result<u64, FeedRefused> {
    if after > applied(cluster) {
        cluster.read(|_| ()).await?;
        let last = applied(cluster);
        if after > last {
            return Err(FeedRefused::Ahead { after, last });
        }
    }
    Ok(after)
}

/// One reader that follows.
pub(crate) struct FeedReader {
    cluster: ClusterHandle,
    by: Principal,
    kinds: Kinds,
    /// Everything up to here is in frames.
    after: u64,
    /// Everything up to here has been handed out.
    shown: u64,
    changes: watch::Receiver<u64>,
    frames: VecDeque<Frame>,
    next_beat: Instant,
    is_over: bool,
    stopping: CancellationToken,
    /// Its place among the streams of its principal, until it ends.
    _place: Option<StreamPlace>,
}

/// What a reader is told at once.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    /// Where the reader stands behind it; none if more of the same entry follows.
    pub index: Option<u64>,
    /// An entry, in JSON.
    pub value: Value,
}

impl FeedReader {
    /// Begins behind an index, or with what happens from now on.
    ///
    /// # Errors
    /// When what follows is gone, or the index is not there yet.
    pub(crate) async fn open(
        cluster: ClusterHandle,
        by: Principal,
        request: FeedRequest,
        stopping: CancellationToken,
        place: Option<StreamPlace>,
    ) -> Result<Self, FeedRefused> {
        let changes = cluster.feed_changes();
        let after = match request.after {
            Some(after) => reached(&cluster, after).await?,
            None => applied(&cluster),
        };
        let FeedPage { oldest, .. } = cluster.feed(after, 0)?;
        // Who reads knows from the first moment where it stands.
        let first = Frame { index: Some(after), value: json!({ "events": [], "index": after, "oldest": oldest }) };
        Ok(Self {
            cluster,
            by,
            kinds: request.kinds,
            after,
            shown: after,
            changes,
            frames: VecDeque::from([first]),
            next_beat: Instant::now() + BEAT,
            is_over: false,
            stopping,
            _place: place,
        })
    }

    /// What it is told next; none at the end.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                self.shown = frame.index.unwrap_or(self.shown);
                self.next_beat = Instant::now() + BEAT;
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            self.changes.mark_unchanged();
            let found = self.cluster.feed(self.after, PAGE_ENTRIES);
            let has_more = found.as_ref().is_ok_and(|page| !page.entries.is_empty());
            self.take(found);
            if has_more || !self.frames.is_empty() {
                // Much of it may be for others: they have their turn as well.
                tokio::task::yield_now().await;
                continue;
            }
            if Instant::now() >= self.next_beat {
                let value = json!({ "events": [], "index": self.after });
                self.frames.push_back(Frame { index: Some(self.after), value });
                continue;
            }
            tokio::select! {
                changed = self.changes.changed() => if changed.is_err() { return None },
                () = self.stopping.cancelled() => return None,
                () = tokio::time::sleep_until(self.next_beat) => {}
            }
        }
    }

    fn take(&mut self, found: Result<FeedPage, FeedGone>) {
        match found {
            Ok(page) => {
                self.frames.extend(page.entries.iter().flat_map(|entry| frames(entry, &self.by, &self.kinds)));
                self.after = page.through;
            }
            Err(gone) => {
                self.frames.push_back(passed_by(self.shown, gone));
                self.is_over = true;
            }
        }
    }
}

/// The last word to a reader that the ring has passed by.
fn passed_by(shown: u64, gone: FeedGone) -> Frame {
    let message = format!("{gone}; read the state anew and go on from there, or from another node that keeps more");
    let closed = json!({ "code": "too_slow", "message": message, "oldest": gone.oldest });
    Frame { index: None, value: json!({ "closed": closed, "events": [], "index": shown }) }
}

/// An entry as frames: what is much comes in pieces, and only the last one says where the reader stands.
fn frames(entry: &FeedEntry, by: &Principal, kinds: &Kinds) -> Vec<Frame> {
    let seen = told(entry, by, kinds);
    let pieces = seen.len().div_ceil(MAX_IN_FRAME);
    let piece = |(number, piece): (usize, &[&Happening])| {
        let is_last = number + 1 == pieces;
        let mut value = of_entry(entry, piece.to_vec());
        if !is_last {
            value["more"] = true.into();
        }
        Frame { index: is_last.then_some(entry.index), value }
    };
    seen.chunks(MAX_IN_FRAME).enumerate().map(piece).collect()
}

fn told<'a>(entry: &'a FeedEntry, by: &Principal, kinds: &Kinds) -> Vec<&'a Happening> {
    entry.happened.iter().filter(|happening| happening.is_for(by) && kinds.wants(happening.kind())).collect()
}

fn of_entry(entry: &FeedEntry, seen: Vec<&Happening>) -> Value {
    let events: Vec<Value> = seen.into_iter().map(to_json).collect();
    json!({ "at": time_text(entry.at), "events": events, "index": entry.index })
}

/// One event, in JSON.
fn to_json(happening: &Happening) -> Value {
    let mut facts = Map::new();
    let mut say = |name: &str, value: Value| drop(facts.insert(name.to_owned(), value));
    say("kind", happening.kind().into());
    match happening {
        Happening::Task(news) => {
            say("task", news.task.to_string().into());
            say("contextId", news.context.as_str().into());
            say("agent", news.agent.as_str().into());
            say("owner", news.owner.to_string().into());
            match &news.change {
                TaskChange::Submitted => {}
                TaskChange::Status { state, generation } => {
                    say("state", state_name(*state).into());
                    say("generation", (*generation).into());
                }
                TaskChange::Leased { node, epoch } => {
                    say("node", node.0.into());
                    say("epoch", epoch.0.into());
                }
                TaskChange::Adopted { from, to, epoch } => {
                    say("from", from.0.into());
                    say("node", to.0.into());
                    say("epoch", epoch.0.into());
                }
                TaskChange::Orphaned { node } => say("node", node.0.into()),
            }
        }
        Happening::Node { node, change } => {
            say("node", node.0.into());
            match change {
                NodeChange::Joined { role } | NodeChange::Role { role } => say("role", role_word(*role).into()),
                NodeChange::Up
                | NodeChange::Lost
                | NodeChange::Leaving
                | NodeChange::Removed
                | NodeChange::Draining
                | NodeChange::Undrained => {}
            }
        }
        Happening::AgentsPlaced => {}
        Happening::PeerAdded { name } | Happening::PeerRemoved { name } => say("peer", name.as_str().into()),
        Happening::SignIn(change) => match change {
            SignInChange::Asked | SignInChange::Denied => {}
            SignInChange::Approved { name, role } => {
                say("name", name.as_str().into());
                say("role", role.as_str().into());
            }
            SignInChange::Began { session, name } | SignInChange::Revoked { session, name } => {
                say("session", session.as_str().into());
                say("name", name.as_str().into());
            }
        },
        Happening::Trigger { name, news } => {
            say("trigger", name.as_str().into());
            match news {
                TriggerNews::Added | TriggerNews::Removed => {}
                TriggerNews::Claimed { node } => say("node", node.0.into()),
                TriggerNews::Fired { task } => say("task", task.to_string().into()),
            }
        }
        Happening::LevelRaised { level } => say("level", level.number().into()),
        Happening::Founded { name } => say("name", name.as_str().into()),
    }
    Value::Object(facts)
}

fn role_word(role: NodeRole) -> &'static str {
    match role {
        NodeRole::Voter => "voter",
        NodeRole::Learner => "learner",
        NodeRole::Worker => "worker",
    }
}

#[cfg(test)]
mod tests {
    use towline_core::{NodeId, PrincipalRole, TaskId, TaskNews, TaskState, Timestamp};

    use super::*;

    fn named(id: &str) -> Principal {
        Principal::Named { id: id.parse().unwrap(), role: PrincipalRole::User }
    }

    fn task_of(owner: &str, change: TaskChange) -> Happening {
        Happening::Task(Box::new(TaskNews {
            task: TaskId::from_uuid(uuid::Uuid::nil()),
            context: "c".parse().unwrap(),
            agent: "reader".parse().unwrap(),
            owner: named(owner),
            change,
        }))
    }

    fn entry(happened: Vec<Happening>) -> FeedEntry {
        FeedEntry { index: 9, at: Timestamp(0), happened }
    }

    fn kinds(frame: &Frame) -> Vec<&str> {
        frame.value["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_reader_hears_of_its_own_tasks_and_the_operator_of_everything() {
        let working = TaskChange::Status { state: TaskState::Working, generation: 2 };
        let lost = Happening::Node { node: NodeId(3), change: NodeChange::Lost };
        let entry = entry(vec![
            lost,
            task_of("user:ada", TaskChange::Submitted),
            task_of("user:bob", working),
            Happening::SignIn(SignInChange::Denied),
            Happening::Trigger { name: "inbox".parse().unwrap(), news: TriggerNews::Claimed { node: NodeId(3) } },
        ]);
        let heard = |by: &Principal| frames(&entry, by, &Kinds::default());
        assert_eq!(kinds(&heard(&named("user:ada"))[0]), ["task.submitted"]);
        assert_eq!(kinds(&heard(&named("user:bob"))[0]), ["task.status"]);
        assert_eq!(heard(&named("user:eve")), [], "nothing, not even that something happened");
        assert_eq!(heard(&Principal::Operator)[0].value["events"].as_array().unwrap().len(), 5);
        let only_nodes = Kinds::read(["node", "device.denied"]).unwrap();
        assert_eq!(kinds(&frames(&entry, &Principal::Operator, &only_nodes)[0]), ["node.lost", "device.denied"]);
    }

    #[test]
    fn a_large_entry_comes_in_pieces_of_which_only_the_last_is_a_place_to_go_on_from() {
        let entry = entry(vec![task_of("user:ada", TaskChange::Submitted); MAX_IN_FRAME * 2 + 1]);
        let pieces = frames(&entry, &named("user:ada"), &Kinds::default());
        let indexes: Vec<Option<u64>> = pieces.iter().map(|frame| frame.index).collect();
        assert_eq!(indexes, [None, None, Some(9)]);
        assert_eq!((&pieces[0].value["more"], pieces[2].value.get("more")), (&json!(true), None));
        assert_eq!(pieces.iter().map(|frame| kinds(frame).len()).sum::<usize>(), MAX_IN_FRAME * 2 + 1);
    }

    #[test]
    fn a_reader_that_was_passed_by_is_told_what_it_has_and_what_there_is() {
        let last = passed_by(7, FeedGone { after: 8, oldest: 40, applied: 90 });
        assert_eq!((last.index, &last.value["index"]), (None, &json!(7)));
        assert_eq!(last.value["closed"]["code"], "too_slow");
        assert_eq!(last.value["closed"]["oldest"], 40);
    }

    #[test]
    fn every_kind_has_a_line_in_the_list_and_a_kind_that_is_none_is_refused() {
        let mut sorted = Happening::KINDS.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, Happening::KINDS);
        let refused = Kinds::read(["task", "tasks"]).unwrap_err();
        assert!(refused.contains("\"tasks\" is no kind") && refused.contains("task.status"), "{refused}");
        assert_eq!(Kinds::read(std::iter::repeat_n("task", 10_000)).unwrap().0.len(), 1);
    }
}
