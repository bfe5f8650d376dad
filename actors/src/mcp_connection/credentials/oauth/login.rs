//! A person lets this node use a server: in a browser that comes back to the command line, or with a code that the person
//! types in elsewhere. The command line only carries addresses and codes; what is secret stays on the node.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use reqwest::Url;
use ring::{
    digest,
    rand::{SecureRandom as _, SystemRandom},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    AuthError, Authorizer,
    discovery::{self, Found, is_loopback, shortened},
    failed,
    grant::{self, Answer, Asking, ClientId, Grant},
};

/// Time for a person to log in.
pub(super) const LOGIN_TIME: Duration = Duration::from_secs(600);

/// Logins of a server under way: each is a person at a command line.
const MAX_LOGINS: usize = 16;

/// Random bytes of a state and of a verifier.
const RANDOM_BYTES: usize = 32;

/// A person is asked for the next answer after so many seconds, where the server says nothing.
const DEFAULT_INTERVAL_SECS: u64 = 5;

/// A login in a browser.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunLogin {
    /// What the browser brings back: it has to be the same.
    pub state: String,
    /// Where the person goes.
    pub url: String,
}

/// A login with a code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLogin {
    /// What the login is asked about by.
    pub state: String,
    /// Where the person goes.
    pub url: String,
    /// The same with the code in it, where the server has such an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_with_code: Option<String>,
    /// What the person types in there.
    pub code: String,
    /// Seconds between two questions whether it was done.
    pub interval: u64,
    /// Seconds until it is too late.
    pub expires_in: u64,
}

/// Logins under way, by their states.
#[derive(Default)]
pub(super) struct Logins(BTreeMap<String, Pending>);

#[derive(Clone)]
struct Pending {
    begun: Instant,
    found: Found,
    client: ClientId,
    scopes: Vec<String>,
    proof: Proof,
}

/// What this login has that nobody else has.
#[derive(Clone)]
enum Proof {
    Browser { verifier: String, redirect: String },
    Device { code: String },
}

impl Logins {
    fn add(&mut self, state: String, pending: Pending) -> Result<(), AuthError> {
        self.0.retain(|_, pending| pending.begun.elapsed() < LOGIN_TIME);
        if self.0.len() >= MAX_LOGINS {
            return Err(failed(format!(
                "{MAX_LOGINS} logins are under way; they end after {} s",
                LOGIN_TIME.as_secs()
            )));
        }
        self.0.insert(state, pending);
        Ok(())
    }

    fn get(&mut self, state: &str) -> Result<Pending, AuthError> {
        self.0.retain(|_, pending| pending.begun.elapsed() < LOGIN_TIME);
        self.0.get(state).cloned().ok_or(AuthError::UnknownLogin)
    }

    fn take(&mut self, state: &str) -> Result<Pending, AuthError> {
        let found = self.get(state)?;
        self.0.remove(state);
        Ok(found)
    }
}

impl Authorizer {
    /// Begins a login in a browser, which comes back to an address of the person's machine.
    ///
    /// # Errors
    /// When the authorization server cannot be found, or does not offer that.
    pub async fn begin(&self, redirect: &str) -> Result<BegunLogin, AuthError> {
        let is_local = Url::parse(redirect).is_ok_and(|url| url.scheme() == "http" && is_loopback(&url));
        if !is_local {
            return Err(failed(
                "the browser has to come back to this machine, as in http://127.0.0.1:PORT/".to_owned(),
            ));
        }
        let (found, scopes) = self.find().await?;
        let issuer = &found.issuer;
        let Some(authorize) = &issuer.authorization_endpoint else {
            return Err(failed(format!("issuer {} has no page to log in: try --device", shortened(&issuer.issuer))));
        };
        // Without it a code that is overheard is good.
        if !issuer.code_challenge_methods_supported.iter().any(|method| method == "S256") {
            return Err(failed(format!("issuer {} does not offer PKCE with S256", shortened(&issuer.issuer))));
        }
        let mut url = self.outside()?.check(authorize)?;
        let client = match grant::configured(self.settings()) {
            Some(client) => client,
            None => grant::registered(self.outside()?, issuer, "authorization_code", Some(redirect)).await?,
        };
        let (state, verifier) = (random()?, random()?);
        let challenge = URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, verifier.as_bytes()));
        {
            let mut query = url.query_pairs_mut();
            query.append_pair("response_type", "code").append_pair("client_id", &client.id);
            query.append_pair("redirect_uri", redirect).append_pair("state", &state);
            query.append_pair("code_challenge", &challenge).append_pair("code_challenge_method", "S256");
            query.append_pair("resource", &found.resource);
            if !scopes.is_empty() {
                query.append_pair("scope", &scopes.join(" "));
            }
        }
        let proof = Proof::Browser { verifier, redirect: redirect.to_owned() };
        self.logins().add(state.clone(), Pending { begun: Instant::now(), found, client, scopes, proof })?;
        Ok(BegunLogin { state, url: url.into() })
    }

    /// Ends a login with what the browser brought back.
    ///
    /// # Errors
    /// When there is no such login, or the authorization server does not give a token for it.
    pub async fn finish(&self, state: &str, code: &str, issuer: Option<&str>) -> Result<(), AuthError> {
        let pending = self.logins().take(state)?;
        let Proof::Browser { verifier, redirect } = &pending.proof else { return Err(AuthError::UnknownLogin) };
        let expected = &pending.found.issuer;
        // Else another server could have its code exchanged here (RFC 9207).
        let is_from_there = match issuer {
            Some(issuer) => issuer == expected.issuer,
            None => !expected.authorization_response_iss_parameter_supported,
        };
        if !is_from_there {
            let found = issuer.map_or_else(|| "nobody".to_owned(), shortened);
            return Err(failed(format!("the answer is from {found}, and not from {}", shortened(&expected.issuer))));
        }
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect),
            ("code_verifier", verifier),
        ];
        match self.asked(&pending, &fields).await? {
            Ok(grant) => self.given(grant).await,
            Err((code, words)) => Err(failed(format!("the login was refused: {code}{words}"))),
        }
    }

    /// Begins a login with a code (RFC 8628).
    ///
    /// # Errors
    /// When the authorization server cannot be found, or does not offer that.
    pub async fn begin_device(&self) -> Result<DeviceLogin, AuthError> {
        let (found, scopes) = self.find().await?;
        let issuer = &found.issuer;
        let Some(endpoint) = issuer.device_authorization_endpoint.clone() else {
            return Err(failed(format!("issuer {} has no login with a code", shortened(&issuer.issuer))));
        };
        let client = match grant::configured(self.settings()) {
            Some(client) => client,
            None => grant::registered(self.outside()?, issuer, DEVICE_GRANT, None).await?,
        };
        let joined = scopes.join(" ");
        let mut form = vec![("client_id", client.id.as_str()), ("resource", found.resource.as_str())];
        if !scopes.is_empty() {
            form.push(("scope", &joined));
        }
        let what = "ask for a code";
        let (status, answer) = self.outside()?.post(&endpoint, what, |request| discovery::form(request, &form)).await?;
        let text = |name: &str| answer.get(name).and_then(Value::as_str);
        let (Some(code), Some(user_code), Some(url)) =
            (text("device_code"), text("user_code"), text("verification_uri"))
        else {
            let why = text("error").unwrap_or("the answer has no code");
            return Err(failed(format!("{what}: HTTP {status}: {}", shortened(why))));
        };
        let seconds = |name: &str| answer.get(name).and_then(Value::as_u64);
        let login = DeviceLogin {
            state: random()?,
            url: self.outside()?.check(url)?.into(),
            url_with_code: text("verification_uri_complete")
                .and_then(|url| Some(self.outside().ok()?.check(url).ok()?.into())),
            code: shortened(user_code),
            interval: seconds("interval").unwrap_or(DEFAULT_INTERVAL_SECS).clamp(1, LOGIN_TIME.as_secs()),
            expires_in: seconds("expires_in").unwrap_or(LOGIN_TIME.as_secs()).min(LOGIN_TIME.as_secs()),
        };
        let proof = Proof::Device { code: code.to_owned() };
        self.logins().add(login.state.clone(), Pending { begun: Instant::now(), found, client, scopes, proof })?;
        Ok(login)
    }

    /// Asks once whether a login with a code was done.
    ///
    /// # Errors
    /// [`AuthError::Pending`] as long as it was not; else when it was refused, or is too late.
    pub async fn poll(&self, state: &str) -> Result<(), AuthError> {
        let pending = self.logins().get(state)?;
        let Proof::Device { code } = &pending.proof else { return Err(AuthError::UnknownLogin) };
        match self.asked(&pending, &[("grant_type", DEVICE_GRANT), ("device_code", code)]).await? {
            Ok(grant) => {
                // It may be gone by now, and was good.
                let _ = self.logins().take(state);
                self.given(grant).await
            }
            Err((code, _)) if code == "authorization_pending" => Err(AuthError::Pending { slower: false }),
            Err((code, _)) if code == "slow_down" => Err(AuthError::Pending { slower: true }),
            Err((code, words)) => {
                let _ = self.logins().take(state);
                Err(failed(format!("the login was refused: {code}{words}")))
            }
        }
    }

    async fn asked(
        &self,
        pending: &Pending,
        fields: &[(&str, &str)],
    ) -> Result<Result<Grant, (String, String)>, AuthError> {
        let asking = Asking {
            outside: self.outside()?,
            endpoint: self.endpoint(),
            found: &pending.found,
            client: pending.client.clone(),
        };
        Ok(match asking.answer(fields).await? {
            Answer::Token(token) => Ok(asking.grant(token, &pending.scopes)),
            Answer::Refused { code, words } => Err((code, words)),
        })
    }
}

/// The grant type of a login with a code.
const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";

/// Text that nobody guesses.
fn random() -> Result<String, AuthError> {
    let mut bytes = [0; RANDOM_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| failed("this machine gives no randomness".to_owned()))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}
