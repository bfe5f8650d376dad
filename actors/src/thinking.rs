//! One model call: streams the text as it comes, in pieces of a size that the log likes, and ends with the answer.
//!
//! The provider retries until the first delta. A stream that is cut after it is asked again here, and its text then
//! replaces what was shown.

use futures::StreamExt;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;
use towline_core::{ModelAnswer, Usage};
use towline_trace::metrics::instruments::MODEL_FIRST_CHUNK;

use crate::model::{Delta, MadeArtifact, ModelError, ModelProvider, ModelRequest, ModelStream, attempt};

/// How long text waits for more before it goes into the log: a reader sees it flow, and the log sees ten entries a second.
const TEXT_EVERY: Duration = Duration::from_millis(100);

/// How long the first text waits for the end of the answer: a short answer that is there as a whole costs one log entry
/// and not two, and nobody sees the wait.
const FIRST_TEXT_WITHIN: Duration = Duration::from_millis(3);

/// Text that goes into the log at once.
const TEXT_BYTES: usize = 8 * 1024;

/// Longest text of one answer: beyond it the model has lost its way.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Most artifacts beside the text of one answer: a task may have more, of several answers.
const MAX_ARTIFACTS: usize = 64;

/// How often a cut stream is asked again.
const MAX_CUTS: u32 = 2;

/// Wait before a cut stream is asked again; it doubles.
const CUT_DELAY: Duration = Duration::from_millis(250);

/// Text of an answer on its way to the reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The text.
    pub text: String,
    /// Whether it goes on behind what came before; otherwise it replaces it.
    pub append: bool,
    /// Whether it is the last one.
    pub last: bool,
}

/// Something that happens while the model answers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Progress {
    /// More text.
    Text(Piece),
    /// Content beside the text. Each has a number, from 0 in every attempt, so that another attempt replaces it.
    Artifact(usize, MadeArtifact),
    /// The text is a plain reply.
    Reply,
    /// The stream was cut, and the model is asked again.
    AskedAgain {
        /// From 2.
        attempt: u32,
        /// Why.
        error: ModelError,
    },
}

/// Asks the model and tells `progress` of its text as it comes.
///
/// # Errors
/// The last error, when no attempt came to its end.
pub(crate) async fn think(
    provider: &dyn ModelProvider,
    request: ModelRequest,
    mut progress: impl FnMut(Progress),
) -> Result<ModelAnswer, ModelError> {
    let mut shown = false;
    let mut cuts = 0;
    loop {
        let since = SystemTime::now();
        let mut writer = Writer::new(&mut shown);
        let error = match provider.complete(request.clone()).await {
            Ok(stream) => match read(measured(stream, provider, &request, since), &mut writer, &mut progress).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            },
            Err(error) => return Err(after(cuts, error)),
        };
        if !error.retryable || cuts == MAX_CUTS {
            return Err(after(cuts, error));
        }
        let delay = error.retry_after.unwrap_or(CUT_DELAY * 2u32.pow(cuts));
        cuts += 1;
        attempt::failed(&request, cuts, since, &error, delay);
        progress(Progress::AskedAgain { attempt: cuts + 1, error });
        tokio::time::sleep(delay).await;
    }
}

/// Tells the metrics when the first delta comes of what was asked for at `since`.
fn measured(
    stream: ModelStream,
    provider: &dyn ModelProvider,
    request: &ModelRequest,
    since: SystemTime,
) -> ModelStream {
    let (model, provider) = (request.model.clone(), provider.info().name);
    let mut is_first = true;
    let tell = move |delta: &Result<Delta, ModelError>| {
        if delta.is_ok() && std::mem::take(&mut is_first) {
            let waited = since.elapsed().unwrap_or_default();
            MODEL_FIRST_CHUNK.add(waited.as_secs_f64(), &[&model, &provider]);
        }
    };
    stream.inspect(tell).boxed()
}

fn after(cuts: u32, mut error: ModelError) -> ModelError {
    if cuts > 0 {
        error.message = format!("{} (after {cuts} answers that were cut)", error.message);
    }
    error
}

async fn read(
    mut stream: ModelStream,
    writer: &mut Writer<'_>,
    progress: &mut impl FnMut(Progress),
) -> Result<ModelAnswer, ModelError> {
    let mut answer = ModelAnswer { text: String::new(), calls: Vec::new(), usage: Usage::default() };
    let mut artifacts = 0;
    loop {
        let delta = match writer.due() {
            Some(due) => tokio::select! {
                biased;
                delta = stream.next() => delta,
                () = tokio::time::sleep_until(due) => {
                    writer.flush(Instant::now(), false).into_iter().for_each(|piece| progress(Progress::Text(piece)));
                    continue;
                }
            },
            None => stream.next().await,
        };
        match delta {
            Some(Ok(Delta::Text(text))) => {
                if answer.text.len() + text.len() > MAX_ANSWER_BYTES {
                    let message = format!("the answer is longer than {MAX_ANSWER_BYTES} bytes");
                    return Err(ModelError::permanent("too_large", message));
                }
                answer.text.push_str(&text);
                let piece = writer.write(&text, Instant::now());
                piece.into_iter().for_each(|piece| progress(Progress::Text(piece)));
            }
            Some(Ok(Delta::Call(call))) => answer.calls.push(call),
            Some(Ok(Delta::Reply)) => progress(Progress::Reply),
            Some(Ok(Delta::Artifact(artifact))) => {
                if artifacts == MAX_ARTIFACTS {
                    let message = format!("the answer makes more than {MAX_ARTIFACTS} artifacts");
                    return Err(ModelError::permanent("too_large", message));
                }
                progress(Progress::Artifact(artifacts, artifact));
                artifacts += 1;
            }
            Some(Ok(Delta::Usage(usage))) => answer.usage = usage,
            Some(Ok(Delta::End)) => {
                writer.flush(Instant::now(), true).into_iter().for_each(|piece| progress(Progress::Text(piece)));
                return Ok(answer);
            }
            Some(Err(error)) => return Err(error),
            None => return Err(ModelError::passing("truncated_stream", "the answer stopped before its end")),
        }
    }
}

/// Makes pieces of deltas: the first after [`FIRST_TEXT_WITHIN`], then every [`TEXT_EVERY`] or [`TEXT_BYTES`].
struct Writer<'a> {
    buffer: String,
    /// When the first delta came.
    first: Option<Instant>,
    /// When the last piece was made.
    last: Option<Instant>,
    /// Whether an attempt before this one, or this one, has shown text.
    shown: &'a mut bool,
    replaces: bool,
}

impl<'a> Writer<'a> {
    fn new(shown: &'a mut bool) -> Self {
        Self { buffer: String::new(), first: None, last: None, shown, replaces: true }
    }

    fn write(&mut self, text: &str, now: Instant) -> Option<Piece> {
        self.buffer.push_str(text);
        self.first.get_or_insert(now);
        let wait_is_over = self.due().is_none_or(|due| now >= due);
        (wait_is_over || self.buffer.len() >= TEXT_BYTES).then(|| self.flush(now, false)).flatten()
    }

    /// When the text that waits must go.
    fn due(&self) -> Option<Instant> {
        if self.buffer.is_empty() {
            return None;
        }
        let first = self.first.map(|first| first + FIRST_TEXT_WITHIN);
        self.last.map(|last| last + TEXT_EVERY).or(first)
    }

    /// The text that waits. The last piece may be empty: it says that the text is complete.
    fn flush(&mut self, now: Instant, last: bool) -> Option<Piece> {
        let nothing_to_say = if last { !*self.shown } else { true };
        if self.buffer.is_empty() && nothing_to_say {
            return None;
        }
        self.last = Some(now);
        *self.shown = true;
        let append = !std::mem::take(&mut self.replaces);
        Some(Piece { text: std::mem::take(&mut self.buffer), append, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ProviderInfo;
    use async_trait::async_trait;
    use std::sync::Mutex;

    fn piece(text: &str, append: bool, last: bool) -> Piece {
        Piece { text: text.into(), append, last }
    }

    #[test]
    fn the_first_delta_goes_within_milliseconds_and_the_rest_every_tenth_of_a_second() {
        let mut shown = false;
        let mut writer = Writer::new(&mut shown);
        let start = Instant::now();
        assert_eq!(writer.write("a", start), None);
        assert_eq!(writer.due(), Some(start + FIRST_TEXT_WITHIN));
        let start = start + FIRST_TEXT_WITHIN;
        assert_eq!(writer.flush(start, false), Some(piece("a", false, false)));
        assert_eq!(writer.write("b", start + TEXT_EVERY / 4), None);
        assert_eq!(writer.due(), Some(start + TEXT_EVERY));
        assert_eq!(writer.write("c", start + TEXT_EVERY), Some(piece("bc", true, false)));
        assert_eq!(writer.due(), None);
        let long = "x".repeat(TEXT_BYTES);
        assert_eq!(writer.write(&long, start + TEXT_EVERY), Some(piece(&long, true, false)));
        assert_eq!(writer.flush(start, true), Some(piece("", true, true)));
    }

    #[test]
    fn an_answer_that_is_there_as_a_whole_is_one_piece() {
        let mut shown = false;
        let mut writer = Writer::new(&mut shown);
        let start = Instant::now();
        assert_eq!(writer.write("do", start), None);
        assert_eq!(writer.write("ne", start), None);
        assert_eq!(writer.flush(start, true), Some(piece("done", false, true)));
    }

    #[test]
    fn an_answer_without_text_makes_no_piece() {
        let mut shown = false;
        assert_eq!(Writer::new(&mut shown).flush(Instant::now(), true), None);
    }

    /// Plays one list of deltas per call.
    /// Each delta comes so late that the text before it has been shown.
    struct Plays(Mutex<Vec<Vec<Result<Delta, ModelError>>>>);

    #[async_trait]
    impl ModelProvider for Plays {
        fn info(&self) -> ProviderInfo {
            ProviderInfo { name: "plays".into(), simulated: true }
        }

        async fn complete(&self, _: ModelRequest) -> Result<ModelStream, ModelError> {
            let late = |delta| async {
                tokio::time::sleep(2 * FIRST_TEXT_WITHIN).await;
                delta
            };
            Ok(futures::stream::iter(self.0.lock().unwrap().remove(0)).then(late).boxed())
        }
    }

    fn request() -> ModelRequest {
        ModelRequest {
            model: "m".into(),
            system: String::new(),
            messages: Vec::new(),
            tools: Vec::new(),
            seed: String::new(),
            agent: "a".into(),
            message_id: String::new(),
            trace: None,
        }
    }

    fn text(text: &str) -> Result<Delta, ModelError> {
        Ok(Delta::Text(text.into()))
    }

    #[tokio::test(start_paused = true)]
    async fn the_text_of_a_cut_answer_is_replaced_by_the_next_attempt() {
        let plays = Plays(Mutex::new(vec![vec![text("wrong"), text("")], vec![text("right"), Ok(Delta::End)]]));
        let mut seen = Vec::new();
        let answer = think(&plays, request(), |progress| seen.push(progress)).await.unwrap();
        assert_eq!(answer.text, "right");
        assert_eq!(seen[0], Progress::Text(piece("wrong", false, false)));
        assert!(matches!(&seen[1], Progress::AskedAgain { attempt: 2, .. }));
        assert_eq!(seen[2..], [Progress::Text(piece("right", false, false)), Progress::Text(piece("", true, true))]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_answer_after_a_cut_one_clears_what_was_shown() {
        let plays = Plays(Mutex::new(vec![vec![text("wrong"), text("")], vec![Ok(Delta::End)]]));
        let mut seen = Vec::new();
        think(&plays, request(), |progress| seen.push(progress)).await.unwrap();
        assert_eq!(seen.last(), Some(&Progress::Text(piece("", false, true))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_always_cut_is_an_error_that_says_how_often() {
        let plays = Plays(Mutex::new(vec![vec![], vec![], vec![]]));
        let error = think(&plays, request(), |_| {}).await.unwrap_err();
        assert_eq!(error.error_type, "truncated_stream");
        assert!(error.message.contains("after 2"), "{error}");
    }
}
