//! What is asked for that is not there: an answer with a body, as every refusal has, that says so.

use axum::{
    Router,
    response::{IntoResponse, Response},
};
use http::{Method, StatusCode, Uri, header};
use serde_json::json;
use towline_a2a::shortened;

/// The whole router of a door: whatever none of its routes takes is answered.
pub fn answered(router: Router) -> Router {
    router.fallback(no_such_path).method_not_allowed_fallback(no_such_method)
}

async fn no_such_path(uri: Uri) -> Response {
    let message = format!(
        "nothing is at {}: agents speak at / and /agents/NAME, and /.well-known/agent-card.json says what else there is",
        shortened(uri.path())
    );
    answer(StatusCode::NOT_FOUND, "not_found", &message)
}

async fn no_such_method(method: Method, uri: Uri) -> Response {
    let message = format!("{} is not asked for with {}", shortened(uri.path()), shortened(method.as_str()));
    answer(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", &message)
}

fn answer(status: StatusCode, code: &str, message: &str) -> Response {
    let body = json!({ "error": { "code": code, "message": message } });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, routing::get};
    use http::Request;
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
}
