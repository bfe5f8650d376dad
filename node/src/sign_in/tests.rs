//! Signing in at a real node, over real HTTP.

use std::sync::atomic::AtomicBool;

use axum::{Router, middleware};
use futures::StreamExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use towline_a2a::{A2aClient, ClientError, SendOptions, SendReply};
use towline_cluster::{Cluster, ClusterOptions, Registration, membership};
use towline_core::{
    AgentSpec, DeviceAsk, Message, NodeAddresses, Part, Placement, PrincipalRole, Role, TaskId,
    limits::MAX_DEVICE_REQUESTS_PER_SOURCE,
};

use super::{launch::LAUNCH, *};
use crate::{
    a2a::{self, A2aSettings, Door, listener},
    api::{self, Api},
    auth::{Auth, AuthSettings, Sessions, audit::tests::Lines},
};

/// A wait of a test: far above what is measured, since machines are busy.
const PATIENCE: Duration = Duration::from_secs(30);

const ON: DeviceGrantSettings =
    DeviceGrantSettings { enabled: true, session_ttl: Duration::from_secs(3600), allow_operator: true };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_is_approved_under_a_name_and_acts_as_that_person_only() {
    let node = Node::start(ON).await;
    let metadata = node.get("/.well-known/oauth-authorization-server").await;
    assert_eq!(metadata.1["token_endpoint"], format!("{}{TOKEN}", node.url));
    let asked = node.ask("laptop", "user").await;
    assert_eq!((&asked["interval"], &asked["expires_in"]), (&json!(5), &json!(600)));
    let waiting = node.get("/api/v1/auth/devices").await.1;
    assert_eq!(
        (&waiting["devices"][0]["client"], &waiting["devices"][0]["state"]),
        (&json!("laptop"), &json!("pending"))
    );

    let approved = node.approve(&asked, "ada", None).await;
    assert_eq!((approved.0, &approved.1["approved_before"]), (200, &Value::Null), "{}", approved.1);
    let (status, granted) = node.poll(&asked).await;
    assert_eq!(
        (status, &granted["token_type"], &granted["scope"]),
        (200, &json!("Bearer"), &json!("user")),
        "{granted}"
    );
    assert_eq!(granted["principal"], "user:ada");

    let ada = node.client(&granted);
    let task = task_of(ada.send(&message("m-1"), ASYNC, None).await.unwrap());
    let id: TaskId = task.parse().unwrap();
    let owner = node.cluster.handle().local(|state| state.task(id).unwrap().owner.to_string());
    assert_eq!(owner, "user:ada");
    let bob = node.client(&node.signed_in("bob", "user", None).await);
    assert!(bob.get_task(&task, None, None).await.unwrap_err().is_unknown_task());
    let again = node.client(&node.signed_in("ada", "user", None).await);
    assert_eq!(again.get_task(&task, None, None).await.unwrap().id, task, "who signs in again finds what is its own");
    let refused = node.with(&granted, "/api/v1/cluster").await;
    assert_eq!(refused.0, 403, "{}", refused.1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_signed_in_is_told_who_that_is_and_until_when() {
    const PATH: &str = "/api/v1/auth/whoami";
    let node = Node::start(ON).await;
    let (status, ada) = node.with(&node.signed_in("ada", "user", None).await, PATH).await;
    assert_eq!(status, 200, "{ada}");
    let session = node.sessions().await[0].clone();
    assert_eq!(
        (&ada["principal"], &ada["role"], &ada["evidence"], &ada["session"]),
        (&json!("user:ada"), &json!("user"), &json!("session"), &session["id"])
    );
    let ends = |text: &Value| text.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!(ends(&ada["until"]), ends(&session["expires"]));
    assert_eq!((&ada["grants"], &ada["cluster"], &ada["node"]["id"]), (&json!([]), &json!("test"), &json!(1)));
    let may = ada["may"].as_array().unwrap();
    assert!(may.contains(&json!("message.send")) && !may.contains(&json!("cluster.status")), "{ada}");
    let operator = node.get(PATH).await.1;
    assert_eq!((&operator["role"], &operator["evidence"]), (&json!("operator"), &json!("session")));
    let nobody = Node::answer(node.http.get(format!("{}{PATH}", node.url))).await;
    assert_eq!((nobody.0, &nobody.1["error"]["code"]), (401, &json!("unauthenticated")));
    node.stop().await;
}

/// In one thread, whose audit is looked at.
#[tokio::test]
async fn a_decision_that_is_refused_is_audited_with_what_it_was_about() {
    let lines = Lines::default();
    let guard = lines.capture();
    let node = Node::start(DeviceGrantSettings { allow_operator: false, ..ON }).await;
    let asked = node.ask("laptop", "operator").await;
    let trigger = json!({ "name": "nightly", "agent": "reader" });
    let peer = json!({ "name": "legal", "urls": ["no url"] });
    let token = json!({ "role": "worker", "ttl_ms": 0 });
    assert_eq!(node.approve(&asked, "ada", Some("operator")).await.0, 409);
    for (path, body) in [
        ("/api/v1/auth/sessions/revoke", json!({ "name": "ada lovelace" })),
        ("/api/v1/triggers", trigger),
        ("/api/v1/peers", peer),
        ("/api/v1/join-tokens", token),
    ] {
        let (status, answer) = node.post(path, &body).await;
        assert_eq!(status, 400, "{path}: {answer}");
    }
    let denied = node.post(&format!("/api/v1/auth/devices/{}/deny", code(&asked)), &json!({})).await;
    assert_eq!(denied.0, 200, "{}", denied.1);
    node.stop().await;
    drop(guard);
    let told: Vec<[Value; 3]> =
        lines.read().iter().map(|line| ["op", "object", "outcome"].map(|field| line[field].clone())).collect();
    let expected = [
        ["auth.device.decide", "ada", "409"],
        ["auth.revoke", "ada lovelace", "400"],
        ["sub.add", "nightly", "400"],
        ["peer.add", "legal", "400"],
        ["cluster.join-token", "worker", "400"],
        ["auth.device.decide", "laptop", "ok"],
    ];
    assert_eq!(told, expected.map(|line| line.map(Value::from)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_foreign_name_a_loopback_listener_gives_its_public_card_and_nothing_else() {
    let node = Node::start(ON).await;
    let ask = async |path: &str, host: &str| {
        let request = node.http.get(format!("{}{path}", node.url)).header("host", host).bearer_auth(&node.operator);
        Node::answer(request).await.0
    };
    for path in ["/livez", "/healthz", "/api/v1/agents"] {
        assert_eq!(ask(path, "evil.example").await, 403, "{path}");
        assert_eq!(ask(path, "localhost").await, 200, "{path}");
    }
    // It is the same for every reader, and any page may read it.
    assert_eq!(ask("/.well-known/agent-card.json", "evil.example").await, 200);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_is_told_in_the_words_of_oauth_why_it_has_no_token() {
    let node = Node::start(ON).await;
    let pending = node.ask("a", "").await;
    assert_eq!(node.error(&pending).await, "authorization_pending");
    assert_eq!(node.error(&pending).await, "slow_down");
    let denied = node.ask("b", "").await;
    node.post(&format!("/api/v1/auth/devices/{}/deny", code(&denied)), &json!({})).await;
    assert_eq!(node.error(&denied).await, "access_denied");
    assert_eq!(node.error(&json!({ "device_code": "nonsense" })).await, "invalid_grant");

    let form = |fields: &str| node.form(TOKEN, fields.to_owned());
    for (fields, error) in [
        ("grant_type=password&device_code=x", "unsupported_grant_type"),
        (&*format!("grant_type={GRANT_TYPE}"), "invalid_request"),
        ("device_code=x", "invalid_request"),
        (&*format!("grant_type={GRANT_TYPE}&device_code=x&device_code=y"), "invalid_request"),
    ] {
        let (status, body) = form(fields).await;
        assert_eq!((status, &body["error"]), (400, &json!(error)), "{fields}");
    }
    let (status, body) = node.form(DEVICE_AUTHORIZATION, "client_id=x&scope=root".to_owned()).await;
    assert_eq!((status, &body["error"]), (400, &json!("invalid_scope")));
    let (status, _) = node.form(DEVICE_AUTHORIZATION, format!("client_id={}", "x".repeat(8_000))).await;
    assert_eq!(status, 400, "a form that is too large");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_used_device_code_gives_no_second_session() {
    let node = Node::start(ON).await;
    let asked = node.ask("a", "").await;
    node.approve(&asked, "ada", None).await;
    assert_eq!(node.poll(&asked).await.0, 200);
    // Another node has not heard of the first question: it does not say slow_down.
    node.sign_ins.polls.forget();
    assert_eq!(node.error(&asked).await, "invalid_grant");
    assert_eq!(node.sessions().await.len(), 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_an_operators_only_if_the_configuration_the_device_and_the_approver_say_so() {
    let node = Node::start(ON).await;
    let asked = node.ask("a", "operator").await;
    node.approve(&asked, "ada", None).await;
    assert_eq!(node.poll(&asked).await.1["scope"], "user", "the approver did not say so");
    let asked = node.ask("b", "user").await;
    let (status, body) = node.approve(&asked, "ada", Some("operator")).await;
    assert_eq!(status, 409, "the device did not: {body}");
    let granted = node.signed_in("ada", "operator", Some("operator")).await;
    assert_eq!(granted["scope"], "operator");
    assert_eq!(node.with(&granted, "/api/v1/cluster").await.0, 200);
    let agent = node.ask("c", "operator").await;
    assert_eq!(node.approve(&agent, "bot", Some("agent")).await.0, 409);
    node.stop().await;

    let node = Node::start(DeviceGrantSettings { allow_operator: false, ..ON }).await;
    let asked = node.ask("a", "operator").await;
    let (status, body) = node.approve(&asked, "ada", Some("operator")).await;
    assert_eq!(status, 409, "the configuration does not: {body}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_says_that_the_name_was_approved_before() {
    let node = Node::start(ON).await;
    node.signed_in("ada", "user", None).await;
    let asked = node.ask("b", "user").await;
    let (_, approved) = node.approve(&asked, "user:ada", None).await;
    assert!(approved["approved_before"].is_string(), "{approved}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_closes_streams_and_refuses_requests_that_wait() {
    let node = Node::start(ON).await;
    let granted = node.signed_in("ada", "user", None).await;
    let other = node.signed_in("bob", "user", None).await;
    let ada = node.client(&granted);
    let mut stream = ada.stream(&message("m-1"), SendOptions::default(), None).await.unwrap();
    timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
    let mut others = node.client(&other).stream(&message("m-1"), SendOptions::default(), None).await.unwrap();
    timeout(PATIENCE, others.next()).await.unwrap().unwrap().unwrap();
    let waiting = ada.clone();
    let waiting = tokio::spawn(async move { waiting.send(&message("m-2"), SendOptions::default(), None).await });
    node.tasks(3).await;

    let session = granted["session"].as_str().unwrap();
    let (status, body) = node.delete(&format!("/api/v1/auth/sessions/{session}")).await;
    assert_eq!((status, &body["revoked"]), (200, &json!([session])));
    timeout(PATIENCE, async { while stream.next().await.is_some_and(|item| item.is_ok()) {} }).await.expect("it ends");
    let refused = timeout(PATIENCE, waiting).await.expect("it is answered").unwrap().unwrap_err();
    assert!(matches!(refused, ClientError::Auth { status: 401, .. }), "{refused:?}");
    let later = ada.send(&message("m-3"), ASYNC, None).await.unwrap_err();
    assert!(matches!(later, ClientError::Auth { status: 401, .. }), "{later:?}");
    assert_eq!(node.sessions().await.len(), 1);
    assert_eq!(node.delete(&format!("/api/v1/auth/sessions/{session}")).await.0, 404);

    let task = node.tasks(3).await.remove(2);
    assert_eq!(node.client(&other).cancel_task(&task, None).await.unwrap().id, task, "nobody else is touched");
    timeout(PATIENCE, async { while others.next().await.is_some_and(|item| item.is_ok()) {} }).await.expect("it ends");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_closes_the_events_of_the_cluster_and_is_told_to_the_operator() {
    let node = Node::start(ON).await;
    let granted = node.signed_in("ada", "user", None).await;
    let follow = |token: &str| node.http.get(format!("{}/api/v1/events?follow=true", node.url)).bearer_auth(token);
    let hers = follow(granted["access_token"].as_str().unwrap()).send().await.unwrap();
    let operators = follow(&node.operator).send().await.unwrap();
    assert_eq!((hers.status().as_u16(), operators.status().as_u16()), (200, 200));
    let (mut hers, mut operators) = (hers.bytes_stream(), operators.bytes_stream());

    let session = granted["session"].as_str().unwrap();
    assert_eq!(node.delete(&format!("/api/v1/auth/sessions/{session}")).await.0, 200);
    let mut heard = String::new();
    timeout(PATIENCE, async {
        while let Some(Ok(piece)) = hers.next().await {
            heard.push_str(&String::from_utf8_lossy(&piece));
        }
    })
    .await
    .expect("the stream ends");
    assert!(!heard.contains(session), "what is not hers she does not hear: {heard}");
    let mut heard = String::new();
    timeout(PATIENCE, async {
        while !(heard.contains("session.revoked") && heard.contains(session)) {
            heard.push_str(&String::from_utf8_lossy(&operators.next().await.unwrap().unwrap()));
        }
    })
    .await
    .expect("it is told");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_used_is_noted_as_such() {
    let node = Node::start(ON).await;
    let granted = node.signed_in("ada", "user", None).await;
    assert_eq!(node.sessions().await[0]["seen"], Value::Null);
    node.client(&granted).send(&message("m-1"), ASYNC, None).await.unwrap();
    timeout(PATIENCE, async {
        while node.sessions().await[0]["seen"].is_null() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("it is noted");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_too_often_is_told_to_wait() {
    let node = Node::start(ON).await;
    let mut last = (0, Value::Null);
    for _ in 0..40 {
        last = node.form(DEVICE_AUTHORIZATION, "client_id=x&scope=nothing".to_owned()).await;
        if last.0 == 429 {
            break;
        }
    }
    assert_eq!((last.0, &last.1["error"]), (429, &json!("slow_down")));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_office_behind_one_address_signs_in_at_the_same_time_and_nobody_takes_a_code_that_was_just_given() {
    let node = Node::start(ON).await;
    let mut asked = Vec::new();
    for person in 0..12 {
        asked.push(node.ask(&format!("person-{person}"), "user").await);
    }
    // Others at that address take all places that are left.
    for number in asked.len()..MAX_DEVICE_REQUESTS_PER_SOURCE {
        let ask = DeviceAsk {
            device: SecretHash::of(&number.to_string()),
            code: secrets::user_code().unwrap(),
            client: "x".into(),
            source: "127.0.0.1".into(),
            wants: PrincipalRole::User,
            ttl_ms: 60_000,
        };
        node.sign_ins.propose(SignIn::Ask(ask)).await.unwrap();
    }
    let (status, refused) = node.form(DEVICE_AUTHORIZATION, "client_id=x&scope=user".to_owned()).await;
    assert_eq!((status, &refused["error"]), (429, &json!("slow_down")), "{refused}");
    let (status, approved) = node.approve(&asked[0], "ada", None).await;
    assert_eq!(status, 200, "the first code is still good: {approved}");
    assert!(node.ask("later", "user").await["user_code"].is_string(), "and a place that is free is given");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_asks_where_the_grant_is_off() {
    let node = Node::start(DeviceGrantSettings::default()).await;
    for path in ["/.well-known/oauth-authorization-server", "/oauth/device"] {
        assert_eq!(node.get(path).await.0, 404, "{path}");
    }
    assert_eq!(node.form(DEVICE_AUTHORIZATION, "client_id=x".to_owned()).await.0, 404);
    assert_eq!(node.sign_ins.security_scheme(), None);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_in_a_browser_does_not_sign_in() {
    let node = Node::start(ON).await;
    for path in [DEVICE_AUTHORIZATION, TOKEN, LAUNCH] {
        let request = node.http.post(format!("{}{path}", node.url)).header("origin", "http://127.0.0.1");
        assert_eq!(request.send().await.unwrap().status(), 403, "{path}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launched_client_is_the_operator_by_a_code_that_is_good_once() {
    let node = Node::start(DeviceGrantSettings::default()).await;
    let code = node.sign_ins.mint_launch_code().unwrap();
    let (status, granted) = node.form(LAUNCH, format!("code={code}")).await;
    assert_eq!((status, &granted["scope"]), (200, &json!("operator")), "{granted}");
    assert!(granted["session"].as_str().unwrap().starts_with("ls_"));
    assert_eq!(node.with(&granted, "/api/v1/cluster").await.0, 200);
    assert_eq!(node.form(LAUNCH, format!("code={code}")).await.1["error"], "invalid_grant");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_signs_out_ends_the_own_session_and_no_other() {
    let node = Node::start(ON).await;
    let (ada, bob) = (node.signed_in("ada", "user", None).await, node.signed_in("bob", "user", None).await);
    let token = ada["access_token"].as_str().unwrap();
    for _ in 0..2 {
        assert_eq!(node.form(REVOKE, format!("token={token}")).await.0, 200);
    }
    assert_eq!(node.form(REVOKE, "token=nonsense".to_owned()).await.0, 200);
    let left = node.sessions().await;
    assert_eq!((left.len(), &left[0]["id"]), (1, &bob["session"]));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_good_only_for_what_the_configuration_still_grants() {
    let node = Node::start(ON).await;
    let ada = node.signed_in("ada", "operator", Some("operator")).await;
    let bob = node.signed_in("bob", "user", None).await;
    // The same cluster, as a node sees it that was started with another configuration.
    let restarted = |settings| SignIns::new(node.cluster.handle(), settings, node.url.clone());
    let is_known = |sign_ins: &SignIns, granted: &Value| {
        let known = sign_ins.look_up(granted["access_token"].as_str().unwrap());
        matches!(known, crate::auth::Known::Session { .. })
    };
    for (settings, operators, users) in [
        (ON, true, true),
        (DeviceGrantSettings { allow_operator: false, ..ON }, false, true),
        (DeviceGrantSettings { enabled: false, ..ON }, false, false),
    ] {
        let sign_ins = restarted(settings);
        assert_eq!((is_known(&sign_ins, &ada), is_known(&sign_ins, &bob)), (operators, users), "{settings:?}");
    }
    let launched = json!({ "access_token": node.operator });
    assert!(is_known(&restarted(DeviceGrantSettings::default()), &launched), "a launched client needs no grant");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invented_tokens_are_refused_by_what_was_asked_once_and_a_session_comes_through_beside_them() {
    let node = Node::start(ON).await;
    let ada = node.signed_in("ada", "user", None).await;
    let invented = || json!({ "access_token": super::secrets::secret(super::secrets::TOKEN_PREFIX).unwrap() });
    let many: Vec<Value> = (0..40).map(|_| invented()).collect();
    let statuses = futures::future::join_all(many.iter().map(|token| node.with(token, "/api/v1/agents"))).await;
    assert!(statuses.iter().all(|(status, _)| matches!(status, 401 | 429)), "{statuses:?}");
    let remembered =
        |token: &Value| node.sign_ins.looks.is_nobodys(&SecretHash::of(token["access_token"].as_str().unwrap()));
    assert!(many.iter().all(remembered));
    assert_eq!(node.with(&ada, "/api/v1/agents").await.0, 200, "from the address that guessed");
    let odd = json!({ "access_token": "towline_st_short" });
    assert!(matches!(node.with(&odd, "/api/v1/agents").await.0, 401 | 429));
    assert!(!remembered(&odd), "what has not the form of a token is looked up nowhere");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_none_is_refused_whatever_else_the_request_shows() {
    let node = Node::start(ON).await;
    // From this machine and without a token it would be the operator.
    let forged = json!({ "access_token": "towline_st_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" });
    assert_eq!(node.with(&forged, "/api/v1/cluster").await.0, 401);
    let refused = node.client(&forged).send(&message("m-1"), ASYNC, None).await.unwrap_err();
    assert!(matches!(refused, ClientError::Auth { status: 401, .. }), "{refused:?}");
    node.stop().await;
}

const ASYNC: SendOptions =
    SendOptions { return_immediately: true, history_length: None, task_id: None, context_id: None, timeout: None };

fn message(id: &str) -> Message {
    Message {
        message_id: id.parse().unwrap(),
        context_id: None,
        task_id: None,
        role: Role::User,
        parts: vec![Part::text("hello")],
        metadata: Default::default(),
        extensions: Vec::new(),
        reference_task_ids: Vec::new(),
    }
}

fn task_of(reply: SendReply) -> String {
    match reply {
        SendReply::Task(task) => task.id,
        SendReply::Message(message) => panic!("not a task: {message:?}"),
    }
}

fn code(asked: &Value) -> &str {
    asked["user_code"].as_str().unwrap()
}

/// A node without a mesh: tasks are taken, and nobody runs them.
struct Node {
    url: String,
    http: reqwest::Client,
    cluster: Cluster,
    sign_ins: Arc<SignIns>,
    stopping: CancellationToken,
    serving: Vec<JoinHandle<()>>,
    /// A session of the operator.
    operator: String,
    _data: TempDir,
}

impl Node {
    async fn start(settings: DeviceGrantSettings) -> Self {
        // Another test of this process may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let data = tempfile::tempdir().unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", tcp.local_addr().unwrap());
        let addresses = NodeAddresses { http: url.clone(), peer: "127.0.0.1:1".into() };
        membership::found(data.path(), "test", "a", addresses.clone()).unwrap();
        let (data_folder, certificate_life) = (data.path().to_owned(), towline_cluster::CERTIFICATE_LIFE);
        let options = ClusterOptions { data: data_folder, addresses, version: "0".into(), certificate_life };
        let cluster = Cluster::start(options).await.unwrap();
        let reader = AgentSpec {
            name: "reader".parse().unwrap(),
            description: "Reads.".into(),
            placement: Placement::EveryNode,
            tags: Vec::new(),
            queue: None,
            labels: towline_core::Labels::new(),
        };
        let registration = Registration { capacity: 8, agents: vec![reader], labels: towline_core::Labels::new() };
        cluster.handle().register(registration).await.unwrap();
        let stopping = CancellationToken::new();
        let sign_ins = SignIns::new(cluster.handle(), settings, url.clone());
        let auth_settings = AuthSettings { device_grant: settings, ..AuthSettings::default() };
        let auth = Arc::new(Auth::new(auth_settings, ([127, 0, 0, 1], 0).into(), &url).unwrap());
        auth.attach(Arc::clone(&sign_ins) as Arc<dyn Sessions>);
        let api = Arc::new(Api {
            cluster: cluster.handle(),
            mesh: tokio::sync::Mutex::new(None),
            public_url: url.clone(),
            auth: Arc::clone(&auth),
            ready: AtomicBool::new(true),
            sign_ins: Arc::clone(&sign_ins),
            hooks: Default::default(),
            config: Arc::new(crate::config::read_sample(&crate::config::Overrides::default()).unwrap()),
            stopping: stopping.clone(),
        });
        let a2a_settings = Arc::new(A2aSettings {
            cluster: cluster.handle(),
            front_door: "reader".parse().unwrap(),
            public_url: url.clone(),
            version: "0".into(),
            most_open: None,
            auth,
            push: None,
            card_signer: None,
            api: api::for_known(Arc::clone(&api)),
            stopping: stopping.clone(),
        });
        let router: Router = a2a::router(a2a_settings, Door::Public)
            .merge(api::router(api))
            .merge(sign_ins.routes())
            .layer(middleware::from_fn_with_state(Arc::clone(&sign_ins), guard));
        let serving = vec![
            tokio::spawn(listener::serve(tcp, listener::Plain, router, stopping.clone())),
            tokio::spawn(Arc::clone(&sign_ins).watch(stopping.clone())),
        ];
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let operator = String::new();
        let mut node = Self { url, http, cluster, sign_ins, stopping, serving, operator, _data: data };
        let code = node.sign_ins.mint_launch_code().unwrap();
        let (status, granted) = node.form(LAUNCH, format!("code={code}")).await;
        assert_eq!(status, 200, "{granted}");
        node.operator = granted["access_token"].as_str().unwrap().to_owned();
        node
    }

    async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or(Value::Null))
    }

    /// Reads as the operator.
    async fn get(&self, path: &str) -> (u16, Value) {
        Self::answer(self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.operator)).await
    }

    async fn delete(&self, path: &str) -> (u16, Value) {
        Self::answer(self.http.delete(format!("{}{path}", self.url)).bearer_auth(&self.operator)).await
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        Self::answer(self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.operator).json(body)).await
    }

    async fn form(&self, path: &str, fields: String) -> (u16, Value) {
        let content_type = "application/x-www-form-urlencoded";
        Self::answer(self.http.post(format!("{}{path}", self.url)).header("content-type", content_type).body(fields))
            .await
    }

    /// Reads with a token: that of [`Self::get`] is the operator's.
    async fn with(&self, granted: &Value, path: &str) -> (u16, Value) {
        let token = granted["access_token"].as_str().unwrap();
        Self::answer(self.http.get(format!("{}{path}", self.url)).bearer_auth(token)).await
    }

    async fn ask(&self, client: &str, scope: &str) -> Value {
        let (status, asked) = self.form(DEVICE_AUTHORIZATION, format!("client_id={client}&scope={scope}")).await;
        assert_eq!(status, 200, "{asked}");
        asked
    }

    async fn approve(&self, asked: &Value, name: &str, role: Option<&str>) -> (u16, Value) {
        let path = format!("/api/v1/auth/devices/{}/approve", code(asked));
        self.post(&path, &json!({ "name": name, "role": role })).await
    }

    async fn poll(&self, asked: &Value) -> (u16, Value) {
        let device = asked["device_code"].as_str().unwrap();
        self.form(TOKEN, format!("grant_type={GRANT_TYPE}&device_code={device}&client_id=x")).await
    }

    async fn error(&self, asked: &Value) -> String {
        let (status, body) = self.poll(asked).await;
        assert_eq!(status, 400, "{body}");
        body["error"].as_str().unwrap().to_owned()
    }

    /// The answer with a token for somebody who was let in.
    async fn signed_in(&self, name: &str, scope: &str, role: Option<&str>) -> Value {
        let asked = self.ask("test", scope).await;
        let (status, approved) = self.approve(&asked, name, role).await;
        assert_eq!(status, 200, "{approved}");
        let (status, granted) = self.poll(&asked).await;
        assert_eq!(status, 200, "{granted}");
        granted
    }

    fn client(&self, granted: &Value) -> A2aClient {
        let token = granted["access_token"].as_str().unwrap();
        let client = A2aClient::new(self.http.clone(), format!("{}/", self.url));
        client.with_header("authorization", &format!("Bearer {token}")).unwrap()
    }

    async fn sessions(&self) -> Vec<Value> {
        let all = self.get("/api/v1/auth/sessions").await.1;
        let launched = |session: &&Value| session["kind"] == "launch";
        all["sessions"].as_array().unwrap().iter().filter(|session| !launched(session)).cloned().collect()
    }

    /// The ids of all tasks, bob's last, as soon as there are so many.
    async fn tasks(&self, count: usize) -> Vec<String> {
        let look = || {
            self.cluster.handle().local(|state| {
                let tasks = (0..=u8::MAX).flat_map(|shard| state.tasks_in(towline_core::VShard(shard)));
                let mut tasks: Vec<(String, String)> =
                    tasks.map(|task| (task.owner.to_string(), task.id.to_string())).collect();
                tasks.sort();
                tasks
            })
        };
        timeout(PATIENCE, async {
            while look().len() < count {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the tasks are there");
        look().into_iter().map(|(_, id)| id).collect()
    }

    async fn stop(self) {
        self.stopping.cancel();
        for task in self.serving {
            timeout(PATIENCE, task).await.expect("the door closes").unwrap();
        }
        self.cluster.shutdown().await;
    }
}
