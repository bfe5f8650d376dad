//! What holds after every command, whatever the commands were.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    sync::Arc,
};
use support::*;
use towline_core::*;

/// Few of everything, so that random commands meet each other.
const TASKS: u64 = 12;
const MESSAGES: u64 = 10;
/// So few that tasks and uploads name the same content.
const CONTENTS: u8 = 4;
const COMMANDS: usize = 120;

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_invariant_holds_after_every_command(ops in ops()) {
        let mut log = Log::of_nodes(3);
        for op in &ops {
            perform(&mut log, op);
            check(&log, invariants(&log.state))?;
        }
    }

    #[test]
    fn the_same_commands_give_the_same_state(ops in ops()) {
        let log = run(&ops);
        check(&log, replay(&log.entries) == log.state)?;
    }

    #[test]
    fn a_snapshot_anywhere_in_the_log_changes_nothing(ops in ops(), at in 0.0..1.0_f64) {
        let log = run(&ops);
        let middle = (log.entries.len() as f64 * at) as usize;
        let (before, after) = log.entries.split_at(middle);
        let mut state = decode(&encode(&replay(before)));
        for entry in after {
            let _refused_or_not = state.apply(entry.proposal.clone(), entry.stamp);
        }
        check(&log, state == log.state)?;
    }

    #[test]
    fn a_rejected_command_leaves_the_state_as_it_was(ops in ops()) {
        let mut log = Log::of_nodes(3);
        for op in &ops {
            let before = log.without_position();
            if perform(&mut log, op).is_some_and(|result| result.is_err()) {
                check(&log, log.without_position() == before)?;
            }
        }
    }

    #[test]
    fn a_command_proposed_twice_counts_once(ops in ops()) {
        let mut log = Log::of_nodes(3);
        for op in &ops {
            let Some(Ok(first)) = perform(&mut log, op) else { continue };
            let before = log.without_position();
            let Entry { proposal, .. } = log.entries.last().unwrap().clone();
            let second = log.apply(proposal.by, proposal.command);
            check(&log, log.without_position() == before)?;
            let fine = match second {
                Ok(second) => names_the_same(&first.reply, &second.reply),
                // The first one ended the lease or gave it to another node: the owner stops on either answer.
                Err(Rejection::StaleEpoch { task, epoch }) => {
                    log.task(task).lease.as_ref().is_none_or(|lease| lease.epoch != Epoch(epoch))
                }
                Err(_) => false,
            };
            check(&log, fine)?;
        }
    }

    #[test]
    fn terminal_states_absorb(ops in ops()) {
        let mut log = Log::of_nodes(3);
        for op in &ops {
            let ended: Vec<Task> = tasks(&log.state).filter(|task| task.status.state.is_terminal()).cloned().collect();
            perform(&mut log, op);
            for task in ended {
                let kept = log.state.task(task.id).is_none_or(|now| *now == task);
                check(&log, kept)?;
            }
        }
    }

    #[test]
    fn a_report_under_an_old_epoch_is_always_refused(ops in ops()) {
        let mut log = Log::of_nodes(3);
        let mut leases: Vec<(TaskId, Lease)> = Vec::new();
        for op in &ops {
            perform(&mut log, op);
            let held = tasks(&log.state).filter_map(|task| Some((task.id, task.lease.clone()?)));
            for (id, lease) in held {
                if !leases.iter().any(|(known, old)| *known == id && old.epoch == lease.epoch) {
                    leases.push((id, lease));
                }
            }
            let over = leases.iter().filter(|(id, old)| {
                let current = log.state.task(*id).and_then(|task| task.lease.as_ref());
                current.is_none_or(|current| current.epoch != old.epoch)
            });
            for (id, old) in over {
                let mut fork = log.clone();
                let answer = fork.report_as(old, *id, old.reported + 1, vec![finished(TaskState::Completed)]);
                check(&log, matches!(answer, Err(Rejection::StaleEpoch { .. } | Rejection::UnknownTask { .. })))?;
            }
        }
    }

    #[test]
    fn archiving_at_any_point_changes_no_answer(ops in ops(), often in 1..6_usize) {
        let mut log = Log::of_nodes(3);
        let mut other = log.state.clone();
        let mut archive: BTreeMap<TaskId, Task> = BTreeMap::new();
        for (number, op) in ops.iter().enumerate() {
            let known = log.entries.len();
            let answer = perform(&mut log, op);
            let Some(entry) = log.entries.get(known).cloned() else { continue };
            let same = other.apply(entry.proposal, entry.stamp);
            check(&log, answer == Some(same))?;
            archive.retain(|id, _| other.knows_task(*id));
            if number % often == 0 {
                let tasks = other.archivable(entry.stamp.at, 0);
                archive.extend(other.to_archive(&tasks).into_iter().map(|task| (task.id, Task::clone(&task))));
                let proposal = Proposal { by: Principal::Node(NodeId(1)), command: Command::Archive { tasks } };
                other.apply(proposal, entry.stamp).unwrap();
                check(&log, other.archivable(entry.stamp.at, 0).is_empty())?;
            }
            check(&log, shows_the_same(&log.state, &other, &archive))?;
        }
        check(&log, decode(&encode(&other)) == other)?;
    }

    #[test]
    fn events_are_only_ever_added(ops in ops()) {
        let mut log = Log::of_nodes(3);
        for op in &ops {
            let before = log.state.clone();
            perform(&mut log, op);
            for old in tasks(&before) {
                let Some(new) = log.state.task(old.id) else { continue };
                check(&log, new.events.iter().take(old.events.len()).eq(old.events.iter()))?;
            }
        }
    }
}

/// One random step. Numbers pick among what there is.
#[derive(Debug, Clone)]
enum Op {
    Submit { task: u64, message: u64, agent: bool, other_text: bool, prefer: u64, parent: Option<u64> },
    Continue { task: u64, message: u64, answer: u8 },
    Cancel { task: u64 },
    Report { task: u64, kind: ReportKind, words: Vec<Word> },
    Up { node: u64, new_life: bool, capacity: u32 },
    Lost { node: u64, earlier_life: bool },
    AssignPending,
    Sweep { after_retention: bool },
    Resolve { task: u64, step: Option<u32>, verdict: u8 },
    Testify { task: u64, node: u64, step: u32 },
    Day,
    Enrol { position: u64, token: u64 },
    Mint { token: u64 },
    SetRole { node: u64, voter: bool },
    Drain { node: u64, patience_ms: u64 },
    Undrain { node: u64 },
    Upload { content: u8 },
}

#[derive(Debug, Clone, Copy)]
enum ReportKind {
    Good,
    StaleEpoch,
    Duplicate,
    Gap,
    WrongNode,
}

#[derive(Debug, Clone)]
enum Word {
    Turn,
    Step(u8),
    Restart(u8),
    PeerTask(u8),
    End(u8),
    EndAtLength(u8),
    File(u8),
    Chunk { artifact: u8, text: String, append: bool },
    Ask(u8),
    Doubt(u8),
    Finish(u8),
    Release,
    Misplaced,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..COMMANDS)
}

fn op() -> impl Strategy<Value = Op> {
    let submit = (
        1..=TASKS,
        1..=MESSAGES,
        any::<bool>(),
        prop::bool::weighted(0.1),
        0..4_u64,
        prop::option::weighted(0.4, 1..=TASKS),
    )
        .prop_map(|(task, message, agent, other_text, prefer, parent)| Op::Submit {
            task,
            message,
            agent,
            other_text,
            prefer,
            parent,
        });
    let report = (1..=TASKS, report_kind(), prop::collection::vec(word(), 1..5))
        .prop_map(|(task, kind, words)| Op::Report { task, kind, words });
    prop_oneof![
        6 => submit,
        3 => (1..=TASKS, 1..=MESSAGES, 0..4_u8).prop_map(|(task, message, answer)| Op::Continue { task, message, answer }),
        1 => (1..=TASKS).prop_map(|task| Op::Cancel { task }),
        16 => report,
        2 => (0..4_u64, any::<bool>(), 0..4_u32).prop_map(|(node, new_life, capacity)| Op::Up { node, new_life, capacity }),
        2 => (0..4_u64, prop::bool::weighted(0.2)).prop_map(|(node, earlier_life)| Op::Lost { node, earlier_life }),
        1 => Just(Op::AssignPending),
        1 => prop::bool::weighted(0.3).prop_map(|after_retention| Op::Sweep { after_retention }),
        2 => (1..=TASKS, prop::option::of(0..3_u32), 0..3_u8).prop_map(|(task, step, verdict)| Op::Resolve { task, step, verdict }),
        2 => (1..=TASKS, 0..4_u64, 0..3_u32).prop_map(|(task, node, step)| Op::Testify { task, node, step }),
        1 => Just(Op::Day),
        1 => (10..13_u64, 0..2_u64).prop_map(|(position, token)| Op::Enrol { position, token }),
        1 => (0..2_u64).prop_map(|token| Op::Mint { token }),
        1 => (0..4_u64, any::<bool>()).prop_map(|(node, voter)| Op::SetRole { node, voter }),
        1 => (0..4_u64, 0..2_u64).prop_map(|(node, patience_ms)| Op::Drain { node, patience_ms }),
        1 => (0..4_u64).prop_map(|node| Op::Undrain { node }),
        1 => (0..CONTENTS).prop_map(|content| Op::Upload { content }),
    ]
}

fn report_kind() -> impl Strategy<Value = ReportKind> {
    prop_oneof![
        12 => Just(ReportKind::Good),
        1 => Just(ReportKind::StaleEpoch),
        1 => Just(ReportKind::Duplicate),
        1 => Just(ReportKind::Gap),
        1 => Just(ReportKind::WrongNode),
    ]
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        3 => Just(Word::Turn),
        4 => (0..5_u8).prop_map(Word::Step),
        1 => any::<u8>().prop_map(Word::Restart),
        1 => any::<u8>().prop_map(Word::PeerTask),
        3 => any::<u8>().prop_map(Word::End),
        1 => any::<u8>().prop_map(Word::EndAtLength),
        1 => (0..CONTENTS).prop_map(Word::File),
        4 => (0..3_u8, "[a-z ]{0,6}", any::<bool>())
            .prop_map(|(artifact, text, append)| Word::Chunk { artifact, text, append }),
        2 => any::<u8>().prop_map(Word::Ask),
        1 => any::<u8>().prop_map(Word::Doubt),
        1 => any::<u8>().prop_map(Word::Finish),
        1 => Just(Word::Release),
        1 => Just(Word::Misplaced),
    ]
}

fn run(ops: &[Op]) -> Log {
    let mut log = Log::of_nodes(3);
    for op in ops {
        perform(&mut log, op);
    }
    log
}

/// Applies one step; `None` if it makes no sense here (a report on a task that was never leased).
fn perform(log: &mut Log, op: &Op) -> Option<Result<Applied, Rejection>> {
    match op {
        Op::Submit { task, message, agent, other_text, prefer, parent } => {
            let text = if *other_text { "something else" } else { "read the file" };
            let agent = if *agent { "surveyor" } else { "reader" };
            let message = user_message(&format!("m-{message}"), text);
            let prefer = pick(log, *prefer);
            let fresh = log.entries.len() as u64 * 1_000 + task;
            let number = if log.state.task(task_id(*task)).is_some() { fresh } else { *task };
            let mut submission = submission(number, agent, prefer, message);
            let mut by = Principal::Operator;
            if let Some(parent) = parent.filter(|parent| log.state.task(task_id(*parent)).is_some()) {
                submission.parent = Some(ParentLink { task: task_id(parent), step: StepNo(0) });
                by = Principal::Agent { name: name("surveyor"), on_behalf_of: Box::new(by) };
            }
            Some(log.apply(by, Command::Submit(Box::new(submission))))
        }
        Op::Continue { task, message, answer } => {
            let text = ["retry", "done it is there", "failed", "the second"][usize::from(*answer)];
            let mut message = user_message(&format!("answer-{message}"), text);
            message.task_id = Some(task_id(*task));
            Some(log.operator(Command::Continue { task: task_id(*task), message, trace: span(7) }))
        }
        Op::Cancel { task } => Some(log.operator(Command::Cancel { task: task_id(*task) })),
        Op::Report { task, kind, words } => report(log, task_id(*task), *kind, words),
        Op::Up { node, new_life, capacity } => {
            let node = pick(log, *node);
            let life = log.state.node(NodeId(node)).and_then(|node| node.boot);
            let fresh = boot(node, 10 + log.entries.len() as u64);
            let boot = life.filter(|_| !new_life).unwrap_or(fresh);
            Some(log.up_with(node, boot, *capacity))
        }
        Op::Lost { node, earlier_life } => {
            let node = pick(log, *node);
            let life = log.state.node(NodeId(node)).and_then(|node| node.boot)?;
            let boot = if *earlier_life { boot(node, 9_999) } else { life };
            Some(log.node(1, Command::NodeLost { node: NodeId(node), boot }))
        }
        Op::AssignPending => Some(log.node(1, Command::AssignPending)),
        Op::Sweep { after_retention } => {
            if *after_retention {
                log.pass(limits::TERMINAL_RETENTION_MS + 1);
            }
            Some(log.node(1, Command::Sweep))
        }
        Op::Resolve { task, step, verdict } => {
            let verdicts =
                [Verdict::Retry, Verdict::Done { result: "sent".into() }, Verdict::Failed { reason: "no".into() }];
            Some(log.resolve(task_id(*task), *step, verdicts[usize::from(*verdict)].clone()))
        }
        Op::Testify { task, node, step } => {
            let id = task_id(*task);
            let epoch = log.state.task(id)?.adoptions.last().map_or(Epoch(1), |last| Epoch(last.epoch.0 - 1));
            let lost = Lease { node: NodeId(pick(log, *node)), boot: boot(1, 1), epoch, reported: 0 };
            Some(log.testify(&lost, id, *step, "it was sent"))
        }
        Op::Day => {
            log.pass(limits::DEDUP_AFTER_END_MS);
            Some(log.node(1, Command::Sweep))
        }
        Op::Enrol { position, token } => {
            Some(log.node(1, Command::Enrol(enrolment_with_key(&format!("token-{token}"), *position))))
        }
        Op::Mint { token } => {
            let hash = format!("token-{token}");
            Some(log.operator(Command::MintToken { hash, role: NodeRole::Voter, ttl_ms: 300 }))
        }
        Op::SetRole { node, voter } => {
            let role = if *voter { NodeRole::Voter } else { NodeRole::Learner };
            Some(log.operator(Command::SetRole { node: NodeId(pick(log, *node)), role }))
        }
        Op::Drain { node, patience_ms } => {
            Some(log.operator(Command::Drain { node: NodeId(pick(log, *node)), patience_ms: *patience_ms }))
        }
        Op::Undrain { node } => Some(log.operator(Command::Undrain { node: NodeId(pick(log, *node)) })),
        Op::Upload { content } => {
            let Blob { hash, length, .. } = blob(*content);
            Some(log.operator(Command::Upload { hash, length }))
        }
    }
}

fn pick(log: &Log, number: u64) -> u64 {
    let ids = log.node_ids();
    ids[number as usize % ids.len()]
}

fn report(log: &mut Log, id: TaskId, kind: ReportKind, words: &[Word]) -> Option<Result<Applied, Rejection>> {
    let task = log.state.task(id)?;
    let lease = task.lease.clone()?;
    let words = spell(task, words);
    let next = lease.reported + 1;
    let (lease, number) = match kind {
        ReportKind::Good => (lease, next),
        ReportKind::StaleEpoch => (Lease { epoch: Epoch(lease.epoch.0.saturating_sub(1)), ..lease }, next),
        ReportKind::Duplicate => (lease.clone(), lease.reported.max(1)),
        ReportKind::Gap => (lease, next + 1),
        ReportKind::WrongNode => (Lease { node: NodeId(lease.node.0 + 1), ..lease }, next),
    };
    Some(log.report_as(&lease, id, number, words))
}

/// Turns random words into ones that mostly fit the task as it is after the words before.
fn spell(task: &Task, words: &[Word]) -> Vec<OwnerWord> {
    let mut length = task.journal.len() as u32;
    let mut open: Vec<u32> = task.open_steps().map(|step| step.no.0).collect();
    let mut spelled = Vec::new();
    for word in words {
        let chosen = |number: u8| open.get(usize::from(number) % open.len().max(1)).copied();
        let word = match word {
            Word::Turn => turn_started(u64::from(length)),
            Word::Step(kind) => {
                let no = length;
                length += 1;
                open.push(no);
                step_started(no, intent(*kind, no))
            }
            Word::Restart(number) => {
                let Some(no) = chosen(*number) else { continue };
                OwnerWord::StepRestarted { step: StepNo(no), span: span(77) }
            }
            Word::PeerTask(number) => {
                let Some(no) = chosen(*number) else { continue };
                OwnerWord::PeerTask { step: StepNo(no), peer_task: format!("peer-{no}") }
            }
            Word::End(number) => {
                let Some(no) = chosen(*number) else { continue };
                open.retain(|step| *step != no);
                step_ended(no, "result")
            }
            Word::EndAtLength(number) => {
                let Some(no) = chosen(*number) else { continue };
                open.retain(|step| *step != no);
                let outcome = Outcome::Stored { blob: blob(*number % CONTENTS), is_error: false };
                OwnerWord::StepEnded { step: StepNo(no), outcome }
            }
            Word::File(content) => file(*content),
            Word::Chunk { artifact, text, append } => chunk(&format!("step-{artifact}"), text, *append),
            Word::Ask(number) => {
                let Some(no) = chosen(*number) else { continue };
                ask_person(no, "which one?")
            }
            Word::Doubt(number) => {
                let Some(no) = chosen(*number) else { continue };
                OwnerWord::Doubt { steps: vec![StepNo(no)], message: agent_message("doubt", "was it sent?") }
            }
            Word::Finish(number) => {
                let states = [TaskState::Completed, TaskState::Failed, TaskState::Rejected, TaskState::Working];
                finished(states[usize::from(*number) % states.len()])
            }
            Word::Release => OwnerWord::Released,
            Word::Misplaced => step_ended(length + 5, "nowhere"),
        };
        spelled.push(word);
    }
    spelled
}

fn blob(content: u8) -> Blob {
    Blob { hash: BlobHash::from_bytes([content; 32]), length: 20_000 + u64::from(content), form: BlobForm::Raw }
}

fn file(content: u8) -> OwnerWord {
    OwnerWord::Chunk {
        artifact_id: "file".into(),
        name: None,
        parts: vec![Part { content: Content::Blob(blob(content)), ..Part::text("") }],
        append: false,
        last_chunk: true,
        metadata: Metadata::new(),
    }
}

fn intent(kind: u8, no: u32) -> Intent {
    match kind {
        0 => Intent::Model { model: "scripted-1".into() },
        1 => tool_intent(OnAdoption::Ask),
        2 => Intent::Delegate {
            call_id: format!("call-{no}"),
            target: "reader".into(),
            own_mesh: true,
            message: Box::new(user_message(&format!("step-{no}"), "read it")),
            peer_task: None,
            on_adoption: OnAdoption::Retry,
            handover: Handover::Delegation,
        },
        3 => ask_intent(),
        _ => Intent::Refused { call_id: format!("call-{no}"), name: "unknown".into() },
    }
}

fn tasks(state: &State) -> impl Iterator<Item = &Task> {
    (0..=u8::MAX).flat_map(|shard| state.tasks_in(VShard(shard)))
}

/// Whether both replies name the same task or node: only `created` may differ.
fn names_the_same(first: &Reply, second: &Reply) -> bool {
    match (first, second) {
        (Reply::Submitted { task: first, .. }, Reply::Submitted { task: second, created }) => {
            first == second && !created
        }
        _ => first == second,
    }
}

fn invariants(state: &State) -> bool {
    let mut leased: BTreeSet<(NodeId, TaskId)> = BTreeSet::new();
    let mut waiting_for_owner = 0;
    for task in tasks(state) {
        assert_events_have_no_gap(task);
        assert_status_is_the_last_one_told(task);
        assert_journal_is_in_order(task);
        assert_chunks_give_the_artifacts(task);
        assert_lease_is_held_by_a_live_node(state, task);
        assert_children_do_not_outlive(state, task);
        assert_messages_are_remembered(state, task);
        let runs = !task.status.state.is_terminal() && !task.status.state.is_interrupted();
        match &task.lease {
            Some(lease) => {
                leased.insert((lease.node, task.id));
            }
            None if runs => waiting_for_owner += 1,
            None => {}
        }
    }
    let index: BTreeSet<(NodeId, TaskId)> =
        state.nodes().flat_map(|node| state.tasks_of(node.id).map(move |task| (node.id, task.id))).collect();
    assert_eq!(index, leased, "the index of leases agrees with the tasks");
    assert_eq!(state.unassigned(), waiting_for_owner, "what should run has an owner or waits for one");
    assert_all_content_is_named(state);
    for node in state.nodes() {
        assert_eq!(state.load_of(node.id), state.tasks_of(node.id).count());
    }
    for agent in state.agents() {
        let open = |task: &&Task| task.agent == agent.spec.name && !task.status.state.is_terminal();
        assert_eq!(
            state.open_tasks_of(&agent.spec.name),
            tasks(state).filter(open).count(),
            "what is counted is there"
        );
    }
    let listed = state.list(&Principal::Operator, &ListFilter::default(), usize::MAX);
    assert_eq!(listed.total, tasks(state).filter(|task| task.owner == Principal::Operator).count());
    true
}

/// Whether a state and its archive show what a state shows that keeps everything.
fn shows_the_same(whole: &State, other: &State, archive: &BTreeMap<TaskId, Task>) -> bool {
    let found = archive.iter().map(|(id, task)| (*id, Some(Arc::new(task.clone())))).collect();
    let agents = [None, Some(name("reader")), Some(name("surveyor"))];
    let states = [None, Some(TaskState::Completed), Some(TaskState::Canceled), Some(TaskState::Working)];
    let some = tasks(whole).next().map(|task| (task.context.clone(), task.status.at, task.id));
    let mut filters = vec![ListFilter::default()];
    filters.extend(agents.iter().flat_map(|agent| {
        states.iter().map(|state| ListFilter { agent: agent.clone(), state: *state, ..ListFilter::default() })
    }));
    if let Some((context, at, id)) = some {
        filters.push(ListFilter { context: Some(context.clone()), ..ListFilter::default() });
        filters.push(ListFilter { status_after: Some(at), ..ListFilter::default() });
        filters.push(ListFilter { after: Some((at, id)), context: Some(context), ..ListFilter::default() });
        filters.push(ListFilter { after: Some((at, id)), ..ListFilter::default() });
    }
    let listed = |state: &State, filter: &ListFilter, size| {
        state.list(&Principal::Operator, filter, size).page(&found, |task| task.shown_bytes(None, true))
    };
    let stranger = Principal::Node(NodeId(1));
    let ids: Vec<TaskId> = tasks(whole).map(|task| task.id).collect();
    whole.task_count() == other.task_count()
        && ids.iter().all(|id| other.task(*id).or_else(|| archive.get(id)) == whole.task(*id))
        && ids.iter().all(|id| other.state_of(*id) == whole.state_of(*id))
        && ids.iter().all(|id| other.record_for(&stranger, *id).is_none() && other.record(*id).is_some())
        && whole.named_blobs().eq(other.named_blobs())
        && filters
            .iter()
            .all(|filter| [2, 50].iter().all(|size| listed(whole, filter, *size) == listed(other, filter, *size)))
}

/// What a task shows or has journaled, or what was uploaded, is named, and nothing else.
fn assert_all_content_is_named(state: &State) {
    let mut named: BTreeSet<BlobHash> = BTreeSet::new();
    for task in tasks(state) {
        let shown = task.artifacts.iter().flat_map(|artifact| &artifact.parts).filter_map(Part::blob);
        let ended = task.journal.iter().filter_map(|step| match step.ended.as_ref()?.outcome {
            Outcome::Stored { ref blob, .. } => Some(blob),
            Outcome::Answered(_) | Outcome::Returned { .. } | Outcome::Failed { .. } => None,
        });
        for blob in shown.chain(ended) {
            assert_eq!(task.blobs.get(&blob.hash), Some(&blob.length));
        }
        named.extend(task.blobs.keys());
    }
    let uploaded = (0..CONTENTS).map(|content| blob(content).hash);
    named.extend(uploaded.filter(|hash| state.upload(&Principal::Operator, *hash).is_some()));
    assert_eq!(state.named_blobs().map(|(hash, _)| hash).collect::<BTreeSet<_>>(), named);
}

fn assert_events_have_no_gap(task: &Task) {
    let indexes: Vec<u64> = task.events.iter().map(|event| event.index).collect();
    assert_eq!(indexes, (1..=task.generation).collect::<Vec<_>>());
    let created = task.events.iter().filter(|event| event.kind == EventKind::Created).count();
    assert_eq!((created, &task.events[0].kind), (1, &EventKind::Created));
    assert!(task.events.iter().zip(task.events.iter().skip(1)).all(|(earlier, later)| earlier.at <= later.at));
}

fn assert_status_is_the_last_one_told(task: &Task) {
    let told = task.events.iter().rev().find_map(|event| match &event.kind {
        EventKind::Status { status, .. } => Some(status),
        EventKind::Created | EventKind::Artifact { .. } => None,
    });
    match told {
        Some(status) => assert_eq!(task.status, *status),
        None => assert_eq!(task.status.state, TaskState::Submitted),
    }
    let last_is_terminal = task
        .events
        .back()
        .is_some_and(|event| matches!(&event.kind, EventKind::Status { status, .. } if status.state.is_terminal()));
    assert_eq!(last_is_terminal, task.status.state.is_terminal(), "the terminal event is the last one");
}

fn assert_journal_is_in_order(task: &Task) {
    for (position, step) in task.journal.iter().enumerate() {
        assert_eq!(step.no.0 as usize, position);
        assert!(step.turn <= task.turn.number && step.attempt >= 1);
    }
}

fn assert_chunks_give_the_artifacts(task: &Task) {
    let texts = concatenated(&task.events);
    assert_eq!(texts.len(), task.artifacts.len());
    for artifact in &task.artifacts {
        assert_eq!(artifact.text(), texts[&artifact.artifact_id]);
    }
}

fn assert_lease_is_held_by_a_live_node(state: &State, task: &Task) {
    let Some(lease) = &task.lease else { return };
    let node = state.node(lease.node).expect("the owner is a member");
    assert_eq!(node.health, NodeHealth::Up);
    assert_eq!(node.boot, Some(lease.boot));
    assert!(!task.status.state.is_terminal() && !task.status.state.is_interrupted());
    assert!(lease.epoch.0 <= state.last().index);
    assert!(task.adoptions.iter().all(|adoption| adoption.epoch <= lease.epoch));
}

fn assert_children_do_not_outlive(state: &State, task: &Task) {
    for child in state.children_of(task.id) {
        assert_eq!(child.parent.as_ref().map(|parent| parent.task), Some(task.id));
        assert!(!task.status.state.is_terminal() || child.status.state.is_terminal());
    }
}

/// While the task is open, and a day longer.
fn assert_messages_are_remembered(state: &State, task: &Task) {
    let age = state.last().at.0 - task.status.at.0;
    if task.status.state.is_terminal() && age >= limits::DEDUP_AFTER_END_MS {
        return;
    }
    let mut fork = state.clone();
    let mut again = submission(999_999, task.agent.as_str(), 1, task.history[0].clone());
    again.fresh_context = task.context.clone();
    let stamp = Stamp { index: state.last().index + 1, at: state.last().at };
    let proposal = Proposal { by: Principal::Operator, command: Command::Submit(Box::new(again)) };
    let reply = fork.apply(proposal, stamp).map(|applied| applied.reply);
    assert_eq!(reply, Ok(Reply::Submitted { task: task.id, created: false }));
}

/// Fails the case; the log that led there stays in a file that `replay.rs` reads.
fn check(log: &Log, holds: bool) -> Result<(), TestCaseError> {
    if holds {
        return Ok(());
    }
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("failed-commands.jsonl");
    let mut file = std::fs::File::create(&path).unwrap();
    for entry in &log.entries {
        writeln!(file, "{}", serde_json::to_string(entry).unwrap()).unwrap();
    }
    Err(TestCaseError::fail(format!("its commands are in {}: TOWLINE_REPLAY=FILE steps through them", path.display())))
}
