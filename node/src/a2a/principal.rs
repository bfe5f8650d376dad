//! Who asks: the one place where a [`Principal`] of a caller is made.
//!
//! On the public door that is whom the gate (`auth::gate`) has found out by what the request shows. Who shows nothing is
//! the operator where nothing is configured, and only from this machine: the connection comes from a loopback address,
//! the `Host` header names this node (a page that rebinds its own name to 127.0.0.1 names itself), and there is no
//! `Origin` header (no browser page may act as the operator). On the peer door it is what the certificate and the
//! headers of a delegation say; elsewhere those headers mean nothing.

use std::net::{IpAddr, SocketAddr};

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header, request::Parts};
use serde_json::json;
use towline_cluster::NotAdmitted;
use towline_core::{NodeId, ParentLink, Principal, StepNo};

use super::{Door, Shared};
use crate::auth::{KnownBy, Refusal, Standing, Style};

/// The full principal for which a node of this cluster asks, as JSON.
const ON_BEHALF_OF: &str = "towline-on-behalf-of";
/// The delegating task.
const PARENT_TASK: &str = "towline-parent-task";
/// The delegating step.
const PARENT_STEP: &str = "towline-parent-step";
/// How many delegations lie above the task.
const HOP: &str = "towline-hop";
/// When the caller gives up, in milliseconds from now.
const DEADLINE_MS: &str = "towline-deadline-ms";

/// What proxies say of whom they speak for.
const FORWARDED: [&str; 6] =
    ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];

/// Who asks, and what a delegation says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Who asks.
    pub principal: Principal,
    /// The delegation that asks.
    pub parent: Option<ParentLink>,
    /// How many delegations lie above it.
    pub hop: u32,
    /// When it gives up, in milliseconds from now.
    pub deadline_ms: Option<u64>,
    /// What it may do.
    pub standing: Standing,
}

impl Caller {
    /// Somebody who asks from outside of the mesh.
    pub fn new(principal: Principal, standing: Standing) -> Self {
        Self { principal, parent: None, hop: 0, deadline_ms: None, standing }
    }
}

/// Why a caller is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A connection from elsewhere.
    #[error("this listener serves the operator of its own machine only, over loopback")]
    NotLoopback,
    /// A page in a browser.
    #[error("requests with an Origin header are refused: a web page must not act as the operator")]
    Origin,
    /// A proxy.
    #[error(
        "requests through a proxy (header {header}) are not the operator's: say who may call in the section auth: of the configuration"
    )]
    Forwarded {
        /// By what it is known.
        header: &'static str,
    },
    /// A name that is not this node's.
    #[error("Host {host:?} is not a name of this node: use localhost, 127.0.0.1 or the node's public_url")]
    Host {
        /// What was asked for.
        host: String,
    },
    /// A peer whose certificate lets it not in.
    #[error(transparent)]
    NotAdmitted(#[from] NotAdmitted),
    /// A request of the public door that has not come through its gate.
    #[error("nobody is known to ask")]
    Nobody,
    /// A header of a delegation that cannot be read.
    #[error("header {header} is missing or cannot be read")]
    Header {
        /// Which.
        header: &'static str,
    },
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = match self {
            Refused::Nobody => return Refusal::Nobody.answer(Style::JsonRpc),
            Refused::NotLoopback
            | Refused::Origin
            | Refused::Forwarded { .. }
            | Refused::Host { .. }
            | Refused::NotAdmitted(
                NotAdmitted::NoCertificate | NotAdmitted::Removed { .. } | NotAdmitted::OtherKey { .. },
            ) => StatusCode::FORBIDDEN,
            // It may be known in a moment.
            Refused::NotAdmitted(NotAdmitted::Unknown { .. }) => StatusCode::SERVICE_UNAVAILABLE,
            Refused::Header { .. } => StatusCode::BAD_REQUEST,
        };
        let body = json!({ "error": self.to_string() }).to_string();
        (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}

/// Lets whoever reads a card in: on the public door everybody, on the peer door members.
pub(super) fn reader(parts: &Parts, shared: &Shared) -> Result<(), Refused> {
    match shared.door {
        Door::Public => Ok(()),
        Door::Peer => caller(parts, shared).map(|_| ()),
    }
}

/// Who stands behind a request that came through the door of `shared`.
pub(super) fn caller(parts: &Parts, shared: &Shared) -> Result<Caller, Refused> {
    match shared.door {
        Door::Public => parts.extensions.get::<Caller>().cloned().ok_or(Refused::Nobody),
        Door::Peer => {
            let node = shared.settings.cluster.admit(parts.extensions.get())?;
            peer(&parts.headers, node)
        }
    }
}

/// Lets the operator in, and nobody else. `peer` is where the connection comes from.
///
/// # Errors
/// Why this is not the operator.
pub fn local_operator(headers: &HeaderMap, peer: Option<SocketAddr>, public_url: &str) -> Result<(), Refused> {
    if !peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) {
        return Err(Refused::NotLoopback);
    }
    if headers.contains_key(header::ORIGIN) {
        return Err(Refused::Origin);
    }
    // A proxy on this machine speaks for somebody who may be anywhere.
    if let Some(header) = FORWARDED.into_iter().find(|header| headers.contains_key(*header)) {
        return Err(Refused::Forwarded { header });
    }
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if is_name_of_node(host, public_url) { Ok(()) } else { Err(Refused::Host { host: shown_host(host) }) }
}

/// Whether a `Host` names this node: an address or the name of this machine's own network, or the host of its public URL.
pub(crate) fn is_name_of_node(host: &str, public_url: &str) -> bool {
    let Some(name) = host_name(host) else { return false };
    let is_public = public_url.split_once("://").is_some_and(|(_, rest)| {
        let authority = rest.split('/').next().unwrap_or_default();
        host_name(authority).is_some_and(|public| public.eq_ignore_ascii_case(name))
    });
    is_loopback_name(name) || is_public
}

/// A `Host` as it is told back.
pub(crate) fn shown_host(host: &str) -> String {
    host.chars().take(64).collect()
}

/// The caller of the peer door: the node itself, or the agent for which it says to act.
fn peer(headers: &HeaderMap, node: NodeId) -> Result<Caller, Refused> {
    let principal = match text(headers, ON_BEHALF_OF)? {
        None => Principal::Node(node),
        Some(principal) => match serde_json::from_str(principal) {
            Ok(principal @ (Principal::Agent { .. } | Principal::Operator | Principal::Named { .. })) => principal,
            // A node speaks for itself by its certificate only.
            Ok(Principal::Node(_)) | Err(_) => return Err(Refused::Header { header: ON_BEHALF_OF }),
        },
    };
    let parent = match (parsed(headers, PARENT_TASK)?, parsed(headers, PARENT_STEP)?) {
        (None, None) => None,
        (Some(task), Some(step)) => Some(ParentLink { task, step: StepNo(step) }),
        (Some(_), None) => return Err(Refused::Header { header: PARENT_STEP }),
        (None, Some(_)) => return Err(Refused::Header { header: PARENT_TASK }),
    };
    let hop = parsed(headers, HOP)?.unwrap_or(0);
    Ok(Caller {
        principal,
        parent,
        hop,
        deadline_ms: parsed(headers, DEADLINE_MS)?,
        standing: Standing::unlimited(KnownBy::Mesh),
    })
}

fn text<'a>(headers: &'a HeaderMap, header: &'static str) -> Result<Option<&'a str>, Refused> {
    headers.get(header).map(|value| value.to_str().map_err(|_| Refused::Header { header })).transpose()
}

fn parsed<T: std::str::FromStr>(headers: &HeaderMap, header: &'static str) -> Result<Option<T>, Refused> {
    text(headers, header)?.map(|value| value.trim().parse().map_err(|_| Refused::Header { header })).transpose()
}

/// A host without its port; none if there is anything else in it.
fn host_name(authority: &str) -> Option<&str> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.find(':').map_or((authority, ""), |at| authority.split_at(at)),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    let is_port =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    (is_port && !name.is_empty() && name.bytes().all(is_name)).then_some(name)
}

pub(super) fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests;
