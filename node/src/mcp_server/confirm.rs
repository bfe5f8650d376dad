//! How a person confirms what changes something: the third guard. A [`Confirmed`] is made here and nowhere else, by the word of a
//! client that has said that it asks people, and nothing is changed without one. Whatever else comes, and nothing at all, is a no.
//!
//! With a session the question is a request on the stream of the call. Without one it is the result of the call; the client
//! calls once more with the answer, and with a seal that says which question it answers.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::hmac;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Ask,
    dispatch::Work,
    message::{Request, RpcError, code},
    session,
};

/// How long a person may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Answers that are remembered, so that each counts once.
const MAX_ANSWERED: usize = 65_536;

/// Most of these of one principal: more than people of a desk can give in that time, and room for others beside it.
const MAX_ANSWERED_OF_ONE: usize = 4_096;

/// What a client is told that asks nobody.
pub(super) const NOBODY: &str = "this tool requires a person's confirmation, which this client cannot give: use a client that \
     declares the capability elicitation, or the command line";

/// The key of the question, and of the field of its answer.
const KEY: &str = "confirm";

/// A person has said yes.
pub(super) struct Confirmed(());

/// What came of asking without a session.
pub(super) enum Asked {
    Confirmed(Confirmed),
    /// Nobody said yes.
    Not(String),
    /// The result that asks.
    First(Value),
    /// The client asks nobody.
    Cannot(RpcError),
}

/// Asks on the stream of a call.
///
/// # Errors
/// Why that is a no.
pub(super) async fn by_question(work: &Work, question: &str) -> Result<Confirmed, String> {
    let answered = put(work, elicitation(question, None)).await?;
    match answered {
        Some(Ok(result)) => said_yes(&result).then_some(Confirmed(())).ok_or_else(|| refused(&result)),
        Some(Err(_)) => Err("not confirmed: the client could not ask anybody".to_owned()),
        None => Err("not confirmed: nobody has answered".to_owned()),
    }
}

/// Puts a question to the person behind a client, on the stream of a call: its answer, or its error; none when there is none in time.
///
/// # Errors
/// Why it cannot be put.
pub(super) async fn put(work: &Work, params: Value) -> Result<Option<Result<Value, Value>>, String> {
    let live = work.ask.session.as_ref().filter(|_| work.ask.speaker.elicits);
    let live = live.and_then(|session| work.ask.server.sessions.get(session)).ok_or(NOBODY)?;
    let id = json!(format!("confirm-{}", Uuid::now_v7().simple()));
    let expected = live.expect(&id).map_err(|error| error.message)?;
    let request = json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params });
    work.say.send(request).await.map_err(|_| "the client has gone")?;
    tokio::select! {
        answered = expected.within(PATIENCE) => Ok(answered),
        () = work.taken_back() => Err("the call was taken back".to_owned()),
    }
}

/// Asks by the result of a call, and reads the answer out of the next one.
pub(super) fn by_another_call(ask: &Ask, request: &Request, question: &str) -> Asked {
    if !ask.speaker.elicits {
        let data = json!({ "requiredCapabilities": { "elicitation": { "form": {} } } });
        return Asked::Cannot(RpcError::new(code::MISSING_CAPABILITY, NOBODY).with(data));
    }
    let about = about(ask, request);
    let answer = request.params.get("inputResponses").and_then(|answers| answers.get(KEY));
    let state = request.params.get("requestState").and_then(Value::as_str);
    match (answer, state) {
        (Some(answer), Some(state))
            if ask.server.seal.takes(state, &about, session::mark(&ask.caller.principal), now()) =>
        {
            if said_yes(answer) { Asked::Confirmed(Confirmed(())) } else { Asked::Not(refused(answer)) }
        }
        // Nothing was asked yet, or by another node, or too long ago, or about something else.
        (Some(_) | None, Some(_) | None) => {
            let asked = json!({ "method": "elicitation/create", "params": elicitation(question, Some("form")) });
            Asked::First(json!({
                "inputRequests": { KEY: asked },
                "requestState": ask.server.seal.of(&about, now()),
                "resultType": "input_required",
            }))
        }
    }
}

fn elicitation(question: &str, mode: Option<&str>) -> Value {
    let mut params = json!({
        "message": question,
        "requestedSchema": {
            "type": "object",
            "properties": { KEY: { "type": "boolean", "title": "Do it", "description": question, "default": false } },
            "required": [KEY],
        },
    });
    if let Some(mode) = mode {
        params["mode"] = mode.into();
    }
    params
}

/// Yes is an accepted form with the box ticked, and nothing else.
fn said_yes(result: &Value) -> bool {
    result.get("action").and_then(Value::as_str) == Some("accept")
        && result.get("content").and_then(|content| content.get(KEY)) == Some(&Value::Bool(true))
}

fn refused(result: &Value) -> String {
    let action = result.get("action").and_then(Value::as_str).unwrap_or("no answer that can be read");
    format!("not confirmed: {}", towline_a2a::shortened(action))
}

/// What a question is about: an answer to it is not one to another.
fn about(ask: &Ask, request: &Request) -> String {
    let part = |name: &str| request.params.get(name).cloned().unwrap_or_default();
    format!("{:?}\n{}\n{}", ask.caller.principal, part("name"), part("arguments"))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Marks questions of this process, so that an answer says which one it is to, and counts once. Another node, or the next life of
/// this one, does not know it, and asks again.
pub(super) struct Seal {
    key: Option<hmac::Key>,
    /// The marks that were answered, by whose and by the unique part of each, until they are too old anyway.
    answered: Mutex<HashMap<u64, HashMap<Uuid, u64>>>,
}

impl Seal {
    pub fn new() -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new());
        if key.is_err() {
            tracing::error!("the system has no randomness: nothing can be confirmed without a session");
        }
        Self { key: key.ok(), answered: Mutex::default() }
    }

    /// The mark of a question that is asked now, in seconds since 1970.
    fn of(&self, about: &str, now: u64) -> String {
        let (until, unique) = (now.saturating_add(PATIENCE.as_secs()), Uuid::now_v7());
        let tag = self.key.as_ref().map(|key| hmac::sign(key, text(about, until, unique).as_bytes()));
        let tag = BASE64_URL_SAFE_NO_PAD.encode(tag.as_ref().map_or(&[][..], AsRef::as_ref));
        format!("{until}.{}.{tag}", unique.simple())
    }

    /// Whether a mark is of this question, not too old, and was not answered before. It is from now on, for its owner.
    fn takes(&self, mark: &str, about: &str, owner: u64, now: u64) -> bool {
        let mut pieces = mark.splitn(3, '.');
        let (Some(until), Some(unique), Some(tag), Some(key)) =
            (pieces.next(), pieces.next(), pieces.next(), &self.key)
        else {
            return false;
        };
        let (Ok(until), Ok(unique), Ok(tag)) =
            (until.parse::<u64>(), Uuid::try_parse(unique), BASE64_URL_SAFE_NO_PAD.decode(tag))
        else {
            return false;
        };
        if now > until || hmac::verify(key, text(about, until, unique).as_bytes(), &tag).is_err() {
            return false;
        }
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |answered: &HashMap<u64, HashMap<Uuid, u64>>| {
            let own = answered.get(&owner).map_or(0, HashMap::len);
            own >= MAX_ANSWERED_OF_ONE || answered.values().map(HashMap::len).sum::<usize>() >= MAX_ANSWERED
        };
        if is_full(&answered) {
            answered.values_mut().for_each(|own| own.retain(|_, until| *until >= now));
            answered.retain(|_, own| !own.is_empty());
        }
        !is_full(&answered) && answered.entry(owner).or_default().insert(unique, until).is_none()
    }
}

fn text(about: &str, until: u64, unique: Uuid) -> String {
    format!("{until}\n{unique}\n{about}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_accepted_form_with_the_box_ticked_is_a_yes() {
        assert!(said_yes(&json!({ "action": "accept", "content": { "confirm": true } })));
        for no in [
            json!({}),
            json!(null),
            json!("accept"),
            json!({ "action": "accept" }),
            json!({ "action": "accept", "content": {} }),
            json!({ "action": "accept", "content": { "confirm": false } }),
            json!({ "action": "accept", "content": { "confirm": "true" } }),
            json!({ "action": "Accept", "content": { "confirm": true } }),
            json!({ "action": "decline", "content": { "confirm": true } }),
            json!({ "action": "cancel" }),
        ] {
            assert!(!said_yes(&no), "{no}");
        }
    }

    #[test]
    fn a_seal_is_of_one_question_of_this_process_for_a_while_and_counts_once() {
        let (seal, at) = (Seal::new(), 1_000);
        let mark = seal.of("cancel 1", at);
        assert!(!seal.takes(&mark, "cancel 2", 7, at), "another question");
        assert!(!seal.takes(&mark, "cancel 1", 7, at + PATIENCE.as_secs() + 1), "too old");
        assert!(!Seal::new().takes(&mark, "cancel 1", 7, at), "another process");
        let later = mark.replacen(|c: char| c.is_ascii_digit(), "9", 1);
        let (until, tag) = (mark.split('.').next().unwrap(), mark.rsplit('.').next().unwrap());
        let other = format!("{until}.{}.{tag}", Uuid::now_v7().simple());
        for wrong in ["", ".", "..", "1300", "1300.", "x.y.z", &later, &other, &format!("{mark}A")] {
            assert!(!seal.takes(wrong, "cancel 1", 7, at), "{wrong}");
        }
        assert!(seal.takes(&mark, "cancel 1", 7, at + PATIENCE.as_secs()));
        assert!(!seal.takes(&mark, "cancel 1", 7, at), "answered already");
        assert!(seal.takes(&seal.of("cancel 1", at), "cancel 1", 7, at), "asked anew");
        let blind = || Seal { key: None, answered: Mutex::default() };
        assert!(!blind().takes(&blind().of("cancel 1", at), "cancel 1", 7, at), "without randomness");
    }

    #[test]
    fn answers_are_remembered_up_to_a_bound_and_forgotten_when_they_are_too_old() {
        let (seal, at) = (Seal::new(), 1_000);
        let fill = |owner: u64, number: usize| {
            let mut answered = seal.answered.lock().unwrap();
            answered.insert(owner, (0..number).map(|_| (Uuid::now_v7(), at)).collect());
        };
        fill(7, MAX_ANSWERED_OF_ONE);
        assert!(!seal.takes(&seal.of("x", at), "x", 7, at), "nothing is taken that could be taken again");
        assert!(seal.takes(&seal.of("x", at), "x", 8, at), "of others it is");
        (10..30).for_each(|owner| fill(owner, MAX_ANSWERED_OF_ONE));
        assert!(!seal.takes(&seal.of("x", at), "x", 9, at), "all places are taken");
        assert!(seal.takes(&seal.of("x", at + 1), "x", 7, at + 1));
        let left: usize = seal.answered.lock().unwrap().values().map(HashMap::len).sum();
        assert_eq!(left, 2, "this one and the other that is not too old");
    }
}
