//! Tests of the scripted model.

use futures::TryStreamExt;
use serde_json::json;
use towline_core::ToolCall;

use super::*;
use crate::model::{ChatMessage, Delta, ToolSchema, tests::request};

fn scripted(yaml: &str) -> ScriptedProvider {
    ScriptedProvider::from_yaml(yaml, true).unwrap()
}

/// The text and the calls of an answer.
async fn answer(provider: &ScriptedProvider, request: ModelRequest) -> Result<(String, Vec<ToolCall>), ModelError> {
    let deltas: Vec<Delta> = provider.complete(request).await?.try_collect().await?;
    let mut said = (String::new(), Vec::new());
    for delta in &deltas {
        match delta {
            Delta::Text(text) => said.0.push_str(text),
            Delta::Call(call) => said.1.push(call.clone()),
            Delta::Reply => said.0.push_str("[reply]"),
            Delta::Artifact(artifact) => said.0.push_str(&format!("[{artifact:?}]")),
            Delta::Usage(_) | Delta::End => {}
        }
    }
    Ok(said)
}

/// A request in which calls were answered.
fn answered(text: &str, results: &[(&str, serde_json::Value, &str, bool)]) -> ModelRequest {
    let mut request = request(text);
    let calls = results.iter().enumerate().map(|(at, (name, arguments, _, _))| ToolCall {
        id: at.to_string(),
        name: (*name).to_owned(),
        arguments: arguments.clone(),
    });
    request.messages.push(ChatMessage::Assistant { text: String::new(), calls: calls.collect() });
    request.messages.extend(results.iter().enumerate().map(|(at, (name, _, content, is_error))| {
        ChatMessage::ToolResult {
            call_id: at.to_string(),
            name: (*name).to_owned(),
            content: crate::prompt::fence(name, content),
            is_error: *is_error,
        }
    }));
    request
}

fn tool(name: &str, description: &str, schema: serde_json::Value) -> ToolSchema {
    ToolSchema { name: name.into(), description: description.into(), schema }
}

#[tokio::test]
async fn the_first_rule_that_matches_wins() {
    let provider = scripted("rules:\n- { when: { user: 'hello' }, say: one }\n- { say: two }\n- { say: three }\n");
    assert_eq!(answer(&provider, request("hello you")).await.unwrap().0, "one");
    assert_eq!(answer(&provider, request("bye")).await.unwrap().0, "two");
}

#[tokio::test]
async fn groups_of_the_regex_reach_the_template() {
    let provider =
        scripted(r"rules: [{ when: { user: 'add (\d+) and (\d+)' }, say: '{{ captures[1] }}+{{ captures[2] }}' }]");
    assert_eq!(answer(&provider, request("add 1 and 22")).await.unwrap().0, "1+22");
}

#[tokio::test]
async fn one_call_is_made_for_each_item() {
    let provider = scripted(
        "rules: [{ calls: [{ tool: fs.read, for_each: '[\"a\", \"b\"]', arguments: { path: '{{ item }}', at: '{{ index }}' } }] }]",
    );
    let (_, calls) = answer(&provider, request("go")).await.unwrap();
    assert_eq!(calls[1].arguments, json!({ "path": "b", "at": 1 }));
    assert_ne!(calls[0].id, calls[1].id);
}

#[tokio::test]
async fn results_are_seen_without_their_fence_and_with_their_arguments() {
    let provider =
        scripted("rules: [{ when: { tool: 'fs.*' }, say: '{{ results[0].json.n }} {{ results[0].arguments.p }}' }]");
    let request = answered("go", &[("fs.read", json!({ "p": "x" }), r#"{"n":7}"#, false)]);
    assert_eq!(answer(&provider, request).await.unwrap().0, "7 x");
}

#[tokio::test]
async fn a_rule_can_ask_for_content_and_step() {
    let provider = scripted(
        "rules:\n- { when: { step: 0 }, say: start }\n- { when: { content: denied }, say: sorry }\n- { say: fine }\n",
    );
    assert_eq!(answer(&provider, request("go")).await.unwrap().0, "start");
    let denied = answered("go", &[("a", json!({}), "access denied", true)]);
    assert_eq!(answer(&provider, denied).await.unwrap().0, "sorry");
    assert_eq!(answer(&provider, answered("go", &[("a", json!({}), "ok", false)])).await.unwrap().0, "fine");
}

#[tokio::test]
async fn the_same_request_gets_the_same_answer() {
    let provider = scripted("rules: [{ say: 'x{{ step }}', calls: [{ tool: t }] }]");
    let first = answer(&provider, request("go")).await.unwrap();
    assert_eq!(answer(&provider, request("go")).await.unwrap(), first);
}

#[tokio::test]
async fn a_played_failure_ends_after_its_times() {
    let provider = scripted("rules: [{ say: done, fail: { kind: rate_limited, times: 2, retry_after_ms: 5 } }]");
    for _ in 0..2 {
        let error = answer(&provider, request("go")).await.unwrap_err();
        assert_eq!((error.error_type.as_ref(), error.retryable), ("rate_limited", true));
        assert_eq!(error.retry_after, Some(std::time::Duration::from_millis(5)));
    }
    assert_eq!(answer(&provider, request("go")).await.unwrap().0, "done");
}

#[tokio::test]
async fn a_truncated_stream_has_no_end() {
    let provider =
        scripted("rules: [{ say: 'a long answer', delta_chars: 2, fail: { kind: truncated_stream, times: 1 } }]");
    let deltas: Vec<Delta> = provider.complete(request("go")).await.unwrap().try_collect().await.unwrap();
    assert!(!deltas.is_empty() && !deltas.contains(&Delta::End));
}

#[tokio::test]
async fn malformed_arguments_and_unknown_tools_can_be_played() {
    let malformed =
        scripted("rules: [{ calls: [{ tool: t, arguments: { a: b } }], fail: { kind: malformed_arguments } }]");
    let (_, calls) = answer(&malformed, request("go")).await.unwrap();
    assert_eq!(calls[0].arguments, json!(r#"{"a":"b""#));
    let unknown = scripted("rules: [{ fail: { kind: unknown_tool } }]");
    assert_eq!(answer(&unknown, request("go")).await.unwrap().1[0].name, "towline.no_such_tool");
}

#[tokio::test]
async fn strict_without_a_rule_is_an_error() {
    let provider = scripted("rules: [{ agent: other, say: hi }]");
    assert_eq!(answer(&provider, request("go")).await.unwrap_err().error_type, "no_rule");
}

#[tokio::test]
async fn a_template_that_fails_names_its_rule() {
    let provider = scripted("rules: [{ name: broken, say: '{{ results[0].json.n }}' }]");
    let error = answer(&provider, request("go")).await.unwrap_err();
    assert_eq!(error.error_type, "rule_failed");
    assert!(error.message.contains("broken"), "{error}");
}

#[test]
fn all_mistakes_of_a_file_are_told_with_their_lines() {
    let yaml =
        "rules:\n- say: ok\n- say: '{{ oops'\n- name: two\n  when: { user: '(' }\n  say: x\n- sya: x\n- name: empty\n";
    let Err(RuleMistakes(mistakes)) = ScriptedProvider::from_yaml(yaml, true) else { panic!("accepted") };
    let lines: Vec<u64> = mistakes.iter().map(|mistake| mistake.line).collect();
    assert_eq!(lines, [3, 4, 7, 8], "{mistakes:#?}");
    assert!(mistakes[2].message.contains("sya"), "{}", mistakes[2].message);
    assert!(mistakes[3].message.contains("rule 5 (empty)"), "{}", mistakes[3].message);
}

#[test]
fn broken_yaml_is_told_with_its_line() {
    let Err(RuleMistakes(mistakes)) = ScriptedProvider::from_yaml("rules:\n  - say: [\n", true) else {
        panic!("accepted")
    };
    assert!(mistakes[0].line >= 2, "{mistakes:?}");
}

#[tokio::test]
async fn without_a_rule_the_tool_most_like_the_prompt_is_called() {
    let provider = ScriptedProvider::from_yaml("rules: []", false).unwrap();
    let mut request = request("Please get the sum of 3 and 4.");
    request.tools = vec![
        tool(
            "x.echo",
            "Echoes a message",
            json!({ "properties": { "message": { "type": "string" } }, "required": ["message"] }),
        ),
        tool(
            "x.get-sum",
            "Returns the sum of two numbers",
            json!({ "properties": { "a": { "type": "number" }, "b": { "type": "number" } }, "required": ["a", "b"] }),
        ),
    ];
    let (_, calls) = answer(&provider, request).await.unwrap();
    assert_eq!((calls[0].name.as_str(), &calls[0].arguments), ("x.get-sum", &json!({ "a": 3.0, "b": 4.0 })));
}

#[tokio::test]
async fn without_a_rule_quoted_text_fills_a_text_argument() {
    let provider = ScriptedProvider::from_yaml("rules: []", false).unwrap();
    let mut request = request("Echo the message \"hello world\" for me");
    let schema = json!({ "properties": { "message": { "type": "string" } }, "required": ["message"] });
    request.tools = vec![tool("x.echo", "Echoes a message", schema)];
    assert_eq!(answer(&provider, request).await.unwrap().1[0].arguments, json!({ "message": "hello world" }));
}

#[tokio::test]
async fn without_a_rule_a_result_is_quoted() {
    let provider = ScriptedProvider::from_yaml("rules: []", false).unwrap();
    let request = answered("go", &[("x.echo", json!({}), "hello\nyou", false)]);
    assert_eq!(answer(&provider, request).await.unwrap().0, "x.echo answered:\n> hello\n> you");
}

#[tokio::test]
async fn without_a_rule_a_delegation_in_words_is_made() {
    let provider = ScriptedProvider::from_yaml("rules: []", false).unwrap();
    let mut request = request("Delegate to reader: Read README.md");
    let schema = json!({ "properties": { "agent": { "type": "string", "enum": ["reader"] } } });
    request.tools = vec![tool("delegate", "Gives work to another agent", schema)];
    let (_, calls) = answer(&provider, request).await.unwrap();
    assert_eq!(calls[0].arguments, json!({ "agent": "reader", "message": "Read README.md" }));
}

#[tokio::test]
async fn usage_is_estimated_and_the_stream_ends() {
    let provider = scripted("rules: [{ say: '12345678' }]");
    let deltas: Vec<Delta> = provider.complete(request("1234")).await.unwrap().try_collect().await.unwrap();
    assert_eq!(deltas[1], Delta::Usage(towline_core::Usage { input: 1, output: 2 }));
    assert_eq!(deltas[2], Delta::End);
}

#[tokio::test]
async fn a_rule_is_chosen_by_the_id_of_the_message_and_makes_artifacts_and_replies() {
    let provider = scripted(
        "rules:\n- when: { message: '^file-' }\n  artifacts:\n  - { name: a, parts: [{ file: 'x', filename: a.txt, media_type: text/plain }, { data: { n: 1 } }] }\n\
         - { when: { message: '^hi-' }, say: hello, reply: true }\n- { say: other }\n",
    );
    let with_id = |id: &str| ModelRequest { message_id: id.into(), ..request("go") };
    let deltas: Vec<Delta> = provider.complete(with_id("file-1")).await.unwrap().try_collect().await.unwrap();
    let Some(Delta::Artifact(artifact)) = deltas.first() else { panic!("{deltas:?}") };
    assert_eq!((artifact.name.as_deref(), artifact.parts.len()), (Some("a"), 2));
    assert_eq!(artifact.parts[0].content, towline_core::Content::Raw(b"x".to_vec()));
    assert_eq!(artifact.parts[0].filename.as_deref(), Some("a.txt"));
    assert_eq!(answer(&provider, with_id("hi-1")).await.unwrap().0, "hello[reply]");
    assert_eq!(answer(&provider, with_id("else")).await.unwrap().0, "other");
}

#[tokio::test]
async fn a_task_can_be_rejected_with_a_reason() {
    let provider = scripted("rules:\n- { say: not mine, fail: { kind: rejected } }\n");
    let refused = answer(&provider, request("go")).await.unwrap_err();
    assert_eq!((refused.error_type.as_ref(), refused.message.as_str()), ("rejected", "not mine"));
}

#[test]
fn an_artifact_without_content_is_a_mistake() {
    for rules in
        ["rules:\n- artifacts: [{ name: a, parts: [] }]\n", "rules:\n- artifacts: [{ parts: [{ text: x, url: y }] }]\n"]
    {
        assert!(ScriptedProvider::from_yaml(rules, false).is_err(), "{rules}");
    }
}
