//! W3C trace context, level 1: the part that is stored with a task and crosses every hop.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A place in a trace: which trace, which span, and whether it is sampled.
/// `Display` and `FromStr` are the `traceparent` header of <https://www.w3.org/TR/trace-context/>.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceContext {
    /// Never zero.
    pub trace_id: u128,
    /// Never zero.
    pub span_id: u64,
    /// Whether spans under this one are recorded.
    pub sampled: bool,
}

/// A `traceparent` that the W3C text does not allow: the caller starts a new trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("traceparent is malformed")]
pub struct InvalidTraceContext;

impl TraceContext {
    /// The trace id as 32 lower-case hex digits.
    pub fn trace_id_hex(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// The span id as 16 lower-case hex digits.
    pub fn span_id_hex(&self) -> String {
        format!("{:016x}", self.span_id)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

impl FromStr for TraceContext {
    type Err = InvalidTraceContext;

    fn from_str(text: &str) -> Result<Self, InvalidTraceContext> {
        let mut fields = text.trim().split('-');
        let version = lower_hex(fields.next(), 2)?;
        let trace_id = lower_hex(fields.next(), 32)?;
        let span_id = lower_hex(fields.next(), 16)?;
        let flags = lower_hex(fields.next(), 2)?;
        let has_tail = fields.next().is_some();
        let forbidden_tail = version == 0 && has_tail;
        if version == 0xff || trace_id == 0 || span_id == 0 || forbidden_tail {
            return Err(InvalidTraceContext);
        }
        let span_id = u64::try_from(span_id).map_err(|_| InvalidTraceContext)?;
        Ok(Self { trace_id, span_id, sampled: flags & 1 == 1 })
    }
}

fn lower_hex(field: Option<&str>, digits: usize) -> Result<u128, InvalidTraceContext> {
    let field = field.ok_or(InvalidTraceContext)?;
    let allowed = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if field.len() != digits || !field.bytes().all(allowed) {
        return Err(InvalidTraceContext);
    }
    u128::from_str_radix(field, 16).map_err(|_| InvalidTraceContext)
}

impl TryFrom<String> for TraceContext {
    type Error = InvalidTraceContext;

    fn try_from(text: String) -> Result<Self, InvalidTraceContext> {
        text.parse()
    }
}

impl From<TraceContext> for String {
    fn from(context: TraceContext) -> String {
        context.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_traceparent_comes_back_unchanged() {
        let context: TraceContext = VALID.parse().unwrap();
        assert_eq!(context.to_string(), VALID);
        assert!(context.sampled);
    }

    #[test]
    fn malformed_traceparents_are_refused() {
        for text in [
            "",
            "garbage",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-tail",
        ] {
            assert_eq!(text.parse::<TraceContext>(), Err(InvalidTraceContext), "{text}");
        }
    }

    #[test]
    fn a_later_version_may_have_a_tail() {
        assert!("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x".parse::<TraceContext>().is_ok());
    }
}
