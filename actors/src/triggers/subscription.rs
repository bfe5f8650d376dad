//! Looks after one resource: the subscription of this cluster to it. Started by the triggers actor with the lease, ended by it
//! when the lease is another's.
//!
//! ```text
//! armed | updated | poll ──▶ debounce ──▶ read ──▶ as seen last? ──no──▶ filter ──▶ Fire | Report
//!                                          └── cannot: say why, try again ──┘
//! ```
//! Notify, then read: an update only says that it is worth a look, so any number of them, late or twice, comes to the same. What
//! was seen last is in the state of the cluster, in the same entry as the task that it started; so after a reconnect, a restart
//! or an adoption the first look finds what changed while nobody listened, and finds nothing where nothing did.

use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use towline_core::{
    Digest, Epoch, Labels, Message, Metadata, Occasion, Part, Rejection, ResourceSource, Role, StepNo, TaskId,
    TraceContext, TriggerReport, TriggerSpec,
};

use super::{
    filter::{Filter, Sample},
    firing::{self, Event, FireError},
};
use crate::{
    mcp_connection::{CallError, CallEvents, CallRequest, McpHandle, READ_RESOURCE, ResourceWatch, ToolResult},
    shared::Shared,
};

/// How often a resource is read of which its server says when it changes: for what the server forgot to say.
pub(super) const RESYNC_EVERY: Duration = Duration::from_secs(300);

/// Time for one read.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Wait before something is tried again that did not work; it doubles up to [`MAX_RETRY`].
pub(super) const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Longest such wait: a task that an agent has room for again is started within this time.
pub(super) const MAX_RETRY: Duration = Duration::from_secs(30);

/// What keeps a resource from being watched is told again in other words only after this time: they may differ each time.
const TROUBLE_EVERY: Duration = Duration::from_secs(15);

/// What this task knows.
pub(super) struct Subscription {
    shared: std::sync::Arc<Shared>,
    spec: TriggerSpec,
    source: ResourceSource,
    epoch: Epoch,
    /// What was said under this lease.
    number: u64,
    /// Hash of what was seen last.
    seen: Option<String>,
    filter: Option<Arc<Filter>>,
    window: VecDeque<Sample>,
    /// What was told last of how it goes.
    told: (Option<String>, Option<String>),
    troubled: Option<Instant>,
}

/// Where a look leads.
enum Looked {
    /// To the next one.
    Done,
    /// To another one, soon.
    Again,
    /// Nowhere: another node looks by now.
    Lost,
}

impl Subscription {
    /// None where its trigger is another one by now.
    pub(super) fn new(shared: std::sync::Arc<Shared>, spec: TriggerSpec, epoch: Epoch) -> Option<Self> {
        let source = spec.resource()?.clone();
        let known = shared.cluster.local(|state| {
            let trigger = state.trigger(&spec.name).filter(|known| known.spec == spec)?;
            Some((trigger.number, trigger.seen.clone(), (trigger.push.clone(), trigger.trouble.clone())))
        });
        let (number, seen, told) = known?;
        let filter = source.filter.as_deref().map(|text| Filter::new(text).map(Arc::new)).transpose();
        // It was read when the trigger was taken.
        let filter = filter.inspect_err(|error| tracing::error!(trigger = %spec.name, error, "filter")).ok()?;
        Some(Self { shared, spec, source, epoch, number, seen, filter, window: VecDeque::new(), told, troubled: None })
    }

    /// Looks, until the lease is another's.
    pub(super) async fn run(mut self) {
        while let Some(handle) = self.shared.server(&self.source.server) {
            if self.over(&handle).await {
                return;
            }
        }
    }

    /// Looks over one connection actor. Returns whether that is the end.
    async fn over(&mut self, handle: &McpHandle) -> bool {
        let mut watch = handle.watch_resource(&self.source.uri);
        let poll = Duration::from_millis(self.source.poll_ms);
        let debounce = Duration::from_millis(self.source.debounce_ms);
        let (mut retry, mut failures) = (None, 0_u32);
        let mut resync = Instant::now() + RESYNC_EVERY;
        loop {
            let again = async {
                match retry {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let is_time = tokio::select! {
                () = watch.changed() => {
                    tokio::time::sleep(debounce).await;
                    true
                }
                () = again => true,
                () = tokio::time::sleep(poll) => {
                    if self.shared.server(&self.source.server).is_none_or(|now| now.actor_id() != handle.actor_id()) {
                        return false;
                    }
                    watch.is_deaf() || (Instant::now() >= resync && watch.how() == "live")
                }
            };
            if watch.how() == "down" {
                let why = handle.status().reason.unwrap_or_else(|| "it is still connecting".to_owned());
                if self
                    .tell(&watch, Some(format!("MCP server {} is not there: {why}", handle.name())), 0)
                    .await
                    .is_err()
                {
                    return true;
                }
                continue;
            }
            if !is_time {
                continue;
            }
            watch.looks();
            resync = Instant::now() + RESYNC_EVERY;
            match self.look(handle, &watch).await {
                Looked::Done => (retry, failures) = (None, 0),
                Looked::Again => {
                    retry = Some(Instant::now() + FIRST_RETRY.saturating_mul(1 << failures.min(16)).min(MAX_RETRY));
                    failures += 1;
                }
                Looked::Lost => return true,
            }
        }
    }

    async fn look(&mut self, handle: &McpHandle, watch: &ResourceWatch) -> Looked {
        let text = match read(handle, &self.source.uri).await {
            Ok(text) => text,
            Err(why) => {
                return if self.tell(watch, Some(why), 0).await.is_ok() { Looked::Again } else { Looked::Lost };
            }
        };
        let hash = hash(&text);
        if self.seen.as_ref() == Some(&hash) {
            return self.told(watch, None, 0).await;
        }
        let sample = Sample::new(&text);
        let is_first = self.seen.is_none();
        let passes = match &self.filter {
            Some(filter) if !is_first => self.judge(filter, &sample).await,
            Some(_) | None => Ok(true),
        };
        if is_first || !matches!(passes, Ok(true)) {
            // What was there when the trigger came is no change, and what the filter keeps back is seen all the same.
            self.seen = Some(hash);
            self.keep(sample);
            return self.told(watch, passes.err(), u64::from(!is_first)).await;
        }
        let occasion = Occasion::Change { epoch: self.epoch, number: self.number + 1, seen: hash.clone() };
        let event = Event { source: format!("resource {} of {}", self.source.uri, self.source.server), text };
        match firing::fire_surely(&self.shared.cluster, &self.spec, occasion, (Some(event), 0)).await {
            Ok(_) => {
                self.number += 1;
                self.seen = Some(hash);
                if !self.is_in_step() {
                    return Looked::Again;
                }
                self.told.1 = None;
                self.keep(sample);
                self.told(watch, None, 0).await
            }
            Err(FireError::Refused(Rejection::StaleTrigger { .. } | Rejection::UnknownTrigger { .. })) => Looked::Lost,
            Err(error) => {
                let why = format!("no task: {error}");
                if self.tell(watch, Some(why), 0).await.is_ok() { Looked::Again } else { Looked::Lost }
            }
        }
    }

    /// Whether a content meets the condition: on a thread that nobody else waits for, since it may take seconds.
    async fn judge(&self, filter: &Arc<Filter>, sample: &Sample) -> Result<bool, String> {
        let (filter, uri) = (Arc::clone(filter), self.source.uri.clone());
        let (sample, window) = (sample.clone(), self.window.clone());
        let judged = tokio::task::spawn_blocking(move || filter.passes(&uri, &sample, &window)).await;
        judged.unwrap_or_else(|error| Err(format!("filter: {error}")))
    }

    fn keep(&mut self, sample: Sample) {
        let most = usize::try_from(self.source.window).unwrap_or(usize::MAX);
        self.window.push_back(sample.kept());
        while self.window.len() > most {
            self.window.pop_front();
        }
    }

    async fn told(&mut self, watch: &ResourceWatch, trouble: Option<String>, skipped: u64) -> Looked {
        match self.tell(watch, trouble, skipped).await {
            Ok(()) if self.is_in_step() => Looked::Done,
            Ok(()) => Looked::Again,
            Err(_) => Looked::Lost,
        }
    }

    /// Whether the cluster knows what this task knows. A predecessor under the same lease may have been heard late: then what it
    /// said counts, and what this one said in its place was taken for the same.
    fn is_in_step(&mut self) -> bool {
        let known = self
            .shared
            .cluster
            .local(|state| state.trigger(&self.spec.name).map(|known| (known.number, known.seen.clone())));
        let Some(known) = known else { return true };
        let mine = (self.number, self.seen.clone());
        (self.number, self.seen) = known.clone();
        known == mine
    }

    /// Tells the cluster what was seen and how it goes, where that is news.
    ///
    /// # Errors
    /// When another node looks after the trigger by now.
    async fn tell(&mut self, watch: &ResourceWatch, trouble: Option<String>, skipped: u64) -> Result<(), Rejection> {
        let push = Some(watch.how().to_owned());
        let known =
            self.shared.cluster.local(|state| state.trigger(&self.spec.name).and_then(|known| known.seen.clone()));
        let told = (push.clone(), trouble.clone());
        let was_just_told = self.troubled.is_some_and(|at| at.elapsed() < TROUBLE_EVERY);
        let is_told = told == self.told || (told.1.is_some() && self.told.1.is_some() && was_just_told);
        if known == self.seen && is_told && skipped == 0 {
            return Ok(());
        }
        if let Some(why) = &trouble {
            self.troubled = Some(Instant::now());
            let trigger = self.spec.name.as_str();
            tracing::warn!(event = "trigger.trouble", trigger, why, "a resource is not watched as it should be");
        }
        self.number += 1;
        self.told = told;
        let report = TriggerReport {
            name: self.spec.name.clone(),
            epoch: self.epoch,
            number: self.number,
            seen: self.seen.clone(),
            tick: None,
            skipped,
            push,
            trouble,
        };
        firing::report_surely(&self.shared.cluster, report).await
    }
}

/// Reads a resource. What the server says in place of a content, such as that there is none, is no content.
pub(super) async fn read(handle: &McpHandle, uri: &str) -> Result<String, String> {
    let answer = look_at(handle, uri).await.map_err(|error| error.to_string())?;
    if answer.is_error { Err(answer.text) } else { Ok(with_files(answer.text, &answer.files)) }
}

/// What the server answers to a read.
pub(super) async fn look_at(handle: &McpHandle, uri: &str) -> Result<ToolResult, CallError> {
    let id = uuid::Uuid::now_v7();
    let bits = id.as_u128();
    let request = CallRequest {
        tool: READ_RESOURCE.to_owned(),
        arguments: serde_json::json!({ "uri": uri }),
        task: TaskId::from_uuid(id),
        step: StepNo(0),
        attempt: 1,
        idempotency_key: format!("subscription/{id}"),
        trace: TraceContext {
            trace_id: bits,
            span_id: u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(1).max(1),
            sampled: false,
        },
        trace_state: String::new(),
        labels: Labels::new(),
        timeout: Some(READ_TIMEOUT),
        events: CallEvents::default(),
    };
    handle.call(request, CancellationToken::new()).await
}

/// Files are not shown to the agent here; that they are others is.
pub(super) fn with_files(text: String, files: &[Part]) -> String {
    if files.is_empty() { text } else { format!("{text}\n[content {}]", digest_of(files.to_vec())) }
}

pub(super) fn hash(text: &str) -> String {
    digest_of(vec![Part::text(text)])
}

fn digest_of(parts: Vec<Part>) -> String {
    let message = Message {
        message_id: "content".parse().expect("a constant of this file"),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts,
        metadata: Metadata::new(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    };
    Digest::of_message(&message).to_string()
}
