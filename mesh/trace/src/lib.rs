//! Spans as Towline speaks them: explicit parents, one file of names, and a ring of recent spans in every process.
//!
//! Each hop of a request crosses a mailbox or a wire, so a span's parent is always given as a `TraceContext` and
//! nothing here depends on a thread-local context. The `tracing` macros are for logs only.
//!
//! ```text
//! Span (ends on drop) ──┬──▶ ring of recent spans ──▶ `recent(trace_id)`   always, in memory
//! report_lost ──────────┘──▶ gate ──▶ batches ──▶ OTLP                      when an endpoint is configured
//!                        └──▶ instruments ──▶ `metrics::snapshot()`         always, sampled or not
//! ```

mod content;
mod export;
mod gate;
mod measured;
pub mod metrics;
pub mod names;
mod otlp;
mod record;
mod ring;
mod span;

pub use content::{Capture, is_secret_name, redacted};
pub use export::{Guard, InstallError, Settings, install};
pub use gate::SpanCounts;
pub use opentelemetry::{KeyValue, Value};
pub use otlp::Protocol;
pub use record::{EventRecord, Kind, LinkRecord, SpanRecord};
pub use span::{LostSpan, Span, captures, counts, recent, report_lost, ui_link};
