//! The part of the state that knows who is to be told of a task: the webhooks of its client, with a place in its events
//! instead of copies of them, and the node that tells each.
//!
//! A webhook belongs to its task and goes with the record. It has at most one owner, by a lease like that of tasks: given to the
//! node that took the request, void with the session of the node, and then claimed by another one. What the receiver answers
//! never touches the task.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

use super::{State, done};
use crate::{
    Applied, BootId, Effect, Epoch, Failing, LastAttempt, NodeId, Principal, Rejection, SetWebhook, Stamp, TaskId,
    Timestamp, Webhook, WebhookConfig, WebhookLease, WebhookName, WebhookReport, WebhookTotals, limits,
};

/// When another try is worth it where all webhooks are taken: those of tasks that have ended make room.
const RETRY_AFTER_MS: u64 = 60_000;

/// All webhooks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Webhooks {
    tasks: BTreeMap<TaskId, Arc<OfTask>>,
    counts: BTreeMap<Principal, usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct OfTask {
    owner: Principal,
    hooks: BTreeMap<String, Webhook>,
}

impl Webhooks {
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = (TaskId, &String, &Webhook)> {
        self.tasks.iter().flat_map(|(task, of)| of.hooks.iter().map(|(id, hook)| (*task, id, hook)))
    }

    fn get(&self, name: &WebhookName) -> Option<&Webhook> {
        self.tasks.get(&name.task)?.hooks.get(&name.id)
    }

    fn get_mut(&mut self, name: &WebhookName) -> Option<&mut Webhook> {
        Arc::make_mut(self.tasks.get_mut(&name.task)?).hooks.get_mut(&name.id)
    }

    fn put(&mut self, owner: &Principal, task: TaskId, webhook: Webhook) {
        let new = || Arc::new(OfTask { owner: owner.clone(), hooks: BTreeMap::new() });
        let of = Arc::make_mut(self.tasks.entry(task).or_insert_with(new));
        if of.hooks.insert(webhook.config.id.clone(), webhook).is_none() {
            *self.counts.entry(owner.clone()).or_default() += 1;
        }
    }

    fn remove(&mut self, name: &WebhookName) -> bool {
        let Some(of) = self.tasks.get_mut(&name.task).map(Arc::make_mut) else { return false };
        if of.hooks.remove(&name.id).is_none() {
            return false;
        }
        let (owner, is_last) = (of.owner.clone(), of.hooks.is_empty());
        if is_last {
            self.tasks.remove(&name.task);
        }
        self.count_less(&owner, 1);
        true
    }

    /// The record of a task is gone, and its webhooks with it.
    pub(super) fn forget(&mut self, task: TaskId) {
        if let Some(of) = self.tasks.remove(&task) {
            self.count_less(&of.owner, of.hooks.len());
        }
    }

    fn count_less(&mut self, owner: &Principal, by: usize) {
        if let Some(count) = self.counts.get_mut(owner) {
            *count = count.saturating_sub(by);
            if *count == 0 {
                self.counts.remove(owner);
            }
        }
    }

    /// The leases that are void: those of one node, or all.
    pub(super) fn void_leases(&mut self, of_node: Option<NodeId>) {
        let is_void = |lease: &WebhookLease| of_node.is_none_or(|node| node == lease.node);
        for of in self.tasks.values_mut() {
            if of.hooks.values().any(|hook| hook.lease.as_ref().is_some_and(is_void)) {
                Arc::make_mut(of).hooks.values_mut().for_each(|hook| hook.lease = hook.lease.filter(|l| !is_void(l)));
            }
        }
    }
}

impl State {
    /// The webhooks of a task, by id, whoever owns it.
    pub fn webhooks_of(&self, task: TaskId) -> impl Iterator<Item = &Webhook> {
        self.webhooks.tasks.get(&task).into_iter().flat_map(|of| of.hooks.values())
    }

    /// [`State::webhooks_of`] as a principal may see them; none if there is no such task for it.
    pub fn webhooks_for(&self, by: &Principal, task: TaskId) -> Option<Vec<&Webhook>> {
        self.owner_for(by, task).is_ok().then(|| self.webhooks_of(task).collect())
    }

    /// One webhook.
    pub fn webhook(&self, name: &WebhookName) -> Option<&Webhook> {
        self.webhooks.get(name)
    }

    /// Index of the last event of a task, wherever its record is.
    pub fn generation_of(&self, task: TaskId) -> Option<u64> {
        self.task(task).map(|task| task.generation).or_else(|| self.stub(task).map(|stub| stub.generation))
    }

    /// The webhooks of a task that have something to be sent, and who sends it.
    pub fn pending_webhooks_of(&self, task: TaskId) -> Vec<(WebhookName, Option<WebhookLease>)> {
        let Some(generation) = self.generation_of(task) else { return Vec::new() };
        let pending = self.webhooks_of(task).filter(|hook| hook.is_pending(generation));
        pending.map(|hook| (WebhookName { task, id: hook.config.id.clone() }, hook.lease)).collect()
    }

    /// All webhooks that have something to be sent, and who sends it.
    pub fn pending_webhooks(&self) -> impl Iterator<Item = (WebhookName, Option<WebhookLease>)> {
        self.webhooks.tasks.keys().flat_map(|task| self.pending_webhooks_of(*task))
    }

    /// What all webhooks come to.
    pub fn webhook_totals(&self) -> WebhookTotals {
        let mut totals = WebhookTotals::default();
        for (task, _, hook) in self.webhooks.all() {
            let is_pending = self.generation_of(task).is_some_and(|generation| hook.is_pending(generation));
            totals.webhooks += 1;
            totals.pending += usize::from(is_pending);
            totals.failing += usize::from(is_pending && hook.failing.is_some());
            totals.dead += usize::from(hook.dead.is_some());
            totals.attempts += hook.attempts;
            totals.delivered += hook.delivered;
        }
        totals
    }

    /// Whose task it is, if `by` may act on it: another's looks as if it did not exist.
    fn owner_for(&self, by: &Principal, task: TaskId) -> Result<Principal, Rejection> {
        let owner = self.task(task).map(|task| task.owner.clone()).or_else(|| self.stub(task).map(|stub| stub.owner));
        owner.filter(|owner| by.may_act_on(owner)).ok_or(Rejection::UnknownTask { task })
    }

    pub(super) fn set_webhook(&mut self, by: &Principal, set: SetWebhook, stamp: Stamp) -> Result<Applied, Rejection> {
        let SetWebhook { task, config, from, prefer } = set;
        let owner = self.owner_for(by, task)?;
        check_config(&config)?;
        let name = WebhookName { task, id: config.id.clone() };
        let known = self.webhooks.get(&name);
        if known.is_some_and(|known| known.config == config && known.dead.is_none()) {
            return Ok(done(Vec::new()));
        }
        let after = known.map_or(from, |known| known.after);
        if known.is_none() {
            self.make_room_for_webhook(&owner, task)?;
        }
        let webhook = Webhook {
            config,
            created: stamp.at,
            after,
            lease: self.webhook_lease(prefer, None, stamp),
            attempts: 0,
            delivered: 0,
            last: None,
            failing: None,
            dead: None,
        };
        self.webhooks.put(&owner, task, webhook);
        Ok(done(vec![Effect::Webhook { task }]))
    }

    /// Idempotent: what is not there is removed.
    pub(super) fn remove_webhook(&mut self, by: &Principal, name: &WebhookName) -> Result<Applied, Rejection> {
        self.owner_for(by, name.task)?;
        let effect = self.webhooks.remove(name).then_some(Effect::Webhook { task: name.task });
        Ok(done(effect.into_iter().collect()))
    }

    /// A node takes those that nobody has.
    pub(super) fn claim_webhooks(
        &mut self,
        node: NodeId,
        boot: BootId,
        names: &[WebhookName],
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        if names.len() > limits::MAX_CLAIMED_PER_ENTRY {
            let limit = limits::MAX_CLAIMED_PER_ENTRY as u64;
            return Err(Rejection::TooLarge { what: "number of webhooks to claim".into(), limit });
        }
        let mut effects = Vec::new();
        let Some(lease) = self.webhook_lease(node, Some(boot), stamp) else { return Ok(done(effects)) };
        for name in names {
            if let Some(webhook) = self.webhooks.get_mut(name).filter(|webhook| webhook.lease.is_none()) {
                webhook.lease = Some(lease);
                effects.push(Effect::Webhook { task: name.task });
            }
        }
        Ok(done(effects))
    }

    /// A lease for a node that is up, in this life of its process if one is named.
    pub(super) fn webhook_lease(&self, node: NodeId, boot: Option<BootId>, stamp: Stamp) -> Option<WebhookLease> {
        let node = self.node(node).filter(|node| node.is_live())?;
        let current = node.boot.filter(|current| boot.is_none_or(|boot| boot == *current))?;
        Some(WebhookLease { node: node.id, boot: current, epoch: Epoch(stamp.index) })
    }

    pub(super) fn report_webhook(
        &mut self,
        by: &Principal,
        report: WebhookReport,
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        let WebhookReport { webhook: name, epoch, attempts, delivered, after, said, failed } = report;
        let stale = Rejection::StaleEpoch { task: name.task, epoch: epoch.0 };
        let generation = self.generation_of(name.task).unwrap_or(0);
        let Some(webhook) = self.webhooks.get_mut(&name) else { return Err(stale) };
        if webhook.lease.is_none_or(|lease| lease.epoch != epoch || *by != Principal::Node(lease.node)) {
            return Err(stale);
        }
        if attempts <= webhook.attempts {
            return Ok(done(Vec::new()));
        }
        let moved = after.map(|after| after.min(generation)).max(webhook.after);
        let has_moved = moved != webhook.after;
        webhook.after = moved;
        webhook.attempts = attempts;
        webhook.delivered = webhook.delivered.max(delivered);
        let said: String = said.chars().take(limits::MAX_WEBHOOK_SAID_CHARS).collect();
        webhook.failing = failed.map(|failed| match webhook.failing.filter(|_| !has_moved) {
            Some(failing) => {
                Failing { since: failing.since, times: failing.times.saturating_add(1), wait_ms: failed.wait_ms }
            }
            None => Failing { since: stamp.at, times: 1, wait_ms: failed.wait_ms },
        });
        let is_final = failed.is_some_and(|failed| failed.is_final);
        webhook.dead = webhook.failing.and_then(|failing| reason_to_give_up(failing, is_final, &said, stamp.at));
        webhook.last = Some(LastAttempt { at: stamp.at, said });
        Ok(done(Vec::new()))
    }

    /// Room for one more: of its task, its principal and the cluster. Where there is none, those go first that have nothing
    /// left to send.
    fn make_room_for_webhook(&mut self, owner: &Principal, task: TaskId) -> Result<(), Rejection> {
        if self.webhooks_of(task).count() >= limits::MAX_WEBHOOKS_PER_TASK {
            let limit = limits::MAX_WEBHOOKS_PER_TASK as u64;
            return Err(Rejection::TooLarge { what: "number of webhooks of the task".into(), limit });
        }
        let has_room = |webhooks: &Webhooks| {
            let mine = webhooks.counts.get(owner).copied().unwrap_or(0);
            let all: usize = webhooks.counts.values().sum();
            (mine < limits::MAX_WEBHOOKS_PER_PRINCIPAL, all < limits::MAX_WEBHOOKS)
        };
        if has_room(&self.webhooks) == (true, true) {
            return Ok(());
        }
        self.drop_finished_webhooks(owner);
        let full = |what: String, limit: usize| {
            Err(Rejection::Full { what, limit: limit as u64, retry_after_ms: RETRY_AFTER_MS })
        };
        match has_room(&self.webhooks) {
            (true, true) => Ok(()),
            (false, _) => full(format!("the list of webhooks of {owner}"), limits::MAX_WEBHOOKS_PER_PRINCIPAL),
            (true, false) => full("the cluster's list of webhooks".into(), limits::MAX_WEBHOOKS),
        }
    }

    /// The oldest ones of this principal whose task has ended and that have told so, or were given up.
    fn drop_finished_webhooks(&mut self, owner: &Principal) {
        let is_over = |task: TaskId, hook: &Webhook| {
            let ended = self.state_of(task).is_none_or(|state| state.is_terminal());
            ended && self.generation_of(task).is_none_or(|generation| !hook.is_pending(generation))
        };
        let of_owner = self.webhooks.tasks.iter().filter(|(_, of)| of.owner == *owner);
        let hooks = of_owner.flat_map(|(task, of)| of.hooks.values().map(move |hook| (*task, hook)));
        let over = hooks.filter(|(task, hook)| is_over(*task, hook));
        let mut over: Vec<(Timestamp, WebhookName)> =
            over.map(|(task, hook)| (hook.created, WebhookName { task, id: hook.config.id.clone() })).collect();
        over.sort_unstable();
        over.truncate(limits::MAX_SWEPT_PER_ENTRY);
        for (_, name) in over {
            self.webhooks.remove(&name);
        }
    }
}

fn reason_to_give_up(failing: Failing, is_final: bool, said: &str, now: Timestamp) -> Option<String> {
    if is_final {
        return Some(format!("the receiver wants no more: {said}"));
    }
    let for_ms = now.0.saturating_sub(failing.since.0);
    (for_ms >= limits::WEBHOOK_PATIENCE_MS)
        .then(|| format!("not taken for a day, in {} tries; the last one: {said}", failing.times))
}

fn check_config(config: &WebhookConfig) -> Result<(), Rejection> {
    let auth = config.authentication.as_ref();
    let bounded = [
        ("id of the webhook in bytes", Some(&config.id), limits::MAX_ID_CHARS),
        ("url of the webhook in bytes", Some(&config.url), limits::MAX_WEBHOOK_URL_BYTES),
        ("token of the webhook in bytes", config.token.as_ref(), limits::MAX_WEBHOOK_SECRET_BYTES),
        ("scheme of the webhook in bytes", auth.map(|auth| &auth.scheme), limits::MAX_ID_CHARS),
        (
            "credentials of the webhook in bytes",
            auth.and_then(|auth| auth.credentials.as_ref()),
            limits::MAX_WEBHOOK_SECRET_BYTES,
        ),
    ];
    for (what, text, limit) in bounded {
        if text.is_some_and(|text| text.len() > limit) {
            return Err(Rejection::TooLarge { what: what.into(), limit: limit as u64 });
        }
    }
    Ok(())
}
