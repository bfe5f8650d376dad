//! The device grant (RFC 8628) and its metadata (RFC 8414), on the public listener.
//!
//! Public clients: no secret of theirs is asked for, since an operator looks at each request and says who it is. Every try is
//! counted by its source before its body is read.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use towline_cluster::ProposeError;
use towline_core::{
    Command, Decision, DeviceAsk, DeviceRequest, PrincipalRole, Proposal, Rejection, Revoke, SecretHash, SignIn,
    SignInRejection, State as ClusterState, Timestamp,
    limits::{MAX_CLIENT_NAME_BYTES, MAX_DEVICE_REQUESTS_PER_SOURCE},
};

use super::{
    SignIns, launch, limiter, now,
    secrets::{self, TOKEN_PREFIX},
};
use crate::{a2a::listener::PeerAddress, auth, output::is_deceptive};

/// Where clients find the rest (RFC 8414, 3).
const METADATA: &str = "/.well-known/oauth-authorization-server";
/// Where a device asks for a code.
pub(crate) const DEVICE_AUTHORIZATION: &str = "/oauth/device_authorization";
/// Where it asks for its token.
pub(crate) const TOKEN: &str = "/oauth/token";
/// Where whoever holds a token gives it up (RFC 7009).
pub(crate) const REVOKE: &str = "/oauth/revoke";
/// What a person reads there who opens the address that a device shows.
pub(crate) const VERIFICATION: &str = "/oauth/device";
/// The grant, as clients name it.
pub(crate) const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:device_code";

/// How long a device waits for an operator.
const REQUEST_TTL: Duration = Duration::from_secs(10 * 60);
/// How long it waits between two questions, in seconds; and by how much longer after each that comes too early.
const INTERVAL: Duration = Duration::from_secs(5);
/// Largest form: a few short fields.
const MAX_FORM_BYTES: usize = 4 * 1024;
/// How long a client may take to send one.
const FORM_TIMEOUT: Duration = Duration::from_secs(10);
/// Codes that are drawn before it is given up: two in a row that are taken are next to impossible.
const DRAWS: u32 = 3;
/// A code that waits is good for so long, whoever else asks from the same address: time to read it to an operator. While an address
/// has all its places taken by younger ones, the next is told to wait.
const UNDISTURBED: Duration = Duration::from_secs(120);
/// Device codes whose questions are counted: all that can wait, and as many that are over.
const MAX_POLLED: usize = 1_024;
/// What an unnamed client is shown as.
const UNNAMED: &str = "unnamed";

impl SignIns {
    /// The routes of the public listener. Those of the device grant are there only where it is on.
    pub fn routes(self: &Arc<Self>) -> Router {
        let always = Router::new().route(launch::LAUNCH, post(launch::redeem)).route(REVOKE, post(give_up));
        let routes = if self.settings.enabled {
            always
                .route(METADATA, get(metadata))
                .route(DEVICE_AUTHORIZATION, post(authorize))
                .route(TOKEN, post(token))
                .route(VERIFICATION, get(verification))
        } else {
            always
        };
        routes.with_state(Arc::clone(self))
    }

    /// The roles that a device may ask for, as scopes, and what each means.
    pub(crate) fn scopes(&self) -> Vec<(&'static str, &'static str)> {
        let user = (PrincipalRole::User.as_str(), "Talk to agents, and manage tasks of one's own");
        let operator = (PrincipalRole::Operator.as_str(), "Control the cluster, and act on anybody's tasks");
        if self.settings.allow_operator { vec![user, operator] } else { vec![user] }
    }

    /// The flow as the security scheme of an agent card shows it; none where the grant is off.
    pub(crate) fn security_scheme(&self) -> Option<Value> {
        if !self.settings.enabled {
            return None;
        }
        let scopes: serde_json::Map<String, Value> =
            self.scopes().into_iter().map(|(scope, text)| (scope.to_owned(), text.into())).collect();
        let flow = json!({
            "deviceAuthorizationUrl": format!("{}{DEVICE_AUTHORIZATION}", self.public_url),
            "scopes": scopes,
            "tokenUrl": format!("{}{TOKEN}", self.public_url),
        });
        Some(json!({ "oauth2SecurityScheme": {
            "description": "Sign in at a device: an operator approves the code that it shows (RFC 8628).",
            "flows": { "deviceCode": flow },
            "oauth2MetadataUrl": format!("{}{METADATA}", self.public_url),
        } }))
    }

    async fn ask(&self, form: &HashMap<String, String>, source: String) -> Result<Value, OauthError> {
        let client = client_name(form)?;
        let wants = self.wanted(form.get("scope").map(String::as_str).unwrap_or_default())?;
        self.cluster.local(|state| crowded(state, &source, now(&self.cluster))).map_or(Ok(()), |wait| {
            let text = format!(
                "{MAX_DEVICE_REQUESTS_PER_SOURCE} devices at {source} wait to be approved: wait {} s",
                wait.as_secs() + 1
            );
            Err(OauthError::slow_down(text, wait))
        })?;
        let device_code = secrets::secret("")?;
        let device = SecretHash::of(&device_code);
        let ttl_ms = u64::try_from(REQUEST_TTL.as_millis()).unwrap_or(u64::MAX);
        for _ in 0..DRAWS {
            let code = secrets::user_code()?;
            let (client, source) = (client.clone(), source.clone());
            let ask = DeviceAsk { device: device.clone(), code: code.clone(), client, source, wants, ttl_ms };
            match self.propose(SignIn::Ask(ask)).await {
                Ok(()) => return Ok(self.asked(&device_code, &code.to_string(), wants)),
                Err(ProposeError::Rejected(Rejection::SignIn(SignInRejection::CodeTaken { .. }))) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(OauthError::unavailable("no free code was drawn: try again".to_owned(), Duration::from_secs(1)))
    }

    /// The answer to a device that asked. It says also the most that it may become (RFC 6749, 3.3, says it with the token only).
    fn asked(&self, device_code: &str, code: &str, wants: PrincipalRole) -> Value {
        let page = format!("{}{VERIFICATION}", self.public_url);
        json!({
            "device_code": device_code,
            "expires_in": REQUEST_TTL.as_secs(),
            "interval": INTERVAL.as_secs(),
            "scope": wants.as_str(),
            "user_code": code,
            "verification_uri": page,
            "verification_uri_complete": format!("{page}?code={code}"),
        })
    }

    /// The most powerful of the scopes that are asked for, as far as this node ever gives it.
    fn wanted(&self, scope: &str) -> Result<PrincipalRole, OauthError> {
        let mut wants = PrincipalRole::User;
        for word in scope.split_ascii_whitespace() {
            if word == PrincipalRole::Operator.as_str() {
                wants = PrincipalRole::Operator;
            } else if word != PrincipalRole::User.as_str() {
                let text = format!("scope {:?} is not known: user or operator", towline_a2a::shortened(word));
                return Err(OauthError::bad("invalid_scope", text));
            }
        }
        // A request may be narrowed (RFC 6749, 3.3); the answer with the token says what it came to.
        Ok(if self.settings.allow_operator { wants } else { PrincipalRole::User })
    }

    async fn answer(&self, form: &HashMap<String, String>, source: &str) -> Result<Value, OauthError> {
        match field(form, "grant_type")? {
            GRANT_TYPE => {}
            other => {
                let text = format!("grant_type {:?} is not supported: {GRANT_TYPE}", towline_a2a::shortened(other));
                return Err(OauthError::bad("unsupported_grant_type", text));
            }
        }
        let device = SecretHash::of(field(form, "device_code")?);
        self.polls.note(&device, Instant::now())?;
        let known = self.cluster.local(|state| state.device_request_of(&device).cloned());
        let known = match known {
            Some(request) => Some(request),
            None => self.look_for(&device, source).await?,
        };
        let request = known.ok_or_else(|| OauthError::from(SignInRejection::UnknownDevice))?;
        self.judge(&request)?;
        self.redeem(device, &request).await
    }

    /// Asks the cluster for a request that this node does not know yet.
    async fn look_for(&self, device: &SecretHash, source: &str) -> Result<Option<DeviceRequest>, OauthError> {
        let busy = |reason: String| OauthError::unavailable(reason, Duration::from_secs(1));
        self.looks.catch_up(&self.cluster, source).await.map_err(busy)?;
        Ok(self.cluster.local(|state| state.device_request_of(device).cloned()))
    }

    fn judge(&self, request: &DeviceRequest) -> Result<(), OauthError> {
        if request.expires <= now(&self.cluster) {
            return Err(OauthError::bad("expired_token", "nobody approved it in time: begin again".to_owned()));
        }
        let code = request.code.clone();
        match &request.decision {
            None => Err(SignInRejection::Undecided { code }.into()),
            Some(Decision::Denied) => Err(SignInRejection::Denied { code }.into()),
            Some(Decision::Approved(approval)) if approval.session.is_some() => Err(SignInRejection::Used.into()),
            Some(Decision::Approved(_)) => Ok(()),
        }
    }

    /// Ends the session of a token. One that opens nothing has come to the same (RFC 7009, 2.2).
    async fn give_up(&self, token: &str) -> Result<Value, OauthError> {
        let (hash, at) = (SecretHash::of(token), now(&self.cluster));
        let known = self.cluster.local(|state| state.session(&hash, at).map(|one| (one.id.clone(), one.principal())));
        let Some((session, by)) = known else { return Ok(json!({})) };
        let command = Command::SignIn(Box::new(SignIn::Revoke(Revoke::Session(session.clone()))));
        self.cluster.propose(Proposal { by, command }, None).await?;
        tracing::info!(%session, "signed out");
        Ok(json!({}))
    }

    async fn redeem(&self, device: SecretHash, request: &DeviceRequest) -> Result<Value, OauthError> {
        let token = secrets::secret(TOKEN_PREFIX)?;
        let session = secrets::session_id("ds")?;
        let hash = SecretHash::of(&token);
        self.propose(SignIn::Redeem { device, session, token: hash.clone() }).await?;
        let at = now(&self.cluster);
        let session = self.cluster.local(|state| state.session(&hash, at).cloned());
        let session = session.ok_or_else(|| OauthError::from(SignInRejection::Ended))?;
        tracing::info!(session = %session.id, principal = %session.name, role = %session.role, client = request.client, "signed in");
        Ok(granted(&token, &session, at))
    }
}

/// The answer that has a token in it (RFC 6749, 5.1), and beside that who the client is now.
pub(super) fn granted(token: &str, session: &towline_core::Session, at: towline_core::Timestamp) -> Value {
    json!({
        "access_token": token,
        "expires_in": session.expires.0.saturating_sub(at.0) / 1000,
        "principal": session.name,
        "scope": session.role.as_str(),
        "session": session.id,
        "token_type": "Bearer",
    })
}

async fn metadata(State(sign_ins): State<Arc<SignIns>>) -> Response {
    let base = &sign_ins.public_url;
    let scopes: Vec<&str> = sign_ins.scopes().into_iter().map(|(scope, _)| scope).collect();
    let metadata = json!({
        "device_authorization_endpoint": format!("{base}{DEVICE_AUTHORIZATION}"),
        "grant_types_supported": [GRANT_TYPE],
        "issuer": base,
        "response_types_supported": [],
        "revocation_endpoint": format!("{base}{REVOKE}"),
        "revocation_endpoint_auth_methods_supported": ["none"],
        "scopes_supported": scopes,
        "token_endpoint": format!("{base}{TOKEN}"),
        "token_endpoint_auth_methods_supported": ["none"],
    });
    ([(header::CACHE_CONTROL, "public, max-age=60")], axum::Json(metadata)).into_response()
}

async fn verification() -> Response {
    let text = "Read the code that your device shows to an operator of this cluster. The operator approves it with\n\n  \
                towline auth device approve CODE --as YOUR-NAME\n\nand your device goes on by itself within seconds.\n";
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

async fn authorize(State(sign_ins): State<Arc<SignIns>>, request: Request) -> Response {
    let answer = async {
        let source = source(&request)?;
        counted(&sign_ins.asks, &source)?;
        let form = form(request).await?;
        sign_ins.ask(&form, source).await
    };
    respond(answer.await)
}

async fn give_up(State(sign_ins): State<Arc<SignIns>>, request: Request) -> Response {
    let answer = async {
        counted(&sign_ins.polls_of_sources, &source(&request)?)?;
        let form = form(request).await?;
        sign_ins.give_up(field(&form, "token")?).await
    };
    respond(answer.await)
}

async fn token(State(sign_ins): State<Arc<SignIns>>, request: Request) -> Response {
    let answer = async {
        let source = source(&request)?;
        counted(&sign_ins.polls_of_sources, &source)?;
        let form = form(request).await?;
        sign_ins.answer(&form, &source).await
    };
    respond(answer.await)
}

pub(super) fn respond(answer: Result<Value, OauthError>) -> Response {
    match answer {
        Ok(answer) => ([(header::CACHE_CONTROL, "no-store")], axum::Json(answer)).into_response(),
        Err(error) => error.into_response(),
    }
}

/// Where a request comes from. A page in a browser is refused: it has no business with a code that a person reads.
pub(super) fn source(request: &Request) -> Result<String, OauthError> {
    if request.headers().contains_key(header::ORIGIN) || auth::is_of_another_site(request.headers()) {
        let text = "requests of web pages are refused: signing in is not for them".to_owned();
        return Err(OauthError::bad("invalid_request", text).with_status(StatusCode::FORBIDDEN));
    }
    let address = request.extensions().get().map(|PeerAddress(address): &PeerAddress| SocketAddr::ip(address));
    Ok(address.map_or_else(|| "unknown".to_owned(), limiter::source_of))
}

pub(super) fn counted(limiter: &limiter::Limiter, source: &str) -> Result<(), OauthError> {
    limiter.try_from(source, Instant::now()).map_err(|wait| {
        OauthError::slow_down(format!("too many requests from {source}: wait {} s", wait.as_secs() + 1), wait)
    })
}

/// How long a source has to wait until one more of its devices takes no place of one that was there for a moment only.
fn crowded(state: &ClusterState, source: &str, now: Timestamp) -> Option<Duration> {
    let waiting = state.device_requests(now).filter(|request| request.source == source && request.decision.is_none());
    let created: Vec<Timestamp> = waiting.map(|request| request.created).collect();
    let oldest = created.iter().min().filter(|_| created.len() >= MAX_DEVICE_REQUESTS_PER_SOURCE)?;
    UNDISTURBED.checked_sub(Duration::from_millis(now.0.saturating_sub(oldest.0))).filter(|wait| !wait.is_zero())
}

/// The fields of a form, each once (RFC 6749, 3.2).
pub(super) async fn form(request: Request) -> Result<HashMap<String, String>, OauthError> {
    let wrong = |text: String| OauthError::bad("invalid_request", text);
    let (parts, body) = request.into_parts();
    if !is_form(&parts.headers) {
        return Err(wrong("content-type must be application/x-www-form-urlencoded".to_owned()));
    }
    let read = timeout(FORM_TIMEOUT, axum::body::to_bytes(Body::new(body), MAX_FORM_BYTES)).await;
    let bytes = read
        .map_err(|_| wrong(format!("the form did not come within {} s", FORM_TIMEOUT.as_secs())))?
        .map_err(|_| wrong(format!("the form is broken, or has more than {MAX_FORM_BYTES} bytes")))?;
    let mut fields = HashMap::new();
    for (name, value) in form_urlencoded::parse(&bytes) {
        if fields.insert(name.to_string(), value.into_owned()).is_some() {
            return Err(wrong(format!("{:?} is there twice", towline_a2a::shortened(&name))));
        }
    }
    Ok(fields)
}

fn is_form(headers: &HeaderMap) -> bool {
    let found = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    found.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

pub(super) fn field<'a>(form: &'a HashMap<String, String>, name: &str) -> Result<&'a str, OauthError> {
    let found = form.get(name).map(String::as_str).filter(|value| !value.is_empty());
    found.ok_or_else(|| OauthError::bad("invalid_request", format!("{name} is missing")))
}

/// What a client calls itself, for the operator who looks at it: of a length that can be read, and of letters that show what is
/// there.
fn client_name(form: &HashMap<String, String>) -> Result<String, OauthError> {
    let name = form.get("client_id").map(|name| name.trim()).filter(|name| !name.is_empty()).unwrap_or(UNNAMED);
    if name.len() > MAX_CLIENT_NAME_BYTES || name.chars().any(is_deceptive) {
        let text = format!(
            "client_id has at most {MAX_CLIENT_NAME_BYTES} bytes, and no control characters or such that change the direction of text"
        );
        return Err(OauthError::bad("invalid_request", text));
    }
    Ok(name.to_owned())
}

/// How early each device asked again: who does not wait is told to wait longer (RFC 8628, 3.5).
#[derive(Default)]
pub(super) struct Polls(Mutex<HashMap<SecretHash, Polled>>);

struct Polled {
    last: Instant,
    interval: Duration,
}

impl Polls {
    #[cfg(test)]
    pub(super) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn note(&self, device: &SecretHash, now: Instant) -> Result<(), OauthError> {
        let mut polls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if polls.len() >= MAX_POLLED && !polls.contains_key(device) {
            polls.retain(|_, polled| now.saturating_duration_since(polled.last) < REQUEST_TTL);
            let oldest = polls.iter().min_by_key(|(_, polled)| polled.last).map(|(device, _)| device.clone());
            oldest.filter(|_| polls.len() >= MAX_POLLED).map(|device| polls.remove(&device));
        }
        let Some(polled) = polls.get_mut(device) else {
            polls.insert(device.clone(), Polled { last: now, interval: INTERVAL });
            return Ok(());
        };
        let early = now.saturating_duration_since(polled.last) < polled.interval;
        polled.last = now;
        if early {
            polled.interval += INTERVAL;
            let text = format!("wait {} s between two questions", polled.interval.as_secs());
            return Err(OauthError::bad("slow_down", text));
        }
        Ok(())
    }
}

/// A refusal as OAuth writes it (RFC 6749, 5.2).
#[derive(Debug)]
pub(super) struct OauthError {
    status: StatusCode,
    error: &'static str,
    description: String,
    retry_after: Option<Duration>,
}

impl OauthError {
    pub(super) fn bad(error: &'static str, description: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, error, description, retry_after: None }
    }

    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    fn slow_down(description: String, wait: Duration) -> Self {
        let status = StatusCode::TOO_MANY_REQUESTS;
        Self { status, error: "slow_down", description, retry_after: Some(wait) }
    }

    pub(super) fn unavailable(description: String, wait: Duration) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self { status, error: "temporarily_unavailable", description, retry_after: Some(wait) }
    }
}

impl From<secrets::NoChance> for OauthError {
    fn from(error: secrets::NoChance) -> Self {
        Self::unavailable(error.to_string(), Duration::from_secs(1))
    }
}

impl From<SignInRejection> for OauthError {
    fn from(rejection: SignInRejection) -> Self {
        let error = match &rejection {
            SignInRejection::Undecided { .. } => "authorization_pending",
            SignInRejection::Denied { .. } => "access_denied",
            SignInRejection::NoSuchRole { .. } | SignInRejection::Widened { .. } => "invalid_scope",
            SignInRejection::UnknownDevice
            | SignInRejection::UnknownCode { .. }
            | SignInRejection::CodeTaken { .. }
            | SignInRejection::Decided { .. }
            | SignInRejection::Used
            | SignInRejection::Ended => "invalid_grant",
        };
        Self::bad(error, rejection.to_string())
    }
}

impl From<ProposeError> for OauthError {
    fn from(error: ProposeError) -> Self {
        let text = error.to_string();
        match error {
            ProposeError::Rejected(Rejection::SignIn(rejection)) => rejection.into(),
            ProposeError::Rejected(Rejection::Full { retry_after_ms, .. }) => {
                Self::unavailable(text, Duration::from_millis(retry_after_ms))
            }
            ProposeError::Rejected(_) => Self::bad("invalid_request", text),
            ProposeError::Unavailable { retry_after, .. } => Self::unavailable(text, retry_after),
            ProposeError::Unknown { .. } => Self::unavailable(text, Duration::from_secs(1)),
        }
    }
}

impl IntoResponse for OauthError {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.error, "error_description": self.description });
        let mut response = (self.status, [(header::CACHE_CONTROL, "no-store")], axum::Json(body)).into_response();
        if let Some(wait) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, (wait.as_secs() + 1).into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_does_not_wait_is_told_to_wait_longer_each_time() {
        let (polls, device, start) = (Polls::default(), SecretHash::of("d"), Instant::now());
        let at = |seconds| polls.note(&device, start + Duration::from_secs(seconds)).map_err(|error| error.error);
        assert_eq!(at(0), Ok(()));
        assert_eq!(at(5), Ok(()));
        assert_eq!(at(9), Err("slow_down"));
        assert_eq!(at(18), Err("slow_down"), "ten seconds by then");
        assert_eq!(at(33), Ok(()), "fifteen");
        assert!(polls.note(&SecretHash::of("other"), start).is_ok());
    }

    #[test]
    fn a_client_calls_itself_what_a_terminal_shows_as_it_is() {
        let name = |text: &str| client_name(&HashMap::from([("client_id".to_owned(), text.to_owned())]));
        for good in ["towline of ada", "Adas Gerät", "クライアント"] {
            assert_eq!(name(good).unwrap(), good);
        }
        assert_eq!(name("  ").unwrap(), UNNAMED);
        for odd in ["a\u{1b}[2J", "a\nb", "\u{202e}moor", "a\u{2066}b", "a\u{9b}b", "a\u{200b}b", &"x".repeat(1_000)] {
            assert_eq!(name(odd).unwrap_err().error, "invalid_request", "{odd:?}");
        }
    }

    #[test]
    fn the_list_of_devices_that_asked_has_a_bound() {
        let (polls, start) = (Polls::default(), Instant::now());
        for number in 0..MAX_POLLED + 10 {
            polls.note(&SecretHash::of(&number.to_string()), start + Duration::from_millis(number as u64)).unwrap();
        }
        assert_eq!(polls.0.lock().unwrap().len(), MAX_POLLED);
    }
}
