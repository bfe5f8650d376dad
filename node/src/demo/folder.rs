//! What the files say: the demo's own listing and counts, by which the agents' digest is judged. It shares no code with the
//! tool that the agents use.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The size above which the file tool does not read a file.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// What is true of one file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct FileFacts {
    /// Its name in the folder.
    pub(crate) path: String,
    /// As `wc -l` counts: line breaks.
    pub(crate) lines: u64,
    /// As `wc -w` counts.
    pub(crate) words: u64,
    /// As `wc -c` counts.
    pub(crate) bytes: u64,
}

/// The first `most` text files of a folder, by name.
pub(crate) fn text_files(dir: &Path, most: usize) -> io::Result<Vec<FileFacts>> {
    let mut files: Vec<(String, PathBuf)> = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_file = entry.file_type()?.is_file();
        if let (true, Ok(name)) = (is_file, entry.file_name().into_string()) {
            files.push((name, entry.path()));
        }
    }
    files.sort();
    let mut facts = Vec::new();
    for (name, path) in files {
        if facts.len() == most {
            break;
        }
        if let Some(text) = text_of(&path)? {
            facts.push(count(name, &text));
        }
    }
    Ok(facts)
}

/// The content of a file that the file tool would read: not too large, UTF-8, no NUL.
fn text_of(path: &Path) -> io::Result<Option<String>> {
    if fs::metadata(path)?.len() > MAX_FILE_BYTES {
        return Ok(None);
    }
    let text = String::from_utf8(fs::read(path)?).ok();
    Ok(text.filter(|text| !text.contains('\0')))
}

fn count(path: String, text: &str) -> FileFacts {
    let lines = text.bytes().filter(|byte| *byte == b'\n').count() as u64;
    let words = text.split(separates_words).filter(|run| run.chars().any(|char| !char.is_control())).count() as u64;
    FileFacts { path, lines, words, bytes: text.len() as u64 }
}

/// What `wc` takes for a blank in a UTF-8 locale: Unicode's blanks, no-break ones too, and the word joiner.
fn separates_words(char: char) -> bool {
    const WORD_JOINER: char = '\u{2060}';
    char.is_whitespace() || char == WORD_JOINER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_as_wc_does() {
        let words = |text: &str| count(String::new(), text).words;
        assert_eq!(words("a|b\u{a0}c\u{2060}d\u{b}e\n"), 4);
        assert_eq!(words("one \u{1} two"), 2);
        assert_eq!(words(" \n"), 0);
    }

    #[test]
    fn only_small_text_files_count_and_they_come_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
        write("b.txt", b"one two\nthree");
        write("a.md", "# \u{dc}ber\n".as_bytes());
        write("c.bin", b"\0\x01");
        write("d.latin1", b"caf\xe9");
        write("e.big", &vec![b'x'; MAX_FILE_BYTES as usize + 1]);
        fs::create_dir(dir.path().join("folder")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("a.md"), dir.path().join("z.link")).unwrap();

        let facts = text_files(dir.path(), 20).unwrap();

        let expected = [("a.md", 1, 2, 8), ("b.txt", 1, 3, 13)].map(|(path, lines, words, bytes)| FileFacts {
            path: path.into(),
            lines,
            words,
            bytes,
        });
        assert_eq!(facts, expected);
        assert_eq!(text_files(dir.path(), 1).unwrap().len(), 1);
    }
}
