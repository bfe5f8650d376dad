//! The reference of the configuration, `deploy/reference/config.md`: what is said of each setting stands in `reference/keys.txt`,
//! and which settings there are, the readers say themselves. So a setting without a description fails here, and so does a
//! description without a setting.

use std::{cell::RefCell, collections::BTreeSet, fmt::Write as _, fs, path::Path};

use super::Overrides;

const KEYS: &str = include_str!("reference/keys.txt");
const WHOLE: &str = include_str!("reference/whole.yaml");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/reference/config.md");
/// Set to any value, it has the page written.
const WRITE: &str = "TOWLINE_WRITE_REFERENCE";
const HEAD: &str = "# Configuration reference\n\n\
    Every setting of the file that `towline node -c FILE` reads. `[]` stands for an entry of a list, `NAME` for a name that the file\n\
    chooses. Durations are written as `500ms`, `30s`, `5m` or `1h`. `{{secret:NAME}}` is the environment variable NAME, or the file NAME in\n\
    the folder that `TOWLINE_SECRETS_DIR` names. Each setting can be put over the file: `TOWLINE_NODE__PERMITS=8`, or `--set\n\
    node.permits=8`. `towline validate FILE` lists every mistake.\n\n\
    This page is generated from the code; `make reference` writes it.\n";

thread_local! {
    static ASKED: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// A reader asks for a setting.
pub(super) fn asked(path: &str) {
    ASKED.with_borrow_mut(|asked| asked.insert(general(path)));
}

/// A path without the places and names of one file.
fn general(path: &str) -> String {
    let (mut general, mut rest) = (String::new(), path);
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, behind) = after.split_once(']').unwrap_or((after, ""));
        general.push_str(before);
        general.push_str(if inside.starts_with('"') { ".NAME" } else { "[]" });
        rest = behind;
    }
    general + rest
}

fn described() -> Vec<(&'static str, &'static str)> {
    KEYS.lines().filter_map(|line| line.split_once(": ")).collect()
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for (path, what) in described() {
        if path.contains('.') {
            let _ = writeln!(page, "| `{path}` | {} |", what.replace('|', "\\|"));
        } else {
            let _ = write!(page, "\n## {path}\n\n{what}\n\n| setting | what it is |\n|---|---|\n");
        }
    }
    // A setting that has none below needs no table.
    page.replace("| setting | what it is |\n|---|---|\n\n##", "##")
}

#[test]
fn every_setting_that_a_reader_asks_for_has_a_description_and_no_other_has() {
    let _ = super::read(WHOLE, "/nowhere".into(), &Overrides::default());
    let asked = ASKED.take();
    let described: BTreeSet<String> = described().into_iter().map(|(path, _)| path.to_owned()).collect();
    let missing: Vec<&String> = asked.difference(&described).collect();
    assert!(
        missing.is_empty(),
        "say in node/src/config/reference/keys.txt what these are, then `make reference`: {missing:#?}"
    );
    let unknown: Vec<&String> = described.difference(&asked).collect();
    assert!(
        unknown.is_empty(),
        "no reader asks for these: take them out of reference/keys.txt, or add their section to reference/whole.yaml: {unknown:#?}"
    );
    assert_eq!(KEYS.lines().count(), described.len(), "a line of keys.txt is no `path: what it is`, or is there twice");
}

#[test]
fn every_name_of_a_setting_in_the_code_is_asked_for_by_the_whole_configuration() {
    let _ = super::read(WHOLE, "/nowhere".into(), &Overrides::default());
    let asked = ASKED.take();
    let names: BTreeSet<&str> = asked.iter().filter_map(|path| path.rsplit('.').next()).collect();
    let pattern = regex::Regex::new(r#"\.(?:get|required|list|texts|flag)\(\s*"([a-z0-9_]+)""#).unwrap();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(code) = fs::read_to_string(&path) else { continue };
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        for name in pattern.captures_iter(code).map(|found| found.get(1).unwrap().as_str()) {
            assert!(names.contains(name), "{}: {name:?} is in no section of reference/whole.yaml", path.display());
        }
    }
}

#[test]
fn the_reference_page_is_that_of_the_code() {
    let page = page();
    if std::env::var_os(WRITE).is_some() {
        fs::create_dir_all(Path::new(PAGE).parent().unwrap()).unwrap();
        fs::write(PAGE, &page).unwrap();
    }
    assert!(fs::read_to_string(PAGE).is_ok_and(|found| found == page), "it is an old one: `make reference`");
}
