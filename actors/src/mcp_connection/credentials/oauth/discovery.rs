//! Where tokens for a server are: what it says when it refuses a request, its metadata (RFC 9728), and that of its
//! authorization server (RFC 8414, or OpenID Connect).
//!
//! All of it is said by others. It is fetched from public addresses over https only, from the host of the server itself, and
//! from where the configuration says; and a document counts only if it is about what it was asked about.

use http::{StatusCode, header};
use reqwest::{Response, Url};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::sync::Arc;

use super::{AuthError, failed};
use crate::egress::{Allowed, EgressClient, EgressPolicy};

/// Longest document or answer of an authorization server.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// Longest header of a refusal that is read.
const MAX_CHALLENGE_BYTES: usize = 8 * 1024;

/// Scopes that are taken from one list of somebody else.
pub(super) const MAX_SCOPES: usize = 64;

/// What a server wants that refused a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Challenge {
    /// Whether the token was good and does not suffice.
    pub insufficient_scope: bool,
    pub metadata: Option<String>,
    pub scopes: Vec<String>,
}

impl Challenge {
    /// What a response asks for, if it does.
    pub(in super::super) fn of(response: &Response) -> Option<Self> {
        let said = response.headers().get_all(header::WWW_AUTHENTICATE).iter();
        let said: Vec<&str> = said.filter_map(|value| value.to_str().ok()).collect();
        let read = Self::read(&said.join(", "));
        match response.status() {
            StatusCode::UNAUTHORIZED => Some(Self { insufficient_scope: false, ..read }),
            StatusCode::FORBIDDEN if read.insufficient_scope => Some(read),
            _ => None,
        }
    }

    fn read(text: &str) -> Self {
        let mut challenge = Challenge::default();
        if text.len() > MAX_CHALLENGE_BYTES {
            return challenge;
        }
        for (name, value) in bearer_params(text) {
            match name.as_str() {
                "error" => challenge.insufficient_scope = value == "insufficient_scope",
                "resource_metadata" => challenge.metadata = Some(value),
                "scope" => challenge.scopes = scopes(&value),
                _ => {}
            }
        }
        challenge
    }
}

/// The scopes of a list with spaces between.
pub(super) fn scopes(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().take(MAX_SCOPES).map(str::to_owned).collect()
}

/// The parameters of the challenge that asks for a bearer token, in lower case.
fn bearer_params(text: &str) -> Vec<(String, String)> {
    let mut params = Vec::new();
    let mut is_bearer = false;
    let mut rest = text.trim_start_matches([' ', ',', '\t']);
    while !rest.is_empty() {
        let end = rest.find([' ', ',', '=', '\t']).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        let behind = behind.trim_start();
        if let Some(value) = behind.strip_prefix('=') {
            let (value, behind) = value_of(value.trim_start());
            if is_bearer {
                params.push((word.to_ascii_lowercase(), value));
            }
            rest = behind;
        } else {
            is_bearer = word.eq_ignore_ascii_case("bearer");
            rest = behind;
        }
        // What cannot be read as a word is passed over.
        let rest_of_it = rest.trim_start_matches([' ', ',', '\t']);
        rest = if word.is_empty() && rest_of_it.len() == rest.len() {
            let mut chars = rest_of_it.chars();
            chars.next();
            chars.as_str()
        } else {
            rest_of_it
        };
    }
    params
}

/// A value, quoted or not, and what is behind it.
fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', ',', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, found)) = chars.next() {
        match found {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

/// Metadata of a server that wants tokens.
#[derive(Debug, Deserialize)]
struct Resource {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
}

/// Metadata of an authorization server.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Issuer {
    pub issuer: String,
    pub authorization_endpoint: Option<String>,
    pub token_endpoint: String,
    pub registration_endpoint: Option<String>,
    pub device_authorization_endpoint: Option<String>,
    #[serde(default)]
    pub code_challenge_methods_supported: Vec<String>,
    #[serde(default)]
    pub token_endpoint_auth_methods_supported: Vec<String>,
    #[serde(default)]
    pub scopes_supported: Vec<String>,
    #[serde(default)]
    pub authorization_response_iss_parameter_supported: bool,
}

/// What is known of where tokens are.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// As what the tokens are asked for (RFC 8707).
    pub resource: String,
    /// What the server says that it knows.
    pub scopes: Vec<String>,
    pub issuer: Issuer,
}

/// The way to authorization servers.
#[derive(Debug)]
pub(super) struct Outside {
    client: EgressClient,
    endpoint: Url,
}

impl Outside {
    /// A way that leads where the server is, to public addresses, and to what is allowed.
    pub(super) fn new(endpoint: &str, issuer: Option<&str>, allow: &[Allowed]) -> Result<Self, AuthError> {
        let endpoint = Url::parse(endpoint).map_err(|error| failed(format!("the endpoint is no URL: {error}")))?;
        let named = [Some(endpoint.as_str()), issuer].into_iter().flatten().filter_map(|url| Url::parse(url).ok());
        let hosts = named.filter_map(|url| url.host_str().and_then(|host| host.parse::<Allowed>().ok()));
        let allowed = hosts.chain(allow.iter().cloned()).collect();
        let client = EgressClient::new(Arc::new(EgressPolicy::new(allowed)));
        let client = client.map_err(|error| failed(format!("make the HTTP client: {error}")))?;
        Ok(Self { client, endpoint })
    }

    /// A URL that somebody named, if it may be asked: over https, or on this machine as the server itself.
    pub(super) fn check(&self, text: &str) -> Result<Url, AuthError> {
        let url = Url::parse(text).map_err(|error| failed(format!("{:?} is no URL: {error}", shortened(text))))?;
        if url.scheme() != "https" && !is_loopback(&url) {
            return Err(failed(format!(
                "{} is not https: tokens do not travel in plain text",
                shortened(url.as_str())
            )));
        }
        Ok(url)
    }

    async fn ask(&self, request: reqwest::RequestBuilder, what: &str) -> Result<(StatusCode, Vec<u8>), AuthError> {
        let mut response = request.send().await.map_err(|error| failed(format!("{what}: {}", chain(&error))))?;
        let status = response.status();
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => return Ok((status, body)),
                Err(error) => return Err(failed(format!("{what}: {}", chain(&error)))),
            }
            if body.len() > MAX_ANSWER_BYTES {
                return Err(failed(format!("{what}: the answer has more than {MAX_ANSWER_BYTES} bytes")));
            }
        }
    }

    fn request(&self, method: http::Method, url: &str, what: &str) -> Result<reqwest::RequestBuilder, AuthError> {
        let url = self.check(url)?;
        self.client.request(method, url.as_str()).map_err(|refused| {
            let refused = refused.to_string().replace("push.allow", "oauth.allow");
            failed(format!("{what}: the URL {} {refused}", shortened(url.as_str())))
        })
    }

    /// A document; nothing where there is none.
    async fn document<T: DeserializeOwned>(&self, url: &str) -> Result<Option<T>, AuthError> {
        let what = format!("fetch {}", shortened(url));
        let request = self.request(http::Method::GET, url, &what)?.header(header::ACCEPT, "application/json");
        let (status, body) = self.ask(request, &what).await?;
        if !status.is_success() {
            return Ok(None);
        }
        // A server that answers every path with a page has no such document.
        Ok(serde_json::from_slice(&body).ok())
    }

    /// Posts a form or a document, and reads the JSON of the answer.
    pub(super) async fn post(
        &self,
        url: &str,
        what: &str,
        fill: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
    ) -> Result<(StatusCode, Value), AuthError> {
        let request = fill(self.request(http::Method::POST, url, what)?);
        let (status, body) = self.ask(request.header(header::ACCEPT, "application/json"), what).await?;
        let value = serde_json::from_slice(&body);
        match value {
            Ok(value @ Value::Object(_)) => Ok((status, value)),
            Ok(_) | Err(_) => Err(failed(format!("{what}: HTTP {status} without a JSON object"))),
        }
    }

    /// Finds where tokens for the server are.
    pub(super) async fn discover(&self, metadata: Option<&str>, issuer: Option<&str>) -> Result<Found, AuthError> {
        let resource = self.resource(metadata).await?;
        let (name, scopes, named) = match resource {
            Some(found) => (found.resource, found.scopes_supported, found.authorization_servers),
            None => (self.endpoint.to_string(), Vec::new(), Vec::new()),
        };
        let issuer = match (issuer, named.first()) {
            (Some(issuer), Some(_)) if !named.iter().any(|named| same_issuer(named, issuer)) => {
                return Err(failed(format!("the server does not name {issuer}, which is configured as its issuer")));
            }
            (Some(issuer), _) => issuer.to_owned(),
            (None, Some(named)) => named.clone(),
            // Before there was metadata of servers, they were their own authorization servers.
            (None, None) => self.endpoint.origin().ascii_serialization(),
        };
        let scopes = scopes.into_iter().take(MAX_SCOPES).collect();
        Ok(Found { resource: name, scopes, issuer: self.issuer(&issuer).await? })
    }

    async fn resource(&self, metadata: Option<&str>) -> Result<Option<Resource>, AuthError> {
        let known = ["oauth-protected-resource"];
        let candidates = match metadata {
            Some(url) => vec![url.to_owned()],
            None => {
                well_known(&self.endpoint, &known).into_iter().chain(well_known_of_origin(&self.endpoint)).collect()
            }
        };
        for url in candidates {
            let Some(found) = self.document::<Resource>(&url).await? else { continue };
            if !covers(&found.resource, &self.endpoint) {
                let other = shortened(&found.resource);
                return Err(failed(format!("the metadata at {} is about {other}, another server", shortened(&url))));
            }
            return Ok(Some(found));
        }
        match metadata {
            Some(url) => Err(failed(format!("there is no metadata at {}, which the server named", shortened(url)))),
            None => Ok(None),
        }
    }

    async fn issuer(&self, name: &str) -> Result<Issuer, AuthError> {
        let url = self.check(name)?;
        let mut candidates = well_known(&url, &["oauth-authorization-server", "openid-configuration"]);
        candidates.push(format!("{}/.well-known/openid-configuration", name.trim_end_matches('/')));
        for candidate in candidates {
            let Some(found) = self.document::<Issuer>(&candidate).await? else { continue };
            if !same_issuer(&found.issuer, name) {
                let other = shortened(&found.issuer);
                return Err(failed(format!("the metadata of issuer {} is of {other}", shortened(name))));
            }
            return Ok(found);
        }
        Err(failed(format!("issuer {} has no metadata", shortened(name))))
    }
}

/// A request with a form in its body.
pub(super) fn form(request: reqwest::RequestBuilder, fields: &[(&str, &str)]) -> reqwest::RequestBuilder {
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)
}

/// The same, but for the slash at the end of a bare origin.
fn same_issuer(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

/// Whether a resource is the endpoint, or what it is below.
fn covers(resource: &str, endpoint: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    let above = resource.path().trim_end_matches('/');
    let below = endpoint.path().strip_prefix(above);
    resource.origin() == endpoint.origin() && below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

fn well_known(url: &Url, names: &[&str]) -> Vec<String> {
    let (origin, path) = (url.origin().ascii_serialization(), url.path().trim_end_matches('/'));
    names.iter().map(|name| format!("{origin}/.well-known/{name}{path}")).collect()
}

fn well_known_of_origin(url: &Url) -> Option<String> {
    let origin = url.origin().ascii_serialization();
    (!url.path().trim_end_matches('/').is_empty()).then(|| format!("{origin}/.well-known/oauth-protected-resource"))
}

pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Text of others in a message.
pub(super) fn shortened(text: &str) -> String {
    super::super::super::text::plain_line(text, 200)
}

fn chain(error: &dyn std::error::Error) -> String {
    let text = std::iter::successors(error.source(), |error| error.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
    text.replace("push.allow", "oauth.allow")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_however_it_is_written() {
        let read = Challenge::read(
            r#"Basic realm="a, Bearer b", bearer realm="x", error="insufficient_scope" , scope="a  b", resource_metadata="https://h/\"q""#,
        );
        assert!(read.insufficient_scope);
        assert_eq!(read.scopes, ["a", "b"]);
        assert_eq!(read.metadata.as_deref(), Some("https://h/\"q"));
        for odd in ["", "Bearer", "Bearer scope", "=", "==\"", "Bearer =x, \"", "Basic scope=\"a\"", "Bearer scope=\""]
        {
            assert_eq!(Challenge::read(odd), Challenge::default(), "{odd}");
        }
    }

    #[test]
    fn metadata_counts_for_the_server_that_it_is_about() {
        let endpoint: Url = "https://a.example/v1/mcp".parse().unwrap();
        for about in ["https://a.example", "https://a.example/", "https://a.example/v1", "https://a.example/v1/mcp"] {
            assert!(covers(about, &endpoint), "{about}");
        }
        for about in
            ["https://b.example/v1/mcp", "http://a.example", "https://a.example/v", "https://a.example/v1/mcp/x", "a"]
        {
            assert!(!covers(about, &endpoint), "{about}");
        }
        assert_eq!(
            well_known(&endpoint, &["oauth-protected-resource"]),
            ["https://a.example/.well-known/oauth-protected-resource/v1/mcp"]
        );
    }

    #[test]
    fn nothing_is_asked_in_plain_text_beyond_this_machine() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let outside = Outside::new("https://mcp.example/mcp", None, &[]).unwrap();
        assert!(outside.check("http://mcp.example/token").unwrap_err().to_string().contains("plain text"));
        let inside = outside.request(http::Method::GET, "https://10.0.0.1/", "fetch it").unwrap_err().to_string();
        assert!(inside.contains("oauth.allow"), "{inside}");
        assert!(outside.request(http::Method::GET, "http://127.0.0.1:1/", "fetch it").is_err());
        let local = Outside::new("http://127.0.0.1:1/mcp", None, &[]).unwrap();
        assert!(local.request(http::Method::GET, "http://127.0.0.1:2/", "fetch it").is_ok());
        let named = Outside::new("https://mcp.example/mcp", Some("https://10.0.0.1"), &[]).unwrap();
        assert!(named.request(http::Method::GET, "https://10.0.0.1/", "fetch it").is_ok());
    }
}
