//! The addresses that are refused, one by one, and how a name is looked at.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

fn policy(allow: &[&str]) -> EgressPolicy {
    EgressPolicy::new(allow.iter().map(|text| text.parse().unwrap()).collect())
}

#[test]
fn only_public_addresses_are_public() {
    let refused = [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.100.100.200",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.0.1",
        "169.254.169.254",
        "169.254.170.2",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.7",
        "203.0.113.7",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:8.8.8.8",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "3fff::1",
        "fc00::1",
        "fd00:ec2::254",
        "fd12:3456::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "4000::1",
        "5f00::1",
    ];
    for text in refused {
        assert!(!is_public(text.parse().unwrap()), "{text}");
    }
    let public = [
        "1.1.1.1",
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.1",
        "172.15.255.255",
        "172.32.0.1",
        "192.0.1.1",
        "198.17.255.255",
        "198.20.0.1",
        "223.255.255.255",
        "2001:4860:4860::8888",
        "2606:4700::1111",
        "2a00:1450::1",
    ];
    for text in public {
        assert!(is_public(text.parse().unwrap()), "{text}");
    }
}

#[test]
fn a_url_is_refused_in_whatever_way_it_writes_an_address() {
    let closed = EgressPolicy::default();
    for url in [
        "https://127.0.0.1/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://0/",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::1]/",
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/",
        "https://[fe80::1]/",
        "https://[fd00:ec2::254]/",
        "https://１２７.０.０.１/",
        "https://10.0.0.1:8443/hook",
    ] {
        assert!(matches!(closed.target(url), Err(Refused::NotPublic(_))), "{url}: {:?}", closed.target(url));
    }
    for (url, refused) in [
        ("http://8.8.8.8/", Refused::NotHttps),
        ("http://receiver.example/", Refused::NotHttps),
        ("https://user:pass@receiver.example/", Refused::UserInfo),
        ("https://user@receiver.example/", Refused::UserInfo),
    ] {
        assert_eq!(closed.target(url), Err(refused), "{url}");
    }
    for url in [
        "",
        "receiver.example",
        "/hook",
        "ftp://8.8.8.8/",
        "file:///etc/passwd",
        "gopher://8.8.8.8/",
        "https://",
        "https://8.8.8.8/\r\nx-other: 1",
        "https://8.8.8.8/a\nb",
        "https://8.8.8.8/\tb",
        " https://8.8.8.8/",
        "https://8.8.8.8/a b",
    ] {
        assert!(matches!(closed.target(url), Err(Refused::NotAUrl(_))), "{url}: {:?}", closed.target(url));
    }
    assert!(closed.target("https://8.8.8.8/").is_ok());
    assert!(closed.target("https://[2606:4700::1111]:8443/hook?a=b").is_ok());
}

#[test]
fn what_the_operator_names_is_allowed_and_nothing_beside_it() {
    let open = policy(&["10.1.0.0/16", "fd00::/8", "hooks.internal", "127.0.0.1"]);
    for url in [
        "http://10.1.2.3/",
        "https://10.1.2.3/",
        "http://[fd12::1]/",
        "http://hooks.internal/",
        "http://HOOKS.internal./",
        "http://127.0.0.1:9/",
    ] {
        assert!(open.target(url).is_ok(), "{url}: {:?}", open.target(url));
    }
    for url in ["https://10.2.0.1/", "https://127.0.0.2/", "https://[::ffff:10.1.2.3]/", "https://[fe80::1]/"] {
        assert!(matches!(open.target(url), Err(Refused::NotPublic(_))), "{url}");
    }
    assert_eq!(open.target("http://8.8.8.8/"), Err(Refused::NotHttps), "plain text only where it is named");
    assert!(policy(&["0.0.0.0/0"]).target("http://127.0.0.1/").is_ok());
}

#[test]
fn what_is_allowed_is_a_network_or_a_host() {
    let network = |text: &str| text.parse::<Allowed>();
    assert_eq!(network("::1/128").unwrap(), network("[::1]").unwrap());
    assert_eq!(network("Hooks.Internal."), Ok(Allowed::Host("hooks.internal".into())));
    for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "*.internal", "a..b", "https://a", "a:80"] {
        assert!(network(text).is_err(), "{text}");
    }
}

#[tokio::test]
async fn a_name_that_leads_to_a_refused_address_is_refused_when_it_is_registered_and_when_it_is_dialled() {
    let closed = EgressPolicy::default();
    for url in ["https://localhost/", "https://localhost./", "https://LOCALHOST:8443/hook"] {
        assert_eq!(closed.check(url).await, Err(Refused::NotDialled { host: "localhost".into() }), "{url}");
    }
    let client = client(closed);
    let said = format!("{:?}", client.post("https://localhost:1/", http::HeaderMap::new(), Vec::new()).await);
    assert!(said.contains("no address that may be dialled"), "{said}");
}

#[tokio::test]
async fn a_refusal_does_not_tell_a_name_that_leads_inside_from_one_that_nobody_knows() {
    for (policy, scheme) in [(EgressPolicy::default(), "https"), (policy(&["10.0.0.0/8"]), "http")] {
        let mut told = Vec::new();
        for host in ["localhost", "receiver.invalid"] {
            let refused = policy.check(&format!("{scheme}://{host}/hook")).await.unwrap_err();
            told.push(refused.to_string().replace(host, "HOST"));
        }
        assert_eq!(told[0], told[1]);
    }
}

#[tokio::test]
async fn a_host_that_the_operator_named_may_lead_nowhere_yet() {
    let named = "https://receiver.invalid/hook";
    assert!(matches!(policy(&[]).check(named).await, Err(Refused::NotDialled { .. })));
    assert!(policy(&["receiver.invalid"]).check(named).await.is_ok());
}

#[tokio::test]
async fn plain_http_to_a_name_goes_only_to_networks_that_are_named() {
    let (url, hits) = receiver("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let by_name = url.replace("127.0.0.1", "localhost");
    let named = policy(&["127.0.0.0/8", "::1/128"]);
    assert!(named.check(&by_name).await.is_ok());
    let elsewhere = policy(&["10.0.0.0/8"]);
    assert_eq!(elsewhere.check(&by_name).await, Err(Refused::NotDialled { host: "localhost".into() }));
    let refused = client(elsewhere).post(&by_name, http::HeaderMap::new(), Vec::new()).await;
    assert!(matches!(&refused, Posted::Failed { why, .. } if why.contains("no address that may")), "{refused:?}");
    assert_eq!(hits.load(Ordering::SeqCst), 0, "nothing was dialled");
    let taken = client(policy(&["localhost"])).post(&by_name, http::HeaderMap::new(), b"{}".to_vec()).await;
    assert_eq!(taken, Posted::Taken(200));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (inner, inner_hits) = receiver("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let redirect = format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {inner}\r\ncontent-length: 0\r\n\r\n");
    let (outer, _) = receiver(redirect.leak()).await;
    let posted = client(policy(&["127.0.0.1"])).post(&outer, http::HeaderMap::new(), Vec::new()).await;
    assert!(matches!(&posted, Posted::Failed { why, .. } if why.contains("redirects are not followed")), "{posted:?}");
    assert_eq!(inner_hits.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn what_a_receiver_answers_says_whether_and_when_to_try_again() {
    let post = async |answer: &'static str| {
        let (url, _) = receiver(answer).await;
        client(policy(&["127.0.0.1"])).post(&url, http::HeaderMap::new(), b"{}".to_vec()).await
    };
    assert_eq!(post("HTTP/1.1 204 No Content\r\n\r\n").await, Posted::Taken(204));
    assert_eq!(post("HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n").await, Posted::Gone);
    let busy = post("HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n").await;
    assert!(matches!(busy, Posted::Failed { retry_after: Some(wait), .. } if wait.as_secs() == 7), "{busy:?}");
    let far = post("HTTP/1.1 503 Busy\r\nretry-after: 99999999\r\ncontent-length: 0\r\n\r\n").await;
    assert!(matches!(far, Posted::Failed { retry_after: Some(LONGEST_RETRY_AFTER), .. }), "{far:?}");
}

fn client(policy: EgressPolicy) -> EgressClient {
    let _already_there = rustls::crypto::ring::default_provider().install_default();
    EgressClient::new(Arc::new(policy)).unwrap()
}

/// Answers every connection with the same bytes, and counts them.
async fn receiver(answer: &'static str) -> (String, Arc<AtomicUsize>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let hits = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&hits);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let mut head = [0; 4096];
            let _broken = socket.read(&mut head).await;
            let _broken = socket.write_all(answer.as_bytes()).await;
        }
    });
    (url, hits)
}
