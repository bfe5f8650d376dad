//! `towline mcp login SERVER`: a person lets the node use an MCP server, in a browser of this machine or with a code.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, extract::Query, response::Html, routing::get};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot};
use tokio_util::task::AbortOnDropHandle;
use towline_actors::mcp_connection::{BegunLogin, DeviceLogin};

use super::{client::Client, mcp::path};
use crate::{error::CliError, output::Output};

/// Time for a person to log in: as long as the node remembers that somebody does.
const LOGIN_TIME: Duration = Duration::from_secs(600);

/// More seconds between two questions, each time that the server wants to be asked less often.
const SLOWER_SECS: u64 = 5;

/// Until the browser has the page that says that it is done.
const LAST_ANSWER: Duration = Duration::from_millis(300);

/// Where the browser comes back to.
const CALLBACK: &str = "/callback";

pub(super) async fn login(
    server: &str,
    (device, port): (bool, u16),
    client: &Client,
    output: &mut Output,
) -> Result<(), CliError> {
    let done = async {
        if device { with_code(server, client, output).await } else { in_browser(server, port, client, output).await }
    };
    let late = |_| CliError::Timeout(format!("nobody logged in within {} s", LOGIN_TIME.as_secs()));
    tokio::time::timeout(LOGIN_TIME, done).await.map_err(late)??;
    if output.is_json() {
        return Ok(output.json(&json!({ "loggedIn": server }))?);
    }
    Ok(output.line(format!("{} is logged in at {server}", client.server()))?)
}

async fn in_browser(server: &str, port: u16, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| CliError::Other(format!("listen on {address}: {error}")))?;
    let port = listener.local_addr()?.port();
    let body = json!({ "redirectUri": format!("http://127.0.0.1:{port}{CALLBACK}") });
    let begun = client.post_patiently(&path(server, "/login"), &body).await?;
    let begun: BegunLogin = serde_json::from_value(begun).map_err(CliError::other)?;
    output.note(format!("Open this address in a browser of this machine to log in at {server}:"));
    output.note(&begun.url);
    let (says, said) = oneshot::channel();
    let callback = callback(begun.state.clone(), says);
    let _serving = AbortOnDropHandle::new(tokio::spawn(async move {
        // It ends with this command.
        let _ = axum::serve(listener, callback).await;
    }));
    let back = said.await.map_err(CliError::other)?;
    let code = match (back.code, back.error) {
        (Some(code), None) => code,
        (_, error) => {
            let error = error.unwrap_or_else(|| "there is no code in the answer".to_owned());
            let words = back.error_description.map(|words| format!(": {words}")).unwrap_or_default();
            return Err(CliError::Auth(format!("the login was refused: {error}{words}")));
        }
    };
    let finish = json!({ "code": code, "iss": back.iss, "state": begun.state });
    client.post_patiently(&path(server, "/login/finish"), &finish).await?;
    tokio::time::sleep(LAST_ANSWER).await;
    Ok(())
}

/// What the browser brings back.
#[derive(Debug, Default, Deserialize)]
struct Back {
    #[serde(default)]
    state: String,
    code: Option<String>,
    iss: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

/// Takes the browser that comes back with the right state, once. Any page could send it here with another one.
fn callback(state: String, says: oneshot::Sender<Back>) -> Router {
    let says = Arc::new(Mutex::new(Some(says)));
    let handler = move |Query(back): Query<Back>| async move {
        if back.state != state {
            return (StatusCode::BAD_REQUEST, Html("This is not the login that was begun."));
        }
        let says = says.lock().unwrap_or_else(PoisonError::into_inner).take();
        match says.map(|says| says.send(back)) {
            Some(Ok(())) => (StatusCode::OK, Html("You can close this window, and go on at the command line.")),
            Some(Err(_)) | None => (StatusCode::GONE, Html("This login has ended.")),
        }
    };
    Router::new().route(CALLBACK, get(handler))
}

async fn with_code(server: &str, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let begun = client.post_patiently(&path(server, "/login"), &json!({})).await?;
    let begun: DeviceLogin = serde_json::from_value(begun).map_err(CliError::other)?;
    output.note(format!("Open {} and type in the code {} to log in at {server}", begun.url, begun.code));
    if let Some(url) = &begun.url_with_code {
        output.note(format!("or open {url}"));
    }
    let (mut pause, body) = (begun.interval, json!({ "state": begun.state }));
    loop {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let answer: Value = client.post_patiently(&path(server, "/login/finish"), &body).await?;
        if answer["done"] == true {
            return Ok(());
        }
        if answer["slower"] == true {
            pause += SLOWER_SECS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, http::Request};
    use tower::ServiceExt as _;

    #[tokio::test]
    async fn only_the_login_that_was_begun_comes_back_and_only_once() {
        let (says, said) = oneshot::channel();
        let router = callback("right".to_owned(), says);
        let ask = async |query: &str| {
            let request = Request::get(format!("{CALLBACK}?{query}")).body(Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap().status()
        };
        assert_eq!(ask("state=wrong&code=evil").await, StatusCode::BAD_REQUEST);
        assert_eq!(ask("code=evil").await, StatusCode::BAD_REQUEST);
        assert_eq!(ask("state=right&code=good&iss=https%3A%2F%2Fa").await, StatusCode::OK);
        assert_eq!(ask("state=right&code=again").await, StatusCode::GONE);
        let back = said.await.unwrap();
        assert_eq!((back.code.as_deref(), back.iss.as_deref()), (Some("good"), Some("https://a")));
    }
}
