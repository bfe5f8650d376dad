//! `towline auth`: what a configuration names of a credential.

use std::io::Read;

use serde_json::json;

use crate::{auth::Sha256, error::CliError, output::Output};

/// Longest token that is read.
const MAX_TOKEN_BYTES: u64 = 16 * 1024;
/// A shorter token can be guessed.
const SHORTEST_TOKEN: usize = 20;

/// `towline auth hash`: the hash of the token on standard input.
pub(crate) fn hash(output: &mut Output) -> Result<(), CliError> {
    let hash = hash_of(std::io::stdin().lock())?;
    if output.is_json() {
        return Ok(output.json(&json!({ "sha256": hash }))?);
    }
    output.note("write it into a rule of auth.principals: bearer: { sha256: HASH }");
    Ok(output.line(&hash)?)
}

/// The end of the line is not part of a token, wherever it is read: clients leave it away as well.
fn hash_of(input: impl Read) -> Result<String, CliError> {
    let mut text = String::new();
    input
        .take(MAX_TOKEN_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| CliError::Usage(format!("read the token from standard input: {error}")))?;
    let token = text.trim();
    if token.len() < SHORTEST_TOKEN || text.len() as u64 > MAX_TOKEN_BYTES || token.contains(char::is_whitespace) {
        return Err(CliError::Usage(format!(
            "standard input holds no token: one has {SHORTEST_TOKEN} to {MAX_TOKEN_BYTES} bytes and no blank, and \
             `openssl rand -hex 32` makes a good one"
        )));
    }
    Ok(Sha256::of(token.as_bytes()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_hashed_without_the_end_of_its_line() {
        let token = "0123456789abcdef0123456789abcdef";
        let hash = hash_of(token.as_bytes()).unwrap();
        assert_eq!(hash, Sha256::of(token.as_bytes()).to_string());
        assert_eq!(hash_of(format!("{token}\r\n").as_bytes()).unwrap(), hash);
    }

    #[test]
    fn what_can_be_guessed_is_no_token() {
        for text in ["", "short", "two words of some length", &"x".repeat(20_000)] {
            assert_eq!(hash_of(text.as_bytes()).unwrap_err().code(), 2, "{text:.20}");
        }
    }
}
