//! Tasks through any node: the same answers everywhere, canceling, and the limits of what runs at once.

mod any_node;
mod cancel;
mod command_line;
mod permits;
