//! The supervision tree: dispatcher, agents, task runs, MCP connections, delegations, models.

pub mod config;

pub use config::{
    AgentConfig, McpServerConfig, McpTransport, MeshConfig, ModelConfig, ModelTimeouts, PeerConfig, Provider, Secret,
};
