//! How a line of the log looks: for a person at a terminal, or as one JSON object. Nothing that looks like a secret is in either.
//!
//! A line has the fields of the spans that it is written in, those of a task (`task`, `trace_id`) above all, beside its own.

use std::{fmt, io::Write};

use serde_json::{Map, Value, json};
use towline_trace::{is_secret_name, redacted};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    fmt::MakeWriter,
    layer::{Context, Layer},
    registry::LookupSpan,
};

/// Stands where a secret stood.
const REDACTED: &str = "[redacted]";
/// What a line says, as a field.
const MESSAGE: &str = "message";
/// What people who call are named by: an audit that hid who it was would be none.
const WHO: &str = "principal";
/// The only lines that are about who.
const AUDIT: &str = "audit";

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Time, level, target, message, and the fields behind it.
    Text,
    /// One JSON object.
    Json,
}

/// Writes each event as a line.
pub(super) struct Lines<W> {
    look: Look,
    writer: W,
}

impl<W> Lines<W> {
    pub(super) fn new(look: Look, writer: W) -> Self {
        Self { look, writer }
    }
}

/// The fields of an event or a span, in their order.
#[derive(Debug, Default)]
struct Fields {
    /// Whether names of people stay.
    tells_who: bool,
    fields: Vec<(&'static str, Said)>,
}

#[derive(Debug)]
enum Said {
    /// A value of Rust's formatting, or of a number.
    Plain(String),
    /// A text.
    Text(String),
    Other(Value),
}

impl Fields {
    fn of(metadata: &Metadata<'_>) -> Self {
        Self { tells_who: metadata.target() == AUDIT, fields: Vec::new() }
    }

    fn put(&mut self, field: &Field, said: Said) {
        let is_who = self.tells_who && field.name() == WHO;
        let hidden = is_secret_name(field.name());
        let clean = |text: String| match (hidden, is_who) {
            (true, _) => REDACTED.to_owned(),
            (false, true) => text,
            (false, false) => redacted(&text),
        };
        let said = match said {
            Said::Plain(text) => Said::Plain(clean(text)),
            Said::Text(text) => Said::Text(clean(text)),
            other @ Said::Other(_) => other,
        };
        match self.fields.iter_mut().find(|(name, _)| *name == field.name()) {
            Some((_, old)) => *old = said,
            None => self.fields.push((field.name(), said)),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(field, _)| *field == name)
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, Said::Plain(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Said::Text(value.to_owned()));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, Said::Plain(value.to_string()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Said::Other(value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Said::Other(value.into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, Said::Other(value.into()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Said::Other(value.into()));
    }
}

impl<S, W> Layer<S> for Lines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::of(attributes.metadata());
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::of(event.metadata());
        event.record(&mut fields);
        for span in context.event_scope(event).into_iter().flatten() {
            let extensions = span.extensions();
            let Some(around) = extensions.get::<Fields>() else { continue };
            // What the event says itself is nearer than what is around it.
            let more =
                around.fields.iter().filter(|(name, _)| !fields.has(name)).map(|(name, said)| (*name, said.again()));
            let more: Vec<_> = more.collect();
            fields.fields.extend(more);
        }
        let now = jiff::Timestamp::now();
        let line = match self.look {
            Look::Text => text(now, event.metadata(), &fields),
            Look::Json => as_json(now, event.metadata(), &fields),
        };
        // There is nowhere to say that the log cannot be written.
        let _ = self.writer.make_writer_for(event.metadata()).write_all(line.as_bytes());
    }
}

impl Said {
    fn again(&self) -> Said {
        match self {
            Said::Plain(text) => Said::Plain(text.clone()),
            Said::Text(text) => Said::Text(text.clone()),
            Said::Other(value) => Said::Other(value.clone()),
        }
    }
}

fn text(now: jiff::Timestamp, metadata: &Metadata<'_>, fields: &Fields) -> String {
    let mut line = format!("{now:.6} {:>5} {}:", metadata.level(), metadata.target());
    for (name, said) in &fields.fields {
        let shown = match said {
            Said::Text(text) if *name != MESSAGE => format!("{text:?}"),
            Said::Plain(text) | Said::Text(text) => without_control(text),
            Said::Other(value) => value.to_string(),
        };
        line.push(' ');
        if *name != MESSAGE {
            line.push_str(name);
            line.push('=');
        }
        line.push_str(&shown);
    }
    line.push('\n');
    line
}

/// What is said cannot begin a line of its own, nor colour the terminal.
fn without_control(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_owned();
    }
    text.chars().map(|char| if char.is_control() { char.escape_default().to_string() } else { char.into() }).collect()
}

fn as_json(now: jiff::Timestamp, metadata: &Metadata<'_>, fields: &Fields) -> String {
    let said = fields.fields.iter().map(|(name, said)| {
        let value = match said {
            Said::Plain(text) | Said::Text(text) => text.as_str().into(),
            Said::Other(value) => value.clone(),
        };
        ((*name).to_owned(), value)
    });
    let fields: Map<String, Value> = said.collect();
    let level = metadata.level().as_str();
    let mut line = json!({
        "timestamp": format!("{now:.6}"),
        "level": level,
        "fields": fields,
        "target": metadata.target(),
    })
    .to_string();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lines(look: Look, say: impl FnOnce()) -> String {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::registry().with(Lines::new(look, move || writer.clone()));
        tracing::subscriber::with_default(subscriber, say);
        String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_line_of_a_task_names_it_and_its_trace_whoever_writes_it() {
        let said = lines(Look::Json, || {
            let span = tracing::error_span!("task", task = "0198", trace_id = "abc");
            let _entered = span.enter();
            tracing::info!(number = 3, task = "0200", "goes on");
        });
        let line: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(line["fields"], json!({ "message": "goes on", "number": 3, "task": "0200", "trace_id": "abc" }));
        assert_eq!(line["level"], "INFO");
    }

    #[test]
    fn what_looks_like_a_secret_is_not_written_wherever_it_stands() {
        for look in [Look::Text, Look::Json] {
            let said = lines(look, || {
                let span = tracing::error_span!("call", api_key = "s3cr3t-1");
                let _entered = span.enter();
                tracing::warn!(why = "status 401 to Bearer s3cr3ts3cr3t", "sent password=s3cr3t to ada@s3cr3t.org");
                tracing::warn!(error = %std::io::Error::other("key sk-s3cr3ts3cr3ts3cr3t"), "refused");
                tracing::warn!(session_token = ?Some("s3cr3t"), "refused");
            });
            assert!(!said.contains("s3cr3t") && said.matches(REDACTED).count() >= 5, "{said}");
            assert_eq!(said.lines().count(), 3);
        }
    }

    #[test]
    fn an_audit_names_who_it_was() {
        let said =
            lines(Look::Text, || tracing::info!(target: "audit", op = "task.get", principal = "ada@example.org"));
        assert!(said.contains("op=\"task.get\" principal=\"ada@example.org\""), "{said}");
    }

    #[test]
    fn a_value_begins_no_line_of_its_own() {
        let said = lines(Look::Text, || tracing::info!(why = %"a\nERROR b\u{1b}[31m", "c\nd"));
        assert_eq!(said.lines().count(), 1, "{said:?}");
        assert!(!said.contains('\u{1b}'));
    }
}
