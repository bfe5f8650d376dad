//! The mesh as an MCP server, over real processes: sessions that outlive their node, tools of other servers, standard input
//! and output, and what must not be served.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod client;
mod gateway;
mod serving;
mod stdio;
