//! `cards:` – what the agent cards of this node say beside its agents.

use crate::a2a::CardSigner;

use super::section::Section;

/// `cards:`
#[derive(Debug, Clone, Default)]
pub struct CardSettings {
    /// The private key that signs them, in PEM, checked.
    pub signing_key: Option<towline_actors::Secret>,
}

/// Reads the section; a default stands where a mistake was noted.
pub(crate) fn read(root: &mut Section<'_>) -> CardSettings {
    let Some(mut section) = root.get("cards").and_then(|field| field.section()) else {
        return CardSettings::default();
    };
    let signing_key = section.get("signing_key").and_then(|field| {
        let pem = field.text_or_file()?;
        match CardSigner::from_pem(&pem) {
            Ok(_) => Some(towline_actors::Secret::new(pem)),
            Err(error) => {
                let file = field.peek_text().and_then(|text| text.strip_prefix("file://"));
                field.mistake(file.map_or_else(|| error.to_string(), |file| format!("file {file} {error}")));
                None
            }
        }
    });
    section.finish();
    CardSettings { signing_key }
}

#[cfg(test)]
mod tests {
    use super::super::{Overrides, read};

    fn mistakes(cards: &str) -> Vec<String> {
        let text = format!(
            "node: {{ name: a }}\nmodels: {{ default: {{ provider: ollama, model: m }} }}\n\
             agents: [ {{ name: reader, instruction: Read. }} ]\n{cards}\n"
        );
        let read = read(&text, "/nowhere".into(), &Overrides::default());
        read.err().unwrap_or_default().iter().map(|one| format!("{}: {}", one.path, one.message)).collect()
    }

    #[test]
    fn a_key_that_signs_nothing_is_a_mistake() {
        assert_eq!(mistakes(""), [""; 0]);
        let wrong = mistakes("cards: { signing_key: nonsense }");
        assert!(wrong.len() == 1 && wrong[0].starts_with("cards.signing_key: is no private key"), "{wrong:?}");
    }
}
