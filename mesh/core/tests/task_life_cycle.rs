//! The life of a task, one sentence per test.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

#[test]
fn the_first_event_says_that_the_task_was_created_and_has_index_1() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let task = log.task(id);
    assert_eq!(task.generation, 1);
    assert_eq!(task.events[0].index, 1);
    assert_eq!(task.events[0].kind, EventKind::Created);
    assert_eq!(task.status.state, TaskState::Submitted);
}

#[test]
fn each_status_change_and_each_chunk_makes_one_event_and_nothing_else_does() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1), model_step(0)]).unwrap();
    assert_eq!(log.task(id).generation, 2, "submitted, working");
    log.report(id, vec![chunk("step-0", "one ", false), chunk("step-0", "two", true)]).unwrap();
    assert_eq!(log.task(id).generation, 4);
    log.report(id, vec![step_ended(0, "one two")]).unwrap();
    assert_eq!(log.task(id).generation, 4, "the journal is not the client's");
    log.report(id, vec![finished(TaskState::Completed)]).unwrap();
    let indexes: Vec<u64> = log.task(id).events.iter().map(|event| event.index).collect();
    assert_eq!(indexes, [1, 2, 3, 4, 5]);
}

#[test]
fn the_dialled_node_runs_the_task() {
    let mut log = Log::of_nodes(3);
    let nodes = log.node_ids();
    for (number, node) in (1..).zip(&nodes) {
        let id = log.submit(number, "reader", *node);
        assert_eq!(log.lease(id).node, NodeId(*node));
    }
}

#[test]
fn a_dialled_node_without_a_free_place_leaves_the_task_to_the_least_loaded() {
    let mut log = Log::of_nodes(3);
    let nodes = log.node_ids();
    log.up_with(1, boot(1, 1), 1).unwrap();
    let first = log.submit(1, "reader", 1);
    assert_eq!(log.lease(first).node, NodeId(1));
    let busy = log.submit(2, "reader", nodes[1]);
    assert_eq!(log.lease(busy).node, NodeId(nodes[1]));
    let third = log.submit(3, "reader", 1);
    assert_eq!(log.lease(third).node, NodeId(nodes[2]), "the only node with nothing to do");
}

#[test]
fn a_node_that_does_not_host_the_agent_leaves_the_task_to_one_that_does() {
    let mut log = Log::of_nodes(3);
    let host = log.state.agent(&name("surveyor")).unwrap().placed.first().copied().unwrap();
    let other = log.node_ids().into_iter().find(|node| NodeId(*node) != host).unwrap();
    let id = log.submit(1, "surveyor", other);
    assert_eq!(log.lease(id).node, host);
}

#[test]
fn an_agent_with_one_replica_moves_when_its_node_is_lost_and_not_before() {
    let mut log = Log::of_nodes(3);
    let placed = |log: &Log| log.state.agent(&name("surveyor")).unwrap().placed.clone();
    let before = placed(&log);
    assert_eq!(before.len(), 1);
    log.up(3_000, boot(3_000, 1)).unwrap_err();
    assert_eq!(placed(&log), before);
    let host = before.first().unwrap().0;
    log.lose(host);
    let after = placed(&log);
    assert_eq!(after.len(), 1);
    assert!(!after.contains(&NodeId(host)));
}

#[test]
fn a_lost_node_loses_its_leases_and_another_adopts_its_tasks_with_one_event() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1), model_step(0), chunk("step-0", "half", false)]).unwrap();
    let before = log.task(id).generation;
    let old = log.lease(id);
    let applied = log.lose(1);

    let task = log.task(id);
    let lease = log.lease(id);
    assert_ne!(lease.node, NodeId(1));
    assert!(lease.epoch > old.epoch);
    assert_eq!(task.generation, before + 1);
    assert_eq!(adoption_events(task).len(), 1);
    assert_eq!(task.status.state, TaskState::Working);
    assert_eq!(
        task.adoptions,
        [Adoption { from: NodeId(1), to: lease.node, epoch: lease.epoch, at: log.state.last().at, generation: before }]
    );
    assert!(applied.effects.contains(&Effect::Stop { task: id, node: NodeId(1) }));
    assert!(applied.effects.contains(&Effect::Start { task: id, lease }));
}

#[test]
fn the_adopter_begins_a_new_attempt_of_the_turn_and_remembers_the_lost_span() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1), model_step(0)]).unwrap();
    log.lose(1);
    log.report(id, vec![turn_started(2), OwnerWord::StepRestarted { step: StepNo(0), span: span(99) }]).unwrap();
    let task = log.task(id);
    assert_eq!(task.turn.number, 1);
    assert_eq!(task.turn.attempt, 2);
    assert_eq!(task.turn.lost, [span(1)]);
    assert_eq!(task.turn.span, Some(span(2)));
    assert_eq!(task.journal[0].attempt, 2);
    assert_eq!(task.journal[0].span, span(99));
    assert_eq!(task.journal[0].parent_span, span(2).span_id);
}

#[test]
fn a_node_that_comes_back_as_another_process_ends_its_old_leases_at_once() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let old = log.lease(id);
    log.up(1, boot(1, 2)).unwrap();
    let new = log.lease(id);
    assert!(new.epoch > old.epoch);
    let refused = log.report_as(&old, id, 1, vec![turn_started(1)]).unwrap_err();
    assert_eq!(refused, Rejection::StaleEpoch { task: id, epoch: old.epoch.0 });
}

#[test]
fn a_node_that_registers_again_in_the_same_life_keeps_its_leases() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let lease = log.lease(id);
    log.up(1, boot(1, 1)).unwrap();
    assert_eq!(log.lease(id), lease);
}

#[test]
fn the_loss_of_an_earlier_life_does_not_touch_a_later_one() {
    let mut log = Log::of_nodes(3);
    log.up(1, boot(1, 2)).unwrap();
    let id = log.submit(1, "reader", 1);
    let lease = log.lease(id);
    log.node(1, Command::NodeLost { node: NodeId(1), boot: boot(1, 1) }).unwrap();
    assert_eq!(log.lease(id), lease);
    assert_eq!(log.state.node(NodeId(1)).unwrap().health, NodeHealth::Up);
}

#[test]
fn tasks_wait_while_no_node_is_up_and_are_assigned_when_one_comes() {
    let mut log = Log::of_nodes(1);
    log.lose(1);
    let id = log.submit(1, "reader", 1);
    assert_eq!(log.task(id).lease, None);
    assert_eq!(log.state.unassigned(), 1);
    assert!(!log.state.has_assignable());
    log.up(1, boot(1, 2)).unwrap();
    assert_eq!(log.lease(id).node, NodeId(1));
    assert_eq!(log.state.unassigned(), 0);
}

#[test]
fn a_stale_epoch_is_refused_and_changes_nothing() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let old = log.lease(id);
    log.lose(1);
    let before = log.without_position();
    let refused = log.report_as(&old, id, 1, vec![turn_started(1), finished(TaskState::Completed)]).unwrap_err();
    assert_eq!(refused, Rejection::StaleEpoch { task: id, epoch: old.epoch.0 });
    assert_eq!(log.without_position(), before);
}

#[test]
fn the_right_epoch_from_another_node_is_refused() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let lease = log.lease(id);
    let thief = Lease { node: NodeId(log.node_ids()[1]), ..lease };
    let refused = log.report_as(&thief, id, 1, vec![turn_started(1)]).unwrap_err();
    assert!(matches!(refused, Rejection::StaleEpoch { .. }));
}

#[test]
fn a_report_that_comes_twice_is_answered_with_success_and_counts_once() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let lease = log.lease(id);
    let words = vec![turn_started(1), model_step(0), chunk("step-0", "once", false)];
    log.report_as(&lease, id, 1, words.clone()).unwrap();
    let before = log.without_position();
    let again = log.report_as(&lease, id, 1, words).unwrap();
    assert_eq!(again, Applied { reply: Reply::Done, effects: Vec::new() });
    assert_eq!(log.without_position(), before);
}

#[test]
fn a_report_that_overtakes_another_is_refused() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let lease = log.lease(id);
    let refused = log.report_as(&lease, id, 2, vec![turn_started(1)]).unwrap_err();
    assert_eq!(refused, Rejection::ReportGap { number: 2, expected: 1 });
}

#[test]
fn a_report_with_one_impossible_word_is_refused_as_a_whole() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let before = log.without_position();
    let refused = log
        .report(id, vec![turn_started(1), chunk("step-0", "text", false), step_ended(4, "no such step")])
        .unwrap_err();
    assert_eq!(refused, Rejection::UnexpectedStep { step: StepNo(4) });
    assert_eq!(log.without_position(), before);
}

#[test]
fn nothing_may_follow_the_end_inside_one_report() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let refused = log.report(id, vec![finished(TaskState::Completed), chunk("late", "text", false)]).unwrap_err();
    assert!(matches!(refused, Rejection::TaskEnded { .. }));
}

#[test]
fn terminal_states_absorb_every_later_word() {
    for state in [TaskState::Completed, TaskState::Failed, TaskState::Canceled, TaskState::Rejected] {
        let mut log = Log::of_nodes(3);
        let id = log.submit(1, "reader", 1);
        let lease = log.lease(id);
        if state == TaskState::Canceled {
            log.operator(Command::Cancel { task: id }).unwrap();
        } else {
            log.report(id, vec![turn_started(1), finished(state)]).unwrap();
        }
        let ended = log.task(id).clone();
        assert_eq!(ended.status.state, state);
        log.report_as(&lease, id, 2, vec![chunk("late", "text", false)]).unwrap_err();
        log.operator(Command::Continue { task: id, message: user_message("late", "go on"), trace: span(5) })
            .unwrap_err();
        log.lose(1);
        log.up(1, boot(1, 2)).unwrap();
        log.node(1, Command::AssignPending).unwrap();
        assert_eq!(*log.task(id), ended, "{state:?}");
    }
}

#[test]
fn canceling_twice_is_once() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.operator(Command::Cancel { task: id }).unwrap();
    let before = log.without_position();
    log.operator(Command::Cancel { task: id }).unwrap();
    assert_eq!(log.without_position(), before);
}

#[test]
fn a_completed_task_cannot_be_canceled() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![finished(TaskState::Completed)]).unwrap();
    let refused = log.operator(Command::Cancel { task: id }).unwrap_err();
    assert_eq!(refused, Rejection::NotCancelable { task: id, state: TaskState::Completed });
}

#[test]
fn a_canceled_task_ends_its_lease_and_says_so_to_its_owner() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let applied = log.operator(Command::Cancel { task: id }).unwrap();
    assert_eq!(log.task(id).lease, None);
    assert_eq!(log.state.load_of(NodeId(1)), 0);
    assert!(applied.effects.contains(&Effect::Stop { task: id, node: NodeId(1) }));
}

#[test]
fn children_are_canceled_with_their_parent_however_deep() {
    let mut log = Log::of_nodes(3);
    let parent = log.submit(1, "surveyor", 1);
    log.submit_child(2, parent).unwrap();
    log.submit_child(3, task_id(2)).unwrap();
    log.operator(Command::Cancel { task: parent }).unwrap();
    for number in [1, 2, 3] {
        assert_eq!(log.task(task_id(number)).status.state, TaskState::Canceled, "task {number}");
    }
}

#[test]
fn a_parent_that_ends_by_itself_takes_its_open_children_with_it() {
    let mut log = Log::of_nodes(3);
    let parent = log.submit(1, "surveyor", 1);
    log.submit_child(2, parent).unwrap();
    log.report(parent, vec![turn_started(1), finished(TaskState::Failed)]).unwrap();
    assert_eq!(log.task(task_id(2)).status.state, TaskState::Canceled);
}

#[test]
fn a_finished_child_keeps_its_result_when_its_parent_is_canceled() {
    let mut log = Log::of_nodes(3);
    let parent = log.submit(1, "surveyor", 1);
    log.submit_child(2, parent).unwrap();
    log.report(task_id(2), vec![turn_started(1), finished(TaskState::Completed)]).unwrap();
    log.operator(Command::Cancel { task: parent }).unwrap();
    assert_eq!(log.task(task_id(2)).status.state, TaskState::Completed);
}

#[test]
fn no_child_is_born_to_a_parent_that_has_ended() {
    let mut log = Log::of_nodes(3);
    let parent = log.submit(1, "surveyor", 1);
    log.operator(Command::Cancel { task: parent }).unwrap();
    let refused = log.submit_child(2, parent).unwrap_err();
    assert_eq!(refused, Rejection::TaskEnded { task: parent, state: TaskState::Canceled });
}

#[test]
fn a_child_belongs_to_the_principal_at_the_start_of_the_chain() {
    let mut log = Log::of_nodes(3);
    let parent = log.submit(1, "surveyor", 1);
    log.submit_child(2, parent).unwrap();
    let child = log.task(task_id(2));
    assert_eq!(child.owner, Principal::Operator);
    assert!(matches!(child.submitted_by, Principal::Agent { .. }));
    assert_eq!(log.state.children_of(parent).count(), 1);
}

#[test]
fn the_same_message_again_gives_the_same_task() {
    let mut log = Log::of_nodes(3);
    let first = log.submit(1, "reader", 1);
    let mut again = submission(2, "reader", 2, user_message("m-1", "read the file"));
    again.message.metadata.insert("retry".into(), serde_json::json!(2));
    let applied = log.operator(Command::Submit(Box::new(again))).unwrap();
    assert_eq!(applied.reply, Reply::Submitted { task: first, created: false });
    assert_eq!(applied.effects, []);
    assert!(log.state.task(task_id(2)).is_none());
}

#[test]
fn the_same_message_id_with_other_content_is_refused_and_names_the_first_task() {
    let mut log = Log::of_nodes(3);
    let first = log.submit(1, "reader", 1);
    let parts = submission(2, "reader", 1, user_message("m-1", "read another file"));
    let mut context = submission(2, "reader", 1, user_message("m-1", "read the file"));
    context.message.context_id = Some("elsewhere".parse().unwrap());
    let mut role = submission(2, "reader", 1, user_message("m-1", "read the file"));
    role.message.role = Role::Agent;
    let mut references = submission(2, "reader", 1, user_message("m-1", "read the file"));
    references.message.reference_task_ids = vec!["other".into()];
    let agent = submission(2, "surveyor", 1, user_message("m-1", "read the file"));
    for other in [parts, context, role, references, agent] {
        let refused = log.operator(Command::Submit(Box::new(other))).unwrap_err();
        assert_eq!(refused, Rejection::MessageReused { message: "m-1".into(), task: first });
        assert!(refused.to_string().contains(&first.to_string()));
    }
}

#[test]
fn an_empty_message_is_refused() {
    let mut log = Log::of_nodes(1);
    let mut no_parts = user_message("m-1", "");
    no_parts.parts.clear();
    for message in [no_parts, user_message("m-1", ""), user_message("m-1", " \n")] {
        let refused = log.operator(Command::Submit(Box::new(submission(1, "reader", 1, message)))).unwrap_err();
        assert_eq!(refused, Rejection::EmptyMessage);
    }
}

#[test]
fn a_message_above_the_limit_is_refused() {
    let mut log = Log::of_nodes(1);
    let large = user_message("m-1", &"x".repeat(limits::MAX_CONTENT_BYTES + 1));
    let refused = log.operator(Command::Submit(Box::new(submission(1, "reader", 1, large)))).unwrap_err();
    assert!(matches!(refused, Rejection::TooLarge { limit, .. } if limit == limits::MAX_CONTENT_BYTES as u64));
}

#[test]
fn an_unknown_agent_is_refused_with_the_names_that_are_known() {
    let mut log = Log::of_nodes(1);
    let message = user_message("m-1", "hello");
    let refused = log.operator(Command::Submit(Box::new(submission(1, "writer", 1, message)))).unwrap_err();
    assert_eq!(refused.to_string(), "agent writer is not known; known agents: reader, surveyor");
}

#[test]
fn a_chain_of_delegations_that_is_too_deep_is_refused() {
    let mut log = Log::of_nodes(1);
    let mut deep = submission(1, "reader", 1, user_message("m-1", "hello"));
    deep.hop = limits::MAX_HOPS + 1;
    let refused = log.operator(Command::Submit(Box::new(deep))).unwrap_err();
    assert_eq!(refused, Rejection::TooManyHops { limit: limits::MAX_HOPS });
}

#[test]
fn a_question_gives_the_lease_back_and_the_answer_goes_on_in_the_same_turn() {
    let mut log = Log::of_nodes(3);
    let id = waiting_for_an_answer(&mut log);
    assert_eq!(log.task(id).status.state, TaskState::InputRequired);
    assert_eq!(log.task(id).lease, None);
    assert_eq!(log.state.load_of(NodeId(1)), 0);

    log.operator(Command::Continue { task: id, message: answer(id, "the second"), trace: span(40) }).unwrap();
    let task = log.task(id);
    assert_eq!(task.status.state, TaskState::Submitted);
    assert!(task.lease.is_some());
    assert_eq!(task.turn.number, 1);
    let outcome = &task.journal[0].ended.as_ref().unwrap().outcome;
    assert_eq!(*outcome, Outcome::Returned { content: "the second".into(), is_error: false });
    assert_eq!(task.turn.parent, span(40));
}

#[test]
fn a_waiting_task_is_not_touched_by_the_loss_of_any_node() {
    let mut log = Log::of_nodes(3);
    let id = waiting_for_an_answer(&mut log);
    let before = log.task(id).clone();
    for node in log.node_ids() {
        log.lose(node);
    }
    assert_eq!(*log.task(id), before);
}

#[test]
fn an_answer_that_comes_twice_is_taken_once() {
    let mut log = Log::of_nodes(3);
    let id = waiting_for_an_answer(&mut log);
    let say = Command::Continue { task: id, message: answer(id, "the second"), trace: span(40) };
    log.operator(say.clone()).unwrap();
    let before = log.without_position();
    let again = log.operator(say).unwrap();
    assert_eq!(again.reply, Reply::Continued { task: id });
    assert_eq!(log.without_position(), before);
}

#[test]
fn a_message_to_a_task_that_works_is_refused() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1)]).unwrap();
    let refused =
        log.operator(Command::Continue { task: id, message: answer(id, "more"), trace: span(40) }).unwrap_err();
    assert_eq!(refused, Rejection::TaskBusy { task: id, state: TaskState::Working });
}

#[test]
fn a_message_that_names_another_context_is_refused() {
    let mut log = Log::of_nodes(3);
    let id = waiting_for_an_answer(&mut log);
    let mut message = answer(id, "the second");
    message.context_id = Some("elsewhere".parse().unwrap());
    let refused = log.operator(Command::Continue { task: id, message, trace: span(40) }).unwrap_err();
    assert_eq!(refused, Rejection::ContextMismatch { task: id });
}

#[test]
fn a_step_in_doubt_is_decided_by_a_person() {
    for (word, attempt_again) in [("retry", true), ("done 17 lines", false), ("failed no such file", false)] {
        let mut log = Log::of_nodes(3);
        let id = log.submit(1, "reader", 1);
        log.report(id, vec![turn_started(1), step_started(0, tool_intent(OnAdoption::Ask))]).unwrap();
        log.lose(1);
        let doubt = OwnerWord::Doubt { steps: vec![StepNo(0)], message: agent_message("doubt-0", "was it sent?") };
        log.report(id, vec![turn_started(2), doubt]).unwrap();
        assert_eq!(log.task(id).status.state, TaskState::InputRequired);
        assert_eq!(log.task(id).doubtful_steps().count(), 1);

        let unclear = Command::Continue { task: id, message: user_message("unclear", "perhaps"), trace: span(40) };
        assert_eq!(log.operator(unclear).unwrap_err(), Rejection::UndecidedDoubt { step: StepNo(0) });
        assert_eq!(log.task(id).status.state, TaskState::InputRequired);

        log.operator(Command::Continue { task: id, message: answer(id, word), trace: span(41) }).unwrap();
        let step = &log.task(id).journal[0];
        assert_eq!(step.ended.is_none(), attempt_again, "{word}");
        assert_eq!(step.doubt == Some(Doubt::Retry), attempt_again, "{word}");
    }
}

#[test]
fn concatenated_chunks_are_the_text_of_the_artifact_also_when_a_step_ran_twice() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.report(
        id,
        vec![turn_started(1), model_step(0), chunk("step-0", "lost ", false), chunk("step-0", "half", true)],
    )
    .unwrap();
    log.lose(1);
    log.report(id, vec![turn_started(2), OwnerWord::StepRestarted { step: StepNo(0), span: span(9) }]).unwrap();
    log.report(id, vec![chunk("step-0", "the ", false), chunk("step-0", "whole", true)]).unwrap();
    log.report(id, vec![step_ended(0, ""), finished(TaskState::Completed)]).unwrap();
    let task = log.task(id);
    assert_eq!(task.artifacts[0].text(), "the whole");
    assert_eq!(concatenated(&task.events)["step-0"], "the whole");
}

#[test]
fn a_stream_resumes_at_each_retained_index_and_asks_for_a_snapshot_beyond() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1), model_step(0), chunk("step-0", "a", false)]).unwrap();
    let task = log.task(id);
    for after in 0..=task.generation {
        let rest: Vec<u64> = task.events_after(after).unwrap().map(|event| event.index).collect();
        assert_eq!(rest, (after + 1..=task.generation).collect::<Vec<_>>());
    }
    assert!(task.events_after(task.generation + 1).is_none());
    assert!(task.events_after(u64::MAX).is_none());
}

#[test]
fn events_past_the_retained_window_are_answered_with_a_snapshot() {
    let mut log = Log::of_nodes(1);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1), model_step(0)]).unwrap();
    for _ in 0..limits::MAX_RETAINED_EVENTS {
        log.report(id, vec![chunk("step-0", "x", true)]).unwrap();
    }
    let task = log.task(id);
    assert_eq!(task.events.len(), limits::MAX_RETAINED_EVENTS);
    let first = task.events[0].index;
    assert_eq!(first, task.generation + 1 - limits::MAX_RETAINED_EVENTS as u64);
    assert!(task.events_after(first - 2).is_none());
    assert!(task.events_after(first - 1).is_some());
}

#[test]
fn a_runaway_task_is_stopped_at_its_bounds_and_can_still_end() {
    let mut log = Log::of_nodes(1);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1), model_step(0)]).unwrap();
    let megabyte = "x".repeat(1024 * 1024);
    let refused = loop {
        if let Err(refused) = log.report(id, vec![chunk("step-0", &megabyte, true)]) {
            break refused;
        }
    };
    assert!(matches!(refused, Rejection::TooLarge { limit, .. } if limit == limits::MAX_TASK_BYTES as u64));
    log.report(id, vec![finished(TaskState::Failed)]).unwrap();
    assert_eq!(log.task(id).status.state, TaskState::Failed);
}

#[test]
fn a_sweep_removes_terminal_tasks_past_their_retention_and_nothing_else() {
    let mut log = Log::of_nodes(1);
    let old = log.submit(1, "reader", 1);
    let open = log.submit(2, "reader", 1);
    log.report(old, vec![finished(TaskState::Completed)]).unwrap();
    assert!(!log.state.has_sweepable(log.state.last().at));
    log.pass(limits::TERMINAL_RETENTION_MS + 1);
    let recent = log.submit(3, "reader", 1);
    log.report(recent, vec![finished(TaskState::Completed)]).unwrap();
    assert!(log.state.has_sweepable(log.state.last().at));
    log.node(1, Command::Sweep).unwrap();
    assert!(log.state.task(old).is_none());
    assert!(log.state.task(open).is_some());
    assert!(log.state.task(recent).is_some());
    assert!(!log.state.has_sweepable(log.state.last().at));
}

#[test]
fn a_swept_message_id_may_be_used_again() {
    let mut log = Log::of_nodes(1);
    let old = log.submit(1, "reader", 1);
    log.report(old, vec![finished(TaskState::Completed)]).unwrap();
    log.pass(limits::TERMINAL_RETENTION_MS + 1);
    log.node(1, Command::Sweep).unwrap();
    let again = submission(2, "reader", 1, user_message("m-1", "read the file"));
    let applied = log.operator(Command::Submit(Box::new(again))).unwrap();
    assert_eq!(applied.reply, Reply::Submitted { task: task_id(2), created: true });
}

#[test]
fn time_never_runs_backwards() {
    let mut log = Log::of_nodes(1);
    let id = log.submit(1, "reader", 1);
    let at = log.state.last().at;
    let index = log.state.last().index + 1;
    let proposal = Proposal { by: Principal::Operator, command: Command::Cancel { task: id } };
    log.state.apply(proposal, Stamp { index, at: Timestamp(3) }).unwrap();
    assert_eq!(log.task(id).status.at, at);
}

#[test]
fn a_listing_shows_the_newest_status_first_and_pages_meet_without_gap_or_overlap() {
    let mut log = Log::of_nodes(3);
    for number in 1..=7 {
        log.submit(number, "reader", 1);
    }
    log.report(task_id(3), vec![turn_started(1)]).unwrap();
    let mut filter = ListFilter::default();
    let mut seen = Vec::new();
    loop {
        let page = log.page(&filter, 3, |_| 0);
        assert_eq!(page.total, 7);
        seen.extend(page.tasks.iter().map(|task| task.id));
        filter.after = page.next;
        if filter.after.is_none() {
            break;
        }
    }
    assert_eq!(seen, [3, 7, 6, 5, 4, 2, 1].map(task_id));
}

#[test]
fn anothers_task_looks_as_if_it_did_not_exist() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let stranger = Principal::Agent { name: name("reader"), on_behalf_of: Box::new(Principal::Node(NodeId(1))) };
    assert!(log.state.task_for(&stranger, id).is_none());
    assert_eq!(log.state.list(&stranger, &ListFilter::default(), 10).total, 0);
    let refused = log.apply(stranger, Command::Cancel { task: id }).unwrap_err();
    assert_eq!(refused, Rejection::UnknownTask { task: id });
}

#[test]
fn each_command_is_refused_from_those_who_may_not_give_it() {
    let mut log = Log::of_nodes(3);
    let id = log.submit(1, "reader", 1);
    let node = Principal::Node(NodeId(1));
    let mint = Command::MintToken { hash: "h".into(), role: NodeRole::Voter, ttl_ms: 1 };
    let lost = Command::NodeLost { node: NodeId(1), boot: boot(1, 1) };
    let other = log.node_ids()[1];
    for (by, command) in [
        (node.clone(), Command::Cancel { task: id }),
        (node.clone(), mint),
        (node, node_up(other, boot(other, 9), 8)),
        (Principal::Operator, lost),
        (Principal::Operator, Command::AssignPending),
        (Principal::Operator, Command::Sweep),
        (Principal::Operator, Command::Archive { tasks: vec![id] }),
        (Principal::Operator, Command::Raise { level: Level::KNOWN }),
    ] {
        let before = log.without_position();
        let refused = log.apply(by, command).unwrap_err();
        assert!(matches!(refused, Rejection::NotAllowed { .. }), "{refused}");
        assert_eq!(log.without_position(), before);
    }
}

#[test]
fn a_join_token_is_good_for_one_node_and_its_request_may_be_repeated() {
    let mut log = Log::of_nodes(1);
    log.operator(Command::MintToken { hash: "h".into(), role: NodeRole::Learner, ttl_ms: 60_000 }).unwrap();
    let first = log.node(1, Command::Enrol(enrolment("h", 2))).unwrap().reply;
    let Reply::Enrolled { node, role: NodeRole::Learner } = first else { panic!("{first:?}") };
    assert_eq!(node.0, log.state.last().index, "a node id is the log index of its enrolment");
    let again = log.node(1, Command::Enrol(enrolment("h", 2))).unwrap().reply;
    assert_eq!(again, Reply::Enrolled { node, role: NodeRole::Learner });
    let other = log.node(1, Command::Enrol(enrolment("h", 3))).unwrap_err();
    assert_eq!(other, Rejection::TokenUsed { node });
}

#[test]
fn a_join_token_that_expired_or_was_never_made_is_refused() {
    let mut log = Log::of_nodes(1);
    log.operator(Command::MintToken { hash: "h".into(), role: NodeRole::Voter, ttl_ms: 50 }).unwrap();
    log.pass(60);
    assert_eq!(log.node(1, Command::Enrol(enrolment("h", 2))).unwrap_err(), Rejection::TokenExpired);
    assert_eq!(log.node(1, Command::Enrol(enrolment("x", 2))).unwrap_err(), Rejection::UnknownToken);
}

#[test]
fn a_cluster_is_founded_once() {
    let mut log = Log::of_nodes(1);
    let found =
        |cluster| Command::Found { cluster, name: "prod".into(), node_name: "a".into(), addresses: addresses(1) };
    log.node(1, found(uuid(1))).unwrap();
    assert_eq!(log.node(1, found(uuid(2))).unwrap_err(), Rejection::AlreadyFounded { cluster: uuid(1) });
}

/// A task of `reader` whose step 0 asks a person.
fn waiting_for_an_answer(log: &mut Log) -> TaskId {
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1), step_started(0, ask_intent()), ask_person(0, "which one?")]).unwrap();
    id
}

fn answer(task: TaskId, text: &str) -> Message {
    let mut message = user_message(&format!("answer-to-{task}"), text);
    message.task_id = Some(task);
    message
}
