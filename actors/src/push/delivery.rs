//! One delivery: posts what a webhook's receiver does not have yet, event by event, until it has all or does not take one.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use towline_a2a::{
    PROTOCOL_VERSION, blob_link,
    convert::{self, Answer},
};
use towline_cluster::{BlobError, ClusterHandle, ProposeError, Unavailable};
use towline_core::{
    Command, Content, Epoch, Event, EventKind, FailedCall, Message, Part, Principal, Proposal, Task, TaskId,
    TraceContext, Webhook, WebhookConfig, WebhookName, WebhookReport, limits::MAX_SHOWN_BLOB_BYTES,
};
use towline_trace::{Kind, Span, names};

use super::{End, Tools};
use crate::egress::Posted;

/// First wait after an event was not taken; it doubles with each that follows.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Longest wait between two tries: some 30 of them fit into the day after which a webhook is given up.
const LONGEST_WAIT: Duration = Duration::from_secs(3_600);

/// Rest of a webhook when its content cannot be read, or the cluster does not take a report: a node may be starting.
const PAUSE: Duration = Duration::from_secs(1);

/// Events that are posted before their place is reported: as many are sent again at most when this node is lost.
const EVENTS_PER_REPORT: u64 = 64;

/// How long posted events wait for their report while others follow.
const REPORT_WITHIN: Duration = Duration::from_secs(1);

/// Events that are copied out of the state at once.
const PAGE_EVENTS: usize = 32;

/// Most bytes of content that are copied out of the state at once, if it is more than one event.
const PAGE_BYTES: usize = 256 * 1024;

/// The header of the token, as the protocol's own SDKs write it.
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-a2a-notification-token");

/// How far a delivery has come, and what of it is reported.
struct Progress {
    name: WebhookName,
    epoch: Epoch,
    attempts: u64,
    delivered: u64,
    after: Option<u64>,
    /// How often in a row the receiver had not taken the next event before.
    failures: u32,
    said: String,
    unreported: u64,
    since: Instant,
}

/// Why a delivery ends.
enum Stop {
    /// The receiver has everything, or it is no longer this node's to tell.
    Done,
    /// Not now.
    Rest(Duration),
}

/// What is to be posted next.
struct Page {
    /// The trace of the task.
    trace: TraceContext,
    /// Whether nothing follows what is here.
    has_ended: bool,
    events: VecDeque<(u64, Answer)>,
}

pub(super) async fn run(tools: Arc<Tools>, name: WebhookName, epoch: Epoch, mut end: End) {
    end.rest = match deliver(&tools, name, epoch).await {
        Stop::Done => None,
        Stop::Rest(wait) => Some(wait),
    };
}

async fn deliver(tools: &Tools, name: WebhookName, epoch: Epoch) -> Stop {
    let Some(webhook) = mine(tools, &name, epoch) else { return Stop::Done };
    let mut progress = Progress {
        attempts: webhook.attempts,
        delivered: webhook.delivered,
        after: webhook.after,
        failures: webhook.failing.map_or(0, |failing| failing.times),
        said: String::new(),
        unreported: 0,
        since: Instant::now(),
        name,
        epoch,
    };
    let mut watch = tools.shared.cluster.watch_task(progress.name.task);
    loop {
        let page = match next_page(&tools.shared.cluster, progress.name.task, progress.after).await {
            Ok(Some(page)) => page,
            Ok(None) => return Stop::Done,
            Err(error) => {
                tracing::warn!(task = %progress.name.task, %error, "a webhook is told once the record can be read");
                return progress.report(tools, None).await.unwrap_or(Stop::Rest(PAUSE));
            }
        };
        if page.events.is_empty() {
            // A task that speaks makes one report a second, not one for each word.
            let lingers = progress.unreported > 0 && !page.has_ended;
            let rest = REPORT_WITHIN.saturating_sub(progress.since.elapsed());
            if lingers && tokio::time::timeout(rest, watch.changed()).await.is_ok() {
                continue;
            }
            return progress.report(tools, None).await.unwrap_or(Stop::Done);
        }
        for (index, answer) in page.events {
            if let Some(stop) = progress.post(tools, &page.trace, index, answer).await {
                return stop;
            }
        }
    }
}

/// The webhook, if this node may call its receiver under this lease at this moment.
fn mine(tools: &Tools, name: &WebhookName, epoch: Epoch) -> Option<Webhook> {
    let cluster = &tools.shared.cluster;
    let webhook = cluster.local(|state| state.webhook(name).cloned())?;
    let has_lease = webhook.lease.is_some_and(|lease| lease.epoch == epoch);
    (cluster.may_act() && has_lease && webhook.dead.is_none()).then_some(webhook)
}

impl Progress {
    /// Posts one event; says why, if the delivery ends with it.
    async fn post(&mut self, tools: &Tools, trace: &TraceContext, index: u64, mut answer: Answer) -> Option<Stop> {
        if let Err(error) = show(tools, &mut answer).await {
            tracing::warn!(task = %self.name.task, index, %error, "a webhook is told once the content can be read");
            return Some(self.report(tools, None).await.unwrap_or(Stop::Rest(PAUSE)));
        }
        let body = answer.encode().map(|event| event.to_string().into_bytes());
        // Looked at again just before each call: it may have been removed, or given to another node.
        let Some(webhook) = mine(tools, &self.name, self.epoch) else { return Some(Stop::Done) };
        self.attempts += 1;
        let posted = match body {
            Ok(body) => call(tools, &webhook.config, trace, index, body).await,
            Err(error) => Posted::Failed { why: format!("event {index}: {error}"), retry_after: None },
        };
        match posted {
            Posted::Taken(status) => {
                self.after = Some(index);
                self.delivered += 1;
                self.unreported += 1;
                self.said = format!("status {status}");
                let had_failed = std::mem::take(&mut self.failures) > 0;
                if had_failed || self.unreported >= EVENTS_PER_REPORT || self.since.elapsed() >= REPORT_WITHIN {
                    return self.report(tools, None).await;
                }
                None
            }
            Posted::Gone => Some(self.failed(tools, &webhook, "status 410 Gone".to_owned(), None, true).await),
            Posted::Failed { why, retry_after } => Some(self.failed(tools, &webhook, why, retry_after, false).await),
        }
    }

    async fn failed(
        &mut self,
        tools: &Tools,
        webhook: &Webhook,
        why: String,
        at_least: Option<Duration>,
        is_final: bool,
    ) -> Stop {
        let wait = back_off(self.failures).max(at_least.unwrap_or_default());
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let host = tools.client.authority_of(&webhook.config.url);
        tracing::info!(task = %self.name.task, webhook = self.name.id, host, why, wait_ms, "webhook was not taken");
        self.said = why;
        self.unreported += 1;
        self.report(tools, Some(FailedCall { wait_ms, is_final })).await.unwrap_or(Stop::Rest(wait))
    }

    /// Has the place committed, if it moved. Says why, if the delivery cannot go on.
    async fn report(&mut self, tools: &Tools, failed: Option<FailedCall>) -> Option<Stop> {
        if self.unreported == 0 {
            return None;
        }
        let cluster = &tools.shared.cluster;
        let report = WebhookReport {
            webhook: self.name.clone(),
            epoch: self.epoch,
            attempts: self.attempts,
            delivered: self.delivered,
            after: self.after,
            said: self.said.clone(),
            failed,
        };
        let command = Command::ReportWebhook(Box::new(report));
        let proposal = Proposal { by: Principal::Node(cluster.node_id()), command };
        loop {
            match cluster.propose(proposal.clone(), None).await {
                Ok(_) => {
                    self.unreported = 0;
                    self.since = Instant::now();
                    return None;
                }
                Err(ProposeError::Rejected(refused)) => {
                    tracing::debug!(task = %self.name.task, %refused, "webhook is another's to tell");
                    return Some(Stop::Done);
                }
                // The pusher ends this when the session does.
                Err(error @ (ProposeError::Unavailable { .. } | ProposeError::Unknown { .. })) => {
                    tracing::debug!(task = %self.name.task, %error, "the place of a webhook is reported again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Doubles from [`FIRST_WAIT`] to [`LONGEST_WAIT`], and a quarter more or less: receivers of one outage are not all called at
/// the same moment.
fn back_off(failures: u32) -> Duration {
    let wait = FIRST_WAIT.saturating_mul(2u32.saturating_pow(failures)).min(LONGEST_WAIT);
    let random = f64::from(uuid::Uuid::now_v7().as_bytes()[15]) / 255.0;
    wait.mul_f64(0.75 + random / 2.0)
}

async fn call(tools: &Tools, config: &WebhookConfig, task: &TraceContext, index: u64, body: Vec<u8>) -> Posted {
    let mut span = Span::child(names::span::PUSH, Kind::Client, task);
    span.set(names::HTTP_REQUEST_METHOD, "POST");
    span.set(names::SERVER_ADDRESS, tools.client.authority_of(&config.url));
    span.set(names::PUSH_EVENT, i64::try_from(index).unwrap_or(i64::MAX));
    let posted = match headers(config, &span.context()) {
        Ok(headers) => tools.client.post(&config.url, headers, body).await,
        Err(_) => Posted::Failed { why: "its token or credentials fit into no header".to_owned(), retry_after: None },
    };
    match &posted {
        Posted::Taken(status) => span.set(names::HTTP_RESPONSE_STATUS_CODE, i64::from(*status)),
        Posted::Gone => span.fail("gone", "status 410"),
        Posted::Failed { why, .. } => span.fail("not_taken", why),
    }
    posted
}

fn headers(config: &WebhookConfig, trace: &TraceContext) -> Result<HeaderMap, header::InvalidHeaderValue> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/a2a+json"));
    headers.insert(HeaderName::from_static("a2a-version"), HeaderValue::from_static(PROTOCOL_VERSION));
    headers.insert(HeaderName::from_static("traceparent"), HeaderValue::from_str(&trace.to_string())?);
    if let Some(token) = &config.token {
        headers.insert(TOKEN_HEADER, secret(token)?);
    }
    if let Some(auth) = &config.authentication {
        let text = match &auth.credentials {
            Some(credentials) => format!("{} {credentials}", auth.scheme),
            None => auth.scheme.clone(),
        };
        headers.insert(header::AUTHORIZATION, secret(&text)?);
    }
    Ok(headers)
}

fn secret(text: &str) -> Result<HeaderValue, header::InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(text)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Puts content in the place of its names, and links in the place of what is large: as streams show it.
async fn show(tools: &Tools, answer: &mut Answer) -> Result<(), BlobError> {
    let mut shown = Vec::new();
    for (task, part) in answer.parts_mut() {
        match part.blob() {
            None => {}
            Some(blob) if blob.length <= MAX_SHOWN_BLOB_BYTES => shown.push(part),
            Some(blob) => part.content = Content::Url(blob_link(&tools.public_url, task, blob.hash)),
        }
    }
    tools.shared.cluster.show_parts(shown, MAX_SHOWN_BLOB_BYTES).await
}

/// What follows an event; none when the task is gone.
async fn next_page(cluster: &ClusterHandle, task: TaskId, after: Option<u64>) -> Result<Option<Page>, Unavailable> {
    let found = cluster.local_task(task).await?;
    Ok(found.map(|task| Page {
        trace: task.trace,
        has_ended: task.status.state.is_terminal(),
        events: events(&task, after),
    }))
}

/// The events behind one that are still there; the task as it stands where they are not, or nothing is known yet.
fn events(task: &Task, after: Option<u64>) -> VecDeque<(u64, Answer)> {
    let first_retained = task.events.front().map_or(task.generation + 1, |event| event.index);
    match after {
        Some(after) if after >= task.generation => VecDeque::new(),
        Some(after) if after + 1 >= first_retained => {
            let skipped = usize::try_from(after + 1 - first_retained).unwrap_or(usize::MAX);
            let mut bytes = 0;
            let mut page = VecDeque::new();
            for event in task.events.iter().skip(skipped).take(PAGE_EVENTS) {
                bytes += size(event);
                if bytes > PAGE_BYTES && !page.is_empty() {
                    break;
                }
                page.push_back((event.index, convert::event(task, event)));
            }
            page
        }
        Some(_) | None => VecDeque::from([(task.generation, convert::snapshot(task, convert::TaskView::WHOLE))]),
    }
}

fn size(event: &Event) -> usize {
    match &event.kind {
        EventKind::Created => 0,
        EventKind::Status { status, .. } => status.message.as_ref().map_or(0, Message::size),
        EventKind::Artifact { parts, .. } => parts.iter().map(Part::size).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towline_core::WebhookAuth;

    #[test]
    fn waits_double_up_to_an_hour_and_are_spread() {
        for (failures, seconds) in [(0, 1.0), (1, 2.0), (5, 32.0), (11, 2_048.0), (12, 3_600.0), (40, 3_600.0)] {
            let wait = back_off(failures).as_secs_f64();
            assert!((seconds * 0.75..=seconds * 1.25).contains(&wait), "{failures} failures: {wait} s");
        }
    }

    #[test]
    fn a_call_says_who_it_is_for_and_shows_no_secret_in_debug_output() {
        let config = WebhookConfig {
            id: "a".into(),
            url: "https://receiver.example".into(),
            token: Some("the-token".into()),
            authentication: Some(WebhookAuth { scheme: "Bearer".into(), credentials: Some("hunter2".into()) }),
        };
        let trace = TraceContext { trace_id: 1, span_id: 2, sampled: true };
        let headers = headers(&config, &trace).unwrap();
        assert_eq!(headers["authorization"], "Bearer hunter2");
        assert_eq!(headers["x-a2a-notification-token"], "the-token");
        assert_eq!(headers["traceparent"], trace.to_string().as_str());
        assert_eq!(headers["content-type"], "application/a2a+json");
        let shown = format!("{headers:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("the-token"), "{shown}");
    }
}
