//! A trace as text: one line per span, indented below its parent, with node, start and duration.
//!
//! ```text
//! SPAN                                    NODE  START      DURATION
//! towline send                            cli   +0 ms      2.31 s    ▕██████████▏
//! └ SendMessage [client]                  cli   +1 ms      2.30 s
//!   └ POST /agents/{name} [server]        a     +3 ms      2.29 s
//!     └ invoke_agent surveyor             b     +12 ms     1.02 s    ✗ node_lost
//! ```
//! A span whose parent nobody has (the caller's own, or one that ended on a node that is gone) starts a tree of its own,
//! and says so.

use std::collections::{BTreeMap, BTreeSet};

use towline_trace::{Kind, SpanRecord, names};

/// Renders the spans of one trace; the order in which they are given does not matter.
pub fn render(spans: &[SpanRecord]) -> String {
    let spans = unique(spans);
    let Some(origin) = spans.iter().map(|span| span.start_us).min() else {
        return "no spans: the trace is not sampled, or too old to be in any node's memory\n".to_owned();
    };
    let rows: Vec<Row> = lines(&spans).into_iter().map(|line| row(&line, origin)).collect();
    table(&rows)
}

/// The spans without those of the Raft log, which are most of a trace.
pub(crate) fn without_raft(spans: &[SpanRecord]) -> Vec<SpanRecord> {
    let is_raft =
        |span: &&SpanRecord| span.name.starts_with(names::span::RAFT_PROPOSE) || span.name == names::span::PEER_PROPOSE;
    spans.iter().filter(|span| !is_raft(span)).cloned().collect()
}

struct Line<'a> {
    span: &'a SpanRecord,
    /// Branches to the left of the name.
    indent: String,
    /// It names a parent that is not among the spans.
    is_orphan: bool,
}

struct Row {
    name: String,
    node: String,
    start: String,
    duration: String,
    note: String,
}

/// One record per span id. A node that was taken for dead may have reported a span that its adopter reported too: what
/// the owner itself says wins.
fn unique(spans: &[SpanRecord]) -> Vec<&SpanRecord> {
    let mut by_id: BTreeMap<&str, &SpanRecord> = BTreeMap::new();
    for span in spans {
        let known = by_id.entry(&span.span_id).or_insert(span);
        if is_recovered(known) && !is_recovered(span) {
            *known = span;
        }
    }
    by_id.into_values().collect()
}

fn is_recovered(span: &SpanRecord) -> bool {
    span.attributes.get(names::SPAN_RECOVERED).is_some_and(|value| value == true)
}

/// The spans in the order of a walk through the tree, children by their start.
fn lines<'a>(spans: &[&'a SpanRecord]) -> Vec<Line<'a>> {
    let ids: BTreeSet<&str> = spans.iter().map(|span| span.span_id.as_str()).collect();
    let mut children: BTreeMap<Option<&str>, Vec<&SpanRecord>> = BTreeMap::new();
    for span in spans.iter().copied() {
        let parent = span.parent_span_id.as_deref().filter(|parent| ids.contains(parent) && *parent != span.span_id);
        children.entry(parent).or_default().push(span);
    }
    for group in children.values_mut() {
        group.sort_by(|a, b| (a.start_us, side(a), &a.span_id).cmp(&(b.start_us, side(b), &b.span_id)));
    }
    let mut lines = Vec::with_capacity(spans.len());
    // An explicit stack: a trace may be deeper than a thread's stack allows.
    let mut stack: Vec<Line<'a>> = roots(&children);
    let mut seen = BTreeSet::new();
    while let Some(line) = stack.pop() {
        if !seen.insert(line.span.span_id.as_str()) {
            continue;
        }
        let below = children.get(&Some(line.span.span_id.as_str())).map(Vec::as_slice).unwrap_or_default();
        stack.extend(below.iter().enumerate().rev().map(|(at, span)| {
            let last = at + 1 == below.len();
            Line { span, indent: indent_below(&line.indent, last), is_orphan: false }
        }));
        lines.push(line);
    }
    lines
}

fn roots<'a>(children: &BTreeMap<Option<&str>, Vec<&'a SpanRecord>>) -> Vec<Line<'a>> {
    let roots = children.get(&None).map(Vec::as_slice).unwrap_or_default();
    let line = |span: &&'a SpanRecord| Line { span, indent: String::new(), is_orphan: span.parent_span_id.is_some() };
    roots.iter().rev().map(line).collect()
}

fn side(span: &SpanRecord) -> u8 {
    match span.kind {
        Kind::Client => 0,
        Kind::Server => 1,
        Kind::Internal => 2,
    }
}

fn indent_below(parent: &str, last: bool) -> String {
    let carried = parent.replace("├ ", "│ ").replace("└ ", "  ");
    format!("{carried}{}", if last { "└ " } else { "├ " })
}

fn row(line: &Line<'_>, origin: u64) -> Row {
    let span = line.span;
    let side = match span.kind {
        Kind::Client => " [client]",
        Kind::Server => " [server]",
        Kind::Internal => "",
    };
    Row {
        name: format!("{}{}{side}", line.indent, span.name),
        node: span.node.clone(),
        start: format!("+{}", duration(span.start_us - origin)),
        duration: duration(span.end_us.saturating_sub(span.start_us)),
        note: note(span, line.is_orphan),
    }
}

/// The error mark, and what else a reader wants to know of a span.
fn note(span: &SpanRecord, is_orphan: bool) -> String {
    let mut notes = Vec::new();
    if is_orphan {
        notes.push("(parent elsewhere)".to_owned());
    }
    if let Some(message) = &span.error {
        let kind = span.attributes.get(names::ERROR_TYPE).and_then(|value| value.as_str()).unwrap_or(message);
        notes.push(format!("✗ {}", one_line(kind)));
    }
    if is_recovered(span) {
        let node = span.attributes.get(names::SPAN_LOST_NODE).map(plain);
        notes.push(node.map_or("(reported by the adopter)".to_owned(), |node| format!("(ran on node {node})")));
    }
    for link in &span.links {
        if let Some(kind) = link.attributes.get(names::LINK_KIND).and_then(|kind| kind.as_str()) {
            notes.push(format!("↪ {kind} {}", link.span_id));
        }
    }
    notes.join(" ")
}

fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect()
}

/// A length of time for people: three digits or so, with its unit.
fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        10_000..1_000_000 => format!("{} ms", us / 1_000),
        1_000_000..60_000_000 => format!("{}.{:02} s", us / 1_000_000, us % 1_000_000 / 10_000),
        _ => format!("{} min {} s", us / 60_000_000, us % 60_000_000 / 1_000_000),
    }
}

fn table(rows: &[Row]) -> String {
    let width = |column: fn(&Row) -> &str, title: &str| {
        rows.iter().map(|row| column(row).chars().count()).chain([title.len()]).max().unwrap_or(0)
    };
    let name = width(|row| &row.name, "SPAN");
    let node = width(|row| &row.node, "NODE");
    let start = width(|row| &row.start, "START");
    let took = width(|row| &row.duration, "DURATION");
    let mut text = format!("{:name$}  {:node$}  {:>start$}  {:>took$}\n", "SPAN", "NODE", "START", "DURATION");
    for row in rows {
        let line = format!(
            "{:name$}  {:node$}  {:>start$}  {:>took$}  {}",
            row.name, row.node, row.start, row.duration, row.note
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: &str, parent: Option<&str>, name: &str, node: &str, start_us: u64, end_us: u64) -> SpanRecord {
        SpanRecord {
            trace_id: "t".into(),
            span_id: id.into(),
            parent_span_id: parent.map(str::to_owned),
            name: name.into(),
            kind: Kind::Internal,
            service: "towline".into(),
            node: node.into(),
            start_us,
            end_us,
            attributes: BTreeMap::new(),
            links: vec![],
            events: vec![],
            error: None,
        }
    }

    #[test]
    fn children_stand_below_their_parent_in_the_order_of_their_start() {
        let spans = [
            span("4", Some("2"), "chat scripted-1", "b", 30_000, 40_000),
            span("3", Some("1"), "late", "a", 90_000, 91_500),
            span("2", Some("1"), "invoke_agent reader", "b", 20_000, 80_000),
            span("1", None, "towline send", "cli", 0, 2_340_000),
        ];
        let text = render(&spans);
        assert_eq!(
            text,
            "SPAN                   NODE   START  DURATION\n\
             towline send           cli    +0 µs    2.34 s\n\
             ├ invoke_agent reader  b     +20 ms     60 ms\n\
             │ └ chat scripted-1    b     +30 ms     10 ms\n\
             └ late                 a     +90 ms    1.5 ms\n"
        );
    }

    #[test]
    fn a_span_without_its_parent_starts_a_tree_of_its_own() {
        let text = render(&[span("2", Some("gone"), "orphan", "a", 5, 6), span("1", None, "root", "a", 0, 9)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("root"), "{text}");
        assert!(lines[2].starts_with("orphan") && lines[2].ends_with("(parent elsewhere)"), "{text}");
    }

    #[test]
    fn a_failed_and_recovered_span_is_marked() {
        let mut lost = span("1", None, "invoke_agent surveyor", "b", 0, 1_000);
        lost.error = Some("the node that ran it is gone".into());
        lost.attributes.insert(names::ERROR_TYPE.into(), "node_lost".into());
        lost.attributes.insert(names::SPAN_RECOVERED.into(), true.into());
        lost.attributes.insert(names::SPAN_LOST_NODE.into(), 3.into());
        let text = render(&[lost]);
        assert!(text.contains("✗ node_lost (ran on node 3)"), "{text}");
    }

    #[test]
    fn what_the_owner_says_of_a_span_wins_over_what_was_reported_for_it() {
        let mut reported = span("1", None, "turn", "adopter", 0, 5_000);
        reported.attributes.insert(names::SPAN_RECOVERED.into(), true.into());
        let own = span("1", None, "turn", "owner", 0, 4_000);
        for spans in [[reported.clone(), own.clone()], [own, reported]] {
            let text = render(&spans);
            assert_eq!(text.lines().count(), 2, "{text}");
            assert!(text.contains("owner"), "{text}");
        }
    }

    #[test]
    fn spans_that_name_each_other_as_parent_do_not_hang() {
        let text = render(&[span("1", Some("2"), "x", "a", 0, 1), span("2", Some("1"), "y", "a", 0, 1)]);
        assert!(text.starts_with("SPAN"));
    }

    #[test]
    fn no_span_is_said_in_words() {
        assert!(render(&[]).starts_with("no spans"));
    }
}
