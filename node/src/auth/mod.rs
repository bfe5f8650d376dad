//! Who is calling, and whether that one may: what stands between the public listener and everything behind it.
//!
//! ```text
//! browser ─▶ evidence ─▶ rates ─▶ (method known) ─▶ operations ─▶ body ─▶ lasting
//!  Origin     who asks    how often   the same        role, grants          for as long as the credential is good
//!  Host       limiter                 for everybody
//! ```
//! Every step may refuse, and a refusal is final: one plain answer, before the next step costs anything. Up to the body a
//! request is its head and its connection. `gate` is a layer of the public routes, so that one that is added is behind it; the
//! agent cards and the probes are open and stand beside it.

pub(crate) mod audit;
mod browser;
pub(crate) mod card;
mod certificate;
mod evidence;
mod hooks;
mod jwt;
mod keys;
pub(crate) mod lasting;
mod limiter;
mod operations;
mod rates;
mod recent;
mod refusal;
mod rules;
mod sessions;
mod tls;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use serde::{Deserialize, Serialize};

use towline_core::{Principal, PrincipalRole};

use crate::{
    a2a::{
        listener::PeerAddress,
        principal::{self, Caller},
    },
    sign_in::DeviceGrantSettings,
};

pub use browser::Origin;
pub(crate) use browser::is_of_another_site;
pub(crate) use evidence::{KernelVouches, bearer_of};
pub(crate) use jwt::{Algorithm, Expected};
pub use keys::JwtSettings;
#[cfg(test)]
pub(crate) use operations::OPERATIONS;
pub(crate) use operations::{Grant, Permits, Way};
pub(crate) use rates::{DEFAULT_REQUESTS_PER_SECOND, DEFAULT_STREAMS, StreamPlace};
pub(crate) use recent::Recent;
pub(crate) use refusal::{Refusal, Style};
pub use rules::Rule;
pub(crate) use rules::{CertificateMatch, Evidence, Sha256, has_claims};
pub(crate) use sessions::{Known, Sessions};
pub use tls::{PublicTls, TlsSettings};

use keys::Verifier;
use limiter::{Source, SourceLimiter};
use rates::Rates;

/// A refusal of one kind from one source is told once in this time: a log is no place to be flooded.
const TOLD_EACH: Duration = Duration::from_secs(60);
/// Refusals that are remembered as told.
const MAX_TOLD: usize = 1_024;

/// What the configuration says of callers.
#[derive(Debug, Clone, Default)]
pub struct AuthSettings {
    /// Who shows what; the first that fits counts.
    pub(crate) rules: Vec<Rule>,
    /// Whose signed tokens are taken.
    pub(crate) jwt: Option<JwtSettings>,
    /// Whether client certificates are verified.
    pub(crate) client_certificates: bool,
    /// The pages that may ask.
    pub(crate) origins: Vec<Origin>,
    /// How much one principal may ask in a second; none means the default.
    pub(crate) requests_per_second: Option<u32>,
    /// How many streams one principal may have open; none means the default.
    pub(crate) streams_per_principal: Option<u32>,
    /// Whether people sign in at devices.
    pub(crate) device_grant: DeviceGrantSettings,
    /// Whether callers may not choose the trace that their tasks are part of.
    pub(crate) own_traces: bool,
}

impl AuthSettings {
    /// Whether callers can show anything.
    pub(crate) fn is_configured(&self) -> bool {
        !self.rules.is_empty() || self.jwt.is_some() || self.client_certificates || self.device_grant.enabled
    }
}

/// Decides who asks and who may, for one listener.
pub struct Auth {
    rules: Vec<Rule>,
    verifier: Option<Verifier>,
    client_certificates: bool,
    origins: Vec<Origin>,
    on_loopback: bool,
    public_url: String,
    limiter: SourceLimiter,
    rates: Rates,
    sessions: OnceLock<Arc<dyn Sessions>>,
    own_traces: bool,
    told: Mutex<Recent<Told, Instant>>,
}

/// Who was refused, and why.
type Told = (Option<Source>, std::mem::Discriminant<Refusal>);

/// By what a caller is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownBy {
    /// The kernel, which says who is at the other end of a Unix socket.
    Socket,
    /// The token of a session.
    Session,
    /// A bearer of a rule.
    Bearer,
    /// A signed token.
    Token,
    /// A client certificate.
    Certificate,
    /// Nothing, by a rule for anybody.
    Anybody,
    /// Nothing, from this machine.
    Local,
    /// A node of the cluster says it.
    Mesh,
}

/// What a caller may do, beside who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    /// What it may ask.
    pub permits: Permits,
    /// By what it is known.
    pub known_by: KnownBy,
    /// The session by which it is known.
    pub session: Option<Arc<str>>,
    /// What the operator says of it.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Until when what it has shown is good, since 1970; a session's end is watched by the sessions.
    pub until: Option<Duration>,
}

impl Standing {
    /// That of the operator, and of the mesh itself.
    pub fn unlimited(known_by: KnownBy) -> Self {
        Self { permits: Permits::All, known_by, session: None, labels: Arc::default(), until: None }
    }
}

impl Auth {
    /// For a listener at this address.
    ///
    /// # Errors
    /// When no client for the keys of an issuer can be made.
    pub fn new(settings: AuthSettings, bind: SocketAddr, public_url: &str) -> Result<Self, reqwest::Error> {
        let per_second = settings.requests_per_second.unwrap_or(DEFAULT_REQUESTS_PER_SECOND);
        let auth = Self {
            verifier: settings.jwt.clone().map(Verifier::new).transpose()?,
            client_certificates: settings.client_certificates,
            origins: settings.origins,
            on_loopback: bind.ip().to_canonical().is_loopback(),
            public_url: public_url.to_owned(),
            limiter: SourceLimiter::default(),
            rates: Rates::new(per_second, settings.streams_per_principal.unwrap_or(DEFAULT_STREAMS)),
            sessions: OnceLock::new(),
            own_traces: settings.own_traces,
            told: Mutex::new(Recent::new(MAX_TOLD)),
            rules: settings.rules,
        };
        Ok(auth)
    }

    /// Whether the trace that a caller names is the one that its work is part of. One that is not known never chooses.
    pub(crate) fn trusts_trace_of(&self, caller: &Principal) -> bool {
        match caller.role() {
            Some(PrincipalRole::Operator) | None => true,
            Some(PrincipalRole::User | PrincipalRole::Agent) => !self.own_traces,
            Some(PrincipalRole::Anonymous) => false,
        }
    }

    /// Looks up bearers also here, from now on.
    #[allow(dead_code, reason = "for whoever issues sessions")]
    pub(crate) fn attach(&self, sessions: Arc<dyn Sessions>) {
        if self.sessions.set(sessions).is_err() {
            tracing::error!("sessions are attached twice: the first ones count");
        }
    }

    /// Whether who shows nothing, from this machine, is the operator.
    pub(crate) fn is_implicitly_the_operators(&self) -> bool {
        let configured = !self.rules.is_empty() || self.checks_bearers() || self.client_certificates;
        self.on_loopback && !configured
    }

    /// Refuses what reaches a loopback listener under a name that is not this node's: a page that has led its own name to this
    /// machine. Programs that give no name are no page.
    fn check_host(&self, request: &Request) -> Result<(), Refusal> {
        if !self.on_loopback || request.extensions().get::<KernelVouches>().is_some() {
            return Ok(());
        }
        let mut hosts = request.headers().get_all(http::header::HOST).iter();
        let (Some(host), second) = (hosts.next(), hosts.next()) else { return Ok(()) };
        let host = host.to_str().unwrap_or_default();
        if second.is_none() && principal::is_name_of_node(host, &self.public_url) {
            return Ok(());
        }
        Err(Refusal::Host { host: principal::shown_host(host) })
    }

    /// Who issues the tokens that are taken here, if somebody does.
    pub(crate) fn issuer(&self) -> Option<&str> {
        self.verifier.as_ref().map(|verifier| verifier.settings().expected.issuer.as_str())
    }

    /// The scopes of tokens that rules want, each once.
    pub(crate) fn scopes(&self) -> std::collections::BTreeSet<&str> {
        self.rules.iter().filter_map(Rule::scope).collect()
    }

    fn checks_bearers(&self) -> bool {
        self.verifier.is_some()
            || self.sessions.get().is_some_and(|sessions| sessions.are_granted())
            || self.rules.iter().any(|rule| matches!(rule.evidence, Evidence::Bearer(_)))
    }

    /// A place for a stream of a caller.
    ///
    /// # Errors
    /// When it has too many.
    pub(crate) fn stream(&self, caller: &Caller) -> Result<StreamPlace, Refusal> {
        self.rates.stream(&caller.principal).ok_or(Refusal::TooManyStreams)
    }

    /// Tells the operator of a refusal, not too often.
    fn tell(&self, refusal: &Refusal, request: &Request) {
        let address = request.extensions().get().map(|PeerAddress(address)| address.ip());
        let (kind, now) = ((address.map(Source::of), std::mem::discriminant(refusal)), Instant::now());
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.get(&kind).is_some_and(|at| now.saturating_duration_since(*at) < TOLD_EACH) {
            return;
        }
        *told.get_or(&kind, || now) = now;
        drop(told);
        tracing::info!(source = ?address, path = request.uri().path(), reason = %refusal, "a request is refused");
    }
}

/// Lets a request through to its route with its [`Caller`], or answers it.
pub(crate) async fn gate(State(auth): State<Arc<Auth>>, mut request: Request, next: Next) -> Response {
    let style = Style::of(&request);
    let origin = match browser::gate(&auth.origins, request.headers()) {
        browser::Gate::NoPage => None,
        browser::Gate::Listed(origin) => Some(origin),
        browser::Gate::Refused => {
            auth.tell(&Refusal::Origin, &request);
            return Refusal::Origin.answer(style);
        }
    };
    if let Err(refusal) = auth.check_host(&request) {
        auth.tell(&refusal, &request);
        return refusal.answer(style);
    }
    if let Some(origin) = origin.clone().filter(|_| browser::is_preflight(request.method(), request.headers())) {
        return browser::preflight(origin);
    }
    let known = match auth.identify(request.headers(), request.extensions()).await {
        Ok(caller) => {
            let limited = auth.rates.request(&caller.principal, Instant::now());
            limited.map(|()| caller).map_err(|wait| Refusal::TooMany { wait })
        }
        Err(refusal) => Err(refusal),
    };
    let response = match known {
        Ok(caller) => {
            let end = caller.standing.until;
            request.extensions_mut().insert(caller);
            let is_grpc = lasting::is_grpc(request.headers());
            let response = next.run(request).await;
            match end {
                Some(end) => lasting::ending_with(Box::pin(lasting::past(end)), lasting::OVER, is_grpc, response),
                None => response,
            }
        }
        Err(refusal) => {
            auth.tell(&refusal, &request);
            refusal.answer(style)
        }
    };
    match origin {
        Some(origin) => browser::shown_to(origin, response),
        None => response,
    }
}

/// Lets a request through that has reached this node under a name of its own, whoever asks.
pub(crate) async fn named(State(auth): State<Arc<Auth>>, request: Request, next: Next) -> Response {
    if let Err(refusal) = auth.check_host(&request) {
        auth.tell(&refusal, &request);
        return refusal.answer(Style::Api);
    }
    next.run(request).await
}

/// The operation of every request over MCP, most of which read.
const MCP_USE: &str = "mcp.use";

/// Lets a request of a known caller through to its route if it may ask for that. For routes that are one operation each.
pub(crate) async fn authorize(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let Some(caller) = request.extensions().get::<Caller>() else {
        return Refusal::Nobody.answer(Style::of(&request));
    };
    let reads = request.method().is_safe();
    let operation = operations::of_route(request.method(), &path);
    // What is asked over MCP is told where it is done.
    let changed_by = (!reads && operation != Some(MCP_USE)).then(|| (caller.clone(), operation));
    let response = if caller.standing.permits.route(request.method(), &path) {
        next.run(request).await
    } else {
        let what = format!("{} {path}", request.method());
        Refusal::NotAllowed { who: caller.principal.to_string(), what }.answer(Style::of(&request))
    };
    if let Some((caller, operation)) = changed_by {
        let about = response.extensions().get::<audit::About>().map(|about| about.0.clone());
        let object = about.or_else(|| operations::object_of(&path));
        audit::route(&caller, operation.unwrap_or("unknown"), object.as_deref(), response.status());
    }
    response
}

impl Caller {
    /// Whether this one may ask for a method of A2A.
    ///
    /// # Errors
    /// When it may not.
    pub(crate) fn check_method(&self, method: &str) -> Result<(), towline_a2a::WireError> {
        if self.standing.permits.method(method) {
            return Ok(());
        }
        let refusal = Refusal::NotAllowed { who: self.principal.to_string(), what: method.to_owned() };
        Err(refusal.to_wire())
    }
}

/// A token of a caller: for fuzzing. There is no key, so none may be good.
pub(crate) fn fuzz_token(text: &str) {
    let expected = Expected {
        issuer: "https://id.example".to_owned(),
        audience: "towline".to_owned(),
        algorithms: Algorithm::ALL.to_vec(),
        leeway: Duration::from_secs(30),
    };
    let verified = jwt::parse(text, &expected.algorithms).and_then(|token| token.verify(&[], &expected, jwt::now()));
    assert!(verified.is_err(), "no key has signed {text:?}");
}

/// A key set: for fuzzing.
pub(crate) fn fuzz_key_set(bytes: &[u8]) {
    const MOST: usize = 4;
    let keys = jwt::keys_of_set(bytes, MOST).unwrap_or_default();
    assert!(keys.len() <= MOST);
}

/// A client certificate: for fuzzing.
pub(crate) fn fuzz_certificate(bytes: &[u8]) {
    drop(certificate::facts(bytes));
}

/// Two headers of a caller: for fuzzing. What is listed is let through, and nothing else.
pub(crate) fn fuzz_headers(authorization: &[u8], origin: &[u8]) {
    let mut headers = http::HeaderMap::new();
    for (name, value) in [(http::header::AUTHORIZATION, authorization), (http::header::ORIGIN, origin)] {
        headers.extend(http::HeaderValue::from_bytes(value).ok().map(|value| (name, value)));
    }
    drop(evidence::bearer_of(&headers).map(<[u8]>::to_vec));
    assert!(!matches!(browser::gate(&[], &headers), browser::Gate::Listed(_)), "nothing is listed");
}

#[cfg(test)]
mod tests;
