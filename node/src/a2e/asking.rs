//! What a server asks of the agent: a completion, and the roots that it may use. The session is asked whose call the request is
//! about; where that is not known, the one of its owner that was used last.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, json};
use towline_actors::mcp_connection::{HostAsk, Wanted};

use super::{
    Bridge,
    message::{Code, Failure, Incoming, outgoing},
    servers::Key,
    session::Session,
};

/// How long an agent has for a completion, at most as long as the server waits.
const COMPLETE_WITHIN: Duration = Duration::from_secs(300);

/// How long an agent has to say which roots it shows: servers ask for them before they do anything else.
const ROOTS_WITHIN: Duration = Duration::from_secs(10);

/// The kinds of answers.
pub(super) const SAMPLED: &str = "mcp/sample/resp";
pub(super) const ROOTS: &str = "mcp/root/list/resp";

/// Passes on what a server asks, in a task of the session that is asked.
pub(super) fn pass_on(bridge: &Arc<Bridge>, server: &Key, ask: HostAsk) {
    let Some(session) = session_for(bridge, server, &ask) else {
        return refuse(ask, "no agent is there to be asked");
    };
    let id = server.id.clone();
    let over = session.over.clone();
    let tracker = session.work.clone();
    tracker.spawn(async move {
        tokio::select! {
            () = asked(&session, &id, ask) => {}
            () = over.cancelled() => {}
        }
    });
}

/// Without an agent there are no roots, which is an answer; a completion nobody can make.
fn refuse(ask: HostAsk, why: &str) {
    let answer = match ask.wanted {
        Wanted::Roots => Ok(json!({ "roots": [] })),
        Wanted::Completion(_) => Err(Failure::new(Code::SamplingRefused, why).to_string()),
    };
    ask.answer(answer);
}

fn session_for(bridge: &Bridge, server: &Key, ask: &HostAsk) -> Option<Arc<Session>> {
    let owner = server.owner.as_ref()?;
    let sessions = bridge.sessions.all().into_iter().filter(|session| session.owner == *owner && session.has_mcp());
    let sessions: Vec<Arc<Session>> = sessions.collect();
    let calls = sessions.iter().find(|session| ask.caller.as_ref() == Some(&session.id));
    calls.or_else(|| sessions.iter().max_by_key(|session| session.used())).cloned()
}

async fn asked(session: &Arc<Session>, server: &str, mut ask: HostAsk) {
    let (message, kind, within) = match &ask.wanted {
        Wanted::Completion(params) => (sample(server, &ask.request, params), SAMPLED, COMPLETE_WITHIN),
        Wanted::Roots => {
            let fields = json!({ "mcp_request_id": ask.request, "server_id": server });
            (outgoing("mcp/root/list/req", fields), ROOTS, ROOTS_WITHIN)
        }
    };
    let id = message["id"].as_str().unwrap_or_default();
    let Some(expected) = session.expect(id, kind, (server, &ask.request)) else {
        return refuse(ask, "the agent is asked too much");
    };
    session.say(&message);
    let answer = tokio::select! {
        answer = expected.within(within) => answer,
        () = ask.is_over() => return,
    };
    let Some(answer) = answer else { return refuse(ask, "the agent has not answered in time") };
    match &ask.wanted {
        Wanted::Completion(_) => ask.answer(completion(&answer).map_err(|refused| refused.to_string())),
        Wanted::Roots => ask.answer(Ok(roots(&answer))),
    }
}

fn sample(server: &str, request: &str, params: &Value) -> Value {
    let or = |field: &str, default: Value| {
        if params[field].is_null() { default } else { params[field].clone() }
    };
    let fields = json!({
        "include_context": or("includeContext", "none".into()),
        "max_tokens": or("maxTokens", 1024.into()),
        "mcp_request_id": request,
        "messages": or("messages", json!([])),
        "metadata": or("metadata", json!({})),
        "model_preferences": or("modelPreferences", json!({})),
        "server_id": server,
        "stop_sequences": or("stopSequences", json!([])),
        "system_prompt": or("systemPrompt", "".into()),
        "temperature": or("temperature", json!(1.0)),
    });
    outgoing("mcp/sample/req", fields)
}

/// What the agent says, as the server wants it.
fn completion(answer: &Incoming) -> Result<Value, Failure> {
    let refused = |why: &str| Failure::new(Code::SamplingRefused, format!("the agent refused: {why}"));
    if answer.kind == "error" {
        return Err(refused(answer.text("message").unwrap_or_default()));
    }
    match answer.text("error")? {
        "" => {}
        why => return Err(refused(why)),
    }
    let content = answer.object("content")?;
    if content.is_empty() {
        return Err(Failure::new(Code::SamplingRefused, "the agent's answer has no content"));
    }
    let or = |field: &str, default: &str| -> Result<String, Failure> {
        let text = answer.text(field)?;
        Ok(if text.is_empty() { default.to_owned() } else { text.to_owned() })
    };
    let mut result = json!({ "content": content, "model": or("model", "unknown")?, "role": or("role", "assistant")? });
    let reason = answer.text("stop_reason")?;
    if !reason.is_empty() {
        result["stopReason"] = reason.into();
    }
    Ok(result)
}

/// The roots that the agent shows; what is none is left out.
fn roots(answer: &Incoming) -> Value {
    let listed = answer.take(&["roots"]).remove("roots").unwrap_or_default();
    let root = |root: &Value| {
        let uri = root["uri"].as_str().filter(|uri| !uri.is_empty())?;
        let mut shown = Map::from_iter([("uri".to_owned(), Value::from(uri))]);
        if let Some(name) = root["name"].as_str().filter(|name| !name.is_empty()) {
            shown.insert("name".to_owned(), name.into());
        }
        Some(Value::Object(shown))
    };
    let roots: Vec<Value> = listed.as_array().into_iter().flatten().filter_map(root).collect();
    json!({ "roots": roots })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2e::message::parse;

    fn read(mut fields: Value) -> Incoming {
        fields["id"] = "1".into();
        parse(fields.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_request_for_a_completion_says_all_its_fields() {
        let bare = sample("fs", "7", &json!({ "messages": [{ "role": "user" }], "maxTokens": 9 }));
        for (field, value) in [
            ("include_context", json!("none")),
            ("max_tokens", json!(9)),
            ("mcp_request_id", json!("7")),
            ("messages", json!([{ "role": "user" }])),
            ("metadata", json!({})),
            ("model_preferences", json!({})),
            ("server_id", json!("fs")),
            ("stop_sequences", json!([])),
            ("system_prompt", json!("")),
            ("temperature", json!(1.0)),
        ] {
            assert_eq!(bare[field], value, "{field}");
        }
    }

    #[test]
    fn a_refusal_is_an_error_for_the_server_and_an_answer_is_passed_on() {
        let said = json!({ "type": SAMPLED, "content": { "type": "text", "text": "4" }, "stop_reason": "endTurn" });
        let passed = completion(&read(said)).unwrap();
        assert_eq!((&passed["role"], &passed["stopReason"]), (&json!("assistant"), &json!("endTurn")));
        for refusal in [
            json!({ "type": SAMPLED, "error": "no" }),
            json!({ "type": SAMPLED, "content": {} }),
            json!({ "type": "error", "message": "no", "code": "mcp_sampling_refused" }),
        ] {
            assert_eq!(completion(&read(refusal)).unwrap_err().code, Code::SamplingRefused);
        }
        assert!(completion(&read(json!({ "type": SAMPLED, "content": "text" }))).is_err());
    }

    #[test]
    fn roots_are_what_has_a_uri() {
        let said = json!({ "type": ROOTS, "roots": [{ "uri": "file:///a", "name": "a", "x": 1 }, { "name": "b" }, 3] });
        assert_eq!(roots(&read(said)), json!({ "roots": [{ "name": "a", "uri": "file:///a" }] }));
        assert_eq!(roots(&read(json!({ "type": ROOTS, "roots": "none" }))), json!({ "roots": [] }));
    }
}
