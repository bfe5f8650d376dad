//! How people get in: a device asks, an operator approves it under a name, and the device gets a session.
//!
//! Secrets are made by nodes and known to their holders; here are only their hashes.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

use crate::{Principal, PrincipalId, PrincipalRole, SessionId, Timestamp};

/// The letters of a user code: consonants that make no words and, spoken, few mistakes (RFC 8628, 6.1).
const CODE_LETTERS: &[u8; 20] = b"BCDFGHJKLMNPQRSTVWXZ";
/// Letters of a user code: 34 bits, and only an operator can try one.
const CODE_LENGTH: usize = 8;

/// The hash of a secret that was drawn with 256 random bits, in hex. Nobody can go back from it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretHash(String);

impl SecretHash {
    /// The hash of a secret.
    pub fn of(secret: &str) -> Self {
        Self(blake3::hash(secret.as_bytes()).to_hex().to_string())
    }
}

/// What a person reads to an operator: eight letters, shown as `BCDF-GHJK`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UserCode(String);

/// A text that is no user code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a code has eight letters of BCDFGHJKLMNPQRSTVWXZ, as in BCDF-GHJK")]
pub struct InvalidUserCode;

impl UserCode {
    /// The code that a random number stands for; every code is as likely as any other.
    pub fn drawn(random: u64) -> Self {
        let mut rest = random;
        let letters = (0..CODE_LENGTH).map(|_| {
            let letter = CODE_LETTERS[(rest % CODE_LETTERS.len() as u64) as usize];
            rest /= CODE_LETTERS.len() as u64;
            char::from(letter)
        });
        Self(letters.collect())
    }
}

impl FromStr for UserCode {
    type Err = InvalidUserCode;

    /// As people write it: in any case, with or without signs between.
    fn from_str(text: &str) -> Result<Self, InvalidUserCode> {
        let letters = text.chars().filter(|c| !matches!(c, '-' | ' ' | '.')).map(|c| c.to_ascii_uppercase());
        let letters: String = letters.take(CODE_LENGTH + 1).collect();
        let is_code = letters.len() == CODE_LENGTH && letters.bytes().all(|letter| CODE_LETTERS.contains(&letter));
        if is_code { Ok(Self(letters)) } else { Err(InvalidUserCode) }
    }
}

impl TryFrom<String> for UserCode {
    type Error = InvalidUserCode;

    fn try_from(text: String) -> Result<Self, InvalidUserCode> {
        text.parse()
    }
}

impl From<UserCode> for String {
    fn from(code: UserCode) -> String {
        code.0
    }
}

impl fmt::Display for UserCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = self.0.split_at(CODE_LENGTH / 2);
        write!(f, "{first}-{second}")
    }
}

/// A change of who is signed in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignIn {
    /// A device asks to be let in.
    Ask(DeviceAsk),
    /// An operator lets in who asked under a code.
    Approve(Approve),
    /// An operator lets nobody in under a code.
    Deny {
        /// The code.
        code: UserCode,
    },
    /// The device of an approved request gets its session: once.
    Redeem {
        /// Hash of the device code.
        device: SecretHash,
        /// Id of the session that is made.
        session: SessionId,
        /// Hash of the session's token.
        token: SecretHash,
    },
    /// A client that was started beside a node on its machine gets a session of the operator.
    Launch {
        /// Id of the session that is made.
        session: SessionId,
        /// Hash of its token.
        token: SecretHash,
        /// How long it is good, in milliseconds.
        ttl_ms: u64,
    },
    /// Sessions end before their time.
    Revoke(Revoke),
    /// Sessions were used lately: noted coarsely, for whoever looks through them.
    Seen {
        /// Hashes of their tokens.
        tokens: Vec<SecretHash>,
    },
}

/// A device asks to be let in (RFC 8628, 3.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAsk {
    /// Hash of the device code.
    pub device: SecretHash,
    /// What its user reads to an operator.
    pub code: UserCode,
    /// What the client calls itself.
    pub client: String,
    /// Where it asks from, as far as requests are counted by it.
    pub source: String,
    /// The most that it asks to be.
    pub wants: PrincipalRole,
    /// How long it waits for an answer, in milliseconds.
    pub ttl_ms: u64,
}

/// An operator lets somebody in under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approve {
    /// The code that the person showed.
    pub code: UserCode,
    /// Who that is: everybody let in under one name is one principal.
    pub name: PrincipalId,
    /// What the session may do: no more than was asked for.
    pub role: PrincipalRole,
    /// How long the session is good from its beginning, in milliseconds.
    pub ttl_ms: u64,
}

/// Which sessions end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Revoke {
    /// One.
    Session(SessionId),
    /// All of a name, and what is approved under it and not yet begun.
    Name(PrincipalId),
    /// All, and whatever is approved and not yet begun.
    All,
}

/// A device that asked, until its time is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRequest {
    /// Hash of the device code.
    pub device: SecretHash,
    /// What its user reads to an operator.
    pub code: UserCode,
    /// What the client calls itself.
    pub client: String,
    /// Where it asked from.
    pub source: String,
    /// The most that it asks to be.
    pub wants: PrincipalRole,
    /// When it asked.
    pub created: Timestamp,
    /// When it is given up.
    pub expires: Timestamp,
    /// What an operator said.
    pub decision: Option<Decision>,
}

/// What an operator said to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// No.
    Denied,
    /// Yes.
    Approved(Approval),
}

/// Under which name a request was approved, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// The name.
    pub name: PrincipalId,
    /// What the session may do.
    pub role: PrincipalRole,
    /// How long the session is good, in milliseconds.
    pub ttl_ms: u64,
    /// When the name was approved before, if it was.
    pub before: Option<Timestamp>,
    /// The session, once the device has fetched it.
    pub session: Option<SessionId>,
}

/// How a session began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionKind {
    /// By an approval.
    Device,
    /// By a code of the node's own process.
    Launch,
}

/// Somebody who is signed in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// How it began.
    pub kind: SessionKind,
    /// Whose it is.
    pub name: PrincipalId,
    /// What it may do.
    pub role: PrincipalRole,
    /// What the client calls itself.
    pub client: String,
    /// When it began.
    pub created: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
    /// When it was used last, within some minutes; none if it was not, or just now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Timestamp>,
}

impl Session {
    /// Who asks with it.
    pub fn principal(&self) -> Principal {
        match self.kind {
            SessionKind::Device => Principal::Named { id: self.name.clone(), role: self.role },
            SessionKind::Launch => Principal::Operator,
        }
    }

    /// Whether its time is over.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.expires <= now
    }
}

/// Why a change of who is signed in was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum SignInRejection {
    /// Nobody waits under this code, or not any more.
    #[error("no sign-in waits under code {code}: `towline auth device pending` lists those that do")]
    UnknownCode {
        /// What was asked for.
        code: UserCode,
    },
    /// The device code was never made, or its time is over.
    #[error("this device code is not known or its time is over: begin again")]
    UnknownDevice,
    /// Another device waits under the same letters.
    #[error("another sign-in waits under code {code}: draw another one")]
    CodeTaken {
        /// The code.
        code: UserCode,
    },
    /// An operator has decided otherwise before.
    #[error("sign-in {code} was decided before: {how}")]
    Decided {
        /// The code.
        code: UserCode,
        /// What was said, and what to do.
        how: String,
    },
    /// Nobody has decided yet.
    #[error("sign-in {code} waits for an operator")]
    Undecided {
        /// The code.
        code: UserCode,
    },
    /// An operator said no.
    #[error("sign-in {code} was denied")]
    Denied {
        /// The code.
        code: UserCode,
    },
    /// A device code is good for one session.
    #[error("this device code was used before: begin again")]
    Used,
    /// An approval may take from what was asked for, and add nothing.
    #[error("{code} asks for the role {wants} and cannot be given {role}")]
    Widened {
        /// The code.
        code: UserCode,
        /// What it asked for.
        wants: PrincipalRole,
        /// What it was to be given.
        role: PrincipalRole,
    },
    /// People sign in; agents have credentials of their own.
    #[error("nobody signs in with the role {role}: it is user or operator")]
    NoSuchRole {
        /// What was asked for.
        role: PrincipalRole,
    },
    /// The session was made and has ended.
    #[error("this session was made before and has ended")]
    Ended,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_as_people_write_it_and_shown_in_two_halves() {
        let code: UserCode = "BCDFGHJK".parse().unwrap();
        assert_eq!(code.to_string(), "BCDF-GHJK");
        for text in ["bcdf-ghjk", "BCDF GHJK", " bcdf.ghjk ", "BCDF-GHJK"] {
            assert_eq!(text.parse(), Ok(code.clone()), "{text}");
        }
        for text in ["", "BCDF-GHJ", "BCDF-GHJKL", "ACDF-GHJK", "BCDF-GHJ0", "ΒCDFGHJK"] {
            assert_eq!(text.parse::<UserCode>(), Err(InvalidUserCode), "{text}");
        }
    }

    #[test]
    fn a_drawn_code_is_one_that_can_be_read_again_and_differs_with_the_number() {
        let drawn: Vec<UserCode> = [0, 1, 20, u64::MAX, 0x1234_5678_9abc_def0].map(UserCode::drawn).into();
        for code in &drawn {
            assert_eq!(code.to_string().parse().as_ref(), Ok(code));
        }
        let different: std::collections::BTreeSet<_> = drawn.iter().collect();
        assert_eq!(different.len(), drawn.len());
    }
}
