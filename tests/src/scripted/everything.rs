//! `towline-scripted-mcp FILE everything`: a server that also has resources, prompts and announcements, and asks its client for
//! completions and roots. FILE gets a line for each request, and `FILE.text` is the content of its first resource.

use serde_json::{Value, json};
use std::{
    fs::{self, OpenOptions},
    io::{self, BufRead, Write},
    process,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use super::{Answer, INVALID_PARAMS, METHOD_NOT_FOUND, WAITING, send, write};

/// A resource that is not there, up to 2025-11-25.
const RESOURCE_MISSING: i64 = -32002;

/// More than a client shows on one page.
const MANY: usize = 250;

pub fn serve(file: &str) {
    let out = Arc::new(Mutex::new(io::stdout()));
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        if message.get("method").is_none() {
            let waiting = message["id"].as_str().and_then(|id| WAITING.lock().unwrap().remove(id));
            // Who asked may have gone.
            let _gone = waiting.map(|waiting| waiting.send(message));
            continue;
        }
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let params = message["params"].clone();
        note(file, &format!("{method} {}", params["uri"].as_str().unwrap_or_default()));
        if method == "initialize" {
            note(file, &format!("capabilities {}", params["capabilities"]));
        }
        let (out, file, id) = (Arc::clone(&out), file.to_owned(), message.get("id").cloned());
        // Side by side, so that a call that asks its client does not keep it from answering.
        thread::spawn(move || match id {
            Some(id) => send(&out, &id, answer(&out, &file, &method, &params)),
            None if method == "notifications/initialized" => {
                note(&file, &format!("roots {}", ask(&out, "roots/list", json!({}))));
            }
            None => {}
        });
    }
}

fn note(file: &str, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
    writeln!(file, "{line}").unwrap();
}

fn answer(out: &Mutex<io::Stdout>, file: &str, method: &str, params: &Value) -> Answer {
    match method {
        "initialize" => Ok(json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {
                "logging": {}, "prompts": { "listChanged": true },
                "resources": { "listChanged": true, "subscribe": true }, "tools": { "listChanged": true },
            },
            "serverInfo": { "name": "everything", "version": "1.2.3" },
        })),
        "ping" | "resources/subscribe" => Ok(json!({})),
        "tools/list" => Ok(json!({ "tools": tools() })),
        "tools/call" => call(out, params),
        "resources/list" => Ok(json!({ "resources": resources() })),
        "resources/templates/list" => {
            Ok(json!({ "resourceTemplates": [{ "uriTemplate": "note://{name}", "name": "notes" }] }))
        }
        "resources/read" => read(file, params["uri"].as_str().unwrap_or_default()),
        "prompts/list" => Ok(json!({ "prompts": [{ "name": "review", "description": "Reviews a file.",
            "arguments": [{ "name": "path", "description": "which", "required": true }, { "name": "how" }] }] })),
        "prompts/get" if params["name"] == "review" => {
            let text = format!("Review {}.", params["arguments"]["path"].as_str().unwrap_or("nothing"));
            let message = json!({ "role": "user", "content": { "type": "text", "text": text } });
            Ok(json!({ "description": "Reviews a file.", "messages": [message] }))
        }
        "prompts/get" => Err((INVALID_PARAMS, "no such prompt".to_owned())),
        other => Err((METHOD_NOT_FOUND, format!("no method {other}"))),
    }
}

fn tools() -> Vec<Value> {
    let schema = json!({ "type": "object", "required": ["text"],
        "properties": { "text": { "type": "string", "description": "what", "enum": ["a", "b"] } } });
    let names = ["echo", "odd", "fail", "sample", "roots", "announce", "work", "crash", "secret"];
    let tool = |name: &str| json!({ "name": name, "description": format!("Does {name}."), "inputSchema": schema });
    names.into_iter().map(tool).collect()
}

fn resources() -> Vec<Value> {
    let many = (0..MANY).map(|number| json!({ "uri": format!("many://{number}"), "name": number.to_string() }));
    let first = json!({ "uri": "file:///a.txt", "name": "a", "title": "A", "description": "The first.",
        "mimeType": "text/plain", "annotations": { "priority": 1.0 } });
    [first, json!({ "uri": "file:///b.bin", "name": "b" })].into_iter().chain(many).collect()
}

fn read(file: &str, uri: &str) -> Answer {
    let content = match uri {
        "file:///a.txt" => {
            let text = fs::read_to_string(format!("{file}.text")).unwrap_or_else(|_| "first".to_owned());
            json!({ "uri": uri, "mimeType": "text/plain", "text": text })
        }
        "file:///b.bin" => json!({ "uri": uri, "mimeType": "image/png", "blob": "AAEC" }),
        _ if uri.starts_with("note://") => json!({ "uri": uri, "text": format!("note {uri}") }),
        _ => return Err((RESOURCE_MISSING, "there is no such resource".to_owned())),
    };
    Ok(json!({ "contents": [content] }))
}

fn call(out: &Mutex<io::Stdout>, params: &Value) -> Answer {
    let text = params["arguments"]["text"].as_str().unwrap_or_default();
    let content = |text: &str| Ok(json!({ "content": [{ "type": "text", "text": text }] }));
    let tell = |method: &str, params: Value| {
        write(out, &json!({ "jsonrpc": "2.0", "method": format!("notifications/{method}"), "params": params }));
    };
    match params["name"].as_str().unwrap_or_default() {
        "echo" => content(&format!("echo: {text}")),
        "odd" => Ok(json!({ "content": [{ "type": "hologram", "rays": 7 }], "structuredContent": { "n": 1 } })),
        "fail" => Ok(json!({ "content": [{ "type": "text", "text": "it does not work" }], "isError": true })),
        "sample" => {
            let asked = json!({ "messages": [{ "role": "user", "content": { "type": "text", "text": text } }],
                "maxTokens": 7, "systemPrompt": "Be short.", "temperature": 0.5, "stopSequences": ["."] });
            content(&ask(out, "sampling/createMessage", asked).to_string())
        }
        "roots" => content(&ask(out, "roots/list", json!({})).to_string()),
        "announce" => {
            tell("tools/list_changed", json!({}));
            tell("resources/list_changed", json!({}));
            tell("prompts/list_changed", json!({}));
            tell("resources/updated", json!({ "uri": "file:///a.txt" }));
            tell("message", json!({ "level": "warning", "data": "low on paper" }));
            content("announced")
        }
        "work" => {
            let token = &params["_meta"]["progressToken"];
            for at in 1..=3 {
                tell("progress", json!({ "progressToken": token, "progress": at, "total": 4, "message": "on it" }));
                thread::sleep(Duration::from_millis(100));
            }
            content("done")
        }
        "crash" => process::exit(3),
        "secret" => content("nobody may know"),
        other => Err((INVALID_PARAMS, format!("no tool {other}"))),
    }
}

/// Asks the client, and gives its result or its error.
fn ask(out: &Mutex<io::Stdout>, method: &str, params: Value) -> Value {
    static NEXT: Mutex<u32> = Mutex::new(0);
    let key = {
        let mut next = NEXT.lock().unwrap();
        *next += 1;
        format!("{method}-{next}")
    };
    let (answer, answered) = mpsc::channel();
    WAITING.lock().unwrap().insert(key.clone(), answer);
    write(out, &json!({ "jsonrpc": "2.0", "id": key, "method": method, "params": params }));
    let message = answered.recv().unwrap_or_default();
    if message["error"].is_null() { message["result"].clone() } else { message["error"].clone() }
}
