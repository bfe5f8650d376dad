//! `towline mcp …`

use std::time::Duration;

use serde_json::{Map, Value, json};

use towline_actors::mcp_connection::{McpInspection, McpServerState, McpServerStatus, PromptInfo, TailLine, ToolInfo};
use towline_core::Timestamp;

use super::client::Client;
use crate::{cli::McpCommand, error::CliError, output::Output};

/// Between two looks at what a server says: a person does not notice less.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);

/// Longest description in a list.
const MAX_CELL_CHARS: usize = 80;

pub(crate) async fn run(command: &McpCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        McpCommand::List => list(client, output).await,
        McpCommand::Inspect { mcp_server: server } => inspect(server, client, output).await,
        McpCommand::Call { mcp_server: server, tool, arguments } => {
            let arguments = object(arguments)?;
            let body = json!({ "arguments": arguments, "tool": tool });
            result(client.post_patiently(&path(server, "/call"), &body).await?, output)
        }
        McpCommand::Read { mcp_server: server, uri } => {
            result(client.post_patiently(&path(server, "/read"), &json!({ "uri": uri })).await?, output)
        }
        McpCommand::Prompt { mcp_server: server, name: None, .. } => {
            let found = looked_at(server, client).await?;
            if output.is_json() {
                return Ok(output.json(&json!({ "prompts": found.prompts }))?);
            }
            prompts(found.prompts, output)
        }
        McpCommand::Prompt { mcp_server: server, name: Some(name), arguments } => {
            let arguments = pairs(arguments)?;
            let body = json!({ "arguments": arguments, "name": name });
            let made = client.post_patiently(&path(server, "/prompt"), &body).await?;
            if output.is_json() {
                return Ok(output.json(&made)?);
            }
            for message in made["messages"].as_array().into_iter().flatten() {
                let role = message["role"].as_str().unwrap_or("?");
                let text = message["content"]["text"].as_str();
                let text = text.map_or_else(|| message["content"].to_string(), str::to_owned);
                output.line(format!("{role}: {}", shown(&text)))?;
            }
            Ok(())
        }
        McpCommand::Tail { mcp_server: server, follow } => tail(server, *follow, client, output).await,
        McpCommand::Accept { mcp_server: server } => {
            let accepted = client.post(&path(server, "/accept"), &json!({})).await?;
            if output.is_json() {
                return Ok(output.json(&accepted)?);
            }
            Ok(output.line(format!("{} tools of {server} are agreed to", accepted["accepted"]))?)
        }
        McpCommand::Login { mcp_server: server, device, port } => {
            super::mcp_login::login(server, (*device, *port), client, output).await
        }
        McpCommand::Serve => crate::mcp_server::stdio::serve(client).await,
    }
}

pub(super) fn path(server: &str, below: &str) -> String {
    let name: String = form_urlencoded::byte_serialize(server.as_bytes()).collect();
    format!("/api/v1/mcp/{}{below}", name.replace('+', "%20"))
}

async fn list(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer: Value = client.get("/api/v1/mcp").await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let servers: Vec<McpServerStatus> = serde_json::from_value(answer["servers"].clone()).map_err(CliError::other)?;
    let notes: Vec<String> = servers.iter().flat_map(notes).collect();
    let rows = servers.into_iter().map(row).collect();
    output.table(&["SERVER", "TRANSPORT", "STATE", "TOOLS"], rows)?;
    notes.into_iter().for_each(|note| output.note(note));
    Ok(())
}

fn row(server: McpServerStatus) -> Vec<String> {
    let state = state(&server);
    let tools = if server.tools.is_empty() { "-".to_owned() } else { server.tools.join(", ") };
    vec![server.name, server.transport, state, tools]
}

fn state(server: &McpServerStatus) -> String {
    match server.state {
        McpServerState::Connecting => "connecting".to_owned(),
        McpServerState::Ready => "ready".to_owned(),
        McpServerState::Down => {
            let next =
                server.next_try_ms.map(|ms| format!("; next try in {} s", ms.div_ceil(1_000))).unwrap_or_default();
            format!("down: {}{next}", server.reason.as_deref().unwrap_or("no reason given"))
        }
    }
}

/// What an operator has to know of a server beside the list.
fn notes(server: &McpServerStatus) -> Vec<String> {
    let changed =
        server.changed.iter().map(|(tool, how)| format!("{}.{tool}: {how} since it was listed first", server.name));
    let left_out = server.left_out.iter().map(|what| format!("{}: left out: {what}", server.name));
    let unlisted =
        server.unlisted.iter().map(|(list, why)| format!("{}: its {list} could not be listed: {why}", server.name));
    changed.chain(left_out).chain(unlisted).collect()
}

async fn looked_at(server: &str, client: &Client) -> Result<McpInspection, CliError> {
    serde_json::from_value(client.get(&path(server, "")).await?).map_err(CliError::other)
}

async fn inspect(server: &str, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let answer = client.get(&path(server, "")).await?;
    if output.is_json() {
        return Ok(output.json(&answer)?);
    }
    let found: McpInspection = serde_json::from_value(answer).map_err(CliError::other)?;
    let or_none = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let status = &found.status;
    let facts = vec![
        vec!["server".to_owned(), or_none(status.server.as_deref())],
        vec!["transport".to_owned(), status.transport.clone()],
        vec!["state".to_owned(), state(status)],
        vec!["revision".to_owned(), or_none(status.protocol_version.as_deref())],
        vec!["capabilities".to_owned(), found.capabilities.join(", ")],
        vec!["push".to_owned(), or_none(status.push.as_deref())],
    ];
    output.table(&["WHAT", "IS"], facts)?;
    if let Some(instructions) = &found.instructions {
        output.line("\nInstructions, in the words of the server:")?;
        output.line(shown(instructions))?;
    }
    if !found.tool_details.is_empty() {
        output.line("")?;
        output.table(&["TOOL", "ON ADOPTION", "DESCRIPTION"], found.tool_details.iter().map(tool).collect())?;
    }
    if !found.resources.is_empty() {
        output.line("")?;
        let row = |resource: &towline_actors::mcp_connection::ResourceInfo| {
            vec![resource.uri.clone(), resource.media_type.clone().unwrap_or_default(), cell(&resource.label)]
        };
        output.table(&["RESOURCE", "TYPE", "LABEL"], found.resources.iter().map(row).collect())?;
    }
    if !found.templates.is_empty() {
        output.line("")?;
        let rows = found.templates.iter().map(|template| vec![template.uri_template.clone(), cell(&template.label)]);
        output.table(&["TEMPLATE", "LABEL"], rows.collect())?;
    }
    if !found.prompts.is_empty() {
        output.line("")?;
        prompts(found.prompts, output)?;
    }
    notes(&found.status).into_iter().for_each(|note| output.note(note));
    Ok(())
}

fn tool(tool: &ToolInfo) -> Vec<String> {
    let on_adoption = format!("{:?}", tool.on_adoption).to_lowercase();
    vec![tool.qualified.clone(), on_adoption, cell(&tool.description)]
}

fn prompts(prompts: Vec<PromptInfo>, output: &mut Output) -> Result<(), CliError> {
    let row = |prompt: PromptInfo| vec![prompt.name, prompt.arguments.join(", "), cell(&prompt.description)];
    Ok(output.table(&["PROMPT", "ARGUMENTS", "DESCRIPTION"], prompts.into_iter().map(row).collect())?)
}

fn cell(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let short: String = line.chars().take(MAX_CELL_CHARS).collect();
    if short.len() < text.trim_end().len() { format!("{short}…") } else { short }
}

/// The answer of a call: its text, and beside it what is no text. An error of the tool is exit code 1.
fn result(answer: Value, output: &mut Output) -> Result<(), CliError> {
    if output.is_json() {
        output.json(&answer)?;
    } else {
        output.line(shown(answer["text"].as_str().unwrap_or_default()))?;
        for file in answer["files"].as_array().into_iter().flatten() {
            let name = file["filename"].as_str().unwrap_or("without a name");
            output.note(format!("a file {name} of {} bytes, which is not kept", file["bytes"]));
        }
    }
    if answer["isError"] == true {
        return Err(CliError::Other("the server says that this is an error".to_owned()));
    }
    Ok(())
}

/// Text from outside does not steer the terminal.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
}

async fn tail(server: &str, follow: bool, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let mut after = 0;
    loop {
        let answer = client.get(&path(server, &format!("/tail?after={after}"))).await?;
        let lines: Vec<TailLine> = serde_json::from_value(answer["lines"].clone()).map_err(CliError::other)?;
        for line in lines {
            if after > 0 && line.no > after + 1 {
                output.note(format!("{} lines were dropped", line.no - after - 1));
            }
            after = line.no;
            if output.is_json() {
                output.line(serde_json::to_string(&line).map_err(CliError::other)?)?;
            } else {
                let at = towline_a2a::time_text(Timestamp(line.at_ms));
                output.line(format!("{at} {:<12} {}", line.kind.word(), line.text))?;
            }
        }
        if !follow {
            return Ok(());
        }
        tokio::time::sleep(FOLLOW_PAUSE).await;
    }
}

fn object(text: &str) -> Result<Map<String, Value>, CliError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(CliError::Usage(format!("arguments {text:?} are no JSON object, as in '{{\"path\": \"a.md\"}}'"))),
        Err(error) => Err(CliError::Usage(format!("arguments {text:?} are no JSON: {error}"))),
    }
}

fn pairs(texts: &[String]) -> Result<Option<Map<String, Value>>, CliError> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), Value::from(value))),
        Some(_) | None => Err(CliError::Usage(format!("argument {text:?} is not NAME=VALUE"))),
    };
    let pairs: Map<String, Value> = texts.iter().map(pair).collect::<Result<_, _>>()?;
    Ok((!pairs.is_empty()).then_some(pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_an_object_or_pairs() {
        assert_eq!(object(r#"{"a": 1}"#).unwrap()["a"], 1);
        assert!(object("[1]").is_err() && object("{").is_err());
        assert_eq!(pairs(&["a=b=c".to_owned()]).unwrap().unwrap()["a"], "b=c");
        assert!(pairs(&["a".to_owned()]).is_err() && pairs(&["=b".to_owned()]).is_err());
        assert_eq!(pairs(&[]).unwrap(), None);
    }

    #[test]
    fn a_name_does_not_leave_its_place_in_a_path() {
        assert_eq!(path("a b/../x", "/call"), "/api/v1/mcp/a%20b%2F..%2Fx/call");
    }

    #[test]
    fn text_from_outside_does_not_steer_the_terminal() {
        assert_eq!(shown("a\u{1b}[2J\nb"), "a\u{fffd}[2J\nb");
        assert_eq!(cell("one\ntwo"), "one…");
        assert_eq!(cell("one"), "one");
    }
}
