use serde_json::{Value, json};

use super::*;

/// What comes out when this comes in, in pieces of a size.
async fn filtered(spool: &Spool, framing: Framing, input: &[u8], size: usize) -> Vec<u8> {
    let mut filter = Filter::new(spool.clone(), framing);
    let mut output = Vec::new();
    for piece in input.chunks(size) {
        filter.feed(piece).await;
        output.extend(filter.take());
    }
    if framing == Framing::Body { filter.end().unwrap_or_default() } else { output }
}

/// The first message of the output, and what its tokens stand for.
fn claimed(spool: &Spool, output: &[u8]) -> (Value, Vec<Spooled>) {
    let message: Value = serde_json::from_slice(output.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    let claimed = spool.claim(&message).into_values().collect();
    (message, claimed)
}

#[tokio::test]
async fn what_has_no_long_string_passes_as_it_is_in_whatever_pieces_it_comes() {
    let lines = [
        json!({ "jsonrpc": "2.0", "id": 1, "result": { "content": [{ "type": "text", "text": "a\"b\\\n{[:,é" }] } })
            .to_string(),
        r#"{"id":"x\"y", "data" : "QUJD", "blob":"", "n":[1,-2.5e3,{"text":null}]}"#.to_owned(),
        String::new(),
        "no \"json at all: { [ \\".to_owned(),
        "event: message\r".to_owned(),
        "data: {\"text\":\"x\"}\r".to_owned(),
        ": a \"comment".to_owned(),
        r#"{"after":"all that"}"#.to_owned(),
    ];
    let input = lines.map(|line| line + "\n").concat();
    let spool = Spool::new(None);
    for framing in [Framing::Lines, Framing::Events] {
        for size in (1..60).chain([10_000]) {
            let output = filtered(&spool, framing, input.as_bytes(), size).await;
            assert_eq!(String::from_utf8(output).unwrap(), input, "in pieces of {size}");
        }
    }
    let body = "{\n  \"id\": 1,\n  \"result\": {}\n}\n";
    assert_eq!(filtered(&spool, Framing::Body, body.as_bytes(), 3).await, body.as_bytes());
}

#[tokio::test]
async fn a_long_file_leaves_its_message_and_a_short_one_stays() {
    let spool = Spool::new(None);
    for (length, leaves) in [(LONGEST_BASE64, false), (LONGEST_BASE64 + 4, true)] {
        let block = json!({ "type": "image", "data": "QUJD".repeat(length / 4), "mimeType": "image/png" });
        let input = json!({ "id": 7, "result": { "content": [block] } }).to_string() + "\n";
        for size in [1_000, 1_000_000] {
            let output = filtered(&spool, Framing::Lines, input.as_bytes(), size).await;
            assert_eq!(output.len() < 1_000, leaves, "{length}");
            let (message, claimed) = claimed(&spool, &output);
            assert_eq!((message["id"].as_u64(), claimed.len()), (Some(7), usize::from(leaves)));
            assert_eq!(message["result"]["content"][0]["mimeType"], "image/png");
        }
    }
}

#[tokio::test]
async fn a_server_cannot_name_what_it_did_not_send() {
    let spool = Spool::new(None);
    let token = spool.put(Spooled::Refused { error_type: "x", why: String::new() });
    assert_eq!(spool.claim(&json!([format!("{token}0"), "towline-spooled-1"])).len(), 0);
    assert_eq!(spool.claim(&json!({ "a": [token] })).len(), 1);
    assert_eq!(spool.claim(&json!({ "a": [token] })).len(), 0, "once");
}

#[tokio::test]
async fn a_message_that_is_too_large_is_answered_in_its_place_and_the_next_one_passes() {
    let spool = Spool::new(None);
    let texts: Vec<Value> = (0..9).map(|_| json!({ "type": "text", "text": "x".repeat(MAX_TEXT_BYTES) })).collect();
    let large = json!({ "jsonrpc": "2.0", "result": { "content": texts, "id": 5 }, "zid": 6 }).to_string();
    for (id, prefix, framing) in [("12", "", Framing::Lines), (r#""a\"b""#, "data: ", Framing::Events)] {
        let large = format!("{prefix}{}{},\"id\":{id}}}", &large[..1], &large[1..large.len() - 1]);
        let input = format!("{large}\n\n{prefix}{{\"id\":13}}\n");
        let output = filtered(&spool, framing, input.as_bytes(), 100_000).await;
        let output = String::from_utf8(output).unwrap();
        let (first, rest) = output.split_once('\n').unwrap();
        let (message, claimed) = claimed(&spool, first.strip_prefix(prefix).unwrap().as_bytes());
        assert_eq!(message["id"], serde_json::from_str::<Value>(id).unwrap());
        assert!(matches!(claimed.as_slice(), [Spooled::Refused { error_type: "too_large", .. }]), "{claimed:?}");
        assert_eq!(rest, format!("\n{prefix}{{\"id\":13}}\n"));
    }
    assert!(filtered(&spool, Framing::Body, large.as_bytes(), 100_000).await.is_empty(), "a body is none then");
}

#[tokio::test]
async fn a_message_of_very_many_objects_is_too_large_whatever_its_length() {
    let spool = Spool::new(None);
    let of = |count: usize| {
        let blocks = vec![json!({ "type": "text", "text": "" }); count];
        json!({ "jsonrpc": "2.0", "id": 7, "result": { "content": blocks } }).to_string() + "\n"
    };
    let output = filtered(&spool, Framing::Lines, of(MAX_MESSAGE_LISTS).as_bytes(), 50_000).await;
    let (message, claimed) = claimed(&spool, &output);
    assert_eq!(message["id"], 7);
    assert!(matches!(claimed.as_slice(), [Spooled::Refused { error_type: "too_large", .. }]), "{claimed:?}");
    let fits = of(MAX_MESSAGE_LISTS - 3);
    assert!(filtered(&spool, Framing::Lines, fits.as_bytes(), 50_000).await == fits.as_bytes());
}

#[tokio::test]
async fn a_message_of_very_many_numbers_is_too_large_and_a_text_of_commas_is_not() {
    let spool = Spool::new(None);
    let of = |count: usize| json!({ "id": 7, "result": { "content": vec![0; count] } }).to_string() + "\n";
    let output = filtered(&spool, Framing::Lines, of(MAX_MESSAGE_VALUES - 2).as_bytes(), 50_000).await;
    let (message, claimed) = claimed(&spool, &output);
    assert_eq!(message["id"], 7);
    assert!(matches!(claimed.as_slice(), [Spooled::Refused { error_type: "too_large", .. }]), "{claimed:?}");
    let commas = json!({ "id": 7, "result": { "text": ",".repeat(MAX_MESSAGE_VALUES + 1) } }).to_string() + "\n";
    for fits in [of(MAX_MESSAGE_VALUES - 3), commas] {
        assert!(filtered(&spool, Framing::Lines, fits.as_bytes(), 50_000).await == fits.as_bytes());
    }
}

#[tokio::test]
async fn a_long_string_that_is_no_file_and_no_text_is_refused_and_not_held() {
    let spool = Spool::new(None);
    let input = json!({ "id": 1, "result": { "other": "x".repeat(3 * MAX_TEXT_BYTES) } }).to_string() + "\n";
    let output = filtered(&spool, Framing::Lines, input.as_bytes(), 50_000).await;
    let (_, claimed) = claimed(&spool, &output);
    assert!(matches!(claimed.as_slice(), [Spooled::Refused { error_type: "too_large", .. }]), "{claimed:?}");
}

#[tokio::test]
async fn an_event_of_many_lines_is_bounded_as_a_whole() {
    for end in ["\n", "\r", "\r\n"] {
        let mut filter = Filter::new(Spool::new(None), Framing::Events);
        let line = format!("data: {}{end}", "1".repeat(1_000_000));
        for _ in 0..16 {
            filter.feed(line.as_bytes()).await;
            assert_eq!(filter.take(), line.as_bytes());
        }
        assert!(!filter.is_too_much());
        filter.feed(end.as_bytes()).await;
        for _ in 0..16 {
            filter.feed(line.as_bytes()).await;
        }
        assert!(!filter.is_too_much(), "an empty line ends an event");
        filter.feed(line.as_bytes()).await;
        assert!(filter.is_too_much(), "{end:?}");
    }
}
