//! Prompts of MCP servers.

use serde_json::{Value, json};

use super::{
    dispatch::Ask,
    failed,
    message::{Code, Failure, answer},
    resources::{page, refused},
    servers::Visible,
};

/// Most servers whose prompts are looked through for one name.
const MAX_LOOKED_AT: usize = 32;

pub(super) async fn list(ask: &Ask) -> Result<Value, Failure> {
    let (prompts, next) = page(ask, |server| async move {
        let listed = server.link()?.handle.listed_prompts().await;
        let listed = listed.map_err(|error| failed(&error, Code::PromptNotFound))?;
        Ok(listed.iter().map(|one| prompt(&server.id, one)).collect())
    })
    .await?;
    Ok(answer("mcp/prompt/list/resp", &ask.message.id, json!({ "next_cursor": next, "prompts": prompts })))
}

fn prompt(server: &str, listed: &Value) -> Value {
    let argument = |one: &Value| {
        json!({
            "description": one["description"].as_str().unwrap_or_default(),
            "name": one["name"].as_str().unwrap_or_default(),
            "required": one["required"].as_bool().unwrap_or(false),
        })
    };
    json!({
        "arguments": listed["arguments"].as_array().into_iter().flatten().map(argument).collect::<Vec<_>>(),
        "description": listed["description"].as_str().unwrap_or_default(),
        "name": listed["name"].as_str().unwrap_or_default(),
        "server_id": server,
    })
}

pub(super) async fn get(ask: &Ask) -> Result<Value, Failure> {
    let answered = match made(ask).await {
        Ok((server, made)) => {
            let message = |one: &Value| json!({ "content": one["content"], "role": one["role"] });
            json!({
                "description": made["description"].as_str().unwrap_or_default(),
                "error": "",
                "messages": made["messages"].as_array().into_iter().flatten().map(message).collect::<Vec<_>>(),
                "server_id": server,
            })
        }
        Err(failure) if failure.code == Code::SchemaViolation => return Err(failure),
        Err(failure) => {
            let fields = json!({ "description": "", "messages": [], "server_id": ask.message.text("server_id")? });
            refused(fields, &failure)
        }
    };
    Ok(answer("mcp/prompt/get/resp", &ask.message.id, answered))
}

async fn made(ask: &Ask) -> Result<(String, Value), Failure> {
    let name = ask.message.needed("name")?;
    let arguments = ask.message.object("arguments")?;
    let server = server_of(ask, name).await?;
    let made = server.link()?.handle.prompt(name, (!arguments.is_empty()).then_some(arguments)).await;
    Ok((server.id.clone(), made.map_err(|error| failed(&error, Code::PromptNotFound))?))
}

/// The server that is named, else the first that lists the prompt.
async fn server_of(ask: &Ask, name: &str) -> Result<Visible, Failure> {
    let hint = ask.message.text("server_id")?;
    if !hint.is_empty() {
        return ask.bridge.servers.one(&ask.bridge, &ask.caller.principal, hint).await;
    }
    for server in ask.bridge.servers.visible(&ask.bridge, &ask.caller.principal).await.into_iter().take(MAX_LOOKED_AT) {
        let Ok(link) = server.link() else { continue };
        let Ok(prompts) = link.handle.listed_prompts().await else { continue };
        if prompts.iter().any(|prompt| prompt["name"] == name) {
            return Ok(server);
        }
    }
    let name = towline_a2a::shortened(name);
    Err(Failure::new(
        Code::PromptNotFound,
        format!("prompt {name:?} is not there: mcp/prompt/list names those that are"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_all_its_fields() {
        let listed =
            json!({ "name": "review", "arguments": [{ "name": "path", "required": true }, { "name": "how" }] });
        let prompt = prompt("fs", &listed);
        assert_eq!((&prompt["server_id"], &prompt["description"]), (&json!("fs"), &json!("")));
        let expected = json!([
            { "description": "", "name": "path", "required": true },
            { "description": "", "name": "how", "required": false },
        ]);
        assert_eq!(prompt["arguments"], expected);
    }
}
