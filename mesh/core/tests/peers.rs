//! Agents outside of this mesh, what is sent to others, and whose text went into a task.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

fn peer(text: &str, joined: bool) -> Peer {
    let joined = joined.then(|| JoinedAgent { description: "Knows the law.".into(), tags: vec!["law".into()] });
    Peer {
        name: name(text),
        urls: vec!["https://a.example".into(), "https://b.example".into()],
        token: Some(PeerToken::Secret("LEGAL".into())),
        idempotent: false,
        for_agents: vec![name("surveyor")],
        joined,
    }
}

fn add(log: &mut Log, peer: Peer) -> Result<Applied, Rejection> {
    log.operator(Command::AddPeer(Box::new(peer)))
}

fn remove(log: &mut Log, text: &str) -> Result<Applied, Rejection> {
    log.operator(Command::RemovePeer { name: name(text) })
}

fn delegate(no: u32, handover: Handover) -> OwnerWord {
    let intent = Intent::Delegate {
        call_id: format!("call-{no}"),
        target: "reader".into(),
        own_mesh: true,
        message: Box::new(user_message(&format!("step-{no}"), "read it")),
        peer_task: None,
        on_adoption: OnAdoption::Retry,
        handover,
    };
    step_started(no, intent)
}

#[test]
fn a_peer_that_takes_part_gets_tasks_like_any_agent_and_moves_with_its_owner() {
    let mut log = Log::of_nodes(3);
    add(&mut log, peer("legal", true)).unwrap();
    assert_eq!(log.state.agent(&name("legal")).unwrap().placed.len(), 3, "any node can dial it");
    let task = log.submit(1, "legal", 2);
    let first = log.lease(task).node;
    log.lose(first.0);
    assert_ne!(log.lease(task).node, first, "another node goes on with it");
    for node in log.node_ids() {
        log.up(node, boot(node, 9)).unwrap();
    }
    assert!(log.state.agent(&name("legal")).is_some(), "no node has to declare it");
    assert_eq!(decode(&encode(&log.state)), log.state);
}

#[test]
fn a_name_is_taken_once_and_the_same_words_again_change_nothing() {
    let mut log = Log::of_nodes(1);
    add(&mut log, peer("legal", false)).unwrap();
    assert!(log.state.agent(&name("legal")).is_none(), "a peer is no agent of the mesh");
    add(&mut log, peer("legal", false)).unwrap();
    assert!(matches!(add(&mut log, peer("legal", true)), Err(Rejection::NameInUse { .. })));
    assert!(matches!(add(&mut log, peer("reader", true)), Err(Rejection::NameInUse { .. })));
    let nowhere = Peer { urls: vec![], ..peer("nowhere", false) };
    assert!(matches!(add(&mut log, nowhere), Err(Rejection::PeerWithoutUrl { .. })));
    let many = Peer { urls: vec!["https://a.example".into(); limits::MAX_PEER_URLS + 1], ..peer("many", false) };
    assert!(matches!(add(&mut log, many), Err(Rejection::TooLarge { .. })));
    remove(&mut log, "legal").unwrap();
    assert!(matches!(remove(&mut log, "legal"), Err(Rejection::UnknownPeer { .. })));
}

#[test]
fn an_agent_that_has_work_is_not_removed() {
    let mut log = Log::of_nodes(1);
    add(&mut log, peer("legal", true)).unwrap();
    let task = log.submit(1, "legal", 1);
    assert!(matches!(remove(&mut log, "legal"), Err(Rejection::AgentInUse { open: 1, .. })));
    log.operator(Command::Cancel { task }).unwrap();
    remove(&mut log, "legal").unwrap();
    assert!(log.state.agent(&name("legal")).is_none());
}

#[test]
fn only_an_operator_makes_peers_known() {
    let mut log = Log::of_nodes(1);
    let refused = log.node(1, Command::AddPeer(Box::new(peer("legal", false)))).unwrap_err();
    assert!(matches!(refused, Rejection::NotAllowed { .. }), "{refused:?}");
}

#[test]
fn what_was_sent_goes_on_when_its_sender_has_completed_and_what_was_delegated_does_not() {
    for (handover, state, expected) in [
        (Handover::Send, TaskState::Completed, TaskState::Submitted),
        (Handover::Delegation, TaskState::Completed, TaskState::Canceled),
        (Handover::Send, TaskState::Failed, TaskState::Canceled),
    ] {
        let mut log = Log::of_nodes(2);
        let parent = log.submit(1, "surveyor", 1);
        log.report(parent, vec![turn_started(1), model_step(0)]).unwrap();
        log.report(parent, vec![step_ended(0, ""), delegate(1, handover)]).unwrap();
        log.submit_child(2, parent).unwrap();
        log.report(parent, vec![step_ended(1, "sent"), OwnerWord::Finished { state, message: None }]).unwrap();
        assert_eq!(log.task(task_id(2)).status.state, expected, "{handover:?} {state:?}");
    }
}

#[test]
fn a_task_that_is_canceled_takes_what_it_sent_with_it() {
    let mut log = Log::of_nodes(2);
    let parent = log.submit(1, "surveyor", 1);
    log.report(parent, vec![turn_started(1), model_step(0)]).unwrap();
    log.report(parent, vec![step_ended(0, ""), delegate(1, Handover::Send)]).unwrap();
    log.submit_child(2, parent).unwrap();
    log.operator(Command::Cancel { task: parent }).unwrap();
    assert_eq!(log.task(task_id(2)).status.state, TaskState::Canceled);
}

#[test]
fn outside_input_is_said_once_for_each_source_and_stays() {
    let mut log = Log::of_nodes(1);
    let task = log.submit(1, "reader", 1);
    let word = |reason: &str| OwnerWord::OutsideInput { reason: reason.to_owned() };
    log.report(task, vec![turn_started(1), word("result of peer legal"), word("result of peer legal")]).unwrap();
    assert_eq!(log.task(task).outside_input, ["result of peer legal"]);
    let many = (0..limits::MAX_OUTSIDE_REASONS).map(|number| word(&number.to_string())).collect();
    log.report(task, many).unwrap();
    assert_eq!(log.task(task).outside_input.len(), limits::MAX_OUTSIDE_REASONS);
    assert_eq!(decode(&encode(&log.state)), log.state);
}

#[test]
fn a_message_that_another_mesh_delegates_is_outside_input_and_its_circle_is_seen() {
    let mut log = Log::of_nodes(1);
    let above = log.submit(1, "surveyor", 1);
    let mut message = user_message("m-2", "read the file");
    let ours = log.state.chain_of(above).remove(0);
    assert_eq!((&*ours.agent, ours.task.clone(), ours.mesh.len()), ("surveyor", above.to_string(), 16));
    let abroad = ChainLink { agent: "abroad".into(), task: "x-1".into(), mesh: String::new() };
    let chain = [ours.clone(), abroad];
    let json: Vec<_> = chain.iter().map(ChainLink::to_json).collect();
    message.metadata.insert(CHAIN_KEY.to_owned(), json.into());
    let submission = submission(2, "reader", 1, message);
    log.operator(Command::Submit(Box::new(submission))).unwrap();

    assert_eq!(log.task(task_id(2)).outside_input, ["message of agent abroad"]);
    let own = ChainLink { agent: "reader".into(), task: task_id(2).to_string(), ..ours.clone() };
    assert_eq!(log.state.chain_of(task_id(2)), [&chain[..], &[own]].concat());
    assert_eq!(log.state.closes_circle(&chain, &name("surveyor")), Some(&chain[0]));
    assert_eq!(log.state.closes_circle(&chain, &name("reader")), None);
}

#[test]
fn a_chain_that_somebody_makes_up_tells_nothing_of_the_tasks_of_others() {
    let mut log = Log::of_nodes(1);
    let there = log.submit(1, "surveyor", 1);
    let mark = log.state.chain_of(there).remove(0).mesh;
    for (mesh, refused) in [(mark.as_str(), true), ("0123456789abcdef", false), ("", false)] {
        for task in [there, task_id(77)] {
            let link = ChainLink { agent: "surveyor".into(), task: task.to_string(), mesh: mesh.into() };
            assert_eq!(log.state.closes_circle(&[link], &name("surveyor")).is_some(), refused, "{mesh} {task}");
        }
    }
}

#[test]
fn credentials_that_are_asked_for_are_told_as_such() {
    let mut log = Log::of_nodes(1);
    let task = log.submit(1, "reader", 1);
    let message = agent_message("question-1", "your token, please");
    let ask = OwnerWord::AskPerson { step: StepNo(0), message, auth: true };
    log.report(task, vec![turn_started(1), delegate(0, Handover::Delegation), ask]).unwrap();
    assert_eq!(log.task(task).status.state, TaskState::AuthRequired);
}

fn named(id: &str, role: PrincipalRole) -> Principal {
    Principal::Named { id: id.parse().unwrap(), role }
}

/// A task of this principal that asks another one, and the way to answer it.
fn asks(log: &mut Log, owner: &Principal, to: &str) -> (TaskId, impl Fn(&str) -> Command + use<>) {
    let submitted = submission(1, "reader", 1, user_message("m-1", "read the file"));
    log.apply(owner.clone(), Command::Submit(Box::new(submitted))).unwrap();
    let task = task_id(1);
    let intent = Intent::Ask { call_id: "call-1".into(), question: "which one?".into(), to: Some(to.to_owned()) };
    let ask = OwnerWord::AskPerson { step: StepNo(0), message: agent_message("question-1", "which one?"), auth: false };
    log.report(task, vec![turn_started(1), step_started(0, intent), ask]).unwrap();
    let answer = move |id: &str| {
        let message = Message { task_id: Some(task), ..user_message(id, "the first") };
        Command::Continue { task, message, trace: span(5) }
    };
    (task, answer)
}

#[test]
fn a_question_for_one_principal_takes_the_answer_of_that_one_alone() {
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|id| named(id, PrincipalRole::User));
    let mut log = Log::of_nodes(1);
    let (task, answer) = asks(&mut log, &bob, "alice");
    let refused = log.apply(bob.clone(), answer("m-2")).unwrap_err();
    assert!(
        matches!(&refused, Rejection::NotAsked { to, .. } if to == "alice"),
        "the owner asked somebody else: {refused:?}"
    );
    assert!(matches!(log.apply(carol.clone(), answer("m-3")), Err(Rejection::UnknownTask { .. })));
    assert!(log.state.record_for(&alice, task).is_some(), "who is asked sees what it is about");
    assert!(log.state.record_for(&carol, task).is_none());
    assert!(matches!(log.apply(alice.clone(), Command::Cancel { task }), Err(Rejection::UnknownTask { .. })));
    log.apply(alice.clone(), answer("m-4")).unwrap();
    assert_eq!(log.task(task).status.state, TaskState::Submitted);
    assert!(log.state.record_for(&alice, task).is_none(), "the question is answered");
}

#[test]
fn who_is_asked_has_message_ids_of_its_own_and_a_retry_of_its_answer_is_answered() {
    let [alice, bob] = ["alice", "bob"].map(|id| named(id, PrincipalRole::User));
    for then in ["it goes on", "it ended", "it is in the archive"] {
        let mut log = Log::of_nodes(1);
        let (task, answer) = asks(&mut log, &bob, "alice");
        // The owner's first message has this id as well, and says something else.
        assert_eq!(log.apply(alice.clone(), answer("m-1")).unwrap().reply, Reply::Continued { task });
        assert_eq!(log.task(task).status.state, TaskState::Submitted, "the answer was taken");
        if then != "it goes on" {
            log.report(task, vec![finished(TaskState::Completed)]).unwrap();
        }
        if then == "it is in the archive" {
            log.node(1, Command::Archive { tasks: vec![task] }).unwrap();
            assert!(log.state.task(task).is_none());
        }
        let again = log.apply(alice.clone(), answer("m-1")).map(|applied| applied.reply);
        assert_eq!(again, Ok(Reply::Continued { task }), "{then}");
        let first = submission(9, "reader", 1, user_message("m-1", "read the file"));
        let of_bob = log.apply(bob.clone(), Command::Submit(Box::new(first))).unwrap().reply;
        assert_eq!(of_bob, Reply::Submitted { task, created: false }, "{then}: the owner's is remembered beside it");
        assert!(matches!(log.apply(alice.clone(), answer("m-2")), Err(Rejection::UnknownTask { .. })), "{then}");
        assert_eq!(decode(&encode(&log.state)), log.state);
    }
}

#[test]
fn a_message_of_somebody_who_was_asked_is_forgotten_a_day_after_the_end() {
    let [alice, bob] = ["alice", "bob"].map(|id| named(id, PrincipalRole::User));
    let mut log = Log::of_nodes(1);
    let (task, answer) = asks(&mut log, &bob, "alice");
    log.apply(alice.clone(), answer("m-1")).unwrap();
    log.report(task, vec![finished(TaskState::Completed)]).unwrap();
    log.pass(limits::DEDUP_AFTER_END_MS);
    log.node(1, Command::Sweep).unwrap();
    assert!(!log.state.has_sweepable(log.state.last().at), "nothing of it is left to forget");
    assert!(matches!(log.apply(alice, answer("m-1")), Err(Rejection::UnknownTask { .. })));
}

#[test]
fn a_message_of_a_principal_with_the_role_agent_is_outside_input() {
    let mut log = Log::of_nodes(1);
    for (number, role, expected) in
        [(1, PrincipalRole::User, &[][..]), (2, PrincipalRole::Agent, &["message of agent robot".to_owned()][..])]
    {
        let submitted = submission(number, "reader", 1, user_message(&format!("m-{number}"), "read the file"));
        log.apply(named("robot", role), Command::Submit(Box::new(submitted))).unwrap();
        assert_eq!(log.task(task_id(number)).outside_input, expected);
    }
}

#[test]
fn a_question_for_one_principal_is_answered_by_an_operator_only_as_an_override() {
    for (to, overrides) in [(None, false), (Some("operator"), false), (Some("user:alice"), true)] {
        let mut log = Log::of_nodes(1);
        let task = log.submit(1, "reader", 1);
        let to = to.map(str::to_owned);
        let intent = Intent::Ask { call_id: "call-1".into(), question: "which one?".into(), to: to.clone() };
        let ask =
            OwnerWord::AskPerson { step: StepNo(0), message: agent_message("question-1", "which one?"), auth: false };
        log.report(task, vec![turn_started(1), step_started(0, intent), ask]).unwrap();
        assert_eq!(log.task(task).asked_of(), to.as_deref());
        let message = Message { task_id: Some(task), ..user_message("m-2", "the first") };
        log.operator(Command::Continue { task, message, trace: span(5) }).unwrap();
        let said = log.task(task).events.iter().rev().find_map(|event| match &event.kind {
            EventKind::Status { metadata, .. } => metadata.get("dev.towline/override").cloned(),
            EventKind::Created | EventKind::Artifact { .. } => None,
        });
        let expected = overrides.then(|| serde_json::json!({ "by": "operator", "to": "user:alice" }));
        assert_eq!(said, expected, "{to:?}");
        assert_eq!(log.task(task).asked_of(), None);
    }
}
