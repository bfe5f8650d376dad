//! Who may ask what, whole: roles × operations × one's own, another's and nobody's × bindings, generated from the table of
//! operations that the door itself asks.

use crate::auth::{Evidence, OPERATIONS, Permits, Rule, Sha256, Way};
use towline_core::{PrincipalRole, Submission};

use super::*;

/// Somebody who calls, by what is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who {
    pub(super) token: Option<&'static str>,
    pub(super) id: &'static str,
    pub(super) role: Option<PrincipalRole>,
}

pub(super) const OPERATOR: Who = who("the-token-of-root", "root", PrincipalRole::Operator);
pub(super) const ADA: Who = who("the-token-of-ada", "user:ada", PrincipalRole::User);
pub(super) const CI: Who = who("the-token-of-ci", "agent:ci", PrincipalRole::Agent);
pub(super) const GUEST: Who = who("the-token-of-a-guest", "guest", PrincipalRole::Anonymous);
pub(super) const NOBODY: Who = Who { token: None, id: "", role: None };
/// Owns what is another's.
pub(super) const BOB: Who = who("the-token-of-bob", "user:bob", PrincipalRole::User);

const fn who(token: &'static str, id: &'static str, role: PrincipalRole) -> Who {
    Who { token: Some(token), id, role: Some(role) }
}

impl Who {
    pub(super) fn principal(self) -> Principal {
        Principal::Named { id: self.id.parse().unwrap(), role: self.role.unwrap() }
    }

    pub(super) fn permits(self) -> Permits {
        self.role.map_or(Permits::NONE, |role| Permits::of(role, &[]))
    }
}

/// What a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
    Own,
    Foreign,
    Absent,
}

const NOT_LET_IN: [&str; 2] = ["UNAUTHENTICATED", "PERMISSION_DENIED"];

pub(super) fn callers() -> AuthSettings {
    let rules = [OPERATOR, ADA, CI, GUEST, BOB].map(|who| Rule {
        id: who.id.to_owned(),
        role: who.role.unwrap(),
        permits: who.permits(),
        labels: Arc::default(),
        evidence: Evidence::Bearer(Sha256::of(who.token.unwrap().as_bytes())),
    });
    let rate = Some(1_000_000);
    AuthSettings { rules: rules.to_vec(), requests_per_second: rate, ..AuthSettings::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_is_answered_to_whom_it_is_for_and_about_what_is_theirs_on_all_bindings() {
    let node = Node::start_with(callers()).await;
    let mut asked = 0;
    let methods = OPERATIONS.iter().flat_map(|operation| operation.ways).filter_map(|way| match way {
        Way::Method(method) => Some(*method),
        Way::Route(..) => None,
    });
    for method in methods {
        for spoken in ALL {
            for who in [OPERATOR, ADA, CI, GUEST, NOBODY] {
                for thing in [Thing::Own, Thing::Foreign, Thing::Absent] {
                    let owns_nothing = matches!(who.role, None | Some(PrincipalRole::Anonymous));
                    if thing == Thing::Own && owns_nothing {
                        continue;
                    }
                    let mut client = Client::new(&node, spoken).await;
                    client.token = who.token;
                    let task = match thing {
                        Thing::Own => node.task_of(who).await,
                        Thing::Foreign => node.task_of(BOB).await,
                        Thing::Absent => fresh(),
                    };
                    let found = outcome(&client, method, &task).await;
                    let expected = expected(who, method, thing);
                    let is_as_expected = match &found {
                        // Push notifications are off here: who may ask is told so.
                        Err(reason) if reason == "PUSH_NOTIFICATION_NOT_SUPPORTED" => {
                            !expected.is_err_and(|reason| NOT_LET_IN.contains(&reason))
                        }
                        found => found.as_ref().map_err(String::as_str).copied() == expected,
                    };
                    assert!(is_as_expected, "{who:?} {method} {thing:?} {spoken:?}: {found:?} is not {expected:?}");
                    asked += 1;
                }
            }
        }
    }
    assert!(asked > 300, "{asked}");
    node.stop().await;
}

/// What the rules say.
fn expected(who: Who, method: &str, thing: Thing) -> Result<(), &'static str> {
    if who.role.is_none() {
        return Err("UNAUTHENTICATED");
    }
    if !who.permits().method(method) {
        return Err("PERMISSION_DENIED");
    }
    let names_a_task = !matches!(method, "ListTasks" | "GetExtendedAgentCard");
    let sees = match thing {
        Thing::Own => true,
        Thing::Foreign => who.role == Some(PrincipalRole::Operator),
        Thing::Absent => false,
    };
    match (names_a_task, sees) {
        (true, false) => Err("TASK_NOT_FOUND"),
        // The task works: who may say something to it is told that it does.
        (true, true) if method.starts_with("Send") => Err("UNSUPPORTED_OPERATION"),
        _ => Ok(()),
    }
}

/// Asks for a method about a task: the reason of the error, if it is one.
async fn outcome(client: &Client<'_>, method: &str, task: &str) -> Result<(), String> {
    let id = uuid::Uuid::now_v7().to_string();
    let params = match method {
        "SendMessage" | "SendStreamingMessage" => json!({
            "message": { "messageId": id, "role": "ROLE_USER", "taskId": task, "parts": [{ "text": "more" }] },
            "configuration": { "returnImmediately": true },
        }),
        "ListTasks" | "GetExtendedAgentCard" => json!({}),
        "CreateTaskPushNotificationConfig" => json!({ "taskId": task, "url": "https://example.org/" }),
        "GetTaskPushNotificationConfig" | "DeleteTaskPushNotificationConfig" => json!({ "taskId": task, "id": "c" }),
        "ListTaskPushNotificationConfigs" => json!({ "taskId": task }),
        _ => json!({ "id": task }),
    };
    if client.spoken != Spoken::Grpc {
        let answer = client.request(method, &params).send().await.unwrap();
        if answer.headers()["content-type"] == "text/event-stream" {
            return Ok(());
        }
        let found = client.result(answer.json().await.unwrap());
        return found.map(|_| ()).map_err(|(reason, _)| reason);
    }
    let found = match method {
        "SendStreamingMessage" | "SubscribeToTask" => client.stream(method, params).await.map(|_| ()),
        _ => client.ask(method, params).await.map(|_| ()),
    };
    found.map_err(|(reason, _)| reason)
}

pub(super) fn fresh() -> String {
    uuid::Uuid::now_v7().to_string()
}

impl Node {
    /// A task that somebody owns.
    async fn task_of(&self, who: Who) -> String {
        let (task, handle) = (TaskId::from_uuid(uuid::Uuid::now_v7()), self.cluster.handle());
        let submission = Submission {
            task,
            fresh_context: fresh().parse().unwrap(),
            agent: "reader".parse().unwrap(),
            message: message(&fresh(), "hello"),
            prefer: handle.node_id(),
            parent: None,
            hop: 0,
            deadline_ms: None,
            trace: TraceContext { trace_id: 1, span_id: 2, sampled: false },
            most_open: None,
            labels: towline_core::Labels::new(),
        };
        let command = Command::Submit(Box::new(submission));
        handle.propose(Proposal { by: who.principal(), command }, None).await.unwrap();
        task.to_string()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_over_http_alone_is_open_to_whom_it_is_for() {
    let node = Node::start_with(callers()).await;
    let task = node.task_of(BOB).await;
    let routes = OPERATIONS.iter().flat_map(|operation| operation.ways).filter_map(|way| match way {
        Way::Route(verb, path) => Some((*verb, *path)),
        Way::Method(_) => None,
    });
    for (verb, route) in routes {
        let hash = "0".repeat(64);
        let path =
            route.replace("{task}", &task).replace("{id}", &task).replace("{hash}", &hash).replace("{node}", "99");
        for who in [OPERATOR, ADA, CI, GUEST, NOBODY] {
            let mut request = node.http.request(verb.parse().unwrap(), format!("{}{path}", node.url));
            if let Some(token) = who.token {
                request = request.bearer_auth(token);
            }
            let answer = request.send().await.unwrap();
            let (status, told) = (answer.status().as_u16(), answer.headers().contains_key("www-authenticate"));
            let is_as_expected = match (who.role, who.permits().route(&verb.parse().unwrap(), &path)) {
                (None, _) => status == 401 && told,
                (Some(_), false) => status == 403,
                (Some(_), true) => !matches!(status, 401 | 403),
            };
            assert!(is_as_expected, "{who:?} {verb} {path}: {status}");
        }
    }
    let stranger = node.http.get(format!("{}/api/v1/agents", node.url)).bearer_auth("a-token-that-nobody-gave");
    assert_eq!(stranger.send().await.unwrap().status().as_u16(), 401);
    for (path, open) in
        [("/livez", true), ("/healthz", true), ("/.well-known/agent-card.json", true), ("/api/v1/mcp", false)]
    {
        let status = node.http.get(format!("{}{path}", node.url)).send().await.unwrap().status().as_u16();
        assert_eq!(status == 200, open, "{path}: {status}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trace_and_the_webhooks_of_a_task_are_shown_to_its_owner_and_to_others_as_of_no_task() {
    let node = Node::start_with(callers()).await;
    for what in ["trace", "push"] {
        let (own, foreign, absent) = (node.task_of(ADA).await, node.task_of(BOB).await, fresh());
        let ask = async |who: Who, task: &str| {
            let path = format!("{}/api/v1/tasks/{task}/{what}", node.url);
            let answer = node.http.get(path).bearer_auth(who.token.unwrap()).send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap().replace(task, "TASK"))
        };
        assert_eq!(ask(ADA, &own).await.0, 200, "{what}");
        assert_eq!(ask(OPERATOR, &own).await.0, 200, "{what}");
        let of_bob = ask(ADA, &foreign).await;
        assert_eq!((of_bob.0, &of_bob), (404, &ask(ADA, &absent).await), "{what}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_method_is_unknown_to_everybody_who_is_known() {
    let node = Node::start_with(callers()).await;
    for who in [OPERATOR, ADA, CI, GUEST] {
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "Drain", "params": {} });
        let request =
            node.http.post(&node.url).bearer_auth(who.token.unwrap()).header("a2a-version", "1.0").json(&body);
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32601), &json!(7)), "{who:?}");
    }
    // Of who is nobody not a byte of the body is read.
    let answer = node.http.post(&node.url).body("no JSON").send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 401);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-31401), &Value::Null));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_shows_ones_own_tasks_and_a_context_is_ones_own_name() {
    let node = Node::start_with(callers()).await;
    for spoken in ALL {
        let mut of = Vec::new();
        for who in [ADA, BOB] {
            let mut client = Client::new(&node, spoken).await;
            client.token = who.token;
            let message = json!({
                "messageId": format!("m-{spoken:?}"), "contextId": format!("plans-{spoken:?}"), "role": "ROLE_USER",
                "parts": [{ "text": "hello" }],
            });
            let params = json!({ "message": message, "configuration": { "returnImmediately": true } });
            let sent = client.ask("SendMessage", params).await.unwrap();
            of.push((client, sent["task"]["id"].clone()));
        }
        assert_ne!(of[0].1, of[1].1, "one message id of two senders");
        for (client, task) in &of {
            let params = json!({ "contextId": format!("plans-{spoken:?}") });
            let listed = client.ask("ListTasks", params).await.unwrap();
            let ids: Vec<&Value> = listed["tasks"].as_array().unwrap().iter().map(|task| &task["id"]).collect();
            assert_eq!(ids, [task], "{spoken:?}");
        }
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_card_says_what_is_checked_and_the_extended_one_what_its_reader_may() {
    let open = Node::start().await;
    let card: Value =
        open.http.get(format!("{}/.well-known/agent-card.json", open.url)).send().await.unwrap().json().await.unwrap();
    assert_eq!((card.get("securitySchemes"), &card["capabilities"]["extendedAgentCard"]), (None, &json!(false)));
    open.stop().await;

    let node = Node::start_with(callers()).await;
    let mut cards = Vec::new();
    for who in [OPERATOR, ADA, NOBODY] {
        let mut request = node.http.get(format!("{}/agents/reader/.well-known/agent-card.json", node.url));
        if let Some(token) = who.token {
            request = request.bearer_auth(token);
        }
        cards.push(request.send().await.unwrap().json::<Value>().await.unwrap());
    }
    assert!(cards[0] == cards[1] && cards[1] == cards[2], "the public card is the same for every reader");
    assert_eq!(cards[0]["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"], "Bearer");
    assert!(cards[0]["securityRequirements"][0]["schemes"].get("bearer").is_some(), "{}", cards[0]);
    assert_eq!(cards[0]["capabilities"]["extendedAgentCard"], true);
    for spoken in ALL {
        let mut client = Client::new(&node, spoken).await;
        client.token = ADA.token;
        let card = client.ask("GetExtendedAgentCard", json!({ "tenant": "reader" })).await.unwrap();
        assert_eq!(card["name"], "reader");
        let declared = card["capabilities"]["extensions"].as_array().unwrap();
        let told = declared.iter().map(|extension| &extension["params"]).find(|told| !told["principal"].is_null());
        let told = told.unwrap_or_else(|| panic!("{spoken:?}: {card}"));
        assert_eq!((&told["principal"], &told["role"]), (&json!("user:ada"), &json!("user")), "{spoken:?}");
        let operations = told["operations"].as_array().unwrap();
        assert!(operations.contains(&json!("task.cancel")) && !operations.contains(&json!("cluster.drain")));
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_is_read_by_who_made_it() {
    let node = Node::start_with(callers()).await;
    let upload = node.http.post(format!("{}/blobs", node.url)).bearer_auth(ADA.token.unwrap()).body("content");
    let told: Value = upload.send().await.unwrap().json().await.unwrap();
    let url = told["url"].as_str().unwrap();
    for (who, status) in [(ADA, 200), (BOB, 404), (OPERATOR, 404), (GUEST, 403)] {
        let answer = node.http.get(url).bearer_auth(who.token.unwrap()).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{who:?}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_has_so_many_streams_and_one_that_ends_makes_room() {
    let node = Node::start_with(AuthSettings { streams_per_principal: Some(1), ..callers() }).await;
    let mut client = Client::new(&node, Spoken::JsonRpc).await;
    client.token = ADA.token;
    let (first, second) = (node.task_of(ADA).await, node.task_of(ADA).await);
    let stream = client.stream("SubscribeToTask", json!({ "id": first })).await.unwrap();
    let refused = client.ask("SubscribeToTask", json!({ "id": second })).await.unwrap_err();
    assert_eq!(refused.0, "RATE_LIMITED");
    let message = json!({ "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "hello" }] });
    let refused = client.ask("SendStreamingMessage", json!({ "message": message })).await.unwrap_err();
    assert_eq!(refused.0, "RATE_LIMITED");
    let listed = client.ask("ListTasks", json!({})).await.unwrap();
    assert_eq!(listed["totalSize"], 2, "what is refused makes no task");
    node.finish(&first, TaskState::Completed).await;
    let _: Vec<Value> = timeout(PATIENCE, stream.collect()).await.expect("the stream ends");
    timeout(PATIENCE, async {
        while outcome(&client, "SubscribeToTask", &second).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("there is room again");
    node.stop().await;
}
