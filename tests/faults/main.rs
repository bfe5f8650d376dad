//! What the outside world does to an agent: models, MCP servers and peers that fail in the middle.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod abroad;
mod collector;
mod in_doubt;
mod logs;
mod mcp_asks;
mod mcp_consent;
mod mcp_down;
mod mcp_server;
mod metrics;
mod model;
mod own_mesh;
mod peer;
mod push;
mod push_urls;
mod reports;
mod sockets;
mod traces;
mod trifecta;
