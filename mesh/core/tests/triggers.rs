//! What starts tasks by itself: who may say so, who looks after each, and that each occasion starts one task.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use proptest::prelude::*;
use std::collections::BTreeSet;
use support::*;
use towline_core::*;

fn resource(trigger: &str, uri: &str) -> TriggerSpec {
    let source = ResourceSource {
        server: "fs".into(),
        uri: uri.into(),
        debounce_ms: 250,
        poll_ms: 5_000,
        filter: None,
        window: 0,
    };
    spec(trigger, TriggerSource::Resource(source))
}

fn hourly(trigger: &str) -> TriggerSpec {
    let when = Schedule::Every { period_ms: 3_600_000 };
    spec(trigger, TriggerSource::Schedule { when, missed: Missed::Skip })
}

fn spec(trigger: &str, source: TriggerSource) -> TriggerSpec {
    TriggerSpec { name: called(trigger), agent: name("reader"), prompt: "look".into(), coalesce: false, source }
}

fn called(trigger: &str) -> TriggerName {
    trigger.parse().unwrap()
}

fn change(log: &mut Log, change: TriggerChange) -> Result<Applied, Rejection> {
    log.operator(Command::Trigger(Box::new(change)))
}

fn by_node(log: &mut Log, node: u64, change: TriggerChange) -> Result<Applied, Rejection> {
    log.node(node, Command::Trigger(Box::new(change)))
}

fn claim(log: &mut Log, node: u64, trigger: &str) {
    let boot = log.state.node(NodeId(node)).unwrap().boot.unwrap();
    by_node(log, node, TriggerChange::Claim { node: NodeId(node), boot, names: vec![called(trigger)] }).unwrap();
}

fn declare(log: &mut Log, node: u64, triggers: Vec<TriggerSpec>) {
    by_node(log, node, TriggerChange::Declare { node: NodeId(node), triggers }).unwrap();
}

fn of(log: &Log, trigger: &str) -> Trigger {
    log.state.trigger(&called(trigger)).cloned().unwrap()
}

fn firing(number: u64, trigger: &str, occasion: Occasion) -> TriggerChange {
    let submission = submission(number, "reader", 1, user_message("any", &format!("event {number}")));
    TriggerChange::Fire(Box::new(Fire { name: called(trigger), occasion, skipped: 0, submission }))
}

/// The owner saw another content.
fn changed(log: &Log, number: u64, trigger: &str, seen: &str) -> (u64, TriggerChange) {
    let known = of(log, trigger);
    let lease = known.lease.unwrap();
    let occasion = Occasion::Change { epoch: lease.epoch, number: known.number + 1, seen: seen.into() };
    (lease.node.0, firing(number, trigger, occasion))
}

fn report(known: &Trigger, seen: &str) -> TriggerChange {
    TriggerChange::Report(TriggerReport {
        name: known.spec.name.clone(),
        epoch: known.lease.unwrap().epoch,
        number: known.number + 1,
        seen: Some(seen.into()),
        tick: None,
        skipped: 1,
        push: Some("live".into()),
        trouble: None,
    })
}

#[test]
fn a_change_makes_one_task_with_outside_input_however_often_it_is_said() {
    let mut log = Log::of_nodes(3);
    let second = log.node_ids()[1];
    change(&mut log, TriggerChange::Add(resource("inbox", "file:///a"))).unwrap();
    claim(&mut log, second, "inbox");
    let (node, fire) = changed(&log, 1, "inbox", "one");
    assert_eq!(node, second);
    let first = by_node(&mut log, node, fire.clone()).unwrap();
    assert_eq!(first.reply, Reply::Submitted { task: task_id(1), created: true });
    let again = by_node(&mut log, node, fire).unwrap();
    assert_eq!(again.reply, Reply::Submitted { task: task_id(1), created: false });

    let task = log.task(task_id(1));
    assert_eq!(
        (&task.owner, task.outside_input.as_slice()),
        (&Principal::Operator, &["event of trigger inbox".to_owned()][..])
    );
    let known = of(&log, "inbox");
    assert_eq!((known.seen.as_deref(), known.fired, known.tasks.back()), (Some("one"), 1, Some(&task_id(1))));
}

#[test]
fn a_content_that_comes_back_is_a_change_again() {
    let mut log = Log::of_nodes(1);
    change(&mut log, TriggerChange::Add(resource("inbox", "file:///a"))).unwrap();
    claim(&mut log, 1, "inbox");
    for (number, seen) in [(1, "a"), (2, "b"), (3, "a")] {
        let (node, fire) = changed(&log, number, "inbox", seen);
        let fired = by_node(&mut log, node, fire).unwrap();
        assert_eq!(fired.reply, Reply::Submitted { task: task_id(number), created: true });
    }
}

#[test]
fn the_owner_that_was_lost_says_nothing_more_and_the_next_one_goes_on_behind_it() {
    let mut log = Log::of_nodes(3);
    let [_, second, third] = log.node_ids()[..] else { panic!("three nodes") };
    change(&mut log, TriggerChange::Add(resource("inbox", "file:///a"))).unwrap();
    claim(&mut log, second, "inbox");
    let old = of(&log, "inbox");
    let (node, fire) = changed(&log, 1, "inbox", "one");
    by_node(&mut log, node, fire).unwrap();
    let (node, late) = changed(&log, 2, "inbox", "two");
    let applied = log.lose(second);
    assert!(applied.effects.contains(&Effect::Triggers));
    assert_eq!(of(&log, "inbox").lease, None);
    claim(&mut log, third, "inbox");
    for late in [late, report(&old, "two")] {
        let refused = by_node(&mut log, node, late);
        assert!(matches!(refused, Err(Rejection::StaleTrigger { .. })), "{refused:?}");
    }
    assert_eq!(of(&log, "inbox").seen.as_deref(), Some("one"), "what is new is compared with what was acted on");
    claim(&mut log, 1, "inbox");
    assert_eq!(of(&log, "inbox").lease.unwrap().node.0, third, "who has it keeps it");
}

#[test]
fn a_time_fires_once_whoever_looks_after_the_schedule() {
    let mut log = Log::of_nodes(3);
    let [first, second, _] = log.node_ids()[..] else { panic!("three nodes") };
    change(&mut log, TriggerChange::Add(hourly("clock"))).unwrap();
    claim(&mut log, second, "clock");
    let at = Timestamp(of(&log, "clock").created.0 + 50);
    let tick = |log: &Log, at| Occasion::Tick { epoch: of(log, "clock").lease.unwrap().epoch, at };
    let fire = firing(1, "clock", tick(&log, at));
    by_node(&mut log, second, fire).unwrap();
    assert!(log.task(task_id(1)).outside_input.is_empty(), "nobody outside said something");
    log.lose(second);
    claim(&mut log, first, "clock");
    let fire = firing(2, "clock", tick(&log, at));
    let again = by_node(&mut log, first, fire).unwrap();
    assert_eq!(again.reply, Reply::Submitted { task: task_id(1), created: false });
    let early = firing(3, "clock", tick(&log, Timestamp(at.0 - 1)));
    assert_eq!(by_node(&mut log, first, early).unwrap().reply, Reply::Submitted { task: task_id(1), created: false });
    assert_eq!(of(&log, "clock").fired, 1);
}

#[test]
fn a_call_with_a_key_makes_one_task_and_other_content_under_it_is_refused() {
    let mut log = Log::of_nodes(1);
    declare(&mut log, 1, vec![spec("deploy", TriggerSource::Webhook)]);
    let call = |number, key: &str| firing(number, "deploy", Occasion::Call { key: key.into() });
    by_node(&mut log, 1, call(1, "k")).unwrap();
    let TriggerChange::Fire(mut same) = call(1, "k") else { panic!("it fires") };
    same.submission.task = task_id(2);
    let again = by_node(&mut log, 1, TriggerChange::Fire(same)).unwrap();
    assert_eq!(again.reply, Reply::Submitted { task: task_id(1), created: false });
    let other = by_node(&mut log, 1, call(3, "k"));
    assert!(matches!(other, Err(Rejection::MessageReused { .. })), "{other:?}");
    by_node(&mut log, 1, call(4, "l")).unwrap();
    assert_eq!(of(&log, "deploy").fired, 2);
    let boot = boot(1, 1);
    by_node(&mut log, 1, TriggerChange::Claim { node: NodeId(1), boot, names: vec![called("deploy")] }).unwrap();
    assert_eq!(of(&log, "deploy").lease, None, "calls come to any node");
}

#[test]
fn a_trigger_has_a_bounded_number_of_open_tasks_and_one_where_it_coalesces() {
    let mut log = Log::of_nodes(1);
    declare(
        &mut log,
        1,
        vec![
            spec("many", TriggerSource::Webhook),
            TriggerSpec { coalesce: true, ..spec("one", TriggerSource::Webhook) },
        ],
    );
    let most = limits::MAX_TASKS_PER_TRIGGER as u64;
    for (trigger, most, from) in [("many", most, 1), ("one", 1, 1_000)] {
        let call = |number: u64| firing(number, trigger, Occasion::Call { key: number.to_string() });
        for number in from..from + most {
            by_node(&mut log, 1, call(number)).unwrap();
        }
        let before = of(&log, trigger);
        let refused = by_node(&mut log, 1, call(from + most));
        assert!(matches!(refused, Err(Rejection::Full { .. })), "{refused:?}");
        assert_eq!(of(&log, trigger), before);
        by_node(&mut log, 1, call(from)).unwrap();
        log.operator(Command::Cancel { task: task_id(from) }).unwrap();
        by_node(&mut log, 1, call(from + most)).unwrap();
    }
}

#[test]
fn what_a_configuration_declares_stays_until_no_node_declares_it() {
    let mut log = Log::of_nodes(2);
    let second = log.node_ids()[1];
    for node in [1, second] {
        declare(&mut log, node, vec![resource("inbox", "file:///a"), hourly("clock")]);
    }
    claim(&mut log, 1, "inbox");
    let known = of(&log, "inbox");
    by_node(&mut log, 1, report(&known, "seen")).unwrap();
    let refused = change(&mut log, TriggerChange::Remove { name: called("inbox") });
    assert!(matches!(refused, Err(Rejection::DeclaredTrigger { .. })), "{refused:?}");

    let other_words = TriggerSpec { prompt: "look again".into(), ..resource("inbox", "file:///a") };
    declare(&mut log, 1, vec![other_words]);
    let known = of(&log, "inbox");
    assert_eq!((known.lease, known.seen.as_deref()), (None, Some("seen")), "it waits for the same, with other words");
    assert!(log.state.trigger(&called("clock")).is_some(), "the other node declares it");
    declare(&mut log, 1, vec![resource("inbox", "file:///b")]);
    assert_eq!(of(&log, "inbox").seen, None, "of another resource nothing was seen");
    for node in [1, second] {
        declare(&mut log, node, Vec::new());
    }
    assert_eq!(log.state.triggers().count(), 0);
}

#[test]
fn a_resource_is_watched_once_and_names_are_unique() {
    let mut log = Log::of_nodes(1);
    change(&mut log, TriggerChange::Add(resource("inbox", "file:///a"))).unwrap();
    change(&mut log, TriggerChange::Add(resource("inbox", "file:///a"))).unwrap();
    let same = change(&mut log, TriggerChange::Add(resource("inbox", "file:///b")));
    assert!(matches!(same, Err(Rejection::TriggerInUse { .. })), "{same:?}");
    let rival = change(&mut log, TriggerChange::Add(resource("other", "file:///a")));
    assert!(matches!(rival, Err(Rejection::ResourceInUse { .. })), "{rival:?}");
    declare(&mut log, 1, vec![resource("inbox", "file:///c"), resource("third", "file:///a"), hourly("clock")]);
    let names: Vec<&str> = log.state.triggers().map(|one| one.spec.name.as_str()).collect();
    assert_eq!(names, ["clock", "inbox"], "what cannot be is passed over");
    let nobody = TriggerSpec { agent: name("nobody"), ..hourly("lost") };
    assert!(matches!(change(&mut log, TriggerChange::Add(nobody)), Err(Rejection::UnknownAgent { .. })));
    let long = TriggerSpec { prompt: "x".repeat(limits::MAX_TRIGGER_TEXT_BYTES + 1), ..hourly("long") };
    assert!(matches!(change(&mut log, TriggerChange::Add(long)), Err(Rejection::TooLarge { .. })));
    change(&mut log, TriggerChange::Remove { name: called("inbox") }).unwrap();
    let gone = change(&mut log, TriggerChange::Remove { name: called("inbox") });
    assert!(matches!(gone, Err(Rejection::UnknownTrigger { .. })), "{gone:?}");
}

#[test]
fn only_operators_add_and_only_a_node_speaks_for_itself() {
    let mut log = Log::of_nodes(2);
    let second = log.node_ids()[1];
    change(&mut log, TriggerChange::Add(hourly("clock"))).unwrap();
    let user = || Principal::Named { id: "user:ada".parse().unwrap(), role: PrincipalRole::User };
    let hand = || firing(1, "clock", Occasion::Hand { request: uuid(1) });
    let refused = [
        (user(), TriggerChange::Add(hourly("mine"))),
        (user(), TriggerChange::Remove { name: called("clock") }),
        (user(), hand()),
        (Principal::Node(NodeId(1)), hand()),
        (Principal::Operator, firing(1, "clock", Occasion::Call { key: "k".into() })),
        (Principal::Node(NodeId(1)), TriggerChange::Declare { node: NodeId(second), triggers: Vec::new() }),
    ];
    for (by, change) in refused {
        let said = log.apply(by.clone(), Command::Trigger(Box::new(change)));
        assert!(matches!(said, Err(Rejection::NotAllowed { .. })), "{by}: {said:?}");
    }
    change(&mut log, hand()).unwrap();
    assert_eq!(of(&log, "clock").fired, 1);
}

#[test]
fn a_restored_cluster_knows_what_was_seen() {
    let mut log = Log::of_nodes(1);
    declare(&mut log, 1, vec![resource("inbox", "file:///a")]);
    claim(&mut log, 1, "inbox");
    let known = of(&log, "inbox");
    by_node(&mut log, 1, report(&known, "seen")).unwrap();
    let founder = Founder { node: NodeId(1_000), name: "z".into(), addresses: addresses(9) };
    log.state.refound(uuid(77), "other".into(), founder);
    let known = of(&log, "inbox");
    assert_eq!((known.lease, known.seen.as_deref()), (None, Some("seen")));
    assert_eq!(known.declared_by, BTreeSet::from([NodeId(1_000)]));
}

#[test]
fn the_life_of_a_trigger_is_told() {
    let mut log = Log::of_nodes(1);
    change(&mut log, TriggerChange::Add(resource("inbox", "file:///a"))).unwrap();
    claim(&mut log, 1, "inbox");
    let (node, fire) = changed(&log, 1, "inbox", "one");
    by_node(&mut log, node, fire.clone()).unwrap();
    by_node(&mut log, node, fire).unwrap();
    change(&mut log, TriggerChange::Remove { name: called("inbox") }).unwrap();
    let mut state = State::default();
    let told = log.entries.iter().flat_map(|entry| state.apply_and_tell(entry.proposal.clone(), entry.stamp).1);
    let kinds: Vec<&str> = told.map(|one| one.kind()).filter(|kind| kind.starts_with("t")).collect();
    let fired = ["trigger.fired", "task.submitted", "task.leased"];
    assert_eq!(kinds, [&["trigger.added", "trigger.claimed"][..], &fired, &["trigger.removed"]].concat());
}

/// What happens to a trigger whose owners come and go, and whose resource changes.
#[derive(Debug, Clone)]
enum Op {
    Write(u8),
    Claim(usize),
    /// The owner looks; the command is sent so often.
    Look {
        times: u8,
    },
    /// What an owner wanted to say comes late.
    Late,
    Lose(usize),
    Up(usize),
    End,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..4_u8).prop_map(Op::Write),
        3 => (0..3_usize).prop_map(Op::Claim),
        5 => (0..3_u8).prop_map(|times| Op::Look { times }),
        2 => Just(Op::Late),
        1 => (0..3_usize).prop_map(Op::Lose),
        1 => (0..3_usize).prop_map(Op::Up),
        1 => Just(Op::End),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_change_that_an_owner_sees_is_one_task_and_the_last_one_is_always_seen(ops in prop::collection::vec(op(), 1..80)) {
        let mut log = Log::of_nodes(3);
        change(&mut log, TriggerChange::Add(resource("inbox", "file:///a"))).unwrap();
        let nodes = log.node_ids();
        let (mut content, mut number, mut life) = (0_u8, 1_u64, 2_u64);
        let mut late: Option<(u64, TriggerChange)> = None;
        let mut expected = 0_u64;
        for op in ops {
            match op {
                Op::Write(next) => content = next,
                Op::Claim(at) => {
                    let node = log.state.node(NodeId(nodes[at])).unwrap();
                    if let Some(boot) = node.boot {
                        let names = vec![called("inbox")];
                        by_node(&mut log, nodes[at], TriggerChange::Claim { node: NodeId(nodes[at]), boot, names }).unwrap();
                    }
                }
                Op::Look { times } => {
                    let known = of(&log, "inbox");
                    let seen = content.to_string();
                    if known.lease.is_none() || known.seen.as_ref() == Some(&seen) {
                        continue;
                    }
                    number += 1;
                    let said = changed(&log, number, "inbox", &seen);
                    for time in 0..times {
                        let said = by_node(&mut log, said.0, said.1.clone());
                        match said {
                            Ok(applied) => {
                                let created = matches!(applied.reply, Reply::Submitted { created: true, .. });
                                prop_assert_eq!(created, time == 0);
                                expected += u64::from(created);
                            }
                            Err(refused) => prop_assert!(matches!(refused, Rejection::Full { .. }), "{refused:?}"),
                        }
                    }
                    late = Some(said);
                }
                // Its outcome was not known, and its owner may be another one by now.
                Op::Late => {
                    let Some((node, said)) = late.take() else { continue };
                    if let Ok(applied) = by_node(&mut log, node, said) {
                        expected += u64::from(matches!(applied.reply, Reply::Submitted { created: true, .. }));
                    }
                }
                Op::Lose(at) => {
                    if log.state.node(NodeId(nodes[at])).unwrap().boot.is_some() {
                        log.lose(nodes[at]);
                    }
                }
                Op::Up(at) => {
                    life += 1;
                    log.up(nodes[at], boot(nodes[at], life)).unwrap();
                }
                Op::End => {
                    if let Some(task) = of(&log, "inbox").tasks.front().copied() {
                        let _canceled_or_ended = log.operator(Command::Cancel { task });
                    }
                }
            }
            let known = of(&log, "inbox");
            prop_assert_eq!(known.fired, expected);
            prop_assert!(known.tasks.len() <= limits::MAX_TASKS_PER_TRIGGER);
            let distinct: BTreeSet<&TaskId> = known.tasks.iter().collect();
            prop_assert_eq!(distinct.len(), known.tasks.len());
            prop_assert!(known.lease.is_none_or(|lease| log.state.node(lease.node).is_some_and(Node::is_live)));
        }
        prop_assert_eq!(&replay(&log.entries), &log.state);
        prop_assert_eq!(&decode(&encode(&log.state)), &log.state);
    }
}
