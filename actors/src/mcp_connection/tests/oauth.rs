//! OAuth against an authorization server that gives tokens as the specifications say, and takes each refresh token once.

use axum::{
    Json, Router,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use std::{
    collections::BTreeSet,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{Mutex, MutexGuard},
};

use super::{
    wire::{text, tool},
    *,
};
use crate::{
    Secret,
    mcp_connection::{AuthError, McpAuth, McpSecurity, McpServerState, OAuthGrant, OAuthSettings},
};

const REDIRECT: &str = "http://127.0.0.1:9/callback";

/// A server that wants tokens, and the authorization server that gives them, at two ports.
struct World {
    endpoint: String,
    issuer: String,
    state: Mutex<Given>,
    serving: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Given {
    /// Good tokens, and their scopes.
    tokens: BTreeMap<String, String>,
    refresh: BTreeSet<String>,
    /// Code challenges of the codes that browsers brought back.
    codes: BTreeMap<String, String>,
    /// What was asked of the token endpoint.
    asked: Vec<BTreeMap<String, String>>,
    counter: u64,
    life: u64,
    /// Questions of the device that are answered with a no for now.
    undecided: u32,
    /// Whether the MCP server refuses each token.
    refuses_all: bool,
    /// What is wrong with the metadata.
    twist: Option<&'static str>,
}

impl World {
    async fn start() -> Arc<Self> {
        install_crypto();
        let listen = || async { TcpListener::bind("127.0.0.1:0").await.unwrap() };
        let (tools, tokens) = (listen().await, listen().await);
        let world = Arc::new(World {
            endpoint: format!("http://{}/mcp", tools.local_addr().unwrap()),
            issuer: format!("http://{}", tokens.local_addr().unwrap()),
            state: Mutex::new(Given { life: 3_600, ..Given::default() }),
            serving: Mutex::default(),
        });
        let mcp = Router::new()
            .route("/mcp", post(take))
            .route("/.well-known/oauth-protected-resource/mcp", get(resource))
            .with_state(world.clone());
        let issuer = Router::new()
            .route("/.well-known/oauth-authorization-server", get(metadata))
            .route("/register", post(register))
            .route("/authorize", get(authorize))
            .route("/device", post(device))
            .route("/token", post(token))
            .with_state(world.clone());
        let serve =
            |listener, router: Router| tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        world.serving.lock().unwrap().extend([serve(tools, mcp), serve(tokens, issuer)]);
        world
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.state.lock().unwrap()
    }

    fn stop(&self) {
        self.serving.lock().unwrap().iter().for_each(JoinHandle::abort);
    }

    fn config(&self, oauth: OAuthSettings, folder: Option<&Path>) -> McpServerConfig {
        let security = McpSecurity { auth: McpAuth::OAuth(oauth), tls: None, folder: folder.map(Path::to_owned) };
        McpServerConfig { security, ..McpServerConfig::new("tickets", McpTransport::http(&self.endpoint)) }
    }

    fn own() -> OAuthSettings {
        OAuthSettings {
            grant: OAuthGrant::ClientCredentials,
            client_id: Some("me".into()),
            client_secret: Some(Secret::new("a secret")),
            ..OAuthSettings::default()
        }
    }

    /// Requests for tokens of a kind.
    fn asked(&self, grant: &str) -> Vec<BTreeMap<String, String>> {
        self.given().asked.iter().filter(|asked| asked["grant_type"] == grant).cloned().collect()
    }

    async fn logged_in(&self, handle: &McpHandle) {
        // What it asks for is what the server wants, which the first try has heard.
        while handle.status().state == McpServerState::Connecting {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let begun = handle.begin_login(REDIRECT).await.unwrap();
        let (code, state, issuer) = browse(&begun.url).await;
        assert_eq!(state, begun.state);
        handle.finish_login(&state, &code, Some(&issuer)).await.unwrap();
        handle.ready(WITHIN).await.unwrap();
    }
}

/// What a browser brings back.
async fn browse(url: &str) -> (String, String, String) {
    let browser = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let answer = browser.get(url).send().await.unwrap();
    let back: reqwest::Url = answer.headers()[header::LOCATION].to_str().unwrap().parse().unwrap();
    assert!(back.as_str().starts_with(REDIRECT));
    let back: BTreeMap<String, String> = back.query_pairs().into_owned().collect();
    (back["code"].clone(), back["state"].clone(), back["iss"].clone())
}

async fn take(State(world): State<Arc<World>>, headers: HeaderMap, Json(message): Json<Value>) -> Response {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let given = world.given();
    let scopes = bearer.and_then(|token| given.tokens.get(token)).filter(|_| !given.refuses_all).cloned();
    drop(given);
    let metadata = world.endpoint.replace("/mcp", "/.well-known/oauth-protected-resource/mcp");
    let Some(scopes) = scopes else {
        let challenge = format!("Bearer resource_metadata=\"{metadata}\", scope=\"use\"");
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response();
    };
    let wants = if message["params"]["name"] == "admin" { "admin" } else { "use" };
    if !scopes.split(' ').any(|scope| scope == wants) {
        let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{wants}\"");
        return (StatusCode::FORBIDDEN, [(header::WWW_AUTHENTICATE, challenge)]).into_response();
    }
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
            "serverInfo": { "name": "tickets", "version": "1" } }),
        "tools/list" => json!({ "tools": [tool("work", "Works."), tool("admin", "Needs more.")] }),
        "tools/call" => text("done"),
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    Json(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })).into_response()
}

async fn resource(State(world): State<Arc<World>>) -> Json<Value> {
    let about = match world.given().twist {
        Some("resource") => "http://127.0.0.1:1/mcp".to_owned(),
        _ => world.endpoint.clone(),
    };
    Json(json!({ "resource": about, "authorization_servers": [world.issuer] }))
}

async fn metadata(State(world): State<Arc<World>>) -> Json<Value> {
    let issuer = &world.issuer;
    let twist = world.given().twist;
    let mut metadata = json!({
        "issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"), "registration_endpoint": format!("{issuer}/register"),
        "device_authorization_endpoint": format!("{issuer}/device"), "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": true, "scopes_supported": ["use", "offline_access"],
    });
    match twist {
        Some("issuer") => metadata["issuer"] = json!("http://127.0.0.1:1"),
        Some("pkce") => metadata["code_challenge_methods_supported"] = json!(["plain"]),
        Some("private") => metadata["token_endpoint"] = json!("https://10.0.0.1/token"),
        _ => {}
    }
    Json(metadata)
}

async fn register(Json(said): Json<Value>) -> Response {
    assert_eq!(said["token_endpoint_auth_method"], "none");
    (StatusCode::CREATED, Json(json!({ "client_id": "registered" }))).into_response()
}

async fn authorize(State(world): State<Arc<World>>, Query(asked): Query<BTreeMap<String, String>>) -> Redirect {
    assert_eq!((asked["client_id"].as_str(), asked["response_type"].as_str()), ("registered", "code"));
    assert_eq!((&asked["resource"], asked["code_challenge_method"].as_str()), (&world.endpoint, "S256"));
    assert_eq!(asked["scope"], "use offline_access");
    let mut given = world.given();
    given.counter += 1;
    let code = format!("code-{}", given.counter);
    given.codes.insert(code.clone(), asked["code_challenge"].clone());
    let (redirect, state, issuer) = (&asked["redirect_uri"], &asked["state"], &world.issuer);
    Redirect::to(&format!("{redirect}?code={code}&state={state}&iss={issuer}"))
}

fn fields(form: &str) -> BTreeMap<String, String> {
    form_urlencoded::parse(form.as_bytes()).into_owned().collect()
}

async fn device(body: String) -> Json<Value> {
    assert_eq!(fields(&body)["client_id"], "registered");
    Json(json!({ "device_code": "device-1", "user_code": "ABCD-EFGH", "verification_uri": "http://127.0.0.1:9/device",
        "expires_in": 600, "interval": 1 }))
}

async fn token(State(world): State<Arc<World>>, headers: HeaderMap, body: String) -> Response {
    let mut asked = fields(&body);
    let basic = headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
    let refused = |code: &str| (StatusCode::BAD_REQUEST, Json(json!({ "error": code }))).into_response();
    asked.extend(basic.map(|basic| ("basic".to_owned(), basic)));
    let mut given = world.given();
    given.asked.push(asked.clone());
    assert_eq!(asked["resource"], world.endpoint, "tokens are for one server");
    let scope = asked.get("scope").cloned().unwrap_or_else(|| "use".to_owned());
    match asked["grant_type"].as_str() {
        "client_credentials" => {
            // The secret is "a secret", encoded like a form.
            assert_eq!(asked["basic"], "Basic bWU6YStzZWNyZXQ=");
        }
        "authorization_code" => {
            assert_eq!((asked["client_id"].as_str(), asked["redirect_uri"].as_str()), ("registered", REDIRECT));
            let hash = ring::digest::digest(&ring::digest::SHA256, asked["code_verifier"].as_bytes());
            if given.codes.remove(&asked["code"]) != Some(URL_SAFE_NO_PAD.encode(hash)) {
                return refused("invalid_grant");
            }
        }
        "refresh_token" => {
            if !given.refresh.remove(&asked["refresh_token"]) {
                // Somebody else has used it: nobody keeps anything.
                given.tokens.clear();
                given.refresh.clear();
                return refused("invalid_grant");
            }
        }
        _ if given.undecided > 0 => {
            given.undecided -= 1;
            return refused("authorization_pending");
        }
        _ => assert_eq!(asked["device_code"], "device-1"),
    }
    given.counter += 1;
    let (token, refresh) = (format!("token-{}", given.counter), format!("refresh-{}", given.counter));
    given.tokens.insert(token.clone(), scope.clone());
    let mut answer = json!({ "access_token": token, "token_type": "Bearer", "expires_in": given.life, "scope": scope });
    if asked["grant_type"] != "client_credentials" {
        given.refresh.insert(refresh.clone());
        answer["refresh_token"] = json!(refresh);
    }
    Json(answer).into_response()
}

#[tokio::test]
async fn a_node_with_a_grant_of_its_own_asks_again_when_refused_and_for_more_when_that_does_not_suffice() {
    let world = World::start().await;
    let handle = connected(world.config(World::own(), None)).await;
    assert_eq!(call(&handle, "work").await.unwrap().text, "done");
    assert_eq!(world.asked("client_credentials").len(), 1, "a token is good for all requests");
    world.given().tokens.clear();
    assert_eq!(call(&handle, "work").await.unwrap().text, "done", "refused, and asked once more");
    assert_eq!(call(&handle, "admin").await.unwrap().text, "done", "more was asked for");
    let asked = world.asked("client_credentials");
    let scopes: Vec<&str> = asked.iter().map(|asked| asked["scope"].as_str()).collect();
    assert_eq!(scopes, ["use", "use", "admin use"]);
    handle.stop().await;
    world.stop();
}

#[tokio::test]
async fn a_person_logs_a_node_in_and_the_token_is_kept_for_this_user_alone_and_renewed() {
    let world = World::start().await;
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("mcp");
    let config = world.config(OAuthSettings::default(), Some(&kept));
    let handle = McpHandle::spawn(config.clone(), None, "", None).await.unwrap();
    let reason = handle.ready(Duration::from_secs(2)).await.unwrap_err().message;
    assert!(reason.contains("towline mcp login tickets"), "{reason}");
    world.logged_in(&handle).await;
    assert_eq!(call(&handle, "work").await.unwrap().text, "done");
    handle.stop().await;

    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&kept), mode(&kept.join("tickets.json"))), (0o700, 0o600));
    let again = connected(config.clone()).await;
    assert_eq!(call(&again, "work").await.unwrap().text, "done", "nobody had to log in again");
    world.given().tokens.clear();
    let calls = futures::future::join_all((0..20).map(|_| call(&again, "work"))).await;
    assert!(calls.iter().all(Result::is_ok), "{calls:?}");
    assert_eq!(world.asked("refresh_token").len(), 1, "a refresh token is good once, also for twenty calls");
    again.stop().await;

    let elsewhere = McpServerConfig { transport: McpTransport::http("http://127.0.0.1:1/mcp"), ..config };
    let other = McpHandle::spawn(elsewhere, None, "", None).await.unwrap();
    let reason = other.ready(Duration::from_secs(1)).await.unwrap_err().message;
    assert!(!reason.contains("token"), "what is kept is not sent elsewhere: {reason}");
    other.stop().await;
    world.stop();
}

#[tokio::test]
async fn a_token_is_renewed_before_it_ends_and_its_end_is_told_when_nobody_gives_another_one() {
    let world = World::start().await;
    world.given().life = 2;
    let handle = McpHandle::spawn(world.config(OAuthSettings::default(), None), None, "", None).await.unwrap();
    world.logged_in(&handle).await;
    let renewed = async {
        while world.asked("refresh_token").is_empty() {
            assert_eq!(call(&handle, "work").await.unwrap().text, "done");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(WITHIN, renewed).await.expect("it is renewed");
    {
        let mut given = world.given();
        given.refresh.clear();
        given.tokens.clear();
    }
    let error = call(&handle, "work").await.unwrap_err();
    assert!(error.message.contains("towline mcp login tickets"), "{error}");
    assert_eq!((error.error_type.as_ref(), error.may_have_happened), ("unauthorized", false), "nobody carried it out");
    let error = call(&handle, "admin").await.unwrap_err();
    assert!(!error.message.contains("token-"), "{error}");
    handle.stop().await;
    world.stop();
}

#[tokio::test]
async fn more_scopes_of_a_person_are_told_and_asked_for_at_the_next_login() {
    let world = World::start().await;
    let handle = McpHandle::spawn(world.config(OAuthSettings::default(), None), None, "", None).await.unwrap();
    world.logged_in(&handle).await;
    let error = call(&handle, "admin").await.unwrap_err();
    assert!(error.message.contains("\"admin\"") && error.message.contains("towline mcp login"), "{error}");
    let begun = handle.begin_login(REDIRECT).await.unwrap();
    assert!(begun.url.contains("scope=admin+use+offline_access"), "{}", begun.url);
    handle.stop().await;
    world.stop();
}

#[tokio::test]
async fn a_person_types_in_a_code_elsewhere() {
    let world = World::start().await;
    world.given().undecided = 1;
    let handle = McpHandle::spawn(world.config(OAuthSettings::default(), None), None, "", None).await.unwrap();
    let begun = handle.begin_device_login().await.unwrap();
    assert_eq!((begun.code.as_str(), begun.interval), ("ABCD-EFGH", 1));
    assert_eq!(handle.poll_login(&begun.state).await, Err(AuthError::Pending { slower: false }));
    handle.poll_login(&begun.state).await.unwrap();
    handle.ready(WITHIN).await.unwrap();
    assert_eq!(call(&handle, "work").await.unwrap().text, "done");
    assert_eq!(handle.poll_login(&begun.state).await, Err(AuthError::UnknownLogin));
    handle.stop().await;
    world.stop();
}

#[tokio::test]
async fn what_others_say_of_tokens_is_not_believed() {
    let world = World::start().await;
    let handle = McpHandle::spawn(world.config(OAuthSettings::default(), None), None, "", None).await.unwrap();
    for (twist, says) in
        [("resource", "another server"), ("issuer", "is of http://127.0.0.1:1"), ("pkce", "does not offer PKCE")]
    {
        world.given().twist = Some(twist);
        let refused = handle.begin_login(REDIRECT).await.unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
    world.given().twist = Some("private");
    let begun = handle.begin_login(REDIRECT).await.unwrap();
    let (code, state, issuer) = browse(&begun.url).await;
    let inside = handle.finish_login(&state, &code, Some(&issuer)).await.unwrap_err().to_string();
    assert!(inside.contains("10.0.0.1") && inside.contains("oauth.allow"), "{inside}");

    world.given().twist = None;
    let begun = handle.begin_login(REDIRECT).await.unwrap();
    let (code, state, _) = browse(&begun.url).await;
    for issuer in [Some("http://127.0.0.1:1"), None] {
        let begun = handle.begin_login(REDIRECT).await.unwrap();
        let mixed_up = handle.finish_login(&begun.state, &code, issuer).await.unwrap_err().to_string();
        assert!(mixed_up.contains("and not from"), "{mixed_up}");
    }
    assert_eq!(handle.finish_login("invented", &code, None).await, Err(AuthError::UnknownLogin));
    for redirect in ["https://evil.example/", "http://evil.example/", "x"] {
        assert!(handle.begin_login(redirect).await.is_err(), "{redirect}");
    }
    let other = handle.begin_login(REDIRECT).await.unwrap();
    let stolen = handle.finish_login(&other.state, &code, Some(&world.issuer)).await.unwrap_err().to_string();
    assert!(stolen.contains("invalid_grant"), "a code of another login has another verifier: {stolen}");
    assert!(handle.finish_login(&state, &code, Some(&world.issuer)).await.is_err(), "the code was used");
    handle.stop().await;
    world.stop();
}

#[tokio::test]
async fn a_server_that_refuses_every_token_has_few_of_them_made() {
    let world = World::start().await;
    let handle = connected(world.config(World::own(), None)).await;
    world.given().refuses_all = true;
    for _ in 0..30 {
        let error = call(&handle, "work").await.unwrap_err();
        assert!(!error.message.contains("token-"), "{error}");
    }
    let asked = world.asked("client_credentials").len();
    assert!(asked <= 12, "{asked} tokens were made for 30 calls");
    handle.stop().await;
    world.stop();
}
