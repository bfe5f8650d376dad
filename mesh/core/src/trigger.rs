//! What starts tasks by itself: a resource that changes, a time that comes, a call from outside.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

use crate::{
    AgentName, BootId, Epoch, NodeId, Rejection, Submission, TaskId, Timestamp, TriggerName, WebhookLease,
    limits::{MAX_TASKS_PER_TRIGGER, MAX_TRIGGER_TEXT_BYTES},
};

/// A trigger, as the configuration or an operator writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerSpec {
    /// Unique in the cluster.
    pub name: TriggerName,
    /// Who does the tasks.
    pub agent: AgentName,
    /// What the agent is told, before what happened.
    pub prompt: String,
    /// No other task of it is started as long as one is open; then what is new by then is one task.
    #[serde(default)]
    pub coalesce: bool,
    /// What it waits for.
    pub source: TriggerSource,
}

/// What a trigger waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TriggerSource {
    /// A resource of an MCP server becomes another one.
    Resource(ResourceSource),
    /// A time comes.
    Schedule {
        /// Which times.
        when: Schedule,
        /// What happens to those that nobody was there for.
        missed: Missed,
    },
    /// Somebody calls. What they have to show is in the configuration of the nodes and not here.
    Webhook,
}

/// A resource that is watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceSource {
    /// Its MCP server, by name.
    pub server: String,
    /// Its URI.
    pub uri: String,
    /// Changes within this time are one, in milliseconds.
    pub debounce_ms: u64,
    /// How often it is read where its server says nothing by itself, in milliseconds.
    pub poll_ms: u64,
    /// A condition in CEL over its content; a change that does not meet it starts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// How many of its last contents the condition sees.
    #[serde(default)]
    pub window: u32,
}

/// Times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schedule {
    /// As a line of a crontab has them.
    Cron {
        /// Five fields, or six with seconds first.
        pattern: String,
        /// Name of the time zone, as in `Europe/Berlin`.
        zone: String,
    },
    /// Again and again.
    Every {
        /// The time between two, in milliseconds; counted from 1970, so that all nodes agree.
        period_ms: u64,
    },
    /// Once.
    At {
        /// When.
        at: Timestamp,
    },
}

/// What happens to times that nobody was there for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Missed {
    /// Nothing.
    #[default]
    Skip,
    /// One task stands for all of them.
    Once,
    /// Each has its task, the oldest first.
    All,
}

/// A trigger, and what has become of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// As it was written.
    pub spec: TriggerSpec,
    /// The nodes whose configuration has it; none: an operator added it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub declared_by: BTreeSet<NodeId>,
    /// Since when it is there.
    pub created: Timestamp,
    /// Who looks after it. Like that of a webhook: one at a time, and void when the node is lost.
    pub lease: Option<WebhookLease>,
    /// The last report or firing under this lease.
    #[serde(default)]
    pub number: u64,
    /// Hash of the content that was seen last; none before it was read for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
    /// The last time that has come, whether it fired or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick: Option<Timestamp>,
    /// How often it fired.
    #[serde(default)]
    pub fired: u64,
    /// How many changes or times started nothing.
    #[serde(default)]
    pub skipped: u64,
    /// When it fired last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_at: Option<Timestamp>,
    /// Its last tasks, the newest last.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub tasks: VecDeque<TaskId>,
    /// Whether its server says changes by itself, in a word; of a resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<String>,
    /// What keeps it from its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Something about triggers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum TriggerChange {
    /// A node tells which ones its configuration has, in the place of what it told before.
    Declare {
        /// The node.
        node: NodeId,
        /// All of them.
        triggers: Vec<TriggerSpec>,
    },
    /// An operator adds one.
    Add(TriggerSpec),
    /// An operator takes one away that an operator added.
    Remove {
        /// Its name.
        name: TriggerName,
    },
    /// A node looks after those that nobody has.
    Claim {
        /// The node.
        node: NodeId,
        /// This life of its process.
        boot: BootId,
        /// Those that have an owner by then stay with it.
        names: Vec<TriggerName>,
    },
    /// The owner of a trigger tells what it saw that starts nothing.
    Report(TriggerReport),
    /// One starts a task.
    Fire(Box<Fire>),
}

/// What the owner of a trigger says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerReport {
    /// Which one.
    pub name: TriggerName,
    /// The lease under which it looked.
    pub epoch: Epoch,
    /// Counts what was said under this lease, firings too: one that was heard changes nothing.
    pub number: u64,
    /// Hash of the content that it saw.
    #[serde(default)]
    pub seen: Option<String>,
    /// The last time that has come.
    #[serde(default)]
    pub tick: Option<Timestamp>,
    /// How many changes or times start nothing.
    #[serde(default)]
    pub skipped: u64,
    /// Whether the server says changes by itself, in a word.
    #[serde(default)]
    pub push: Option<String>,
    /// What keeps it from its work; none: nothing does.
    #[serde(default)]
    pub trouble: Option<String>,
}

/// A trigger starts a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fire {
    /// Which one.
    pub name: TriggerName,
    /// Why.
    pub occasion: Occasion,
    /// Times that came before and start nothing.
    #[serde(default)]
    pub skipped: u64,
    /// The task. The id of its message is the occasion's, whatever is written here.
    pub submission: Submission,
}

/// Why a trigger fires. Each fires once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Occasion {
    /// The owner saw another content.
    Change {
        /// Its lease.
        epoch: Epoch,
        /// Counts what was said under it.
        number: u64,
        /// Hash of the content.
        seen: String,
    },
    /// A time has come.
    Tick {
        /// The lease of the owner.
        epoch: Epoch,
        /// The time.
        at: Timestamp,
    },
    /// Somebody called.
    Call {
        /// What tells the call from others.
        key: String,
    },
    /// An operator asked for it.
    Hand {
        /// What tells the request from others.
        request: uuid::Uuid,
    },
}

impl TriggerSpec {
    /// Whether it is within bounds.
    ///
    /// # Errors
    /// When its texts are too long.
    pub fn check(&self) -> Result<(), Rejection> {
        let of_source = match &self.source {
            TriggerSource::Resource(source) => {
                source.server.len() + source.uri.len() + source.filter.as_ref().map_or(0, String::len)
            }
            TriggerSource::Schedule { when: Schedule::Cron { pattern, zone }, .. } => pattern.len() + zone.len(),
            TriggerSource::Schedule { when: Schedule::Every { .. } | Schedule::At { .. }, .. }
            | TriggerSource::Webhook => 0,
        };
        if self.prompt.len() + of_source > MAX_TRIGGER_TEXT_BYTES {
            let what = format!("text of trigger {} in bytes", self.name);
            return Err(Rejection::TooLarge { what, limit: MAX_TRIGGER_TEXT_BYTES as u64 });
        }
        Ok(())
    }

    /// The resource that it watches.
    pub fn resource(&self) -> Option<&ResourceSource> {
        if let TriggerSource::Resource(source) = &self.source { Some(source) } else { None }
    }

    /// Whether a node has to look after it.
    pub fn has_owner(&self) -> bool {
        match self.source {
            TriggerSource::Resource(_) | TriggerSource::Schedule { .. } => true,
            TriggerSource::Webhook => false,
        }
    }

    /// Whether it waits for the same: then what was seen before still counts.
    pub(crate) fn waits_for_same(&self, other: &Self) -> bool {
        match (&self.source, &other.source) {
            (TriggerSource::Resource(one), TriggerSource::Resource(other)) => {
                (&one.server, &one.uri) == (&other.server, &other.uri)
            }
            (TriggerSource::Schedule { when: one, .. }, TriggerSource::Schedule { when: other, .. }) => one == other,
            (TriggerSource::Webhook, TriggerSource::Webhook) => true,
            (TriggerSource::Resource(_) | TriggerSource::Schedule { .. } | TriggerSource::Webhook, _) => false,
        }
    }
}

impl Trigger {
    pub(crate) fn new(spec: TriggerSpec, created: Timestamp) -> Self {
        Self {
            spec,
            declared_by: BTreeSet::new(),
            created,
            lease: None,
            number: 0,
            seen: None,
            tick: None,
            fired: 0,
            skipped: 0,
            fired_at: None,
            tasks: VecDeque::new(),
            push: None,
            trouble: None,
        }
    }

    /// The last time that is behind it: none of those before it fires any more.
    pub fn since(&self) -> Timestamp {
        self.tick.unwrap_or(self.created)
    }

    pub(crate) fn note_fired(&mut self, task: TaskId, at: Timestamp) {
        self.fired += 1;
        self.fired_at = Some(at);
        self.trouble = None;
        self.tasks.push_back(task);
        while self.tasks.len() > MAX_TASKS_PER_TRIGGER {
            self.tasks.pop_front();
        }
    }
}

impl Occasion {
    /// What tells it from all others of its trigger; the id of the message that it starts a task with.
    pub fn message_id(&self, name: &TriggerName) -> String {
        match self {
            Occasion::Change { epoch, number, .. } => format!("trigger/{name}/change-{}-{number}", epoch.0),
            Occasion::Tick { at, .. } => format!("trigger/{name}/tick-{}", at.0),
            Occasion::Call { key } => format!("trigger/{name}/call-{key}"),
            Occasion::Hand { request } => format!("trigger/{name}/hand-{request}"),
        }
    }

    /// Whether what happened was said by somebody outside: then the task is one with outside input.
    pub fn is_from_outside(&self) -> bool {
        match self {
            Occasion::Change { .. } | Occasion::Call { .. } | Occasion::Hand { .. } => true,
            Occasion::Tick { .. } => false,
        }
    }
}
