//! What a span tells the instruments when it ends, sampled or not.
//!
//! Nobody measures beside a span what the span measures already: its name and its side of the hop say which instrument it is
//! of, and the attributes that are labels there are noted on their way to it.

use std::time::{Duration, Instant, SystemTime};

use opentelemetry::Value;

use crate::{
    Kind,
    metrics::{Instrument, instruments as on},
    names,
};

/// Methods of MCP that are named; a client can invent others.
const MCP_METHODS: [&str; 21] = [
    "initialize",
    "ping",
    "server/discover",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "resources/subscribe",
    "resources/unsubscribe",
    "subscriptions/listen",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tasks/cancel",
    "notifications/initialized",
    "notifications/cancelled",
];
/// Stands for the others.
const OTHER_METHOD: &str = "_OTHER";

/// The attributes that are labels somewhere.
const NOTED: [&str; 7] = [
    names::ERROR_TYPE,
    names::GEN_AI_AGENT_NAME,
    names::GEN_AI_REQUEST_MODEL,
    names::GEN_AI_PROVIDER_NAME,
    names::MCP_METHOD_NAME,
    names::MCP_SERVER,
    names::A2A_METHOD_NAME,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Turn,
    Model,
    Tool,
    Push,
    Stream,
    AskedOver(&'static str),
    /// A request to this node: what it is of, its attributes say.
    Served,
}

/// A span that is measured.
#[derive(Debug)]
pub(crate) struct Measured {
    what: What,
    began: Instant,
    noted: [String; NOTED.len()],
    tokens: [Option<u64>; 2],
    retried: bool,
}

impl Measured {
    /// For a span that begins, if its kind is measured.
    pub(crate) fn of(name: &str, kind: Kind, since: Option<SystemTime>) -> Option<Box<Self>> {
        let what = what(name, kind)?;
        let ago = since.and_then(|since| since.elapsed().ok()).unwrap_or(Duration::ZERO);
        let now = Instant::now();
        let began = now.checked_sub(ago).unwrap_or(now);
        if what == What::Stream {
            on::A2A_STREAMS.one(&[]);
        }
        let noted = Default::default();
        Some(Box::new(Self { what, began, noted, tokens: [None; 2], retried: false }))
    }

    pub(crate) fn note(&mut self, key: &str, value: &Value) {
        if let Some(at) = NOTED.iter().position(|noted| *noted == key) {
            self.noted[at] = value.as_str().into_owned();
            return;
        }
        let Value::I64(number) = value else { return };
        let number = u64::try_from(*number).unwrap_or_default();
        match key {
            names::GEN_AI_USAGE_INPUT_TOKENS => self.tokens[0] = Some(number),
            names::GEN_AI_USAGE_OUTPUT_TOKENS => self.tokens[1] = Some(number),
            names::MAILBOX_WAIT_MS => {
                let waited = Duration::from_millis(number).as_secs_f64();
                on::QUEUE_WAIT.add(waited, &[self.get(names::GEN_AI_AGENT_NAME)]);
            }
            names::MODEL_RETRY_DELAY_MS => self.retried = true,
            _ => {}
        }
    }

    pub(crate) fn failed(&mut self, error_type: &str) {
        error_type.clone_into(&mut self.noted[0]);
    }

    fn get(&self, key: &str) -> &str {
        NOTED.iter().position(|noted| *noted == key).map_or("", |at| self.noted[at].as_str())
    }

    pub(crate) fn end(&self) {
        let took = |instrument: &Instrument, labels: &[&str]| {
            let mut values: Vec<&str> = labels.iter().map(|label| self.get(label)).collect();
            values.push(self.get(names::ERROR_TYPE));
            instrument.add(self.began.elapsed().as_secs_f64(), &values);
        };
        match self.what {
            What::Turn => took(&on::TURN_DURATION, &[names::GEN_AI_AGENT_NAME]),
            What::Model => self.end_model(),
            What::Tool => took(&on::MCP_CLIENT_DURATION, &[names::MCP_METHOD_NAME, names::MCP_SERVER]),
            What::Push => took(&on::PUSH_DURATION, &[]),
            What::Stream => on::A2A_STREAMS.add(-1.0, &[]),
            What::AskedOver(method) => {
                let labels = [method, self.get(names::ERROR_TYPE)];
                on::A2A_CLIENT_DURATION.add(self.began.elapsed().as_secs_f64(), &labels);
            }
            What::Served if !self.get(names::A2A_METHOD_NAME).is_empty() => {
                took(&on::A2A_SERVER_DURATION, &[names::A2A_METHOD_NAME]);
            }
            What::Served if !self.get(names::MCP_METHOD_NAME).is_empty() => {
                let method = self.get(names::MCP_METHOD_NAME);
                let method = MCP_METHODS.iter().find(|known| **known == method).copied().unwrap_or(OTHER_METHOD);
                let labels = [method, self.get(names::ERROR_TYPE)];
                on::MCP_SERVER_DURATION.add(self.began.elapsed().as_secs_f64(), &labels);
            }
            What::Served => {}
        }
    }

    fn end_model(&self) {
        let [model, provider] = [self.get(names::GEN_AI_REQUEST_MODEL), self.get(names::GEN_AI_PROVIDER_NAME)];
        if self.retried {
            return on::MODEL_RETRIES.one(&[model, self.get(names::ERROR_TYPE)]);
        }
        on::MODEL_DURATION.add(self.began.elapsed().as_secs_f64(), &[model, provider, self.get(names::ERROR_TYPE)]);
        for (tokens, kind) in self.tokens.iter().zip(["input", "output"]) {
            if let Some(tokens) = tokens {
                on::MODEL_TOKENS.add(*tokens as f64, &[model, provider, kind]);
            }
        }
    }
}

fn what(name: &str, kind: Kind) -> Option<What> {
    let first = name.split(' ').next().unwrap_or_default();
    match (kind, first) {
        (Kind::Server, _) => Some(What::Served),
        (Kind::Internal, names::span::INVOKE_AGENT) => Some(What::Turn),
        (Kind::Internal, names::span::STREAM) => Some(What::Stream),
        (Kind::Client | Kind::Internal, names::span::CHAT) => Some(What::Model),
        (Kind::Client, names::span::TOOLS_CALL) => Some(What::Tool),
        (Kind::Client, _) if name == names::span::PUSH => Some(What::Push),
        (Kind::Client, method) => {
            let asked = [
                names::span::SEND_MESSAGE,
                names::span::SEND_STREAMING_MESSAGE,
                names::span::GET_TASK,
                names::span::CANCEL_TASK,
                names::span::SUBSCRIBE_TO_TASK,
            ];
            asked.into_iter().find(|asked| *asked == method).map(What::AskedOver)
        }
        (Kind::Internal, _) => None,
    }
}
