//! Where a client of `/mcp` says which trace it is in: in `_meta`, in the header, in both, nowhere, or malformed.

use ::http::Request as HttpRequest;
use towline_core::TraceContext;

use super::*;

const META: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn a_request_is_part_of_the_trace_that_its_meta_names_else_of_that_of_its_transport() {
    for (meta, header, expected) in [
        (Some(META), None, Some(META)),
        (None, Some(HEADER), Some(HEADER)),
        (Some(META), Some(META), Some(META)),
        (Some(META), Some(HEADER), Some(META)),
        (Some("nonsense"), Some(HEADER), Some(HEADER)),
        (Some("nonsense"), None, None),
        (None, None, None),
    ] {
        let of = |text: &str| text.parse::<TraceContext>().unwrap().trace_id;
        let trace = trace_of(meta, header, true);
        match expected {
            Some(expected) => assert_eq!(trace, of(expected), "{meta:?} {header:?}"),
            None => assert!(trace != of(META) && trace != of(HEADER)),
        }
        let own = trace_of(meta, header, false);
        assert!(own != of(META) && own != of(HEADER), "who may not choose one gets a new one");
    }
}

fn trace_of(meta: Option<&str>, header: Option<&str>, trusted: bool) -> u128 {
    let mut head = HttpRequest::post("/mcp");
    if let Some(header) = header {
        head = head.header("traceparent", header);
    }
    let (parts, ()) = head.body(()).unwrap().into_parts();
    let meta = meta.map_or(json!({}), |text| json!({ "traceparent": text }));
    let params = json!({ "_meta": meta, "name": "list_agents" });
    let body = json!({ "id": 7, "jsonrpc": "2.0", "method": "tools/call", "params": params });
    let Ok(message::Incoming::Request(request)) = message::parse(body.to_string().as_bytes()) else { panic!("{body}") };
    super::super::http::span(&parts, &request, &revision::Speaker::unknown(), None, trusted).context().trace_id
}
