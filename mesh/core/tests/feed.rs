//! What happens in the cluster, as the log tells it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

/// What every entry of a log tells, from the first on.
fn told(log: &Log) -> Vec<Vec<Happening>> {
    let mut state = State::default();
    log.entries.iter().map(|entry| state.apply_and_tell(entry.proposal.clone(), entry.stamp).1).collect()
}

/// The kinds that the last entry tells.
fn last(log: &Log) -> Vec<&'static str> {
    told(log).last().unwrap().iter().map(Happening::kind).collect()
}

fn task_changes(log: &Log) -> Vec<TaskChange> {
    let of_task = |happening: &Happening| {
        if let Happening::Task(news) = happening { Some(news.change.clone()) } else { None }
    };
    told(log).concat().iter().filter_map(of_task).collect()
}

#[test]
fn the_life_of_a_task_is_told_without_its_artifacts() {
    let mut log = Log::of_nodes(1);
    let id = log.submit(1, "reader", 1);
    let epoch = log.lease(id).epoch;
    log.report(id, vec![turn_started(1), chunk("a", "one", true)]).unwrap();
    log.report(id, vec![chunk("a", "two", true)]).unwrap();
    assert_eq!(last(&log), [""; 0], "a chunk is for the stream of the task");
    log.report(id, vec![chunk("a", "three", true), finished(TaskState::Completed)]).unwrap();
    let status = |state, generation| TaskChange::Status { state, generation };
    assert_eq!(
        task_changes(&log),
        [
            TaskChange::Submitted,
            TaskChange::Leased { node: NodeId(1), epoch },
            status(TaskState::Working, 2),
            status(TaskState::Completed, 6),
        ]
    );
    let Happening::Task(news) = told(&log).concat().pop().unwrap() else { panic!("about a task") };
    assert_eq!((news.task, news.agent.as_str(), &news.owner), (id, "reader", &Principal::Operator));
}

#[test]
fn the_same_message_again_and_a_refused_command_tell_nothing() {
    let mut log = Log::of_nodes(1);
    log.submit(1, "reader", 1);
    log.submit(1, "reader", 1);
    assert_eq!(last(&log), [""; 0]);
    log.operator(Command::Cancel { task: task_id(9) }).unwrap_err();
    assert_eq!(last(&log), [""; 0]);
}

#[test]
fn the_loss_of_a_node_tells_who_has_its_tasks_and_which_have_nobody() {
    let mut log = Log::of_nodes(2);
    let [first, second] = log.node_ids()[..] else { panic!("two nodes") };
    let id = log.submit(1, "reader", second);
    log.report(id, vec![turn_started(1)]).unwrap();
    log.lose(second);
    assert_eq!(last(&log), ["node.lost", "agents.placed", "task.adopted"]);
    let Some(TaskChange::Adopted { from, to, .. }) = task_changes(&log).pop() else { panic!("an adoption") };
    assert_eq!((from, to), (NodeId(second), NodeId(first)));
    log.lose(first);
    assert_eq!(last(&log), ["node.lost", "task.orphaned"]);
    log.up(second, boot(second, 2)).unwrap();
    assert!(last(&log).starts_with(&["node.up"]) && last(&log).contains(&"task.adopted"), "{:?}", last(&log));
}

#[test]
fn what_a_cancel_takes_with_it_is_told_for_each() {
    let mut log = Log::of_nodes(1);
    let parent = log.submit(1, "surveyor", 1);
    log.submit_child(2, parent).unwrap();
    log.operator(Command::Cancel { task: parent }).unwrap();
    assert_eq!(last(&log), ["task.status", "task.status"]);
    log.operator(Command::Cancel { task: parent }).unwrap();
    assert_eq!(last(&log), [""; 0], "it is canceled already");
}

#[test]
fn nodes_come_and_go() {
    let mut log = Log::of_nodes(3);
    let kinds: Vec<_> = told(&log).concat().iter().map(Happening::kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "node.joined").count(), 2, "the first one founds: {kinds:?}");
    assert_eq!((kinds[0], kinds.iter().filter(|kind| **kind == "node.up").count()), ("cluster.founded", 3));
    assert!(kinds.contains(&"cluster.level"), "{kinds:?}");
    let node = log.node_ids()[2];
    log.up(node, boot(node, 1)).unwrap();
    assert_eq!(last(&log), [""; 0], "the same life registers again");
    log.up(node, boot(node, 2)).unwrap();
    assert_eq!(last(&log), ["node.up"]);
    for (asked, expected) in [
        (Command::Drain { node: NodeId(node), patience_ms: 0 }, vec!["node.draining"]),
        (Command::Undrain { node: NodeId(node) }, vec!["node.undrained"]),
        (Command::Undrain { node: NodeId(node) }, vec![]),
        (Command::SetRole { node: NodeId(node), role: NodeRole::Learner }, vec!["node.role"]),
        (Command::RemoveNode { node: NodeId(node) }, vec!["node.leaving"]),
    ] {
        log.operator(asked.clone()).unwrap();
        let kinds: Vec<_> = last(&log).into_iter().filter(|kind| *kind != "agents.placed").collect();
        assert_eq!(kinds, expected, "{asked:?}");
    }
    log.lose(node);
    assert!(last(&log).starts_with(&["node.lost", "node.removed"]), "{:?}", last(&log));
}

#[test]
fn sessions_are_told_with_their_names_and_no_secrets() {
    let mut log = Log::of_nodes(1);
    let device = SecretHash::of("device");
    let code: UserCode = "BCDF-GHJK".parse().unwrap();
    let ask = DeviceAsk {
        device: device.clone(),
        code: code.clone(),
        client: "a client".into(),
        source: "127.0.0.1".into(),
        wants: PrincipalRole::User,
        ttl_ms: 60_000,
    };
    log.sign_in(1, SignIn::Ask(ask)).unwrap();
    assert_eq!(last(&log), ["device.asked"]);
    let name: PrincipalId = "user:ada".parse().unwrap();
    let approve = Approve { code, name: name.clone(), role: PrincipalRole::User, ttl_ms: 60_000 };
    log.operator(Command::SignIn(Box::new(SignIn::Approve(approve)))).unwrap();
    let session: SessionId = "ds_1".parse().unwrap();
    let redeem = SignIn::Redeem { device, session: session.clone(), token: SecretHash::of("token") };
    log.sign_in(1, redeem.clone()).unwrap();
    let began = SignInChange::Began { session: session.clone(), name: name.clone() };
    assert_eq!(told(&log).pop().unwrap(), [Happening::SignIn(began)]);
    log.sign_in(1, redeem).unwrap();
    assert_eq!(last(&log), [""; 0], "the same session again");
    log.operator(Command::SignIn(Box::new(SignIn::Revoke(Revoke::Name(name.clone()))))).unwrap();
    assert_eq!(told(&log).pop().unwrap(), [Happening::SignIn(SignInChange::Revoked { session, name })]);
    let text = format!("{:?}", told(&log));
    assert!(!text.contains("BCDF") && !text.contains("SecretHash"), "{text}");
}

#[test]
fn a_reader_hears_of_what_it_owns_and_an_operator_of_everything() {
    let ada = Principal::Named { id: "user:ada".parse().unwrap(), role: PrincipalRole::User };
    let mut log = Log::of_nodes(1);
    let message = user_message("m-1", "hello");
    log.apply(ada.clone(), Command::Submit(Box::new(submission(1, "reader", 1, message)))).unwrap();
    log.submit(2, "reader", 1);
    let all = told(&log).concat();
    let root = Principal::Named { id: "root".parse().unwrap(), role: PrincipalRole::Operator };
    assert!(all.iter().all(|happening| happening.is_for(&Principal::Operator) && happening.is_for(&root)));
    let heard: Vec<_> = all.iter().filter(|happening| happening.is_for(&ada)).map(Happening::kind).collect();
    assert_eq!(heard, ["task.submitted", "task.leased"]);
}

#[test]
fn telling_changes_nothing() {
    let mut log = Log::of_nodes(2);
    let id = log.submit(1, "reader", 1);
    log.report(id, vec![turn_started(1), chunk("a", "one", true)]).unwrap();
    log.lose(1);
    let mut state = State::default();
    for entry in &log.entries {
        drop(state.apply_and_tell(entry.proposal.clone(), entry.stamp));
    }
    assert_eq!(state, log.state);
}

#[test]
fn the_labels_of_who_asks_stay_with_the_task_and_with_what_it_delegates() {
    let mut log = Log::of_nodes(1);
    let labels = Labels::from([("team".to_owned(), "blue".to_owned())]);
    let mut labelled = submission(1, "surveyor", 1, user_message("m-1", "survey"));
    labelled.labels.clone_from(&labels);
    log.operator(Command::Submit(Box::new(labelled))).unwrap();
    assert_eq!(log.task(task_id(1)).labels, labels);
    log.submit_child(2, task_id(1)).unwrap();
    assert_eq!(log.task(task_id(2)).labels, labels, "nobody says them again on the way");
    log.submit(3, "reader", 1);
    assert_eq!(log.task(task_id(3)).labels, Labels::new());
    assert_eq!(decode(&encode(&log.state)), log.state);
}
