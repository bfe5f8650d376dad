//! Resources of MCP servers: listed over all of them or of one, read and subscribed to where they are.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use towline_actors::mcp_connection::{CallEvents, READ_RESOURCE};

use super::{
    dispatch::Ask,
    failed,
    message::{Code, Failure, answer},
    servers::{Link, MAX_SUBSCRIBED_OF_ONE, Visible},
    tools::request,
};
use crate::auth::audit;

/// Items of one page.
const PAGE: usize = 200;

/// Most servers whose templates are looked through for one URI.
const MAX_LOOKED_AT: usize = 32;

/// A place in a listing over several servers: it goes on with this server, behind so many of its items.
pub(super) fn read_cursor(cursor: &str) -> Result<(String, usize), Failure> {
    if cursor.is_empty() {
        return Ok((String::new(), 0));
    }
    let read = cursor.rsplit_once(':').and_then(|(server, at)| Some((server.to_owned(), at.parse().ok()?)));
    read.ok_or_else(|| Failure::new(Code::SchemaViolation, "cursor is none that this host gave"))
}

/// What the listing of one server is.
pub(super) type Listed = Result<Vec<Value>, Failure>;

/// A page of a listing over the servers, in the order of their ids. Of several, those that cannot be asked are left out.
///
/// # Errors
/// When the one server that is asked for has none, or cannot be asked.
pub(super) async fn page<F>(ask: &Ask, list: impl Fn(Visible) -> F) -> Result<(Vec<Value>, String), Failure>
where
    F: Future<Output = Listed>,
{
    let only = ask.message.text("server_id")?.to_owned();
    let (from, behind) = read_cursor(ask.message.text("cursor")?)?;
    let servers = if only.is_empty() {
        ask.bridge.servers.visible(&ask.bridge, &ask.caller.principal).await
    } else {
        vec![ask.bridge.servers.one(&ask.bridge, &ask.caller.principal, &only).await?]
    };
    let mut items = Vec::new();
    for server in servers.into_iter().filter(|server| server.id >= from) {
        let id = server.id.clone();
        let listed = match list(server).await {
            Ok(listed) => listed,
            Err(failure) if !only.is_empty() => return Err(failure),
            Err(_) => continue,
        };
        let behind = if id == from { behind } else { 0 };
        for (at, item) in listed.into_iter().enumerate().skip(behind) {
            if items.len() == PAGE {
                return Ok((items, format!("{id}:{at}")));
            }
            items.push(item);
        }
    }
    Ok((items, String::new()))
}

pub(super) async fn list(ask: &Ask) -> Result<Value, Failure> {
    let (resources, next) = page(ask, |server| async move {
        let listed = server.link()?.handle.listed_resources().await;
        let listed = listed.map_err(|error| failed(&error, Code::ResourceNotFound))?;
        let uri = |one: &Value| one["uri"].as_str().unwrap_or_default().to_owned();
        Ok(listed.iter().filter(|one| server.has_resource(&uri(one))).map(|one| resource(&server.id, one)).collect())
    })
    .await?;
    Ok(answer("mcp/resource/list/resp", &ask.message.id, json!({ "next_cursor": next, "resources": resources })))
}

fn resource(server: &str, listed: &Value) -> Value {
    let text = |field: &str| listed[field].as_str().unwrap_or_default();
    json!({
        "annotations": listed["annotations"].as_object().cloned().unwrap_or_default(),
        "description": text("description"),
        "mime_type": text("mimeType"),
        "name": listed["title"].as_str().unwrap_or(text("name")),
        "server_id": server,
        "uri": text("uri"),
    })
}

/// What an agent asks about one resource, and what is said when it cannot be had.
pub(super) async fn read(ask: &Ask) -> Result<Value, Failure> {
    let answered = match contents(ask).await {
        Ok((server, contents)) => json!({ "contents": contents, "error": "", "server_id": server }),
        Err(failure) if failure.code == Code::SchemaViolation => return Err(failure),
        Err(failure) => {
            let fields = json!({ "contents": [], "server_id": ask.message.text("server_id")? });
            refused(fields, &failure)
        }
    };
    Ok(answer("mcp/resource/read/resp", &ask.message.id, answered))
}

/// An answer that says why there is nothing in it.
pub(super) fn refused(mut fields: Value, failure: &Failure) -> Value {
    fields["error"] = failure.to_string().into();
    fields["error_code"] = failure.code.as_str().into();
    fields["retryable"] = failure.code.is_retryable().into();
    fields
}

async fn contents(ask: &Ask) -> Result<(String, Vec<Value>), Failure> {
    let uri = ask.message.needed("uri")?;
    let server = server_of(ask, uri).await?;
    let link = server.link()?;
    let arguments = Value::Object(Map::from_iter([("uri".to_owned(), uri.into())]));
    let about = (ask.trace, &*ask.caller.standing.labels);
    let request = request(READ_RESOURCE.to_owned(), arguments, about, None, CallEvents::default());
    let cancel = CancellationToken::new();
    let _ends_with_the_call = cancel.clone().drop_guard();
    let read = link.handle.call(request, cancel.clone()).await;
    let outcome = if read.is_ok() { "ok" } else { "failed" };
    audit::method(&ask.caller, "a2e.read", Some(link.handle.name()), outcome, &ask.trace);
    let read = read.map_err(|error| failed(&error, Code::ResourceNotFound))?;
    if read.is_error {
        return Err(Failure::new(Code::ResourceNotFound, read.text));
    }
    let blocks = read.answer["content"].as_array().into_iter().flatten();
    Ok((
        server.id,
        blocks.filter(|block| block["type"] == "resource").map(|block| content(&block["resource"])).collect(),
    ))
}

fn content(read: &Value) -> Value {
    let text = |field: &str| read[field].as_str().unwrap_or_default();
    let is_blob = read["blob"].is_string();
    // What is too large for an answer lies in the blob store, and is empty here.
    let is_cut = is_blob && text("blob").is_empty();
    json!({
        "blob": text("blob"),
        "mime_type": read["mimeType"].as_str().unwrap_or("text/plain"),
        "text": text("text"),
        "truncated": is_cut,
        "type": if is_blob { "blob" } else { "text" },
        "uri": text("uri"),
    })
}

pub(super) async fn subscribe(ask: &Ask) -> Result<Value, Failure> {
    let answered = match subscribed(ask).await {
        Ok(()) => json!({ "error": "", "ok": true }),
        Err(failure) if failure.code == Code::SchemaViolation => return Err(failure),
        Err(failure) => refused(json!({ "ok": false }), &failure),
    };
    Ok(answer("mcp/resource/subscribe/resp", &ask.message.id, answered))
}

async fn subscribed(ask: &Ask) -> Result<(), Failure> {
    let uri = ask.message.needed("uri")?;
    let server = server_of(ask, uri).await?;
    let link: &Arc<Link> = server.link()?;
    // Before the server is told, so that its first word is passed on.
    check_share(ask, link, uri)?;
    ask.session.subscribe(&link.key, uri)?;
    link.subscribe(uri).await
}

/// Whether the principal may subscribe to one more resource of a server, with all of its sessions.
fn check_share(ask: &Ask, link: &Link, uri: &str) -> Result<(), Failure> {
    let sessions = ask.bridge.sessions.all();
    let of_one = sessions.iter().filter(|session| session.owner == ask.session.owner);
    let mut wanted: BTreeSet<String> = of_one.flat_map(|session| session.subscriptions(&link.key)).collect();
    wanted.insert(uri.to_owned());
    if wanted.len() > MAX_SUBSCRIBED_OF_ONE {
        let message = format!(
            "your sessions subscribe to {MAX_SUBSCRIBED_OF_ONE} resources of this server here: that is the most"
        );
        return Err(Failure::new(Code::Runtime, message));
    }
    Ok(())
}

/// The server that has a resource: the one that is named; else the first that lists it; else the first with a template that fits.
async fn server_of(ask: &Ask, uri: &str) -> Result<Visible, Failure> {
    let hint = ask.message.text("server_id")?;
    let missing = || {
        let uri = towline_a2a::shortened(uri);
        Failure::new(
            Code::ResourceNotFound,
            format!("resource {uri:?} is not there: mcp/resource/list names those that are"),
        )
    };
    if !hint.is_empty() {
        let server = ask.bridge.servers.one(&ask.bridge, &ask.caller.principal, hint).await?;
        return if server.has_resource(uri) { Ok(server) } else { Err(missing()) };
    }
    let servers = ask.bridge.servers.visible(&ask.bridge, &ask.caller.principal).await;
    let may_have = |server: &&Visible| server.has_resource(uri);
    let lists = |server: &&Visible| {
        server.link().is_ok_and(|link| link.handle.resources().iter().any(|resource| resource.uri == uri))
    };
    if let Some(found) = servers.iter().filter(may_have).find(lists) {
        return Ok(found.clone());
    }
    for server in servers.iter().filter(may_have).take(MAX_LOOKED_AT) {
        let Ok(link) = server.link() else { continue };
        let Ok(templates) = link.handle.listed_templates().await else { continue };
        if templates.iter().any(|template| fits(template["uriTemplate"].as_str().unwrap_or_default(), uri)) {
            return Ok(server.clone());
        }
    }
    Err(missing())
}

/// Whether a URI can be one of a template: its fixed pieces come in their order.
fn fits(template: &str, uri: &str) -> bool {
    let Some((head, mut rest)) = template.split_once('{') else { return false };
    let Some(mut left) = uri.strip_prefix(head) else { return false };
    loop {
        let Some((_, behind)) = rest.split_once('}') else { return false };
        match behind.split_once('{') {
            None => return left.len() > behind.len() && left.ends_with(behind),
            Some((piece, next)) => {
                let Some(at) = left.find(piece) else { return false };
                left = &left[at + piece.len()..];
                rest = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_a_server_and_a_place() {
        assert_eq!(read_cursor("").unwrap(), (String::new(), 0));
        assert_eq!(read_cursor("a:b:17").unwrap(), ("a:b".into(), 17));
        for wrong in ["a", "a:", "a:-1", ":x"] {
            assert_eq!(read_cursor(wrong).unwrap_err().code, Code::SchemaViolation, "{wrong}");
        }
    }

    #[test]
    fn a_uri_fits_a_template_whose_fixed_pieces_it_has() {
        for (template, uri, expected) in [
            ("file:///{path}", "file:///a/b", true),
            ("file:///{path}", "file:///", false),
            ("db://{table}/rows/{id}", "db://t/rows/7", true),
            ("db://{table}/rows/{id}", "db://t/cols/7", false),
            ("x://{a}.json", "x://y.json", true),
            ("x://{a}.json", "x://y.xml", false),
            ("x://fixed", "x://fixed", false),
            ("x://{broken", "x://a", false),
        ] {
            assert_eq!(fits(template, uri), expected, "{template} {uri}");
        }
    }

    #[test]
    fn contents_have_all_their_fields() {
        let text = content(&json!({ "uri": "a:b", "text": "x" }));
        assert_eq!(
            (&text["mime_type"], &text["type"], &text["blob"]),
            (&json!("text/plain"), &json!("text"), &json!(""))
        );
        let blob = content(&json!({ "uri": "a:b", "blob": "AA==", "mimeType": "image/png" }));
        assert_eq!((&blob["type"], &blob["blob"], &blob["truncated"]), (&json!("blob"), &json!("AA=="), &json!(false)));
        assert_eq!(content(&json!({ "blob": "" }))["truncated"], true);
    }
}
