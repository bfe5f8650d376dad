//! Which of an agent's interfaces is spoken, and whether its terms are accepted.

use a2a_pb::protojson_conv;
use reqwest::Url;
use serde_json::Value;

use super::{
    RemoteCard,
    socket::{SocketUrl, is_socket_binding},
};

/// A binding of A2A 1.0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Binding {
    /// JSON-RPC 2.0 (spec 9).
    #[default]
    JsonRpc,
    /// HTTP+JSON (spec 11).
    HttpJson,
    /// gRPC (spec 10).
    Grpc,
}

impl Binding {
    fn named(name: &str) -> Option<Self> {
        [Binding::JsonRpc, Binding::HttpJson, Binding::Grpc]
            .into_iter()
            .find(|known| known.name().eq_ignore_ascii_case(name))
    }

    /// As cards name it.
    pub fn name(self) -> &'static str {
        match self {
            Binding::JsonRpc => a2a::TRANSPORT_PROTOCOL_JSONRPC,
            Binding::HttpJson => a2a::TRANSPORT_PROTOCOL_HTTP_JSON,
            Binding::Grpc => a2a::TRANSPORT_PROTOCOL_GRPC,
        }
    }
}

/// An interface that a card names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteInterface {
    /// Where it is.
    pub url: String,
    /// Its binding, as the card names it.
    pub binding: String,
    /// Its version of the protocol.
    pub version: String,
    /// What each request has to name, if anything.
    pub tenant: Option<String>,
}

/// Where and how an agent is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The URL that is dialled: on the host that was configured.
    pub url: String,
    /// How.
    pub binding: Binding,
    /// What each request names.
    pub tenant: Option<String>,
    /// Whether it streams.
    pub streams: bool,
}

/// Terms of a card that we cannot meet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TermsRefused {
    /// It does not speak with who lacks these.
    #[error("its card requires extensions that are not spoken here: {}", .0.join(", "))]
    Extensions(Vec<String>),
    /// It speaks nothing that we do.
    #[error("its card offers no interface of A2A 1.x over JSONRPC, HTTP+JSON or GRPC; it offers {0}")]
    Interfaces(String),
}

/// The extension by which the cards of a mesh say which one it is. There is nothing in it to be activated.
pub const MESH_EXTENSION: &str = "https://towline.dev/a2a/extensions/mesh";

/// What a card says of its mesh: as an extension.
pub fn mesh_extension(mark: &str) -> Value {
    serde_json::json!({
        "uri": MESH_EXTENSION,
        "description": "All nodes of a mesh have the same mark, and no other mesh has it: so a mesh sees that it would delegate to itself.",
        "params": { "mark": mark },
    })
}

impl RemoteCard {
    /// The mark of the mesh that shows this card; none if it shows none.
    pub fn mesh_mark(&self) -> Option<&str> {
        let extensions = self.raw.pointer("/capabilities/extensions")?.as_array()?;
        let mesh = extensions.iter().find(|extension| extension["uri"] == MESH_EXTENSION)?;
        mesh.pointer("/params/mark")?.as_str()
    }

    /// The first interface of the card that is spoken here and lies on the configured host; the configured URL itself where
    /// the card names other hosts only, as behind a proxy. A card never leads a call, and the credentials that go with it,
    /// to another place: HTTP interfaces have the origin of the configured URL, gRPC has its host, and its port too when
    /// credentials are sent.
    ///
    /// # Errors
    /// When the card requires what we lack, or offers nothing that we speak.
    pub fn terms(&self, configured: &str, with_credentials: bool) -> Result<Terms, TermsRefused> {
        if !self.required_extensions.is_empty() {
            return Err(TermsRefused::Extensions(self.required_extensions.clone()));
        }
        let spoken: Vec<(&RemoteInterface, Binding)> = self
            .interfaces
            .iter()
            .filter(|interface| interface.version.split('.').next() == Some("1"))
            .filter_map(|interface| Some((interface, spoken_at(configured, &interface.binding)?)))
            .collect();
        let made = |interface: &RemoteInterface, binding, url: String| Terms {
            url,
            binding,
            tenant: interface.tenant.clone().filter(|tenant| !tenant.is_empty()),
            streams: self.streaming,
        };
        let near = spoken.iter().find_map(|(interface, binding)| {
            dialled(&interface.url, configured, *binding, with_credentials).map(|url| made(interface, *binding, url))
        });
        let elsewhere = || {
            let (interface, binding) = spoken.iter().find(|(_, binding)| *binding == Binding::JsonRpc)?;
            Some(made(interface, *binding, configured.to_owned()))
        };
        near.or_else(elsewhere).ok_or_else(|| {
            let offered: Vec<String> =
                self.interfaces.iter().map(|one| format!("{} {} at {}", one.binding, one.version, one.url)).collect();
            TermsRefused::Interfaces(if offered.is_empty() { "none".to_owned() } else { offered.join(", ") })
        })
    }
}

/// What the binding that a card names is here. JSON-RPC over a socket is spoken only where a socket is configured.
fn spoken_at(configured: &str, binding: &str) -> Option<Binding> {
    let by_socket = SocketUrl::of(configured).is_some() && is_socket_binding(binding);
    if by_socket { Some(Binding::JsonRpc) } else { Binding::named(binding) }
}

/// The URL of an interface, if it lies where the configuration says.
fn dialled(named: &str, configured: &str, binding: Binding, with_credentials: bool) -> Option<String> {
    if let Some(socket) = SocketUrl::of(configured) {
        return SocketUrl::of(named).filter(|url| url.is_beside(&socket)).map(|_| named.to_owned());
    }
    let base = Url::parse(configured).ok()?;
    let named = match binding {
        Binding::JsonRpc | Binding::HttpJson => named.to_owned(),
        // gRPC is named without a scheme.
        Binding::Grpc => {
            let bare = named.strip_prefix("dns:///").unwrap_or(named);
            if bare.contains("://") { bare.to_owned() } else { format!("{}://{bare}", base.scheme()) }
        }
    };
    let url = Url::parse(&named).ok()?;
    let same_origin = url.origin() == base.origin();
    let same_host = url.scheme() == base.scheme() && url.host() == base.host();
    let is_near = match binding {
        Binding::JsonRpc | Binding::HttpJson => same_origin,
        Binding::Grpc => same_origin || (same_host && !with_credentials),
    };
    is_near.then_some(named)
}

/// Reads an agent card.
///
/// # Errors
/// What is wrong with it, in words.
pub fn card_from_wire(raw: Value) -> Result<RemoteCard, String> {
    let card: a2a::AgentCard = protojson_conv::from_value(raw.clone()).map_err(|error| error.to_string())?;
    let interfaces: Vec<RemoteInterface> = card
        .supported_interfaces
        .into_iter()
        .map(|interface| RemoteInterface {
            url: interface.url,
            binding: interface.protocol_binding,
            version: interface.protocol_version,
            tenant: interface.tenant,
        })
        .collect();
    let speaks_json_rpc = |interface: &&RemoteInterface| {
        Binding::named(&interface.binding) == Some(Binding::JsonRpc) && interface.version.split('.').next() == Some("1")
    };
    let jsonrpc_url = interfaces.iter().find(speaks_json_rpc).map(|interface| interface.url.clone());
    let extensions = card.capabilities.extensions.unwrap_or_default();
    let required = extensions.into_iter().filter(|extension| extension.required == Some(true));
    let tags = card.skills.iter().flat_map(|skill| skill.tags.clone()).collect();
    Ok(RemoteCard {
        name: card.name,
        description: card.description,
        version: card.version,
        streaming: card.capabilities.streaming.unwrap_or(false),
        skills: card.skills.into_iter().map(|skill| (skill.id, skill.description)).collect(),
        tags,
        jsonrpc_url,
        interfaces,
        required_extensions: required.map(|extension| extension.uri).collect(),
        raw,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn card(interfaces: &Value, extensions: &Value) -> RemoteCard {
        card_from_wire(json!({
            "name": "legal", "description": "d", "version": "1", "supportedInterfaces": interfaces,
            "capabilities": { "streaming": true, "extensions": extensions },
            "defaultInputModes": [], "defaultOutputModes": [],
            "skills": [{ "id": "s", "name": "s", "description": "s", "tags": ["law"] }],
        }))
        .unwrap()
    }

    fn interface(url: &str, binding: &str, version: &str) -> Value {
        json!({ "url": url, "protocolBinding": binding, "protocolVersion": version })
    }

    #[test]
    fn the_first_interface_on_the_configured_host_is_spoken() {
        let interfaces = json!([
            interface("https://evil.example/a2a", "JSONRPC", "1.0"),
            interface("https://legal.example/old", "JSONRPC", "0.3"),
            interface("https://legal.example/rest", "HTTP+JSON", "1.0"),
            interface("https://legal.example/rpc", "JSONRPC", "1.0"),
        ]);
        let terms = card(&interfaces, &json!([])).terms("https://legal.example", true).unwrap();
        assert_eq!((terms.url.as_str(), terms.binding), ("https://legal.example/rest", Binding::HttpJson));
        assert!(terms.streams);
    }

    #[test]
    fn a_card_that_names_other_hosts_only_redirects_nothing() {
        for named in
            ["https://evil.example/a2a", "http://legal.example/a2a", "https://legal.example:8443/", "not a url"]
        {
            let terms =
                card(&json!([interface(named, "JSONRPC", "1.0")]), &json!([])).terms("https://legal.example/in", true);
            assert_eq!(terms.unwrap().url, "https://legal.example/in", "{named}");
        }
        let refused = card(&json!([interface("https://evil.example/", "HTTP+JSON", "1.0")]), &json!([]))
            .terms("https://legal.example", false);
        assert!(matches!(refused, Err(TermsRefused::Interfaces(_))), "{refused:?}");
    }

    #[test]
    fn grpc_on_another_port_of_the_host_is_spoken_only_without_credentials() {
        let card = card(&json!([interface("127.0.0.1:9001", "GRPC", "1.0")]), &json!([]));
        let terms = card.terms("http://127.0.0.1:9000", false).unwrap();
        assert_eq!((terms.url.as_str(), terms.binding), ("http://127.0.0.1:9001", Binding::Grpc));
        assert!(card.terms("http://127.0.0.1:9000", true).is_err());
        assert!(card.terms("http://127.0.0.1:9001", true).is_ok());
    }

    #[test]
    fn over_a_socket_json_rpc_is_spoken_there_and_nowhere_else() {
        let own = "https://towline.dev/a2a/binding/jsonrpc-unix";
        let socket = interface("unix:///run/a.sock", own, "1.0");
        let http = interface("http://127.0.0.1:7420/agents/reader", "JSONRPC", "1.0");
        let offered = card(&json!([http, socket]), &json!([]));
        let terms = offered.terms("unix:///run/a.sock", false).unwrap();
        assert_eq!((terms.url.as_str(), terms.binding), ("unix:///run/a.sock", Binding::JsonRpc));
        let terms = offered.terms("unix:///run/other.sock:/in", false).unwrap();
        assert_eq!(terms.url, "unix:///run/other.sock:/in", "a card leads to no other socket");
        let terms = offered.terms("http://127.0.0.1:7420", false).unwrap();
        assert_eq!(terms.url, "http://127.0.0.1:7420/agents/reader");
        let only = card(&json!([interface("unix:///run/a.sock", own, "1.0")]), &json!([]));
        assert!(only.terms("https://a.example", false).is_err());
    }

    #[test]
    fn an_extension_that_is_required_and_not_spoken_is_refused() {
        let extensions =
            json!([{ "uri": "https://x.example/pay", "required": true }, { "uri": "https://x.example/nice" }]);
        let refused = card(&json!([interface("https://a.example/", "JSONRPC", "1.0")]), &extensions)
            .terms("https://a.example", false)
            .unwrap_err();
        assert!(refused.to_string().contains("https://x.example/pay"), "{refused}");
        assert!(!refused.to_string().contains("nice"), "{refused}");
    }
}
