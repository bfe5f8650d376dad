//! One binary: an actor-based, distributed agent mesh.
//!
//! ```text
//! main ─▶ cli ─▶ commands/* ──HTTP──▶ a node's listen.http
//!                   └─ node ─▶ config ─▶ startup ─▶ a2a, api (listen.http), peer_server (listen.peer), mesh
//! ```
//! The node asks the core how a task may change and the cluster in which order; nothing here decides either.

pub mod a2a;
pub mod a2e;
pub mod api;
pub mod auth;
pub mod bench;
mod bug_report;
mod changes;
pub mod cli;
mod commands;
pub mod config;
pub mod demo;
mod descriptors;
pub mod dev;
mod doctor;
mod ephemeral;
pub mod error;
mod feed;
#[doc(hidden)]
pub mod fuzz;
pub mod hooks;
mod jaeger_json;
pub mod mcp_files;
pub mod mcp_server;
mod metrics;
pub mod output;
pub mod peer_server;
mod recovered_spans;
pub mod sign_in;
mod signals;
pub mod startup;
pub mod telemetry;
pub mod waterfall;
mod why;
