//! What a server sends, read as a connection reads it: the first byte says over what.

use rmcp::model::{CustomResult, ElicitRequestParams, ServerResult};
use serde_json::Value;
use tokio_util::bytes::Bytes;

use super::{call, spool::Spool};
use futures::{StreamExt as _, executor::block_on, stream};

/// A pipe, a stream of events, or a body, in pieces.
pub fn mcp_answer(bytes: &[u8]) {
    let Some((way, bytes)) = bytes.split_first() else { return };
    let spool = Spool::new(None);
    let wanted = spool.want_originals();
    let pieces: Vec<_> = bytes.chunks(usize::from(*way).max(1)).map(Bytes::copy_from_slice).collect();
    let pieces = stream::iter(pieces).map(Ok::<_, std::io::Error>).boxed();
    if way % 2 == 0 {
        let events = spool.events(pieces);
        block_on(events.for_each(|_| std::future::ready(())));
    } else if let Ok(Some(body)) = block_on(spool.body(pieces)) {
        assert!(body.len() <= bytes.len() + 64 * bytes.len(), "a body grows by tokens only");
        if let Ok(answer) = serde_json::from_slice::<Value>(&body) {
            let result = answer.get("result").cloned().unwrap_or(answer);
            drop(serde_json::from_value::<ElicitRequestParams>(result.clone()));
            drop(block_on(call::read_result(ServerResult::CustomResult(CustomResult::new(result)), &spool)));
        }
    }
    for id in ["0", "1", "\"1\"", ""] {
        if let Some(original) = wanted.take(id) {
            assert!(
                serde_json::from_str::<serde::de::IgnoredAny>(original.get()).is_ok() || original.get().len() > 128
            );
        }
    }
}
