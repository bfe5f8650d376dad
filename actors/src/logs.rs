//! What every line of the log says that belongs to a task.

use tokio::task::JoinHandle;
use towline_core::{TaskId, TraceContext};
use tracing::{Instrument as _, Span};

/// The span of `tracing` in which a task's work is done. It is for logs alone; `towline_trace` has the spans of traces. Its level is the
/// highest, so that it is there whatever the filter leaves out. A message takes it along from who sends it to who handles it.
pub(crate) fn of_task(task: TaskId, trace: &TraceContext) -> Span {
    tracing::error_span!("task", %task, trace_id = trace.trace_id_hex())
}

/// Starts work in a span; whoever starts it owns it.
pub(crate) fn spawn<T: Send + 'static>(span: &Span, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(work.instrument(span.clone()))
}
