//! Dialling where an outsider says: the guard between a URL of a client and this node's network.
//!
//! A URL is looked at when it is registered ([`EgressPolicy::check`]) and again at each request ([`EgressClient`]). A name is
//! resolved once per connection, and that connection goes to the addresses that were looked at, so that a name cannot show one
//! address to the check and another to the dial. One address that is refused refuses the whole name. No redirect is
//! followed and no proxy is used. Allowed are global addresses over https, and what the operator names: hosts and networks.

use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

/// How long a name may take to resolve.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Until a connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// For one request with its answer: what the protocol advises is 10 to 30 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// How long an unused connection is kept: the next dial then looks at the name again.
const KEEP_CONNECTION: Duration = Duration::from_secs(30);

/// Unused connections to one host.
const IDLE_PER_HOST: usize = 4;

/// Most of an answer that is read, in bytes; what it says is not used, only its connection is.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Longest wait that a receiver may ask for: beyond it the wait is not believed.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3_600);

/// A network, or a host by its name, that the operator allows although it is not public.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// All addresses whose first bits are these.
    Network {
        /// Any address of it.
        address: IpAddr,
        /// How many bits.
        bits: u8,
    },
    /// A host, in lower case, wherever its name leads.
    Host(String),
}

/// What is neither a network nor a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither a network, as in 10.0.0.0/8, nor a host name, as in hooks.internal")]
pub struct InvalidAllowed(String);

impl FromStr for Allowed {
    type Err = InvalidAllowed;

    fn from_str(text: &str) -> Result<Self, InvalidAllowed> {
        let invalid = || InvalidAllowed(text.to_owned());
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| invalid())?;
            let bits: u8 = bits.parse().map_err(|_| invalid())?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            return if bits <= most { Ok(Allowed::Network { address, bits }) } else { Err(invalid()) };
        }
        if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            return Ok(Allowed::Network { address, bits });
        }
        let is_label =
            |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        let name = host_name(text);
        if name.split('.').all(is_label) { Ok(Allowed::Host(name)) } else { Err(invalid()) }
    }
}

/// Names are compared in lower case and without the dot at their end.
fn host_name(text: &str) -> String {
    text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase()
}

/// Why a URL is not dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Text that is no URL with a host.
    #[error("is not a URL with a host, such as https://receiver.example/hook: {0}")]
    NotAUrl(String),
    /// A name or password in the URL.
    #[error("has a name or password before its host: put them into the authentication")]
    UserInfo,
    /// Plain text towards somebody whom the operator did not name.
    #[error("is not https: plain http goes only where the operator allows it (push.allow)")]
    NotHttps,
    /// An address behind which things lie that are not for outsiders.
    #[error("leads to {0}, which is not a public address: the operator can allow it (push.allow)")]
    NotPublic(IpAddr),
    /// A name that nobody knows, or one that leads to where outsiders may not have a node dial. Which of both is in the log of the
    /// node alone: else a stranger could ask for the names of the network around it.
    #[error(
        "names host {host}, which leads to no address that may be dialled: public ones over https, and others that the operator allows (push.allow)"
    )]
    NotDialled {
        /// The name.
        host: String,
    },
}

/// A URL that may be dialled, if its name leads to addresses that may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    url: Url,
    /// Whether only addresses do that the operator named, since the connection is plain.
    named_only: bool,
}

impl Target {
    /// The address, if the host is one.
    pub fn literal(&self) -> Option<IpAddr> {
        literal(&self.url)
    }

    /// Whether the connection is encrypted.
    pub fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }
}

fn authority(url: &Url) -> String {
    format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default())
}

fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

/// Where an outsider may have this node dial.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressPolicy {
    allowed: Vec<Allowed>,
}

impl EgressPolicy {
    /// Public addresses over https, and these.
    pub fn new(allowed: Vec<Allowed>) -> Self {
        Self { allowed }
    }

    /// Reads a URL, and refuses what no resolving of its name could make good.
    ///
    /// # Errors
    /// Why it is not dialled.
    pub fn target(&self, text: &str) -> Result<Target, Refused> {
        // A parser passes over line breaks and tabs: the text would not be the URL that is dialled.
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(Refused::NotAUrl("it has spaces, line breaks or control characters".to_owned()));
        }
        let url = Url::parse(text).map_err(|error| Refused::NotAUrl(error.to_string()))?;
        let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
            return Err(Refused::NotAUrl("it has no host".to_owned()));
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::UserInfo);
        }
        let named_host = self.names_host(host);
        let named_only = match url.scheme() {
            "https" => false,
            "http" if named_host => false,
            "http" if self.allowed.iter().any(|allowed| matches!(allowed, Allowed::Network { .. })) => true,
            "http" => return Err(Refused::NotHttps),
            other => return Err(Refused::NotAUrl(format!("its scheme is {other}"))),
        };
        if let Some(address) = literal(&url) {
            self.check_address(address, named_only)?;
        }
        Ok(Target { url, named_only })
    }

    /// Reads a URL and looks at where its name leads at the moment: for its registration. A host that the operator named may
    /// lead anywhere, also nowhere yet.
    ///
    /// # Errors
    /// Why it is not dialled.
    pub async fn check(&self, text: &str) -> Result<Target, Refused> {
        let target = self.target(text)?;
        let host = target.url.host_str().unwrap_or_default();
        if target.literal().is_none() && !self.names_host(host) {
            self.resolve(host, target.named_only).await?;
        }
        Ok(target)
    }

    /// Has a client for this target connect only where the policy allows: no proxy stands between, and what a name leads to is
    /// looked at by who dials it.
    pub(crate) fn guarded(
        self: &Arc<Self>,
        builder: reqwest::ClientBuilder,
        target: &Target,
    ) -> reqwest::ClientBuilder {
        let resolver = GuardedResolver { policy: Arc::clone(self), named_only: target.named_only };
        builder.no_proxy().redirect(reqwest::redirect::Policy::none()).dns_resolver(Arc::new(resolver))
    }

    fn names_host(&self, host: &str) -> bool {
        let host = host_name(host);
        self.allowed.iter().any(|allowed| matches!(allowed, Allowed::Host(name) if *name == host))
    }

    fn names_address(&self, address: IpAddr) -> bool {
        let covers = |allowed: &Allowed| match allowed {
            Allowed::Network { address: network, bits } => is_within(address, *network, *bits),
            Allowed::Host(_) => false,
        };
        self.allowed.iter().any(covers)
    }

    fn check_address(&self, address: IpAddr, named_only: bool) -> Result<(), Refused> {
        match (self.names_address(address), named_only) {
            (true, _) => Ok(()),
            (false, true) => Err(Refused::NotHttps),
            (false, false) if is_public(address) => Ok(()),
            (false, false) => Err(Refused::NotPublic(address)),
        }
    }

    /// The addresses behind a name, if all of them may be dialled.
    async fn resolve(&self, host: &str, named_only: bool) -> Result<Vec<SocketAddr>, Refused> {
        let name = host_name(host);
        self.looked_up(&name, named_only).await.map_err(|problem| {
            tracing::info!(host = name, problem, "the host of a webhook is not dialled");
            Refused::NotDialled { host: name }
        })
    }

    /// The same, or what is wrong: for the log.
    async fn looked_up(&self, name: &str, named_only: bool) -> Result<Vec<SocketAddr>, String> {
        let found = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((name, 0))).await;
        let found = found.map_err(|_| format!("no answer within {RESOLVE_TIMEOUT:?}"))?;
        let addresses: Vec<SocketAddr> = found.map_err(|error| error.to_string())?.collect();
        if addresses.is_empty() {
            return Err("it has no address".to_owned());
        }
        if !self.names_host(name) {
            let refused = |refused: Refused| format!("it {refused}");
            addresses.iter().try_for_each(|address| self.check_address(address.ip(), named_only).map_err(refused))?;
        }
        Ok(addresses)
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

/// IPv4 networks that are not for everybody (IANA's registry of special purposes), multicast and reserved.
const SPECIAL_V4: [(Ipv4Addr, u8); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// The IPv6 network of global unicast addresses: all others are loopback, local, mapped, translated, multicast or reserved.
const GLOBAL_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Networks within it that are not for everybody, or lead to an IPv4 address that is not looked at: protocol assignments with
/// Teredo, documentation, 6to4.
const SPECIAL_V6: [(Ipv6Addr, u8); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Whether an address is one of the public internet.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => !SPECIAL_V4.iter().any(|(network, bits)| is_within(address, IpAddr::V4(*network), *bits)),
        IpAddr::V6(_) => {
            is_within(address, IpAddr::V6(GLOBAL_V6.0), GLOBAL_V6.1)
                && !SPECIAL_V6.iter().any(|(network, bits)| is_within(address, IpAddr::V6(*network), *bits))
        }
    }
}

/// Resolves names for connections, and gives only addresses that were looked at.
struct GuardedResolver {
    policy: Arc<EgressPolicy>,
    named_only: bool,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (policy, named_only) = (Arc::clone(&self.policy), self.named_only);
        Box::pin(async move {
            let addresses = policy.resolve(name.as_str(), named_only).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// What came of a post.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Posted {
    /// A status code from 200 to 299.
    Taken(u16),
    /// The receiver is gone for good: status 410.
    Gone,
    /// Anything else.
    Failed {
        /// What, for a person.
        why: String,
        /// When the receiver says that another try is worth it.
        retry_after: Option<Duration>,
    },
}

/// Sends requests to where the policy allows.
pub struct EgressClient {
    policy: Arc<EgressPolicy>,
    public: reqwest::Client,
    named: reqwest::Client,
}

impl EgressClient {
    /// A client that keeps to a policy.
    ///
    /// # Errors
    /// When no TLS can be set up.
    pub fn new(policy: Arc<EgressPolicy>) -> Result<Self, reqwest::Error> {
        let client = |named_only| {
            reqwest::Client::builder()
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .dns_resolver(Arc::new(GuardedResolver { policy: Arc::clone(&policy), named_only }))
                .connect_timeout(CONNECT_TIMEOUT)
                .timeout(REQUEST_TIMEOUT)
                .pool_idle_timeout(KEEP_CONNECTION)
                .pool_max_idle_per_host(IDLE_PER_HOST)
                .tcp_nodelay(true)
                .build()
        };
        Ok(Self { public: client(false)?, named: client(true)?, policy })
    }

    /// The host and port that a URL leads to, for logs and for fairness between hosts; the same text for all that are refused.
    pub fn authority_of(&self, url: &str) -> String {
        self.policy.target(url).map_or_else(|_| "nowhere".to_owned(), |target| authority(&target.url))
    }

    /// A request to a URL, for who reads the answer.
    ///
    /// # Errors
    /// Why it is not dialled.
    pub(crate) fn request(&self, method: http::Method, url: &str) -> Result<reqwest::RequestBuilder, Refused> {
        let target = self.policy.target(url)?;
        let client = if target.named_only { &self.named } else { &self.public };
        Ok(client.request(method, target.url))
    }

    /// Posts a body. The answer is read up to a bound and dropped.
    pub async fn post(&self, url: &str, headers: http::HeaderMap, body: Vec<u8>) -> Posted {
        let failed = |why: String| Posted::Failed { why, retry_after: None };
        let target = match self.policy.target(url) {
            Ok(target) => target,
            Err(refused) => return failed(format!("not dialled: the URL {refused}")),
        };
        let client = if target.named_only { &self.named } else { &self.public };
        let answer = match client.post(target.url).headers(headers).body(body).send().await {
            Ok(answer) => answer,
            Err(error) => return failed(told(&error.without_url())),
        };
        let (status, retry_after) = (answer.status(), retry_after(answer.headers()));
        drain(answer).await;
        match status.as_u16() {
            taken @ 200..=299 => Posted::Taken(taken),
            410 => Posted::Gone,
            300..=399 => failed(format!("status {status}: redirects are not followed")),
            _ => Posted::Failed { why: format!("status {status}"), retry_after },
        }
    }
}

/// Reads the rest of an answer, if it is short, so that its connection can be used again.
async fn drain(mut answer: reqwest::Response) {
    let mut read = 0;
    while let Ok(Some(chunk)) = answer.chunk().await {
        read += chunk.len();
        if read > MAX_ANSWER_BYTES {
            return;
        }
    }
}

fn retry_after(headers: &http::HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER))
}

/// The last cause says the most: "refused", "not a public address", "certificate expired".
fn told(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let last = cause.to_string();
    let first = error.to_string();
    if first == last { first } else { format!("{first}: {last}") }
}

impl fmt::Debug for EgressClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressClient").field("policy", &self.policy).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
