//! `GET /api/v1/events`: what happened in the cluster, a page of it or as server-sent events.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::{Body, Bytes},
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header};
use serde_json::json;

use super::{Api, ApiError, NO_ANSWER, invalid};
use crate::{
    a2a::principal::Caller,
    feed::{self, FeedReader, FeedRefused, FeedRequest, Frame, Kinds},
};

/// The route.
pub(super) const ROUTE: &str = "/api/v1/events";

/// Entries on a page, if nothing is asked for, and at most.
pub(crate) const MAX_ENTRIES: usize = 1_000;

/// What the query asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query {
    request: FeedRequest,
    follow: bool,
    limit: Option<usize>,
}

impl Query {
    fn read(text: &str, headers: &HeaderMap) -> Result<Self, String> {
        let mut query = Self::default();
        let number = |name: &str, value: &str| {
            value.parse::<u64>().map_err(|_| format!("{name} must be a whole number, and is {:?}", shown(value)))
        };
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            match &*name {
                "after" => query.request.after = Some(number("after", &value)?),
                "kinds" => query.request.kinds = Kinds::read(value.split(','))?,
                "follow" => {
                    let flag = value.parse().map_err(|_| format!("follow must be true or false: {:?}", shown(&value)));
                    query.follow = flag?;
                }
                "limit" => {
                    let limit = usize::try_from(number("limit", &value)?).unwrap_or(usize::MAX);
                    if !(1..=MAX_ENTRIES).contains(&limit) {
                        return Err(format!("limit is out of range: 1 to {MAX_ENTRIES}"));
                    }
                    query.limit = Some(limit);
                }
                other => return Err(format!("{:?} is not known: after, kinds, follow, limit", shown(other))),
            }
        }
        // A client of server-sent events that was cut off says where it stands.
        if let Some(last) = headers.get("last-event-id") {
            let last = last.to_str().unwrap_or_default().trim();
            query.request.after = Some(number("Last-Event-ID", last)?);
        }
        Ok(query)
    }
}

fn shown(text: &str) -> String {
    towline_a2a::shortened(text)
}

pub(super) async fn events(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let query = Query::read(&query.unwrap_or_default(), &headers).map_err(|wrong| invalid(wrong).into_response())?;
    let by = caller.principal.clone();
    if !query.follow {
        let limit = query.limit.unwrap_or(MAX_ENTRIES);
        let page = feed::page(&api.cluster, &by, query.request, limit).await.map_err(refused)?;
        return Ok(Json(page.to_json()).into_response());
    }
    let place = api.auth.stream(&caller).map_err(|refusal| refusal.answer(crate::auth::Style::Api))?;
    let (cluster, stopping) = (api.cluster.clone(), api.stopping.clone());
    let reader = FeedReader::open(cluster, by, query.request, stopping, Some(place)).await.map_err(refused)?;
    let frames = futures::stream::unfold(reader, |mut reader| async move {
        let frame = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(written(&frame)), reader))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(frames)).into_response())
}

/// One server-sent event. JSON text has no line breaks, so its data is one line.
fn written(Frame { index, value }: &Frame) -> Bytes {
    match index {
        Some(index) => Bytes::from(format!("id: {index}\ndata: {value}\n\n")),
        None => Bytes::from(format!("data: {value}\n\n")),
    }
}

fn refused(refused: FeedRefused) -> Response {
    let message = refused.to_string();
    match refused {
        FeedRefused::Gone(gone) => {
            let error = json!({ "code": "gone", "last": gone.applied, "message": message, "oldest": gone.oldest });
            (StatusCode::GONE, Json(json!({ "error": error }))).into_response()
        }
        FeedRefused::Ahead { .. } => invalid(message).into_response(),
        FeedRefused::Unavailable(_) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
            .retry_after(NO_ANSWER)
            .into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_from_where_on_and_what_and_anything_else_is_refused() {
        let read = |text: &str| Query::read(text, &HeaderMap::new());
        let query = read("after=12&follow=true&kinds=task,node.lost").unwrap();
        assert_eq!((query.request.after, query.follow, query.limit), (Some(12), true, None));
        assert_eq!(query.request.kinds, Kinds::read(["task", "node.lost"]).unwrap());
        for (wrong, says) in [
            ("after=soon", "whole number"),
            ("after=-1", "whole number"),
            ("follow=1", "true or false"),
            ("limit=0", "1 to 1000"),
            ("limit=1001", "1 to 1000"),
            ("kinds=weather", "no kind"),
            ("since=3", "not known"),
        ] {
            let refused = read(wrong).unwrap_err();
            assert!(refused.contains(says), "{wrong}: {refused}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("last-event-id", "40".parse().unwrap());
        assert_eq!(Query::read("after=12", &headers).unwrap().request.after, Some(40), "it is where the client stands");
    }
}
