//! Signatures of AWS, version 4, in the header of a request.

use http::{HeaderName, HeaderValue};
use reqwest::Request;
use ring::{digest, hmac};
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};
use towline_core::Timestamp;

use super::settings::SigV4Settings;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// Headers of ours that are signed where they are there. Others are added on the way, and a proxy may change them.
const SIGNED: [&str; 3] = ["content-type", "x-amz-date", "x-amz-security-token"];

/// The time as it is signed: `20150830T123600Z`.
pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let at = Timestamp(since.as_millis().try_into().unwrap_or(u64::MAX));
    let text = towline_a2a::time_text(at);
    let whole_seconds = text.split('.').next().unwrap_or_default();
    format!("{}Z", whole_seconds.replace(['-', ':'], ""))
}

/// Signs a request as of a time.
///
/// # Errors
/// When something of it cannot be signed.
pub(super) fn sign(request: &mut Request, settings: &SigV4Settings, at: &str) -> Result<(), String> {
    let sensitive = |text: &str| {
        let mut value = HeaderValue::from_str(text).map_err(|_| "a key cannot be sent in a header".to_owned())?;
        value.set_sensitive(true);
        Ok::<_, String>(value)
    };
    request.headers_mut().insert(DATE, sensitive(at)?);
    if let Some(token) = &settings.session_token {
        request.headers_mut().insert(TOKEN, sensitive(token.expose())?);
    }
    let body = match request.body() {
        Some(body) => body.as_bytes().ok_or("its body is a stream")?,
        None => &[],
    };
    let (canonical, signed) = canonical(request, body)?;
    let day = at.get(..8).ok_or("the time is not known")?;
    let scope = format!("{day}/{}/{}/aws4_request", settings.region, settings.service);
    let hashed = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let text = format!("{ALGORITHM}\n{at}\n{scope}\n{hashed}");
    let signature = hex(keyed(&key(settings, day), &text).as_ref());
    let access_key = &settings.access_key;
    let header = format!("{ALGORITHM} Credential={access_key}/{scope}, SignedHeaders={signed}, Signature={signature}");
    request.headers_mut().insert(http::header::AUTHORIZATION, sensitive(&header)?);
    Ok(())
}

/// The request in the one way in which both sides write it, and the names of the headers in it.
fn canonical(request: &Request, body: &[u8]) -> Result<(String, String), String> {
    let url = request.url();
    let host = url.host_str().ok_or("its URL has no host")?;
    let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let mut headers = vec![("host", host)];
    for name in SIGNED {
        if let Some(value) = request.headers().get(name) {
            let text = value.to_str().map_err(|_| format!("header {name} is no text"))?;
            headers.push((name, text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")));
        }
    }
    headers.sort();
    let mut query: Vec<(String, String)> =
        url.query_pairs().map(|(name, value)| (encoded(&name, false), encoded(&value, false))).collect();
    query.sort();
    let query: Vec<String> = query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    let listed: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let signed = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    // The path is encoded as it is sent, and then once more; only Amazon S3 takes it as it is.
    let path = encoded(url.path(), true);
    let hashed = hex(digest::digest(&digest::SHA256, body).as_ref());
    let canonical = format!("{}\n{path}\n{}\n{listed}\n{signed}\n{hashed}", request.method(), query.join("&"));
    Ok((canonical, signed))
}

fn encoded(text: &str, keep_slashes: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let is_kept = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keep_slashes && byte == b'/');
        if is_kept {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn key(settings: &SigV4Settings, day: &str) -> Vec<u8> {
    let first = format!("AWS4{}", settings.secret_key.expose()).into_bytes();
    [day, &settings.region, &settings.service, "aws4_request"]
        .into_iter()
        .fold(first, |key, word| keyed(&key, word).as_ref().to_vec())
}

fn keyed(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    const AT: &str = "20150830T123600Z";

    fn settings(service: &str) -> SigV4Settings {
        SigV4Settings {
            region: "us-east-1".into(),
            service: service.into(),
            access_key: "AKIDEXAMPLE".into(),
            secret_key: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
            session_token: None,
        }
    }

    fn signature(method: http::Method, url: &str, content_type: Option<&str>, service: &str) -> String {
        let mut request = Request::new(method, url.parse().unwrap());
        if let Some(content_type) = content_type {
            request.headers_mut().insert("content-type", content_type.parse().unwrap());
        }
        sign(&mut request, &settings(service), AT).unwrap();
        let header = request.headers()[http::header::AUTHORIZATION].to_str().unwrap().to_owned();
        header.rsplit_once("Signature=").unwrap().1.to_owned()
    }

    /// The cases `get-vanilla`, `post-vanilla` and `get-vanilla-query-order-key-case` of the published suite, and the example of
    /// the reference.
    #[test]
    fn signatures_are_those_of_the_published_cases() {
        let (get, post) = (http::Method::GET, http::Method::POST);
        for (method, url, content_type, service, expected) in [
            (
                get.clone(),
                "https://example.amazonaws.com/",
                None,
                "service",
                "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
            ),
            (
                post,
                "https://example.amazonaws.com/",
                None,
                "service",
                "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
            ),
            (
                get.clone(),
                "https://example.amazonaws.com/?Param2=value2&Param1=value1",
                None,
                "service",
                "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
            ),
            (
                get,
                "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08",
                Some("application/x-www-form-urlencoded; charset=utf-8"),
                "iam",
                "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
            ),
        ] {
            assert_eq!(signature(method, url, content_type, service), expected, "{url}");
        }
    }

    #[test]
    fn what_is_signed_is_the_body_the_token_and_the_port_as_well() {
        let base = || {
            let mut request = Request::new(http::Method::POST, "https://a.example/mcp".parse().unwrap());
            *request.body_mut() = Some("{}".into());
            request
        };
        let signed = |mut request: Request, settings: &SigV4Settings| {
            sign(&mut request, settings, AT).unwrap();
            request.headers()[http::header::AUTHORIZATION].clone()
        };
        let plain = signed(base(), &settings("s"));
        let mut other_body = base();
        *other_body.body_mut() = Some("[]".into());
        assert_ne!(signed(other_body, &settings("s")), plain);
        let mut other_port = base();
        other_port.url_mut().set_port(Some(8443)).unwrap();
        assert_ne!(signed(other_port, &settings("s")), plain);
        let with_token = SigV4Settings { session_token: Some(Secret::new("token")), ..settings("s") };
        assert!(signed(base(), &with_token).to_str().unwrap().contains("host;x-amz-date;x-amz-security-token"));
        assert_eq!(now().len(), AT.len(), "{}", now());
    }
}
