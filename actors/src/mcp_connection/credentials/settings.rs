//! How this node shows a server who it is, as configured.

use std::path::PathBuf;

use crate::{config::Secret, egress::Allowed};

/// How this node shows a server who it is, and how it knows the server.
#[derive(Debug, Clone, Default)]
pub struct McpSecurity {
    /// What it says in its requests.
    pub auth: McpAuth,
    /// What it shows, and wants to see, on its connections.
    pub tls: Option<McpTls>,
    /// Where what a person let this node have is kept; nowhere if none, so that it ends with the process.
    pub folder: Option<PathBuf>,
}

/// What a node says in its requests to a server.
#[derive(Debug, Clone, Default)]
pub enum McpAuth {
    /// The headers of the transport, and no more.
    #[default]
    Headers,
    /// A token that an authorization server gives.
    OAuth(OAuthSettings),
    /// A signature of AWS, version 4.
    SigV4(SigV4Settings),
}

/// Who asks for tokens, and how.
#[derive(Debug, Clone, Default)]
pub struct OAuthSettings {
    /// Whose word is taken.
    pub grant: OAuthGrant,
    /// As which this node is known to the authorization server; it registers by itself if none.
    pub client_id: Option<String>,
    /// What proves that.
    pub client_secret: Option<Secret>,
    /// What is asked for; what the server wants, if empty.
    pub scopes: Vec<String>,
    /// The authorization server; the one that the MCP server names, if none.
    pub issuer: Option<String>,
    /// Where the authorization server may be although that is no public address.
    pub allow: Vec<Allowed>,
}

/// Whose word a token is given for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OAuthGrant {
    /// A person's, who logs in: `towline mcp login`.
    #[default]
    Login,
    /// This node's own.
    ClientCredentials,
}

/// What requests are signed with.
#[derive(Debug, Clone)]
pub struct SigV4Settings {
    /// Region, as in `eu-central-1`.
    pub region: String,
    /// Service, as in `execute-api`.
    pub service: String,
    /// Access key id.
    pub access_key: String,
    /// Secret access key.
    pub secret_key: Secret,
    /// Token of a session, for keys that end.
    pub session_token: Option<Secret>,
}

/// Certificates of a connection. Files may be replaced at any time: what is in them counts for the next connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct McpTls {
    /// Authorities that vouch for the server, PEM; those of the machine if none.
    pub ca: Option<PathBuf>,
    /// Certificate of this node and its key, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The SPIFFE ID that the server has to have, in the place of a name; needs `ca`.
    pub spiffe_id: Option<String>,
}
