//! An agent that speaks A2E by hand, over both transports: it shares no code with the host under test.

use futures::{StreamExt as _, stream::BoxStream};
use serde_json::{Value, json};
use std::{
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};
use towline_tests::{http_client, towline};

/// Longer than anything takes here: machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

static NEXT: AtomicU64 = AtomicU64::new(1);

enum Transport {
    Http { url: String, bearer: Option<String>, session: String, stream: Box<Stream> },
    Stdio { child: Child, stdin: ChildStdin, lines: Box<Lines<BufReader<ChildStdout>>> },
}

/// An agent with a session.
pub struct Agent {
    transport: Transport,
    /// What came and was not looked for yet.
    aside: Vec<Value>,
}

/// Sends a request to the host of a node, with what an agent shows.
pub async fn post(url: &str, path: &str, headers: &[(&str, &str)], body: String) -> reqwest::Response {
    let mut request = http_client().post(format!("{url}/a2e/{path}")).timeout(PATIENCE).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

fn shown(bearer: Option<&str>) -> Vec<(&'static str, String)> {
    bearer.map(|bearer| ("authorization", format!("Bearer {bearer}"))).into_iter().collect()
}

/// The events of a stream.
pub struct Stream {
    bytes: BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
    text: String,
    /// The id of the last event.
    pub last: Option<String>,
}

impl Stream {
    pub async fn open(url: &str, session: &str, bearer: Option<&str>, last: Option<&str>) -> Self {
        let mut request = http_client().get(format!("{url}/a2e/stream")).header("x-session-id", session);
        request = request.header("accept", "text/event-stream");
        for (name, value) in shown(bearer) {
            request = request.header(name, value);
        }
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        Self { bytes: answer.bytes_stream().boxed(), text: String::new(), last: None }
    }

    /// The next message; none at the end.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                let of = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                if let Some(id) = of("id:") {
                    self.last = Some(id.to_owned());
                }
                if let Some(data) = of("data:") {
                    return Some(serde_json::from_str(data).unwrap());
                }
            }
            let chunk = tokio::time::timeout(PATIENCE, self.bytes.next()).await.expect("something comes");
            self.text.push_str(&String::from_utf8_lossy(&chunk?.ok()?));
        }
    }
}

impl Agent {
    /// Over HTTP; with a token where callers have to sign in. The handshake goes before the stream, as the published SDK does it.
    pub async fn over_http(url: &str, bearer: Option<&str>) -> Self {
        let headers = shown(bearer);
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let begun = post(url, "session", &headers, String::new()).await;
        assert_eq!(begun.status().as_u16(), 200);
        let session = begun.json::<Value>().await.unwrap()["session_id"].as_str().unwrap().to_owned();
        let message = handshake();
        let headers = [headers, vec![("x-session-id", &*session), ("content-type", "text/plain")]].concat();
        assert_eq!(post(url, "send", &headers, message.to_string()).await.status().as_u16(), 202);
        let stream = Box::new(Stream::open(url, &session, bearer, None).await);
        let bearer = bearer.map(str::to_owned);
        let transport = Transport::Http { url: url.to_owned(), bearer, session: session.clone(), stream };
        Self { transport, aside: Vec::new() }.agreed(&message, Some(&session)).await
    }

    /// Over standard input and output of `towline a2e`.
    pub async fn over_stdio(url: &str) -> Self {
        let mut command = Command::new(towline());
        command.args(["a2e", "--server", url]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        command.env("TOWLINE_CONFIG_DIR", std::env::temp_dir().join("towline-no-config"));
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = Box::new(BufReader::new(child.stdout.take().unwrap()).lines());
        let mut agent = Self { transport: Transport::Stdio { child, stdin, lines }, aside: Vec::new() };
        let message = handshake();
        agent.say(&message).await;
        agent.agreed(&message, None).await
    }

    async fn agreed(mut self, asked: &Value, session: Option<&str>) -> Self {
        let agreed = self.answer_to(asked).await;
        assert_eq!((&agreed["type"], &agreed["ok"]), (&json!("handshake/resp"), &json!(true)), "{agreed}");
        assert_eq!(agreed["accepted_caps"][0], json!({ "capability": "mcp", "enabled": true, "metadata": {} }));
        assert!(session.is_none_or(|session| agreed["session_id"] == session), "{agreed}");
        assert!(agreed["max_parallel"].as_u64() >= Some(4) && agreed["reason"] == "", "{agreed}");
        self
    }

    /// The session, over HTTP.
    pub fn session(&self) -> &str {
        let Transport::Http { session, .. } = &self.transport else { panic!("only over HTTP") };
        session
    }

    /// The id of the last event that was read, over HTTP.
    pub fn last(&self) -> Option<String> {
        let Transport::Http { stream, .. } = &self.transport else { panic!("only over HTTP") };
        stream.last.clone()
    }

    pub async fn say(&mut self, message: &Value) {
        match &mut self.transport {
            Transport::Http { url, bearer, session, .. } => {
                let shown = shown(bearer.as_deref());
                let mut headers: Vec<(&str, &str)> =
                    shown.iter().map(|(name, value)| (*name, value.as_str())).collect();
                headers.extend([("x-session-id", session.as_str()), ("content-type", "text/plain")]);
                let sent = post(url, "send", &headers, message.to_string()).await;
                assert_eq!(sent.status().as_u16(), 202, "{message}");
            }
            Transport::Stdio { stdin, .. } => stdin.write_all(format!("{message}\n").as_bytes()).await.unwrap(),
        }
    }

    async fn hear(&mut self) -> Value {
        match &mut self.transport {
            Transport::Http { stream, .. } => stream.next().await.expect("the stream is open"),
            Transport::Stdio { lines, .. } => {
                let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap();
                serde_json::from_str(&line.expect("it goes on")).unwrap()
            }
        }
    }

    /// The first message that fits.
    pub async fn wait_for(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.aside.iter().position(&fits) {
            return self.aside.remove(at);
        }
        loop {
            let heard = self.hear().await;
            if fits(&heard) {
                return heard;
            }
            self.aside.push(heard);
        }
    }

    async fn answer_to(&mut self, asked: &Value) -> Value {
        let id = asked["id"].clone();
        let answer = self.wait_for(|heard| heard["req_id"] == id && heard["type"] != "tool/event").await;
        assert!(answer["id"].is_string() && answer["ts"].is_f64() && answer["version"] == "1.0", "{answer}");
        answer
    }

    /// Asks, and waits for the answer.
    pub async fn ask(&mut self, kind: &str, fields: Value) -> Value {
        let message = message(kind, fields);
        self.say(&message).await;
        self.answer_to(&message).await
    }

    /// Calls a tool; the result of it.
    pub async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tool/call/req", json!({ "tool_name": tool, "arguments": arguments })).await;
        assert_eq!(answer["type"], "tool/call/resp", "{answer}");
        answer["data"].clone()
    }

    /// The next push of this method.
    pub async fn pushed(&mut self, method: &str) -> Value {
        self.wait_for(|heard| heard["type"] == "mcp/server/push" && heard["method"] == method).await
    }

    /// Takes its leave; over standard input and output the process ends well.
    pub async fn leave(mut self) {
        self.say(&message("shutdown", json!({ "timeout": 1 }))).await;
        match self.transport {
            Transport::Http { mut stream, .. } => while stream.next().await.is_some() {},
            Transport::Stdio { mut child, stdin, .. } => {
                drop(stdin);
                let ended = tokio::time::timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap();
                assert_eq!(ended.code(), Some(0));
            }
        }
    }
}

/// A message of an agent.
pub fn message(kind: &str, fields: Value) -> Value {
    let id = format!("m{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let mut message = json!({ "id": id, "ts": 1.5, "type": kind, "version": "1.0" });
    message.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
    message
}

fn handshake() -> Value {
    message("handshake/req", json!({ "agent_caps": ["mcp", "tools"], "agent_id": "tester", "auth_token": "" }))
}
