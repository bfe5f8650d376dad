//! Whole files in answers over a pipe.
//!
//! An answer is made as a whole, so it is made with a token in the place of the file, and the file takes its place while
//! the answer is written: a piece of it is in memory at a time.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use std::{
    collections::VecDeque,
    fs::File,
    io,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

/// Files that wait for their answer to be written; beyond it the oldest are closed: their calls were canceled.
const MAX_WAITING: usize = 64;

/// Bytes that are read at a time: whole groups of base64.
const PIECE_BYTES: usize = 192 * 1024;

/// How tokens begin.
const TOKEN: &str = "towline-attached-";

/// Characters behind that.
const TOKEN_CHARS: usize = 32;

/// Opened files, by token; cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Attachments(Arc<Mutex<VecDeque<(String, File)>>>);

impl Attachments {
    /// What is written in the place of a file.
    pub(super) fn put(&self, file: File) -> String {
        let token = format!("{TOKEN}{}", uuid::Uuid::now_v7().simple());
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
        }
        waiting.push_back((token.clone(), file));
        token
    }

    fn take(&self, token: &str) -> Option<File> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = waiting.iter().position(|(known, _)| known == token)?;
        waiting.remove(at).map(|(_, file)| file)
    }
}

/// Writes answers, a line each, with the files that their tokens stand for.
///
/// # Errors
/// When the client is gone, or a file cannot be read to its end: then the answer cannot be ended either.
pub(super) async fn write_answers(
    answers: impl AsyncRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    attachments: Attachments,
) -> io::Result<()> {
    let mut answers = BufReader::new(answers);
    let mut line = Vec::new();
    while answers.read_until(b'\n', &mut line).await? > 0 {
        let text = String::from_utf8_lossy(&line);
        let mut written = 0;
        for (at, _) in text.match_indices(TOKEN) {
            let end = at + TOKEN.len() + TOKEN_CHARS;
            let Some(file) = text.get(at..end).and_then(|token| attachments.take(token)) else { continue };
            output.write_all(&text.as_bytes()[written..at]).await?;
            write_base64(file, &mut output).await?;
            written = end;
        }
        output.write_all(&text.as_bytes()[written..]).await?;
        output.flush().await?;
        line.clear();
    }
    Ok(())
}

async fn write_base64(file: File, output: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut file = tokio::fs::File::from_std(file);
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    loop {
        piece.clear();
        (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut piece).await?;
        output.write_all(BASE64.encode(&piece).as_bytes()).await?;
        if piece.len() < PIECE_BYTES {
            return Ok(());
        }
    }
}
