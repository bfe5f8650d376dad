use serde_json::json;

use super::*;

#[test]
fn every_operation_has_its_verb_and_its_path() {
    let table = [
        ("POST", "message:send", "SendMessage", json!({})),
        ("POST", "message:stream", "SendStreamingMessage", json!({})),
        ("GET", "tasks", "ListTasks", json!({})),
        ("GET", "tasks/", "ListTasks", json!({})),
        ("GET", "tasks/t", "GetTask", json!({ "id": "t" })),
        ("GET", "tasks/t:x", "GetTask", json!({ "id": "t:x" })),
        ("POST", "tasks/t:cancel", "CancelTask", json!({ "id": "t" })),
        ("GET", "tasks/t:subscribe", "SubscribeToTask", json!({ "id": "t" })),
        ("POST", "tasks/t:subscribe", "SubscribeToTask", json!({ "id": "t" })),
        ("POST", "tasks/t/pushNotificationConfigs", "CreateTaskPushNotificationConfig", json!({ "taskId": "t" })),
        ("GET", "tasks/t/pushNotificationConfigs", "ListTaskPushNotificationConfigs", json!({ "taskId": "t" })),
        (
            "GET",
            "tasks/t/pushNotificationConfigs/c",
            "GetTaskPushNotificationConfig",
            json!({ "taskId": "t", "id": "c" }),
        ),
        (
            "DELETE",
            "tasks/t/pushNotificationConfigs/c",
            "DeleteTaskPushNotificationConfig",
            json!({ "taskId": "t", "id": "c" }),
        ),
        ("GET", "extendedAgentCard", "GetExtendedAgentCard", json!({})),
        ("POST", "reader/message:send", "SendMessage", json!({ "tenant": "reader" })),
        ("GET", "reader/tasks/t", "GetTask", json!({ "id": "t", "tenant": "reader" })),
    ];
    for (verb, path, method, params) in table {
        let found = operation(&verb.parse().unwrap(), path).unwrap_or_else(|error| panic!("{verb} {path}: {error}"));
        let path: Map<String, Value> =
            found.path.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        assert_eq!((found.method, Value::Object(path)), (method, params));
    }
}

#[test]
fn anything_else_is_no_operation() {
    for (verb, path) in [
        ("GET", "message:send"),
        ("POST", "tasks"),
        ("DELETE", "tasks/t"),
        ("GET", "tasks/t:cancel/x"),
        ("PUT", "tasks/t/pushNotificationConfigs/c"),
        ("GET", "a/b/tasks"),
        ("GET", "reader"),
        ("GET", ""),
    ] {
        let error = operation(&verb.parse().unwrap(), path).expect_err(path);
        assert_eq!((error.http_status(), error.reason), (StatusCode::NOT_FOUND, "METHOD_NOT_FOUND"), "{verb} {path}");
    }
}

#[test]
fn a_query_has_the_types_of_the_parameters() {
    let read = query("pageSize=3&includeArtifacts=true&contextId=a%20b&consistency=local&A2A-Version=1.0").unwrap();
    assert_eq!(Value::Object(read), json!({ "pageSize": 3, "includeArtifacts": true, "contextId": "a b" }));
    for (text, field) in [
        ("pageSize=many", "pageSize"),
        ("history_length=", "history_length"),
        ("includeArtifacts=1", "includeArtifacts"),
    ] {
        assert_eq!(query(text).unwrap_err().field.unwrap().field, field);
    }
}
