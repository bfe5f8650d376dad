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
/// Holds a token for the node.
const TOKEN: &str = "TOWLINE_TOKEN";
/// What to do about an unreachable node.
const IS_IT_RUNNING: &str = "is a node running there? start one with `towline dev` or `towline node -c FILE`, or name \
    another with --server URL or TOWLINE_SERVER";

/// Talks to the nodes that `--server` names.
pub(crate) struct Client {
    http: reqwest::Client,
    servers: Vec<String>,
    /// What is shown to these servers, and to nobody else.
    token: Option<String>,
}

impl Client {
    pub(crate) fn new(global: &Global) -> Result<Self, CliError> {
        let servers: Result<Vec<String>, CliError> = global.server.iter().map(|server| server_url(server)).collect();
        let (servers, token) = (servers?, token(global)?);
        if token.is_some()
            && let Some(server) = servers.iter().find(|server| is_plain_remote(server))
        {
            let text = format!("a token would be readable on its way to {server}: use https, or ssh -L");
            return Err(CliError::Usage(text));
        }
        let mut http = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).no_proxy();
        if let Some(path) = &global.ca_file {
            http = http.tls_certs_merge(authorities(path)?);
        }
        Ok(Self { http: http.build().map_err(CliError::other)?, servers, token })
    }

    /// The same request with the token.
    fn shown(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// A client of one of the servers.
    fn a2a(&self, endpoint: String) -> A2aClient {
        let client = A2aClient::new(self.http.clone(), endpoint);
        match &self.token {
            // The token was checked when it was read.
            Some(token) => client.clone().with_header("authorization", &format!("Bearer {token}")).unwrap_or(client),
            None => client,
        }
    }

    /// The node that is asked first.
    pub(crate) fn server(&self) -> &str {
        &self.servers[0]
    }

    /// A2A at the mesh's own endpoint: for tasks of any agent.
    pub(crate) fn mesh(&self) -> A2aClient {
        self.a2a(format!("{}/", self.server()))
    }

    /// A2A at the endpoint of an agent, on each of the nodes; one endpoint if `agent` is a URL.
    pub(crate) fn agent(&self, agent: &str) -> Vec<A2aClient> {
        if agent.starts_with("http://") || agent.starts_with("https://") {
            // Somebody else's agent is not shown what is for the mesh.
            let is_ours = self.servers.iter().any(|server| agent == server || agent.starts_with(&format!("{server}/")));
            let http = self.http.clone();
            return vec![if is_ours { self.a2a(agent.to_owned()) } else { A2aClient::new(http, agent) }];
        }
        self.at_each(|server| format!("{server}/agents/{agent}"))
    }

    /// A2A at the mesh's own endpoint on each of the nodes.
    pub(crate) fn meshes(&self) -> Vec<A2aClient> {
        self.at_each(|server| format!("{server}/"))
    }

    fn at_each(&self, endpoint: impl Fn(&str) -> String) -> Vec<A2aClient> {
        self.servers.iter().map(|server| self.a2a(endpoint(server))).collect()
    }

    /// Reads from the operator API.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.ask(self.http.get(format!("{}{path}", self.server()))).await
    }

    /// Reads what may be large from the operator API. The answer may take as long as it goes on.
    pub(crate) async fn download(&self, path: &str) -> Result<reqwest::Response, CliError> {
        let sent = self.shown(self.http.get(format!("{}{path}", self.server()))).send();
        let timeout = || CliError::Timeout(self.no_answer());
        let answer = tokio::time::timeout(CALL_TIMEOUT, sent).await.map_err(|_| timeout())?;
        let answer = answer.map_err(|error| self.transport(&error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| self.transport(&error))?;
        Err(self.refused(status, serde_json::from_slice(&body).ok().as_ref()))
    }

    /// Uploads a file; the URL under which a message may name it. It may take as long as it goes on.
    pub(crate) async fn upload(&self, file: tokio::fs::File) -> Result<String, CliError> {
        let sent = self.shown(self.http.post(format!("{}/blobs", self.server()))).body(file).send().await;
        let answer = sent.map_err(|error| self.transport(&error))?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| self.transport(&error))?;
        let told: Option<Value> = serde_json::from_slice(&body).ok();
        let url = told.as_ref().and_then(|told| told["url"].as_str()).filter(|_| status == 201);
        url.map(str::to_owned).ok_or_else(|| self.refused(status, told.as_ref()))
    }

    /// Asks the operator API for a change.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.ask(self.http.post(format!("{}{path}", self.server())).json(body)).await
    }

    /// Asks the operator API to take something away.
    pub(crate) async fn delete(&self, path: &str) -> Result<Value, CliError> {
        self.ask(self.http.delete(format!("{}{path}", self.server()))).await
    }

    async fn ask(&self, request: reqwest::RequestBuilder) -> Result<Value, CliError> {
        let answer = self.shown(request).timeout(CALL_TIMEOUT).send().await.map_err(|error| self.transport(&error))?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| self.transport(&error))?;
        let value: Option<Value> = serde_json::from_slice(&body).ok();
        if (200..300).contains(&status) {
            return value.ok_or_else(|| CliError::Other(format!("{} does not answer with JSON", self.server())));
        }
        Err(self.refused(status, value.as_ref()))
    }

    fn refused(&self, status: u16, answer: Option<&Value>) -> CliError {
        let said = answer.and_then(|value| value.pointer("/error/message")).and_then(Value::as_str);
        let text = said.map_or_else(|| format!("{} answers HTTP {status}", self.server()), str::to_owned);
        match status {
            401 | 403 => CliError::Auth(text),
            503 => CliError::Unavailable(text),
            _ => CliError::Other(text),
        }
    }

    fn no_answer(&self) -> String {
        format!("no answer from {} within {} s", self.server(), CALL_TIMEOUT.as_secs())
    }

    fn transport(&self, error: &reqwest::Error) -> CliError {
        if error.is_timeout() && !error.is_connect() {
            return CliError::Timeout(self.no_answer());
        }
        CliError::Unreachable(format!("connect to {}: {IS_IT_RUNNING}", self.server()))
    }
}

/// What is shown to the node: the content of `--token-file`, or TOWLINE_TOKEN.
fn token(global: &Global) -> Result<Option<String>, CliError> {
    let (text, place) = match &global.token_file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let failed = |error| CliError::Usage(format!("read the token in {}: {error}", path.display()));
            (text.map_err(failed)?, path.display().to_string())
        }
        None => match std::env::var(TOKEN) {
            Ok(text) => (text, TOKEN.to_owned()),
            Err(_) => return Ok(None),
        },
    };
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(CliError::Usage(format!(
            "{place} holds no token: one is a word of ASCII letters, digits and signs"
        )));
    }
    Ok(Some(token.to_owned()))
}

fn authorities(path: &std::path::Path) -> Result<Vec<reqwest::Certificate>, CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::Usage(format!("read {}: {error}", path.display()));
    let pem = std::fs::read(path).map_err(|error| failed(&error))?;
    reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| failed(&error))
}

fn is_plain_remote(server: &str) -> bool {
    crate::config::http_url(server).is_ok_and(|url| crate::config::is_plain_remote(&url))
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
