//! The ways to a collector: over HTTP as over gRPC, with headers and TLS; what a collector that is gone for a while costs; and
//! that nothing is lost at the end, whatever runtime the program has.
//!
//! One test after the other: a process has one tracing installation.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use towline_core::TraceContext;
use towline_trace::{Capture, Kind, Protocol, Settings, Span, counts, install, names, recent};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    // As the program does when it starts; another test may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn settings(collector: &Collector) -> Settings {
    Settings {
        service_name: "towline".into(),
        otlp: Some(format!("http://{}", collector.address)),
        protocol: Some(Protocol::HttpProtobuf),
        ..Settings::default()
    }
}

#[test]
fn spans_go_over_http_with_the_headers_of_the_settings() {
    let _alone = alone();
    let collector = Collector::start(None);
    let headers = vec![("authorization".to_owned(), "Bearer x".to_owned())];
    let guard = install(Settings { headers, ..settings(&collector) }).unwrap();
    Span::root("over http", Kind::Internal).end();
    drop(guard);
    let request = collector.requests().pop().unwrap();
    assert!(request.head.starts_with("POST /v1/traces "), "{}", request.head);
    assert!(request.head.contains("authorization: Bearer x"), "{}", request.head);
    assert_eq!(collector.names(), ["over http"]);
}

#[test]
fn nothing_is_lost_at_the_end_whatever_runtime_the_program_has() {
    let _alone = alone();
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let small = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let ends: [(&str, &dyn Fn(towline_trace::Guard)); 3] = [
        ("none", &drop::<towline_trace::Guard>),
        ("current", &|guard| current.block_on(async move { drop(guard) })),
        ("one worker", &|guard| small.block_on(async move { tokio::spawn(async move { drop(guard) }).await.unwrap() })),
    ];
    for (runtime, end) in ends {
        let collector = Collector::start(None);
        let guard = install(settings(&collector)).unwrap();
        (0..600).for_each(|_| Span::root("one of many", Kind::Internal).end());
        let began = Instant::now();
        end(guard);
        assert!(began.elapsed() < LIMIT, "{runtime}: took {:?}", began.elapsed());
        assert_eq!(collector.names().len(), 600, "{runtime}");
    }
}

#[test]
fn a_collector_that_is_gone_for_a_while_costs_spans_that_are_counted_and_nothing_else() {
    let _alone = alone();
    let collector = Collector::start(None);
    let guard = install(settings(&collector)).unwrap();
    Span::root("before", Kind::Internal).end();
    eventually("the first span", || collector.names().contains(&"before".to_owned()));

    collector.refuses.store(true, Ordering::Relaxed);
    let (began, mut made) = (Instant::now(), 0_u64);
    while counts().dropped == 0 {
        let each = Instant::now();
        Span::root("meanwhile", Kind::Internal).end();
        made += 1;
        assert!(each.elapsed() < LIMIT, "a span waited for the collector");
        assert!(began.elapsed() < LIMIT, "{made} spans, and none was dropped");
    }
    let waiting = made - counts().failed - counts().dropped;
    assert!(waiting <= 16_384, "{waiting} spans wait: the queue has a bound");
    eventually("a failed export", || counts().failed > 0);

    collector.refuses.store(false, Ordering::Relaxed);
    eventually("spans to flow again", || {
        Span::root("after", Kind::Internal).end();
        collector.names().contains(&"after".to_owned())
    });
    assert!(counts().exported > 1);
    drop(guard);
}

#[test]
fn an_authority_that_is_named_is_trusted_and_another_is_not() {
    let _alone = alone();
    let authority = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for (ca, arrives) in [(&authority, true), (&other, false)] {
        let collector = Collector::start(Some(&authority));
        let endpoint = format!("https://localhost:{}", collector.address.port());
        let ca = Some(ca.cert.pem().into_bytes());
        let guard = install(Settings { otlp: Some(endpoint), ca, ..settings(&collector) }).unwrap();
        Span::root("in private", Kind::Internal).end();
        drop(guard);
        assert_eq!(collector.names().len(), usize::from(arrives));
    }
}

#[test]
fn a_part_of_the_traces_is_sampled_and_a_callers_decision_is_kept() {
    let _alone = alone();
    let guard = install(Settings { sample: Some(0.0), ..Settings::default() }).unwrap();
    let root = Span::root("mine", Kind::Server).context();
    assert!(!root.sampled && recent(root.trace_id).is_empty());
    let caller = TraceContext { trace_id: 5, span_id: 6, sampled: true };
    assert!(Span::child("the caller's", Kind::Server, &caller).context().sampled);
    assert_eq!(recent(5).len(), 1);
    drop(guard);
}

#[test]
fn what_is_said_is_on_no_span_unless_it_is_asked_for() {
    let _alone = alone();
    for (capture, key) in [
        (Capture::Off, None),
        (Capture::Metadata, Some("gen_ai.input.messages.bytes")),
        (Capture::Redacted, Some(names::GEN_AI_INPUT_MESSAGES)),
        (Capture::Full, Some(names::GEN_AI_INPUT_MESSAGES)),
    ] {
        let guard = install(Settings { capture, ..Settings::default() }).unwrap();
        let mut span = Span::root("chat", Kind::Client);
        span.content(names::GEN_AI_INPUT_MESSAGES, || "write to x@example.org".into());
        let trace = span.context().trace_id;
        span.end();
        let shown = &recent(trace)[0].attributes;
        assert_eq!(shown.keys().next().map(String::as_str), key, "{capture:?}");
        let has_address = shown.values().any(|value| value.to_string().contains("x@example.org"));
        assert_eq!(has_address, capture == Capture::Full, "{shown:?}");
        drop(guard);
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "waited {LIMIT:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A collector that speaks as much HTTP as an exporter does, with or without TLS, and refuses when it is told to.
struct Collector {
    address: SocketAddr,
    refuses: Arc<AtomicBool>,
    requests: Arc<Mutex<Vec<Received>>>,
}

#[derive(Clone)]
struct Received {
    head: String,
    body: Vec<u8>,
}

impl Collector {
    fn start(tls: Option<&rcgen::CertifiedKey<rcgen::KeyPair>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let collector = Self { address, refuses: Arc::default(), requests: Arc::default() };
        let (refuses, requests) = (Arc::clone(&collector.refuses), Arc::clone(&collector.requests));
        let tls = tls.map(|key| {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = rustls::ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(
                    vec![key.cert.der().clone()],
                    rustls::pki_types::PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into()),
                )
                .unwrap();
            Arc::new(config)
        });
        // It ends with the process: a listener that nobody asks costs nothing.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (refuses, requests, tls) = (Arc::clone(&refuses), Arc::clone(&requests), tls.clone());
                std::thread::spawn(move || match tls {
                    None => serve(stream, &refuses, &requests),
                    Some(config) => {
                        let session = rustls::ServerConnection::new(config).unwrap();
                        serve(rustls::StreamOwned::new(session, stream), &refuses, &requests)
                    }
                });
            }
        });
        collector
    }

    fn requests(&self) -> Vec<Received> {
        self.requests.lock().unwrap().clone()
    }

    /// Names of the spans that came.
    fn names(&self) -> Vec<String> {
        let decoded = |request: Received| ExportTraceServiceRequest::decode(request.body.as_slice()).unwrap();
        let spans = self.requests().into_iter().map(decoded).flat_map(|request| request.resource_spans);
        let spans = spans.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans);
        spans.map(|span| span.name).collect()
    }
}

fn serve(stream: impl Read + Write, refuses: &AtomicBool, requests: &Mutex<Vec<Received>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        if stream.read_exact(&mut body).is_err() {
            return;
        }
        let status = if refuses.load(Ordering::Relaxed) {
            "503 Service Unavailable"
        } else {
            requests.lock().unwrap().push(Received { head, body });
            "200 OK"
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        if stream.get_mut().write_all(answer.as_bytes()).and_then(|()| stream.get_mut().flush()).is_err() {
            return;
        }
    }
}
