//! Where `demo` and `dev` write: a story for people, or one JSON object for programs.

use std::{
    fmt,
    io::{self, Write},
};

/// The two streams of a command. In text mode the whole story goes to `out`; in JSON mode `out` is kept for the one
/// object at the end, and the story goes to `err`.
pub struct Console {
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    json: bool,
}

impl Console {
    /// A console over standard output and standard error, or what stands for them.
    pub fn new(out: Box<dyn Write + Send>, err: Box<dyn Write + Send>, json: bool) -> Self {
        Self { out, err, json }
    }

    /// Tells one line of the story. A reader that went away is no reason to stop: the nodes still have to be stopped.
    pub(crate) fn say(&mut self, line: impl fmt::Display) {
        let target = if self.json { &mut self.err } else { &mut self.out };
        let _ = writeln!(target, "{line}");
        let _ = target.flush();
    }

    /// Writes the object that a program waits for; in text mode nothing.
    pub(crate) fn object(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        serde_json::to_writer_pretty(&mut self.out, value)?;
        writeln!(self.out)?;
        self.out.flush()
    }
}
