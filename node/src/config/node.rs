//! `node:` – who this node is and where it listens.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
use towline_core::Labels;

use super::{
    auth::{read_certificates, read_pem},
    labels,
    section::{Field, Section},
    values::{host_port, http_url, listen_address, plain_name, resolve, url_text},
};
use crate::auth::TlsSettings;

/// Default of `node.listen.http`.
pub const DEFAULT_HTTP: &str = "127.0.0.1:7420";
/// Default of `node.listen.peer`.
pub const DEFAULT_PEER: &str = "127.0.0.1:7421";
/// Default of `node.data`, beside the file.
pub const DEFAULT_DATA: &str = "data";
/// Default of `node.permits`: most of a task is waiting for a model.
const DEFAULT_PERMITS: u32 = 32;
/// More side by side than this is a mistake on any machine.
const MAX_PERMITS: u32 = 100_000;

/// `node:`
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Name of the node, for people.
    pub name: String,
    /// Folder of log, snapshots and identity.
    pub data: PathBuf,
    /// Where clients connect.
    pub http: SocketAddr,
    /// Where other nodes connect.
    pub peer: SocketAddr,
    /// How clients write the address of `http`, if not as it listens.
    pub public_url: Option<String>,
    /// How other nodes reach `peer`, if not as it listens.
    pub advertise_peer: Option<String>,
    /// How many tasks run at the same time.
    pub permits: u32,
    /// What it is called, for agents that run on some nodes only.
    pub labels: Labels,
    /// A socket for programs of this machine, if there is one.
    pub unix: Option<PathBuf>,
    /// TLS of `http`, if it speaks it.
    pub tls: Option<TlsSettings>,
}

impl NodeSettings {
    /// What clients speak with `http`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// What a socket may be written with.
const UNIX: &str = "unix://";

/// Reads the section; a default stands where a mistake was noted.
pub(crate) fn read(root: &mut Section<'_>) -> NodeSettings {
    let section = root.get("node").and_then(|field| field.section());
    let Some(mut section) = section else {
        root.mistake("node is missing: write node: { name: a }");
        return fallback();
    };
    let name = section.required("name", "a").and_then(|field| field.parse(plain_name));
    let data = section.get("data");
    let base = root_base(root);
    let data = data.and_then(|field| field.text()).unwrap_or(DEFAULT_DATA);
    let (http, peer, unix) = read_listen(&mut section, &base);
    let public_url = section.get("public_url").and_then(|field| field.parse(http_url)).map(|url| url_text(&url));
    let advertise_peer = section.get("advertise_peer").and_then(|field| field.parse(host_port));
    if peer.ip().is_unspecified() && advertise_peer.is_none() {
        section.mistake("advertise_peer is missing: listen.peer is on every address, so say how other nodes reach it, as in advertise_peer: 10.0.0.1:7421");
    }
    let permits = section.get("permits").and_then(|field| field.number(1, MAX_PERMITS)).unwrap_or(DEFAULT_PERMITS);
    let labels = labels::read(&mut section);
    let tls = section.get("tls").and_then(|field| read_tls(&field));
    section.finish();
    NodeSettings {
        name: name.unwrap_or_default(),
        data: resolve(&base, data),
        http,
        peer,
        public_url,
        advertise_peer,
        permits,
        labels,
        unix,
        tls,
    }
}

fn root_base(root: &Section<'_>) -> PathBuf {
    root.context().base.clone()
}

fn fallback() -> NodeSettings {
    NodeSettings {
        name: String::new(),
        data: DEFAULT_DATA.into(),
        http: known(DEFAULT_HTTP),
        peer: known(DEFAULT_PEER),
        public_url: None,
        advertise_peer: None,
        permits: DEFAULT_PERMITS,
        labels: Labels::new(),
        unix: None,
        tls: None,
    }
}

fn read_listen(node: &mut Section<'_>, base: &Path) -> (SocketAddr, SocketAddr, Option<PathBuf>) {
    let defaults = (known(DEFAULT_HTTP), known(DEFAULT_PEER), None);
    let Some(mut section) = node.get("listen").and_then(|field| field.section()) else { return defaults };
    let http = section.get("http").and_then(|field| field.parse(listen_address)).unwrap_or(defaults.0);
    let peer_field = section.get("peer");
    let peer = peer_field.as_ref().and_then(|field| field.parse(listen_address)).unwrap_or(defaults.1);
    if http == peer && http.port() != 0 {
        section.mistake(format!("http and peer are both {http}: they need a port each"));
    }
    let unix = section.get("unix").and_then(|field| field.parse(|text| socket_path(base, text)));
    section.finish();
    (http, peer, unix)
}

/// A path, or the URL of one; a relative one begins where the file is.
fn socket_path(base: &Path, text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix(UNIX).unwrap_or(text);
    if path.contains("://") || path.is_empty() || path.ends_with('/') {
        return Err(format!(
            "{text:?} is no path of a socket: write unix:///run/towline.sock, or a path beside this file"
        ));
    }
    Ok(resolve(base, path))
}

/// The certificate of the listener for clients, with its chain, and its key: PEM files.
fn read_tls(field: &Field<'_>) -> Option<TlsSettings> {
    let mut section = field.section()?;
    let certificates = section.required("certificate", "FILE").and_then(|field| read_certificates(&field));
    let key = section.required("key", "FILE").and_then(|field| {
        field.parse(|path| {
            let pem = read_pem(&field, path)?;
            PrivateKeyDer::from_pem_slice(&pem).map_err(|error| format!("file {path}: {error}"))
        })
    });
    section.finish();
    Some(TlsSettings { certificates: certificates?, key: key?, client_ca: Vec::new() })
}

fn known(address: &str) -> SocketAddr {
    address.parse().expect("a constant of this file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_written_as_a_url_or_as_a_path() {
        let base = Path::new("/etc/towline");
        assert_eq!(socket_path(base, "unix:///run/towline.sock"), Ok("/run/towline.sock".into()));
        assert_eq!(socket_path(base, "/run/towline.sock"), Ok("/run/towline.sock".into()));
        assert_eq!(socket_path(base, "towline.sock"), Ok("/etc/towline/towline.sock".into()));
        for wrong in ["http://x", "unix://", "/run/"] {
            assert!(socket_path(base, wrong).is_err(), "{wrong}");
        }
    }
}
