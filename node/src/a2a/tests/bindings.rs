//! One table of cases over all three bindings: they ask the same and are answered the same.

use a2a_pb::{a2a_service_client::A2aServiceClient, protojson_conv::ProtoJsonPayload};
use serde_json::{Value, json};
use tonic::{Status, transport::Channel};
use tonic_types::StatusExt as _;
use towline_a2a::convert;

use super::*;

mod authorization;
mod carriers;
mod structured;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoken {
    JsonRpc,
    HttpJson,
    Grpc,
}

pub(super) const ALL: [Spoken; 3] = [Spoken::JsonRpc, Spoken::HttpJson, Spoken::Grpc];

/// The reason of an error, and the field that it names.
pub(super) type Refusal = (String, Option<String>);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_bindings_answer_the_same_to_the_same() {
    let node = Node::start().await;
    for spoken in ALL {
        let client = Client::new(&node, spoken).await;
        let id = |name: &str| format!("{name}-{spoken:?}");
        let send = |name: &str, text: &str| {
            let message = json!({ "messageId": id(name), "role": "ROLE_USER", "parts": [{ "text": text }] });
            json!({ "message": message, "configuration": { "returnImmediately": true }, "tenant": "reader" })
        };

        let sent = client.ask("SendMessage", send("m", "hello")).await.unwrap();
        let task = sent["task"]["id"].as_str().unwrap().to_owned();
        assert_eq!(sent["task"]["metadata"]["dev.towline/agent"], "reader", "{spoken:?}: the tenant names the agent");
        let again = client.ask("SendMessage", send("m", "hello")).await.unwrap();
        assert_eq!(again["task"]["id"], task.as_str(), "{spoken:?}");

        let read = client.ask("GetTask", json!({ "id": task })).await.unwrap();
        assert_eq!(read["history"][0]["parts"][0]["text"], "hello", "{spoken:?}");
        let bare = client.ask("GetTask", json!({ "id": task, "historyLength": 0 })).await.unwrap();
        assert_eq!(bare.get("history"), None, "{spoken:?}");
        let listed = client.ask("ListTasks", json!({ "pageSize": 1, "tenant": "surveyor" })).await.unwrap();
        assert_eq!(listed["totalSize"].as_i64().unwrap_or(0), 0, "{spoken:?}: of the tenant's agent only");
        let listed = client.ask("ListTasks", json!({ "pageSize": 1, "tenant": "reader" })).await.unwrap();
        assert_eq!(listed["tasks"][0]["id"], task.as_str(), "{spoken:?}: newest first");

        for _ in 0..2 {
            let canceled = client.ask("CancelTask", json!({ "id": task })).await.unwrap();
            assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED", "{spoken:?}");
        }
        let done = client.ask("SendMessage", send("done", "hello")).await.unwrap()["task"]["id"].clone();
        node.finish(done.as_str().unwrap(), TaskState::Completed).await;

        let text = |value: &str| json!({ "messageId": id("x"), "role": "ROLE_USER", "parts": [{ "text": value }] });
        let to_ended = json!({ "message": { "messageId": id("y"), "role": "ROLE_USER", "taskId": done, "parts": [{ "text": "more" }] } });
        let refusals = [
            ("SendMessage", send("m", "something else"), "MESSAGE_REUSED", None),
            (
                "SendMessage",
                json!({ "message": { "messageId": "m", "role": "ROLE_USER" } }),
                "INVALID_PARAMS",
                Some("message.parts"),
            ),
            (
                "SendMessage",
                json!({ "message": { "messageId": "m", "parts": [{ "text": "x" }] } }),
                "INVALID_PARAMS",
                Some("message.role"),
            ),
            ("SendMessage", json!({ "message": text("x"), "tenant": "nobody" }), "UNKNOWN_AGENT", None),
            (
                "SendMessage",
                json!({ "message": text("x"), "tenant": "no such name!" }),
                "INVALID_PARAMS",
                Some("tenant"),
            ),
            ("SendMessage", to_ended, "UNSUPPORTED_OPERATION", None),
            ("GetTask", json!({ "id": "foreign" }), "TASK_NOT_FOUND", None),
            ("GetTask", json!({ "id": task, "historyLength": -1 }), "INVALID_PARAMS", Some("historyLength")),
            ("ListTasks", json!({ "pageSize": 0 }), "INVALID_PARAMS", Some("pageSize")),
            ("CancelTask", json!({ "id": done }), "TASK_NOT_CANCELABLE", None),
            ("CancelTask", json!({ "id": "foreign" }), "TASK_NOT_FOUND", None),
            ("SubscribeToTask", json!({ "id": done }), "UNSUPPORTED_OPERATION", None),
            ("SubscribeToTask", json!({ "id": "foreign" }), "TASK_NOT_FOUND", None),
            (
                "CreateTaskPushNotificationConfig",
                json!({ "taskId": task, "url": "http://127.0.0.1/" }),
                "PUSH_NOTIFICATION_NOT_SUPPORTED",
                None,
            ),
            (
                "GetTaskPushNotificationConfig",
                json!({ "taskId": task, "id": "c" }),
                "PUSH_NOTIFICATION_NOT_SUPPORTED",
                None,
            ),
            ("ListTaskPushNotificationConfigs", json!({ "taskId": task }), "PUSH_NOTIFICATION_NOT_SUPPORTED", None),
            (
                "DeleteTaskPushNotificationConfig",
                json!({ "taskId": task, "id": "c" }),
                "PUSH_NOTIFICATION_NOT_SUPPORTED",
                None,
            ),
            ("GetExtendedAgentCard", json!({}), "UNSUPPORTED_OPERATION", None),
        ];
        for (method, params, reason, field) in refusals {
            let refused = client.ask(method, params.clone()).await.map(|value| value.to_string());
            let expected = (reason.to_owned(), field.map(str::to_owned));
            assert_eq!(refused, Err(expected), "{spoken:?} {method} {params}");
        }
        let unversioned = Client { version: None, ..client }.ask("GetTask", json!({ "id": task })).await;
        assert_eq!(unversioned.unwrap_err().0, "VERSION_NOT_SUPPORTED", "{spoken:?}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_and_its_stream_are_the_same_through_all_bindings() {
    let node = Node::start().await;
    let mut clients = Vec::new();
    for spoken in ALL {
        clients.push(Client::new(&node, spoken).await);
    }
    let message =
        json!({ "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "hello" }, { "data": { "n": 3 } }] });
    let params = json!({ "message": message, "configuration": { "returnImmediately": true }, "tenant": "reader" });
    let sent = clients[0].ask("SendMessage", params.clone()).await.unwrap();
    let task = sent["task"]["id"].as_str().unwrap().to_owned();

    let mut streams = Vec::new();
    for client in &clients {
        streams.push(client.stream("SendStreamingMessage", params.clone()).await.unwrap());
        streams.push(client.stream("SubscribeToTask", json!({ "id": task })).await.unwrap());
    }
    node.report(&task, vec![chunk("One ", false), chunk("two", true)]).await;
    node.finish(&task, TaskState::Completed).await;
    let mut seen = Vec::new();
    for stream in streams {
        let events: Vec<Value> = timeout(PATIENCE, stream.collect()).await.expect("the stream ends");
        seen.push(events.into_iter().map(message_of::<a2a::StreamResponse>).collect::<Vec<_>>());
    }
    for (sender, subscriber) in [(2, 3), (4, 5)] {
        assert_eq!(seen[sender], seen[0]);
        assert_eq!(seen[subscriber], seen[1]);
    }
    assert_eq!(seen[0].last(), seen[1].last());
    assert_eq!(seen[0].len(), 4, "the task, two texts, and its end");

    let mut read = Vec::new();
    for client in &clients {
        read.push(message_of::<a2a::Task>(client.ask("GetTask", json!({ "id": task })).await.unwrap()));
    }
    assert_eq!(read[1], read[0]);
    assert_eq!(read[2], read[0]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_are_set_up_read_and_removed_the_same_through_all_bindings() {
    let policy = EgressPolicy::new(vec!["127.0.0.1".parse().unwrap()]);
    let node = Node::start_telling(Some(Arc::new(policy))).await;
    for spoken in ALL {
        let client = Client::new(&node, spoken).await;
        let message = json!({ "messageId": format!("m-{spoken:?}"), "role": "ROLE_USER", "parts": [{ "text": "x" }] });
        let url = "http://127.0.0.1:9/hook";
        let auth = json!({ "scheme": "Bearer", "credentials": "secret" });
        let configuration =
            json!({ "returnImmediately": true, "taskPushNotificationConfig": { "id": "sent", "url": url } });
        let sent = client.ask("SendMessage", json!({ "message": message, "configuration": configuration })).await;
        let task = sent.unwrap()["task"]["id"].as_str().unwrap().to_owned();

        let config = json!({ "taskId": task, "id": "a", "url": url, "token": "t", "authentication": auth });
        let shown = json!({ "taskId": task, "id": "a", "url": url, "authentication": { "scheme": "Bearer" } });
        for _ in 0..2 {
            let created = client.ask("CreateTaskPushNotificationConfig", config.clone()).await.unwrap();
            assert_eq!(created, shown, "{spoken:?}");
        }
        let name = json!({ "taskId": task, "id": "a" });
        assert_eq!(client.ask("GetTaskPushNotificationConfig", name.clone()).await, Ok(shown), "{spoken:?}");
        let list = json!({ "taskId": task });
        let listed = client.ask("ListTaskPushNotificationConfigs", list.clone()).await.unwrap();
        let ids: Vec<&str> =
            listed["configs"].as_array().unwrap().iter().map(|config| config["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["a", "sent"], "{spoken:?}");
        for _ in 0..2 {
            client.ask("DeleteTaskPushNotificationConfig", name.clone()).await.unwrap();
        }
        let gone = client.ask("GetTaskPushNotificationConfig", name).await;
        assert_eq!(gone, Err(("TASK_NOT_FOUND".to_owned(), None)), "{spoken:?}");

        let unknown = json!({ "taskId": "0198c0de-0000-7000-8000-000000000000", "id": "a", "url": url });
        for (method, params, reason, field) in [
            ("CreateTaskPushNotificationConfig", unknown.clone(), "TASK_NOT_FOUND", None),
            ("ListTaskPushNotificationConfigs", json!({ "taskId": unknown["taskId"] }), "TASK_NOT_FOUND", None),
            (
                "DeleteTaskPushNotificationConfig",
                json!({ "taskId": unknown["taskId"], "id": "a" }),
                "TASK_NOT_FOUND",
                None,
            ),
            (
                "CreateTaskPushNotificationConfig",
                json!({ "taskId": task, "url": "https://127.0.0.2/" }),
                "INVALID_PARAMS",
                Some("url"),
            ),
        ] {
            let refused = client.ask(method, params.clone()).await.map(|value| value.to_string());
            let expected = (reason.to_owned(), field.map(str::to_owned));
            assert_eq!(refused, Err(expected), "{spoken:?} {method} {params}");
        }
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_of_every_binding_asks_for_the_version() {
    let node = Node::start().await;
    let task = "0198c0de-0000-7000-8000-000000000000";
    let message = json!({ "message": { "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "x" }] } });
    let operations = [
        ("SendMessage", message.clone()),
        ("SendStreamingMessage", message),
        ("GetTask", json!({ "id": task })),
        ("ListTasks", json!({})),
        ("CancelTask", json!({ "id": task })),
        ("SubscribeToTask", json!({ "id": task })),
        ("CreateTaskPushNotificationConfig", json!({ "taskId": task, "url": "https://a.example" })),
        ("GetTaskPushNotificationConfig", json!({ "taskId": task, "id": "a" })),
        ("ListTaskPushNotificationConfigs", json!({ "taskId": task })),
        ("DeleteTaskPushNotificationConfig", json!({ "taskId": task, "id": "a" })),
        ("GetExtendedAgentCard", json!({})),
    ];
    for spoken in ALL {
        for (method, params) in &operations {
            for version in [None, Some("0.3"), Some("1.1"), Some("9.9"), Some("x")] {
                let client = Client { version, ..Client::new(&node, spoken).await };
                let refused = match *method {
                    "SendStreamingMessage" if spoken == Spoken::Grpc => {
                        client.stream(method, params.clone()).await.map(|_| Value::Null)
                    }
                    _ => client.ask(method, params.clone()).await,
                };
                assert_eq!(refused.unwrap_err().0, "VERSION_NOT_SUPPORTED", "{spoken:?} {method} {version:?}");
            }
        }
        for version in ["1.0", "1.0.1"] {
            let client = Client { version: Some(version), ..Client::new(&node, spoken).await };
            client.ask("ListTasks", json!({})).await.unwrap();
        }
    }
    let listed = node.http.get(format!("{}/rest/tasks?A2A-Version=1.0", node.url)).send().await.unwrap();
    assert_eq!(listed.status(), 200, "the query stands in for the header");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_bindings_refuse_alike_what_holds_too_much_or_is_nonsense() {
    let node = Node::start().await;
    let send = |part: Value| {
        let message = json!({ "messageId": "m", "role": "ROLE_USER", "parts": [part] });
        json!({ "message": message, "configuration": { "returnImmediately": true }, "tenant": "reader" })
    };
    let deep = (0..40).fold(json!(1), |value, _| json!([value]));
    let rows = [
        (send(json!({ "data": vec![json!([]); 60_000] })), "INVALID_PARAMS", Some("params")),
        (send(json!({ "data": deep })), "INVALID_PARAMS", Some("params")),
        (send(json!({ "text": "x".repeat(call::MAX_BODY_BYTES) })), "BODY_TOO_LARGE", None),
    ];
    for (spoken, (params, reason, field)) in
        ALL.into_iter().flat_map(|spoken| rows.iter().map(move |row| (spoken, row)))
    {
        let client = Client::new(&node, spoken).await;
        let refused = client.ask("SendMessage", params.clone()).await.map(|value| value.to_string());
        assert_eq!(refused, Err(((*reason).to_owned(), field.map(str::to_owned))), "{spoken:?} {reason}");
    }
    for (spoken, at) in [(Spoken::JsonRpc, "error"), (Spoken::HttpJson, "error")] {
        let client = Client::new(&node, spoken).await;
        let answer = client.request("SendMessage", &rows[0].0).send().await.unwrap().json::<Value>().await.unwrap();
        assert!(answer[at]["message"].as_str().unwrap().contains("send the data as a file part"), "{answer}");
        assert!(spoken == Spoken::HttpJson || answer["id"] == 7, "under the id of the request: {answer}");
    }

    let garbage = node.http.post(format!("{}/lf.a2a.v1.A2AService/GetTask", node.url));
    let garbage = garbage.header("content-type", "application/grpc").header("a2a-version", "1.0");
    let refused = garbage.body(vec![0, 0, 0, 0, 3, 0xff, 0xff, 0xff]).send().await.unwrap();
    assert_eq!(refused.headers()["grpc-status"], "3", "{refused:?}");

    let large = send(json!({ "text": "x".repeat(3_000_000) }));
    for spoken in ALL {
        let taken = Client::new(&node, spoken).await.ask("SendMessage", large.clone()).await;
        assert!(taken.is_ok(), "{spoken:?}: {taken:?}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_names_the_field_and_its_format() {
    let node = Node::start().await;
    let raw = json!({ "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "x" }, { "raw": "no base64!" }] });
    let rows = [
        ("ListTasks", json!({ "statusTimestampAfter": "yesterday" }), "statusTimestampAfter", "2026-01-31T12:00:00Z"),
        ("SendMessage", json!({ "message": raw }), "message.parts[1].raw", "is not base64"),
    ];
    for spoken in [Spoken::JsonRpc, Spoken::HttpJson] {
        let client = Client::new(&node, spoken).await;
        for (method, params, field, told) in &rows {
            let answer = client.request(method, params).send().await.unwrap().json::<Value>().await.unwrap();
            let refused = client.result(answer.clone()).unwrap_err();
            assert_eq!(refused, ("INVALID_PARAMS".to_owned(), Some((*field).to_owned())), "{spoken:?}");
            assert!(answer["error"]["message"].as_str().unwrap().contains(told), "{answer}");
        }
        let resumed = client.request("ListTasks", &json!({})).header("Last-Event-ID", "none").send().await.unwrap();
        let refused = client.result(resumed.json().await.unwrap()).unwrap_err();
        assert_eq!(refused, ("INVALID_PARAMS".to_owned(), Some("Last-Event-ID".to_owned())), "{spoken:?}");
    }
    let nobody =
        node.http.get(format!("{}/agents/nope/rest/tasks", node.url)).header("A2A-Version", "1.0").send().await;
    let answer = nobody.unwrap().json::<Value>().await.unwrap();
    assert_eq!(answer["error"]["details"][0]["reason"], "UNKNOWN_AGENT", "{answer}");
    node.stop().await;
}

/// A client of one binding, as simple as it gets.
#[derive(Clone)]
pub(super) struct Client<'a> {
    pub(super) node: &'a Node,
    pub(super) spoken: Spoken,
    pub(super) version: Option<&'static str>,
    /// The header `A2A-Extensions`.
    pub(super) extensions: Option<String>,
    /// The header `Prefer`.
    pub(super) prefer: Option<&'static str>,
    pub(super) token: Option<&'static str>,
    pub(super) grpc: A2aServiceClient<Channel>,
}

impl<'a> Client<'a> {
    pub(super) async fn new(node: &'a Node, spoken: Spoken) -> Self {
        let channel = Channel::from_shared(node.url.clone()).unwrap().connect().await.unwrap();
        let grpc = A2aServiceClient::new(channel);
        Self { node, spoken, version: Some("1.0"), extensions: None, prefer: None, token: None, grpc }
    }

    pub(super) async fn ask(&self, method: &str, params: Value) -> Result<Value, Refusal> {
        match self.spoken {
            Spoken::JsonRpc | Spoken::HttpJson => {
                let answer: Value = self.request(method, &params).send().await.unwrap().json().await.unwrap();
                self.result(answer)
            }
            Spoken::Grpc => self.ask_grpc(method, params).await,
        }
    }

    /// Why a stream is refused.
    pub(super) async fn stream_refused(&self, method: &str, params: Value) -> String {
        match self.spoken {
            Spoken::Grpc => self.stream(method, params).await.err().expect("a refusal").0,
            Spoken::JsonRpc | Spoken::HttpJson => self.ask(method, params).await.unwrap_err().0,
        }
    }

    /// The headers of an answer, or the metadata.
    pub(super) async fn head(&self, method: &str, params: Value) -> http::HeaderMap {
        match self.spoken {
            Spoken::JsonRpc | Spoken::HttpJson => self.request(method, &params).send().await.unwrap().headers().clone(),
            Spoken::Grpc => {
                let answer = self.grpc.clone().get_task(self.message::<a2a::GetTaskRequest>(params)).await;
                answer
                    .map_or_else(|status| status.metadata().clone(), |answer| answer.metadata().clone())
                    .into_headers()
            }
        }
    }

    pub(super) async fn stream(
        &self,
        method: &str,
        params: Value,
    ) -> Result<futures::stream::BoxStream<'static, Value>, Refusal> {
        if self.spoken == Spoken::Grpc {
            let mut grpc = self.grpc.clone();
            let answer = match method {
                "SendStreamingMessage" => {
                    grpc.send_streaming_message(self.message::<a2a::SendMessageRequest>(params)).await
                }
                _ => grpc.subscribe_to_task(self.message::<a2a::SubscribeToTaskRequest>(params)).await,
            };
            let items = answer.map_err(|status| refusal_of(&status))?.into_inner();
            return Ok(items.map(|item| json_of::<a2a::StreamResponse>(&item.unwrap())).boxed());
        }
        let response = self.request(method, &params).send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let spoken = self.spoken;
        let frames = sse_stream::SseStream::from_bytes_stream(response.bytes_stream());
        Ok(frames
            .map(move |frame| {
                let event: Value = serde_json::from_str(&frame.unwrap().data.unwrap()).unwrap();
                if spoken == Spoken::JsonRpc { event["result"].clone() } else { event }
            })
            .boxed())
    }

    fn request(&self, method: &str, params: &Value) -> reqwest::RequestBuilder {
        let request = match self.spoken {
            Spoken::JsonRpc => {
                let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
                self.node.http.post(format!("{}/", self.node.url)).json(&body)
            }
            Spoken::HttpJson => self.over_http_json(method, params),
            Spoken::Grpc => unreachable!("gRPC has its own client"),
        };
        self.headers(params).into_iter().fold(request, |request, (name, value)| request.header(name, value))
    }

    /// What the head of a request says. gRPC drops what its protobuf does not know, so there it holds conditions too.
    fn headers(&self, params: &Value) -> Vec<(&'static str, String)> {
        let grpc = self.spoken == Spoken::Grpc;
        let number = |name: &str| params.get(name).filter(|_| grpc).map(Value::to_string);
        let all = [
            ("authorization", self.token.map(|token| format!("Bearer {token}"))),
            ("a2a-version", self.version.map(str::to_owned)),
            ("a2a-extensions", self.extensions.clone()),
            ("prefer", self.prefer.map(str::to_owned)),
            ("towline-current-generation", number("currentGeneration")),
            ("towline-if-generation-match", number("ifGenerationMatch")),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// What the path holds is not in the query or the body.
    fn over_http_json(&self, method: &str, params: &Value) -> reqwest::RequestBuilder {
        let text = |name: &str| params[name].as_str().unwrap_or_default().to_owned();
        let (id, task) = (text("id"), text("taskId"));
        let (verb, path, held): (_, _, &[&str]) = match method {
            "SendMessage" => ("POST", "message:send".to_owned(), &[]),
            "SendStreamingMessage" => ("POST", "message:stream".to_owned(), &[]),
            "GetTask" => ("GET", format!("tasks/{id}"), &["id"]),
            "ListTasks" => ("GET", "tasks".to_owned(), &[]),
            "CancelTask" => ("POST", format!("tasks/{id}:cancel"), &["id"]),
            "SubscribeToTask" => ("GET", format!("tasks/{id}:subscribe"), &["id"]),
            "CreateTaskPushNotificationConfig" => {
                ("POST", format!("tasks/{task}/pushNotificationConfigs"), &["taskId"])
            }
            "ListTaskPushNotificationConfigs" => ("GET", format!("tasks/{task}/pushNotificationConfigs"), &["taskId"]),
            "GetTaskPushNotificationConfig" => {
                ("GET", format!("tasks/{task}/pushNotificationConfigs/{id}"), &["taskId", "id"])
            }
            "DeleteTaskPushNotificationConfig" => {
                ("DELETE", format!("tasks/{task}/pushNotificationConfigs/{id}"), &["taskId", "id"])
            }
            "GetExtendedAgentCard" => ("GET", "extendedAgentCard".to_owned(), &[]),
            other => panic!("{other}"),
        };
        let mut rest = params.as_object().unwrap().clone();
        rest.retain(|name, _| !held.contains(&name.as_str()) && name != "tenant");
        let tenant =
            params["tenant"].as_str().map(|tenant| format!("{}/", tenant.replace(' ', "%20"))).unwrap_or_default();
        let url = format!("{}/rest/{tenant}{path}", self.node.url);
        let request = self.node.http.request(verb.parse().unwrap(), url);
        if verb == "POST" && !(rest.is_empty() && method == "CancelTask") {
            return request.json(&rest);
        }
        let query: Vec<(String, String)> = rest
            .into_iter()
            .map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
            .collect();
        let text = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        let (client, built) = request.build_split();
        let mut built = built.unwrap();
        if !text.is_empty() {
            built.url_mut().set_query(Some(&text));
        }
        reqwest::RequestBuilder::from_parts(client, built)
    }

    fn result(&self, answer: Value) -> Result<Value, Refusal> {
        let Some(error) = answer.get("error") else {
            return Ok(if self.spoken == Spoken::JsonRpc { answer["result"].clone() } else { answer });
        };
        let details = if self.spoken == Spoken::JsonRpc { &error["data"] } else { &error["details"] };
        let field = details[1]["fieldViolations"][0]["field"].as_str().map(str::to_owned);
        Err((details[0]["reason"].as_str().unwrap().to_owned(), field))
    }

    async fn ask_grpc(&self, method: &str, params: Value) -> Result<Value, Refusal> {
        let mut grpc = self.grpc.clone();
        /// Sends it as the type of its request, and reads the answer as the type of the result.
        macro_rules! unary {
            ($call:ident, $request:ty, $result:ty) => {
                grpc.$call(self.message::<$request>(params)).await.map(|answer| json_of::<$result>(answer.get_ref()))
            };
        }
        use a2a::*;
        let answer = match method {
            "SendMessage" => unary!(send_message, SendMessageRequest, SendMessageResponse),
            "GetTask" => unary!(get_task, GetTaskRequest, Task),
            "ListTasks" => unary!(list_tasks, ListTasksRequest, ListTasksResponse),
            "CancelTask" => unary!(cancel_task, CancelTaskRequest, Task),
            "SubscribeToTask" => {
                let answer = grpc.subscribe_to_task(self.message::<SubscribeToTaskRequest>(params)).await;
                answer.map(|_| Value::Null)
            }
            "CreateTaskPushNotificationConfig" => {
                unary!(create_task_push_notification_config, TaskPushNotificationConfig, TaskPushNotificationConfig)
            }
            "GetTaskPushNotificationConfig" => {
                unary!(
                    get_task_push_notification_config,
                    GetTaskPushNotificationConfigRequest,
                    TaskPushNotificationConfig
                )
            }
            "ListTaskPushNotificationConfigs" => unary!(
                list_task_push_notification_configs,
                ListTaskPushNotificationConfigsRequest,
                ListTaskPushNotificationConfigsResponse
            ),
            "DeleteTaskPushNotificationConfig" => {
                let message = self.message::<DeleteTaskPushNotificationConfigRequest>(params);
                grpc.delete_task_push_notification_config(message).await.map(|_| Value::Null)
            }
            "GetExtendedAgentCard" => unary!(get_extended_agent_card, GetExtendedAgentCardRequest, AgentCard),
            other => panic!("{other}"),
        };
        answer.map_err(|status| refusal_of(&status))
    }

    fn message<T: ProtoJsonPayload>(&self, params: Value) -> tonic::Request<T::Proto> {
        let headers = self.headers(&params);
        let mut request = tonic::Request::new(convert::result_to::<T>(params).unwrap());
        for (name, value) in headers {
            request.metadata_mut().insert(name, value.parse().unwrap());
        }
        if let Some(token) = self.token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        request
    }
}

fn json_of<T: ProtoJsonPayload>(message: &T::Proto) -> Value {
    convert::params_of::<T>(message).unwrap()
}

fn message_of<T: ProtoJsonPayload>(json: Value) -> T::Proto {
    convert::result_to::<T>(json).unwrap()
}

fn refusal_of(status: &Status) -> Refusal {
    let reason = status.get_details_error_info().expect("an ErrorInfo").reason;
    let field = status.get_details_bad_request().and_then(|wrong| Some(wrong.field_violations.first()?.field.clone()));
    (reason, field)
}
