//! Reads the surveyor's digest back and compares it with what the files say.

use std::collections::BTreeMap;

use super::folder::FileFacts;

/// One row of the digest.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Row {
    pub(crate) path: String,
    pub(crate) lines: u64,
    pub(crate) words: u64,
    pub(crate) bytes: u64,
    pub(crate) heading: String,
}

/// The digest, as a table could be read out of its text.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Digest {
    pub(crate) rows: Vec<Row>,
    pub(crate) total: Option<Row>,
}

impl Digest {
    /// Reads the rows of a Markdown table with the columns path, lines, words, bytes and perhaps more. A row is told by its
    /// three numbers, so that prose of a real model around the table does no harm.
    pub(crate) fn read(text: &str) -> Digest {
        let mut digest = Digest::default();
        for row in text.lines().filter_map(read_row) {
            if is_total(&row.path) {
                digest.total = Some(row);
            } else {
                digest.rows.push(row);
            }
        }
        digest
    }

    /// Each difference from what the files say, in words. None means that the digest is complete and right.
    pub(crate) fn mistakes(&self, files: &[FileFacts]) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut rows: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in &self.rows {
            rows.entry(&row.path).or_default().push(row);
        }
        for file in files {
            let name = one_line(&file.path);
            match rows.remove(name.as_str()).as_deref() {
                None => mistakes.push(format!("{name} is missing")),
                Some([row]) => mistakes.extend(compare(&name, row, file)),
                Some(more) => mistakes.push(format!("{name} is listed {} times", more.len())),
            }
        }
        mistakes.extend(rows.keys().map(|path| format!("{path} is no file of the survey")));
        let total = sum(files);
        match &self.total {
            None => mistakes.push("the totals are missing".to_owned()),
            Some(row) => mistakes.extend(compare("the total", row, &total)),
        }
        mistakes
    }
}

/// A file name as a table can show it.
fn one_line(name: &str) -> String {
    name.replace('\r', "\\r").replace('\n', "\\n")
}

fn compare(what: &str, row: &Row, file: &FileFacts) -> Vec<String> {
    [("lines", row.lines, file.lines), ("words", row.words, file.words), ("bytes", row.bytes, file.bytes)]
        .into_iter()
        .filter(|(_, said, counted)| said != counted)
        .map(|(unit, said, counted)| format!("{what} has {counted} {unit}, the digest says {said}"))
        .collect()
}

fn sum(files: &[FileFacts]) -> FileFacts {
    files.iter().fold(FileFacts { path: String::new(), lines: 0, words: 0, bytes: 0 }, |sum, file| FileFacts {
        path: sum.path,
        lines: sum.lines + file.lines,
        words: sum.words + file.words,
        bytes: sum.bytes + file.bytes,
    })
}

fn read_row(line: &str) -> Option<Row> {
    let cells = cells(line.trim())?;
    let [path, lines, words, bytes, rest @ ..] = cells.as_slice() else { return None };
    Some(Row {
        path: plain(path),
        lines: number(lines)?,
        words: number(words)?,
        bytes: number(bytes)?,
        heading: rest.first().cloned().unwrap_or_default(),
    })
}

/// The cells of a table row; `\|` is a bar inside a cell.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    let mut cells = vec![String::new()];
    let mut chars = inner.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\\' if chars.peek() == Some(&'|') => cells.last_mut()?.extend(chars.next()),
            '|' => cells.push(String::new()),
            other => cells.last_mut()?.push(other),
        }
    }
    Some(cells.into_iter().map(|cell| cell.trim().to_owned()).collect())
}

/// A cell without the marks of emphasis or code around it.
fn plain(cell: &str) -> String {
    cell.trim_matches(|mark| mark == '*' || mark == '`').to_owned()
}

fn number(cell: &str) -> Option<u64> {
    plain(cell).replace([',', '_'], "").parse().ok()
}

fn is_total(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    let counts_files = path.strip_suffix(" files").is_some_and(|count| count.parse::<u64>().is_ok());
    path == "total" || path == "totals" || counts_files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, lines: u64, words: u64, bytes: u64) -> FileFacts {
        FileFacts { path: path.into(), lines, words, bytes }
    }

    const TABLE: &str = "Digest\n\n| path | lines | words | bytes | heading |\n| --- | ---: | ---: | ---: | --- |\n\
        | a.md | 1 | 2 | 8 | A \\| B |\n| odd\\|name | 3 | 4 | 5 | |\n| **total** | 4 | 6 | 13 | |\n";

    #[test]
    fn a_right_digest_has_no_mistakes() {
        let digest = Digest::read(TABLE);

        assert_eq!(digest.rows.len(), 2);
        assert_eq!(digest.rows[0].heading, "A | B");
        assert_eq!(digest.mistakes(&[file("a.md", 1, 2, 8), file("odd|name", 3, 4, 5)]), Vec::<String>::new());
    }

    #[test]
    fn every_difference_is_named() {
        let files = [file("a.md", 1, 3, 8), file("missing", 0, 0, 0)];

        let mistakes = Digest::read(TABLE).mistakes(&files);

        assert_eq!(
            mistakes,
            [
                "a.md has 3 words, the digest says 2",
                "missing is missing",
                "odd|name is no file of the survey",
                "the total has 1 lines, the digest says 4",
                "the total has 3 words, the digest says 6",
                "the total has 8 bytes, the digest says 13",
            ]
        );
    }

    #[test]
    fn an_answer_without_a_table_is_a_mistake() {
        assert_eq!(Digest::read("done").mistakes(&[]), ["the totals are missing"]);
    }
}
