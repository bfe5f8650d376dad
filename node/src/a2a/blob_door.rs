//! The blobs of a task over HTTP, in ranges, and the door through which content comes that is too large for a request.
//!
//! ```text
//! GET  /blobs/{task}/{hash}   content of a part of one's own task: Range, ETag, If-None-Match
//! POST /blobs                 keeps the body; answers with the URL to put into a part of a message
//! PUT  /blobs/{hash}          the same, and refuses a body that has another BLAKE3
//! GET  /blobs/{hash}          what one has uploaded oneself
//! ```
//! Nothing is held in memory but what is on its way. Of what is not the caller's nothing is said, not even that it is there.

use std::{ops::Range, sync::LazyLock, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes_of::Pieces;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header, request::Parts};
use serde_json::json;
use tokio::sync::Semaphore;
use towline_cluster::{BlobError, ProposeError};
use towline_core::{
    BlobForm, BlobHash, Command, Part, Principal, Proposal, Rejection, TaskId,
    limits::{MAX_BLOB_BYTES, UPLOAD_KEPT_MS},
};

use super::{Shared, blobs::PATH, principal};

/// Uploads of one node at the same time: each has a file open and a piece in memory.
const MAX_UPLOADS: usize = 32;
/// A client that sends nothing for this long is given up.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);
/// When another try is worth it after the node was busy with uploads.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// How content is called of which nothing else is known.
const UNKNOWN_TYPE: &str = "application/octet-stream";

static UPLOADS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(MAX_UPLOADS));

/// The routes.
pub(super) fn router() -> Router<Shared> {
    Router::new()
        .route("/blobs", post(upload))
        .route("/blobs/{hash}", get(uploaded).put(upload_as))
        .route("/blobs/{task}/{hash}", get(of_task))
}

async fn of_task(
    State(shared): State<Shared>,
    Path((task, hash)): Path<(String, String)>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    let (parts, _) = request.into_parts();
    let by = caller(&parts, &shared)?;
    let (task, hash) = (parsed::<TaskId>(&task)?, parsed::<BlobHash>(&hash)?);
    let cluster = &shared.settings.cluster;
    let unavailable = |error: towline_cluster::Unavailable| Refusal::unavailable(error.to_string());
    let record = cluster.read(|state| state.record_for(&by, task)).await.map_err(unavailable)?;
    let found = cluster.recall(task, record).await.map_err(unavailable)?.ok_or(Refusal::NotFound)?;
    let part = found.shown_part(hash).cloned().ok_or(Refusal::NotFound)?;
    let length = part.blob().map_or(0, |blob| blob.length);
    content(&shared, &parts, hash, length, Described::by(&part)).await
}

async fn uploaded(
    State(shared): State<Shared>,
    Path(hash): Path<String>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    let (parts, _) = request.into_parts();
    let by = caller(&parts, &shared)?;
    let hash = parsed::<BlobHash>(&hash)?;
    let found = shared.settings.cluster.read(|state| state.upload(&by, hash)).await;
    let length = found.map_err(|error| Refusal::unavailable(error.to_string()))?.ok_or(Refusal::NotFound)?;
    content(&shared, &parts, hash, length, Described::default()).await
}

/// What the headers say of content.
#[derive(Default)]
struct Described {
    media_type: Option<String>,
    filename: Option<String>,
}

impl Described {
    fn by(part: &Part) -> Self {
        let by_form = part.blob().map(|blob| match blob.form {
            BlobForm::Text => "text/plain; charset=utf-8",
            BlobForm::Raw => UNKNOWN_TYPE,
            BlobForm::Data => "application/json",
        });
        let media_type = part.media_type.clone().or(by_form.map(str::to_owned));
        Self { media_type, filename: part.filename.clone() }
    }
}

/// The content, or a range of it. It is never shown in place of a page: it comes from outside.
async fn content(
    shared: &Shared,
    request: &Parts,
    hash: BlobHash,
    length: u64,
    described: Described,
) -> Result<Response, Refusal> {
    let tag = format!("\"{hash}\"");
    let mut headers = HeaderMap::new();
    let mut set = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set(header::ETAG, &tag);
    set(header::ACCEPT_RANGES, "bytes");
    set(header::CACHE_CONTROL, "private, immutable");
    if matches(&request.headers, header::IF_NONE_MATCH, &tag) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::CONTENT_SECURITY_POLICY, "sandbox");
    set(header::CONTENT_DISPOSITION, &disposition(described.filename.as_deref()));
    set(header::CONTENT_TYPE, described.media_type.as_deref().unwrap_or(UNKNOWN_TYPE));
    let (status, range) = match asked_range(&request.headers, &tag, length) {
        Asked::All => (StatusCode::OK, 0..length),
        Asked::Range(range) => {
            set(header::CONTENT_RANGE, &format!("bytes {}-{}/{length}", range.start, range.end - 1));
            (StatusCode::PARTIAL_CONTENT, range)
        }
        Asked::Nothing => {
            set(header::CONTENT_RANGE, &format!("bytes */{length}"));
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, headers).into_response());
        }
    };
    set(header::CONTENT_LENGTH, &(range.end - range.start).to_string());
    if request.method == Method::HEAD {
        return Ok((status, headers).into_response());
    }
    let content = shared.settings.cluster.open_blob(hash, length).await?;
    Ok((status, headers, Body::from_stream(content.range(range.start, range.end))).into_response())
}

fn matches(headers: &HeaderMap, name: header::HeaderName, tag: &str) -> bool {
    let value = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(',').any(|one| one.trim() == "*" || one.trim().trim_start_matches("W/") == tag)
}

fn disposition(filename: Option<&str>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ' ');
    match filename {
        None => "attachment".to_owned(),
        Some(name) => {
            let name: String = name.chars().take(128).map(|c| if plain(c) { c } else { '_' }).collect();
            format!("attachment; filename=\"{name}\"")
        }
    }
}

/// Which bytes are asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    All,
    Range(Range<u64>),
    /// A range that lies behind the end.
    Nothing,
}

fn asked_range(headers: &HeaderMap, tag: &str, length: u64) -> Asked {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if text(header::IF_RANGE).is_some_and(|only_if| only_if.trim() != tag) {
        return Asked::All;
    }
    text(header::RANGE).map_or(Asked::All, |range| range_of(range, length))
}

/// Reads a `Range` header (RFC 9110, section 14.2). What is malformed, and more than one range, is answered with everything,
/// as a server may.
pub(crate) fn range_of(text: &str, length: u64) -> Asked {
    let Some((first, last)) = text.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Asked::All;
    };
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let (first, last) = (first.trim(), last.trim());
    let range = match (number(first), number(last)) {
        (Some(from), Some(to)) if from <= to => from..to.saturating_add(1).min(length),
        (Some(from), None) if last.is_empty() => from..length,
        (None, Some(suffix)) if first.is_empty() => length.saturating_sub(suffix)..length,
        _ => return Asked::All,
    };
    if range.is_empty() { Asked::Nothing } else { Asked::Range(range) }
}

async fn upload(State(shared): State<Shared>, request: Request<Body>) -> Result<Response, Refusal> {
    take(&shared, None, request).await
}

async fn upload_as(
    State(shared): State<Shared>,
    Path(hash): Path<String>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    let expected = hash.parse().map_err(|error| Refusal::Invalid(format!("{hash}: {error}")))?;
    take(&shared, Some(expected), request).await
}

async fn take(shared: &Shared, expected: Option<BlobHash>, request: Request<Body>) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let by = caller(&parts, shared)?;
    let announced = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > MAX_BLOB_BYTES) {
        return Err(Refusal::TooLarge);
    }
    let _place = UPLOADS.try_acquire().map_err(|_| Refusal::Busy)?;
    let cluster = &shared.settings.cluster;
    let mut upload = cluster.begin_upload(announced).await?;
    let mut pieces = Pieces::of(body);
    while let Some(piece) = pieces.next().await? {
        if let Err(error) = upload.write(piece).await {
            pieces.discard().await;
            return Err(error.into());
        }
    }
    let (hash, length) = upload.finish(expected).await?;
    cluster.propose(Proposal { by, command: Command::Upload { hash, length } }, None).await?;
    let url = format!("{}{PATH}/{hash}", shared.settings.public_url);
    let told = json!({ "hash": hash.to_string(), "kept_ms": UPLOAD_KEPT_MS, "length": length, "url": url });
    Ok((StatusCode::CREATED, [(header::LOCATION, url)], Json(told)).into_response())
}

mod bytes_of {
    //! A body in pieces that are worth a write.

    use axum::body::{Body, BodyDataStream, Bytes};
    use futures::StreamExt;

    use super::{PIECE_TIMEOUT, Refusal};

    /// Pieces that are read and dropped before a refusal, so that a client that still writes gets to read it.
    const MAX_DISCARDED: usize = 64;
    /// Bytes that are written at a time: a connection gives a few kilobytes each.
    const PIECE_BYTES: usize = 256 * 1024;

    pub(super) struct Pieces(BodyDataStream);

    impl Pieces {
        pub(super) fn of(body: Body) -> Self {
            Self(body.into_data_stream())
        }

        pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
            let mut piece = Vec::new();
            while piece.len() < PIECE_BYTES {
                let next = tokio::time::timeout(PIECE_TIMEOUT, self.0.next()).await;
                let next = next.map_err(|_| Refusal::Invalid(format!("nothing came for {PIECE_TIMEOUT:?}")))?;
                match next {
                    Some(Ok(bytes)) => piece.extend_from_slice(&bytes),
                    Some(Err(error)) => return Err(Refusal::Invalid(format!("read the body: {error}"))),
                    None => break,
                }
            }
            Ok((!piece.is_empty()).then(|| piece.into()))
        }

        pub(super) async fn discard(&mut self) {
            for _ in 0..MAX_DISCARDED {
                if !matches!(self.next().await, Ok(Some(_))) {
                    return;
                }
            }
        }
    }
}

fn caller(parts: &Parts, shared: &Shared) -> Result<Principal, Refusal> {
    principal::caller(parts, shared)
        .map(|caller| caller.principal)
        .map_err(|refused| Refusal::Caller(Box::new(refused)))
}

/// What is no id names nothing: the same answer as for what is not there.
fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|_| Refusal::NotFound)
}

/// Why there is no content, or none was taken.
#[derive(Debug)]
enum Refusal {
    Caller(Box<principal::Refused>),
    NotFound,
    TooLarge,
    Busy,
    Invalid(String),
    Rejected(Box<Rejection>),
    Unavailable { reason: String, retry_after: Duration },
}

impl Refusal {
    fn unavailable(reason: String) -> Self {
        Refusal::Unavailable { reason, retry_after: Duration::from_secs(1) }
    }
}

impl From<BlobError> for Refusal {
    fn from(error: BlobError) -> Self {
        let reason = crate::error::chain(&error);
        match error.retry_after() {
            Some(retry_after) => Refusal::Unavailable { reason, retry_after },
            None if matches!(error, BlobError::TooLarge { .. }) => Refusal::TooLarge,
            None => Refusal::Invalid(reason),
        }
    }
}

impl From<ProposeError> for Refusal {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Rejected(rejection) => Refusal::Rejected(Box::new(rejection)),
            ProposeError::Unavailable { reason, retry_after } => Refusal::Unavailable { reason, retry_after },
            ProposeError::Unknown { reason, .. } => {
                Refusal::unavailable(format!("outcome is unknown: {reason}; uploading again is safe"))
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, code, message, retry_after) = match self {
            Refusal::Caller(refused) => return refused.into_response(),
            Refusal::NotFound => (StatusCode::NOT_FOUND, "not_found", "there is no such content".to_owned(), None),
            Refusal::TooLarge => {
                let message = format!("content exceeds the limit of {MAX_BLOB_BYTES} bytes");
                (StatusCode::PAYLOAD_TOO_LARGE, "too_large", message, None)
            }
            Refusal::Busy => {
                let message =
                    format!("{MAX_UPLOADS} uploads are under way on this node: try again, or at another node");
                (StatusCode::SERVICE_UNAVAILABLE, "busy", message, Some(RETRY_AFTER))
            }
            Refusal::Invalid(message) => (StatusCode::BAD_REQUEST, "invalid_request", message, None),
            Refusal::Rejected(rejection) => rejected(&rejection),
            Refusal::Unavailable { reason, retry_after } => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", reason, Some(retry_after))
            }
        };
        let mut response = (status, Json(json!({ "error": { "code": code, "message": message } }))).into_response();
        if let Some(after) = retry_after {
            let seconds = after.as_millis().div_ceil(1000).to_string();
            response
                .headers_mut()
                .extend(HeaderValue::from_str(&seconds).ok().map(|value| (header::RETRY_AFTER, value)));
        }
        response
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "an upload is refused for its size or for lack of room")]
fn rejected(rejection: &Rejection) -> (StatusCode, &'static str, String, Option<Duration>) {
    let message = rejection.to_string();
    match rejection {
        Rejection::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large", message, None),
        Rejection::Full { retry_after_ms, .. } => {
            (StatusCode::SERVICE_UNAVAILABLE, "full", message, Some(Duration::from_millis(*retry_after_ms)))
        }
        _ => (StatusCode::FORBIDDEN, "not_allowed", message, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_rfc_9110_says() {
        for (text, expected) in [
            ("bytes=0-0", Asked::Range(0..1)),
            ("bytes=2-4", Asked::Range(2..5)),
            ("bytes=5-", Asked::Range(5..10)),
            ("bytes=-3", Asked::Range(7..10)),
            ("bytes=-30", Asked::Range(0..10)),
            ("bytes=8-99", Asked::Range(8..10)),
            ("bytes=0-99999999999999999999999", Asked::Range(0..10)),
            ("bytes=10-", Asked::Nothing),
            ("bytes=-0", Asked::Nothing),
            ("bytes=10-12", Asked::Nothing),
            ("bytes=4-2", Asked::All),
            ("bytes=0-1,3-4", Asked::All),
            ("bytes=+1-2", Asked::All),
            ("bytes=-", Asked::All),
            ("lines=0-1", Asked::All),
        ] {
            assert_eq!(range_of(text, 10), expected, "{text}");
        }
        assert_eq!(range_of("bytes=0-", 0), Asked::Nothing);
    }

    #[test]
    fn a_range_of_something_else_is_answered_with_everything() {
        let headers = |if_range: &'static str| {
            HeaderMap::from_iter([
                (header::RANGE, HeaderValue::from_static("bytes=0-1")),
                (header::IF_RANGE, HeaderValue::from_static(if_range)),
            ])
        };
        assert_eq!(asked_range(&headers("\"abc\""), "\"abc\"", 10), Asked::Range(0..2));
        assert_eq!(asked_range(&headers("\"other\""), "\"abc\"", 10), Asked::All);
    }

    #[test]
    fn a_filename_cannot_leave_its_header() {
        assert_eq!(disposition(Some("a\"; x=\r\n.txt")), "attachment; filename=\"a__ x___.txt\"");
    }
}
