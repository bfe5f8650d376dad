//! What is said of a text: its counts, as `wc` counts in a UTF-8 locale, and its title.

/// Longest title, in characters.
const MAX_TITLE_CHARS: usize = 120;

/// Lines in which a title is looked for: it stands near the top or not at all.
const TITLE_LINES: usize = 60;

/// What starts a line of documentation or comment, longest first.
const COMMENT_MARKS: [&str; 13] = ["//!", "///", "/**", "/*", "//", "<!--", "\"\"\"", "'''", "--", ";;", ";", "#", "%"];

/// Line breaks.
pub(super) fn lines(text: &str) -> u64 {
    text.bytes().filter(|byte| *byte == b'\n').count() as u64
}

/// Runs without white space in which something can be seen.
pub(super) fn words(text: &str) -> u64 {
    let is_space = |c: char| c.is_whitespace() || c == '\u{2060}';
    text.split(is_space).filter(|run| run.chars().any(|c| !c.is_control())).count() as u64
}

/// The first Markdown heading; else the first line of a comment; else the first line that says anything.
pub(super) fn title(text: &str) -> String {
    let top = || text.lines().take(TITLE_LINES).map(str::trim).filter(|line| !line.is_empty());
    let found = top().find_map(heading).or_else(|| top().find_map(comment)).or_else(|| top().next().map(str::to_owned));
    found.unwrap_or_default().chars().take(MAX_TITLE_CHARS).collect()
}

fn heading(line: &str) -> Option<String> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    let rest = &line[level..];
    let is_heading = (1..=6).contains(&level) && rest.starts_with(' ');
    let text = rest.trim().trim_end_matches('#').trim_end();
    (is_heading && !text.is_empty()).then(|| text.to_owned())
}

fn comment(line: &str) -> Option<String> {
    if line.starts_with("#!") || line.starts_with("#[") {
        return None;
    }
    let mark = COMMENT_MARKS.iter().find(|mark| line.starts_with(**mark))?;
    let text = line[mark.len()..].trim_start_matches(['/', '*', '!', '#', '-', ';']);
    let text = text.trim().trim_end_matches("*/").trim_end_matches("-->").trim_end_matches("\"\"\"").trim();
    text.chars().any(char::is_alphanumeric).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_wc() {
        // Checked with `wc -lw` of coreutils 9.1 in a UTF-8 locale.
        for (text, expected_lines, expected_words) in
            [("", 0, 0), ("a", 0, 1), ("a b\n", 1, 2), ("a — b\u{a0}c \u{1} d\n", 1, 5), ("\n\n\tx\r\ny", 3, 2)]
        {
            assert_eq!((lines(text), words(text)), (expected_lines, expected_words), "{text:?}");
        }
    }

    #[test]
    fn a_heading_is_the_title_of_markdown() {
        assert_eq!(title("\nsome text\n## The title ##\n# later"), "The title");
    }

    #[test]
    fn the_first_comment_is_the_title_of_code() {
        assert_eq!(title("#!/bin/sh\n#\n# Says hello.\necho"), "Says hello.".to_owned());
        assert_eq!(title("use x;\n//! Ids of things.\n"), "Ids of things.");
        assert_eq!(title("/* One. */\nint x;"), "One.");
        assert_eq!(title("\"\"\"Doc of a module.\"\"\"\nimport os"), "Doc of a module.");
    }

    #[test]
    fn a_plain_text_is_named_by_its_first_line() {
        assert_eq!(title("\n  hello there\nmore"), "hello there");
        assert_eq!(title(""), "");
    }

    #[test]
    fn a_long_title_is_cut() {
        assert_eq!(title(&"ü".repeat(500)).chars().count(), MAX_TITLE_CHARS);
    }
}
