//! The content of a JSON string, piece by piece: escapes are taken out, and base64 is decoded if it is that.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

/// Characters of base64 that give whole bytes.
const GROUP: usize = 4;

/// What a string holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Bytes of a file, as base64.
    Base64,
    /// Text.
    Text,
}

/// A string that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Decodes one string. What is not whole yet is kept: a few bytes.
#[derive(Debug)]
pub(super) struct Decoder {
    form: Form,
    escape: Escape,
    /// The first half of a character that is written as two escapes.
    half: Option<u16>,
    /// Unescaped, and not yet decoded.
    rest: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum Escape {
    None,
    Begun,
    Unicode { value: u16, digits: u8 },
}

impl Decoder {
    pub(super) fn new(form: Form) -> Self {
        Self { form, escape: Escape::None, half: None, rest: Vec::new() }
    }

    /// Takes the next bytes between the quotes, and adds what they say.
    pub(super) fn push(&mut self, mut raw: &[u8], said: &mut Vec<u8>) -> Result<(), Malformed> {
        while !raw.is_empty() {
            let plain = match self.escape {
                Escape::None => memchr::memchr(b'\\', raw).unwrap_or(raw.len()),
                Escape::Begun | Escape::Unicode { .. } => 0,
            };
            if plain > 0 {
                self.no_half()?;
                self.rest.extend_from_slice(&raw[..plain]);
                raw = &raw[plain..];
                continue;
            }
            self.escaped(raw[0])?;
            raw = &raw[1..];
        }
        self.decode(said)
    }

    /// The string has ended.
    pub(super) fn finish(&mut self, said: &mut Vec<u8>) -> Result<(), Malformed> {
        self.no_half()?;
        if !matches!(self.escape, Escape::None) {
            return Err(Malformed);
        }
        match self.form {
            Form::Base64 => BASE64.decode_vec(&self.rest, said).map_err(|_| Malformed),
            Form::Text if self.rest.is_empty() => Ok(()),
            Form::Text => Err(Malformed),
        }
    }

    fn escaped(&mut self, byte: u8) -> Result<(), Malformed> {
        match self.escape {
            Escape::None => self.escape = Escape::Begun,
            Escape::Begun if byte == b'u' => self.escape = Escape::Unicode { value: 0, digits: 0 },
            Escape::Begun => {
                self.no_half()?;
                let meant = match byte {
                    b'"' | b'\\' | b'/' => byte,
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    _ => return Err(Malformed),
                };
                self.rest.push(meant);
                self.escape = Escape::None;
            }
            Escape::Unicode { value, digits } => {
                let digit = char::from(byte).to_digit(16).and_then(|digit| u16::try_from(digit).ok());
                let value = value << 4 | digit.ok_or(Malformed)?;
                if digits < 3 {
                    self.escape = Escape::Unicode { value, digits: digits + 1 };
                } else {
                    self.escape = Escape::None;
                    self.unicode(value)?;
                }
            }
        }
        Ok(())
    }

    fn unicode(&mut self, unit: u16) -> Result<(), Malformed> {
        let units: &[u16] = match self.half.take() {
            None if (0xd800..0xdc00).contains(&unit) => {
                self.half = Some(unit);
                return Ok(());
            }
            None => &[unit],
            Some(half) => &[half, unit],
        };
        for character in char::decode_utf16(units.iter().copied()) {
            let character = character.map_err(|_| Malformed)?;
            self.rest.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
        Ok(())
    }

    fn no_half(&self) -> Result<(), Malformed> {
        if self.half.is_some() { Err(Malformed) } else { Ok(()) }
    }

    /// Decodes what is whole. The last group of base64 stays until the end: it alone may be padded.
    fn decode(&mut self, said: &mut Vec<u8>) -> Result<(), Malformed> {
        let whole = match self.form {
            Form::Base64 => self.rest.len().saturating_sub(1) / GROUP * GROUP,
            Form::Text => match std::str::from_utf8(&self.rest) {
                Ok(text) => text.len(),
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                Err(_) => return Err(Malformed),
            },
        };
        let later = self.rest.split_off(whole);
        let done = std::mem::replace(&mut self.rest, later);
        match self.form {
            Form::Base64 if memchr::memchr(b'=', &done).is_some() => Err(Malformed),
            Form::Base64 => BASE64.decode_vec(&done, said).map_err(|_| Malformed),
            Form::Text => {
                said.extend_from_slice(&done);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes in pieces of this size.
    fn decode(form: Form, raw: &str, size: usize) -> Result<Vec<u8>, Malformed> {
        let (mut decoder, mut said) = (Decoder::new(form), Vec::new());
        for piece in raw.as_bytes().chunks(size) {
            decoder.push(piece, &mut said)?;
        }
        decoder.finish(&mut said)?;
        Ok(said)
    }

    #[test]
    fn text_is_the_same_in_whatever_pieces_it_comes() {
        let text = "a\"b\\c/d\n\r\t\u{8}\u{c}é\u{1f600}€ end";
        let escaped = r#"a\"b\\c\/d\n\r\t\b\f\u00e9\ud83d\uDE00\u20AC end"#;
        let plain = serde_json::to_string(text).unwrap();
        for size in 1..40 {
            assert_eq!(decode(Form::Text, escaped, size), Ok(text.as_bytes().to_vec()), "{size}");
            assert_eq!(decode(Form::Text, &plain[1..plain.len() - 1], size), Ok(text.as_bytes().to_vec()), "{size}");
        }
    }

    #[test]
    fn base64_is_the_same_in_whatever_pieces_it_comes() {
        for length in 0..20_u8 {
            let bytes: Vec<u8> = (0..length).map(|at| at.wrapping_mul(91).wrapping_add(250)).collect();
            let text = BASE64.encode(&bytes);
            let escaped = text.replace('/', r"\/").replace('A', r"\u0041");
            for size in 1..10 {
                assert_eq!(decode(Form::Base64, &text, size), Ok(bytes.clone()));
                assert_eq!(decode(Form::Base64, &escaped, size), Ok(bytes.clone()));
            }
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for raw in [r"\x", r"\ud83d", r"\ud83d plain", r"\ud83d\n", r"\ude00", r"\u12g4", r"\u12", "\\"] {
            assert_eq!(decode(Form::Text, raw, 3), Err(Malformed), "{raw}");
        }
        for raw in ["QQ", "QQ=", "QQ==QUJD", "Q%==", "QUJD QUJD", "QR=="] {
            assert_eq!(decode(Form::Base64, raw, 3), Err(Malformed), "{raw}");
        }
        let mut decoder = Decoder::new(Form::Text);
        assert_eq!(decoder.push(b"a\xffb", &mut Vec::new()), Err(Malformed));
    }
}
