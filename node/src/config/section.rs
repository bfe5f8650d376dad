//! Reads a tree by the names of its settings, and notes every mistake on the way.
//!
//! A section remembers which names it was asked for: what is left at its end is unknown. So there is no second list of
//! known keys that could differ from what is read.

use std::{cell::RefCell, collections::BTreeSet, fmt::Display, path::PathBuf};

use super::{
    mistakes::{Mistake, Origin, hint},
    secrets::Secrets,
    tree::{Entry, Tree, Value},
};

/// What all readers share.
pub(crate) struct Context {
    /// Folder of the file: relative paths start here.
    pub base: PathBuf,
    pub secrets: Secrets,
    pub mistakes: RefCell<Vec<Mistake>>,
}

impl Context {
    pub(crate) fn mistake(&self, at: &Origin, path: &str, message: impl Into<String>) {
        let mistake = Mistake { at: at.clone(), path: path.to_owned(), message: message.into() };
        self.mistakes.borrow_mut().push(mistake);
    }
}

/// One value, with its path.
#[derive(Clone)]
pub(crate) struct Field<'a> {
    tree: &'a Tree,
    path: String,
    pub context: &'a Context,
}

impl<'a> Field<'a> {
    pub(crate) fn root(tree: &'a Tree, context: &'a Context) -> Self {
        Field { tree, path: String::new(), context }
    }

    pub(crate) fn mistake(&self, message: impl Into<String>) {
        self.context.mistake(&self.tree.at, &self.path, message);
    }

    fn expected<T>(&self, what: &str) -> Option<T> {
        self.mistake(format!("expected {what}, found {}", self.tree.kind()));
        None
    }

    /// Text that is not empty.
    pub(crate) fn text(&self) -> Option<&'a str> {
        match &self.tree.value {
            Value::Text(text) if text.trim().is_empty() => self.expected("text that is not empty"),
            Value::Text(text) => Some(text),
            Value::Int(_) | Value::Float(_) | Value::Bool(_) => self.expected("text (put it in quotes)"),
            Value::Null | Value::List(_) | Value::Map(_) => self.expected("text"),
        }
    }

    /// Text that `parse` accepts; its error becomes the mistake.
    pub(crate) fn parse<T, E: Display>(&self, parse: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        match parse(self.text()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.mistake(error.to_string());
                None
            }
        }
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn number(&self, least: u32, most: u32) -> Option<u32> {
        let number = match &self.tree.value {
            Value::Int(number) => Some(*number),
            Value::Text(text) if self.is_from_outside() => text.parse().ok(),
            Value::Text(_) | Value::Null | Value::Bool(_) | Value::Float(_) | Value::List(_) | Value::Map(_) => None,
        };
        let within = number.and_then(|number| u32::try_from(number).ok()).filter(|n| (least..=most).contains(n));
        within.or_else(|| self.expected_number(least, most, number))
    }

    fn expected_number(&self, least: u32, most: u32, found: Option<i64>) -> Option<u32> {
        match found {
            Some(number) => self.mistake(format!("{number} is out of range: {least} to {most}")),
            None => return self.expected(&format!("a whole number from {least} to {most}")),
        }
        None
    }

    /// A number from 0 to 1.
    pub(crate) fn part(&self) -> Option<f64> {
        let number = match &self.tree.value {
            Value::Int(number) => u8::try_from(*number).ok().map(f64::from),
            Value::Float(number) => Some(*number),
            Value::Text(text) if self.is_from_outside() => text.parse().ok(),
            Value::Text(_) | Value::Null | Value::Bool(_) | Value::List(_) | Value::Map(_) => None,
        };
        let within = number.filter(|number| (0.0..=1.0).contains(number));
        within.or_else(|| self.expected("a number from 0 to 1, as in 0.1"))
    }

    /// True or false.
    pub(crate) fn flag(&self) -> Option<bool> {
        match &self.tree.value {
            Value::Bool(value) => Some(*value),
            Value::Text(text) if self.is_from_outside() && text == "true" => Some(true),
            Value::Text(text) if self.is_from_outside() && text == "false" => Some(false),
            Value::Text(_) | Value::Null | Value::Int(_) | Value::Float(_) | Value::List(_) | Value::Map(_) => {
                self.expected("true or false")
            }
        }
    }

    /// The entries of a list.
    pub(crate) fn list(&self) -> Vec<Field<'a>> {
        let Value::List(items) = &self.tree.value else {
            return self.expected("a list").unwrap_or_default();
        };
        let field = |(at, tree)| Field { tree, path: format!("{}[{at}]", self.path), context: self.context };
        items.iter().enumerate().map(field).collect()
    }

    /// The entries of a mapping whose keys are names that the file chose.
    pub(crate) fn entries(&self) -> Vec<(&'a str, Field<'a>)> {
        let Value::Map(entries) = &self.tree.value else {
            return self.expected("a mapping").unwrap_or_default();
        };
        let field = |entry: &'a Entry| {
            let path = format!("{}[{:?}]", self.path, entry.key);
            (entry.key.as_str(), Field { tree: &entry.value, path, context: self.context })
        };
        entries.iter().map(field).collect()
    }

    /// A mapping whose keys are settings.
    pub(crate) fn section(&self) -> Option<Section<'a>> {
        match &self.tree.value {
            Value::Map(entries) => Some(Section { entries, field: self.clone(), asked: Vec::new() }),
            Value::Null => Some(Section { entries: &[], field: self.clone(), asked: Vec::new() }),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) | Value::List(_) => {
                self.expected("a mapping")
            }
        }
    }

    /// Whether it is meant as a number, be it a right one or not.
    pub(crate) fn is_number(&self) -> bool {
        match &self.tree.value {
            Value::Int(_) => true,
            Value::Text(text) => self.is_from_outside() && text.parse::<i64>().is_ok(),
            Value::Null | Value::Bool(_) | Value::Float(_) | Value::List(_) | Value::Map(_) => false,
        }
    }

    /// The text, if it is one; notes no mistake.
    pub(crate) fn peek_text(&self) -> Option<&'a str> {
        match &self.tree.value {
            Value::Text(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The text of the setting `name` below, if there is one; notes no mistake.
    pub(crate) fn peek_name(&self) -> Option<&'a str> {
        let Value::Map(entries) = &self.tree.value else { return None };
        match &entries.iter().find(|entry| entry.key == "name")?.value.value {
            Value::Text(name) => Some(name),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// What the environment and the command line say is always text.
    fn is_from_outside(&self) -> bool {
        !matches!(self.tree.at, Origin::File { .. })
    }
}

/// A mapping whose keys are settings. [`Section::finish`] refuses the keys that nobody asked for.
pub(crate) struct Section<'a> {
    entries: &'a [Entry],
    field: Field<'a>,
    asked: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// The setting of that name, if it is there and has a value.
    pub(crate) fn get(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.asked.push(key);
        #[cfg(test)]
        super::reference::asked(&self.path_of(key));
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        let path = self.path_of(key);
        (entry.value.value != Value::Null).then_some(Field { tree: &entry.value, path, context: self.field.context })
    }

    /// The setting of that name if it is written and says nothing: without a value, or an empty list or mapping.
    pub(crate) fn written_empty(&self, key: &str) -> Option<Field<'a>> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        let is_empty = match &entry.value.value {
            Value::Null => true,
            Value::List(items) => items.is_empty(),
            Value::Map(entries) => entries.is_empty(),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => false,
        };
        is_empty.then(|| Field { tree: &entry.value, path: self.path_of(key), context: self.field.context })
    }

    /// The setting of that name; a mistake if it is missing. `example` shows how to write it.
    pub(crate) fn required(&mut self, key: &'static str, example: &str) -> Option<Field<'a>> {
        let found = self.get(key);
        if found.is_none() {
            self.mistake(format!("{key} is missing: write {key}: {example}"));
        }
        found
    }

    /// The entries of a list setting; none if it is not there.
    pub(crate) fn list(&mut self, key: &'static str) -> Vec<Field<'a>> {
        self.get(key).map(|field| field.list()).unwrap_or_default()
    }

    /// A list of texts.
    pub(crate) fn texts(&mut self, key: &'static str) -> Vec<String> {
        self.list(key).iter().filter_map(|field| field.text().map(str::to_owned)).collect()
    }

    /// True or false, or `default`.
    pub(crate) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.get(key).and_then(|field| field.flag()).unwrap_or(default)
    }

    /// The keys of a mapping below, whether its values are right or not.
    pub(crate) fn keys_of(&self, key: &str) -> BTreeSet<&'a str> {
        let entry = self.entries.iter().find(|entry| entry.key == key);
        match entry.map(|entry| &entry.value.value) {
            Some(Value::Map(entries)) => entries.iter().map(|entry| entry.key.as_str()).collect(),
            _ => BTreeSet::new(),
        }
    }

    pub(crate) fn context(&self) -> &'a Context {
        self.field.context
    }

    /// Notes a mistake of the section as a whole.
    pub(crate) fn mistake(&self, message: impl Into<String>) {
        self.field.mistake(message);
    }

    /// Refuses what nobody asked for, with the nearest name that somebody did.
    pub(crate) fn finish(self) {
        let context = self.field.context;
        for entry in self.entries.iter().filter(|entry| !self.asked.contains(&entry.key.as_str())) {
            let message = format!("is not a setting; {}", hint(&entry.key, self.asked.iter().copied()));
            context.mistake(&entry.at, &self.path_of(&entry.key), message);
        }
    }

    fn path_of(&self, key: &str) -> String {
        if self.field.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.field.path) }
    }
}
