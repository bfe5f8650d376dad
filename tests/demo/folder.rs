//! A folder of random text files, and what `wc` would say about them.

use std::{collections::BTreeMap, fs, hash::BuildHasher, path::Path};

/// Lines, words and bytes of one file.
pub(crate) type Counts = (u64, u64, u64);

/// How many of the files the demo takes unless told otherwise.
const FIRST: usize = 20;

/// Fills a folder with text files of random names and content, and with things that are no text. Returns what is true of
/// the first files by name.
pub(crate) fn fill(folder: &Path) -> BTreeMap<String, Counts> {
    let mut random = Random::new();
    let mut files = BTreeMap::new();
    while files.len() < FIRST + 5 {
        let extension = random.pick(&["txt", "md", "rs", "csv", ""]);
        let name = format!("{}{}{extension}", random.word(), if extension.is_empty() { "" } else { "." });
        let text = random.text();
        fs::write(folder.join(&name), &text).unwrap();
        files.insert(name, count(&text));
    }
    fs::write(folder.join("a-picture.png"), [0x89, b'P', b'N', b'G', 0, 0, 0xff]).unwrap();
    fs::create_dir(folder.join("a-folder")).unwrap();
    fs::write(folder.join("a-folder/inside.txt"), "not listed\n").unwrap();
    files.into_iter().take(FIRST).collect()
}

/// By hand, so that it shares nothing with what it judges.
fn count(text: &str) -> Counts {
    let lines = text.bytes().filter(|byte| *byte == b'\n').count() as u64;
    let mut words = 0;
    let mut inside = false;
    for byte in text.bytes() {
        let blank = matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
        words += u64::from(inside && blank);
        inside = !blank;
    }
    (lines, words + u64::from(inside), text.len() as u64)
}

/// xorshift, seeded by the hasher's own randomness.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = std::hash::RandomState::new().hash_one("towline") | 1;
        println!("seed of the random folder: {seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len() as u64) as usize]
    }

    fn word(&mut self) -> String {
        let length = 3 + self.below(9);
        (0..length).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }

    fn text(&mut self) -> String {
        let mut text = String::new();
        if self.below(3) == 0 {
            text += &format!("# {} {}\n", self.word(), self.word());
        }
        for _ in 0..self.below(120) {
            text += &self.word();
            text += self.pick(&[" ", " ", "  ", "\n", "\t", ", é ", " | ", "\n\n"]);
        }
        text
    }
}
