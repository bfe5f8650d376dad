//! Content of any size that is the same each time, and differs from place to place.

/// Groups of three bytes in a piece: a quarter of a mebibyte of base64.
const GROUPS: usize = 64 * 1024;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The content of so many bytes, rounded down to groups of three, in pieces.
pub fn made_bytes(bytes: usize) -> impl Iterator<Item = Vec<u8>> {
    pieces(bytes).map(|groups| groups.flat_map(|at| group(at).to_be_bytes().into_iter().skip(1)).collect())
}

/// The same as base64.
pub fn made_base64(bytes: usize) -> impl Iterator<Item = Vec<u8>> {
    let digit = |group: u32, shift: u32| ALPHABET[(group >> shift & 63) as usize];
    pieces(bytes).map(move |groups| groups.flat_map(|at| [18, 12, 6, 0].map(|shift| digit(group(at), shift))).collect())
}

fn pieces(bytes: usize) -> impl Iterator<Item = std::ops::Range<u32>> {
    let groups = u32::try_from(bytes / 3).unwrap();
    (0..groups).step_by(GROUPS).map(move |start| start..groups.min(start + GROUPS as u32))
}

/// Three bytes that say where they are.
fn group(at: u32) -> u32 {
    at.wrapping_mul(2_654_435_761) >> 8
}
