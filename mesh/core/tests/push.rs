//! Webhooks: who may set them up, how far they have come, who tells the receiver, and when they are given up.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use support::*;
use towline_core::*;

const URL: &str = "https://receiver.example/hook";

fn config(id: &str) -> WebhookConfig {
    WebhookConfig { id: id.into(), url: URL.into(), token: None, authentication: None }
}

fn set(task: TaskId, config: WebhookConfig, prefer: u64) -> Command {
    Command::SetWebhook(Box::new(SetWebhook { task, config, from: Some(0), prefer: NodeId(prefer) }))
}

fn name(task: TaskId, id: &str) -> WebhookName {
    WebhookName { task, id: id.into() }
}

fn hook(log: &Log, name: &WebhookName) -> Webhook {
    log.state.webhook(name).cloned().unwrap()
}

/// What the owner says after one more call.
fn called(log: &Log, name: &WebhookName, after: Option<u64>, failed: Option<FailedCall>) -> WebhookReport {
    let known = hook(log, name);
    WebhookReport {
        webhook: name.clone(),
        epoch: known.lease.unwrap().epoch,
        attempts: known.attempts + 1,
        delivered: known.delivered + u64::from(failed.is_none()),
        after,
        said: "as said".into(),
        failed,
    }
}

fn report(log: &mut Log, report: WebhookReport) -> Result<Applied, Rejection> {
    let owner = hook(log, &report.webhook).lease.map_or(1, |lease| lease.node.0);
    log.node(owner, Command::ReportWebhook(Box::new(report)))
}

const FAILED: Option<FailedCall> = Some(FailedCall { wait_ms: 1_000, is_final: false });

#[test]
fn a_webhook_is_told_by_the_node_that_took_the_request_and_starts_before_the_first_event() {
    let mut log = Log::of_nodes(3);
    let second = log.node_ids()[1];
    let task = log.submit(1, "reader", 1);
    let applied = log.operator(set(task, config("a"), second)).unwrap();
    assert_eq!(applied.effects, [Effect::Webhook { task }]);
    let set_up = hook(&log, &name(task, "a"));
    assert_eq!((set_up.lease.unwrap().node.0, set_up.after), (second, Some(0)));
    assert_eq!(log.state.pending_webhooks_of(task).len(), 1, "event 1 is to be sent");

    let again = log.operator(set(task, config("a"), 1)).unwrap();
    assert!(again.effects.is_empty(), "the same again changes nothing");
    assert_eq!(hook(&log, &name(task, "a")), set_up);
}

#[test]
fn a_webhook_that_is_set_up_otherwise_goes_on_where_it_is_under_a_new_lease() {
    let mut log = Log::of_nodes(1);
    let task = log.submit(1, "reader", 1);
    log.operator(set(task, config("a"), 1)).unwrap();
    let old = called(&log, &name(task, "a"), Some(1), None);
    report(&mut log, old.clone()).unwrap();
    log.operator(set(task, WebhookConfig { token: Some("t".into()), ..config("a") }, 1)).unwrap();
    let changed = hook(&log, &name(task, "a"));
    assert_eq!((changed.after, changed.attempts), (Some(1), 0));
    let stale = WebhookReport { attempts: 9, ..old };
    assert!(matches!(report(&mut log, stale), Err(Rejection::StaleEpoch { .. })), "its calls went to the old place");
}

#[test]
fn a_report_moves_the_place_forward_only_and_counts_once() {
    let mut log = Log::of_nodes(1);
    let task = log.submit(1, "reader", 1);
    log.report(task, vec![turn_started(1)]).unwrap();
    let generation = log.task(task).generation;
    log.operator(set(task, config("a"), 1)).unwrap();
    let a = name(task, "a");
    let taken = called(&log, &a, Some(generation), None);
    report(&mut log, taken.clone()).unwrap();
    report(&mut log, taken).unwrap();
    let known = hook(&log, &a);
    assert_eq!((known.after, known.attempts, known.delivered), (Some(generation), 1, 1));
    assert!(!known.is_pending(generation));

    let late = called(&log, &a, Some(1), FAILED);
    report(&mut log, late).unwrap();
    assert_eq!(hook(&log, &a).after, Some(generation), "what was taken stays taken");
    let ahead = called(&log, &a, Some(generation + 100), None);
    report(&mut log, ahead).unwrap();
    assert_eq!(hook(&log, &a).after, Some(generation), "nobody has taken what has not happened");
}

#[test]
fn only_the_owner_of_the_lease_reports() {
    let mut log = Log::of_nodes(3);
    let other = log.node_ids()[2];
    let task = log.submit(1, "reader", 1);
    log.operator(set(task, config("a"), 1)).unwrap();
    let told = called(&log, &name(task, "a"), Some(1), None);
    let refused = log.node(other, Command::ReportWebhook(Box::new(told)));
    assert!(matches!(refused, Err(Rejection::StaleEpoch { .. })), "{refused:?}");
}

#[test]
fn a_webhook_of_a_lost_node_is_claimed_by_one_other_and_goes_on_where_it_was() {
    let mut log = Log::of_nodes(3);
    let [first, second, third] = log.node_ids()[..] else { panic!("three nodes") };
    let task = log.submit(1, "reader", second);
    log.operator(set(task, config("a"), first)).unwrap();
    let a = name(task, "a");
    let taken = called(&log, &a, Some(1), None);
    report(&mut log, taken.clone()).unwrap();
    log.lose(first);
    assert_eq!(hook(&log, &a).lease, None);
    let late = log.node(first, Command::ReportWebhook(Box::new(WebhookReport { attempts: 2, ..taken })));
    assert!(matches!(late, Err(Rejection::StaleEpoch { .. })));

    let claim = |log: &mut Log, node: u64| {
        let boot = log.state.node(NodeId(node)).unwrap().boot.unwrap();
        log.node(node, Command::ClaimWebhooks { node: NodeId(node), boot, webhooks: vec![a.clone()] }).unwrap()
    };
    assert!(claim(&mut log, first).effects.is_empty(), "a lost node gets none");
    assert_eq!(claim(&mut log, third).effects, [Effect::Webhook { task }]);
    assert!(claim(&mut log, second).effects.is_empty(), "the first one has it");
    let claimed = hook(&log, &a);
    assert_eq!((claimed.lease.unwrap().node.0, claimed.after), (third, Some(1)));
}

#[test]
fn a_node_that_comes_back_as_another_process_has_lost_its_webhooks() {
    let mut log = Log::of_nodes(1);
    let task = log.submit(1, "reader", 1);
    log.operator(set(task, config("a"), 1)).unwrap();
    log.up(1, boot(1, 2)).unwrap();
    assert_eq!(hook(&log, &name(task, "a")).lease, None);
    let old = Command::ClaimWebhooks { node: NodeId(1), boot: boot(1, 1), webhooks: vec![name(task, "a")] };
    assert!(log.node(1, old).unwrap().effects.is_empty(), "its earlier life claims nothing");
}

#[test]
fn a_receiver_that_fails_for_a_day_is_given_up_and_revived_by_its_client() {
    let mut log = Log::of_nodes(1);
    let task = log.submit(1, "reader", 1);
    log.operator(set(task, config("a"), 1)).unwrap();
    let a = name(task, "a");
    let failed = called(&log, &a, Some(0), FAILED);
    report(&mut log, failed).unwrap();
    log.pass(limits::WEBHOOK_PATIENCE_MS - 10_000);
    let failed = called(&log, &a, Some(0), FAILED);
    report(&mut log, failed).unwrap();
    let failing = hook(&log, &a);
    assert_eq!((failing.failing.unwrap().times, failing.dead), (2, None));
    log.pass(10_000);
    let failed = called(&log, &a, Some(0), FAILED);
    report(&mut log, failed).unwrap();
    let dead = hook(&log, &a);
    assert!(dead.dead.as_ref().unwrap().contains("not taken for a day, in 3 tries; the last one: as said"), "{dead:?}");
    assert!(log.state.pending_webhooks_of(task).is_empty());
    assert_eq!(log.state.webhook_totals().dead, 1);

    log.operator(set(task, config("a"), 1)).unwrap();
    let revived = hook(&log, &a);
    assert_eq!((revived.dead, revived.failing, revived.after), (None, None, Some(0)));
}

#[test]
fn an_event_that_is_taken_ends_the_patience_with_the_one_before() {
    let mut log = Log::of_nodes(1);
    let task = log.submit(1, "reader", 1);
    log.report(task, vec![turn_started(1)]).unwrap();
    log.operator(set(task, config("a"), 1)).unwrap();
    let a = name(task, "a");
    let failed = called(&log, &a, Some(0), FAILED);
    report(&mut log, failed).unwrap();
    log.pass(limits::WEBHOOK_PATIENCE_MS);
    let next_one_fails = called(&log, &a, Some(1), FAILED);
    report(&mut log, next_one_fails).unwrap();
    let known = hook(&log, &a);
    assert_eq!((known.failing.unwrap().times, known.dead), (1, None), "another event, another day");
}

#[test]
fn a_receiver_that_wants_no_more_is_given_up_at_once() {
    let mut log = Log::of_nodes(1);
    let task = log.submit(1, "reader", 1);
    log.operator(set(task, config("a"), 1)).unwrap();
    let gone = called(&log, &name(task, "a"), Some(0), Some(FailedCall { wait_ms: 0, is_final: true }));
    report(&mut log, gone).unwrap();
    assert!(hook(&log, &name(task, "a")).dead.unwrap().contains("wants no more"));
}

#[test]
fn a_webhook_is_removed_once_and_goes_with_the_record_of_its_task() {
    let mut log = Log::of_nodes(1);
    let task = log.submit(1, "reader", 1);
    log.operator(set(task, config("a"), 1)).unwrap();
    log.operator(set(task, config("b"), 1)).unwrap();
    assert_eq!(log.operator(Command::RemoveWebhook(name(task, "a"))).unwrap().effects, [Effect::Webhook { task }]);
    assert!(log.operator(Command::RemoveWebhook(name(task, "a"))).unwrap().effects.is_empty());
    log.operator(Command::Cancel { task }).unwrap();
    log.archive(vec![task]);
    assert_eq!(log.state.webhooks_for(&Principal::Operator, task).unwrap().len(), 1, "the record is in the archive");
    log.operator(set(task, config("c"), 1)).unwrap();
    assert_eq!(log.state.pending_webhooks_of(task).len(), 2, "the end of the task is still to be told");
    log.pass(limits::TERMINAL_RETENTION_MS + 1);
    log.node(1, Command::Sweep).unwrap();
    assert_eq!(log.state.webhook_totals(), WebhookTotals::default());
    let none_left = log.operator(set(task, config("a"), 1));
    assert_eq!(none_left, Err(Rejection::UnknownTask { task }));
}

#[test]
fn a_task_of_another_principal_looks_as_if_it_did_not_exist() {
    let mut log = Log::of_nodes(1);
    let task = log.submit(1, "reader", 1);
    log.operator(set(task, config("a"), 1)).unwrap();
    let agent =
        |node| Principal::Agent { name: "boss".parse().unwrap(), on_behalf_of: Box::new(Principal::Node(node)) };
    let other = agent(NodeId(1));
    assert_eq!(log.state.webhooks_for(&other, task), None);
    for command in [set(task, config("b"), 1), Command::RemoveWebhook(name(task, "a"))] {
        let refused = log.apply(other.clone(), command);
        assert_eq!(refused, Err(Rejection::UnknownTask { task }));
    }
    assert_eq!(log.state.webhooks_of(task).count(), 1);
}

#[test]
fn the_webhooks_of_a_task_and_what_they_hold_are_bounded() {
    let mut log = Log::of_nodes(1);
    let task = log.submit(1, "reader", 1);
    for number in 0..limits::MAX_WEBHOOKS_PER_TASK {
        log.operator(set(task, config(&number.to_string()), 1)).unwrap();
    }
    let one_more = log.operator(set(task, config("more"), 1));
    assert!(matches!(one_more, Err(Rejection::TooLarge { .. })), "{one_more:?}");
    let long = "x".repeat(limits::MAX_WEBHOOK_SECRET_BYTES + 1);
    let auth = WebhookAuth { scheme: "Bearer".into(), credentials: Some(long.clone()) };
    for config in [
        WebhookConfig { url: long.clone(), ..config("0") },
        WebhookConfig { token: Some(long), ..config("0") },
        WebhookConfig { authentication: Some(auth), ..config("0") },
    ] {
        let refused = log.operator(set(task, config, 1));
        assert!(matches!(refused, Err(Rejection::TooLarge { .. })), "{refused:?}");
    }
}

#[test]
fn a_principal_with_many_webhooks_has_room_again_for_those_that_have_nothing_left_to_send() {
    let mut log = Log::of_nodes(1);
    let per_task = limits::MAX_WEBHOOKS_PER_TASK;
    let mut ended = None;
    for number in 0..limits::MAX_WEBHOOKS_PER_PRINCIPAL.div_ceil(per_task) as u64 {
        let task = log.submit(number + 1, "reader", 1);
        for at in 0..per_task {
            log.operator(set(task, config(&at.to_string()), 1)).unwrap();
        }
        ended.get_or_insert(task);
    }
    let ended = ended.unwrap();
    let task = log.submit(9_999, "reader", 1);
    let refused = log.operator(set(task, config("a"), 1));
    assert!(matches!(refused, Err(Rejection::Full { .. })), "{refused:?}");

    log.operator(Command::Cancel { task: ended }).unwrap();
    let generation = log.task(ended).generation;
    let told = called(&log, &name(ended, "0"), Some(generation), None);
    report(&mut log, told).unwrap();
    log.operator(set(task, config("a"), 1)).unwrap();
    assert_eq!(log.state.webhooks_of(ended).count(), per_task - 1, "the one that had told all made room");
}

#[test]
fn a_webhook_without_an_id_has_the_same_one_each_time_and_shows_no_secret() {
    let with_token = WebhookConfig { token: Some("hunter2".into()), ..config("") };
    assert_eq!(with_token.derived_id(), with_token.clone().derived_id());
    assert_ne!(with_token.derived_id(), config("").derived_id());
    assert!(!format!("{with_token:?}").contains("hunter2"));
}
