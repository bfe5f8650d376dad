//! The one place that writes to the terminal: data to standard output, everything else to standard error.
//!
//! What others have said is not let move the cursor, clear the screen or turn the direction of text where a person looks: such
//! characters are shown by their numbers. Data that goes to a program is written as it is.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// How data is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// For programs: the protocol's own JSON for A2A objects
    Json,
}

/// Where a command writes.
pub struct Output {
    format: Format,
    is_terminal: bool,
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
}

impl Output {
    /// Standard output and standard error of this process.
    pub fn of_process(format: Format) -> Self {
        let is_terminal = io::stdout().is_terminal();
        Self { format, is_terminal, out: Box::new(io::stdout()), err: Box::new(io::stderr()) }
    }

    /// Anything that can be written to.
    pub fn to(format: Format, out: Box<dyn Write + Send>, err: Box<dyn Write + Send>) -> Self {
        Self { format, is_terminal: false, out, err }
    }

    /// Whether data is written as JSON.
    pub fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Whether a person is watching.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes text as it stands, and shows it at once.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        let text = if self.is_terminal { plain(text) } else { text.into() };
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Writes a line of data.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn line(&mut self, line: impl std::fmt::Display) -> io::Result<()> {
        if self.is_terminal {
            writeln!(self.out, "{}", plain(&line.to_string()))?;
        } else {
            writeln!(self.out, "{line}")?;
        }
        self.out.flush()
    }

    /// Writes one JSON value on many lines.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        self.json_text(&text)
    }

    /// Writes one JSON value on one line: for streams of them.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json_line(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(value)?;
        self.json_text(&text)
    }

    /// Where a person looks, with such characters as JSON writes them by number: it means the same.
    fn json_text(&mut self, text: &str) -> io::Result<()> {
        if self.is_terminal {
            writeln!(self.out, "{}", escaped(text, moves_text, json_number))?;
        } else {
            writeln!(self.out, "{text}")?;
        }
        self.out.flush()
    }

    /// Writes a table without borders; long cells wrap where a person is watching.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn table(&mut self, header: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
        let cell = |text: String| escaped(&text, |c| c.is_control() || moves_text(c), number).into_owned();
        let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row.into_iter().map(cell).collect()).collect();
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(header.to_vec()).add_rows(rows);
        if self.is_terminal {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        for line in table.to_string().lines() {
            // The preset has one blank to the left and right of each cell.
            writeln!(self.out, "{}", line.strip_prefix(' ').unwrap_or(line).trim_end())?;
        }
        self.out.flush()
    }

    /// Writes a line for the person beside the data.
    pub fn note(&mut self, line: impl std::fmt::Display) {
        // Notes are lost where nobody reads them; that is no reason to end.
        let _ = writeln!(self.err, "{}", plain(&line.to_string()));
        let _ = self.err.flush();
    }
}

/// Whether a character could have a name read as another one: it moves what is around it, or is not seen.
pub(crate) fn is_deceptive(c: char) -> bool {
    let is_unseen = matches!(c, '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{feff}');
    let is_mark = matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    c.is_control() || moves_text(c) || is_unseen || is_mark
}

/// Whether a character moves the text around it on a terminal. The ends of lines, and tabs, are text.
fn moves_text(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}');
    turns || (c.is_control() && !matches!(c, '\n' | '\t'))
}

fn plain(text: &str) -> Cow<'_, str> {
    let text = if text.contains("\r\n") { text.replace("\r\n", "\n").into() } else { Cow::Borrowed(text) };
    let escaped = match escaped(&text, moves_text, number) {
        Cow::Borrowed(_) => None,
        Cow::Owned(escaped) => Some(escaped),
    };
    escaped.map_or(text, Cow::Owned)
}

fn number(c: char) -> String {
    if c == '\n' { " ".to_owned() } else { c.escape_unicode().to_string() }
}

fn json_number(c: char) -> String {
    c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

fn escaped(text: &str, which: impl Fn(char) -> bool, number: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(&which) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if which(c) { shown.push_str(&number(c)) } else { shown.push(c) }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is written where a person looks or a program reads.
    fn written(is_terminal: bool, write: impl Fn(&mut Output) -> io::Result<()>) -> String {
        let out = Shared::default();
        let mut output = Output::to(Format::Text, Box::new(out.clone()), Box::new(io::sink()));
        output.is_terminal = is_terminal;
        write(&mut output).unwrap();
        String::from_utf8(out.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn what_others_said_moves_nothing_on_a_terminal_and_reaches_a_program_as_it_is() {
        let said = "a\u{1b}[2Jb\u{202e}c\r\nd\te";
        assert_eq!(written(true, |output| output.text(said)), "a\\u{1b}[2Jb\\u{202e}c\nd\te");
        assert_eq!(written(true, |output| output.line(said)), "a\\u{1b}[2Jb\\u{202e}c\nd\te\n");
        assert_eq!(written(false, |output| output.text(said)), said);
        assert_eq!(written(false, |output| output.line(said)), format!("{said}\n"));
    }

    #[test]
    fn json_means_the_same_where_a_person_looks() {
        let value = serde_json::json!({ "said": "a\u{1b}b\u{202e}c\u{9b}\u{e000}\u{2066}" });
        for is_terminal in [true, false] {
            let writes: [fn(&mut Output, &serde_json::Value) -> io::Result<()>; 2] =
                [|output, value| output.json(value), |output, value| output.json_line(value)];
            for write in writes {
                let text = written(is_terminal, |output| write(output, &value));
                assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
                assert_eq!(text.contains(['\u{202e}', '\u{9b}']), !is_terminal, "{text}");
            }
        }
    }

    #[test]
    fn a_cell_of_a_table_makes_no_row_of_its_own() {
        let row = || vec![vec!["a\nb  forged\u{1b}[1m".to_owned(), "c".to_owned()]];
        let text = written(false, |output| output.table(&["ONE", "TWO"], row()));
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("a b  forged\\u{1b}[1m"), "{text}");
    }
}
