//! What only its holder knows: tokens, device codes, launch codes; and the ids beside them.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use towline_core::{SessionId, UserCode};

/// What tokens of sessions begin with: so they are told from other bearers, and found where they do not belong.
pub(super) const TOKEN_PREFIX: &str = "towline_st_";

/// Letters of 256 bits in base64url.
const SECRET_CHARS: usize = 43;

/// Whether a text has the form of a token of ours: anything else is looked up nowhere.
pub(super) fn is_token(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.strip_prefix(TOKEN_PREFIX).is_some_and(|secret| secret.len() == SECRET_CHARS && secret.bytes().all(is_letter))
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
        assert!(
            is_token(&one)
                && !is_token(&one[1..])
                && !is_token(&format!("{one}A"))
                && !is_token(&one.replace('_', "+"))
        );
        let id = session_id("ds").unwrap();
        assert!(id.as_str().starts_with("ds_") && id != session_id("ds").unwrap(), "{id}");
    }
}
