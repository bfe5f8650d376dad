//! Values with a form of their own: durations, addresses, URLs, globs, names, files.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::Url;
use towline_a2a::SocketUrl;

use super::section::Field;

/// Longest instruction or rules file. A prompt of that size is a mistake.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
const FILE_PREFIX: &str = "file://";

/// `500ms`, `30s`, `5m`, `1h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let error = || format!("{text:?} is no duration: write a number and a unit, as in 500ms, 30s, 5m, 1h");
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
    let number: u64 = text[..split].parse().map_err(|_| error())?;
    let unit_ms = match text[split..].trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(error()),
    };
    let length = number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(error)?;
    if length.is_zero() {
        return Err(format!("{text:?} is no time at all: write at least 1ms"));
    }
    Ok(length)
}

/// `127.0.0.1:7420`, `[::1]:7420`, `localhost:7420`.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        None => text.to_owned(),
    };
    numeric.parse().map_err(|_| format!("{text:?} is no address to listen on: write IP:PORT, as in 127.0.0.1:7420"))
}

/// `host:port`, as others reach this node.
pub(crate) fn host_port(text: &str) -> Result<String, String> {
    let error = || format!("{text:?} is no address: write HOST:PORT, as in 10.0.0.1:7421");
    let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
    let is_host = !host.is_empty() && !host.contains(['/', ' ', '@']);
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    if is_host && is_port { Ok(text.to_owned()) } else { Err(error()) }
}

/// An absolute `http` or `https` URL, without a trailing slash.
pub(crate) fn http_url(text: &str) -> Result<Url, String> {
    let error = || format!("{text:?} is no URL: write http://HOST or https://HOST");
    let url = Url::parse(text).map_err(|_| error())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(error());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("has a user name or password in the URL: use a header with a secret".to_owned());
    }
    Ok(url)
}

/// Where an agent of others is: as [`http_url`], or a socket of this machine.
pub(crate) fn peer_url(text: &str) -> Result<Url, String> {
    match SocketUrl::parse(text) {
        None => http_url(text).map_err(|why| why.replace("https://HOST", "https://HOST, or unix:///run/agent.sock")),
        Some(socket) => {
            socket?;
            let url = Url::parse(text).map_err(|error| format!("{text:?} is no URL: {error}"))?;
            if url.as_str() == text { Ok(url) } else { Err(format!("{text:?}: write the path without . and ..")) }
        }
    }
}

/// The text of a URL that [`http_url`] accepted, without a trailing slash.
pub(crate) fn url_text(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}

/// Whether the URL is of this machine.
pub(crate) fn is_local(url: &Url) -> bool {
    url.scheme() == "unix"
        || url.host_str().is_some_and(|host| {
            let host = host.trim_matches(['[', ']']);
            host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
        })
}

/// Whether what is sent to the URL can be read on the way.
pub(crate) fn is_plain_remote(url: &Url) -> bool {
    url.scheme() == "http" && !is_local(url)
}

/// A glob that can match something.
pub(crate) fn glob(text: &str) -> Result<String, String> {
    let balanced = |open: char, close: char| text.matches(open).count() == text.matches(close).count();
    if text.contains(char::is_whitespace) {
        return Err(format!("glob {text:?} has a blank, and no tool name has one"));
    }
    if !balanced('[', ']') || !balanced('{', '}') {
        return Err(format!("glob {text:?} has a bracket that is not closed"));
    }
    Ok(text.to_owned())
}

/// A name that may qualify others: letters, digits, `-` and `_`.
pub(crate) fn plain_name(text: &str) -> Result<String, String> {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if is_plain && text.len() <= 64 {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} may have letters, digits, '-' and '_' only, and at most 64 of them"))
}

/// `path` as seen from the folder of the file.
pub(crate) fn resolve(base: &Path, path: &str) -> PathBuf {
    let joined = base.join(path);
    std::path::absolute(&joined).unwrap_or(joined)
}

impl Field<'_> {
    /// Text as it stands, or that of the file it names with `file://PATH`.
    pub(crate) fn text_or_file(&self) -> Option<String> {
        let text = self.text()?;
        let Some(path) = text.strip_prefix(FILE_PREFIX) else { return Some(text.to_owned()) };
        match read_file(&resolve(&self.context.base, path)) {
            Ok(text) => Some(text),
            Err(error) => {
                self.mistake(error);
                None
            }
        }
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("file {}: {error}", path.display());
    let size = fs::metadata(path).map_err(failed)?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!("file {} has {size} bytes; the limit is {MAX_FILE_BYTES}", path.display()));
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    if text.trim().is_empty() {
        return Err(format!("file {} is empty", path.display()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "30", "s", "1d", "-1s", "0s", "99999999999999999999h", "1.5s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_url_to_another_host_without_tls_is_plain() {
        for (url, plain) in [
            ("http://127.0.0.1:1", false),
            ("http://localhost", false),
            ("http://[::1]:1", false),
            ("https://a.example", false),
            ("http://a.example", true),
        ] {
            assert_eq!(is_plain_remote(&http_url(url).unwrap()), plain, "{url}");
        }
    }

    #[test]
    fn a_peer_is_behind_a_url_or_a_socket_of_this_machine() {
        let socket = peer_url("unix:///run/agent.sock:/agents/reader").unwrap();
        assert!(is_local(&socket) && !is_plain_remote(&socket));
        assert_eq!(url_text(&socket), "unix:///run/agent.sock:/agents/reader");
        assert_eq!(peer_url("https://legal.example").unwrap().host_str(), Some("legal.example"));
        for (wrong, says) in [("unix://x", "URL of a socket"), ("unix:///a/../b", "without ."), ("ftp://x", "unix:///")]
        {
            assert!(peer_url(wrong).unwrap_err().contains(says), "{wrong}");
        }
    }
}
