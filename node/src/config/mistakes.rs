//! What is wrong with a configuration, and where: collected, never just the first.

use std::{fmt, path::PathBuf};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The file; both count from 1.
    File {
        /// Line.
        line: usize,
        /// Column.
        column: usize,
    },
    /// An environment variable.
    Env(String),
    /// The command line.
    Flag(String),
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// Where it was written.
    pub at: Origin,
    /// Path of the setting, as in `agents[1].tools[0]`; empty for the whole file.
    pub path: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("read configuration {}: {source}; name another file, or make one with `towline init --name CLUSTER`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file was read, and this is wrong with it.
    #[error("{}", Listing(path, mistakes))]
    Mistakes {
        /// The file.
        path: PathBuf,
        /// All of them, in the order of the file.
        mistakes: Vec<Mistake>,
    },
}

/// Prints mistakes one per line, each with its place.
struct Listing<'a>(&'a PathBuf, &'a [Mistake]);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Listing(path, mistakes) = self;
        let noun = if mistakes.len() == 1 { "mistake" } else { "mistakes" };
        write!(f, "{} {noun} in the configuration", mistakes.len())?;
        for mistake in *mistakes {
            match &mistake.at {
                Origin::File { line, column } => write!(f, "\n{}:{line}:{column}: ", path.display())?,
                Origin::Env(name) => write!(f, "\n{name}: ")?,
                Origin::Flag(flag) => write!(f, "\n{flag}: ")?,
            }
            if !mistake.path.is_empty() {
                write!(f, "{}: ", mistake.path)?;
            }
            f.write_str(&mistake.message)?;
        }
        Ok(())
    }
}

/// The known name that was probably meant: a slip of a letter or two.
pub(crate) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const LETTERS_PER_SLIP: usize = 3;
    let allowed = (written.chars().count() / LETTERS_PER_SLIP).max(1);
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&written.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, name)| name)
}

/// `did you mean "x"?`, or the known names where none is near.
pub(crate) fn hint<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(written, known.iter().copied()) {
        Some(name) => format!("did you mean {name:?}?"),
        None if known.is_empty() => "there is none".to_owned(),
        None => format!("known: {}", known.join(", ")),
    }
}
