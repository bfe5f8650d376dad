//! A server asks a person something in the middle of a call. The question goes to the task that called; the answer is
//! checked against the schema that the server sent, and asked for again where it does not fit. Nobody answers in time: the
//! server is told `cancel`.
//!
//! A page that the server wants somebody to open is only shown, with its host, and never opened from here.

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction};
use serde_json::{Map, Value, json};
use std::time::Duration;

use super::{
    events::Question,
    text,
    underway::{DOUBTFUL, Meant, Underway},
};

/// How long a person has. A call holds a place of its server meanwhile.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

/// How often an answer that does not fit is asked for again.
const MAX_ROUNDS: u32 = 3;

/// Longest message of a server, in characters.
const MAX_MESSAGE_CHARS: usize = 2_000;

/// Largest schema that is shown, as JSON.
const MAX_SCHEMA_BYTES: usize = 16 * 1024;

/// Has a person asked, through the call that the question belongs to. One that may be about a call that was given up is
/// declined: it would reach somebody else, whose answer the server would take for that of who called.
pub(super) async fn ask(server: &str, underway: &Underway, meant: Meant, params: &ElicitRequestParams) -> ElicitResult {
    let cancel = ElicitResult::new(ElicitationAction::Cancel);
    if meant == Meant::Doubtful {
        underway.not_asked().note(server, DOUBTFUL);
        return ElicitResult::new(ElicitationAction::Decline);
    }
    let asked = match Asked::read(server, params) {
        Ok(asked) => asked,
        Err(why) => {
            underway.not_asked().note(server, &why);
            return ElicitResult::new(ElicitationAction::Decline);
        }
    };
    let answered = tokio::time::timeout(ANSWER_WITHIN, async {
        let mut complaint = String::new();
        for _ in 0..MAX_ROUNDS {
            let (question, answer) = Question::new(format!("{complaint}{}", asked.text), asked.details.clone());
            let _asking = underway.asks(meant, question)?;
            match asked.judge(&answer.await.ok()?) {
                Ok(result) => return Some(result),
                Err(why) => complaint = format!("That answer does not fit: {why}.\n"),
            }
        }
        None
    });
    answered.await.ok().flatten().unwrap_or(cancel)
}

/// A question, read.
struct Asked {
    text: String,
    details: Value,
    /// None for a page that is to be opened.
    schema: Option<Value>,
}

impl Asked {
    fn read(server: &str, params: &ElicitRequestParams) -> Result<Self, String> {
        match params {
            ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
                let message = text::plain(message, MAX_MESSAGE_CHARS);
                let schema = serde_json::to_value(requested_schema).map_err(|error| format!("its schema: {error}"))?;
                if schema.to_string().len() > MAX_SCHEMA_BYTES {
                    return Err(format!("its schema has more than {MAX_SCHEMA_BYTES} bytes"));
                }
                let schema = text::plain_schema(schema)?;
                let text = format!(
                    "MCP server {server} asks:\n{message}\nAnswer with a JSON object for this schema, or \"decline\" or \
                     \"cancel\":\n{schema}"
                );
                let details = json!({ "message": message, "mode": "form", "schema": schema, "server": server });
                Ok(Self { text, details, schema: Some(schema) })
            }
            ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
                let message = text::plain(message, MAX_MESSAGE_CHARS);
                if let Some(why) = text::bad_uri(url) {
                    return Err(why);
                }
                let parsed = reqwest::Url::parse(url).map_err(|error| format!("its URL: {error}"))?;
                let Some(host) = parsed.host_str().filter(|_| parsed.scheme() == "https") else {
                    return Err("its URL is not https".to_owned());
                };
                if !parsed.username().is_empty() || parsed.password().is_some() {
                    return Err("its URL has a user in front of the host, which would be taken for the host".to_owned());
                }
                let text = format!(
                    "MCP server {server} asks:\n{message}\nIt wants you to open a page of {host}. Nothing is opened for \
                     you; look at the host before you do:\n{parsed}\nAnswer \"done\" when you have, or \"decline\" or \
                     \"cancel\"."
                );
                let details = json!({ "host": host, "message": message, "mode": "url", "server": server, "url": parsed.as_str() });
                Ok(Self { text, details, schema: None })
            }
            // Kinds of later revisions.
            _ => Err("it is of a kind that is not known".to_owned()),
        }
    }

    /// What an answer says to the server.
    ///
    /// # Errors
    /// Why it does not fit.
    fn judge(&self, answer: &str) -> Result<ElicitResult, String> {
        let answer = answer.trim();
        match answer.to_lowercase().as_str() {
            "decline" => return Ok(ElicitResult::new(ElicitationAction::Decline)),
            "cancel" => return Ok(ElicitResult::new(ElicitationAction::Cancel)),
            "done" | "yes" | "accept" if self.schema.is_none() => {
                return Ok(ElicitResult::new(ElicitationAction::Accept));
            }
            _ => {}
        }
        let Some(schema) = &self.schema else { return Err("it is none of done, decline, cancel".to_owned()) };
        let content = content(answer, schema)?;
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(content)))
    }
}

/// The answer as an object that fits. Where there is only one thing to say, it may be said without the object around it.
fn content(answer: &str, schema: &Value) -> Result<Map<String, Value>, String> {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let mut said = match (serde_json::from_str(answer), properties.iter().next()) {
        (Ok(Value::Object(said)), _) => said,
        (other, Some((name, property))) if properties.len() == 1 => {
            let value = match (property["type"].as_str(), other) {
                (Some("string") | None, _) | (_, Err(_)) => Value::String(answer.to_owned()),
                (Some(_), Ok(value)) => value,
            };
            Map::from_iter([(name.clone(), value)])
        }
        _ => return Err("it is no JSON object".to_owned()),
    };
    for (name, property) in properties {
        if let (false, default) = (said.contains_key(name), &property["default"])
            && !default.is_null()
        {
            said.insert(name.clone(), default.clone());
        }
    }
    let mut required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(missing) = required.find(|name| !said.contains_key(*name)) {
        return Err(format!("{missing:?} is missing"));
    }
    for (name, value) in &said {
        let Some(property) = properties.get(name) else { return Err(format!("there is no {name:?} in the schema")) };
        fits(value, property).map_err(|why| format!("{name:?} {why}"))?;
    }
    Ok(said)
}

/// Whether a value fits the schema of a property: these are flat and primitive.
fn fits(value: &Value, schema: &Value) -> Result<(), String> {
    let choices = choices(schema);
    if !choices.is_empty() && !choices.contains(&value) {
        let choices: Vec<String> = choices.iter().map(|choice| choice.to_string()).collect();
        return Err(format!("is none of {}", choices.join(", ")));
    }
    let bound = |key: &str| schema[key].as_u64().and_then(|bound| usize::try_from(bound).ok());
    match (schema["type"].as_str().unwrap_or("string"), value) {
        ("string", Value::String(text)) => {
            let length = text.chars().count();
            within(length, bound("minLength"), bound("maxLength"), "characters")?;
            if text.is_empty() || is_of_format(text, schema["format"].as_str()) {
                return Ok(());
            }
            Err(format!("is no {}", schema["format"].as_str().unwrap_or_default()))
        }
        ("integer", Value::Number(number)) if number.as_f64().is_none_or(|number| number.fract() != 0.0) => {
            Err("is no whole number".to_owned())
        }
        ("number" | "integer", Value::Number(number)) => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            let (least, most) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
            if least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most) {
                return Err(format!("is {number}, outside of {} to {}", schema["minimum"], schema["maximum"]));
            }
            Ok(())
        }
        ("boolean", Value::Bool(_)) => Ok(()),
        ("array", Value::Array(items)) => {
            within(items.len(), bound("minItems"), bound("maxItems"), "items")?;
            items.iter().try_for_each(|item| fits(item, &schema["items"]))
        }
        (kind, _) => Err(format!("is no {kind}")),
    }
}

fn choices(schema: &Value) -> Vec<&Value> {
    let listed = schema["enum"].as_array().into_iter().flatten();
    let titled = ["oneOf", "anyOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
    listed.chain(titled.filter_map(|choice| choice.get("const"))).collect()
}

fn within(count: usize, least: Option<usize>, most: Option<usize>, what: &str) -> Result<(), String> {
    match (least, most) {
        (Some(least), _) if count < least => Err(format!("has {count} {what}, at least {least} are asked for")),
        (_, Some(most)) if count > most => Err(format!("has {count} {what}, at most {most} are allowed")),
        (Some(_) | None, Some(_) | None) => Ok(()),
    }
}

fn is_of_format(text: &str, format: Option<&str>) -> bool {
    let is_date = |text: &str| {
        let parts: Vec<&str> = text.split('-').collect();
        let number = |at: usize, length: usize| {
            parts.get(at).filter(|part| part.len() == length).and_then(|part| part.parse::<u32>().ok())
        };
        parts.len() == 3
            && number(0, 4).is_some()
            && number(1, 2).is_some_and(|month| (1..=12).contains(&month))
            && number(2, 2).is_some_and(|day| (1..=31).contains(&day))
    };
    match format {
        Some("email") => text.split_once('@').is_some_and(|(user, host)| {
            !user.is_empty() && host.contains('.') && !host.contains('@') && !text.contains(char::is_whitespace)
        }),
        Some("uri") => reqwest::Url::parse(text).is_ok(),
        Some("date") => is_date(text),
        Some("date-time") => {
            text.split_once(['T', 't', ' ']).is_some_and(|(date, time)| is_date(date) && time.len() >= 5)
        }
        Some(_) | None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp_connection::events::{CallEvent, CallEvents, channel};

    fn form(schema: Value) -> ElicitRequestParams {
        serde_json::from_value(json!({ "mode": "form", "message": "Who?\u{202e}", "requestedSchema": schema })).unwrap()
    }

    fn url(url: &str) -> ElicitRequestParams {
        let params = json!({ "mode": "url", "message": "Sign in", "url": url, "elicitationId": "1" });
        serde_json::from_value(params).unwrap()
    }

    fn name_and_age() -> Value {
        json!({ "type": "object", "required": ["name"], "properties": {
            "name": { "type": "string", "minLength": 2 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
        } })
    }

    fn judged(schema: Value, answer: &str) -> Result<Value, String> {
        let result = Asked::read("s", &form(schema)).unwrap().judge(answer)?;
        Ok(serde_json::to_value(result).unwrap())
    }

    #[test]
    fn an_answer_is_checked_against_the_schema() {
        let good = judged(name_and_age(), r#"{"name": "Ada", "age": 36}"#).unwrap();
        assert_eq!(good, json!({ "action": "accept", "content": { "age": 36, "name": "Ada" } }));
        for (answer, says) in [
            ("hello", "no JSON object"),
            (r#"{"age": 3}"#, "\"name\" is missing"),
            (r#"{"name": "A"}"#, "at least 2"),
            (r#"{"name": "Ada", "age": 3.5}"#, "whole number"),
            (r#"{"name": "Ada", "age": 151}"#, "outside"),
            (r#"{"name": "Ada", "age": "old"}"#, "is no integer"),
            (r#"{"name": "Ada", "admin": true}"#, "there is no \"admin\""),
        ] {
            let refused = judged(name_and_age(), answer).unwrap_err();
            assert!(refused.contains(says), "{answer}: {refused}");
        }
        assert_eq!(judged(name_and_age(), " Decline ").unwrap(), json!({ "action": "decline" }));
    }

    #[test]
    fn where_there_is_one_thing_to_say_the_object_may_be_left_out() {
        let one = |property: Value| json!({ "type": "object", "properties": { "x": property } });
        let accepted = |value: Value| json!({ "action": "accept", "content": { "x": value } });
        assert_eq!(judged(one(json!({ "type": "string" })), "17").unwrap(), accepted(json!("17")));
        assert_eq!(judged(one(json!({ "type": "boolean" })), "true").unwrap(), accepted(json!(true)));
        let color = one(json!({ "type": "string", "enum": ["red", "blue"] }));
        assert_eq!(judged(color.clone(), "red").unwrap(), accepted(json!("red")));
        assert!(judged(color, "green").unwrap_err().contains("none of"));
        let mail = one(json!({ "type": "string", "format": "email" }));
        assert!(judged(mail.clone(), "nobody").is_err() && judged(mail, "a@b.example").is_ok());
    }

    #[test]
    fn a_page_is_shown_with_its_host_and_only_over_https() {
        let asked = Asked::read("s", &url("https://login.example/x?y=1")).unwrap();
        assert!(asked.text.contains("a page of login.example"), "{}", asked.text);
        assert_eq!(asked.details["host"], "login.example");
        assert!(asked.judge("what?").is_err());
        assert_eq!(serde_json::to_value(asked.judge("done").unwrap()).unwrap(), json!({ "action": "accept" }));
        for evil in
            ["http://login.example/", "javascript:alert(1)", "file:///etc", "https://bank.example@evil.example/"]
        {
            assert!(Asked::read("s", &url(evil)).is_err(), "{evil}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_fit_is_asked_for_again_and_silence_is_a_cancel() {
        let underway = Underway::default();
        let (events, mut heard) = channel();
        let noted = underway.admit(&events).await.unwrap();
        let params = form(name_and_age());
        let answering = async {
            let CallEvent::Asks(first) = heard.next().await else { panic!() };
            assert!(first.text.contains("Who?\u{fffd}"), "{}", first.text);
            first.answer("no".into());
            let CallEvent::Asks(second) = heard.next().await else { panic!() };
            assert!(second.text.starts_with("That answer does not fit"), "{}", second.text);
            second.answer(r#"{"name": "Ada"}"#.into());
        };
        let (result, ()) = tokio::join!(ask("s", &underway, noted.meant(), &params), answering);
        assert_eq!(result.action, ElicitationAction::Accept);

        let unanswered = ask("s", &underway, noted.meant(), &params).await;
        assert_eq!(unanswered.action, ElicitationAction::Cancel, "after {ANSWER_WITHIN:?}");
    }

    #[tokio::test]
    async fn a_question_that_comes_after_its_call_was_given_up_reaches_no_other_call() {
        let underway = Underway::default();
        let (events, mut heard) = channel();
        let _other = underway.admit(&events).await.unwrap();
        let declined = ask("s", &underway, Meant::Doubtful, &form(name_and_age())).await;
        assert_eq!(declined.action, ElicitationAction::Decline);
        assert!(heard.waiting().is_none());
    }

    #[tokio::test]
    async fn a_question_that_belongs_to_no_call_is_a_cancel_at_once() {
        let underway = Underway::default();
        let unheard = underway.admit(&CallEvents::default()).await.unwrap();
        for meant in [Meant::NoCall, unheard.meant()] {
            assert_eq!(ask("s", &underway, meant, &form(name_and_age())).await.action, ElicitationAction::Cancel);
        }
    }
}
