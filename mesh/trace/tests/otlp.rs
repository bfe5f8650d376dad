//! Spans arrive at a collector, and a collector that is gone or silent never holds the process up.
//!
//! One test after the other: a process has one tracing installation.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::{ResourceSpans, Span as WireSpan, status::StatusCode},
};
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use towline_core::TraceContext;
use towline_trace::{Guard, Kind, LostSpan, Settings, Span, install, names, recent, report_lost};

/// How long a span may take to arrive: the batch delay is a second.
const ARRIVAL: Duration = Duration::from_secs(10);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn spans_and_lost_spans_arrive_with_their_ids_and_resource() {
    let _alone = alone();
    let collector = Collector::start();
    let guard = install_for(collector.address);
    let root = Span::root("root", Kind::Server);
    let mut child = Span::child("child", Kind::Client, &root.context());
    child.fail(names::error::TIMEOUT, "too slow");
    let (root_context, child_context) = (root.context(), child.context());
    drop(child);
    drop(root);
    let lost = TraceContext { span_id: 0x1234, ..root_context };
    report_lost(LostSpan {
        name: "invoke_agent x".into(),
        kind: Kind::Internal,
        context: lost,
        parent_span_id: root_context.span_id,
        start_ms: 1,
        end_ms: 2,
        attributes: vec![],
    });

    let received = collector.wait_for(3);
    let find = |name: &str| received.iter().flat_map(spans).find(|span| span.name == name).cloned().unwrap();
    assert_eq!(find("root").trace_id, root_context.trace_id.to_be_bytes());
    assert_eq!(find("child").parent_span_id, root_context.span_id.to_be_bytes());
    assert_eq!(find("child").span_id, child_context.span_id.to_be_bytes());
    assert_eq!(find("child").status.unwrap().code, StatusCode::Error as i32);
    assert_eq!(find("invoke_agent x").span_id, 0x1234_u64.to_be_bytes());
    let resource: Vec<String> =
        received[0].resource.iter().flat_map(|resource| &resource.attributes).map(|pair| pair.key.clone()).collect();
    for key in [names::SERVICE_NAME, names::SERVICE_INSTANCE_ID, names::NODE_ID, names::CLUSTER_ID] {
        assert!(resource.iter().any(|found| found == key), "{key} in {resource:?}");
    }
    assert_eq!(recent(root_context.trace_id).len(), 3);
    drop(guard);
}

#[test]
fn what_was_not_sent_yet_is_sent_when_the_guard_is_dropped() {
    let _alone = alone();
    let collector = Collector::start();
    let guard = install_for(collector.address);
    Span::root("last words", Kind::Internal).end();
    drop(guard);
    assert!(collector.received().iter().flat_map(spans).any(|span| span.name == "last words"));
}

#[test]
fn a_dead_collector_does_not_hold_up_the_end() {
    let _alone = alone();
    let address = Runtime::new().unwrap().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    });
    assert_ends_soon(address);
}

#[test]
fn a_collector_that_never_answers_does_not_hold_up_the_end() {
    let _alone = alone();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    assert_ends_soon(silent.local_addr().unwrap());
}

#[test]
fn after_the_guard_is_gone_spans_have_ids_and_go_nowhere() {
    let _alone = alone();
    let collector = Collector::start();
    drop(install_for(collector.address));
    let span = Span::root("late", Kind::Internal);
    assert_ne!(span.context().trace_id, 0);
    let trace_id = span.context().trace_id;
    drop(span);
    assert!(recent(trace_id).is_empty());
}

fn assert_ends_soon(address: SocketAddr) {
    let guard = install_for(address);
    Span::root("lost words", Kind::Internal).end();
    let begin = Instant::now();
    drop(guard);
    assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
}

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn install_for(address: SocketAddr) -> Guard {
    install(Settings {
        service_name: "towline".into(),
        node_id: "1".into(),
        node_name: "a".into(),
        cluster: "test".into(),
        otlp: Some(format!("http://{address}")),
        ..Settings::default()
    })
    .unwrap()
}

fn spans(resource: &ResourceSpans) -> impl Iterator<Item = &WireSpan> {
    resource.scope_spans.iter().flat_map(|scope| &scope.spans)
}

/// A collector on loopback that keeps what it gets.
struct Collector {
    address: SocketAddr,
    store: Store,
    _runtime: Runtime,
}

#[derive(Clone, Default)]
struct Store(Arc<Mutex<Vec<ResourceSpans>>>);

impl Collector {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let store = Store::default();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(store.clone()));
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, store, _runtime: runtime }
    }

    fn received(&self) -> Vec<ResourceSpans> {
        self.store.0.lock().unwrap().clone()
    }

    fn wait_for(&self, many: usize) -> Vec<ResourceSpans> {
        let begin = Instant::now();
        loop {
            let received = self.received();
            if received.iter().flat_map(spans).count() >= many {
                return received;
            }
            assert!(begin.elapsed() < ARRIVAL, "{many} spans did not arrive: {received:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[tonic::async_trait]
impl TraceService for Store {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.0.lock().unwrap().extend(request.into_inner().resource_spans);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}
