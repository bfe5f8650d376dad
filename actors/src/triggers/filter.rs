//! Conditions over the content of a resource, in CEL: `text` is the content, `json` the same where it is JSON, `uri` where it
//! is from, `window` the contents before it as far as they are kept, the oldest first.

use cel::{
    Context, IdedExpr, Value,
    common::ast::{EntryExpr, Expr},
    parser::PrattParser,
};
use serde::Serialize;

/// Nodes of a condition: what a person writes has a few dozen.
const MAX_NODES: usize = 1_000;

/// Brackets within brackets, and how deep the parser goes.
const MAX_DEPTH: u16 = 48;

/// Longest condition, in bytes: what a person writes has some hundred, and no row of signs is a deep one.
const MAX_CONDITION_BYTES: usize = 2_000;

/// Largest content whose JSON a condition sees, in bytes: what it takes to walk through it is bounded by that.
const MAX_JSON_BYTES: usize = 256 * 1024;

/// Longest text of one content that is kept in a window, in bytes.
const MAX_KEPT_BYTES: usize = 16 * 1024;

/// Most that a condition may take, in steps of a loop over what the content has, each with a look at a KiB of its text: seconds at
/// worst. Who writes the resource chooses its size, and nothing else ends a condition that was begun.
const MAX_STEPS: usize = 4_000_000;

/// A condition.
#[derive(Debug)]
pub(crate) struct Filter {
    condition: IdedExpr,
    /// How many loops (`exists`, `map`, …) lie within each other.
    loops: u32,
}

/// A content, as a condition sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sample {
    text: String,
    json: serde_json::Value,
}

impl Sample {
    pub(crate) fn new(text: &str) -> Self {
        let readable = Some(text).filter(|text| text.len() <= MAX_JSON_BYTES);
        let json = readable.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        Self { text: text.to_owned(), json }
    }

    /// What is kept of it for those that follow.
    pub(crate) fn kept(mut self) -> Self {
        if self.text.len() > MAX_KEPT_BYTES {
            let end = (0..=MAX_KEPT_BYTES).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0);
            self.text.truncate(end);
            self.json = serde_json::Value::Null;
        }
        self
    }
}

impl Filter {
    /// Reads a condition.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        if text.len() > MAX_CONDITION_BYTES || depth(text) > MAX_DEPTH.into() {
            return Err(format!(
                "filter of {} bytes: it has more than {MAX_CONDITION_BYTES} or more than {MAX_DEPTH} brackets within brackets",
                text.len()
            ));
        }
        let parser = PrattParser::new().max_expression_node_count(MAX_NODES).max_recursion_depth(MAX_DEPTH);
        let parsed = parser.parse(text).map_err(|errors| format!("filter {text:?}: {errors}"))?;
        let references = parsed.references();
        let known = ["text", "json", "uri", "window"];
        let is_bound = |name: &&str| !known.contains(name) && !is_of_a_macro(text, name);
        match references.variables().into_iter().find(is_bound) {
            Some(unknown) => Err(format!("filter {text:?}: {unknown} is not known; known: {}", known.join(", "))),
            None => Ok(Self { loops: loops(&parsed), condition: parsed }),
        }
    }

    /// Whether a content meets the condition.
    ///
    /// # Errors
    /// What keeps the condition from having a value, or when it is neither true nor false, or the content is too much for it. It may
    /// take seconds: not on a thread that others wait for.
    pub(crate) fn passes<'a>(
        &self,
        uri: &str,
        sample: &Sample,
        window: impl IntoIterator<Item = &'a Sample>,
    ) -> Result<bool, String> {
        let mut context = Context::default();
        let window: Vec<&Sample> = window.into_iter().collect();
        self.check_cost(window.iter().copied().chain([sample]))?;
        let failed = |error: &dyn std::fmt::Display| format!("filter: {error}");
        context.add_variable("text", &sample.text).map_err(|error| failed(&error))?;
        context.add_variable("json", &sample.json).map_err(|error| failed(&error))?;
        context.add_variable("uri", uri).map_err(|error| failed(&error))?;
        context.add_variable("window", &window).map_err(|error| failed(&error))?;
        let said = Value::resolve(&self.condition, &context).map_err(|error| failed(&error))?;
        let Value::Bool(passes) = said else {
            return Err(format!("filter: it is {}, and should be true or false", said.type_of()));
        };
        Ok(passes)
    }
}

impl Filter {
    fn check_cost<'a>(&self, samples: impl Iterator<Item = &'a Sample>) -> Result<(), String> {
        let (values, bytes) =
            samples.fold((1, 0), |(values, bytes), sample| (values + count(&sample.json), bytes + sample.text.len()));
        let steps = values.saturating_pow(self.loops).saturating_mul(1 + bytes / 1024);
        if self.loops > 0 && steps > MAX_STEPS {
            return Err(format!(
                "filter: too much for a condition with {} loops within each other: {values} values in {bytes} bytes are about {steps} \
                 steps of at most {MAX_STEPS}. Take a loop away, or watch a smaller resource",
                self.loops
            ));
        }
        Ok(())
    }
}

/// How many values there are in one, itself among them.
fn count(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(values) => 1 + values.iter().map(count).sum::<usize>(),
        serde_json::Value::Object(members) => 1 + members.values().map(count).sum::<usize>(),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => 1,
    }
}

/// How many loops lie within each other at most.
fn loops(condition: &IdedExpr) -> u32 {
    let most = |inner: &mut dyn Iterator<Item = &IdedExpr>| inner.map(loops).max().unwrap_or(0);
    let entries = |entries: &[cel::common::ast::IdedEntryExpr]| {
        let of = |entry: &cel::common::ast::IdedEntryExpr| match &entry.expr {
            EntryExpr::StructField(field) => loops(&field.value),
            EntryExpr::MapEntry(entry) => loops(&entry.key).max(loops(&entry.value)),
        };
        entries.iter().map(of).max().unwrap_or(0)
    };
    match &condition.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => 0,
        Expr::Call(call) => most(&mut call.target.as_deref().into_iter().chain(&call.args)),
        Expr::List(list) => most(&mut list.elements.iter()),
        Expr::Select(select) => loops(&select.operand),
        Expr::Map(map) => entries(&map.entries),
        Expr::Struct(made) => entries(&made.entries),
        Expr::Comprehension(one) => {
            let each = most(&mut [&one.accu_init, &one.loop_cond, &one.loop_step, &one.result].into_iter());
            loops(&one.iter_range).max(1 + each)
        }
    }
}

/// How many brackets lie within each other at most; those in quotes count as well.
fn depth(text: &str) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    for sign in text.chars() {
        match sign {
            '(' | '[' | '{' => {
                open += 1;
                deepest = deepest.max(open);
            }
            ')' | ']' | '}' => open = open.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Whether a name is that of an element in `all(NAME, …)` and the like.
fn is_of_a_macro(text: &str, name: &str) -> bool {
    let macros = ["all(", "exists(", "exists_one(", "map(", "filter("];
    name.starts_with('@')
        || macros.iter().any(|start| {
            text.match_indices(start).any(|(at, _)| {
                let argument = text[at + start.len()..].split(',').next().unwrap_or_default();
                argument.trim() == name
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(filter: &str, text: &str) -> Result<bool, String> {
        Filter::new(filter)?.passes("file:///a", &Sample::new(text), &[Sample::new("1"), Sample::new("2")])
    }

    #[test]
    fn a_condition_sees_text_json_uri_and_the_contents_before() {
        for (filter, text, expected) in [
            ("text.contains('urgent')", "this is urgent", true),
            ("json.size > 3 && json.state == 'open'", r#"{"size":4,"state":"open"}"#, true),
            ("has(json.missing)", r#"{"size":4}"#, false),
            ("json.items.exists(item, item.done)", r#"{"items":[{"done":false},{"done":true}]}"#, true),
            ("uri.endsWith('/a') && size(window) == 2", "x", true),
            ("window.all(one, json > one.json)", "3", true),
            ("json == null", "no JSON at all", true),
        ] {
            assert_eq!(passes(filter, text), Ok(expected), "{filter}");
        }
    }

    #[test]
    fn a_condition_that_cannot_be_read_or_has_no_value_says_why() {
        for (filter, says) in [
            ("text.contains(", "filter \"text.contains(\""),
            ("size > 3", "size is not known; known: text, json, uri, window"),
            ("text", "should be true or false"),
            ("json.missing > 3", "filter: "),
            (&format!("{}true{}", "(".repeat(49), ")".repeat(49)), "48 brackets within brackets"),
            (&"!".repeat(2_001), "more than 2000"),
        ] {
            let refused = passes(filter, "{}").unwrap_err();
            assert!(refused.contains(says), "{filter}: {refused}");
        }
    }

    #[test]
    fn a_content_that_is_too_much_for_the_loops_of_a_condition_is_refused_and_not_walked() {
        let twice = "json.items.exists(i, json.items.exists(j, j.id == i.p))";
        let items = |count: usize| {
            let items: Vec<_> = (0..count).map(|id| serde_json::json!({ "id": id, "p": count })).collect();
            serde_json::json!({ "items": items }).to_string()
        };
        assert_eq!(passes(twice, &items(20)), Ok(false));
        let refused = passes(twice, &items(11_000 / 2)).unwrap_err();
        assert!(refused.contains("2 loops within each other"), "{refused}");
        let once = "[json.items].exists(list, size(list) > 3) && json.items.all(i, i.id >= 0)";
        assert_eq!(passes(once, &items(5_500)), Ok(true), "one loop may go over all that is read");
        for (condition, expected) in [
            ("text == 'a'", 0),
            ("json.map(i, i.filter(j, j > 0)).exists(k, size(k) > 0)", 2),
            ("{'a': [json.all(i, true)]}['a'][0] ? has(json.b) : false", 1),
            ("window.exists(w, w.json.all(i, json.exists(j, i == j)))", 3),
        ] {
            assert_eq!(Filter::new(condition).unwrap().loops, expected, "{condition}");
        }
    }

    #[test]
    fn what_is_kept_of_a_large_content_is_bounded() {
        let kept = Sample::new(&"ä".repeat(20_000)).kept();
        assert!(kept.text.len() <= MAX_KEPT_BYTES && kept.text.chars().all(|c| c == 'ä'));
    }
}
