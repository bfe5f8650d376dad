//! The world that all nodes live in: one clock, and what each node's machine makes of it.
//!
//! Everything runs on one thread. While a node's runtime runs, the node is the current one, and whatever asks for the time, a
//! connection or the disk is answered for it.

use std::{cell::RefCell, io, sync::Arc, time::Duration};

use tokio::time::Instant;
use towline_cluster::seams::{BlobDisk, Clock, Dialing, Disk, Machine};

use crate::{
    disk::SimDisk,
    net::{self, Net},
};

/// One step of the world. Timers of the nodes fire on its borders, like those of a kernel.
pub const TICK: Duration = Duration::from_millis(1);
/// What the wall clocks show when the world begins: long after the certificates' first second.
const WALL_AT_START: Duration = Duration::from_secs(1_800_000_000);
/// Records of ended tasks go to the archive so soon, that most of a run happens to archived tasks as well.
const ARCHIVE_AFTER: Duration = Duration::from_millis(700);
/// A disk that nothing slows down takes up to this for a sync.
const SYNC_TAKES_MS: u64 = 4;

/// The world.
pub struct World {
    /// When the tick began.
    now: Duration,
    current: Option<usize>,
    machines: Vec<MachineState>,
    /// What happens by chance between and inside of machines.
    pub rng: fastrand::Rng,
    /// Connections between machines.
    pub net: Net,
}

/// A machine, whether or not a node runs on it.
struct MachineState {
    /// The time of the world when the runtime's clock showed `base`.
    origin: Duration,
    base: Option<Instant>,
    /// How long it slept: its monotonic clock stood still.
    slept: Duration,
    /// How far its wall clock is ahead, in milliseconds.
    skew_ms: i64,
    disk: SimDisk,
    /// What each sync takes longer, at most.
    slow_disk: Duration,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Makes the world of this process.
pub fn begin(seed: u64, machines: usize) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let machine = |number| MachineState {
        origin: Duration::ZERO,
        base: None,
        slept: Duration::ZERO,
        skew_ms: 0,
        disk: SimDisk::new(number),
        slow_disk: Duration::ZERO,
    };
    let machines = (0..machines).map(|_| machine(rng.u64(..))).collect();
    let net = Net::default();
    WORLD.set(Some(World { now: Duration::ZERO, current: None, machines, rng, net }));
    towline_cluster::seams::install(Box::new(Simulated));
}

/// Does something with the world.
pub fn with<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| f(world.as_mut().expect("the world was begun")))
}

/// The time: inside of a node as far as its runtime has come in this tick.
pub fn now() -> Duration {
    with(|world| world.time())
}

/// What the wall clock of the machine shows whose node runs.
pub fn wall() -> Duration {
    with(|world| world.read_clock(Clock::Wall))
}

/// The node that runs.
pub fn current() -> Option<usize> {
    WORLD.with_borrow(|world| world.as_ref().and_then(|world| world.current))
}

impl World {
    /// Goes to the next tick.
    pub fn advance(&mut self) -> Duration {
        self.now += TICK;
        self.now
    }

    fn time(&self) -> Duration {
        let machine = self.current.map(|current| &self.machines[current]);
        match machine.and_then(|machine| Some((machine, machine.base?))) {
            Some((machine, base)) => machine.origin + base.elapsed(),
            None => self.now,
        }
    }

    /// From here on a node runs, or none.
    pub fn enter(&mut self, node: Option<usize>) {
        self.current = node;
    }

    /// A runtime begins on a machine, and its clock shows `base`.
    pub fn boot(&mut self, node: usize, base: Instant) {
        let now = self.now;
        let machine = &mut self.machines[node];
        machine.origin = now;
        machine.base = Some(base);
    }

    /// The machine slept for so long, and wakes: the clock of its runtime stood still.
    pub fn wake(&mut self, node: usize, slept: Duration) {
        let machine = &mut self.machines[node];
        machine.origin += slept;
        machine.slept += slept;
    }

    /// Somebody sets the wall clock of a machine.
    pub fn set_clock(&mut self, node: usize, by_ms: i64) {
        self.machines[node].skew_ms += by_ms;
    }

    /// From here on each sync of a machine takes up to this longer.
    pub fn slow_disk(&mut self, node: usize, by: Duration) {
        self.machines[node].slow_disk = by;
    }

    /// The disk of a machine.
    pub fn disk(&self, node: usize) -> SimDisk {
        self.machines[node].disk.clone()
    }

    fn machine(&self) -> &MachineState {
        // What a node drops as it dies may still read a clock: then any machine's will do.
        &self.machines[self.current.unwrap_or_default()]
    }

    fn read_clock(&self, clock: Clock) -> Duration {
        let now = self.time();
        match clock {
            Clock::Boot => now,
            Clock::Monotonic => now - self.machine().slept,
            Clock::Wall => {
                let skew = Duration::from_millis(self.machine().skew_ms.unsigned_abs());
                if self.machine().skew_ms < 0 { WALL_AT_START + now - skew } else { WALL_AT_START + now + skew }
            }
        }
    }
}

/// The machine of whatever node runs.
struct Simulated;

impl Machine for Simulated {
    fn read_clock(&self, clock: Clock) -> Duration {
        with(|world| world.read_clock(clock))
    }

    fn dial(&self, address: &str) -> Dialing {
        let Some(to) = net::machine_of(address) else {
            let unknown = io::Error::new(io::ErrorKind::NotFound, format!("no machine has the address {address}"));
            return Box::pin(std::future::ready(Err(unknown)));
        };
        Box::pin(net::dial(to))
    }

    fn disk(&self) -> Arc<dyn Disk> {
        with(|world| Arc::new(world.machine().disk.clone()))
    }

    fn blob_disk(&self) -> Arc<dyn BlobDisk> {
        with(|world| Arc::new(world.machine().disk.clone()))
    }

    fn archive_after(&self) -> Duration {
        ARCHIVE_AFTER
    }

    fn sync_takes(&self) -> Duration {
        with(|world| {
            let slow = u64::try_from(world.machine().slow_disk.as_millis()).unwrap_or(u64::MAX);
            Duration::from_millis(world.rng.u64(0..=SYNC_TAKES_MS) + world.rng.u64(0..=slow))
        })
    }
}
