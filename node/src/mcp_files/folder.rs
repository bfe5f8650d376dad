//! The folder that is shown, and every refusal.

use regex::{Regex, RegexBuilder};
use reqwest::Url;
use serde::Serialize;
use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Component, Path, PathBuf},
    time::{Duration, Instant},
};

use super::text;
use towline_core::limits::MAX_BLOB_BYTES;

/// Largest file that is read: it goes into a prompt and a journal.
pub(super) const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Most entries of one listing.
const MAX_ENTRIES: usize = 2_000;

/// Bytes that one listing reads to tell text from binary files; beyond it only the first part of a file is looked at.
const MAX_SNIFFED_BYTES: u64 = 64 * 1024 * 1024;

/// That first part.
const SNIFF_BYTES: usize = 8 * 1024;

/// Most lines that one search finds.
const MAX_MATCHES: usize = 200;

/// Most files that one search reads.
const MAX_SEARCHED_FILES: usize = 5_000;

/// Deepest folder that a search goes into.
const MAX_DEPTH: usize = 32;

/// Longest search.
const SEARCH_TIME: Duration = Duration::from_secs(5);

/// Longest line that a search shows, in characters.
const MAX_LINE_CHARS: usize = 300;

/// Memory of a compiled search pattern.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// A folder, opened for reading.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    /// Absolute, without symbolic links.
    root: PathBuf,
}

/// Why something is not shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0:?} is outside of the folder that is shown")]
    Outside(String),
    #[error("{0:?} is in a hidden folder; folders with a leading dot are not shown")]
    Hidden(String),
    #[error("there is no {0:?}")]
    NotFound(String),
    #[error("{0:?} is not a file")]
    NotAFile(String),
    #[error("{0:?} is not a folder")]
    NotAFolder(String),
    #[error("{path:?} has {bytes} bytes; files above {MAX_FILE_BYTES} bytes are not read")]
    TooLarge { path: String, bytes: u64 },
    #[error("{path:?} has {bytes} bytes; files above {MAX_BLOB_BYTES} bytes are not given")]
    TooLargeToGive { path: String, bytes: u64 },
    #[error("{0:?} is a binary file; only UTF-8 text is read")]
    Binary(String),
    #[error("the pattern is no regular expression that can be used: {0}")]
    Pattern(#[source] regex::Error),
    #[error("read {path:?}: {source}")]
    Unreadable { path: String, source: io::Error },
}

/// What is in a folder.
#[derive(Debug, Serialize)]
pub(super) struct Listing {
    pub path: String,
    /// Sorted by name.
    pub entries: Vec<Entry>,
    /// Whether there are more.
    pub truncated: bool,
}

/// One entry of a folder.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    pub name: String,
    /// What to pass to `read_file` or `list_directory`.
    pub path: String,
    pub kind: Kind,
    pub bytes: u64,
    /// Whether `read_file` would read it.
    pub text: bool,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
    Other,
}

/// A text file.
#[derive(Debug, Serialize)]
pub(super) struct TextFile {
    pub path: String,
    pub bytes: u64,
    pub lines: u64,
    pub words: u64,
    pub title: String,
    pub text: String,
}

/// What a search found.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    pub matches: Vec<Match>,
    /// Files that were read.
    pub files: usize,
    /// Whether the search ended before everything was read.
    pub truncated: bool,
}

/// A line that matches.
#[derive(Debug, Serialize)]
pub(super) struct Match {
    pub path: String,
    /// From 1.
    pub line: usize,
    pub text: String,
}

impl Folder {
    /// Opens a folder.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let root = dir.canonicalize()?;
        // Shows early that it is a folder and may be read.
        fs::read_dir(&root)?;
        Ok(Self { root })
    }

    pub(super) fn list(&self, path: Option<&str>) -> Result<Listing, Refusal> {
        let named = path.unwrap_or(".");
        let dir = self.resolve(named)?;
        if !dir.is_dir() {
            return Err(Refusal::NotAFolder(named.to_owned()));
        }
        let mut found = read_dir(&dir).map_err(|source| Refusal::Unreadable { path: named.to_owned(), source })?;
        found.retain(|entry| !is_hidden_folder(entry));
        found.sort_by_key(fs::DirEntry::file_name);
        let truncated = found.len() > MAX_ENTRIES;
        let mut budget = MAX_SNIFFED_BYTES;
        let entries = found.iter().take(MAX_ENTRIES).map(|entry| self.entry(entry, &mut budget)).collect();
        Ok(Listing { path: self.shown(&dir), entries, truncated })
    }

    pub(super) fn read(&self, named: &str) -> Result<TextFile, Refusal> {
        let path = self.resolve(named)?;
        let unreadable = |source| Refusal::Unreadable { path: named.to_owned(), source };
        // Opening a pipe would wait for its other end, so this is asked before.
        if !path.metadata().map_err(unreadable)?.is_file() {
            return Err(Refusal::NotAFile(named.to_owned()));
        }
        let text = match read_text(&path).map_err(unreadable)? {
            Content::Text(text) => text,
            Content::Binary => return Err(Refusal::Binary(named.to_owned())),
            Content::TooLarge(bytes) => return Err(Refusal::TooLarge { path: named.to_owned(), bytes }),
        };
        Ok(TextFile {
            path: self.shown(&path),
            bytes: text.len() as u64,
            lines: text::lines(&text),
            words: text::words(&text),
            title: text::title(&text),
            text,
        })
    }

    /// Opens a file of any kind, to be given whole: its path as clients see it, and its length.
    pub(super) fn attach(&self, named: &str) -> Result<(File, String, u64), Refusal> {
        let path = self.resolve(named)?;
        let unreadable = |source| Refusal::Unreadable { path: named.to_owned(), source };
        let metadata = path.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(Refusal::NotAFile(named.to_owned()));
        }
        if metadata.len() > MAX_BLOB_BYTES {
            return Err(Refusal::TooLargeToGive { path: named.to_owned(), bytes: metadata.len() });
        }
        Ok((File::open(&path).map_err(unreadable)?, self.shown(&path), metadata.len()))
    }

    /// Searches the text files below a folder, by name, without following symbolic links.
    pub(super) fn search(&self, pattern: &str, path: Option<&str>) -> Result<Found, Refusal> {
        let pattern = RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).build().map_err(Refusal::Pattern)?;
        let start = self.resolve(path.unwrap_or("."))?;
        let mut search = Search {
            folder: self,
            pattern,
            deadline: Instant::now() + SEARCH_TIME,
            found: Found { matches: Vec::new(), files: 0, truncated: false },
        };
        if start.is_dir() {
            search.folder(&start, 0)
        } else {
            search.file(&start)
        }
        Ok(search.found)
    }

    /// The real path of what a client named, if that is inside.
    fn resolve(&self, named: &str) -> Result<PathBuf, Refusal> {
        if self.leaves(named) {
            return Err(Refusal::Outside(named.to_owned()));
        }
        let real = self.root.join(named).canonicalize().map_err(|source| {
            if source.kind() == io::ErrorKind::NotFound {
                Refusal::NotFound(named.to_owned())
            } else {
                Refusal::Unreadable { path: named.to_owned(), source }
            }
        })?;
        let Ok(inside) = real.strip_prefix(&self.root) else { return Err(Refusal::Outside(named.to_owned())) };
        let folders = if real.is_dir() { Some(inside) } else { inside.parent() };
        if folders.is_some_and(|folders| folders.iter().any(is_hidden)) {
            return Err(Refusal::Hidden(named.to_owned()));
        }
        Ok(real)
    }

    /// Whether a path leaves the folder by its spelling alone. Without this, the answer for a path outside would tell
    /// whether it exists.
    fn leaves(&self, named: &str) -> bool {
        let path = Path::new(named);
        if path.is_absolute() {
            return !path.starts_with(&self.root) || path.components().any(|part| part == Component::ParentDir);
        }
        let mut depth = 0_i32;
        for part in path.components() {
            match part {
                Component::Normal(_) => depth += 1,
                Component::ParentDir => depth -= 1,
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
            if depth < 0 {
                return true;
            }
        }
        false
    }

    /// The text files of the folder itself, as URI and name. Those deeper in it are read by their URIs as well.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub(super) fn resources(&self) -> Result<Vec<(String, String)>, Refusal> {
        let files = self.list(None)?.entries.into_iter().filter(|entry| entry.text);
        Ok(files.filter_map(|entry| Some((self.uri(&entry.path)?, entry.name))).collect())
    }

    /// Reads what a `file:` URI names, which is absolute.
    ///
    /// # Errors
    /// As for a path.
    pub(super) fn read_uri(&self, uri: &str) -> Result<TextFile, Refusal> {
        let path = Url::parse(uri).ok().and_then(|url| url.to_file_path().ok());
        let path = path.ok_or_else(|| Refusal::NotFound(uri.to_owned()))?;
        self.read(&path.to_string_lossy())
    }

    fn uri(&self, path: &str) -> Option<String> {
        Some(Url::from_file_path(self.root.join(path)).ok()?.to_string())
    }

    /// A path as clients see it.
    fn shown(&self, path: &Path) -> String {
        let inside = path.strip_prefix(&self.root).unwrap_or(path);
        if inside.as_os_str().is_empty() { ".".to_owned() } else { inside.to_string_lossy().into_owned() }
    }

    fn entry(&self, entry: &fs::DirEntry, budget: &mut u64) -> Entry {
        let path = entry.path();
        let kind = entry.file_type().map_or(Kind::Other, kind);
        let bytes = match kind {
            Kind::File => entry.metadata().map_or(0, |metadata| metadata.len()),
            Kind::Directory | Kind::Symlink | Kind::Other => 0,
        };
        // A name that is not UTF-8 cannot be passed back.
        let can_be_named = entry.file_name().to_str().is_some();
        let text = kind == Kind::File && can_be_named && bytes <= MAX_FILE_BYTES && is_text(&path, bytes, budget);
        Entry { name: entry.file_name().to_string_lossy().into_owned(), path: self.shown(&path), kind, bytes, text }
    }
}

/// Folders with a leading dot hold what programs keep for themselves (`.git`, `.ssh`, the keys in `.towline`): no model is
/// shown what is in them.
fn is_hidden(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn is_hidden_folder(entry: &fs::DirEntry) -> bool {
    is_hidden(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_dir())
}

fn kind(kind: fs::FileType) -> Kind {
    if kind.is_symlink() {
        Kind::Symlink
    } else if kind.is_dir() {
        Kind::Directory
    } else if kind.is_file() {
        Kind::File
    } else {
        Kind::Other
    }
}

/// One entry more than is listed tells that there are more.
fn read_dir(dir: &Path) -> io::Result<Vec<fs::DirEntry>> {
    fs::read_dir(dir)?.collect()
}

enum Content {
    Text(String),
    Binary,
    TooLarge(u64),
}

/// The content of a regular file. A file that grows while it is read is still bounded.
fn read_text(path: &Path) -> io::Result<Content> {
    let file = File::open(path)?;
    let expected = file.metadata()?.len();
    if expected > MAX_FILE_BYTES {
        return Ok(Content::TooLarge(expected));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Ok(Content::TooLarge(bytes.len() as u64));
    }
    if bytes.contains(&0) {
        return Ok(Content::Binary);
    }
    Ok(String::from_utf8(bytes).map_or(Content::Binary, Content::Text))
}

fn is_text(path: &Path, bytes: u64, budget: &mut u64) -> bool {
    if bytes <= *budget {
        *budget -= bytes;
        return matches!(read_text(path), Ok(Content::Text(_)));
    }
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SNIFF_BYTES as u64).read_to_end(&mut start));
    // A character may be cut in two at the end of the part.
    let is_utf8 = std::str::from_utf8(&start).map_or_else(|error| error.error_len().is_none(), |_| true);
    read.is_ok() && !start.contains(&0) && is_utf8
}

/// A search under way.
struct Search<'a> {
    folder: &'a Folder,
    pattern: Regex,
    deadline: Instant,
    found: Found,
}

impl Search<'_> {
    fn folder(&mut self, dir: &Path, depth: usize) {
        let Ok(mut entries) = read_dir(dir) else { return };
        entries.retain(|entry| !is_hidden_folder(entry));
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            if self.is_over() {
                return;
            }
            match entry.file_type().map(kind) {
                Ok(Kind::Directory) if depth < MAX_DEPTH => self.folder(&entry.path(), depth + 1),
                Ok(Kind::Directory) => self.found.truncated = true,
                Ok(Kind::File) => self.file(&entry.path()),
                Ok(Kind::Symlink | Kind::Other) | Err(_) => {}
            }
        }
    }

    fn file(&mut self, path: &Path) {
        let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
        let (true, Ok(Content::Text(text))) = (is_file, if is_file { read_text(path) } else { Ok(Content::Binary) })
        else {
            return;
        };
        self.found.files += 1;
        for (at, line) in text.lines().enumerate().filter(|(_, line)| self.pattern.is_match(line)) {
            if self.found.matches.len() == MAX_MATCHES {
                self.found.truncated = true;
                return;
            }
            let text = line.chars().take(MAX_LINE_CHARS).collect();
            self.found.matches.push(Match { path: self.folder.shown(path), line: at + 1, text });
        }
    }

    fn is_over(&mut self) -> bool {
        let over = self.found.truncated || self.found.files >= MAX_SEARCHED_FILES || Instant::now() >= self.deadline;
        self.found.truncated |= over;
        over
    }
}
