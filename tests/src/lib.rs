//! Multi-process tests of Towline, and the harness they share.
