//! An MCP server over stdio that does what its caller asks for. It speaks JSON-RPC by hand, so that it shares no code with
//! the client under test.
//!
//! `towline-scripted-mcp FILE` appends one line to FILE for each tool call: the tool, a blank, and its `_meta`. With `everything`
//! behind FILE it is another one, with all that a server can have.
#![expect(clippy::unwrap_used, reason = "a scripted server that cannot go on ends")]

#[path = "../scripted/everything.rs"]
mod everything;

use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, Write},
    path::Path,
    process,
    sync::{Arc, LazyLock, Mutex, mpsc},
    thread,
    time::Duration,
};
use towline_tests::made_base64;

const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

/// Who waits for the answer to a request of ours, by its id.
static WAITING: LazyLock<Mutex<HashMap<String, mpsc::Sender<Value>>>> = LazyLock::new(Mutex::default);

/// Whether it has what a gateway passes on: a second argument says so.
static HAS_MORE: LazyLock<bool> = LazyLock::new(|| std::env::args().nth(2).is_some());

/// A result that no two libraries would write the same.
const RAW: &str = r#"{"content":[{"type":"hologram","rays":1.50,"of":1e2,"name":"\u0041"},{"type":"text","text":"raw","extra":{"b":1,"a":2}}],"more":[1.0]}"#;

fn main() {
    let calls = std::env::args().nth(1).expect("an argument names the file of calls");
    if std::env::args().nth(2).as_deref() == Some("everything") {
        return everything::serve(&calls);
    }
    let out = Arc::new(Mutex::new(io::stdout()));
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        if let (None, Some(id)) = (message.get("method"), message["id"].as_str())
            && let Some(waiting) = WAITING.lock().unwrap().remove(id)
        {
            // Who asked may have gone.
            let _gone = waiting.send(message);
            continue;
        }
        let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id").cloned()) else { continue };
        let params = message["params"].clone();
        if method == "tools/call" {
            note(&calls, &params);
            let out = Arc::clone(&out);
            // Side by side, so that a slow call does not hold up the next one.
            let calls = calls.clone();
            thread::spawn(move || {
                let text = params["arguments"]["text"].as_str().unwrap_or_default();
                if params["name"] == "file" {
                    return send_file(&out, &id, number(text));
                }
                if params["name"] == "raw" {
                    return write(&out, &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{RAW}}}"#));
                }
                if params["name"] == "ask" {
                    return send(&out, &id, ask(&out, &id, text));
                }
                if params["name"] == "progress" {
                    tell(&out, &params["_meta"]["progressToken"]);
                }
                send(&out, &id, call(&calls, &params));
            });
        } else {
            send(&out, &id, answer(method, &params));
        }
    }
}

type Answer = Result<Value, (i64, String)>;

fn answer(method: &str, params: &Value) -> Answer {
    match method {
        "initialize" => Ok(json!({
            "protocolVersion": match params["protocolVersion"].as_str() {
                Some(asked) if asked < "2025-11-25" => asked,
                _ => "2025-11-25",
            },
            "capabilities": if *HAS_MORE { json!({ "prompts": {}, "resources": {}, "tools": {} }) } else { json!({ "tools": {} }) },
            "serverInfo": { "name": "towline-scripted-mcp", "version": "1.0.0" },
        })),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(page(params["cursor"].as_str())),
        "resources/list" if *HAS_MORE => Ok(json!({ "resources": [
            { "uri": "note://one", "name": "one" },
            { "uri": "secret://one", "name": "another" },
        ] })),
        "resources/templates/list" if *HAS_MORE => {
            Ok(json!({ "resourceTemplates": [{ "uriTemplate": "note://{name}", "name": "note" }] }))
        }
        "resources/read" if *HAS_MORE => match params["uri"].as_str() {
            Some(uri @ ("note://one" | "note://two")) => {
                Ok(json!({ "contents": [{ "uri": uri, "text": uri, "odd": 1.50 }] }))
            }
            _ => Err((-32002, "no such resource".to_owned())),
        },
        "prompts/list" if *HAS_MORE => {
            Ok(json!({ "prompts": [{ "name": "greet", "description": "Greets.\u{202e}" }] }))
        }
        "prompts/get" if *HAS_MORE => {
            let text = json!({ "type": "text", "text": format!("Greet {}.", params["arguments"]["who"]) });
            Ok(json!({ "messages": [{ "role": "user", "content": text }] }))
        }
        other => Err((METHOD_NOT_FOUND, format!("no method {other}"))),
    }
}

/// Two pages, so that a client must ask for both.
fn page(cursor: Option<&str>) -> Value {
    let tool = |name: &str, description: &str, read_only: bool| {
        json!({ "name": name, "description": description, "annotations": { "readOnlyHint": read_only },
            "inputSchema": { "type": "object", "properties": { "text": { "type": "string" } } } })
    };
    match cursor {
        None if *HAS_MORE => json!({ "nextCursor": "2", "tools": [tool("raw", "Answers like no other.", true)] }),
        None => json!({ "nextCursor": "2", "tools": [
            tool("echo", "Gives its text back.", true),
            tool("slow", "Answers after an hour.", true),
        ] }),
        Some(_) => json!({ "tools": [
            tool("crash", "Ends this server.", true),
            tool("fail", "Says that it failed.", true),
            tool("send_once", "Does something that must not happen twice.", false),
            tool("send_gated", "Does it when FILE.go is there, and leaves FILE.done.", false),
            tool("crash_once", "Ends this server the first time.", false),
            tool("long", "Answers with so many characters.", true),
            tool("picture", "Answers with an image of three times so many bytes.", true),
            tool("pictures", "Answers with so many images.", true),
            tool("file", "Answers with a file of so many bytes.", true),
            tool("odd", "Answers with a string of so many characters that is neither text nor file.", true),
            tool("heap", "Answers with so many texts of a million characters.", true),
            tool("ask", "Asks a person for a name, and says it.", false),
            tool("progress", "Says how far it is before it answers.", true),
        ] }),
    }
}

fn call(calls: &str, params: &Value) -> Answer {
    let text = params["arguments"]["text"].as_str().unwrap_or_default();
    let content =
        |text: &str, is_error: bool| Ok(json!({ "content": [{ "type": "text", "text": text }], "isError": is_error }));
    match params["name"].as_str().unwrap_or_default() {
        "echo" => content(&format!("echo: {text}"), false),
        "slow" => {
            thread::sleep(Duration::from_secs(3_600));
            content("at last", false)
        }
        "crash" => process::exit(3),
        "crash_once" if noted(calls, "crash_once") == 1 => process::exit(3),
        "crash_once" => content("the second time", false),
        "send_gated" => {
            while !Path::new(&format!("{calls}.go")).exists() {
                thread::sleep(Duration::from_millis(20));
            }
            File::create(format!("{calls}.done")).unwrap();
            content("250 accepted", false)
        }
        "long" => content(&"lorem ipsum ".repeat(number(text) / 12 + 1)[..number(text)], false),
        "picture" => Ok(json!({ "content": [
            { "type": "text", "text": "here it is" },
            { "type": "image", "mimeType": "image/png", "data": "QUJD".repeat(number(text)) },
        ] })),
        "pictures" => {
            let picture = |at: usize| json!({ "type": "image", "mimeType": "image/png", "data": format!("{at:04}") });
            Ok(json!({ "content": (0..number(text)).map(picture).collect::<Vec<_>>() }))
        }
        "odd" => Ok(json!({ "content": [], "structuredContent": { "odd": "x".repeat(number(text)) } })),
        "heap" => {
            let text_block = json!({ "type": "text", "text": "x".repeat(1_000_000) });
            Ok(json!({ "content": vec![text_block; number(text)] }))
        }
        "progress" => content("there", false),
        "fail" => content("the tool says no", true),
        "send_once" => {
            thread::sleep(Duration::from_secs(3_600));
            content("sent", false)
        }
        other => Err((INVALID_PARAMS, format!("no tool {other}"))),
    }
}

/// Asks the client for a name, and answers with what it says.
fn ask(out: &Mutex<io::Stdout>, id: &Value, question: &str) -> Answer {
    let key = format!("ask-{id}");
    let (answer, answered) = mpsc::channel();
    WAITING.lock().unwrap().insert(key.clone(), answer);
    let schema = json!({ "type": "object", "required": ["name"], "properties": { "name": { "type": "string" } } });
    let params = json!({ "message": question, "requestedSchema": schema });
    write(out, &json!({ "jsonrpc": "2.0", "id": key, "method": "elicitation/create", "params": params }));
    let said = answered.recv().map(|message| message["result"].to_string()).unwrap_or_default();
    Ok(json!({ "content": [{ "type": "text", "text": said }] }))
}

/// Says how far a call is, and something else.
fn tell(out: &Mutex<io::Stdout>, token: &Value) {
    for at in 1..=3 {
        let params = json!({ "progressToken": token, "progress": at, "total": 3, "message": format!("part {at}") });
        write(out, &json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }));
    }
    let params = json!({ "level": "warning", "data": "low on paper" });
    write(out, &json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }));
    // The client shows no more than one event a second.
    thread::sleep(Duration::from_millis(1_500));
}

fn number(text: &str) -> usize {
    text.parse().unwrap_or(1)
}

fn noted(file: &str, tool: &str) -> usize {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| line.split(' ').next() == Some(tool)).count()
}

fn note(file: &str, params: &Value) {
    let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
    writeln!(file, "{} {}", params["name"].as_str().unwrap_or("?"), params["_meta"]).unwrap();
}

/// Sends a file while it is made: an answer of any size without the memory for it.
fn send_file(out: &Mutex<io::Stdout>, id: &Value, bytes: usize) {
    let mut out = out.lock().unwrap();
    let head = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"resource","resource":{{"uri":"file:///made/big.bin","mimeType":"application/x-made","blob":""#
    );
    let mut written = out.write_all(head.as_bytes());
    for piece in made_base64(bytes) {
        written = written.and_then(|()| out.write_all(&piece));
    }
    // The client has gone when this fails, and then the next read ends this process.
    let _gone = written.and_then(|()| writeln!(out, "\"}}}}]}}}}")).and_then(|()| out.flush());
}

fn send(out: &Mutex<io::Stdout>, id: &Value, answer: Answer) {
    let message = match answer {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err((code, message)) => json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } }),
    };
    write(out, &message);
}

fn write(out: &Mutex<io::Stdout>, message: &impl std::fmt::Display) {
    let mut out = out.lock().unwrap();
    // The client has gone when this fails, and then the next read ends this process.
    let _gone = writeln!(out, "{message}").and_then(|()| out.flush());
}
