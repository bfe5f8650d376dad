//! The browser gate: a page that the operator did not list gets nothing, before anything of its request is read.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use reqwest::Url;

/// How long a browser may remember what a page may send, in seconds: the list changes with a restart only.
const MAX_AGE: &str = "600";
const METHODS: &str = "GET, HEAD, POST, PUT, DELETE, OPTIONS";
/// What a page may send beside the simple headers.
const REQUEST_HEADERS: &str = "authorization, content-type, a2a-version, a2a-extensions, last-event-id, traceparent, tracestate, range, if-none-match, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name";
/// What a page may read beside the simple headers.
const RESPONSE_HEADERS: &str = "www-authenticate, retry-after, etag, location, content-range, accept-ranges, a2a-extensions, traceparent, mcp-session-id";

/// Where a page comes from: scheme, host and port, as a browser compares them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    /// Reads `https://console.example`, with a port or without.
    ///
    /// # Errors
    /// What is wrong with it, and how it is written.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let error = || {
            format!("{text:?} is no origin: write SCHEME://HOST or SCHEME://HOST:PORT, as in https://console.example")
        };
        if text.contains('*') {
            return Err(format!(
                "{text:?}: any page could act for whoever looks at it; list the origins of your own pages"
            ));
        }
        let url = Url::parse(text).map_err(|_| error())?;
        let is_bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
        let is_anonymous = url.username().is_empty() && url.password().is_none();
        if !matches!(url.scheme(), "http" | "https") || !is_bare || !is_anonymous {
            return Err(error());
        }
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return Err(error()) };
        Ok(Self { scheme: url.scheme().to_owned(), host: host.to_owned(), port })
    }
}

/// What the gate says to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gate {
    /// No page asks.
    NoPage,
    /// A page of a listed origin asks: the header to echo.
    Listed(HeaderValue),
    /// Another page: `null`, what cannot be read, and two origins at once are never listed.
    Refused,
}

/// Where a browser says that a request comes from, also one that has no `Origin`: the picture or the link of a page.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Whether a browser says that a page of another site makes a request. What a person has typed is `none`.
pub(crate) fn is_of_another_site(headers: &HeaderMap) -> bool {
    headers.get_all(SEC_FETCH_SITE).iter().any(|site| !matches!(site.as_bytes(), b"none" | b"same-origin"))
}

/// Looks at the `Origin` of a request, and where it has none at what the browser says of its page.
pub(crate) fn gate(listed: &[Origin], headers: &HeaderMap) -> Gate {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else {
        return if is_of_another_site(headers) { Gate::Refused } else { Gate::NoPage };
    };
    if origins.next().is_some() {
        return Gate::Refused;
    }
    let parsed = origin.to_str().ok().and_then(|text| Origin::parse(text).ok());
    match parsed.filter(|parsed| listed.contains(parsed)) {
        Some(_) => Gate::Listed(origin.clone()),
        None => Gate::Refused,
    }
}

/// Whether a browser only asks whether a page may.
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to that.
pub(crate) fn preflight(origin: HeaderValue) -> Response {
    let allowed: [(HeaderName, HeaderValue); 4] = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS)),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(REQUEST_HEADERS)),
        (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE)),
        (header::VARY, HeaderValue::from_static("origin")),
    ];
    shown_to(origin, (StatusCode::NO_CONTENT, allowed).into_response())
}

/// A response that a page of this origin may read.
pub(crate) fn shown_to(origin: HeaderValue, mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(RESPONSE_HEADERS));
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(origins: &[&str]) -> HeaderMap {
        origins.iter().map(|origin| (header::ORIGIN, origin.parse().unwrap())).collect()
    }

    #[test]
    fn a_page_of_a_listed_origin_comes_through_and_no_other() {
        let listed =
            [Origin::parse("https://Console.example").unwrap(), Origin::parse("http://localhost:3000").unwrap()];
        assert_eq!(gate(&listed, &headers(&[])), Gate::NoPage);
        for origin in ["https://console.example", "https://console.example:443", "http://localhost:3000"] {
            assert_eq!(gate(&listed, &headers(&[origin])), Gate::Listed(origin.parse().unwrap()), "{origin}");
        }
        for origin in [
            "null",
            "",
            "*",
            "http://console.example",
            "https://console.example:8443",
            "https://console.example.evil.example",
            "https://evil.example",
            "http://localhost",
            "https://console.example/path",
        ] {
            assert_eq!(gate(&listed, &headers(&[origin])), Gate::Refused, "{origin}");
        }
        let twice = headers(&["https://console.example", "https://console.example"]);
        assert_eq!(gate(&listed, &twice), Gate::Refused);
        assert_eq!(gate(&[], &headers(&["http://127.0.0.1:7420"])), Gate::Refused);
    }

    #[test]
    fn a_page_of_another_site_that_gives_no_origin_is_refused_and_what_a_person_typed_is_not() {
        let of = |sites: &[&str]| -> HeaderMap {
            sites.iter().map(|site| (HeaderName::from_static(SEC_FETCH_SITE), site.parse().unwrap())).collect()
        };
        for typed in [&["none"][..], &["same-origin"], &[]] {
            assert_eq!(gate(&[], &of(typed)), Gate::NoPage, "{typed:?}");
        }
        for page in [&["cross-site"][..], &["same-site"], &["odd"], &["none", "cross-site"]] {
            assert_eq!(gate(&[], &of(page)), Gate::Refused, "{page:?}");
        }
        let mut listed = of(&["cross-site"]);
        listed.insert(header::ORIGIN, "https://console.example".parse().unwrap());
        assert!(matches!(gate(&[Origin::parse("https://console.example").unwrap()], &listed), Gate::Listed(_)));
    }

    #[test]
    fn an_origin_is_a_scheme_a_host_and_a_port() {
        for wrong in
            ["*", "https://*.example", "console.example", "file:///x", "https://a.example/x", "https://u@a.example"]
        {
            assert!(Origin::parse(wrong).is_err(), "{wrong}");
        }
    }
}
