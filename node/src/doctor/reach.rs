//! Whether somebody answers at a URL, or at a socket.

use std::{path::Path, time::Instant};

use reqwest::{Response, Url};
use tokio::net::{TcpStream, UnixStream};

use crate::error::chain;

/// What is reached, and what that took.
pub(super) struct Reached {
    /// In words.
    pub detail: String,
    pub answer: Response,
}

/// Whatever the answer is: who answers is there.
pub(super) async fn http(client: &reqwest::Client, url: &str) -> Result<Reached, String> {
    let start = Instant::now();
    let answer = client.get(url).send().await.map_err(|error| chain(&error.without_url()))?;
    let detail = format!("{} answers in {:.0?}", host(url), start.elapsed());
    Ok(Reached { detail, answer })
}

/// A connection is enough: gRPC is no HTTP that could be asked for a page.
pub(super) async fn tcp(url: &str) -> Result<String, String> {
    let parsed = Url::parse(url).map_err(|error| error.to_string())?;
    let host = parsed.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = parsed.port_or_known_default().ok_or("has no port")?;
    let start = Instant::now();
    TcpStream::connect((host.as_str(), port)).await.map_err(|error| error.to_string())?;
    Ok(format!("{host}:{port} takes connections, in {:.0?}", start.elapsed()))
}

/// A socket of this machine.
pub(super) async fn socket(path: &Path) -> Result<String, String> {
    UnixStream::connect(path).await.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(format!("{} takes connections", path.display()))
}

/// A URL without what may be a secret in it.
pub(super) fn host(url: &str) -> String {
    let host = |url: Url| {
        let name = url.host_str()?.to_owned();
        Some(url.port().map_or_else(|| name.clone(), |port| format!("{name}:{port}")))
    };
    Url::parse(url).ok().and_then(host).unwrap_or_else(|| "?".to_owned())
}
