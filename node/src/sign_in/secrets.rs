//! What only its holder knows: tokens, device codes, launch codes; and the ids beside them.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use towline_core::{SessionId, UserCode};

/// What tokens of sessions begin with: so they are told from other bearers, and found where they do not belong.
pub(super) const TOKEN_PREFIX: &str = "towline_st_";

/// Longest text that can be a token of ours.
const MAX_TOKEN_BYTES: usize = 128;

/// Whether a text has the form of a token of ours.
pub(super) fn is_token(text: &str) -> bool {
    text.starts_with(TOKEN_PREFIX) && text.len() <= MAX_TOKEN_BYTES
}

/// The system gives no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("the system gives no random numbers: {0}")]
pub(crate) struct NoChance(String);

/// 256 random bits, as text.
pub(super) fn secret(prefix: &str) -> Result<String, NoChance> {
    let mut bytes = [0_u8; 32];
    fill(&mut bytes)?;
    Ok(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// A new id of a session.
pub(super) fn session_id(prefix: &str) -> Result<SessionId, NoChance> {
    let mut bytes = [0_u8; 12];
    fill(&mut bytes)?;
    let text = format!("{prefix}_{}", URL_SAFE_NO_PAD.encode(bytes));
    Ok(text.parse().expect("letters, digits, '-' and '_' make an id"))
}

/// A new code for a person to read aloud.
pub(super) fn user_code() -> Result<UserCode, NoChance> {
    let mut bytes = [0_u8; 8];
    fill(&mut bytes)?;
    Ok(UserCode::drawn(u64::from_le_bytes(bytes)))
}

fn fill(bytes: &mut [u8]) -> Result<(), NoChance> {
    getrandom::fill(bytes).map_err(|error| NoChance(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_say_what_they_are() {
        let (one, two) = (secret(TOKEN_PREFIX).unwrap(), secret(TOKEN_PREFIX).unwrap());
        assert!(one != two && one.starts_with("towline_st_") && one.len() == 11 + 43, "{one}");
        assert!(one.len() <= MAX_TOKEN_BYTES);
        let id = session_id("ds").unwrap();
        assert!(id.as_str().starts_with("ds_") && id != session_id("ds").unwrap(), "{id}");
    }
}
