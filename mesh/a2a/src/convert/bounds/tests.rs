//! What a request may hold, in JSON and in protobuf, and an answer in JSON.

use a2a_pb::protojson_conv::ProtoJsonPayload;
use prost::Message as _;
use serde_json::{Value, json};

use super::*;

fn request(data: Value) -> Value {
    json!({ "message": { "messageId": "m", "role": "ROLE_USER", "parts": [{ "data": data }] } })
}

fn json(data: &Value) -> Result<(), String> {
    let call = json!({ "id": 1, "jsonrpc": "2.0", "method": "SendMessage", "params": request(data.clone()) });
    check_json(call.to_string().as_bytes()).map_err(|field| field.to_string())
}

fn protobuf(data: &Value) -> Result<(), String> {
    let wire: <a2a::SendMessageRequest as ProtoJsonPayload>::ProtoJson =
        serde_json::from_value(request(data.clone())).unwrap();
    check_protobuf(&wire.encode_to_vec()).map_err(|field| field.to_string())
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |value, level| if level % 2 == 0 { json!([value]) } else { json!({ "n": value }) })
}

#[test]
fn a_request_with_too_many_values_is_refused_and_told_what_to_do() {
    for (length, is_taken) in [(MAX_JSON_VALUES - 100, true), (MAX_JSON_VALUES, false), (900_000, false)] {
        for item in [json!([]), json!({}), json!(1), json!("x")] {
            let data = Value::Array(vec![item; length]);
            for checked in [json(&data), protobuf(&data)] {
                assert_eq!(checked.is_ok(), is_taken, "{length}");
                let told = checked.err().unwrap_or_else(|| "50000 as a file part".to_owned());
                assert!(told.contains("50000") && told.contains("file part"), "{told}");
            }
        }
    }
    let fields: serde_json::Map<String, Value> = (0..60_000).map(|n| (n.to_string(), json!(n))).collect();
    assert!(json(&fields.clone().into()).is_err() && protobuf(&fields.into()).is_err());
}

#[test]
fn a_request_that_nests_too_deep_is_refused_with_the_number_of_levels() {
    for levels in [1, 12, MAX_JSON_DEPTH] {
        assert_eq!((json(&nested(levels)), protobuf(&nested(levels))), (Ok(()), Ok(())), "{levels}");
    }
    for levels in [MAX_JSON_DEPTH + 2, 60, 100] {
        let told = json(&nested(levels)).unwrap_err();
        assert!(told.contains("nests deeper than 24 levels"), "{told}");
    }
    let told = protobuf(&nested(MAX_JSON_DEPTH + 2)).unwrap_err();
    assert!(told.contains("nests deeper than 24 levels"), "{told}");
}

#[test]
fn an_answer_has_more_values_than_a_request_and_is_as_deep_as_its_reader_lets_it_be() {
    for (length, is_taken) in [(MAX_JSON_VALUES, true), (MAX_ANSWER_VALUES - 1, true), (MAX_ANSWER_VALUES, false)] {
        for item in [json!([]), json!({}), json!(1), json!("x")] {
            let checked = check_answer(Value::Array(vec![item; length]).to_string().as_bytes());
            let told = if is_taken { Ok(()) } else { Err("it has more than 250000 values".to_owned()) };
            assert_eq!(checked, told, "{length}");
        }
    }
    let padding = " ".repeat(MAX_ANSWER_VALUES);
    for text in [nested(100).to_string(), "[1,".to_owned(), "nonsense".to_owned()] {
        assert_eq!(check_answer(format!("{padding}{text}").as_bytes()), Ok(()), "{text}");
    }
}

#[test]
fn an_answer_in_protobuf_has_as_many_values_as_one_in_json_wherever_they_are() {
    fn encoded<T: ProtoJsonPayload>(answer: Value) -> Vec<u8> {
        serde_json::from_value::<T::ProtoJson>(answer).unwrap().encode_to_vec()
    }
    for (length, is_taken) in [(MAX_ANSWER_VALUES - 100, true), (MAX_ANSWER_VALUES, false)] {
        let many = Value::Array(vec![json!([]); length]);
        let message = json!({ "messageId": "m", "role": "ROLE_AGENT", "parts": [{ "data": many.clone() }] });
        let status = json!({ "state": "TASK_STATE_WORKING", "message": message.clone() });
        let artifact = json!({ "artifactId": "a", "parts": [{ "data": many.clone() }] });
        let plain = json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_WORKING" } });
        let task = |field: &str, value: Value| {
            let mut task = plain.clone();
            task[field] = value;
            task
        };
        let tasks = [
            task("status", status.clone()),
            task("artifacts", json!([artifact.clone()])),
            task("history", json!([message.clone()])),
            task("metadata", json!({ "m": many.clone() })),
        ];
        let update = json!({ "taskId": "t", "contextId": "c", "status": status.clone() });
        let change = json!({ "taskId": "t", "contextId": "c", "artifact": artifact.clone() });
        let mut checked: Vec<Result<(), String>> = tasks
            .iter()
            .map(|task| check_protobuf_answer(&encoded::<a2a::Task>(task.clone()), AnswerKind::Task))
            .collect();
        let page = json!({ "tasks": [tasks[0].clone()], "nextPageToken": "", "pageSize": 1, "totalSize": 1 });
        checked.push(check_protobuf_answer(&encoded::<a2a::ListTasksResponse>(page), AnswerKind::Tasks));
        for (field, value) in
            [("task", tasks[1].clone()), ("message", message), ("statusUpdate", update), ("artifactUpdate", change)]
        {
            let event = encoded::<a2a::StreamResponse>(json!({ field: value }));
            checked.push(check_protobuf_answer(&event, AnswerKind::Reply));
        }
        let expected = if is_taken { Ok(()) } else { Err("it has more than 250000 values".to_owned()) };
        assert_eq!(checked, vec![expected; 9], "{length}");
    }
}

#[test]
fn an_answer_in_protobuf_that_nests_without_end_is_refused_before_it_is_decoded() {
    // A value is a list (field 6) of values (field 1), from the inside out, in the data (field 4) of a part (5) of a message (2).
    let within = |field: u8, inner: &[u8]| {
        let mut outer = vec![field << 3 | 2];
        prost::encoding::encode_varint(inner.len() as u64, &mut outer);
        outer.extend_from_slice(inner);
        outer
    };
    let nested = |levels: usize| {
        let value = (0..levels).fold(Vec::new(), |value, _| within(6, &within(1, &value)));
        within(2, &within(5, &within(4, &value)))
    };
    assert_eq!(check_protobuf_answer(&nested(50), AnswerKind::Reply), Ok(()));
    let told = check_protobuf_answer(&nested(5_000), AnswerKind::Reply).unwrap_err();
    assert_eq!(told, "it nests deeper than 100 levels");
    assert_eq!(check_protobuf_answer(&[0xff; 12], AnswerKind::Reply), Ok(()), "left to who reads it");
}

#[test]
fn what_is_not_json_is_left_to_who_reads_it_and_what_is_no_protobuf_is_refused() {
    for text in ["", "{", "[1,", "nonsense", "[\"\\ud800\"]"] {
        assert!(check_json(text.as_bytes()).is_ok(), "{text}");
    }
    for message in [&[0xff; 12][..], &[0x0a, 0x05, 1], &[0x12, 0x02, 0x2a, 0x7f], &[0x0f]] {
        let told = check_protobuf(message).unwrap_err().to_string();
        assert!(told.contains("is not a protobuf message"), "{message:?}: {told}");
    }
    assert!(check_protobuf(&[]).is_ok());
}
