//! The one place that writes to the terminal: data to standard output, everything else to standard error.

use std::io::{self, IsTerminal, Write};

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
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Writes a line of data.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn line(&mut self, line: impl std::fmt::Display) -> io::Result<()> {
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }

    /// Writes one JSON value on many lines.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut self.out, value)?;
        self.line("")
    }

    /// Writes one JSON value on one line: for streams of them.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn json_line(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.line("")
    }

    /// Writes a table without borders; long cells wrap where a person is watching.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn table(&mut self, header: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
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
        let _ = writeln!(self.err, "{line}");
        let _ = self.err.flush();
    }
}
