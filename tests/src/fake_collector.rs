//! A collector over OTLP/HTTP that takes everything, or hangs, or is not there.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use axum::{Router, body::Bytes, extract::State, routing::post};
use tokio::{net::TcpListener, task::JoinHandle};

#[derive(Debug, Default)]
struct Shared {
    hangs: AtomicBool,
    spans: AtomicUsize,
    metrics: Mutex<Vec<u8>>,
}

/// A running collector; it stops when it is dropped.
#[derive(Debug)]
pub struct FakeCollector {
    /// Its base URL, the same after each restart.
    pub url: String,
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: Option<JoinHandle<()>>,
}

impl FakeCollector {
    /// Starts one.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let serving = Some(serve(listener, Arc::clone(&shared)));
        Self { url: format!("http://{address}"), address, shared, serving }
    }

    /// From now on it takes requests and answers none, or answers again.
    pub fn hang(&self, hangs: bool) {
        self.shared.hangs.store(hangs, Ordering::SeqCst);
    }

    /// It is gone, with all its connections.
    pub async fn kill(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            // It was aborted.
            let _ = serving.await;
        }
    }

    /// It is there again, where it was.
    pub async fn start_again(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.serving = Some(serve(listener, Arc::clone(&self.shared)));
    }

    /// How many exports of spans it has taken.
    pub fn exports(&self) -> usize {
        self.shared.spans.load(Ordering::SeqCst)
    }

    /// Whether a push of metrics named this one.
    pub fn was_told_of(&self, metric: &str) -> bool {
        let pushed = self.shared.metrics.lock().unwrap();
        pushed.windows(metric.len()).any(|window| window == metric.as_bytes())
    }
}

impl Drop for FakeCollector {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

fn serve(listener: TcpListener, shared: Arc<Shared>) -> JoinHandle<()> {
    let router = Router::new().route("/v1/traces", post(spans)).route("/v1/metrics", post(metrics)).with_state(shared);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap_or_default() })
}

async fn spans(State(shared): State<Arc<Shared>>, _: Bytes) {
    answer(&shared).await;
    shared.spans.fetch_add(1, Ordering::SeqCst);
}

async fn metrics(State(shared): State<Arc<Shared>>, body: Bytes) {
    answer(&shared).await;
    *shared.metrics.lock().unwrap() = body.to_vec();
}

async fn answer(shared: &Shared) {
    if shared.hangs.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
}
