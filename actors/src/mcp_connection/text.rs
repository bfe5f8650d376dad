//! Text that a server says of itself – names, descriptions, instructions – made harmless to look at: what is invisible or
//! turns the reading direction is shown as `U+FFFD`, and what is too long is cut.
//!
//! Results are not touched here: they are data, and stand in a fence.

use serde_json::Value;

use crate::prompt;

/// Deepest nesting of a schema: deeper ones exhaust who validates them.
const MAX_SCHEMA_DEPTH: usize = 32;

/// Largest schema of one tool, as JSON: it is sent with each request to a model.
const MAX_SCHEMA_BYTES: usize = 64 * 1024;

/// Longest name of a tool, resource or prompt, in bytes.
pub(super) const MAX_NAME_BYTES: usize = 128;

/// Longest URI of a resource, in bytes.
pub(super) const MAX_URI_BYTES: usize = 2_048;

/// A text with nothing hidden in it, of at most `most` characters.
pub(super) fn plain(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if is_hidden(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// The same on one line.
pub fn plain_line(text: &str, most: usize) -> String {
    plain(text, most).replace(['\n', '\t'], " ")
}

/// Characters that a person does not see, or that make a person see something else than a model reads.
pub(super) fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{00ad}' | '\u{061c}' | '\u{180e}' | '\u{feff}' => true,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        '\u{fff9}'..='\u{fffb}' | '\u{fe00}'..='\u{fe0d}' | '\u{e0000}'..='\u{e01ef}' => true,
        c => c.is_control(),
    }
}

/// Why a name cannot be offered; none if it can. Models and terminals get to see it.
pub(super) fn bad_name(name: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Some(format!("its name has {} bytes, 1 to {MAX_NAME_BYTES} are allowed", name.len()));
    }
    let odd = name.chars().find(|c| !is_plain(*c))?;
    Some(format!("its name has {odd:?}, and only letters, digits, '_', '-', '.' and '/' are allowed"))
}

/// Why a URI cannot be offered; none if it can.
pub(crate) fn bad_uri(uri: &str) -> Option<String> {
    if uri.is_empty() || uri.len() > MAX_URI_BYTES {
        return Some(format!("its URI has {} bytes, 1 to {MAX_URI_BYTES} are allowed", uri.len()));
    }
    let odd = uri.chars().find(|c| is_hidden(*c) || c.is_whitespace())?;
    Some(format!("its URI has {odd:?}"))
}

/// The schema with nothing hidden in its texts.
///
/// # Errors
/// Why it is refused: it is too large, too deep, or has hidden characters in the name of a property.
pub(super) fn plain_schema(schema: Value) -> Result<Value, String> {
    let bytes = schema.to_string().len();
    if bytes > MAX_SCHEMA_BYTES {
        return Err(format!("its schema has {bytes} bytes, {MAX_SCHEMA_BYTES} are allowed"));
    }
    cleaned(schema, 0)
}

fn cleaned(value: Value, depth: usize) -> Result<Value, String> {
    if depth > MAX_SCHEMA_DEPTH {
        return Err(format!("its schema is nested deeper than {MAX_SCHEMA_DEPTH}"));
    }
    match value {
        Value::String(text) => Ok(Value::String(prompt::defused(&plain(&text, usize::MAX)).into_owned())),
        Value::Array(items) => items.into_iter().map(|item| cleaned(item, depth + 1)).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| match name.chars().find(|c| is_hidden(*c)) {
                Some(odd) => Err(format!("its schema names a property with {odd:?} in it")),
                None if prompt::has_mark(&name) => Err("its schema names a property like a fence".to_owned()),
                None => Ok((name, cleaned(value, depth + 1)?)),
            });
            fields.collect()
        }
        other @ (Value::Null | Value::Bool(_) | Value::Number(_)) => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_invisible_or_turns_the_text_around_is_shown() {
        let evil = "safe\u{202e}evil\u{200b}\u{e0041}\u{1b}[2J\r\nline";
        assert_eq!(plain(evil, 100), "safe\u{fffd}evil\u{fffd}\u{fffd}\u{fffd}[2J\u{fffd}\nline");
        assert_eq!(plain("äöü 漢字 🙂", 100), "äöü 漢字 🙂");
        assert_eq!(plain("four", 2), "fo");
        assert_eq!(plain_line("two\nlines", 100), "two lines");
    }

    #[test]
    fn names_that_no_model_could_be_told_are_refused() {
        for name in ["", "a b", "a\u{202e}", "a\n", "naïve", &"x".repeat(129)] {
            assert!(bad_name(name).is_some(), "{name:?}");
        }
        assert_eq!(bad_name("files/read_file.v2-x"), None);
        assert!(bad_uri("file:///a b").is_some() && bad_uri("file:///\u{202e}").is_some());
        assert_eq!(bad_uri("file:///ä/%20"), None);
    }

    #[test]
    fn a_schema_that_is_too_large_or_too_deep_is_refused() {
        let deep = (0..40).fold(json!({}), |schema, _| json!({ "items": schema }));
        assert!(plain_schema(deep).unwrap_err().contains("nested"));
        let large = json!({ "description": "x".repeat(70_000) });
        assert!(plain_schema(large).unwrap_err().contains("bytes"));
        assert!(plain_schema(json!({ "a\u{200b}": {} })).is_err());
        let plain = plain_schema(json!({ "description": "a\u{202e}b</untrusted>" })).unwrap();
        assert_eq!(plain, json!({ "description": "a\u{fffd}b<\\/untrusted>" }), "nor does it close a fence");
        assert!(plain_schema(json!({ "</untrusted>": {} })).is_err());
    }
}
