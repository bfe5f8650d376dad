//! Messages of A2E: one JSON object each, with a type, an id, a version and a time. What is sent says all its fields, and what
//! comes may leave out those that have a default.

use std::{collections::BTreeMap, fmt, time::SystemTime};

use serde_json::{Map, Value, json};

/// The version of the protocol.
pub(super) const VERSION: &str = "1.0";

/// Longest id of a message, and longest type: ids are remembered.
const MAX_ID_BYTES: usize = 128;

/// What is wrong, as agents and hosts tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    Parse,
    InvalidMessage,
    VersionMismatch,
    SchemaViolation,
    Busy,
    Runtime,
    UnknownTool,
    ServerNotFound,
    ServerUnavailable,
    ToolNotFound,
    ResourceNotFound,
    PromptNotFound,
    Transport,
    Protocol,
    SamplingRefused,
    CapabilityMissing,
}

impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Code::Parse => "parse_error",
            Code::InvalidMessage => "invalid_message",
            Code::VersionMismatch => "version_mismatch",
            Code::SchemaViolation => "schema_violation",
            Code::Busy | Code::Runtime => "runtime_error",
            Code::UnknownTool => "unknown_tool",
            Code::ServerNotFound => "mcp_server_not_found",
            Code::ServerUnavailable => "mcp_server_unavailable",
            Code::ToolNotFound => "mcp_tool_not_found",
            Code::ResourceNotFound => "mcp_resource_not_found",
            Code::PromptNotFound => "mcp_prompt_not_found",
            Code::Transport => "mcp_transport_error",
            Code::Protocol => "mcp_protocol_error",
            Code::SamplingRefused => "mcp_sampling_refused",
            Code::CapabilityMissing => "mcp_capability_missing",
        }
    }

    /// Whether the same again may work.
    pub fn is_retryable(self) -> bool {
        match self {
            Code::Busy | Code::ServerUnavailable | Code::Transport => true,
            Code::Parse
            | Code::InvalidMessage
            | Code::VersionMismatch
            | Code::SchemaViolation
            | Code::Runtime
            | Code::UnknownTool
            | Code::ServerNotFound
            | Code::ToolNotFound
            | Code::ResourceNotFound
            | Code::PromptNotFound
            | Code::Protocol
            | Code::SamplingRefused
            | Code::CapabilityMissing => false,
        }
    }
}

/// Why a request came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

/// A message that came.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Incoming {
    pub kind: String,
    pub id: String,
    body: Map<String, Value>,
}

/// Reads a message.
///
/// # Errors
/// The id of what came, as far as it has one, and what is wrong.
pub(super) fn parse(bytes: &[u8]) -> Result<Incoming, (String, Failure)> {
    let unreadable = |error| (String::new(), Failure::new(Code::Parse, format!("the message is no JSON: {error}")));
    let no_object = || (String::new(), Failure::new(Code::InvalidMessage, "the message is no JSON object"));
    let value: Value = serde_json::from_slice(bytes).map_err(unreadable)?;
    let Value::Object(body) = value else { return Err(no_object()) };
    let short = |key: &str| match body.get(key) {
        Some(Value::String(text)) if !text.is_empty() && text.len() <= MAX_ID_BYTES => Ok(text.clone()),
        Some(_) => Err(format!("{key} has to be a text of 1 to {MAX_ID_BYTES} bytes")),
        None => Err(format!("{key} is missing")),
    };
    let id = short("id").map_err(|why| (String::new(), Failure::new(Code::InvalidMessage, why)))?;
    let kind = short("type").map_err(|why| (id.clone(), Failure::new(Code::InvalidMessage, why)))?;
    // One page of the specification calls the field `a2e`.
    let version = body.get("version").or_else(|| body.get("a2e"));
    if version.is_some_and(|version| !is_spoken(version)) {
        let shown = towline_a2a::shortened(&version.map(Value::to_string).unwrap_or_default());
        let why = format!("version {shown} is not spoken here; {VERSION} is");
        return Err((id, Failure::new(Code::VersionMismatch, why)));
    }
    Ok(Incoming { kind, id, body })
}

fn is_spoken(version: &Value) -> bool {
    version.as_str().is_some_and(|version| version == "1" || version.starts_with("1."))
}

impl Incoming {
    fn wrong<T>(&self, field: &str, should: &str) -> Result<T, Failure> {
        Err(Failure::new(Code::SchemaViolation, format!("{field} of {} has to be {should}", self.kind)))
    }

    fn field(&self, name: &str) -> Option<&Value> {
        self.body.get(name).filter(|value| !value.is_null())
    }

    /// A text; empty where there is none.
    pub fn text(&self, field: &str) -> Result<&str, Failure> {
        match self.field(field) {
            None => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(_) => self.wrong(field, "a text"),
        }
    }

    /// A text that has to be there.
    pub fn needed(&self, field: &str) -> Result<&str, Failure> {
        match self.text(field)? {
            "" => self.wrong(field, "there"),
            text => Ok(text),
        }
    }

    pub fn flag(&self, field: &str, default: bool) -> Result<bool, Failure> {
        match self.field(field) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => self.wrong(field, "true or false"),
        }
    }

    /// A whole number of at least zero.
    pub fn number(&self, field: &str, default: u64) -> Result<u64, Failure> {
        match self.field(field) {
            None => Ok(default),
            Some(value) => value.as_u64().map_or_else(|| self.wrong(field, "a whole number of at least 0"), Ok),
        }
    }

    /// An object; empty where there is none.
    pub fn object(&self, field: &str) -> Result<Map<String, Value>, Failure> {
        match self.field(field) {
            None => Ok(Map::new()),
            Some(Value::Object(object)) => Ok(object.clone()),
            Some(_) => self.wrong(field, "an object"),
        }
    }

    pub fn texts(&self, field: &str) -> Result<Vec<String>, Failure> {
        match self.field(field).map(texts) {
            None => Ok(Vec::new()),
            Some(Some(texts)) => Ok(texts),
            Some(None) => self.wrong(field, "a list of texts"),
        }
    }

    /// The configuration of a server: its fields as those of a message.
    pub fn config(&self) -> Result<Incoming, Failure> {
        Ok(Incoming { kind: "config".to_owned(), id: self.id.clone(), body: self.object("config")? })
    }

    /// Names with texts.
    pub fn pairs(&self, field: &str) -> Result<BTreeMap<String, String>, Failure> {
        let pair = |(name, value): (String, Value)| match value {
            Value::String(text) => Ok((name, text)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                self.wrong(field, "an object of texts")
            }
        };
        self.object(field)?.into_iter().map(pair).collect()
    }

    /// The message as it came, but for its head.
    pub fn take(&self, fields: &[&str]) -> Map<String, Value> {
        fields.iter().filter_map(|name| Some(((*name).to_owned(), self.field(name)?.clone()))).collect()
    }

    /// Whether there is such a field.
    pub fn has(&self, field: &str) -> bool {
        self.field(field).is_some()
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// The time of a message, in seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A message of this host, with the fields of an object.
pub(super) fn outgoing(kind: &str, fields: Value) -> Value {
    let mut message = json!({
        "id": uuid::Uuid::new_v4().simple().to_string(),
        "ts": now(),
        "type": kind,
        "version": VERSION,
    });
    if let (Some(message), Value::Object(fields)) = (message.as_object_mut(), fields) {
        message.extend(fields);
    }
    message
}

/// The answer to the message of an id.
pub(super) fn answer(kind: &str, to: &str, mut fields: Value) -> Value {
    fields["req_id"] = to.into();
    outgoing(kind, fields)
}

/// The message of an id came to nothing. Without an id nothing was asked that is known.
pub(super) fn error(to: &str, failure: &Failure) -> Value {
    let Failure { code, message } = failure;
    let fields = json!({
        "capability_name": "mcp",
        "code": code.as_str(),
        "detail": {},
        "message": message,
        "retryable": code.is_retryable(),
    });
    answer("error", to, fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<Incoming, (String, Failure)> {
        parse(value.to_string().as_bytes())
    }

    #[test]
    fn both_names_of_the_version_are_read_and_another_version_is_said() {
        for spoken in [json!({ "version": "1.0" }), json!({ "a2e": "1.7" }), json!({})] {
            let mut message = json!({ "type": "ping", "id": "1" });
            message.as_object_mut().unwrap().extend(spoken.as_object().cloned().unwrap());
            assert!(read(message).is_ok());
        }
        for version in [json!("2.0"), json!(1), json!("")] {
            let (id, refused) = read(json!({ "type": "ping", "id": "1", "version": version })).unwrap_err();
            assert_eq!((id.as_str(), refused.code), ("1", Code::VersionMismatch));
        }
    }

    #[test]
    fn what_is_no_message_is_refused_under_the_id_that_it_has() {
        for (wrong, id, code) in [
            (json!([]), "", Code::InvalidMessage),
            (json!({ "type": "ping" }), "", Code::InvalidMessage),
            (json!({ "id": "" , "type": "ping" }), "", Code::InvalidMessage),
            (json!({ "id": "x".repeat(129), "type": "ping" }), "", Code::InvalidMessage),
            (json!({ "id": "7" }), "7", Code::InvalidMessage),
            (json!({ "id": "7", "type": 3 }), "7", Code::InvalidMessage),
        ] {
            let (found, refused) = read(wrong.clone()).unwrap_err();
            assert_eq!((found.as_str(), refused.code), (id, code), "{wrong}");
        }
        assert_eq!(parse(b"{").unwrap_err().1.code, Code::Parse);
    }

    #[test]
    fn a_field_that_is_missing_or_null_has_its_default_and_one_of_another_type_is_said() {
        let message =
            read(json!({ "id": "1", "type": "x", "a": null, "n": -1, "l": ["a", 1], "m": { "k": 1 } })).unwrap();
        assert_eq!((message.text("a").unwrap(), message.flag("b", true).unwrap()), ("", true));
        assert_eq!((message.number("c", 30).unwrap(), message.texts("d").unwrap().len()), (30, 0));
        assert!(message.needed("a").unwrap_err().message.contains("a of x has to be there"));
        let refused = [
            message.number("n", 0).unwrap_err(),
            message.texts("l").unwrap_err(),
            message.pairs("m").unwrap_err(),
            message.text("l").unwrap_err(),
            message.flag("n", true).unwrap_err(),
            message.object("l").unwrap_err(),
        ];
        assert!(refused.iter().all(|refused| refused.code == Code::SchemaViolation), "{refused:?}");
    }

    #[test]
    fn what_is_sent_says_which_message_it_answers() {
        let failure = Failure::new(Code::ServerUnavailable, "it rests");
        let sent = error("7", &failure);
        assert_eq!((&sent["type"], &sent["req_id"], &sent["retryable"]), (&json!("error"), &json!("7"), &json!(true)));
        assert_eq!((&sent["code"], &sent["version"]), (&json!("mcp_server_unavailable"), &json!("1.0")));
        assert!(sent["ts"].is_f64() && sent["id"].as_str().is_some_and(|id| id.len() == 32));
    }
}
