//! Requests that make no sense.

use serde_json::{Value, json};
use towline_tests::{A2aClient, Answer, Cluster, FakeModel, Plan, http_client, run_cli, state_of, text_message};

const SPEAKER: &str = "agents:\n  - { name: speaker, description: Speaks., instruction: Speak. }\n";

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const TASK_NOT_FOUND: i64 = -32001;
const VERSION_NOT_SUPPORTED: i64 = -32009;
const NO_SUCH_TASK: &str = "0198c0de-0000-7000-8000-000000000000";

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_make_no_sense_get_a_clear_error_and_the_node_goes_on() {
    let model = FakeModel::start(|_| Answer::say("spoken")).await;
    let cluster = Cluster::start(Plan::one(model.config() + SPEAKER)).await;
    let node = &cluster.nodes[0];
    let speaker = node.agent("speaker");
    let before = speaker.send(text_message("m-1", "speak")).await.unwrap();

    an_unknown_agent_is_named_with_those_that_are_known(&node.url).await;
    an_unknown_task_is_named(&speaker).await;
    malformed_json_rpc_gets_the_code_of_the_protocol(&speaker).await;
    an_oversized_body_is_told_the_limit_of_4_mib(&speaker).await;
    an_empty_message_is_refused(&speaker).await;
    required_fields_are_enforced(&speaker).await;
    a_request_without_the_protocol_version_is_refused(&speaker).await;
    a_page_of_another_site_may_not_call(&speaker).await;

    let after = speaker.get(before["id"].as_str().unwrap()).await.unwrap();
    assert_eq!(after, before, "nothing was lost");
    let list = speaker.call("ListTasks", json!({})).await.unwrap();
    assert_eq!(list["totalSize"], 1, "no bad request made a task: {list}");
    let again = speaker.send(text_message("m-2", "speak")).await.unwrap();
    assert_eq!(state_of(&again), "TASK_STATE_COMPLETED");
}

async fn an_unknown_agent_is_named_with_those_that_are_known(url: &str) {
    let nobody = A2aClient::new(format!("{url}/agents/nobody"));
    let refused = nobody.send(text_message("m-9", "speak")).await.unwrap_err();
    assert!(refused.message.contains("nobody") && refused.message.contains("speaker"), "{refused:?}");
    let ran = run_cli(["send", "nobody", "speak", "--server", url]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("nobody") && ran.stderr.contains("speaker"), "{ran:?}");
    assert_eq!(ran.stdout, "", "errors are no data");
}

async fn an_unknown_task_is_named(speaker: &A2aClient) {
    for id in [NO_SUCH_TASK, "no-uuid-at-all"] {
        for refused in [speaker.get(id).await.unwrap_err(), speaker.cancel(id).await.unwrap_err()] {
            assert_eq!(refused.code, TASK_NOT_FOUND, "{refused:?}");
            assert!(refused.message.contains(id), "{refused:?}");
        }
        let mut message = text_message("m-9", "speak");
        message["taskId"] = json!(id);
        assert_eq!(speaker.send(message).await.unwrap_err().code, TASK_NOT_FOUND);
        let subscribed = speaker.call("SubscribeToTask", json!({ "id": id })).await.unwrap_err();
        assert_eq!(subscribed.code, TASK_NOT_FOUND, "{subscribed:?}");
    }
}

async fn malformed_json_rpc_gets_the_code_of_the_protocol(speaker: &A2aClient) {
    for (body, code) in [
        ("{ \"jsonrpc\": \"2.0\", ", PARSE_ERROR),
        ("this is no JSON", PARSE_ERROR),
        ("", PARSE_ERROR),
        ("[]", INVALID_REQUEST),
        ("{}", INVALID_REQUEST),
        (r#"{"jsonrpc":"1.0","id":1,"method":"GetTask","params":{"id":"x"}}"#, INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"method":"NoSuchMethod","params":{}}"#, METHOD_NOT_FOUND),
        (r#"{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":"no object"}}"#, INVALID_PARAMS),
        (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[1,2]}"#, INVALID_PARAMS),
    ] {
        let answer = error_of(speaker, body).await;
        assert_eq!(answer["code"], code, "{body}: {answer}");
        assert!(answer["message"].as_str().is_some_and(|text| !text.is_empty()), "{body}: {answer}");
    }
}

async fn an_oversized_body_is_told_the_limit_of_4_mib(speaker: &A2aClient) {
    let text = "x".repeat(5 * 1024 * 1024);
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage",
        "params": { "message": text_message("m-9", &text) } });
    let (status, answer) = speaker.post(body.to_string()).await.unwrap();
    assert!(answer.contains("4 MiB"), "{status}: {answer}");
}

async fn an_empty_message_is_refused(speaker: &A2aClient) {
    for message in [
        text_message("m-9", ""),
        text_message("m-9", "  \n"),
        json!({ "messageId": "m-9", "role": "ROLE_USER", "parts": [] }),
        json!({ "messageId": "m-9", "role": "ROLE_USER" }),
        json!({ "messageId": "m-9", "role": "ROLE_USER", "parts": [{}] }),
    ] {
        let refused = speaker.send(message.clone()).await.unwrap_err();
        assert_eq!(refused.code, INVALID_PARAMS, "{message}: {refused:?}");
        assert!(refused.message.contains("part") || refused.message.contains("empty"), "{refused:?}");
    }
}

async fn required_fields_are_enforced(speaker: &A2aClient) {
    let part = json!([{ "text": "speak" }]);
    for (params, field) in [
        (json!({}), "message"),
        (json!({ "message": { "role": "ROLE_USER", "parts": part } }), "message"),
        (json!({ "message": { "messageId": "m-9", "parts": part } }), "role"),
    ] {
        let refused = speaker.call("SendMessage", params.clone()).await.unwrap_err();
        assert_eq!(refused.code, INVALID_PARAMS, "{params}: {refused:?}");
        assert!(refused.message.to_lowercase().contains(field), "it names the field {field}: {refused:?}");
    }
    let refused = speaker.call("GetTask", json!({})).await.unwrap_err();
    assert_eq!(refused.code, INVALID_PARAMS, "{refused:?}");
}

async fn a_request_without_the_protocol_version_is_refused(speaker: &A2aClient) {
    for version in [None, Some("0.3"), Some("2.0")] {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {} });
        let mut request = http_client().post(speaker.endpoint()).header("content-type", "application/json");
        if let Some(version) = version {
            request = request.header("a2a-version", version);
        }
        let answer: Value = request.body(body.to_string()).send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["error"]["code"], VERSION_NOT_SUPPORTED, "{version:?}: {answer}");
    }
}

async fn a_page_of_another_site_may_not_call(speaker: &A2aClient) {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {} }).to_string();
    for (header, value) in [("origin", "https://evil.example"), ("host", "evil.example")] {
        let request = http_client()
            .post(speaker.endpoint())
            .header("content-type", "application/json")
            .header("a2a-version", "1.0")
            .header(header, value);
        let answer = request.body(body.clone()).send().await.unwrap();
        assert!(answer.status().is_client_error(), "{header}: {}", answer.status());
        let text = answer.text().await.unwrap();
        assert!(!text.contains("\"result\""), "{header}: {text}");
    }
}

async fn error_of(client: &A2aClient, body: &str) -> Value {
    let (status, text) = client.post(body.to_owned()).await.unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{body}: {status} {text}"));
    answer["error"].clone()
}
