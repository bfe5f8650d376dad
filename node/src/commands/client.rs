//! A client of running nodes: A2A, and the operator API under `/api/v1`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use reqwest::Url;
use serde_json::Value;
use tokio::time::Instant;
use towline_a2a::{A2aClient, ClientError, SocketUrl};

use super::contexts::Contexts;
use crate::{cli::Global, error::CliError};

/// How long the operator API may take: a linearizable read waits for an election at most.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the node may wait for somebody else, a tool that works: the `timeout` of its server ends that before.
const PATIENT_TIMEOUT: Duration = Duration::from_secs(3_600);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Holds a token for the node.
const TOKEN: &str = "TOWLINE_ACCESS_TOKEN";
/// What to do about an unreachable node.
const IS_IT_RUNNING: &str = "is a node running there? start one with `towline dev` or `towline node -c FILE`, or name \
    another with --server URL or TOWLINE_SERVER";

/// What to do where a node wants to know who asks.
const SHOW_A_TOKEN: &str =
    "sign in with `towline auth login`, or show a token with --token-file FILE or TOWLINE_ACCESS_TOKEN";
/// How a node says that, to clients of any kind.
const SIGN_IN_AGAIN: &str = "; sign in again";
/// How TLS says that it does not take the certificate of the other side.
const NOT_TRUSTED: &str = "invalid peer certificate";
/// How TLS says that the certificate is for others, and for whom.
const OTHER_NAME: &str = "not valid for name";
const NAMES_ARE: &str = "is only valid for ";
/// How TLS says that a certificate is an authority's, and that it is over.
const OF_AUTHORITY: &str = "CaUsedAsEndEntity";
const ENDED: &str = "certificate expired";
/// How it is said that a name has no address.
const NO_SUCH_HOST: [&str; 2] = ["dns error", "failed to lookup address"];
/// How TLS says that the other side speaks something else.
const NO_TLS: [&str; 2] = ["received corrupt message", "InvalidContentType"];
/// How HTTP says that.
const NO_HTTP: [&str; 1] = ["invalid HTTP"];
/// How long one of several nodes may take to say that it lives; one that takes longer is asked behind the others.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How much longer than the first that answers others may take: nodes that are well are about as far away.
const A_MOMENT: Duration = Duration::from_millis(250);
/// What answers at once on a node that runs.
const PROBE: &str = "/livez";

/// The node that is talked to where nobody says another one.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7420";

/// Talks to the nodes that `--server` names, or else the context in use: to the first that is reached.
pub(crate) struct Client {
    /// At least one.
    servers: Vec<Server>,
    contexts: Contexts,
    /// For agents that are named by a URL.
    elsewhere: reqwest::Client,
    ca_file: Option<PathBuf>,
}

/// One node, and how it is reached.
struct Server {
    /// As it is written.
    name: String,
    /// Base of the URLs of requests, without a slash at the end.
    base: String,
    http: reqwest::Client,
    /// The token of this user's session there.
    token: Option<String>,
}

impl Server {
    /// `ca_file` has the authority of its certificate, if this machine does not know it.
    fn new(name: &str, token: Option<String>, ca_file: Option<&Path>) -> Result<Self, CliError> {
        let name = server_url(name)?;
        if token.is_some() && is_plain_remote(&name) {
            let text = format!("a token would be readable on its way to {name}: use https, or ssh -L");
            return Err(CliError::Usage(text));
        }
        let builder = builder(ca_file)?;
        let (base, http) = match name.strip_prefix(UNIX) {
            Some(path) => ("http://localhost".to_owned(), builder.unix_socket(path)),
            None => (name.clone(), builder),
        };
        Ok(Self { base, http: http.build().map_err(CliError::other)?, token, name })
    }

    fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn probed(&self) -> Probed {
        match self.http.get(format!("{}{PROBE}", self.base)).timeout(PROBE_TIMEOUT).send().await {
            Ok(_) => Probed::Lives,
            Err(error) if error.is_timeout() => Probed::Silent,
            Err(_) => Probed::Fails,
        }
    }

    fn a2a(&self, path: &str) -> A2aClient {
        signed_in(A2aClient::new(self.http.clone(), format!("{}{path}", self.base)), self.token.as_deref())
    }
}

/// What came of asking a node whether it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probed {
    Lives,
    /// At once: it costs no time to ask it again.
    Fails,
    Silent,
}

/// Which of some nodes have said nothing by the time that the first of them lives, and a moment more.
async fn silent(asked: impl Iterator<Item = impl Future<Output = Probed>>) -> Vec<bool> {
    let mut asked: FuturesUnordered<_> =
        asked.enumerate().map(|(place, probed)| async move { (place, probed.await) }).collect();
    let mut silent = vec![true; asked.len()];
    let mut until = None;
    loop {
        let next = asked.next();
        let answered = match until {
            Some(until) => tokio::time::timeout_at(until, next).await.ok().flatten(),
            None => next.await,
        };
        let Some((place, probed)) = answered else { return silent };
        silent[place] = probed == Probed::Silent;
        if probed == Probed::Lives && until.is_none() {
            until = Some(Instant::now() + A_MOMENT);
        }
    }
}

/// A client that shows a token, if there is one.
fn signed_in(client: A2aClient, token: Option<&str>) -> A2aClient {
    let Some(token) = token else { return client };
    // The token was checked when it was read; one that no header can carry opens nothing anywhere.
    client.clone().with_header("authorization", &format!("Bearer {token}")).unwrap_or(client)
}

fn builder(ca_file: Option<&Path>) -> Result<reqwest::ClientBuilder, CliError> {
    let builder = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).no_proxy();
    Ok(match ca_file {
        Some(path) => builder.tls_certs_merge(authorities(path)?),
        None => builder,
    })
}

impl Client {
    pub(crate) fn new(global: &Global) -> Result<Self, CliError> {
        let contexts = Contexts::load()?;
        let names = match (&global.server[..], contexts.current()) {
            ([], Some(context)) if !context.servers.is_empty() => context.servers.clone(),
            ([], _) => vec![DEFAULT_SERVER.to_owned()],
            (named, _) => named.to_vec(),
        };
        // What is shown by name is shown to the nodes that are named; a session, to those of its cluster.
        let shown = token(global)?;
        let token_for =
            |name: &str| shown.clone().or_else(|| contexts.token_for(name.trim_end_matches('/')).map(str::to_owned));
        let ca_file = global.ca_file.as_deref();
        let ca_for = |name: &str| ca_file.or_else(|| contexts.of_url(name.trim_end_matches('/'))?.ca_file.as_deref());
        let servers: Result<Vec<Server>, CliError> =
            names.iter().map(|name| Server::new(name, token_for(name), ca_for(name))).collect();
        let elsewhere = builder(ca_file)?.build().map_err(CliError::other)?;
        let ca_file = ca_file.map(std::path::absolute).transpose().map_err(CliError::other)?;
        Ok(Self { servers: servers?, contexts, elsewhere, ca_file })
    }

    /// Has the nodes that hang or are gone without a word asked behind those that live. The first one to answer settles it: those
    /// that are named before it have a moment more. One that is named alone is asked in any case.
    pub(crate) async fn passing_over_who_hangs(mut self) -> Self {
        if self.servers.len() > 1 {
            let silent = silent(self.servers.iter().map(Server::probed)).await;
            let mut places = silent.into_iter();
            let (late, living): (Vec<_>, Vec<_>) =
                self.servers.drain(..).partition(|_| places.next().unwrap_or_default());
            self.servers = living.into_iter().chain(late).collect();
        }
        self
    }

    /// The file with the authority that `--ca-file` names, wherever the next command is given.
    pub(crate) fn ca_file(&self) -> Option<&Path> {
        self.ca_file.as_deref()
    }

    fn first(&self) -> &Server {
        &self.servers[0]
    }

    /// The node that is asked first, as it is written.
    pub(crate) fn server(&self) -> &str {
        &self.first().name
    }

    /// All nodes, as they are written.
    pub(crate) fn servers(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.name.clone()).collect()
    }

    /// A2A at the endpoint of an agent, on each of the nodes; one endpoint if `agent` is a URL. Somebody else's agent is not
    /// shown what is for the mesh.
    ///
    /// # Errors
    /// When `agent` begins like the URL of a socket and is none.
    pub(crate) fn agent(&self, agent: &str) -> Result<Vec<A2aClient>, CliError> {
        if let Some(socket) = SocketUrl::parse(agent) {
            let socket = socket.map_err(CliError::Usage)?.socket();
            let http = builder(None)?.unix_socket(socket).build().map_err(CliError::other)?;
            return Ok(vec![A2aClient::new(http, agent)]);
        }
        if agent.starts_with("http://") || agent.starts_with("https://") {
            let is_below = |server: &&Server| agent == server.name || agent.starts_with(&format!("{}/", server.name));
            let own = self.servers.iter().find(is_below);
            let token = own.and_then(|server| server.token.as_deref());
            let token = token.or_else(|| self.contexts.token_for(agent)).filter(|_| !is_plain_remote(agent));
            let http = own.map_or(&self.elsewhere, |server| &server.http);
            return Ok(vec![signed_in(A2aClient::new(http.clone(), agent), token)]);
        }
        Ok(self.at_each(&format!("/agents/{agent}")))
    }

    /// A2A at the mesh's own endpoint on each of the nodes: for tasks of any agent.
    pub(crate) fn meshes(&self) -> Vec<A2aClient> {
        self.at_each("/")
    }

    fn at_each(&self, path: &str) -> Vec<A2aClient> {
        self.servers.iter().map(|server| server.a2a(path)).collect()
    }

    /// Posts a form of OAuth, without a session, to the first node that is reached: status and answer, whatever they are.
    pub(crate) async fn form(&self, path: &str, fields: &[(&str, &str)]) -> Result<(u16, Value), CliError> {
        let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = |server: &Server| {
            let request = server.http.post(format!("{}{path}", server.base)).timeout(CALL_TIMEOUT);
            request.header("content-type", "application/x-www-form-urlencoded").body(form.clone())
        };
        let (server, answer) = self.reach(request).await?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| transport(server, &error))?;
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }

    /// Reads from the operator API.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.ask(|server| server.request(reqwest::Method::GET, path)).await
    }

    /// Reads what may be large from the operator API. The answer may take as long as it goes on.
    pub(crate) async fn download(&self, path: &str) -> Result<reqwest::Response, CliError> {
        let sent = self.reach(|server| server.request(reqwest::Method::GET, path));
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
        let sent = self.first().request(reqwest::Method::POST, "/blobs").body(file).send().await;
        let answer = sent.map_err(|error| transport(server, &error))?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| transport(server, &error))?;
        let told: Option<Value> = serde_json::from_slice(&body).ok();
        let url = told.as_ref().and_then(|told| told["url"].as_str()).filter(|_| status == 201);
        url.map(str::to_owned).ok_or_else(|| refused(server, status, told.as_ref()))
    }

    /// Asks the operator API for a change.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.ask(|server| server.request(reqwest::Method::POST, path).json(body)).await
    }

    /// The same where the node waits for somebody else, for as long as its configuration says.
    pub(crate) async fn post_patiently(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.ask_within(PATIENT_TIMEOUT, |server| server.request(reqwest::Method::POST, path).json(body)).await
    }

    /// Asks the operator API to take something away.
    pub(crate) async fn delete(&self, path: &str) -> Result<Value, CliError> {
        self.ask(|server| server.request(reqwest::Method::DELETE, path)).await
    }

    /// Sends a message of MCP to the first node that is reached, with these headers. The answer may take as long as it goes on.
    pub(crate) async fn mcp(
        &self,
        method: reqwest::Method,
        headers: &[(&'static str, String)],
        body: Option<&str>,
    ) -> Result<reqwest::Response, CliError> {
        self.door(method, crate::mcp_server::PATH, headers, body).await
    }

    /// A request of a protocol that has a path of its own, as it is; the body is JSON.
    pub(crate) async fn door(
        &self,
        method: reqwest::Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Option<&str>,
    ) -> Result<reqwest::Response, CliError> {
        let request = |server: &Server| {
            let mut request = server.request(method.clone(), path);
            for (name, value) in headers {
                request = request.header(*name, value);
            }
            match body {
                Some(body) => request.header("content-type", "application/json").body(body.to_owned()),
                None => request,
            }
        };
        self.reach(request).await.map(|(_, answer)| answer)
    }

    /// The answer of the first node that is reached, and which that is.
    async fn reach(
        &self,
        request: impl Fn(&Server) -> reqwest::RequestBuilder,
    ) -> Result<(&str, reqwest::Response), CliError> {
        let (mut not_reached, mut known) = (Vec::new(), None);
        for server in &self.servers {
            match request(server).send().await {
                Err(error) if error.is_connect() => {
                    known = known.or_else(|| diagnosed(&server.name, &error));
                    not_reached.push(server.name.as_str());
                }
                Err(error) => return Err(transport(&server.name, &error)),
                Ok(answer) => return Ok((&server.name, answer)),
            }
        }
        let silent = || CliError::Unreachable(format!("connect to {}: {IS_IT_RUNNING}", not_reached.join(", ")));
        Err(known.unwrap_or_else(silent))
    }

    async fn ask(&self, request: impl Fn(&Server) -> reqwest::RequestBuilder) -> Result<Value, CliError> {
        self.ask_within(CALL_TIMEOUT, request).await
    }

    async fn ask_within(
        &self,
        limit: Duration,
        request: impl Fn(&Server) -> reqwest::RequestBuilder,
    ) -> Result<Value, CliError> {
        let (server, answer) = self.reach(|server| request(server).timeout(limit)).await?;
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
        400 => CliError::Usage(text),
        401 => CliError::Auth(with_the_way_in(&text)),
        403 => CliError::Auth(text),
        503 => CliError::Unavailable(text),
        _ => CliError::Other(text),
    }
}

/// A refusal of somebody who is not known here, and once what to do about it: the node may have said so already.
fn with_the_way_in(text: &str) -> String {
    if text.contains("`towline auth login`") {
        return text.to_owned();
    }
    let problem = text.split_once(SIGN_IN_AGAIN).map_or(text, |(problem, _)| problem);
    format!("{problem}; {SHOW_A_TOKEN}")
}

/// What is wrong with a connection, where more can be said than that nobody answers.
fn diagnosed(server: &str, error: &dyn std::error::Error) -> Option<CliError> {
    let chain = crate::error::chain(error);
    let says = |words: &[&str]| words.iter().any(|word| chain.contains(word));
    let what = if let Some((_, problem)) = chain.rsplit_once(NOT_TRUSTED) {
        let problem = problem.trim_start_matches([':', ' ']);
        if let Some(names) = names_of_certificate(problem) {
            format!(
                "its certificate is good, and made for {names}: write --server with a name of these, or have the certificate made \
                 for this one as well (node.tls.certificate)"
            )
        } else if problem.contains(OF_AUTHORITY) {
            "its certificate is that of an authority itself: give the node one that this has signed (node.tls.certificate)"
                .to_owned()
        } else if problem.contains(ENDED) {
            format!("its certificate has ended ({problem}): give the node a new one (node.tls.certificate)")
        } else {
            format!(
                "its certificate is not trusted ({problem}): name the PEM file of the authority that has signed it with \
                 --ca-file FILE, if that is one that this machine does not know"
            )
        }
    } else if let Some(path) = server.strip_prefix(UNIX) {
        let cause = chain.rsplit(": ").next().unwrap_or_default();
        format!(
            "no node answers at the socket {path} ({cause}): the node has to run, as the user of this command, with this path as \
             node.listen.unix"
        )
    } else if says(&NO_SUCH_HOST) {
        "its host has no address: is the name written right, and known to this machine?".to_owned()
    } else if server.starts_with("https://") && says(&NO_TLS) {
        format!("it answers without TLS: write http{}", server.trim_start_matches("https"))
    } else if server.starts_with("http://") && says(&NO_HTTP) {
        format!("it answers, and not in HTTP: where it speaks TLS, write https{}", server.trim_start_matches("http"))
    } else {
        return None;
    };
    Some(CliError::Unreachable(format!("connect to {server}: {what}")))
}

/// The names of a certificate that is trusted and has not the name that was dialled.
fn names_of_certificate(problem: &str) -> Option<String> {
    if !problem.contains(OTHER_NAME) {
        return None;
    }
    let listed = problem.split_once(NAMES_ARE).map_or("", |(_, names)| names);
    // As in: DnsName("a.example"), IpAddress(127.0.0.1) or DnsName("b.example")
    let bare = |name: &str| name.split_once('(').map_or(name, |(_, name)| name).trim_matches(['"', ')']).to_owned();
    let names: Vec<String> = listed.split([',', ' ']).filter(|word| !matches!(*word, "" | "or")).map(bare).collect();
    Some(if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") })
}

fn no_answer(server: &str) -> String {
    format!("no answer from {server} in time; what was asked for may have happened")
}

fn transport(server: &str, error: &reqwest::Error) -> CliError {
    if error.is_timeout() && !error.is_connect() {
        return CliError::Timeout(no_answer(server));
    }
    let silent = || CliError::Unreachable(format!("connect to {server}: {IS_IT_RUNNING}"));
    diagnosed(server, error).unwrap_or_else(silent)
}

/// What is shown to the node: the content of `--token-file`, or TOWLINE_ACCESS_TOKEN.
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

fn authorities(path: &Path) -> Result<Vec<reqwest::Certificate>, CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::Usage(format!("read {}: {error}", path.display()));
    let pem = std::fs::read(path).map_err(|error| failed(&error))?;
    reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| failed(&error))
}

fn is_plain_remote(server: &str) -> bool {
    crate::config::http_url(server).is_ok_and(|url| crate::config::is_plain_remote(&url))
}

/// What a node is written as that is reached by a socket of this machine.
const UNIX: &str = "unix://";

/// A node as everything else compares it: without a slash at the end.
pub(super) fn server_url(text: &str) -> Result<String, CliError> {
    let error = || CliError::Usage(format!("--server {text:?} is no URL: write http://HOST:PORT or unix:///PATH"));
    if let Some(path) = text.strip_prefix(UNIX) {
        return if path.len() > 1 && path.starts_with('/') { Ok(text.to_owned()) } else { Err(error()) };
    }
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
        ClientError::Unreachable { endpoint, source } => {
            let silent = || CliError::Unreachable(format!("connect to {endpoint}: {IS_IT_RUNNING}"));
            diagnosed(endpoint, &**source).unwrap_or_else(silent)
        }
        ClientError::Broken { endpoint, .. } => diagnosed(endpoint, error).unwrap_or(CliError::Unreachable(text)),
        ClientError::Timeout { .. } => CliError::Timeout(text),
        ClientError::Auth { status: 401, .. } => CliError::Auth(format!("{text}: {SHOW_A_TOKEN}")),
        ClientError::Auth { .. } => CliError::Auth(text),
        ClientError::Protocol { .. } if error.is_unavailable() => CliError::Unavailable(text),
        ClientError::Protocol { .. } if error.is_invalid_request() => CliError::Usage(text),
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
            (ClientError::Auth { endpoint: "http://x".into(), status: 403 }, 4),
            (malformed, 1),
            (protocol(None), 1),
            (protocol(Some(towline_a2a::errors::reason::UNAVAILABLE)), 10),
        ] {
            assert_eq!(call_failed(&error).code(), code, "{error}");
        }
    }

    #[test]
    fn what_is_to_be_done_is_said_with_what_is_wrong() {
        let auth = call_failed(&ClientError::Auth { endpoint: "http://x".into(), status: 401 }).to_string();
        assert!(auth.contains("towline auth login") && auth.contains("--token-file"), "{auth}");
        assert!(refused("http://x", 401, None).to_string().contains("towline auth login"));
        assert_eq!(refused("http://x", 400, None).code(), 2);
        let source = std::io::Error::other("invalid peer certificate: UnknownIssuer");
        let unknown = ClientError::Unreachable { endpoint: "https://x".into(), source: Box::new(source) };
        let (said, code) = (call_failed(&unknown).to_string(), call_failed(&unknown).code());
        assert!(said.contains("not trusted (UnknownIssuer)") && said.contains("--ca-file") && code == 3, "{said}");
        let source = std::io::Error::other("connection refused");
        let silent = call_failed(&ClientError::Unreachable { endpoint: "https://x".into(), source: Box::new(source) });
        assert!(silent.to_string().contains("is a node running there?"), "{silent}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_hangs_is_not_waited_for_once_another_has_answered() {
        use Probed::{Fails, Lives, Silent};
        let node = |after: u64, probed: Probed| async move {
            tokio::time::sleep(Duration::from_millis(after)).await;
            probed
        };
        let begun = Instant::now();
        let nodes = [node(1, Fails), node(2_000, Silent), node(600, Lives), node(700, Lives), node(900, Lives)];
        assert_eq!(silent(nodes.into_iter()).await, [false, true, false, false, true]);
        assert_eq!(begun.elapsed(), Duration::from_millis(600) + A_MOMENT);
        assert_eq!(silent([node(2_000, Silent), node(1, Fails)].into_iter()).await, [true, false]);
    }

    #[test]
    fn a_connection_that_cannot_be_is_said_to_be_why() {
        let said = |server: &str, cause: &'static str| {
            diagnosed(server, &std::io::Error::other(cause)).map(|error| (error.code(), error.to_string()))
        };
        for (server, cause, says) in [
            (
                "unix:///run/t.sock",
                "client error: No such file or directory (os error 2)",
                "socket /run/t.sock (No such file",
            ),
            ("http://nowhere.example", "dns error: failed to lookup address information", "has no address"),
            ("https://a:7420", "received corrupt message of type InvalidContentType", "write http://a:7420"),
            ("http://a:7420", "invalid HTTP version parsed", "write https://a:7420"),
        ] {
            let (code, text) = said(server, cause).unwrap();
            assert!(code == 3 && text.contains(says) && text.contains(server), "{text}");
        }
        assert_eq!(said("http://a:7420", "connection refused"), None);
    }

    #[test]
    fn a_certificate_for_other_names_is_said_with_its_names() {
        let problem = |rest: &str| {
            let text =
                format!("invalid peer certificate: certificate not valid for name \"a.example\"; certificate {rest}");
            diagnosed("https://a.example:7420", &std::io::Error::other(text)).unwrap().to_string()
        };
        let said = problem("is only valid for DnsName(\"b.example\"), DnsName(\"c.example\") or IpAddress(127.0.0.1)");
        assert!(said.contains("made for b.example, c.example, 127.0.0.1: write --server"), "{said}");
        assert!(!said.contains("--ca-file"), "its authority is known: {said}");
        let said = problem("is not valid for any names (according to its subjectAltName extension)");
        assert!(said.contains("made for no name at all"), "{said}");
        for (problem, says) in [
            ("Other(OtherError(CaUsedAsEndEntity))", "an authority itself: give the node one"),
            ("certificate expired: verification time 2 (UNIX)", "has ended (certificate expired"),
        ] {
            let text = std::io::Error::other(format!("invalid peer certificate: {problem}"));
            let said = diagnosed("https://a.example", &text).unwrap().to_string();
            assert!(said.contains(says) && !said.contains("--ca-file"), "{said}");
        }
    }

    #[test]
    fn who_is_not_known_is_told_once_how_to_sign_in() {
        let said = |text: &str| {
            refused("http://x", 401, Some(&serde_json::json!({ "error": { "message": text } }))).to_string()
        };
        let revoked = said("this session is over or was revoked: sign in again with `towline auth login`");
        let unknown = said("the bearer is not good here: it is unknown; sign in again, or ask the operator for one");
        for text in [&revoked, &unknown] {
            assert_eq!(text.matches("sign in").count(), 1, "{text}");
            assert!(text.contains("`towline auth login`"), "{text}");
        }
        assert!(
            unknown.starts_with("the bearer is not good here: it is unknown; ") && unknown.contains("--token-file")
        );
    }

    #[test]
    fn a_server_that_is_no_url_is_a_usage_error() {
        for text in ["127.0.0.1:7420", "ftp://x", "http://", "unix://", "unix:///", "unix://run/x"] {
            assert_eq!(server_url(text).unwrap_err().code(), 2, "{text}");
        }
        assert_eq!(server_url("http://127.0.0.1:7420/").unwrap(), "http://127.0.0.1:7420");
        assert_eq!(server_url("unix:///run/towline.sock").unwrap(), "unix:///run/towline.sock");
    }
}
