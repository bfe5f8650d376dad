use towline_core::{OnAdoption, StepNo, TraceContext};

use super::*;
use crate::recovered_spans::tests::{cancel, with_task};

/// The sentence about the task of `with_task` after a change, one minute after it was made.
fn said(change: impl FnOnce(&mut Task)) -> String {
    let (state, id) = with_task();
    let mut task = state.task(id).unwrap().clone();
    change(&mut task);
    at(&state, &task, task.created.0 + 60_000)
}

fn begun(task: &mut Task, intent: Option<Intent>) {
    task.status.state = TaskState::Working;
    let span = TraceContext { trace_id: 7, span_id: 70, sampled: true };
    task.turn.span = Some(span);
    task.journal.extend(intent.map(|intent| Step {
        no: StepNo(0),
        turn: 1,
        attempt: 2,
        intent,
        span,
        parent_span: 70,
        started: Timestamp(task.created.0 + 55_000),
        doubt: None,
        asked: None,
        resolved: None,
        ended: None,
    }));
}

fn tool() -> Intent {
    Intent::Tool {
        call_id: "c".into(),
        server: "fs".into(),
        tool: "write".into(),
        arguments: serde_json::json!({}),
        on_adoption: OnAdoption::Ask,
    }
}

#[test]
fn a_task_at_work_says_which_node_waits_for_what_and_since_when() {
    let text = said(|task| begun(task, Some(tool())));
    assert!(
        text.starts_with("node 1 (a) waits since 5 s for tool fs.write, attempt 2; then it goes on there"),
        "{text}"
    );
    assert!(said(|task| begun(task, None)).starts_with("node 1 (a) decides what comes next"));
    let text = said(|task| task.turn.span = None);
    assert!(text.starts_with("was given to node 1 (a) 60 s ago, where it waits for a place"), "{text}");
}

#[test]
fn a_task_without_a_node_says_what_is_missing() {
    let text = said(|task| task.lease = None);
    assert!(text.starts_with("waits since 60 s for ") && text.ends_with("then it is given to a node"), "{text}");
}

#[test]
fn a_question_names_who_is_to_answer_and_how() {
    let text = said(|task| {
        let to = Some("anna".to_owned());
        begun(task, Some(Intent::Ask { call_id: "c".into(), question: "which?".into(), to }));
        task.status.state = TaskState::InputRequired;
    });
    assert!(text.starts_with("waits since 60 s for an answer of anna;"), "{text}");
    assert!(text.contains("towline send worker --task-id "), "{text}");
    let text = said(|task| {
        begun(task, Some(tool()));
        task.journal[0].doubt = Some(towline_core::Doubt::Asked);
        task.status.state = TaskState::InputRequired;
    });
    assert!(text.contains("step 0, tool fs.write, which may or may not have happened"), "{text}");
    assert!(text.contains("towline task resolve "), "{text}");
}

#[test]
fn a_task_that_has_ended_says_that_nothing_more_happens() {
    let (mut state, id) = with_task();
    cancel(&mut state, id);
    let text = why(&state, state.task(id).unwrap());
    assert!(text.starts_with("canceled ") && text.ends_with("nothing more happens"), "{text}");
}
