//! The part of the state that knows what starts tasks by itself, who looks after each, and how far it has come.
//!
//! A trigger fires in one entry: the task is made and what was seen, or which time has come, is noted together. So a firing
//! whose outcome is unknown is proposed again, and a next owner goes on exactly behind it. A task that cannot be taken is a
//! refusal that changes nothing: the trigger fires later, with what is new by then.

use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{State, done};
use crate::{
    Applied, BootId, Effect, Epoch, Fire, Message, MessageId, NodeId, Occasion, Principal, Rejection, Reply, Stamp,
    Submission, Trigger, TriggerChange, TriggerName, TriggerReport, TriggerSpec, limits,
};

/// When another try is worth it where too many tasks of a trigger are open.
const OPEN_RETRY_MS: u64 = 1_000;
/// When another try is worth it where all triggers are taken: somebody has to remove one first.
const FULL_RETRY_MS: u64 = 60_000;

/// All triggers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Triggers(BTreeMap<TriggerName, Arc<Trigger>>);

impl Triggers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn get_mut(&mut self, name: &TriggerName) -> Option<&mut Trigger> {
        self.0.get_mut(name).map(Arc::make_mut)
    }

    /// The leases of a node are void; whether it had any.
    pub(super) fn void_leases(&mut self, node: NodeId) -> bool {
        let held = |trigger: &&mut Arc<Trigger>| trigger.lease.is_some_and(|lease| lease.node == node);
        let mut any = false;
        for trigger in self.0.values_mut().filter(held) {
            Arc::make_mut(trigger).lease = None;
            any = true;
        }
        any
    }

    /// The leases are void, and what the nodes of before declared counts as declared by the founder until it says what it has:
    /// so what was seen is still known, and what changed meanwhile is a change.
    pub(super) fn refound(&mut self, founder: NodeId) {
        for trigger in self.0.values_mut().map(Arc::make_mut) {
            trigger.lease = None;
            if !trigger.declared_by.is_empty() {
                trigger.declared_by = BTreeSet::from([founder]);
            }
        }
    }

    /// A node declares only these from here on.
    pub(super) fn undeclare(&mut self, node: NodeId, keeps: &BTreeSet<&TriggerName>) {
        self.0.retain(|name, trigger| {
            if keeps.contains(name) || !trigger.declared_by.contains(&node) {
                return true;
            }
            let trigger = Arc::make_mut(trigger);
            trigger.declared_by.remove(&node);
            !trigger.declared_by.is_empty()
        });
    }

    /// Another trigger that watches the same resource.
    fn rival(&self, spec: &TriggerSpec) -> Option<&Trigger> {
        let source = spec.resource()?;
        let is_same = |other: &&Arc<Trigger>| {
            other.spec.name != spec.name
                && other
                    .spec
                    .resource()
                    .is_some_and(|known| (&known.server, &known.uri) == (&source.server, &source.uri))
        };
        self.0.values().find(is_same).map(Arc::as_ref)
    }
}

impl State {
    /// All triggers, by name.
    pub fn triggers(&self) -> impl Iterator<Item = &Trigger> {
        self.triggers.0.values().map(Arc::as_ref)
    }

    /// One trigger.
    pub fn trigger(&self, name: &TriggerName) -> Option<&Trigger> {
        self.triggers.0.get(name).map(Arc::as_ref)
    }

    pub(super) fn change_trigger(
        &mut self,
        by: &Principal,
        change: TriggerChange,
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        match change {
            TriggerChange::Declare { node, triggers } => self.declare_triggers(node, triggers, stamp),
            TriggerChange::Add(spec) => self.add_trigger(spec, stamp),
            TriggerChange::Remove { name } => self.remove_trigger(name),
            TriggerChange::Claim { node, boot, names } => self.claim_triggers(node, boot, &names, stamp),
            TriggerChange::Report(report) => self.report_trigger(by, report),
            TriggerChange::Fire(fire) => self.fire(by, *fire, stamp),
        }
    }

    /// What cannot be taken is passed over, so that one mistake does not keep the others away: the node sees which are there.
    fn declare_triggers(
        &mut self,
        node: NodeId,
        declared: Vec<TriggerSpec>,
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        self.member(node)?;
        if declared.len() > limits::MAX_DECLARED_TRIGGERS {
            let limit = limits::MAX_DECLARED_TRIGGERS as u64;
            return Err(Rejection::TooLarge { what: "number of declared triggers".into(), limit });
        }
        let keeps = declared.iter().map(|spec| &spec.name).collect();
        self.triggers.undeclare(node, &keeps);
        for spec in declared {
            let is_added = self.trigger(&spec.name).is_some_and(|known| known.declared_by.is_empty());
            if is_added || spec.check().is_err() || self.triggers.rival(&spec).is_some() {
                continue;
            }
            if let Some(known) = self.triggers.get_mut(&spec.name) {
                if !known.spec.waits_for_same(&spec) {
                    let declared_by = std::mem::take(&mut known.declared_by);
                    *known = Trigger { declared_by, ..Trigger::new(spec, stamp.at) };
                } else if known.spec != spec {
                    // Its owner looks with other eyes from here on.
                    (known.spec, known.lease) = (spec, None);
                }
                known.declared_by.insert(node);
            } else if self.triggers.0.len() < limits::MAX_TRIGGERS {
                let mut trigger = Trigger::new(spec, stamp.at);
                trigger.declared_by.insert(node);
                self.triggers.0.insert(trigger.spec.name.clone(), Arc::new(trigger));
            }
        }
        Ok(done(vec![Effect::Triggers]))
    }

    fn add_trigger(&mut self, spec: TriggerSpec, stamp: Stamp) -> Result<Applied, Rejection> {
        spec.check()?;
        if let Some(known) = self.trigger(&spec.name) {
            let same = known.spec == spec && known.declared_by.is_empty();
            return if same { Ok(done(Vec::new())) } else { Err(Rejection::TriggerInUse { name: spec.name }) };
        }
        if let (Some(rival), Some(source)) = (self.triggers.rival(&spec), spec.resource()) {
            let (server, uri) = (source.server.clone(), source.uri.clone());
            return Err(Rejection::ResourceInUse { server, uri, by: rival.spec.name.clone() });
        }
        if !self.agents.contains_key(&spec.agent) {
            let known = self.agents.keys().cloned().collect();
            return Err(Rejection::UnknownAgent { agent: spec.agent, known });
        }
        if self.triggers.0.len() >= limits::MAX_TRIGGERS {
            let what = "the list of triggers".to_owned();
            return Err(Rejection::Full { what, limit: limits::MAX_TRIGGERS as u64, retry_after_ms: FULL_RETRY_MS });
        }
        self.triggers.0.insert(spec.name.clone(), Arc::new(Trigger::new(spec, stamp.at)));
        Ok(done(vec![Effect::Triggers]))
    }

    fn remove_trigger(&mut self, name: TriggerName) -> Result<Applied, Rejection> {
        let Some(known) = self.trigger(&name) else { return Err(Rejection::UnknownTrigger { name }) };
        if !known.declared_by.is_empty() {
            return Err(Rejection::DeclaredTrigger { name });
        }
        self.triggers.0.remove(&name);
        Ok(done(vec![Effect::Triggers]))
    }

    fn claim_triggers(
        &mut self,
        node: NodeId,
        boot: BootId,
        names: &[TriggerName],
        stamp: Stamp,
    ) -> Result<Applied, Rejection> {
        if names.len() > limits::MAX_CLAIMED_PER_ENTRY {
            let limit = limits::MAX_CLAIMED_PER_ENTRY as u64;
            return Err(Rejection::TooLarge { what: "number of triggers to claim".into(), limit });
        }
        let Some(lease) = self.webhook_lease(node, Some(boot), stamp) else { return Ok(done(Vec::new())) };
        let mut any = false;
        for name in names {
            let ownerless = |trigger: &&mut Trigger| trigger.lease.is_none() && trigger.spec.has_owner();
            if let Some(trigger) = self.triggers.get_mut(name).filter(ownerless) {
                (trigger.lease, trigger.number) = (Some(lease), 0);
                any = true;
            }
        }
        Ok(done(if any { vec![Effect::Triggers] } else { Vec::new() }))
    }

    /// The trigger, if `by` looks after it under this lease.
    fn held_trigger(&self, by: &Principal, name: &TriggerName, epoch: Epoch) -> Result<&Trigger, Rejection> {
        let is_held = |trigger: &&Trigger| {
            trigger.lease.is_some_and(|lease| lease.epoch == epoch && *by == Principal::Node(lease.node))
        };
        let stale = || Rejection::StaleTrigger { name: name.clone(), epoch: epoch.0 };
        self.trigger(name).filter(is_held).ok_or_else(stale)
    }

    fn report_trigger(&mut self, by: &Principal, report: TriggerReport) -> Result<Applied, Rejection> {
        let TriggerReport { name, epoch, number, seen, tick, skipped, push, trouble } = report;
        if number <= self.held_trigger(by, &name, epoch)?.number {
            return Ok(done(Vec::new()));
        }
        if let Some(trigger) = self.triggers.get_mut(&name) {
            trigger.number = number;
            trigger.seen = seen.or(trigger.seen.take());
            trigger.tick = trigger.tick.max(tick);
            trigger.skipped += skipped;
            trigger.push = push;
            trigger.trouble = trouble.map(|text| text.chars().take(limits::MAX_TROUBLE_CHARS).collect());
        }
        Ok(done(Vec::new()))
    }

    fn fire(&mut self, by: &Principal, fire: Fire, stamp: Stamp) -> Result<Applied, Rejection> {
        let Fire { name, occasion, skipped, submission } = fire;
        let is_over = match &occasion {
            Occasion::Change { epoch, number, .. } => *number <= self.held_trigger(by, &name, *epoch)?.number,
            Occasion::Tick { epoch, at } => *at <= self.held_trigger(by, &name, *epoch)?.since(),
            Occasion::Call { .. } | Occasion::Hand { .. } => false,
        };
        let Some(trigger) = self.trigger(&name) else { return Err(Rejection::UnknownTrigger { name }) };
        if is_over {
            let last = trigger.tasks.back().copied();
            return Ok(last.map_or_else(
                || done(Vec::new()),
                |task| Applied { reply: Reply::Submitted { task, created: false }, effects: Vec::new() },
            ));
        }
        let message_id = MessageId::try_from(occasion.message_id(&name)).map_err(|_| Rejection::TooLarge {
            what: "key of the call in characters".into(),
            limit: limits::MAX_ID_CHARS as u64,
        })?;
        let message = Message { message_id, task_id: None, context_id: None, ..submission.message };
        // It acts for those who operate the mesh, whoever noticed that it is time.
        let submission = Submission { agent: trigger.spec.agent.clone(), message, parent: None, hop: 0, ..submission };
        let was_said =
            self.sent_before(&Principal::Operator, &submission.message, Some(&submission.agent), stamp.at)?;
        if was_said.is_none() {
            self.check_open_tasks_of(trigger)?;
        }
        let task = submission.task;
        let applied = self.submit(Principal::Operator, submission, stamp)?;
        if !matches!(applied.reply, Reply::Submitted { created: true, .. }) {
            return Ok(applied);
        }
        if occasion.is_from_outside()
            && let Some(task) = self.tasks.get_mut(&super::key(task)).map(Arc::make_mut)
        {
            task.note_outside_input(&format!("event of trigger {name}"));
        }
        if let Some(trigger) = self.triggers.get_mut(&name) {
            trigger.note_fired(task, stamp.at);
            trigger.skipped += skipped;
            match occasion {
                Occasion::Change { number, seen, .. } => (trigger.number, trigger.seen) = (number, Some(seen)),
                Occasion::Tick { at, .. } => trigger.tick = Some(at),
                Occasion::Call { .. } | Occasion::Hand { .. } => {}
            }
        }
        Ok(applied)
    }

    fn check_open_tasks_of(&self, trigger: &Trigger) -> Result<(), Rejection> {
        let is_open = |task: &&crate::TaskId| self.state_of(**task).is_some_and(|state| !state.is_terminal());
        let open = trigger.tasks.iter().filter(is_open).count();
        let limit = if trigger.spec.coalesce { 1 } else { limits::MAX_TASKS_PER_TRIGGER };
        if open < limit {
            return Ok(());
        }
        let what = format!("the list of open tasks of trigger {}", trigger.spec.name);
        Err(Rejection::Full { what, limit: limit as u64, retry_after_ms: OPEN_RETRY_MS })
    }
}
