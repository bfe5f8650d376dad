//! Multi-process tests of Towline, and the harness they share.
//!
//! The product under test is the real binary: nodes are processes, reached over HTTP like any client reaches them. What the
//! nodes reach is ours and does what a test tells it: [`FakeModel`] speaks OpenAI's chat completions, [`FakePeer`] speaks
//! A2A, and the program `towline-scripted-mcp` speaks MCP.
//!
//! Nothing here sleeps and hopes: [`eventually`] asks again until a state is there, and fails the test after its limit.
#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a harness that cannot go on fails the test")]

mod a2a_client;
mod binaries;
mod cli;
mod cluster;
mod elsewhere;
mod fake_collector;
mod fake_mcp;
mod fake_model;
mod fake_peer;
mod made;
mod observer;
mod ports;
mod wait;
mod webhook_receiver;

pub use a2a_client::{A2aClient, RpcError, http_client, state_of, task_of, text_message, text_of_artifacts};
pub use binaries::{scripted_mcp, towline};
pub use cli::{Ran, run_cli, run_cli_in};
pub use cluster::{Cluster, Plan, TestNode, base_config};
pub use elsewhere::{Asked, Elsewhere, Manners};
pub use fake_collector::FakeCollector;
pub use fake_mcp::{FakeMcp, Says};
pub use fake_model::{Answer, Chat, FakeModel, Gate};
pub use fake_peer::{FakePeer, PeerScript};
pub use made::{made_base64, made_bytes};
pub use observer::{Observer, Seen, concatenated_text};
pub use ports::free_port;
pub use wait::{LONG, eventually, within};
pub use webhook_receiver::{Call, Takes, WebhookReceiver};
