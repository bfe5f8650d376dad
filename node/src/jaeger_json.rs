//! A trace in the JSON of Jaeger's query API, which its UI takes as an upload and its tools read.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use towline_trace::{Kind, SpanRecord, names};

/// The service of spans that nobody but the log tells of.
const UNKNOWN_SERVICE: &str = "towline";

/// `{"data": […]}` with one entry for each trace; the order in which the spans are given does not matter.
pub(crate) fn of(spans: &[SpanRecord]) -> Value {
    let mut traces: BTreeMap<&str, Vec<&SpanRecord>> = BTreeMap::new();
    for span in spans {
        traces.entry(&span.trace_id).or_default().push(span);
    }
    let data: Vec<Value> = traces.into_iter().map(|(id, spans)| trace(id, &spans)).collect();
    json!({ "data": data, "errors": null, "limit": 0, "offset": 0, "total": data.len() })
}

fn trace(id: &str, spans: &[&SpanRecord]) -> Value {
    let mut processes: BTreeMap<(&str, &str), String> = BTreeMap::new();
    for span in spans {
        let next = format!("p{}", processes.len() + 1);
        processes.entry((&span.service, &span.node)).or_insert(next);
    }
    let mut sorted: Vec<&&SpanRecord> = spans.iter().collect();
    sorted.sort_by_key(|span| (span.start_us, &span.span_id));
    let process = |((service, node), id): (&(&str, &str), &String)| {
        let service = if service.is_empty() { UNKNOWN_SERVICE } else { service };
        let tags = if node.is_empty() { json!([]) } else { json!([tag(names::NODE_NAME, &json!(node))]) };
        (id.clone(), json!({ "serviceName": service, "tags": tags }))
    };
    json!({
        "processes": processes.iter().map(process).collect::<Map<_, _>>(),
        "spans": sorted.iter().map(|span| of_span(span, &processes)).collect::<Vec<_>>(),
        "traceID": id,
        "warnings": null,
    })
}

fn of_span(span: &SpanRecord, processes: &BTreeMap<(&str, &str), String>) -> Value {
    let reference = |kind: &str, trace: &str, span: &str| json!({ "refType": kind, "spanID": span, "traceID": trace });
    let parent = span.parent_span_id.iter().map(|parent| reference("CHILD_OF", &span.trace_id, parent));
    let links = span.links.iter().map(|link| reference("FOLLOWS_FROM", &link.trace_id, &link.span_id));
    let kind = match span.kind {
        Kind::Internal => "internal",
        Kind::Client => "client",
        Kind::Server => "server",
    };
    let mut tags: Vec<Value> = span.attributes.iter().map(|(key, value)| tag(key, value)).collect();
    tags.push(tag("span.kind", &json!(kind)));
    if let Some(error) = &span.error {
        tags.push(tag("error", &json!(true)));
        tags.push(tag("otel.status_code", &json!("ERROR")));
        tags.push(tag("otel.status_description", &json!(error)));
    }
    let logs = span.events.iter().map(|event| {
        let name = tag("event", &json!(event.name));
        let fields: Vec<Value> =
            std::iter::once(name).chain(event.attributes.iter().map(|(key, value)| tag(key, value))).collect();
        json!({ "fields": fields, "timestamp": event.at_us })
    });
    json!({
        "duration": span.end_us.saturating_sub(span.start_us),
        "logs": logs.collect::<Vec<_>>(),
        "operationName": span.name,
        "processID": processes.get(&(span.service.as_str(), span.node.as_str())),
        "references": parent.chain(links).collect::<Vec<_>>(),
        "spanID": span.span_id,
        "startTime": span.start_us,
        "tags": tags,
        "traceID": span.trace_id,
        "warnings": null,
    })
}

fn tag(key: &str, value: &Value) -> Value {
    let (kind, value) = match value {
        Value::Bool(_) => ("bool", value.clone()),
        Value::Number(number) if number.is_f64() => ("float64", value.clone()),
        Value::Number(_) => ("int64", value.clone()),
        Value::String(_) => ("string", value.clone()),
        Value::Null | Value::Array(_) | Value::Object(_) => ("string", value.to_string().into()),
    };
    json!({ "key": key, "type": kind, "value": value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_its_parent_its_links_its_error_and_its_process() {
        let record = json!({
            "trace_id": "0a", "span_id": "02", "parent_span_id": "01", "name": "call", "kind": "CLIENT",
            "service": "towline-a", "node": "a", "start_us": 5, "end_us": 9,
            "attributes": { "n": 1, "yes": true, "list": ["x"] },
            "links": [{ "trace_id": "0b", "span_id": "03" }],
            "events": [{ "name": "e", "at_us": 6, "attributes": { "k": "v" } }],
            "error": "lost",
        });
        let span: SpanRecord = serde_json::from_value(record).unwrap();
        let other = SpanRecord { span_id: "01".into(), parent_span_id: None, service: String::new(), ..span.clone() };
        let shown = of(&[span, other]);
        let trace = &shown["data"][0];
        assert_eq!(trace["traceID"], "0a");
        let shown = trace["spans"].as_array().unwrap().iter().find(|span| span["spanID"] == "02").unwrap();
        assert_eq!((&shown["startTime"], &shown["duration"]), (&json!(5), &json!(4)));
        assert_eq!(shown["references"][0], json!({ "refType": "CHILD_OF", "spanID": "01", "traceID": "0a" }));
        assert_eq!(shown["references"][1], json!({ "refType": "FOLLOWS_FROM", "spanID": "03", "traceID": "0b" }));
        let tags = shown["tags"].as_array().unwrap();
        for expected in [
            tag("n", &json!(1)),
            tag("yes", &json!(true)),
            json!({ "key": "list", "type": "string", "value": "[\"x\"]" }),
            tag("error", &json!(true)),
            tag("span.kind", &json!("client")),
        ] {
            assert!(tags.contains(&expected), "{expected} in {tags:?}");
        }
        assert_eq!(shown["logs"][0]["fields"][0]["value"], "e");
        let process = shown["processID"].as_str().unwrap();
        assert_eq!(trace["processes"][process]["serviceName"], "towline-a");
        assert_eq!(trace["processes"].as_object().unwrap().len(), 2);
    }
}
