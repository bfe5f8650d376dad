//! What is asked for that is not there: an answer with a body, as every refusal has, that says so.

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use http::{StatusCode, Uri, header};
use serde_json::json;
use towline_a2a::shortened;

/// The whole router of a door: whatever none of its routes takes is answered.
pub fn answered(router: Router) -> Router {
    router.fallback(no_such_path).layer(middleware::from_fn(with_a_body))
}

async fn no_such_path(uri: Uri) -> Response {
    let message = format!(
        "nothing is at {}: agents speak at / and /agents/NAME, and /.well-known/agent-card.json says what else there is",
        shortened(uri.path())
    );
    answer(StatusCode::NOT_FOUND, "not_found", &message)
}

/// Says which method a path does not take. The router itself answers that, inside of what stands before its routes: a page
/// asks with `OPTIONS` whether it may ask, and is answered there.
async fn with_a_body(request: Request, next: Next) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let mut refused = next.run(request).await;
    let is_bare = !refused.headers().contains_key(header::CONTENT_TYPE);
    if refused.status() != StatusCode::METHOD_NOT_ALLOWED || !is_bare {
        return refused;
    }
    let message = format!("{} is not asked for with {}", shortened(uri.path()), shortened(method.as_str()));
    let mut response = answer(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", &message);
    if let Some(allow) = refused.headers_mut().remove(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}

fn answer(status: StatusCode, code: &str, message: &str) -> Response {
    let body = json!({ "error": { "code": code, "message": message } });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, routing::get};
    use http::Method;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn what_is_not_there_is_answered_in_json_and_a_method_with_those_that_are() {
        let router = answered(Router::new().route("/here", get(|| async { "yes" })));
        for (method, path, status, allow) in
            [("GET", "/nowhere", 404, None), ("POST", "/nowhere", 404, None), ("POST", "/here", 405, Some("GET,HEAD"))]
        {
            let request = Request::builder().method(method).uri(path).body(Body::from("{}")).unwrap();
            let answer = router.clone().oneshot(request).await.unwrap();
            assert_eq!(
                (answer.status().as_u16(), &answer.headers()["content-type"]),
                (status, &"application/json".parse().unwrap())
            );
            assert_eq!(answer.headers().get("allow").map(|allow| allow.to_str().unwrap()), allow, "{path}");
            let body = axum::body::to_bytes(answer.into_body(), 1_000).await.unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert!(body["error"]["message"].as_str().unwrap().contains(path), "{body}");
        }
    }

    #[tokio::test]
    async fn who_asks_whether_it_may_ask_is_answered_by_what_stands_before_the_routes() {
        let gate = middleware::from_fn(async |request: Request, next: Next| match *request.method() {
            Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
            _ => next.run(request).await,
        });
        let router = answered(Router::new().route("/here", get(|| async { "yes" })).layer(gate));
        let asking = Request::builder().method("OPTIONS").uri("/here").body(Body::empty()).unwrap();
        assert_eq!(router.oneshot(asking).await.unwrap().status(), StatusCode::NO_CONTENT);
    }
}
