//! Who has done what to what: one line for each operation that may change something and whose caller is known, under the target
//! `audit`, with the task, agent, session, peer or node that it was about and how it came out: also if it was refused. Never what was
//! said, asked for or answered.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use towline_core::TraceContext;

use super::operations;
use crate::a2a::principal::Caller;

/// The target of the lines: `TOWLINE_LOG` filters by it.
pub(crate) const TARGET: &str = "audit";

/// Tells of a method of A2A, or of an operation by its name; `outcome` is `ok` or the reason of its error.
pub(crate) fn method(caller: &Caller, method: &str, object: Option<&str>, outcome: &str, trace: &TraceContext) {
    tell(caller, operations::of_method(method).unwrap_or(method), object, outcome, Some(trace));
}

/// Tells of an operation over HTTP alone; the outcome is `ok` or the status of its answer.
pub(super) fn route(caller: &Caller, operation: &str, object: Option<&str>, status: StatusCode) {
    if status.is_success() {
        tell(caller, operation, object, "ok", None);
    } else {
        tell(caller, operation, object, status.as_str(), None);
    }
}

/// What an operation was about whose path does not say it: an extension of its answer.
#[derive(Debug, Clone)]
pub(super) struct About(pub String);

/// An answer, also a refusal, to who asked about something that is not in the path.
pub(crate) fn about(answer: impl IntoResponse, object: impl AsRef<str>) -> Response {
    let mut response = answer.into_response();
    response.extensions_mut().insert(About(towline_a2a::shortened(object.as_ref())));
    response
}

fn tell(caller: &Caller, operation: &str, object: Option<&str>, outcome: &str, trace: Option<&TraceContext>) {
    if !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
        return;
    }
    let principal = caller.principal.to_string();
    let session = caller.standing.session.as_deref();
    // As JSON, so that no label can look like another field.
    let labels = serde_json::to_string(caller.standing.labels.as_ref()).ok();
    let labels = labels.filter(|_| !caller.standing.labels.is_empty());
    let trace = trace.map(TraceContext::trace_id_hex);
    // Quoted, since a principal may be named by the token of an issuer.
    tracing::info!(target: TARGET, op = operation, object, outcome, principal = ?principal, session, labels, trace_id = trace);
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        collections::BTreeMap,
        io::Write,
        sync::{Arc, Mutex},
    };

    use axum::{Router, body::Body, middleware, routing::any};
    use http::Request;
    use serde_json::{Value, json};
    use tower::ServiceExt as _;
    use towline_core::{Principal, PrincipalRole};
    use tracing_subscriber::{fmt, layer::SubscriberExt};

    use super::*;
    use crate::auth::{KnownBy, Permits, Standing, authorize};

    #[derive(Clone, Default)]
    pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        /// Has this thread write here, as long as the guard lives.
        pub(crate) fn capture(&self) -> tracing::subscriber::DefaultGuard {
            let lines = self.clone();
            let layer = fmt::layer().json().with_writer(move || lines.clone());
            tracing::subscriber::set_default(tracing_subscriber::registry().with(layer))
        }

        /// The fields of the lines of the audit, without the name of the event.
        pub(crate) fn read(&self) -> Vec<Value> {
            let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            lines.filter(|line| line["target"] == TARGET).map(|line| line["fields"].clone()).collect()
        }
    }

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn caller(role: PrincipalRole) -> Caller {
        let principal = Principal::Named { id: "user:ada".parse().unwrap(), role };
        let labels = BTreeMap::from([("team".to_owned(), "blue\" op=\"none".to_owned())]);
        let session = Some("ds_1".into());
        Caller::new(
            principal,
            Standing {
                permits: Permits::of(role, &[]),
                known_by: KnownBy::Session,
                session,
                labels: Arc::new(labels),
                until: None,
            },
        )
    }

    #[test]
    fn a_line_says_who_by_which_session_did_what_and_how_it_came_out() {
        let lines = Lines::default();
        let guard = lines.capture();
        let trace = TraceContext { trace_id: 7, span_id: 1, sampled: true };
        method(&caller(PrincipalRole::User), "SendMessage", Some("reader/0198"), "MESSAGE_REUSED", &trace);
        drop(guard);
        let expected = json!({
            "labels": r#"{"team":"blue\" op=\"none"}"#,
            "object": "reader/0198",
            "op": "message.send",
            "outcome": "MESSAGE_REUSED",
            "principal": r#""user:ada""#,
            "session": "ds_1",
            "trace_id": trace.trace_id_hex(),
        });
        assert_eq!(lines.read(), [expected]);
    }

    #[tokio::test]
    async fn what_may_change_something_has_one_line_also_if_it_is_refused_and_nothing_else_has_one() {
        let route = any(async || (StatusCode::CONFLICT, "the answer"));
        let app: Router = Router::new()
            .route("/api/v1/cluster/nodes/{node}/drain", route.clone())
            .route_layer(middleware::from_fn(authorize));
        let ask = async |verb: &str, role: PrincipalRole| {
            let request = Request::builder().method(verb).uri("/api/v1/cluster/nodes/7/drain").extension(caller(role));
            let request = request.body(Body::from("{\"timeout_ms\": 12345}")).unwrap();
            app.clone().oneshot(request).await.unwrap().status().as_u16()
        };
        let lines = Lines::default();
        let guard = lines.capture();
        assert_eq!(ask("POST", PrincipalRole::User).await, 403);
        assert_eq!(ask("GET", PrincipalRole::Operator).await, 409);
        assert_eq!(ask("POST", PrincipalRole::Operator).await, 409);
        drop(guard);
        let told = lines.read();
        let ops: Vec<(&Value, &Value)> = told.iter().map(|line| (&line["op"], &line["outcome"])).collect();
        assert!(told.iter().all(|line| line["object"] == "7"), "{told:?}");
        let drain = json!("cluster.drain");
        assert_eq!(ops, [(&drain, &json!("403")), (&drain, &json!("409"))]);
        let text = Value::from(told).to_string();
        assert!(!text.contains("12345") && !text.contains("the answer") && !text.contains("nodes/7"), "{text}");
    }
}
