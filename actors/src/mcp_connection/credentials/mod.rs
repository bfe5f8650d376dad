//! How requests to one server go out: over which certificates, with which credentials, and what happens when the server wants
//! other ones.

mod oauth;
mod settings;
mod sigv4;
mod tls;

use reqwest::{Request, RequestBuilder, Response};
use rmcp::transport::streamable_http_client::StreamableHttpError;
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::socket::{self, Dial};
use crate::config::McpServerConfig;
use oauth::Challenge;
pub use oauth::{AuthError, Authorizer, BegunLogin, DeviceLogin};
pub use settings::{McpAuth, McpSecurity, McpTls, OAuthGrant, OAuthSettings, SigV4Settings};
pub(super) use tls::apply as apply_tls;

/// How often certificate files are looked at: a new certificate comes long before the end of the old one.
const LOOK_AT_FILES: Duration = Duration::from_secs(1);

/// What a node says in its requests.
#[derive(Clone)]
pub(super) enum Credentials {
    None,
    OAuth(Authorizer),
    SigV4(Arc<SigV4Settings>),
}

impl Credentials {
    /// Of a server.
    pub(super) fn of(config: &McpServerConfig) -> Self {
        match (&config.security.auth, config.transport.endpoint()) {
            (McpAuth::OAuth(settings), Some(endpoint)) => {
                let folder = config.security.folder.as_deref();
                Credentials::OAuth(Authorizer::new(&config.name, endpoint, settings.clone(), folder))
            }
            (McpAuth::SigV4(settings), Some(_)) => Credentials::SigV4(Arc::new(settings.clone())),
            (McpAuth::Headers, _) | (McpAuth::OAuth(_) | McpAuth::SigV4(_), None) => Credentials::None,
        }
    }

    /// Who asks for tokens, where tokens are asked for.
    pub(super) fn authorizer(&self) -> Option<&Authorizer> {
        match self {
            Credentials::OAuth(authorizer) => Some(authorizer),
            Credentials::None | Credentials::SigV4(_) => None,
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotSent {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error("sign the request: {0}")]
    NotSigned(String),
}

/// How the error of a request begins that the server did not carry out, since it does not take who asks.
pub(super) const UNAUTHORIZED: &str = "not authorized: ";

impl From<NotSent> for StreamableHttpError<reqwest::Error> {
    fn from(error: NotSent) -> Self {
        match error {
            NotSent::Http(error) => StreamableHttpError::Client(error),
            NotSent::Auth(_) | NotSent::NotSigned(_) => {
                StreamableHttpError::UnexpectedServerResponse(Cow::Owned(format!("{UNAUTHORIZED}{error}")))
            }
        }
    }
}

/// Sends the requests to one server; cheap to clone.
#[derive(Clone)]
pub(super) struct Sender(Arc<Inner>);

struct Inner {
    socket: Option<PathBuf>,
    tls: Option<McpTls>,
    only_http1: bool,
    credentials: Credentials,
    client: Mutex<Current>,
}

/// The client, and the certificate files that it was made with.
struct Current {
    client: reqwest::Client,
    files: tls::Seen,
    looked: Instant,
}

impl Sender {
    /// A sender over what is dialled.
    ///
    /// # Errors
    /// When no client can be made of what is configured.
    pub(super) fn new(dial: &Dial<'_>, credentials: Credentials) -> Result<Self, String> {
        let files = dial.tls.map(tls::look).unwrap_or_default();
        let client = socket::client(dial)?;
        let client = Mutex::new(Current { client, files, looked: Instant::now() });
        Ok(Self(Arc::new(Inner {
            socket: dial.socket.map(Path::to_owned),
            tls: dial.tls.cloned(),
            only_http1: dial.only_http1,
            credentials,
            client,
        })))
    }

    /// The client to make a request with: another one as soon as certificates are.
    pub(super) fn http(&self) -> reqwest::Client {
        let mut current = self.0.client.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tls) = &self.0.tls else { return current.client.clone() };
        if current.looked.elapsed() >= LOOK_AT_FILES {
            current.looked = Instant::now();
            let files = tls::look(tls);
            if files != current.files {
                // Certificates are of the operator's own servers, and those may be anywhere.
                let (socket, only_http1) = (self.0.socket.as_deref(), self.0.only_http1);
                match socket::client(&Dial { socket, guard: None, tls: Some(tls), only_http1 }) {
                    Ok(client) => {
                        tracing::info!("certificates of an MCP server were replaced");
                        (current.client, current.files) = (client, files);
                    }
                    // Half of the files may be new: the next look sees the other half.
                    Err(error) => tracing::warn!(error, "new certificates of an MCP server are not used"),
                }
            }
        }
        current.client.clone()
    }

    /// Sends a request with the credentials. Where the server wants other ones and they can be had, it is sent once more.
    ///
    /// # Errors
    /// When it cannot be sent, or there are no credentials that the server takes.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, NotSent> {
        let (client, request) = request.build_split();
        let mut request = request?;
        match &self.0.credentials {
            Credentials::None => Ok(client.execute(request).await?),
            Credentials::SigV4(settings) => {
                sigv4::sign(&mut request, settings, &sigv4::now()).map_err(NotSent::NotSigned)?;
                Ok(client.execute(request).await?)
            }
            Credentials::OAuth(authorizer) => authorized(authorizer, &client, request).await,
        }
    }
}

async fn authorized(authorizer: &Authorizer, client: &reqwest::Client, request: Request) -> Result<Response, NotSent> {
    let again = request.try_clone();
    let token = authorizer.token().await?;
    let response = client.execute(with_token(request, token.as_deref())).await?;
    let (Some(challenge), Some(again)) = (Challenge::of(&response), again) else { return Ok(response) };
    authorizer.challenged(token.as_deref(), challenge).await?;
    let token = authorizer.token().await?;
    Ok(client.execute(with_token(again, token.as_deref())).await?)
}

fn with_token(mut request: Request, token: Option<&str>) -> Request {
    let value = token.and_then(|token| http::HeaderValue::from_str(&format!("Bearer {token}")).ok());
    if let Some(mut value) = value {
        value.set_sensitive(true);
        request.headers_mut().insert(http::header::AUTHORIZATION, value);
    }
    request
}
