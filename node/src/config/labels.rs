//! `labels:` – what a node is called, and what an agent asks of the nodes that run it.

use towline_core::Labels;

use super::section::Section;

/// Labels of one node or agent: they are in the state of every node.
const MAX_LABELS: usize = 32;
/// Characters of a name or value: a person reads them.
const MAX_LABEL_CHARS: usize = 63;

/// Reads the setting `labels` of a section: a mapping from names to values.
pub(crate) fn read(section: &mut Section<'_>) -> Labels {
    let Some(field) = section.get("labels") else { return Labels::new() };
    let entries = field.entries();
    if entries.len() > MAX_LABELS {
        field.mistake(format!("{} labels are too many: at most {MAX_LABELS}", entries.len()));
    }
    let mut labels = Labels::new();
    for (name, field) in entries {
        if let Err(reason) = check(name) {
            field.mistake(format!("label {name:?} {reason}"));
        }
        let value = field.parse(|value| check(value).map(|()| value.to_owned()));
        labels.extend(value.map(|value| (name.to_owned(), value)));
    }
    labels
}

fn check(text: &str) -> Result<(), String> {
    let accepted = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if text.is_empty() || text.len() > MAX_LABEL_CHARS || !text.chars().all(accepted) {
        return Err(format!("may have 1 to {MAX_LABEL_CHARS} letters, digits and -_./"));
    }
    Ok(())
}
