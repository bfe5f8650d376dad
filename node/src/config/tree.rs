//! A configuration as a tree whose every value knows where it was written: the file, then what the environment and the
//! command line put over it.

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};

use super::mistakes::{Mistake, Origin};

/// Deepest nesting of a file; ours needs six.
const MAX_DEPTH: usize = 32;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Tree>),
    Map(Vec<Entry>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tree {
    pub value: Value,
    pub at: Origin,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub key: String,
    pub at: Origin,
    pub value: Tree,
}

impl Tree {
    /// Reads a YAML document. Text that is no YAML is one mistake.
    pub(crate) fn parse(text: &str) -> Result<Tree, Mistake> {
        let documents = MarkedYaml::load_from_str(text).map_err(|error| {
            let at = Origin::File { line: error.marker().line(), column: error.marker().col() + 1 };
            Mistake { at, path: String::new(), message: format!("not valid YAML: {}", error.info()) }
        })?;
        let start = Origin::File { line: 1, column: 1 };
        if documents.len() > 1 {
            let message = "has more than one document: one file is one node".to_owned();
            return Err(Mistake { at: origin(&documents[1]), path: String::new(), message });
        }
        match documents.into_iter().next() {
            Some(document) => convert(&document, 0),
            None => Ok(Tree { value: Value::Map(Vec::new()), at: start }),
        }
    }

    /// Puts `text` at `path` (names of keys, or numbers of list entries that exist).
    pub(crate) fn set(&mut self, path: &[String], text: &str, at: &Origin) -> Result<(), String> {
        let Some((first, rest)) = path.split_first() else {
            *self = from_outside(text, at)?;
            return Ok(());
        };
        if self.value == Value::Null {
            self.value = Value::Map(Vec::new());
        }
        match &mut self.value {
            Value::Map(entries) => entry(entries, first, at).value.set(rest, text, at),
            Value::List(items) => {
                let many = items.len();
                let number = first.parse::<usize>().ok().filter(|number| *number < many);
                let item = number.ok_or_else(|| format!("{first:?} is no entry of a list of {many}"))?;
                items[item].set(rest, text, at)
            }
            Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) | Value::Null => {
                Err(format!("{first:?} is below a value that has nothing below it"))
            }
        }
    }

    /// What kind of value it is, in words.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Int(_) | Value::Float(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

fn entry<'a>(entries: &'a mut Vec<Entry>, key: &str, at: &Origin) -> &'a mut Entry {
    // Environment variables cannot spell every key: `_` stands for `-` where only that is known.
    let known = entries.iter().position(|entry| entry.key == key || entry.key.replace('-', "_") == key);
    let index = known.unwrap_or_else(|| {
        let value = Tree { value: Value::Null, at: at.clone() };
        entries.push(Entry { key: key.to_owned(), at: at.clone(), value });
        entries.len() - 1
    });
    &mut entries[index]
}

/// A value from the environment or the command line: a flow list or mapping if it looks like one, else text. Readers of
/// numbers and booleans take such text as well.
fn from_outside(text: &str, at: &Origin) -> Result<Tree, String> {
    let mut tree = if text.starts_with(['[', '{']) {
        Tree::parse(text).map_err(|mistake| mistake.message)?
    } else {
        Tree { value: Value::Text(text.to_owned()), at: at.clone() }
    };
    move_to(&mut tree, at);
    Ok(tree)
}

fn move_to(tree: &mut Tree, at: &Origin) {
    tree.at = at.clone();
    match &mut tree.value {
        Value::List(items) => items.iter_mut().for_each(|item| move_to(item, at)),
        Value::Map(entries) => entries.iter_mut().for_each(|entry| {
            entry.at = at.clone();
            move_to(&mut entry.value, at);
        }),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => {}
    }
}

fn origin(node: &MarkedYaml<'_>) -> Origin {
    Origin::File { line: node.span.start.line(), column: node.span.start.col() + 1 }
}

fn convert(node: &MarkedYaml<'_>, depth: usize) -> Result<Tree, Mistake> {
    let at = origin(node);
    let refuse = |message: &str| Err(Mistake { at: origin(node), path: String::new(), message: message.to_owned() });
    if depth > MAX_DEPTH {
        return refuse("is nested too deeply");
    }
    let value = match &node.data {
        YamlData::Value(scalar) => convert_scalar(scalar),
        YamlData::Sequence(items) => {
            Value::List(items.iter().map(|item| convert(item, depth + 1)).collect::<Result<_, _>>()?)
        }
        YamlData::Mapping(pairs) => {
            Value::Map(pairs.iter().map(|(key, value)| convert_pair(key, value, depth)).collect::<Result<_, _>>()?)
        }
        YamlData::Tagged(_, _) => return refuse("has a YAML tag: write the plain value"),
        YamlData::Alias(_) => return refuse("refers to an anchor that is not there"),
        YamlData::Representation(..) | YamlData::BadValue => return refuse("is no value that YAML defines"),
    };
    Ok(Tree { value, at })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "whatever else YAML has is no name")]
fn convert_pair(key: &MarkedYaml<'_>, value: &MarkedYaml<'_>, depth: usize) -> Result<Entry, Mistake> {
    let name = match &key.data {
        YamlData::Value(Scalar::String(name)) => name.to_string(),
        YamlData::Value(Scalar::Integer(number)) => number.to_string(),
        YamlData::Value(Scalar::Boolean(value)) => value.to_string(),
        _ => {
            let message = "is no text, and so no name of a setting".to_owned();
            return Err(Mistake { at: origin(key), path: String::new(), message });
        }
    };
    Ok(Entry { key: name, at: origin(key), value: convert(value, depth + 1)? })
}

fn convert_scalar(scalar: &Scalar<'_>) -> Value {
    match scalar {
        Scalar::Null => Value::Null,
        Scalar::Boolean(value) => Value::Bool(*value),
        Scalar::Integer(number) => Value::Int(*number),
        Scalar::FloatingPoint(number) => Value::Float(**number),
        Scalar::String(text) => Value::Text(text.to_string()),
    }
}
