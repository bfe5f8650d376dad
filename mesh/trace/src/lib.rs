//! Spans as Towline speaks them: one constants file, explicit parents, a ring of recent spans.
