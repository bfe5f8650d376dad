//! URLs of agents behind a unix socket of this machine: `unix:///run/agent.sock`, and `unix:///run/agent.sock:/agents/reader`
//! for one that has a path there. What goes over the socket is HTTP as everywhere else.

use std::{borrow::Cow, path::Path};

/// What such a URL begins with.
const SCHEME: &str = "unix://";

/// What stands for a host in a request, where there is none.
const NOWHERE: &str = "http://localhost";

/// What parts the socket from the path of an agent behind it.
const PATH_BEGINS: &str = ":/";

/// How bindings are named that carry JSON-RPC over a socket: no standard names one, so that each product has its own URI.
const BINDING_ENDS_WITH: &str = "/binding/jsonrpc-unix";

/// Longest path of a socket that a kernel takes, in bytes.
const MAX_SOCKET_BYTES: usize = 107;

/// Where an agent behind a socket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketUrl<'a> {
    socket: &'a str,
    path: &'a str,
}

impl<'a> SocketUrl<'a> {
    /// Reads a URL; none if it is of another kind.
    ///
    /// # Errors
    /// What is wrong with it, if it begins like one.
    pub fn parse(url: &'a str) -> Option<Result<Self, String>> {
        let place = url.strip_prefix(SCHEME)?;
        let (socket, path) = match place.find(PATH_BEGINS) {
            Some(at) => (&place[..at], &place[at + 1..]),
            None => (place, "/"),
        };
        let is_file = socket.starts_with('/') && !socket.ends_with('/');
        let plain = |c: char| c.is_ascii_graphic() && !"?#%\"<>\\^`{|}".contains(c);
        if !is_file || !socket.chars().all(plain) || !path.chars().all(plain) {
            return Some(Err(format!(
                "{url:?} is no URL of a socket: write unix:///run/agent.sock, or unix:///run/agent.sock:/agents/NAME"
            )));
        }
        if socket.len() > MAX_SOCKET_BYTES {
            return Some(Err(format!("the path of a socket has at most {MAX_SOCKET_BYTES} bytes; {socket} has more")));
        }
        Some(Ok(Self { socket, path }))
    }

    /// Reads a URL that is known to be good; none if it is of another kind.
    pub(super) fn of(url: &'a str) -> Option<Self> {
        Self::parse(url)?.ok()
    }

    /// The file.
    pub fn socket(&self) -> &'a Path {
        Path::new(self.socket)
    }

    /// What a request asks for, below the path of the agent.
    pub(super) fn over_http(&self, below: &str) -> String {
        format!("{NOWHERE}{}{below}", if below.is_empty() { self.path } else { self.path.trim_end_matches('/') })
    }

    /// Whether both lead to the same file.
    pub(super) fn is_beside(&self, other: &SocketUrl<'_>) -> bool {
        self.socket == other.socket
    }
}

/// The URL that a request to `endpoint` names.
pub(super) fn requested(endpoint: &str) -> Cow<'_, str> {
    match SocketUrl::of(endpoint) {
        Some(url) => Cow::Owned(url.over_http("")),
        None => Cow::Borrowed(endpoint),
    }
}

/// Whether a binding of a card is JSON-RPC over a socket.
pub(super) fn is_socket_binding(name: &str) -> bool {
    name.ends_with(BINDING_ENDS_WITH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_file_and_a_path_behind_it() {
        let parse = |url| SocketUrl::parse(url).unwrap().unwrap();
        let front = parse("unix:///run/agent.sock");
        assert_eq!(
            (front.socket(), front.over_http("")),
            (Path::new("/run/agent.sock"), "http://localhost/".to_owned())
        );
        assert_eq!(front.over_http("/card"), "http://localhost/card");
        let reader = parse("unix:///run/agent.sock:/agents/reader");
        assert_eq!(reader.over_http(""), "http://localhost/agents/reader");
        assert_eq!(reader.over_http("/card"), "http://localhost/agents/reader/card");
        assert!(front.is_beside(&reader) && !front.is_beside(&parse("unix:///run/other.sock")));
        assert_eq!(requested("https://x.example/a"), "https://x.example/a");
        assert_eq!(SocketUrl::parse("https://x.example"), None);
    }

    #[test]
    fn what_names_no_file_is_refused() {
        let long = format!("unix:///{}", "x".repeat(MAX_SOCKET_BYTES));
        for url in ["unix://", "unix:///", "unix://run/x", "unix:///run/", "unix:///run/a b", "unix:///x?y", &long] {
            assert!(SocketUrl::parse(url).unwrap().is_err(), "{url}");
        }
    }
}
