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
    for (line, kept) in kept_log().into_iter().enumerate() {
        let outcome = state.apply(kept.entry.proposal, kept.entry.stamp).map_err(|refused| refused.to_string());
        assert_eq!(outcome, kept.outcome, "line {}", line + 1);
        assert_eq!(digest(&state), kept.digest, "line {}: {REWRITE}=1 keeps a change made on purpose", line + 1);
    }
    assert!(state.last().index > 0, "the kept log has entries");
}

#[test]
fn a_restart_at_every_entry_of_the_kept_log_gives_the_same_state() {
    let mut state = State::default();
    for kept in kept_log() {
        state = decode(&encode(&state));
        let _refused_or_not = state.apply(kept.entry.proposal, kept.entry.stamp);
        assert_eq!(digest(&state), kept.digest);
    }
}

#[test]
fn the_kept_log_shows_every_kind_of_command() {
    let mut kinds: Vec<&str> = kept_log().iter().map(|kept| kind(&kept.entry.proposal.command)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "archive",
            "assign_pending",
            "cancel",
            "certify",
            "continue",
            "drain",
            "enrol",
            "found",
            "mint_token",
            "node_lost",
            "node_up",
            "note",
            "remove_node",
            "report",
            "resolve",
            "set_role",
            "submit",
            "sweep",
            "testify",
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

fn kept_log() -> Vec<Kept> {
    let text = fs::read_to_string(fixture()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/commands.jsonl")
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
    fs::write(fixture(), text).unwrap();
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
    log
}

/// The node comes back as a learner.
fn moved_by_a_drain(log: &mut Log, node: NodeId) {
    let moves = log.submit(8, "reader", node.0);
    log.report(moves, vec![turn_started(7), model_step(0)]).unwrap();
    log.operator(Command::Drain { node, patience_ms: 60_000 }).unwrap();
    log.report(moves, vec![step_ended(0, ""), OwnerWord::Released]).unwrap();
    log.operator(Command::SetRole { node, role: NodeRole::Learner }).unwrap();
    log.operator(Command::Undrain { node }).unwrap();
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
        Command::AddPeer(_) => "add_peer",
        Command::RemovePeer { .. } => "remove_peer",
    }
}
