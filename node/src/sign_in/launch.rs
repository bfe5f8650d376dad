//! The launch grant: whoever runs in this process mints a code, hands it to a client that it starts on this machine, and the
//! client redeems it once for a session of the operator. Nobody else can mint one, so no card names it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use serde_json::Value;
use tokio::time::Instant;
use towline_core::{SecretHash, SignIn};

use super::{
    SignIns,
    device::{OauthError, counted, field, form, granted, respond, source},
    limiter::{self, Limiter},
    now,
    secrets::{self, NoChance, TOKEN_PREFIX},
};
use crate::a2a::listener::PeerAddress;

/// Where a code is redeemed.
pub(crate) const LAUNCH: &str = "/oauth/launch";

/// How long a code waits for the client that was started with it.
const CODE_TTL: Duration = Duration::from_secs(60);
/// Most codes that wait: a process starts a client or two.
const MAX_CODES: usize = 16;
/// How long a launched session is good: a day at a terminal.
const SESSION_TTL: Duration = Duration::from_secs(8 * 3600);

/// The codes that wait, as hashes, and until when.
pub(super) struct Launches {
    codes: Mutex<BTreeMap<SecretHash, Instant>>,
    tries: Limiter,
}

/// No code can be minted.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// Too many wait.
    #[error("{MAX_CODES} launch codes wait for their clients: try again in {} s", CODE_TTL.as_secs())]
    Full,
    /// The system gives no random numbers.
    #[error("{0}")]
    NoChance(String),
}

impl Launches {
    pub(super) fn new() -> Self {
        Self { codes: Mutex::default(), tries: limiter::of_launches() }
    }

    fn put(&self, code: SecretHash, now: Instant) -> Result<(), MintError> {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|_, until| *until > now);
        if codes.len() >= MAX_CODES {
            return Err(MintError::Full);
        }
        codes.insert(code, now + CODE_TTL);
        Ok(())
    }

    /// Takes a code away; whether it was there and its time was not over.
    fn take(&self, code: &SecretHash, now: Instant) -> bool {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        codes.remove(code).is_some_and(|until| until > now)
    }
}

impl SignIns {
    /// A new code for one client on this machine, good for a minute and for one session of the operator.
    ///
    /// # Errors
    /// When too many codes wait, or the system gives no random numbers.
    pub fn mint_launch_code(&self) -> Result<String, MintError> {
        let code = secrets::secret("").map_err(|error: NoChance| MintError::NoChance(error.to_string()))?;
        self.launches.put(SecretHash::of(&code), Instant::now())?;
        Ok(code)
    }

    async fn launch(&self, code: &str) -> Result<Value, OauthError> {
        if !self.launches.take(&SecretHash::of(code), Instant::now()) {
            let text = "this launch code is not known, was used, or its minute is over".to_owned();
            return Err(OauthError::bad("invalid_grant", text));
        }
        let token = secrets::secret(TOKEN_PREFIX)?;
        let session = secrets::session_id("ls")?;
        let hash = SecretHash::of(&token);
        let ttl_ms = u64::try_from(SESSION_TTL.as_millis()).unwrap_or(u64::MAX);
        self.propose(SignIn::Launch { session, token: hash.clone(), ttl_ms }).await?;
        let at = now(&self.cluster);
        let session = self.cluster.local(|state| state.session(&hash, at).cloned());
        let session = session.ok_or_else(|| OauthError::bad("invalid_grant", "it was revoked at once".to_owned()))?;
        tracing::info!(session = %session.id, "a local client was launched");
        Ok(granted(&token, &session, at))
    }
}

pub(super) async fn redeem(State(sign_ins): State<Arc<SignIns>>, request: Request) -> Response {
    let answer = async {
        let source = source(&request)?;
        let is_local = request.extensions().get().is_some_and(|PeerAddress(at)| at.ip().to_canonical().is_loopback());
        if !is_local {
            let text = "a launch code is for clients on the machine of its node".to_owned();
            let refused = OauthError::bad("access_denied", text);
            return Err(refused.with_status(StatusCode::FORBIDDEN));
        }
        counted(&sign_ins.launches.tries, &source)?;
        let form = form(request).await?;
        sign_ins.launch(field(&form, "code")?).await
    };
    respond(answer.await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_good_once_and_for_a_minute() {
        let (launches, start) = (Launches::new(), Instant::now());
        let hash = |text: &str| SecretHash::of(text);
        launches.put(hash("a"), start).unwrap();
        assert!(!launches.take(&hash("b"), start));
        assert!(launches.take(&hash("a"), start));
        assert!(!launches.take(&hash("a"), start), "it is used");
        launches.put(hash("c"), start).unwrap();
        assert!(!launches.take(&hash("c"), start + CODE_TTL));
    }

    #[test]
    fn few_codes_wait_and_those_that_are_over_make_room() {
        let (launches, start) = (Launches::new(), Instant::now());
        for number in 0..MAX_CODES {
            launches.put(SecretHash::of(&number.to_string()), start).unwrap();
        }
        assert!(matches!(launches.put(SecretHash::of("x"), start), Err(MintError::Full)));
        launches.put(SecretHash::of("x"), start + CODE_TTL).unwrap();
    }
}
