//! A client of running nodes: A2A, and the operator API under `/api/v1`.

use std::time::Duration;

use reqwest::Url;
use serde_json::Value;
use towline_a2a::{A2aClient, ClientError};

use crate::{cli::Global, error::CliError};

/// How long the operator API may take: a linearizable read waits for an election at most.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// What to do about an unreachable node.
const IS_IT_RUNNING: &str = "is a node running there? start one with `towline dev` or `towline node -c FILE`, or name \
    another with --server URL or TOWLINE_SERVER";

/// Talks to the nodes that `--server` names: to the first that is reached.
pub(crate) struct Client {
    http: reqwest::Client,
    servers: Vec<String>,
}

impl Client {
    pub(crate) fn new(global: &Global) -> Result<Self, CliError> {
        let servers: Result<Vec<String>, CliError> = global.server.iter().map(|server| server_url(server)).collect();
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .no_proxy()
            .build()
            .map_err(CliError::other)?;
        Ok(Self { http, servers: servers? })
    }

    /// The node that is asked first.
    pub(crate) fn server(&self) -> &str {
        &self.servers[0]
    }

    /// A2A at the mesh's own endpoint on the first node.
    pub(crate) fn mesh(&self) -> A2aClient {
        A2aClient::new(self.http.clone(), format!("{}/", self.server()))
    }

    /// A2A at the endpoint of an agent, on each of the nodes; one endpoint if `agent` is a URL.
    pub(crate) fn agent(&self, agent: &str) -> Vec<A2aClient> {
        if agent.starts_with("http://") || agent.starts_with("https://") {
            return vec![A2aClient::new(self.http.clone(), agent)];
        }
        self.at_each(|server| format!("{server}/agents/{agent}"))
    }

    /// A2A at the mesh's own endpoint on each of the nodes: for tasks of any agent.
    pub(crate) fn meshes(&self) -> Vec<A2aClient> {
        self.at_each(|server| format!("{server}/"))
    }

    fn at_each(&self, endpoint: impl Fn(&str) -> String) -> Vec<A2aClient> {
        self.servers.iter().map(|server| A2aClient::new(self.http.clone(), endpoint(server))).collect()
    }

    /// Reads from the operator API.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.ask(|server| self.http.get(format!("{server}{path}"))).await
    }

    /// Reads what may be large from the operator API. The answer may take as long as it goes on.
    pub(crate) async fn download(&self, path: &str) -> Result<reqwest::Response, CliError> {
        let sent = self.reach(|server| self.http.get(format!("{server}{path}")));
        let timeout = || CliError::Timeout(no_answer(self.server()));
        let (server, answer) = tokio::time::timeout(CALL_TIMEOUT, sent).await.map_err(|_| timeout())??;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| transport(server, &error))?;
        Err(refused(server, status, serde_json::from_slice(&body).ok().as_ref()))
    }

    /// Uploads a file; the URL under which a message may name it. It may take as long as it goes on.
    pub(crate) async fn upload(&self, file: tokio::fs::File) -> Result<String, CliError> {
        let server = self.server();
        let sent = self.http.post(format!("{server}/blobs")).body(file).send().await;
        let answer = sent.map_err(|error| transport(server, &error))?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| transport(server, &error))?;
        let told: Option<Value> = serde_json::from_slice(&body).ok();
        let url = told.as_ref().and_then(|told| told["url"].as_str()).filter(|_| status == 201);
        url.map(str::to_owned).ok_or_else(|| refused(server, status, told.as_ref()))
    }

    /// Asks the operator API for a change.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.ask(|server| self.http.post(format!("{server}{path}")).json(body)).await
    }

    /// Asks the operator API to take something away.
    pub(crate) async fn delete(&self, path: &str) -> Result<Value, CliError> {
        self.ask(|server| self.http.delete(format!("{server}{path}"))).await
    }

    /// The answer of the first node that is reached, and which that is.
    async fn reach(
        &self,
        request: impl Fn(&str) -> reqwest::RequestBuilder,
    ) -> Result<(&str, reqwest::Response), CliError> {
        let mut not_reached = Vec::new();
        for server in &self.servers {
            match request(server).send().await {
                Err(error) if error.is_connect() => not_reached.push(server.as_str()),
                Err(error) => return Err(transport(server, &error)),
                Ok(answer) => return Ok((server, answer)),
            }
        }
        Err(CliError::Unreachable(format!("connect to {}: {IS_IT_RUNNING}", not_reached.join(", "))))
    }

    async fn ask(&self, request: impl Fn(&str) -> reqwest::RequestBuilder) -> Result<Value, CliError> {
        let (server, answer) = self.reach(|server| request(server).timeout(CALL_TIMEOUT)).await?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| transport(server, &error))?;
        let value: Option<Value> = serde_json::from_slice(&body).ok();
        if (200..300).contains(&status) {
            return value.ok_or_else(|| CliError::Other(format!("{server} does not answer with JSON")));
        }
        Err(refused(server, status, value.as_ref()))
    }
}

/// Asks one endpoint after the other until one is reached.
pub(crate) async fn first_reached<T>(
    endpoints: &[A2aClient],
    ask: impl AsyncFn(&A2aClient) -> Result<T, ClientError>,
) -> Result<T, CliError> {
    let mut endpoints = endpoints.iter().peekable();
    while let Some(endpoint) = endpoints.next() {
        match ask(endpoint).await {
            Err(ClientError::Unreachable { .. }) if endpoints.peek().is_some() => {}
            answer => return answer.map_err(|error| call_failed(&error)),
        }
    }
    Err(CliError::Usage("name a node with --server URL".to_owned()))
}

fn refused(server: &str, status: u16, answer: Option<&Value>) -> CliError {
    let said = answer.and_then(|value| value.pointer("/error/message")).and_then(Value::as_str);
    let text = said.map_or_else(|| format!("{server} answers HTTP {status}"), str::to_owned);
    match status {
        401 | 403 => CliError::Auth(text),
        503 => CliError::Unavailable(text),
        _ => CliError::Other(text),
    }
}

fn no_answer(server: &str) -> String {
    format!("no answer from {server} within {} s", CALL_TIMEOUT.as_secs())
}

fn transport(server: &str, error: &reqwest::Error) -> CliError {
    if error.is_timeout() && !error.is_connect() {
        return CliError::Timeout(no_answer(server));
    }
    CliError::Unreachable(format!("connect to {server}: {IS_IT_RUNNING}"))
}

fn server_url(text: &str) -> Result<String, CliError> {
    let error = || CliError::Usage(format!("--server {text:?} is no URL: write http://HOST:PORT"));
    let url = Url::parse(text).map_err(|_| error())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(error());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// What a failed A2A call means for the exit code.
pub(crate) fn call_failed(error: &ClientError) -> CliError {
    let text = crate::error::chain(error);
    match error {
        ClientError::Unreachable { endpoint, .. } => {
            CliError::Unreachable(format!("connect to {endpoint}: {IS_IT_RUNNING}"))
        }
        ClientError::Broken { .. } => CliError::Unreachable(text),
        ClientError::Timeout { .. } => CliError::Timeout(text),
        ClientError::Auth { .. } => CliError::Auth(text),
        ClientError::Protocol { .. } if error.is_unavailable() => CliError::Unavailable(text),
        ClientError::Protocol { .. } | ClientError::Http { .. } | ClientError::Malformed { .. } => {
            CliError::Other(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(reason: Option<&str>) -> ClientError {
        ClientError::Protocol {
            code: -32603,
            message: "no".into(),
            reason: reason.map(str::to_owned),
            retry_after: Some(Duration::from_secs(1)),
        }
    }

    #[test]
    fn a_failed_call_has_the_exit_code_of_its_cause() {
        let timeout = ClientError::Timeout { endpoint: "http://x".into(), after: Duration::from_secs(1) };
        let auth = ClientError::Auth { endpoint: "http://x".into(), status: 401 };
        let malformed = ClientError::Malformed { endpoint: "http://x".into(), detail: "?".into() };
        for (error, code) in [
            (timeout, 5),
            (auth, 4),
            (malformed, 1),
            (protocol(None), 1),
            (protocol(Some(towline_a2a::errors::reason::UNAVAILABLE)), 10),
        ] {
            assert_eq!(call_failed(&error).code(), code, "{error}");
        }
    }

    #[test]
    fn a_server_that_is_no_url_is_a_usage_error() {
        for text in ["127.0.0.1:7420", "ftp://x", "http://"] {
            assert_eq!(server_url(text).unwrap_err().code(), 2, "{text}");
        }
        assert_eq!(server_url("http://127.0.0.1:7420/").unwrap(), "http://127.0.0.1:7420");
    }
}
