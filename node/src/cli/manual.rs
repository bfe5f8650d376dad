//! The manual pages, `deploy/man/`: one for each command, generated from what `--help` says.

use std::{collections::BTreeMap, fs, path::Path};

use clap::CommandFactory;

use super::Cli;

const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/man");
/// Set to any value, it has the pages written.
const WRITE: &str = "TOWLINE_WRITE_REFERENCE";

fn read(folder: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let read = |entry: fs::DirEntry| {
        (entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(entry.path()).unwrap())
    };
    entries.map(|entry| read(entry.unwrap())).collect()
}

#[test]
fn the_manual_pages_are_those_of_the_command_line() {
    let made = tempfile::tempdir().unwrap();
    // The pages of `help` would say everything once more.
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), made.path()).unwrap();
    if std::env::var_os(WRITE).is_some() {
        let _ = fs::remove_dir_all(PAGES);
        fs::create_dir_all(PAGES).unwrap();
        for (name, page) in read(made.path()) {
            fs::write(Path::new(PAGES).join(name), page).unwrap();
        }
    }
    let (made, found) = (read(made.path()), read(Path::new(PAGES)));
    assert!(made.contains_key("towline.1") && made.contains_key("towline-task-list.1"), "{:?}", made.keys());
    let old: Vec<&String> =
        made.iter().filter(|(name, page)| found.get(*name) != Some(page)).map(|(name, _)| name).collect();
    assert!(old.is_empty(), "these are old: `make reference`: {old:?}");
    let gone: Vec<&String> = found.keys().filter(|name| !made.contains_key(*name)).collect();
    assert!(gone.is_empty(), "these are of no command: `make reference`: {gone:?}");
}
