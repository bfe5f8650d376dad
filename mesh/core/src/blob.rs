//! Content that is too large for the log: what names it, and how it is shown.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// BLAKE3 of the content: its address in the blob store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct BlobHash([u8; 32]);

/// Text that is no hash of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a blob hash: 64 lower-case hexadecimal digits are expected")]
pub struct InvalidBlobHash;

impl BlobHash {
    /// A hash that was computed.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BlobHash {
    type Err = InvalidBlobHash;

    /// Only the form that [`fmt::Display`] writes: one blob has one name.
    fn from_str(text: &str) -> Result<Self, InvalidBlobHash> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(InvalidBlobHash),
        };
        let digits: &[u8; 64] = text.as_bytes().try_into().map_err(|_| InvalidBlobHash)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

impl From<BlobHash> for String {
    fn from(hash: BlobHash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for BlobHash {
    type Error = InvalidBlobHash;

    fn try_from(text: String) -> Result<Self, InvalidBlobHash> {
        text.parse()
    }
}

/// What the bytes of a blob are, when they stand in a part again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BlobForm {
    /// Text in UTF-8.
    Text,
    /// Bytes of a file.
    Raw,
    /// Structured data as JSON text.
    Data,
}

/// The name of content in the blob store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Blob {
    /// Its address.
    pub hash: BlobHash,
    /// Its length in bytes.
    pub length: u64,
    /// What its bytes are.
    pub form: BlobForm,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_has_one_name() {
        let hash = BlobHash::from_bytes(std::array::from_fn(|at| at as u8 * 7));
        let name = hash.to_string();
        assert_eq!(name.parse(), Ok(hash));
        for wrong in [name.to_uppercase(), name[1..].to_owned(), format!("{name}0"), name.replacen('0', "g", 1)] {
            assert_eq!(wrong.parse::<BlobHash>(), Err(InvalidBlobHash), "{wrong}");
        }
    }
}
