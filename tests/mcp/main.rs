//! The mesh as an MCP server, over real processes: sessions that outlive their node, tools of other servers, standard input
//! and output, and what must not be served. And the bridge by which agents of others reach MCP servers over A2E.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bridge;
mod bridge_agent;
mod client;
mod gateway;
mod serving;
mod stdio;
mod subscribing;
