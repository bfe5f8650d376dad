//! Replays a log of commands that is kept in the repository, and any log that a failing property left behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde::{Deserialize, Serialize};
use std::{fs, path::PathBuf};
use support::*;
use towline_core::*;

/// Writes the kept log anew when the state's shape was changed on purpose.
const REWRITE: &str = "TOWLINE_WRITE_FIXTURES";

/// Names a log that a failing property left behind.
const REPLAY: &str = "TOWLINE_REPLAY";

/// The kept log.
const LOG: &str = "commands.jsonl";

/// The one of a version that knew of no levels. Nothing writes it any more.
const LOG_OF_LEVEL_0: &str = "commands-of-level-0.jsonl";

/// An entry of the kept log, and what came of it when it was written.
#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    entry: Entry,
    outcome: Result<Applied, String>,
    /// BLAKE3 of the snapshot after the entry.
    digest: String,
}

#[test]
fn the_kept_log_gives_the_state_that_it_gave_when_it_was_written() {
    if std::env::var_os(REWRITE).is_some() {
        write_kept_log();
    }
    let mut state = State::default();
    for (line, kept) in kept_log(LOG).into_iter().enumerate() {
        let outcome = state.apply(kept.entry.proposal, kept.entry.stamp).map_err(|refused| refused.to_string());
        assert_eq!(outcome, kept.outcome, "line {}", line + 1);
        assert_eq!(digest(&state), kept.digest, "line {}: {REWRITE}=1 keeps a change made on purpose", line + 1);
    }
    assert!(state.last().index > 0, "the kept log has entries");
}

#[test]
fn a_log_of_a_version_without_levels_gives_the_answers_that_it_gave() {
    let mut state = State::default();
    for (line, kept) in kept_log(LOG_OF_LEVEL_0).into_iter().enumerate() {
        let outcome = state.apply(kept.entry.proposal, kept.entry.stamp).map_err(|refused| refused.to_string());
        assert_eq!(outcome, kept.outcome, "line {}", line + 1);
    }
    assert_eq!(state.level(), Level::FIRST);
    assert_eq!(decode(&encode(&state)), state);
}

#[test]
fn a_restart_at_every_entry_of_the_kept_log_gives_the_same_state() {
    let mut state = State::default();
    for kept in kept_log(LOG) {
        state = decode(&encode(&state));
        let _refused_or_not = state.apply(kept.entry.proposal, kept.entry.stamp);
        assert_eq!(digest(&state), kept.digest);
    }
}

#[test]
fn the_kept_log_shows_every_kind_of_command() {
    let mut kinds: Vec<&str> = kept_log(LOG).iter().map(|kept| kind(&kept.entry.proposal.command)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "add_peer",
            "archive",
            "assign_pending",
            "bridge",
            "cancel",
            "certify",
            "claim_webhooks",
            "continue",
            "drain",
            "enrol",
            "found",
            "if_generation",
            "lack",
            "mint_token",
            "node_lost",
            "node_up",
            "note",
            "pin_tools",
            "raise",
            "remove_node",
            "remove_peer",
            "remove_webhook",
            "report",
            "report_webhook",
            "resolve",
            "set_role",
            "set_webhook",
            "sign_in",
            "submit",
            "sweep",
            "testify",
            "trigger",
            "undrain",
            "upload"
        ]
    );
}

#[test]
fn a_log_that_a_failing_property_left_behind_can_be_stepped_through() {
    let Some(path) = std::env::var_os(REPLAY) else { return };
    let mut state = State::default();
    for line in fs::read_to_string(path).unwrap().lines() {
        let Entry { stamp, proposal } = serde_json::from_str(line).unwrap();
        println!("{} {:?}", stamp.index, proposal.command);
        match state.apply(proposal, stamp) {
            Ok(applied) => println!("    {:?}", applied.reply),
            Err(refused) => println!("    refused: {refused}"),
        }
    }
    println!("{state:#?}");
}

fn kept_log(name: &str) -> Vec<Kept> {
    let text = fs::read_to_string(fixture(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn digest(state: &State) -> String {
    blake3::hash(&encode(state)).to_hex().to_string()
}

fn write_kept_log() {
    let mut state = State::default();
    let mut text = String::new();
    for entry in eventful_day().entries {
        let outcome = state.apply(entry.proposal.clone(), entry.stamp).map_err(|refused| refused.to_string());
        let kept = Kept { entry, outcome, digest: digest(&state) };
        text += &serde_json::to_string(&kept).unwrap();
        text.push('\n');
    }
    fs::write(fixture(LOG), text).unwrap();
}

/// A day on which all that can happen to a cluster happens once.
fn eventful_day() -> Log {
    let mut log = Log::of_nodes(3);
    let nodes = log.node_ids();
    let surveyor = log.submit(1, "surveyor", nodes[0]);
    let delegate = Intent::Delegate {
        call_id: "call-1".into(),
        target: "reader".into(),
        own_mesh: true,
        message: Box::new(user_message("m-2", "read the file")),
        peer_task: None,
        on_adoption: OnAdoption::Retry,
        handover: Handover::Delegation,
    };
    log.report(surveyor, vec![turn_started(1), model_step(0)]).unwrap();
    log.report(surveyor, vec![step_ended(0, ""), step_started(1, delegate)]).unwrap();
    log.submit_child(2, surveyor).unwrap();
    let peer_task = OwnerWord::PeerTask { step: StepNo(1), peer_task: task_id(2).to_string() };
    log.report(surveyor, vec![peer_task]).unwrap();

    let dead = log.lease(surveyor).node.0;
    let old = log.lease(surveyor);
    log.lose(dead);
    log.report_as(&old, surveyor, 4, vec![chunk("step-2", "too late", false)]).unwrap_err();
    log.report(surveyor, vec![turn_started(2), OwnerWord::StepRestarted { step: StepNo(1), span: span(50) }]).unwrap();
    let reader = task_id(2);
    log.report(reader, vec![turn_started(3), model_step(0), chunk("step-0", "17 lines", false)]).unwrap();
    log.report(reader, vec![step_ended(0, "17 lines"), finished(TaskState::Completed)]).unwrap();
    log.report(surveyor, vec![step_ended(1, "17 lines"), model_step(2)]).unwrap();
    log.report(surveyor, vec![chunk("step-2", "one file, ", false), chunk("step-2", "17 lines", true)]).unwrap();
    log.report(surveyor, vec![step_ended(2, ""), finished(TaskState::Completed)]).unwrap();
    log.up(dead, boot(dead, 2)).unwrap();

    let asks = log.submit(3, "reader", nodes[1]);
    log.report(asks, vec![turn_started(4), step_started(0, ask_intent()), ask_person(0, "which one?")]).unwrap();
    let mut answer = user_message("m-4", "the second");
    answer.task_id = Some(asks);
    log.operator(Command::Continue { task: asks, message: answer, trace: span(60) }).unwrap();
    log.operator(Command::Cancel { task: asks }).unwrap();

    let doubtful = log.submit(5, "reader", nodes[2]);
    log.report(doubtful, vec![turn_started(5), step_started(0, tool_intent(OnAdoption::Ask))]).unwrap();
    let lost = log.lease(doubtful);
    log.up(nodes[2], boot(nodes[2], 2)).unwrap();
    let doubt = OwnerWord::Doubt { steps: vec![StepNo(0)], message: agent_message("doubt", "was it sent?") };
    log.report(doubtful, vec![turn_started(6), doubt]).unwrap();
    log.testify(&lost, doubtful, 0, "17 lines").unwrap();
    log.resolve(doubtful, Some(0), Verdict::Done { result: "17 lines".into() }).unwrap();

    let again = submission(6, "reader", nodes[0], user_message("m-1", "something else"));
    log.operator(Command::Submit(Box::new(again))).unwrap_err();
    let (second, third) = (nodes[1], nodes[2]);
    for node in nodes {
        log.lose(node);
    }
    log.submit(7, "reader", 1);
    log.node(1, Command::AssignPending).unwrap();
    log.up(1, boot(1, 3)).unwrap();
    log.operator(Command::RemoveNode { node: NodeId(third) }).unwrap_err();
    log.up(second, boot(second, 3)).unwrap();
    log.operator(Command::RemoveNode { node: NodeId(third) }).unwrap();
    log.up(third, boot(third, 3)).unwrap_err();
    log.pass(limits::TERMINAL_RETENTION_MS + 1);
    log.node(1, Command::Sweep).unwrap();
    let note = Command::Note { key: "motto".into(), value: "nothing is lost".into(), version: 1 };
    log.operator(note).unwrap();
    moved_by_a_drain(&mut log, NodeId(second));
    let hash = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262".parse().unwrap();
    log.operator(Command::Upload { hash, length: 20_000 }).unwrap();
    log.operator(Command::MintToken { hash: "again".into(), role: NodeRole::Learner, ttl_ms: 60_000 }).unwrap();
    log.node(1, Command::Enrol(enrolment_with_key("again", 9))).unwrap();
    let certificate = NodeCertificate { key: node_key(1), ends: Some(Timestamp(2_000_000)), signs: true };
    log.node(1, Command::Certify { node: NodeId(1), certificate }).unwrap();
    let archived = log.submit(10, "reader", 1);
    log.operator(Command::Cancel { task: archived }).unwrap();
    log.archive(vec![archived]);
    log.operator(Command::Cancel { task: archived }).unwrap();
    signed_in_and_out(&mut log);
    told_by_webhooks(&mut log);
    from_elsewhere(&mut log);
    started_by_themselves(&mut log);
    bridged(&mut log);
    let tools = [("read".to_owned(), "abc".to_owned())].into();
    let pins = PinTools { server: "files".into(), tools, replaces: false };
    log.node(1, Command::PinTools(Box::new(pins))).unwrap();
    let agents = [(name("reader"), "files: it is down".to_owned())].into();
    log.node(1, Command::Lack(Box::new(Lack { node: NodeId(1), boot: boot(1, 3), agents }))).unwrap();
    log
}

/// A resource changes, and a time comes; the node that looks after both is lost in between.
fn started_by_themselves(log: &mut Log) {
    let source = ResourceSource {
        server: "fs".into(),
        uri: "file:///inbox".into(),
        debounce_ms: 250,
        poll_ms: 5_000,
        filter: Some("text != ''".into()),
        window: 2,
    };
    let times = |when| TriggerSource::Schedule { when, missed: Missed::Once };
    let cron = Schedule::Cron { pattern: "30 7 * * *".into(), zone: "Europe/Berlin".into() };
    let spec = |trigger: &str, source| TriggerSpec {
        name: trigger.parse().unwrap(),
        agent: name("reader"),
        prompt: "look".into(),
        coalesce: false,
        source,
    };
    let declared = vec![spec("inbox", TriggerSource::Resource(source)), spec("hook", TriggerSource::Webhook)];
    let said = |log: &mut Log, change| log.node(1, Command::Trigger(Box::new(change)));
    said(log, TriggerChange::Declare { node: NodeId(1), triggers: declared }).unwrap();
    let add = |trigger: &str, when| Command::Trigger(Box::new(TriggerChange::Add(spec(trigger, times(when)))));
    log.operator(add("mornings", cron)).unwrap();
    log.operator(add("hourly", Schedule::Every { period_ms: 3_600_000 })).unwrap();
    log.operator(add("once", Schedule::At { at: Timestamp(2_000_000) })).unwrap();
    let name: TriggerName = "inbox".parse().unwrap();
    let claim = |life| TriggerChange::Claim { node: NodeId(1), boot: boot(1, life), names: vec![name.clone()] };
    said(log, claim(4)).unwrap();
    let epoch = log.state.trigger(&name).and_then(|known| known.lease).unwrap().epoch;
    let report = TriggerReport {
        name: name.clone(),
        epoch,
        number: 1,
        seen: Some("one".into()),
        tick: None,
        skipped: 0,
        push: Some("live".into()),
        trouble: None,
    };
    said(log, TriggerChange::Report(report.clone())).unwrap();
    let fire = |task, occasion| {
        let submission = submission(task, "reader", 1, user_message("event", "it changed"));
        TriggerChange::Fire(Box::new(Fire { name: name.clone(), occasion, skipped: 0, submission }))
    };
    said(log, fire(13, Occasion::Change { epoch, number: 2, seen: "two".into() })).unwrap();
    log.lose(1);
    log.up(1, boot(1, 5)).unwrap();
    said(log, TriggerChange::Report(report)).unwrap_err();
    said(log, claim(5)).unwrap();
    let by_hand = fire(14, Occasion::Hand { request: uuid(9_000) });
    log.operator(Command::Trigger(Box::new(by_hand))).unwrap();
    log.operator(Command::Trigger(Box::new(TriggerChange::Remove { name: "once".parse().unwrap() }))).unwrap();
}

/// Two MCP servers come to the sessions of one who asks, and one goes.
fn bridged(log: &mut Log) {
    for id in ["files", "notes"] {
        let server = BridgedServer {
            id: id.into(),
            name: "files".into(),
            transport: BridgedTransport::Command {
                command: vec!["mcp-files".into()],
                cwd: String::new(),
                env: [("LEVEL".to_owned(), "1".to_owned())].into(),
            },
            timeout_s: 300,
            auto_reconnect: true,
            tools: vec!["read".into()],
            resources: Vec::new(),
        };
        log.operator(Command::Bridge(Box::new(BridgeChange::Register(server)))).unwrap();
    }
    log.operator(Command::Bridge(Box::new(BridgeChange::Unregister { id: "notes".into() }))).unwrap();
}

/// Two agents of others come, one as an agent of the mesh, and one goes.
fn from_elsewhere(log: &mut Log) {
    for (text, joined) in
        [("law", Some(JoinedAgent { description: "Knows the law.".into(), tags: Vec::new() })), ("tax", None)]
    {
        let peer = Peer {
            name: name(text),
            urls: vec!["https://a.example".into(), "https://b.example".into()],
            token: Some(PeerToken::Secret("LEGAL".into())),
            idempotent: false,
            for_agents: vec![name("surveyor")],
            joined,
        };
        log.operator(Command::AddPeer(Box::new(peer))).unwrap();
    }
    log.submit(12, "law", 1);
    log.operator(Command::RemovePeer { name: name("tax") }).unwrap();
}

/// The node that tells is lost, and another one goes on.
fn told_by_webhooks(log: &mut Log) {
    let task = log.submit(11, "reader", 1);
    let auth = WebhookAuth { scheme: "Bearer".into(), credentials: Some("secret".into()) };
    for id in ["first", "second"] {
        let url = "https://receiver.example/hook".to_owned();
        let config =
            WebhookConfig { id: id.into(), url, token: Some("token".into()), authentication: Some(auth.clone()) };
        log.operator(Command::SetWebhook(Box::new(SetWebhook { task, config, from: Some(0), prefer: NodeId(1) })))
            .unwrap();
    }
    let first = WebhookName { task, id: "first".into() };
    let epoch = log.state.webhook(&first).and_then(|hook| hook.lease).unwrap().epoch;
    let report = WebhookReport {
        webhook: first.clone(),
        epoch,
        attempts: 1,
        delivered: 0,
        after: Some(0),
        said: "status 500".into(),
        failed: Some(FailedCall { wait_ms: 1_000, is_final: false }),
    };
    log.node(1, Command::ReportWebhook(Box::new(report))).unwrap();
    log.operator(Command::RemoveWebhook(WebhookName { task, id: "second".into() })).unwrap();
    log.lose(1);
    log.up(1, boot(1, 4)).unwrap();
    log.node(1, Command::ClaimWebhooks { node: NodeId(1), boot: boot(1, 4), webhooks: vec![first] }).unwrap();
}

/// The node comes back as a learner.
fn signed_in_and_out(log: &mut Log) {
    let (device, token) = (SecretHash::of("device"), SecretHash::of("token"));
    let (code, session): (UserCode, SessionId) = (UserCode::drawn(1), "ds_1".parse().unwrap());
    let ask = DeviceAsk {
        device: device.clone(),
        code: code.clone(),
        client: "towline".into(),
        source: "127.0.0.1".into(),
        wants: PrincipalRole::User,
        ttl_ms: 600_000,
    };
    log.sign_in(1, SignIn::Ask(ask)).unwrap();
    let name: PrincipalId = "user:ada".parse().unwrap();
    let approve = Approve { code: code.clone(), name: name.clone(), role: PrincipalRole::User, ttl_ms: 3_600_000 };
    log.operator(Command::SignIn(Box::new(SignIn::Approve(approve)))).unwrap();
    log.operator(Command::SignIn(Box::new(SignIn::Deny { code: UserCode::drawn(2) }))).unwrap_err();
    log.sign_in(1, SignIn::Redeem { device, session: session.clone(), token: token.clone() }).unwrap();
    log.sign_in(1, SignIn::Seen { tokens: vec![token] }).unwrap();
    let launched = ("ls_1".parse().unwrap(), SecretHash::of("launched"));
    log.sign_in(1, SignIn::Launch { session: launched.0, token: launched.1, ttl_ms: 3_600_000 }).unwrap();
    log.operator(Command::SignIn(Box::new(SignIn::Revoke(Revoke::Session(session))))).unwrap();
}

fn moved_by_a_drain(log: &mut Log, node: NodeId) {
    let moves = log.submit(8, "reader", node.0);
    log.report(moves, vec![turn_started(7), model_step(0)]).unwrap();
    log.operator(Command::Drain { node, patience_ms: 60_000 }).unwrap();
    log.report(moves, vec![step_ended(0, ""), OwnerWord::Released]).unwrap();
    log.operator(Command::SetRole { node, role: NodeRole::Learner }).unwrap();
    log.operator(Command::Undrain { node }).unwrap();
    let looked = log.submit(9, "reader", node.0);
    let cancel = |generation| {
        let then = Box::new(Command::Cancel { task: looked });
        Command::IfGeneration { task: looked, generation, then }
    };
    log.operator(cancel(0)).unwrap_err();
    log.operator(cancel(log.task(looked).generation)).unwrap();
}

fn kind(command: &Command) -> &'static str {
    match command {
        Command::Submit(_) => "submit",
        Command::Continue { .. } => "continue",
        Command::Cancel { .. } => "cancel",
        Command::Report(_) => "report",
        Command::Found { .. } => "found",
        Command::MintToken { .. } => "mint_token",
        Command::Enrol(_) => "enrol",
        Command::NodeUp { .. } => "node_up",
        Command::NodeLost { .. } => "node_lost",
        Command::Certify { .. } => "certify",
        Command::RemoveNode { .. } => "remove_node",
        Command::SetRole { .. } => "set_role",
        Command::Drain { .. } => "drain",
        Command::Undrain { .. } => "undrain",
        Command::AssignPending => "assign_pending",
        Command::Sweep => "sweep",
        Command::Resolve(_) => "resolve",
        Command::Testify(_) => "testify",
        Command::Note { .. } => "note",
        Command::Upload { .. } => "upload",
        Command::Archive { .. } => "archive",
        Command::Raise { .. } => "raise",
        Command::AddPeer(_) => "add_peer",
        Command::RemovePeer { .. } => "remove_peer",
        Command::SignIn(_) => "sign_in",
        Command::SetWebhook(_) => "set_webhook",
        Command::RemoveWebhook(_) => "remove_webhook",
        Command::ClaimWebhooks { .. } => "claim_webhooks",
        Command::ReportWebhook(_) => "report_webhook",
        Command::IfGeneration { .. } => "if_generation",
        Command::Trigger(_) => "trigger",
        Command::Bridge(_) => "bridge",
        Command::PinTools(_) => "pin_tools",
        Command::Lack(_) => "lack",
    }
}
