//! What this node was given for a server, how that is kept, and how tokens are asked for.
//!
//! A grant that a person gave lies in a file that only this user may read, like the keys of the node, and on this node alone:
//! its refresh token is good once, so two holders would take it from each other.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    AuthError, OAuthSettings,
    discovery::{Found, Issuer, Outside, form, scopes, shortened},
    failed,
};

/// Version of the file.
const VERSION: u8 = 1;

/// A token is renewed so many seconds before it ends, or in the last quarter of a shorter life: until it has travelled and was
/// looked at it must still be good, also where clocks differ a little.
const SKEW_SECS: u64 = 60;

/// Life of a token that says nothing of it: then its refusal tells.
const UNKNOWN_LIFE_SECS: u64 = 365 * 24 * 3600;

/// Longest token that is taken.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// As which this node is known to an authorization server.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ClientId {
    pub id: String,
    pub secret: Option<String>,
}

/// What this node may use a server with. It holds secrets, so it has no debug output.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Grant {
    version: u8,
    /// The server that it is for.
    pub endpoint: String,
    /// The name under which tokens for it are asked for.
    pub resource: String,
    pub issuer: String,
    token_endpoint: String,
    /// Whether the client says who it is in the body, and not in the header.
    in_body: bool,
    pub client: ClientId,
    pub access_token: String,
    refresh_token: Option<String>,
    /// Seconds since 1970.
    ends: u64,
    /// Seconds.
    life: u64,
    pub scopes: Vec<String>,
}

impl Grant {
    /// Whether its token is good for a while.
    pub(super) fn is_fresh(&self) -> bool {
        now() < self.ends.saturating_sub(SKEW_SECS.min(self.life / 4))
    }

    /// Whether its token is good, as far as is known.
    pub(super) fn is_good(&self) -> bool {
        now() < self.ends
    }

    /// Another token for the same; nothing if nobody can ask for one.
    pub(super) async fn refreshed(&self, outside: &Outside) -> Result<Option<Self>, AuthError> {
        let Some(refresh) = &self.refresh_token else { return Ok(None) };
        let fields = [("grant_type", "refresh_token"), ("refresh_token", refresh), ("resource", &self.resource)];
        let asked = Asked { endpoint: &self.token_endpoint, client: &self.client, in_body: self.in_body };
        match asked.token(outside, &fields).await? {
            Answer::Token(token) => {
                let refresh_token = token.refresh_token.or_else(|| self.refresh_token.clone());
                let scopes = if token.scopes.is_empty() { self.scopes.clone() } else { token.scopes };
                let (access_token, ends, life) = (token.access_token, token.ends, token.life);
                Ok(Some(Self { access_token, ends, life, refresh_token, scopes, ..self.clone() }))
            }
            // The person took it back, or somebody else has used it.
            Answer::Refused { code, .. } if code == "invalid_grant" => Ok(None),
            Answer::Refused { code, words } => Err(failed(format!("refresh the token: {code}{words}"))),
        }
    }

    /// The grant that is kept for a server, if it is for it.
    pub(super) fn kept(path: &Path, endpoint: &str) -> Option<Self> {
        let text = std::fs::read(path).ok()?;
        let kept: Result<Self, _> = serde_json::from_slice(&text);
        if kept.is_err() {
            tracing::warn!(path = %path.display(), "a file of tokens cannot be read: somebody has to log in again");
        }
        kept.ok().filter(|grant| grant.version == VERSION && grant.endpoint == endpoint)
    }

    /// Writes the file, whole or not at all.
    pub(super) fn keep(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or(path);
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let draft = path.with_extension("draft");
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&draft)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        std::fs::rename(&draft, path)?;
        File::open(folder)?.sync_all()
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A token as it came.
pub(super) struct Token {
    access_token: String,
    refresh_token: Option<String>,
    ends: u64,
    life: u64,
    scopes: Vec<String>,
}

/// What an authorization server answers.
pub(super) enum Answer {
    Token(Token),
    /// It does not give one.
    Refused {
        /// As the protocol names it.
        code: String,
        /// What it says beside.
        words: String,
    },
}

/// Where tokens are asked for, and as whom.
struct Asked<'a> {
    endpoint: &'a str,
    client: &'a ClientId,
    in_body: bool,
}

impl Asked<'_> {
    async fn token(&self, outside: &Outside, fields: &[(&str, &str)]) -> Result<Answer, AuthError> {
        let what = format!("ask {} for a token", shortened(self.endpoint));
        let ClientId { id, secret } = self.client;
        let (status, answer) = outside
            .post(self.endpoint, &what, |request| {
                let mut fields = fields.to_vec();
                let basic = secret.as_deref().filter(|_| !self.in_body);
                if basic.is_none() {
                    fields.push(("client_id", id));
                    fields.extend(secret.as_deref().map(|secret| ("client_secret", secret)));
                }
                let request = form(request, &fields);
                match basic {
                    Some(secret) => request.basic_auth(form_encoded(id), Some(form_encoded(secret))),
                    None => request,
                }
            })
            .await?;
        read(status, &answer).map_err(|error| failed(format!("{what}: {error}")))
    }
}

/// Names and secrets in the header are encoded like a form (RFC 6749, 2.3.1).
fn form_encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

fn read(status: StatusCode, answer: &Value) -> Result<Answer, String> {
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    if let Some(code) = text("error") {
        let words = text("error_description").map(|words| format!(": {}", shortened(words))).unwrap_or_default();
        return Ok(Answer::Refused { code: shortened(code), words });
    }
    if !status.is_success() {
        return Err(format!("HTTP {status}"));
    }
    let is_token = |token: &&str| {
        !token.is_empty() && token.len() <= MAX_TOKEN_BYTES && token.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let access_token = text("access_token").filter(is_token).ok_or("the answer has no token that can be sent")?;
    if !text("token_type").is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
        return Err("the token is no bearer token".to_owned());
    }
    let life = answer.get("expires_in").and_then(|life| life.as_u64().or_else(|| life.as_str()?.parse().ok()));
    let life = life.unwrap_or(UNKNOWN_LIFE_SECS).min(UNKNOWN_LIFE_SECS);
    Ok(Answer::Token(Token {
        access_token: access_token.to_owned(),
        refresh_token: text("refresh_token").filter(is_token).map(str::to_owned),
        ends: now() + life,
        life,
        scopes: text("scope").map(scopes).unwrap_or_default(),
    }))
}

/// What is asked of an authorization server, as one client.
pub(super) struct Asking<'a> {
    pub outside: &'a Outside,
    pub endpoint: &'a str,
    pub found: &'a Found,
    pub client: ClientId,
}

impl Asking<'_> {
    /// Asks for a token.
    pub(super) async fn answer(&self, fields: &[(&str, &str)]) -> Result<Answer, AuthError> {
        let mut fields = fields.to_vec();
        fields.push(("resource", &self.found.resource));
        let in_body = in_body(&self.found.issuer);
        let asked = Asked { endpoint: &self.found.issuer.token_endpoint, client: &self.client, in_body };
        asked.token(self.outside, &fields).await
    }

    /// What was given with a token.
    pub(super) fn grant(&self, token: Token, asked: &[String]) -> Grant {
        Grant {
            version: VERSION,
            endpoint: self.endpoint.to_owned(),
            resource: self.found.resource.clone(),
            issuer: self.found.issuer.issuer.clone(),
            token_endpoint: self.found.issuer.token_endpoint.clone(),
            in_body: in_body(&self.found.issuer),
            client: self.client.clone(),
            access_token: token.access_token,
            refresh_token: token.refresh_token,
            ends: token.ends,
            life: token.life,
            // A server that says nothing gave what was asked for.
            scopes: if token.scopes.is_empty() { asked.to_vec() } else { token.scopes },
        }
    }

    /// A token of this node's own.
    pub(super) async fn client_credentials(&self, wanted: &[String]) -> Result<Grant, AuthError> {
        let joined = wanted.join(" ");
        let mut fields = vec![("grant_type", "client_credentials")];
        if !wanted.is_empty() {
            fields.push(("scope", joined.as_str()));
        }
        match self.answer(&fields).await? {
            Answer::Token(token) => Ok(self.grant(token, wanted)),
            Answer::Refused { code, words } => Err(failed(format!("ask for a token: {code}{words}"))),
        }
    }
}

fn in_body(issuer: &Issuer) -> bool {
    let methods = &issuer.token_endpoint_auth_methods_supported;
    !methods.is_empty() && !methods.iter().any(|method| method == "client_secret_basic")
}

/// As which client a login is, if the configuration says so.
pub(super) fn configured(settings: &OAuthSettings) -> Option<ClientId> {
    let id = settings.client_id.clone()?;
    Some(ClientId { id, secret: settings.client_secret.as_ref().map(|secret| secret.expose().to_owned()) })
}

/// Registers this node with an authorization server (RFC 7591).
pub(super) async fn registered(
    outside: &Outside,
    issuer: &Issuer,
    grant: &str,
    redirect: Option<&str>,
) -> Result<ClientId, AuthError> {
    let Some(endpoint) = &issuer.registration_endpoint else {
        let issuer = shortened(&issuer.issuer);
        return Err(failed(format!("issuer {issuer} registers nobody by itself: configure oauth.client_id")));
    };
    let redirects: Vec<&str> = redirect.into_iter().collect();
    let mut request = serde_json::json!({
        "client_name": "towline", "grant_types": [grant, "refresh_token"], "redirect_uris": redirects,
        "token_endpoint_auth_method": "none",
    });
    if redirect.is_some() {
        request["response_types"] = serde_json::json!(["code"]);
    }
    let what = format!("register with {}", shortened(endpoint));
    let (status, answer) = outside.post(endpoint, &what, |post| post.json(&request)).await?;
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    match text("client_id").filter(|_| status.is_success()) {
        Some(id) => Ok(ClientId { id: id.to_owned(), secret: text("client_secret").map(str::to_owned) }),
        None => {
            let why = text("error_description").or_else(|| text("error")).unwrap_or("it says nothing of why");
            Err(failed(format!("{what}: HTTP {status}: {}", shortened(why))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_bearer_token_that_can_be_sent_is_taken() {
        let good = json!({ "access_token": "abc", "token_type": "bearer", "expires_in": "60", "scope": "a b" });
        let Ok(Answer::Token(token)) = read(StatusCode::OK, &good) else { panic!("refused") };
        assert_eq!((token.life, token.scopes.len(), token.refresh_token), (60, 2, None));
        for bad in [
            json!({}),
            json!({ "access_token": "a\nb", "token_type": "Bearer" }),
            json!({ "access_token": "abc", "token_type": "DPoP" }),
            json!({ "access_token": "abc" }),
            json!({ "access_token": "x".repeat(MAX_TOKEN_BYTES + 1), "token_type": "Bearer" }),
        ] {
            assert!(read(StatusCode::OK, &bad).is_err(), "{bad}");
        }
        let refused =
            read(StatusCode::BAD_REQUEST, &json!({ "error": "invalid_grant", "error_description": "x\u{1b}" }));
        let Ok(Answer::Refused { code, words }) = refused else { panic!("taken") };
        assert_eq!((code.as_str(), words.contains('\u{1b}')), ("invalid_grant", false));
    }

    #[test]
    fn a_secret_with_odd_characters_is_encoded_like_a_form() {
        assert_eq!(form_encoded("a b:c%"), "a+b%3Ac%25");
    }
}
