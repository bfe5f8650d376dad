use std::net::IpAddr;

use axum::{Extension, Router, body::Body, middleware, routing::post};
use http::{HeaderMap, Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use towline_core::{Principal, PrincipalRole};

use super::{
    certificate::{CertificateFacts, San},
    sessions::Known,
    *,
};
use crate::a2a::listener;

const LOOPBACK: [u8; 4] = [127, 0, 0, 1];
const ELSEWHERE: [u8; 4] = [192, 0, 2, 7];
const ADA: &str = "the-token-of-ada";
/// More than any limit of these tests lets through, also on a slow machine.
const MANY: u32 = 2_000;

fn rule(id: &str, role: PrincipalRole, evidence: Evidence) -> Rule {
    Rule { id: id.to_owned(), role, permits: Permits::of(role, &[]), labels: Arc::default(), evidence }
}

fn bearer(token: &str) -> Evidence {
    Evidence::Bearer(Sha256::of(token.as_bytes()))
}

fn ada() -> AuthSettings {
    AuthSettings { rules: vec![rule("user:ada", PrincipalRole::User, bearer(ADA))], ..AuthSettings::default() }
}

/// A gate with a route behind it that says who came through.
struct Door {
    auth: Arc<Auth>,
    router: Router,
}

impl Door {
    fn on(bind: [u8; 4], settings: AuthSettings) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let auth = Arc::new(Auth::new(settings, (bind, 7420).into(), "http://mesh.example").unwrap());
        let whoami = async |Extension(caller): Extension<Caller>| caller.principal.to_string();
        let router =
            Router::new().route("/", post(whoami)).route_layer(middleware::from_fn_with_state(Arc::clone(&auth), gate));
        Self { auth, router }
    }

    async fn ask(&self, from: [u8; 4], request: http::request::Builder) -> (StatusCode, HeaderMap, String) {
        let request = request.extension(PeerAddress((IpAddr::from(from), 40_000).into())).body(Body::empty()).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = axum::body::to_bytes(body, 64 * 1024).await.unwrap();
        (parts.status, parts.headers, String::from_utf8_lossy(&body).into_owned())
    }

    /// Guesses until guesses are held up; the answer to the last one.
    async fn guess(&self, from: [u8; 4], bearer: &str) -> (HeaderMap, String) {
        for failures in 0..MANY {
            let (status, headers, body) = self.ask(from, with(bearer)).await;
            if status == StatusCode::TOO_MANY_REQUESTS {
                assert!(failures >= 20, "{failures}");
                return (headers, body);
            }
            assert_eq!(status, StatusCode::UNAUTHORIZED);
        }
        panic!("nothing holds it up");
    }

    async fn status(&self, from: [u8; 4], request: http::request::Builder) -> u16 {
        self.ask(from, request).await.0.as_u16()
    }
}

fn request() -> http::request::Builder {
    http::Request::post("/").header("host", "127.0.0.1:7420")
}

fn with(token: &str) -> http::request::Builder {
    request().header("authorization", format!("Bearer {token}"))
}

#[tokio::test]
async fn who_shows_nothing_is_the_operator_on_loopback_with_nothing_configured_and_without_a_page() {
    let door = Door::on(LOOPBACK, AuthSettings::default());
    assert_eq!(door.ask(LOOPBACK, request()).await.2, "operator");
    // A bearer says nothing to a listener that checks none.
    assert_eq!(door.ask(LOOPBACK, with("junk")).await.2, "operator");
    assert_eq!(door.status(LOOPBACK, http::Request::post("/").header("host", "evil.example")).await, 403);
    for origin in ["null", "http://127.0.0.1:7420", "https://evil.example"] {
        assert_eq!(door.status(LOOPBACK, request().header("origin", origin)).await, 403, "{origin}");
    }
    assert_eq!(door.status(ELSEWHERE, request()).await, 401);
    // Behind a proxy on the same machine everybody comes from it.
    assert_eq!(Door::on([0, 0, 0, 0], AuthSettings::default()).status(LOOPBACK, request()).await, 401);
    assert_eq!(Door::on(LOOPBACK, ada()).status(LOOPBACK, request()).await, 401);
    let listed = vec![Origin::parse("http://127.0.0.1:3000").unwrap()];
    let door = Door::on(LOOPBACK, AuthSettings { origins: listed, ..AuthSettings::default() });
    assert_eq!(door.status(LOOPBACK, request().header("origin", "http://127.0.0.1:3000")).await, 401);
}

#[tokio::test]
async fn a_bearer_is_somebody_or_the_request_fails_whatever_else_it_carries() {
    let mut settings = ada();
    settings.rules.push(rule("guest", PrincipalRole::User, Evidence::Any));
    let door = Door::on(LOOPBACK, settings);
    assert_eq!(door.ask(ELSEWHERE, with(ADA)).await.2, "user:ada");
    assert_eq!(door.ask(ELSEWHERE, request().header("authorization", format!("bearer  {ADA} "))).await.2, "user:ada");
    assert_eq!(door.ask(ELSEWHERE, request()).await.2, "guest");
    assert_eq!(door.ask(ELSEWHERE, request().header("authorization", "Basic YTpi")).await.2, "guest");
    let twice = with(ADA).header("authorization", "Bearer other");
    for wrong in [with("junk"), with(""), request().header("authorization", "Bearer"), twice] {
        let (status, headers, body) = door.ask(ELSEWHERE, wrong).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert_eq!(headers[header::WWW_AUTHENTICATE], "Bearer realm=\"towline\", error=\"invalid_token\"");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (&body["error"]["code"], &body["error"]["data"][0]["reason"]),
            (&json!(-31401), &json!("UNAUTHENTICATED"))
        );
    }
}

#[tokio::test]
async fn a_certificate_is_whom_its_rule_means_and_the_operator_while_there_is_no_rule() {
    let facts = |san: &str| {
        ClientFacts(CertificateFacts {
            sans: vec![San::wanted(san)],
            subject: "CN=ci, O=Example".to_owned(),
            spki: Sha256::of(b"key"),
            ends: Duration::MAX,
        })
    };
    let bare = AuthSettings { client_certificates: true, ..AuthSettings::default() };
    let door = Door::on(LOOPBACK, bare.clone());
    assert_eq!(door.ask(ELSEWHERE, facts("x").on(request())).await.2, "operator");
    assert_eq!(door.status(LOOPBACK, request()).await, 401, "a mechanism ends the implicit operator");

    let certificate = |wanted| Evidence::Certificate(wanted);
    let mut settings = AuthSettings { client_certificates: true, ..ada() };
    settings.rules.extend([
        rule("gateway", PrincipalRole::Agent, certificate(CertificateMatch::San("gw.example".into()))),
        rule("builder", PrincipalRole::Agent, certificate(CertificateMatch::Spki(Sha256::of(b"other key")))),
    ]);
    let door = Door::on(LOOPBACK, settings.clone());
    assert_eq!(door.ask(ELSEWHERE, facts("gw.example").on(request())).await.2, "gateway");
    // A gateway forwards many callers, and each is who its bearer says.
    assert_eq!(door.ask(ELSEWHERE, facts("gw.example").on(with(ADA))).await.2, "user:ada");
    assert_eq!(door.status(ELSEWHERE, facts("gw.example").on(with("junk"))).await, 401);
    assert_eq!(door.status(ELSEWHERE, facts("other.example").on(request())).await, 403);
    settings.rules.push(rule(
        "subject",
        PrincipalRole::Agent,
        certificate(CertificateMatch::Subject("CN=ci, O=Example".into())),
    ));
    assert_eq!(Door::on(LOOPBACK, settings).ask(ELSEWHERE, facts("other.example").on(request())).await.2, "subject");
}

struct ClientFacts(CertificateFacts);

impl ClientFacts {
    fn on(self, request: http::request::Builder) -> http::request::Builder {
        request.extension(certificate::ClientCertificate(Arc::new(self.0)))
    }
}

#[tokio::test]
async fn who_guesses_is_held_up_and_who_shows_what_is_good_never_is() {
    let mut settings = ada();
    settings.origins = vec![Origin::parse("https://console.example").unwrap()];
    settings.rules.push(rule("guest", PrincipalRole::User, Evidence::Any));
    let door = Door::on(LOOPBACK, settings);
    // What shows nothing and what a page sends counts for nothing.
    for _ in 0..50 {
        assert_eq!(door.status(ELSEWHERE, request()).await, 200);
        assert_eq!(door.status(ELSEWHERE, request().header("origin", "https://evil.example")).await, 403);
    }
    let (headers, body) = door.guess(ELSEWHERE, "guess").await;
    assert!(headers[header::RETRY_AFTER].to_str().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["error"]["data"][0]["reason"], "RATE_LIMITED");
    for from in [ELSEWHERE, [192, 0, 2, 8]] {
        assert_eq!(door.ask(from, with(ADA)).await.2, "user:ada", "a guesser locks nobody out");
    }
    assert_eq!(door.ask(ELSEWHERE, request()).await.2, "guest", "who shows nothing is not refused");
    let another = door.ask([192, 0, 2, 8], with("guess")).await.0;
    assert_eq!(another, StatusCode::UNAUTHORIZED, "another address is another source");
}

#[tokio::test]
async fn a_signed_token_is_let_in_from_the_address_of_a_guesser() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let served = Served::start().await;
    let mut settings = AuthSettings { jwt: Some(served.settings.clone()), ..ada() };
    settings.rules.push(rule("oidc:{sub}", PrincipalRole::User, Evidence::Jwt(std::collections::BTreeMap::new())));
    let door = Door::on(LOOPBACK, settings);
    let forged = jwt::tests::Issuer::new().sign(&jwt::tests::header(), &json!({ "iss": "https://id.example" }));
    door.guess(ELSEWHERE, &forged).await;
    let token = served.token(&jwt::tests::header(), "ada");
    assert_eq!(door.ask(ELSEWHERE, with(&token)).await.2, "oidc:ada");
}

struct OneSession;

impl Sessions for OneSession {
    fn look_up(&self, bearer: &str) -> Known {
        match bearer {
            "tws_live" => {
                let principal = Principal::Named { id: "user:eve".parse().unwrap(), role: PrincipalRole::User };
                Known::Session { principal, id: "ds_1".to_owned() }
            }
            _ if bearer.starts_with("tws_") => Known::NoSession,
            _ => Known::Foreign,
        }
    }
}

#[tokio::test]
async fn a_live_session_is_never_held_up_and_one_that_is_over_is_a_failure() {
    let door = Door::on(LOOPBACK, ada());
    door.auth.attach(Arc::new(OneSession));
    door.guess(ELSEWHERE, "tws_over").await;
    assert_eq!(door.ask(ELSEWHERE, with(ADA)).await.2, "user:ada");
    assert_eq!(door.ask(ELSEWHERE, with("tws_live")).await.2, "user:eve");
    let door = Door::on(LOOPBACK, AuthSettings::default());
    door.auth.attach(Arc::new(OneSession));
    assert_eq!(door.status(LOOPBACK, request()).await, 401, "sessions end the implicit operator");
}

#[tokio::test]
async fn the_other_end_of_a_unix_socket_is_the_operator() {
    let door = Door::on(LOOPBACK, ada());
    assert_eq!(door.ask(LOOPBACK, with("junk").extension(KernelVouches)).await.2, "operator");
}

#[tokio::test]
async fn a_principal_asks_so_often_and_an_operator_as_often_as_it_likes() {
    let mut settings = AuthSettings { requests_per_second: Some(1), ..ada() };
    settings.rules.push(rule("root", PrincipalRole::Operator, bearer("the-token-of-root")));
    let door = Door::on(LOOPBACK, settings);
    let mut asked = 0;
    let (status, headers, _) = loop {
        let answer = door.ask(ELSEWHERE, with(ADA)).await;
        if answer.0 != StatusCode::OK {
            break answer;
        }
        asked += 1;
        assert!(asked < MANY, "nothing holds it up");
    };
    assert!(asked >= 1);
    assert_eq!((status, &headers[header::RETRY_AFTER]), (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap()));
    for _ in 0..20 {
        assert_eq!(door.status(ELSEWHERE, with("the-token-of-root")).await, 200);
    }
}

#[tokio::test]
async fn a_listed_page_may_ask_and_read_and_its_browser_is_told_so() {
    let settings = AuthSettings { origins: vec![Origin::parse("https://console.example").unwrap()], ..ada() };
    let door = Door::on(LOOPBACK, settings);
    let page = |request: http::request::Builder| request.header("origin", "https://console.example");
    let preflight = |origin: &str| {
        let request = request().method(Method::OPTIONS).header("access-control-request-method", "POST");
        request.header("origin", origin)
    };
    let (status, headers, _) = door.ask(ELSEWHERE, preflight("https://console.example")).await;
    assert_eq!(
        (status, &headers["access-control-allow-origin"]),
        (StatusCode::NO_CONTENT, &"https://console.example".parse().unwrap())
    );
    assert!(headers["access-control-allow-headers"].to_str().unwrap().contains("authorization"));
    let (status, headers, _) = door.ask(ELSEWHERE, preflight("https://evil.example")).await;
    assert!(status == StatusCode::FORBIDDEN && !headers.contains_key("access-control-allow-origin"));
    for (request, expected) in [(page(with(ADA)), 200), (page(request()), 401)] {
        let (status, headers, _) = door.ask(ELSEWHERE, request).await;
        assert_eq!(
            (status.as_u16(), &headers["access-control-allow-origin"]),
            (expected, &"https://console.example".parse().unwrap())
        );
        assert!(headers.get_all("vary").iter().any(|value| value == "origin"));
    }
}

#[tokio::test]
async fn a_refusal_is_written_as_the_binding_writes_errors() {
    for (path, content_type, style) in [
        ("/", "application/json", Style::JsonRpc),
        ("/agents/reader", "application/json", Style::JsonRpc),
        ("/rest/tasks", "", Style::HttpJson),
        ("/agents/reader/rest/tasks", "", Style::HttpJson),
        ("/lf.a2a.v1.A2AService/GetTask", "application/grpc+proto", Style::Grpc),
        ("/blobs/x", "", Style::Api),
        ("/api/v1/cluster", "", Style::Api),
    ] {
        let request = http::Request::post(path).header("content-type", content_type).body(()).unwrap();
        assert_eq!(Style::of(&request), style, "{path}");
    }
    let body = async |style| {
        let answer = Refusal::Nobody.answer(style);
        let (parts, body) = answer.into_parts();
        let body = axum::body::to_bytes(body, 64 * 1024).await.unwrap();
        assert!(parts.headers.contains_key("www-authenticate"));
        (parts.status.as_u16(), parts.headers, serde_json::from_slice::<Value>(&body).unwrap_or_default())
    };
    let (status, _, told) = body(Style::HttpJson).await;
    assert_eq!((status, &told["error"]["status"]), (401, &json!("UNAUTHENTICATED")));
    let (status, _, told) = body(Style::Api).await;
    assert_eq!((status, &told["error"]["code"]), (401, &json!("unauthenticated")));
    let (status, headers, _) = body(Style::Grpc).await;
    assert_eq!((status, &headers["grpc-status"]), (200, &"16".parse().unwrap()));
}

/// An issuer whose key set is served.
struct Served {
    issuer: jwt::tests::Issuer,
    settings: JwtSettings,
    fetches: Arc<std::sync::atomic::AtomicU32>,
    _stop: tokio_util::sync::DropGuard,
}

impl Served {
    async fn start() -> Self {
        let issuer = jwt::tests::Issuer::new();
        let fetches = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let (set, counted) = (issuer.key_set(), Arc::clone(&fetches));
        let route = axum::routing::get(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::future::ready(set.clone())
        });
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", tcp.local_addr().unwrap());
        let stop = CancellationToken::new();
        tokio::spawn(listener::serve(tcp, listener::Plain, Router::new().route("/keys", route), stop.clone()));
        let expected = Expected {
            issuer: "https://id.example".into(),
            audience: "towline".into(),
            algorithms: vec![Algorithm::Es256],
            leeway: Duration::from_secs(30),
        };
        let settings = JwtSettings { expected, url, kept: Duration::from_secs(3600) };
        Self { issuer, settings, fetches, _stop: stop.drop_guard() }
    }

    fn token(&self, header: &Value, sub: &str) -> String {
        let ends = jwt::now().as_secs() + 600;
        let claims =
            json!({ "iss": "https://id.example", "aud": "towline", "sub": sub, "exp": ends, "groups": ["mesh"] });
        self.issuer.sign(header, &claims)
    }
}

#[tokio::test]
async fn a_token_of_the_issuer_is_who_its_claims_say() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let served = Served::start().await;
    let groups = std::collections::BTreeMap::from([("groups".to_owned(), "mesh".to_owned())]);
    let mut settings = AuthSettings { jwt: Some(served.settings.clone()), ..ada() };
    settings.rules.push(rule("oidc:{sub}", PrincipalRole::User, Evidence::Jwt(groups)));
    let door = Door::on(LOOPBACK, settings);
    for sub in ["ada", "bob"] {
        let token = served.token(&jwt::tests::header(), sub);
        assert_eq!(door.ask(ELSEWHERE, with(&token)).await.2, format!("oidc:{sub}"));
    }
    assert_eq!(door.ask(ELSEWHERE, with(ADA)).await.2, "user:ada");
    let forged = jwt::tests::Issuer::new().sign(&jwt::tests::header(), &json!({ "iss": "https://id.example" }));
    assert_eq!(door.status(ELSEWHERE, with(&forged)).await, 401);
    // Invented key names make no more requests to the issuer.
    for name in 0..5 {
        let token = served.token(&json!({ "alg": "ES256", "kid": format!("invented-{name}") }), "ada");
        assert_eq!(door.status(ELSEWHERE, with(&token)).await, 401);
    }
    assert_eq!(served.fetches.load(std::sync::atomic::Ordering::Relaxed), 1);
}

/// A door behind which a stream stays open.
fn lasting_door(settings: AuthSettings) -> Router {
    let auth = Arc::new(Auth::new(settings, (LOOPBACK, 7420).into(), "http://mesh.example").unwrap());
    let open = async || {
        let words = futures::StreamExt::chain(
            futures::stream::iter([Ok::<_, std::convert::Infallible>("data: word\n\n")]),
            futures::stream::pending(),
        );
        ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(words))
    };
    Router::new().route("/stream", post(open)).route_layer(middleware::from_fn_with_state(auth, gate))
}

async fn whole(answer: axum::response::Response) -> String {
    let body = axum::body::to_bytes(answer.into_body(), 64 * 1024);
    let body = tokio::time::timeout(Duration::from_secs(60), body).await.expect("it ends").unwrap();
    String::from_utf8_lossy(&body).into_owned()
}

#[tokio::test]
async fn what_a_signed_token_or_a_certificate_has_opened_ends_with_it_and_says_why() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut served = Served::start().await;
    served.settings.expected.leeway = Duration::ZERO;
    let san = CertificateMatch::San("gw.example".into());
    let mut settings =
        AuthSettings { jwt: Some(served.settings.clone()), client_certificates: true, ..AuthSettings::default() };
    settings.rules.push(rule("oidc:{sub}", PrincipalRole::User, Evidence::Jwt(std::collections::BTreeMap::new())));
    settings.rules.push(rule("gateway", PrincipalRole::User, Evidence::Certificate(san)));
    let door = lasting_door(settings);
    let post = |path: &str| http::Request::post(path).header("host", "localhost");
    // Long enough that a slow machine asks before it is over.
    let soon = || jwt::now() + Duration::from_secs(6);
    let token = || {
        let claims =
            json!({ "iss": "https://id.example", "aud": "towline", "sub": "ada", "exp": soon().as_secs_f64() });
        format!("Bearer {}", served.issuer.sign(&jwt::tests::header(), &claims))
    };
    let certificate = || {
        let sans = vec![San::wanted("gw.example")];
        ClientFacts(CertificateFacts { sans, subject: String::new(), spki: Sha256::of(b"key"), ends: soon() })
    };
    for by_token in [true, false] {
        let request = post("/stream");
        let request = if by_token { request.header("authorization", token()) } else { certificate().on(request) };
        let answer = door.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(whole(answer).await, format!("data: word\n\n: {}\n\n", lasting::OVER), "{by_token}");
    }
}

#[tokio::test]
async fn a_good_token_that_lacks_a_scope_is_told_which() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let served = Served::start().await;
    let mut settings = AuthSettings { jwt: Some(served.settings.clone()), ..AuthSettings::default() };
    let wanted =
        [("scope", "mesh"), ("email_verified", "true")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    settings.rules.push(rule("oidc:{sub}", PrincipalRole::User, Evidence::Jwt(wanted.into())));
    let door = lasting_door(settings);
    let ask = async |scope: &str, verified: bool| {
        let claims = json!({
            "iss": "https://id.example", "aud": "towline", "sub": "ada", "scope": scope, "email_verified": verified,
            "exp": (jwt::now() + Duration::from_secs(60)).as_secs_f64(),
        });
        let token = format!("Bearer {}", served.issuer.sign(&jwt::tests::header(), &claims));
        let request = http::Request::post("/stream").header("host", "localhost").header("authorization", token);
        let answer = door.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let challenge = answer.headers().get("www-authenticate").map(|value| value.to_str().unwrap().to_owned());
        (answer.status(), challenge.unwrap_or_default())
    };
    let (status, challenge) = ask("openid", true).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(challenge.ends_with(r#"error="insufficient_scope", scope="mesh""#), "{challenge}");
    assert_eq!(ask("openid", false).await.0, StatusCode::UNAUTHORIZED, "a scope alone would not do");
    assert_eq!(ask("openid mesh", true).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_name_that_is_not_this_machines_is_refused_on_loopback_whoever_asks() {
    let with_guests = || {
        let mut settings = ada();
        settings.rules.push(rule("guest", PrincipalRole::User, Evidence::Any));
        settings
    };
    let door = Door::on(LOOPBACK, with_guests());
    for host in ["evil.example", "127.0.0.1.evil.example:7420", "127.0.0.1:80@evil.example", ""] {
        let request = http::Request::post("/").header("host", host);
        let (status, _, body) = door.ask(LOOPBACK, request.header("authorization", format!("Bearer {ADA}"))).await;
        assert!(status == StatusCode::FORBIDDEN && body.contains("not a name of this node"), "{host}: {body}");
        assert_eq!(door.status(LOOPBACK, http::Request::post("/").header("host", host)).await, 403, "{host}");
    }
    let two = http::Request::post("/").header("host", "localhost").header("host", "evil.example");
    assert_eq!(door.status(LOOPBACK, two).await, 403);
    for host in ["localhost:7420", "[::1]:1", "127.0.0.1", "Mesh.example"] {
        assert_eq!(door.status(LOOPBACK, http::Request::post("/").header("host", host)).await, 200, "{host}");
    }
    assert_eq!(door.status(LOOPBACK, http::Request::post("/")).await, 200, "who gives no name is no page");
    let public = Door::on([0, 0, 0, 0], with_guests());
    assert_eq!(public.status(ELSEWHERE, http::Request::post("/").header("host", "lb.internal")).await, 200);
    let over_unix = http::Request::post("/").header("host", "evil.example").extension(KernelVouches);
    assert_eq!(door.ask(LOOPBACK, over_unix).await.2, "operator");
}

#[tokio::test]
async fn an_issuer_that_is_not_reached_is_nobodys_failure() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let served = Served::start().await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gone = JwtSettings { url: format!("http://{unused}/keys"), ..served.settings.clone() };
    let mut settings = AuthSettings { jwt: Some(gone), ..AuthSettings::default() };
    settings.rules.push(rule("oidc:{sub}", PrincipalRole::User, Evidence::Jwt(std::collections::BTreeMap::new())));
    let door = Door::on(LOOPBACK, settings);
    let token = served.token(&jwt::tests::header(), "ada");
    for _ in 0..25 {
        let (status, headers, body) = door.ask(ELSEWHERE, with(&token)).await;
        assert!(headers.contains_key(header::RETRY_AFTER) && body.contains("UNAVAILABLE"), "{status} {body}");
    }
}

/// Certificates of a listener and of a client, both signed by one authority.
struct Certificates {
    authority: rcgen::Certificate,
    server: TlsSettings,
    client: reqwest::Identity,
}

impl Certificates {
    fn make() -> Self {
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = parameters.self_signed(&authority_key).unwrap();
        let issuer = rcgen::Issuer::new(parameters, authority_key);
        let sign = |name: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate =
                rcgen::CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
            (certificate, key)
        };
        let (certificate, key) = sign("127.0.0.1");
        let server = TlsSettings {
            certificates: vec![certificate.der().clone()],
            key: rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            client_ca: vec![authority.der().clone()],
        };
        let (certificate, key) = sign("gw.example");
        let client =
            reqwest::Identity::from_pem(format!("{}{}", certificate.pem(), key.serialize_pem()).as_bytes()).unwrap();
        Self { authority, server, client }
    }
}

#[tokio::test]
async fn a_client_certificate_is_proven_in_the_handshake_and_may_be_left_out() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let made = Certificates::make();
    let san = CertificateMatch::San("gw.example".into());
    let mut settings = AuthSettings { client_certificates: true, ..ada() };
    settings.rules.push(rule("gateway", PrincipalRole::Agent, Evidence::Certificate(san)));
    let door = Door::on(LOOPBACK, settings);
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", tcp.local_addr().unwrap());
    let stop = CancellationToken::new();
    let tls = PublicTls::new(made.server).unwrap();
    let serving = tokio::spawn(listener::serve(tcp, tls, door.router.clone(), stop.clone()));

    let authority = reqwest::Certificate::from_pem(made.authority.pem().as_bytes()).unwrap();
    let client = || reqwest::Client::builder().no_proxy().tls_certs_only([authority.clone()]);
    let known = client().identity(made.client).build().unwrap();
    assert_eq!(known.post(&url).send().await.unwrap().text().await.unwrap(), "gateway");
    assert_eq!(known.post(&url).bearer_auth(ADA).send().await.unwrap().text().await.unwrap(), "user:ada");
    let without = client().build().unwrap();
    assert_eq!(without.post(&url).send().await.unwrap().status().as_u16(), 401);
    assert_eq!(without.post(&url).bearer_auth(ADA).send().await.unwrap().text().await.unwrap(), "user:ada");
    let stranger = client().identity(Certificates::make().client).build().unwrap();
    assert!(stranger.post(&url).send().await.is_err(), "a certificate of another authority ends the handshake");
    stop.cancel();
    serving.await.unwrap();
}
