//! What a request or an answer may hold, counted before a tree is made of it: a body of a few bytes per value takes a
//! hundred times its length once it is one.

use std::{cell::Cell, fmt};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Field, MAX_JSON_DEPTH};

/// Most JSON values of a request: each takes some hundred bytes as it is decoded, from JSON over ProtoJSON and protobuf to a
/// message, so a request stays within some megabytes beside its text. Tables that are longer are files.
pub const MAX_JSON_VALUES: usize = 50_000;

/// Most JSON values of a peer's answer. More than a request has, since it may be a task of many messages: one with as many
/// events as our own core allows, each of them a part with a text, still fits, and takes some hundred megabytes as it is
/// decoded.
pub const MAX_ANSWER_VALUES: usize = 250_000;

/// Most levels around what a client nests: the request, its parameters, the message, its parts, the part, its metadata.
const ENVELOPE_DEPTH: usize = 6;

/// Most bytes of a protobuf number, and the bits that each of them carries.
const VARINT_BYTES: usize = 10;
const VARINT_BITS: usize = 7;

/// Checks how many values JSON holds and how deep it nests, without keeping any of it. What is not JSON passes up to where it
/// breaks off: whoever reads it says so.
///
/// # Errors
/// When it holds more than [`MAX_JSON_VALUES`], or nests deeper than a message may.
pub fn check_json(text: &[u8]) -> Result<(), Field> {
    count(text, Limits { values: MAX_JSON_VALUES, depth: MAX_JSON_DEPTH + ENVELOPE_DEPTH }).map_err(Excess::field)
}

/// Checks how many values the answer of a peer holds. How deep it nests is left to who reads it, as is what is not JSON.
///
/// # Errors
/// What is wrong with it, when it holds more than [`MAX_ANSWER_VALUES`].
pub fn check_answer(text: &[u8]) -> Result<(), String> {
    // Each value takes a byte at least.
    if text.len() <= MAX_ANSWER_VALUES {
        return Ok(());
    }
    let limits = Limits { values: MAX_ANSWER_VALUES, depth: usize::MAX };
    count(text, limits).map_err(|_| format!("it has more than {MAX_ANSWER_VALUES} values"))
}

/// Checks the same of a `SendMessageRequest` in protobuf: the other requests hold no lists.
///
/// # Errors
/// As [`check_json`], and when it is no protobuf.
pub fn check_protobuf(message: &[u8]) -> Result<(), Field> {
    let mut fields = 0;
    let limits = Limits { values: MAX_JSON_VALUES, depth: MAX_JSON_DEPTH + 1 };
    walk(message, Kind::Request, (0, limits), &mut fields).map_err(|problem| match problem {
        Problem::Excess(excess) => excess.field(),
        Problem::Broken => Field::new("request", "is not a protobuf message"),
    })
}

/// Most levels of messages in one another that are read of an answer in protobuf: as many as its decoder takes.
const MAX_ANSWER_DEPTH: usize = 100;

/// Which answer a message in protobuf is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    /// What a message is answered with, and an event of a stream: a task, a message, or an update.
    Reply,
    /// A task.
    Task,
    /// A page of tasks.
    Tasks,
}

/// Checks of an answer in protobuf how many values it holds, as [`check_answer`] does for JSON. What is no protobuf is left to who
/// reads it.
///
/// # Errors
/// What is wrong with it, when it holds more than [`MAX_ANSWER_VALUES`], or nests deeper than anybody reads.
pub(crate) fn check_protobuf_answer(message: &[u8], kind: AnswerKind) -> Result<(), String> {
    let kind = match kind {
        AnswerKind::Reply => Kind::Reply,
        AnswerKind::Task => Kind::Task,
        AnswerKind::Tasks => Kind::Tasks,
    };
    let limits = Limits { values: MAX_ANSWER_VALUES, depth: MAX_ANSWER_DEPTH };
    match walk(message, kind, (0, limits), &mut 0) {
        Ok(()) | Err(Problem::Broken) => Ok(()),
        Err(Problem::Excess(Excess::Values)) => Err(format!("it has more than {MAX_ANSWER_VALUES} values")),
        Err(Problem::Excess(Excess::Depth)) => Err(format!("it nests deeper than {MAX_ANSWER_DEPTH} levels")),
    }
}

/// What JSON is held to.
#[derive(Debug, Clone, Copy)]
struct Limits {
    values: usize,
    depth: usize,
}

fn count(text: &[u8], limits: Limits) -> Result<(), Excess> {
    let counted = Counted::default();
    let mut reader = serde_json::Deserializer::from_slice(text);
    let counter = Counter { counted: &counted, limits, depth: 0 };
    match counter.deserialize(&mut reader) {
        Ok(()) => Ok(()),
        Err(_) => counted.excess.take().map_or(Ok(()), Err),
    }
}

/// What is too much.
#[derive(Debug, Clone, Copy)]
enum Excess {
    Values,
    Depth,
}

impl Excess {
    fn field(self) -> Field {
        let problem = match self {
            Excess::Values => {
                format!(
                    "holds more than {MAX_JSON_VALUES} JSON values: send the data as a file part, or upload it at /blobs"
                )
            }
            Excess::Depth => format!("nests deeper than {MAX_JSON_DEPTH} levels"),
        };
        Field::new("params", problem)
    }
}

#[derive(Default)]
struct Counted {
    values: Cell<usize>,
    excess: Cell<Option<Excess>>,
}

/// Counts a value and what is in it.
#[derive(Clone, Copy)]
struct Counter<'a> {
    counted: &'a Counted,
    limits: Limits,
    depth: usize,
}

impl Counter<'_> {
    fn within(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    fn excess<E: serde::de::Error>(self, excess: Excess) -> E {
        self.counted.excess.set(Some(excess));
        E::custom("too much")
    }

    fn check_depth<E: serde::de::Error>(self) -> Result<(), E> {
        if self.depth >= self.limits.depth { Err(self.excess(Excess::Depth)) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for Counter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        let values = self.counted.values.get() + 1;
        self.counted.values.set(values);
        if values > self.limits.values {
            return Err(self.excess(Excess::Values));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.check_depth()?;
        while items.next_element_seed(self.within())?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        self.check_depth()?;
        while fields.next_key::<serde::de::IgnoredAny>()?.is_some() {
            fields.next_value_seed(self.within())?;
        }
        Ok(())
    }
}

/// The messages of a request or an answer that may hold many others.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Request,
    Reply,
    Tasks,
    Task,
    Status,
    StatusUpdate,
    ArtifactUpdate,
    Artifact,
    Message,
    Part,
    Struct,
    Entry,
    Value,
    List,
}

impl Kind {
    /// The message in a field, if it is one of these: as `a2a.proto` and `google/protobuf/struct.proto` number them.
    fn within(self, field: u64) -> Option<Self> {
        match (self, field) {
            (Kind::Tasks | Kind::Reply, 1) => Some(Kind::Task),
            (Kind::Reply, 3) => Some(Kind::StatusUpdate),
            (Kind::Reply, 4) => Some(Kind::ArtifactUpdate),
            (Kind::Task | Kind::StatusUpdate, 3) => Some(Kind::Status),
            (Kind::Task, 4) | (Kind::ArtifactUpdate, 3) => Some(Kind::Artifact),
            (Kind::Request | Kind::Reply | Kind::Status, 2) | (Kind::Task, 5) => Some(Kind::Message),
            (Kind::Message, 5) | (Kind::Artifact, 4) => Some(Kind::Part),
            (Kind::Request | Kind::StatusUpdate, 4)
            | (Kind::Part | Kind::Artifact | Kind::Value, 5)
            | (Kind::Message | Kind::Task | Kind::ArtifactUpdate, 6) => Some(Kind::Struct),
            (Kind::Struct, 1) => Some(Kind::Entry),
            (Kind::Part, 4) | (Kind::Entry, 2) | (Kind::List, 1) => Some(Kind::Value),
            (Kind::Value, 6) => Some(Kind::List),
            _ => None,
        }
    }

    /// Whether it is a level of JSON.
    fn nests(self) -> bool {
        matches!(self, Kind::Struct | Kind::List)
    }
}

enum Problem {
    Excess(Excess),
    Broken,
}

/// Counts the fields of a message and of those in it. A list and the value that it is count as one.
fn walk(mut rest: &[u8], kind: Kind, (depth, limits): (usize, Limits), fields: &mut usize) -> Result<(), Problem> {
    let depth = depth + usize::from(kind.nests());
    if depth > limits.depth {
        return Err(Problem::Excess(Excess::Depth));
    }
    while !rest.is_empty() {
        *fields += usize::from(!matches!(kind, Kind::Value | Kind::Entry));
        if *fields > limits.values {
            return Err(Problem::Excess(Excess::Values));
        }
        let tag = varint(&mut rest)?;
        match tag & 7 {
            0 => drop(varint(&mut rest)?),
            1 => drop(take(&mut rest, 8)?),
            5 => drop(take(&mut rest, 4)?),
            2 => {
                let length = varint(&mut rest)?;
                let content = take(&mut rest, length)?;
                if let Some(within) = kind.within(tag >> 3) {
                    walk(content, within, (depth, limits), fields)?;
                }
            }
            _ => return Err(Problem::Broken),
        }
    }
    Ok(())
}

fn varint(rest: &mut &[u8]) -> Result<u64, Problem> {
    let mut number = 0;
    for at in 0..VARINT_BYTES {
        let (byte, left) = rest.split_first().ok_or(Problem::Broken)?;
        *rest = left;
        number |= u64::from(byte & 0x7f) << (at * VARINT_BITS);
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Problem::Broken)
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8], Problem> {
    let length = usize::try_from(length).map_err(|_| Problem::Broken)?;
    let (content, left) = rest.split_at_checked(length).ok_or(Problem::Broken)?;
    *rest = left;
    Ok(content)
}

#[cfg(test)]
mod tests;
