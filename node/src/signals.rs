//! The signals of a node: the first that asks for its end begins a stop in order, the second ends it at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::error::CliError;

/// A process that a signal ended has this exit code and the number of the signal, as shells have it.
const ENDED_BY_SIGNAL: i32 = 128;

/// What a node listens to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

/// Has SIGTERM and SIGINT cancel the token; the second of them ends the process with 128 and its number. SIGHUP ends nothing:
/// a node outlives the terminal that it was started from.
///
/// # Errors
/// When the system lets nobody listen.
pub(crate) fn watch(stop: CancellationToken) -> Result<(), CliError> {
    let signals = Signals::listen().map_err(CliError::other)?;
    // Ends with the runtime of the node: a stop may be cut short until its last moment.
    tokio::spawn(signals.follow(stop));
    Ok(())
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn follow(mut self, stop: CancellationToken) {
        let mut was_asked = false;
        loop {
            let kind = tokio::select! {
                _ = self.terminate.recv() => SignalKind::terminate(),
                _ = self.interrupt.recv() => SignalKind::interrupt(),
                _ = self.hang_up.recv() => {
                    tracing::info!("SIGHUP: nothing is read again, and the node goes on");
                    continue;
                }
            };
            if was_asked {
                tracing::warn!("told to stop a second time: ending at once; the other nodes take up what ran here");
                std::process::exit(ENDED_BY_SIGNAL + kind.as_raw_value());
            }
            was_asked = true;
            tracing::info!("stopping; a second signal ends the node at once");
            stop.cancel();
        }
    }
}
