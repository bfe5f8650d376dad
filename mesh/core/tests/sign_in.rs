//! Who gets in, as what, and for how long.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use proptest::prelude::*;
use support::*;
use towline_core::*;

const HOUR: u64 = 3_600_000;
const MINUTE: u64 = 60_000;

#[test]
fn an_approved_device_gets_one_session_of_the_name_it_was_approved_under() {
    let mut log = Log::of_nodes(3);
    ask(&mut log, 1, PrincipalRole::User).unwrap();
    let refused = redeem(&mut log, 1, "ds_1").unwrap_err();
    assert_eq!(refused, SignInRejection::Undecided { code: code(1) }.into());
    approve(&mut log, 1, "user:ada", PrincipalRole::User).unwrap();
    redeem(&mut log, 1, "ds_1").unwrap();

    let session = log.state.session(&token("ds_1"), now(&log)).unwrap();
    assert_eq!(session.principal(), named("user:ada", PrincipalRole::User));
    assert_eq!((session.created, session.expires.0 - session.created.0), (now(&log), HOUR));
    assert!(log.state.session(&token("ds_2"), now(&log)).is_none(), "another token opens nothing");
    assert_eq!(redeem(&mut log, 1, "ds_2").unwrap_err(), SignInRejection::Used.into());
    redeem(&mut log, 1, "ds_1").unwrap();
    assert_eq!(log.state.sessions(now(&log)).count(), 1, "the same answer again makes no second one");
}

#[test]
fn an_approval_takes_from_what_was_asked_for_and_adds_nothing() {
    let mut log = Log::of_nodes(1);
    ask(&mut log, 1, PrincipalRole::User).unwrap();
    let widened = approve(&mut log, 1, "user:ada", PrincipalRole::Operator).unwrap_err();
    let (wants, role) = (PrincipalRole::User, PrincipalRole::Operator);
    assert_eq!(widened, SignInRejection::Widened { code: code(1), wants, role }.into());
    ask(&mut log, 2, PrincipalRole::Operator).unwrap();
    approve(&mut log, 2, "user:ada", PrincipalRole::User).unwrap();
    redeem(&mut log, 2, "ds_2").unwrap();
    assert_eq!(log.state.session(&token("ds_2"), now(&log)).unwrap().role, PrincipalRole::User);
    ask(&mut log, 3, PrincipalRole::Operator).unwrap();
    approve(&mut log, 3, "user:ada", PrincipalRole::Operator).unwrap();
}

#[test]
fn nobody_signs_in_as_an_agent() {
    let mut log = Log::of_nodes(1);
    for role in [PrincipalRole::Agent, PrincipalRole::Anonymous] {
        let no_such_role: Rejection = SignInRejection::NoSuchRole { role }.into();
        assert_eq!(ask(&mut log, 1, role).unwrap_err(), no_such_role);
        ask(&mut log, 2, PrincipalRole::Operator).unwrap();
        assert_eq!(approve(&mut log, 2, "user:ada", role).unwrap_err(), no_such_role);
    }
}

#[test]
fn an_approval_says_when_the_name_was_approved_before() {
    let mut log = Log::of_nodes(1);
    ask(&mut log, 1, PrincipalRole::User).unwrap();
    approve(&mut log, 1, "user:ada", PrincipalRole::User).unwrap();
    let first = now(&log);
    log.pass(limits::MAX_SESSION_MS);
    ask(&mut log, 2, PrincipalRole::User).unwrap();
    approve(&mut log, 2, "user:ada", PrincipalRole::User).unwrap();
    assert_eq!(approval(&log, 2).before, Some(first), "long after whatever was made of it");
    ask(&mut log, 3, PrincipalRole::User).unwrap();
    approve(&mut log, 3, "user:bob", PrincipalRole::User).unwrap();
    assert_eq!(approval(&log, 3).before, None);
}

#[test]
fn a_denied_device_gets_nothing_and_a_decision_is_not_taken_back_by_another() {
    let mut log = Log::of_nodes(1);
    ask(&mut log, 1, PrincipalRole::User).unwrap();
    deny(&mut log, 1).unwrap();
    assert_eq!(redeem(&mut log, 1, "ds_1").unwrap_err(), SignInRejection::Denied { code: code(1) }.into());
    let late = approve(&mut log, 1, "user:ada", PrincipalRole::User).unwrap_err();
    assert!(matches!(late, Rejection::SignIn(SignInRejection::Decided { .. })), "{late}");

    ask(&mut log, 2, PrincipalRole::User).unwrap();
    approve(&mut log, 2, "user:ada", PrincipalRole::User).unwrap();
    let other = approve(&mut log, 2, "user:bob", PrincipalRole::User).unwrap_err();
    assert!(other.to_string().contains("user:ada"), "{other}");
    deny(&mut log, 2).unwrap();
    assert_eq!(redeem(&mut log, 2, "ds_2").unwrap_err(), SignInRejection::Denied { code: code(2) }.into());

    ask(&mut log, 3, PrincipalRole::User).unwrap();
    approve(&mut log, 3, "user:ada", PrincipalRole::User).unwrap();
    redeem(&mut log, 3, "ds_3").unwrap();
    let begun = deny(&mut log, 3).unwrap_err();
    assert!(begun.to_string().contains("towline auth revoke ds_3"), "{begun}");
}

#[test]
fn requests_and_sessions_end_by_the_time_of_the_log() {
    let mut log = Log::of_nodes(1);
    ask(&mut log, 1, PrincipalRole::User).unwrap();
    ask(&mut log, 2, PrincipalRole::User).unwrap();
    approve(&mut log, 1, "user:ada", PrincipalRole::User).unwrap();
    redeem(&mut log, 1, "ds_1").unwrap();
    let begun = now(&log);
    assert!(log.state.session(&token("ds_1"), Timestamp(begun.0 + HOUR - 1)).is_some());
    assert!(log.state.session(&token("ds_1"), Timestamp(begun.0 + HOUR)).is_none(), "also before it is swept");
    log.pass(11 * MINUTE);
    let late = approve(&mut log, 2, "user:bob", PrincipalRole::User).unwrap_err();
    assert_eq!(late, SignInRejection::UnknownCode { code: code(2) }.into());
    log.pass(HOUR);
    assert!(log.state.has_sweepable(Timestamp(now(&log).0 + HOUR)));
    log.node(1, Command::Sweep).unwrap();
    assert_eq!((log.state.sessions(Timestamp(0)).count(), log.state.device_requests(Timestamp(0)).count()), (0, 0));
    assert!(!log.state.has_sweepable(now(&log)));
}

#[test]
fn a_revocation_ends_one_session_or_all_of_a_name_or_all() {
    let mut log = Log::of_nodes(1);
    for (number, name) in [(1, "user:ada"), (2, "user:ada"), (3, "user:ada"), (4, "user:bob")] {
        ask(&mut log, number, PrincipalRole::User).unwrap();
        approve(&mut log, number, name, PrincipalRole::User).unwrap();
    }
    for (number, session) in [(1, "ds_1"), (2, "ds_2"), (4, "ds_4")] {
        redeem(&mut log, number, session).unwrap();
    }
    let applied = revoke(&mut log, Revoke::Session("ds_1".parse().unwrap())).unwrap();
    assert_eq!((left(&log), applied.effects), (vec!["ds_2", "ds_4"], vec![Effect::SessionsEnded]));
    let again = revoke(&mut log, Revoke::Session("ds_1".parse().unwrap())).unwrap();
    assert_eq!((left(&log), again.effects), (vec!["ds_2", "ds_4"], vec![]));

    revoke(&mut log, Revoke::Name("user:ada".parse().unwrap())).unwrap();
    assert_eq!(left(&log), ["ds_4"]);
    let not_begun = redeem(&mut log, 3, "ds_3").unwrap_err();
    assert_eq!(not_begun, SignInRejection::Denied { code: code(3) }.into(), "nor does one begin that was approved");
    redeem(&mut log, 2, "ds_2").unwrap();
    assert_eq!(left(&log), ["ds_4"], "a late repetition of what made a session does not make it again");

    revoke(&mut log, Revoke::All).unwrap();
    assert!(left(&log).is_empty());
}

#[test]
fn somebody_who_is_no_operator_ends_its_own_sessions_only() {
    let mut log = Log::of_nodes(1);
    for (number, name) in [(1, "user:ada"), (2, "user:bob")] {
        ask(&mut log, number, PrincipalRole::User).unwrap();
        approve(&mut log, number, name, PrincipalRole::User).unwrap();
        redeem(&mut log, number, &format!("ds_{number}")).unwrap();
    }
    let ada = named("user:ada", PrincipalRole::User);
    for which in [Revoke::Session("ds_2".parse().unwrap()), Revoke::Name("user:bob".parse().unwrap()), Revoke::All] {
        let applied = log.apply(ada.clone(), change(SignIn::Revoke(which))).unwrap();
        assert_eq!((left(&log), applied.effects), (vec!["ds_1", "ds_2"], vec![]));
    }
    log.apply(ada.clone(), change(SignIn::Revoke(Revoke::Session("ds_1".parse().unwrap())))).unwrap();
    assert_eq!(left(&log), ["ds_2"]);
    ask(&mut log, 3, PrincipalRole::User).unwrap();
    let approval = Approve { code: code(3), name: "user:eve".parse().unwrap(), role: PrincipalRole::User, ttl_ms: 1 };
    for refused in [SignIn::Approve(approval), SignIn::Deny { code: code(3) }, launch("ls_1")] {
        let refused = log.apply(ada.clone(), change(refused)).unwrap_err();
        assert!(matches!(refused, Rejection::NotAllowed { .. }), "{refused}");
    }
}

#[test]
fn a_launched_session_is_the_operators_and_does_not_come_back_once_it_was_revoked() {
    let mut log = Log::of_nodes(1);
    log.sign_in(1, launch("ls_1")).unwrap();
    assert_eq!(log.state.session(&token("ls_1"), now(&log)).unwrap().principal(), Principal::Operator);
    log.sign_in(1, launch("ls_1")).unwrap();
    assert_eq!(left(&log), ["ls_1"]);
    revoke(&mut log, Revoke::All).unwrap();
    assert_eq!(log.sign_in(1, launch("ls_1")).unwrap_err(), SignInRejection::Ended.into());
    assert!(left(&log).is_empty());
}

fn ask_from(log: &mut Log, number: u64, source: &str) -> Result<Applied, Rejection> {
    let ask = DeviceAsk { source: source.to_owned(), ..device_ask(number, PrincipalRole::User) };
    log.sign_in(1, SignIn::Ask(ask))
}

fn waits(log: &Log, number: u64) -> bool {
    log.state.device_request(&code(number), now(log)).is_some()
}

#[test]
fn one_more_request_of_a_source_than_may_wait_takes_the_place_of_its_oldest_one_alone() {
    let mut log = Log::of_nodes(1);
    ask_from(&mut log, 900, "10.0.0.2").unwrap();
    ask(&mut log, 0, PrincipalRole::User).unwrap();
    approve(&mut log, 0, "user:ada", PrincipalRole::User).unwrap();
    let most = limits::MAX_DEVICE_REQUESTS_PER_SOURCE as u64;
    for number in 1..=most {
        ask(&mut log, number, PrincipalRole::User).unwrap();
    }
    assert!(waits(&log, 1));
    ask(&mut log, 901, PrincipalRole::User).unwrap();
    assert!(!waits(&log, 1) && waits(&log, 2) && waits(&log, 901), "the oldest one goes");
    assert!(waits(&log, 0) && waits(&log, 900), "what was decided stays, and what others asked");
}

#[test]
fn the_source_that_asks_most_makes_room_for_others_and_what_was_decided_for_nobody() {
    let mut log = Log::of_nodes(1);
    let most = limits::MAX_DEVICE_REQUESTS as u64;
    for number in 0..most {
        let source = if number < 3 { "10.0.0.9".to_owned() } else { format!("10.0.1.{number}") };
        ask_from(&mut log, number, &source).unwrap();
    }
    ask_from(&mut log, 900, "10.0.0.7").unwrap();
    assert!(!waits(&log, 0) && waits(&log, 1) && waits(&log, 900));
    for number in (1..most).chain([900]) {
        deny(&mut log, number).unwrap();
    }
    assert!(matches!(ask_from(&mut log, 901, "10.0.0.8"), Err(Rejection::Full { .. })));
    log.pass(16 * MINUTE);
    ask_from(&mut log, 902, "10.0.0.8").unwrap();
}

#[test]
fn a_name_has_a_bounded_number_of_sessions() {
    let mut log = Log::of_nodes(1);
    let mut sign_in = |number: u64, name: &str| {
        ask(&mut log, number, PrincipalRole::User).unwrap();
        approve(&mut log, number, name, PrincipalRole::User)?;
        redeem(&mut log, number, &format!("ds_{number}"))
    };
    for number in 0..limits::MAX_SESSIONS_PER_NAME as u64 {
        sign_in(number, "user:ada").unwrap();
    }
    let refused = sign_in(900, "user:ada").unwrap_err();
    assert!(matches!(&refused, Rejection::Full { what, .. } if what.contains("user:ada")), "{refused}");
    sign_in(901, "user:bob").unwrap();
}

#[test]
fn a_restored_cluster_knows_the_names_and_lets_nobody_in() {
    let mut log = Log::of_nodes(1);
    ask(&mut log, 1, PrincipalRole::User).unwrap();
    approve(&mut log, 1, "user:ada", PrincipalRole::User).unwrap();
    redeem(&mut log, 1, "ds_1").unwrap();
    ask(&mut log, 2, PrincipalRole::User).unwrap();
    let mut state = log.state.clone();
    let founder = Founder { node: NodeId(1_000), name: "a".into(), addresses: addresses(1) };
    state.refound(uuid(9), "copy".into(), founder);
    assert_eq!((state.sessions(Timestamp(0)).count(), state.device_requests(Timestamp(0)).count()), (0, 0));
    assert!(state.approved_before(&"user:ada".parse().unwrap()).is_some());
}

#[derive(Debug, Clone)]
enum Op {
    Ask(u64, bool),
    Approve(u64, bool, bool),
    Deny(u64),
    Redeem(u64, u64),
    Launch(u64),
    Revoke(u8, u64),
    Seen(u64),
    Pass(u64),
    Sweep,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..6_u64, any::<bool>()).prop_map(|(number, operator)| Op::Ask(number, operator)),
        4 => (0..6_u64, any::<bool>(), any::<bool>()).prop_map(|(number, ada, operator)| Op::Approve(number, ada, operator)),
        1 => (0..6_u64).prop_map(Op::Deny),
        4 => (0..6_u64, 0..3_u64).prop_map(|(number, session)| Op::Redeem(number, session)),
        1 => (0..2_u64).prop_map(Op::Launch),
        2 => (0..4_u8, 0..6_u64).prop_map(|(which, number)| Op::Revoke(which, number)),
        1 => (0..6_u64).prop_map(Op::Seen),
        1 => (0..20_u64).prop_map(Op::Pass),
        1 => Just(Op::Sweep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_session_has_an_approval_and_every_command_counts_once(ops in prop::collection::vec(op(), 1..80)) {
        let mut log = Log::of_nodes(1);
        let mut approved: Vec<(u64, String, PrincipalRole)> = Vec::new();
        for op in ops {
            let before = log.without_position();
            let known = log.entries.len();
            let done = perform(&mut log, &op);
            if let (Op::Approve(number, ada, operator), Some(Ok(_))) = (&op, &done) {
                approved.push((*number, name_of(*ada).to_owned(), role_of(*operator)));
            }
            if let Some(Err(_)) = &done {
                prop_assert_eq!(log.without_position(), before);
            }
            if let (Some(Ok(_)), Some(entry)) = (&done, log.entries.get(known).cloned()) {
                let after = log.without_position();
                let second = log.apply(entry.proposal.by, entry.proposal.command);
                // What marks a moment marks the later one.
                prop_assert!(matches!(op, Op::Seen(_)) || log.without_position() == after);
                prop_assert!(second.is_ok());
            }
            for session in log.state.sessions(now(&log)) {
                let known = approved.iter().any(|(_, name, role)| *name == session.name.as_str() && *role == session.role);
                prop_assert!(known || session.kind == SessionKind::Launch, "{session:?}");
            }
            prop_assert_eq!(decode(&encode(&log.state)), log.state.clone());
        }
        prop_assert_eq!(replay(&log.entries), log.state);
    }
}

fn perform(log: &mut Log, op: &Op) -> Option<Result<Applied, Rejection>> {
    Some(match op {
        Op::Ask(number, operator) => ask(log, *number, role_of(*operator)),
        Op::Approve(number, ada, operator) => approve(log, *number, name_of(*ada), role_of(*operator)),
        Op::Deny(number) => deny(log, *number),
        Op::Redeem(number, session) => redeem(log, *number, &format!("ds_{number}_{session}")),
        Op::Launch(number) => log.sign_in(1, launch(&format!("ls_{number}"))),
        Op::Revoke(which, number) => revoke(
            log,
            match which {
                0 => Revoke::All,
                1 => Revoke::Name("user:ada".parse().unwrap()),
                2 => Revoke::Session(format!("ls_{number}").parse().unwrap()),
                _ => Revoke::Session(format!("ds_{number}_0").parse().unwrap()),
            },
        ),
        Op::Seen(number) => log.sign_in(1, SignIn::Seen { tokens: vec![token(&format!("ds_{number}_0"))] }),
        Op::Pass(minutes) => {
            log.pass(minutes * MINUTE);
            return None;
        }
        Op::Sweep => log.node(1, Command::Sweep),
    })
}

fn role_of(operator: bool) -> PrincipalRole {
    if operator { PrincipalRole::Operator } else { PrincipalRole::User }
}

fn name_of(ada: bool) -> &'static str {
    if ada { "user:ada" } else { "user:bob" }
}

fn now(log: &Log) -> Timestamp {
    log.state.last().at
}

fn code(number: u64) -> UserCode {
    UserCode::drawn(number)
}

fn token(session: &str) -> SecretHash {
    SecretHash::of(session)
}

fn change(change: SignIn) -> Command {
    Command::SignIn(Box::new(change))
}

fn device_ask(number: u64, wants: PrincipalRole) -> DeviceAsk {
    DeviceAsk {
        device: SecretHash::of(&format!("device-{number}")),
        code: code(number),
        client: "test".into(),
        source: "10.0.0.1".into(),
        wants,
        ttl_ms: 10 * MINUTE,
    }
}

fn ask(log: &mut Log, number: u64, wants: PrincipalRole) -> Result<Applied, Rejection> {
    log.sign_in(1, SignIn::Ask(device_ask(number, wants)))
}

fn approve(log: &mut Log, number: u64, name: &str, role: PrincipalRole) -> Result<Applied, Rejection> {
    let approve = Approve { code: code(number), name: name.parse().unwrap(), role, ttl_ms: HOUR };
    log.operator(change(SignIn::Approve(approve)))
}

fn deny(log: &mut Log, number: u64) -> Result<Applied, Rejection> {
    log.operator(change(SignIn::Deny { code: code(number) }))
}

fn redeem(log: &mut Log, number: u64, session: &str) -> Result<Applied, Rejection> {
    let device = SecretHash::of(&format!("device-{number}"));
    log.sign_in(1, SignIn::Redeem { device, session: session.parse().unwrap(), token: token(session) })
}

fn launch(session: &str) -> SignIn {
    SignIn::Launch { session: session.parse().unwrap(), token: token(session), ttl_ms: HOUR }
}

fn revoke(log: &mut Log, which: Revoke) -> Result<Applied, Rejection> {
    log.operator(change(SignIn::Revoke(which)))
}

fn approval(log: &Log, number: u64) -> Approval {
    match log.state.device_request(&code(number), now(log)).unwrap().decision.clone() {
        Some(Decision::Approved(approval)) => approval,
        other => panic!("{other:?}"),
    }
}

fn left(log: &Log) -> Vec<&str> {
    let mut left: Vec<&str> = log.state.sessions(now(log)).map(|session| session.id.as_str()).collect();
    left.sort_unstable();
    left
}

fn named(name: &str, role: PrincipalRole) -> Principal {
    Principal::Named { id: name.parse().unwrap(), role }
}
