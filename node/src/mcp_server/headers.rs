//! What the head of a request says of its body, in the revision without sessions: proxies decide by that, so it has to be true.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::HeaderMap;
use serde_json::Value;

use super::message::{Request, RpcError};

/// What stands around a value that no header can carry as it is.
const ENCODED: (&str, &str) = ("=?base64?", "?=");

/// The one value of a header; none where there is none.
///
/// # Errors
/// When there are several, or it is no text.
pub(super) fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, RpcError> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(RpcError::header_mismatch(format!("the header {name} is there more than once")));
    }
    let text = first.to_str().map_err(|_| RpcError::header_mismatch(format!("the header {name} is no text")))?;
    Ok(Some(text.trim()))
}

/// Whether the head of a request says what its body says.
///
/// # Errors
/// What differs.
pub(super) fn check(headers: &HeaderMap, request: &Request) -> Result<(), RpcError> {
    let method = one(headers, "mcp-method")?;
    if method != Some(request.method.as_str()) {
        return Err(differs("Mcp-Method", method, &request.method));
    }
    let Some(expected) = name_of(request) else { return Ok(()) };
    let shown = one(headers, "mcp-name")?;
    let decoded = shown.map(decoded).transpose()?;
    if decoded.as_deref() == Some(expected) { Ok(()) } else { Err(differs("Mcp-Name", shown, expected)) }
}

/// Whether the header of an argument says what the body says. One that no call can have a header of is not looked at.
///
/// # Errors
/// What differs.
pub(super) fn check_parameter(headers: &HeaderMap, of: &str, value: Option<&Value>) -> Result<(), RpcError> {
    let name = format!("mcp-param-{}", of.to_ascii_lowercase());
    if http::HeaderName::try_from(&name).is_err() {
        return Ok(());
    }
    let expected = match value {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => Some(other.to_string()),
    };
    let shown = one(headers, &name)?;
    let said = shown.map(decoded).transpose()?;
    let is_same_number = || {
        let number = |text: &Option<String>| text.as_ref()?.parse::<f64>().ok();
        value.is_some_and(Value::is_number) && number(&said).is_some_and(|said| number(&expected) == Some(said))
    };
    if said == expected || is_same_number() {
        return Ok(());
    }
    Err(differs(&format!("Mcp-Param-{of}"), shown, expected.as_deref().unwrap_or_default()))
}

fn differs(header: &str, shown: Option<&str>, expected: &str) -> RpcError {
    let expected = towline_a2a::shortened(expected);
    RpcError::header_mismatch(match shown {
        None => format!("the header {header} is missing; the body says {expected:?}"),
        Some(shown) => {
            let shown = towline_a2a::shortened(shown);
            format!("the header {header} is {shown:?}, and the body says {expected:?}")
        }
    })
}

/// What a request is about, by name.
fn name_of(request: &Request) -> Option<&str> {
    let key = match request.method.as_str() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    };
    request.params.get(key).and_then(Value::as_str)
}

fn decoded(value: &str) -> Result<String, RpcError> {
    let inner = value.strip_prefix(ENCODED.0).and_then(|rest| rest.strip_suffix(ENCODED.1));
    let Some(inner) = inner else { return Ok(value.to_owned()) };
    let bytes = BASE64_STANDARD.decode(inner).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    bytes.ok_or_else(|| RpcError::header_mismatch("a header is not base64 of a text"))
}

/// The value as a header can carry it.
pub(super) fn encoded(value: &str) -> String {
    let is_plain = value.chars().all(|c| matches!(c, ' '..='~'))
        && value.trim() == value
        && !value.is_empty()
        && !(value.starts_with(ENCODED.0) && value.ends_with(ENCODED.1));
    if is_plain { value.to_owned() } else { format!("{}{}{}", ENCODED.0, BASE64_STANDARD.encode(value), ENCODED.1) }
}

/// The headers that go with a request: name and value.
pub(super) fn of(request: &Request) -> Vec<(&'static str, String)> {
    let mut headers = vec![("mcp-method", encoded(&request.method))];
    headers.extend(name_of(request).map(|name| ("mcp-name", encoded(name))));
    headers
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(name: &str) -> Request {
        let params = json!({ "name": name }).as_object().cloned().unwrap();
        Request { id: json!(1), method: "tools/call".into(), params }
    }

    fn headers(values: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn the_head_has_to_say_what_the_body_says() {
        let right = [("mcp-method", "tools/call"), ("mcp-name", "get_task")];
        assert!(check(&headers(&right), &call("get_task")).is_ok());
        assert!(check(&headers(&[right[0], ("mcp-name", "  get_task ")]), &call("get_task")).is_ok());
        for wrong in [
            &[][..],
            &right[..1],
            &[("mcp-method", "TOOLS/CALL"), right[1]],
            &[right[0], ("mcp-name", "other")],
            &[right[0], right[0], right[1]],
            &[right[0], ("mcp-name", "=?base64?!!?=")],
        ] {
            assert!(check(&headers(wrong), &call("get_task")).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_header_of_an_argument_has_to_say_what_the_body_says() {
        let of = |value: &str| headers(&[("mcp-param-region", value)]);
        let says = |headers: &HeaderMap, value: Value| check_parameter(headers, "Region", Some(&value)).is_ok();
        assert!(says(&of("us-west1"), json!("us-west1")) && says(&of("=?base64?SGVsbG8=?="), json!("Hello")));
        assert!(says(&of("1.0"), json!(1)) && says(&of("true"), json!(true)));
        assert!(says(&HeaderMap::new(), Value::Null), "what is not there is not said");
        assert!(!says(&of("eu"), json!("us-west1")) && !says(&HeaderMap::new(), json!("x")));
        assert!(!says(&of("x"), Value::Null) && !says(&of("1"), json!("1.0")));
        for wrong in ["=?base64?SGVsbG8?=", "=?base64?SGVs!!!bG8=?="] {
            assert!(!says(&of(wrong), json!("Hello")), "{wrong}");
        }
    }

    #[test]
    fn a_name_that_no_header_can_carry_is_encoded_and_read_again() {
        for name in ["get_task", "Grüße", " blank ", "=?base64?x?=", ""] {
            let shown = encoded(name);
            assert_eq!(decoded(&shown).unwrap(), name);
            assert!(check(&headers(&[("mcp-method", "tools/call"), ("mcp-name", &shown)]), &call(name)).is_ok());
        }
    }
}
