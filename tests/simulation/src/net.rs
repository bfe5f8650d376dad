//! Connections between machines: streams of bytes that arrive late, in order, or not at all.
//!
//! It behaves as TCP does. What a cut keeps back arrives when it is mended, a lost packet delays what is behind it, a process
//! that dies resets its connections, a machine that loses power just falls silent until it is back.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::world;

/// How long a packet takes at least and, while nothing is wrong, at most, in milliseconds.
const PACKET_TAKES_MS: std::ops::RangeInclusive<u64> = 1..=3;
/// How long TCP takes to send a lost packet again, in milliseconds.
const RESENT_AFTER_MS: std::ops::RangeInclusive<u64> = 200..=400;

/// The peer listener of a machine.
pub fn address_of(machine: usize) -> String {
    format!("10.0.0.{}:7421", machine + 1)
}

/// The machine with an address.
pub fn machine_of(address: &str) -> Option<usize> {
    let last = address.strip_prefix("10.0.0.")?.strip_suffix(":7421")?;
    last.parse::<usize>().ok()?.checked_sub(1)
}

/// All connections.
#[derive(Default)]
pub struct Net {
    next: u64,
    connections: BTreeMap<u64, Connection>,
    dials: BTreeMap<u64, Dial>,
    listeners: BTreeMap<usize, Listener>,
    /// Machines without power.
    dark: BTreeSet<usize>,
    /// From whom nothing gets to whom.
    cut: BTreeSet<(usize, usize)>,
    /// What each packet takes longer, at most.
    pub slow: Duration,
    /// How many of a thousand packets are lost, and sent again.
    pub lost_per_mille: u32,
}

#[derive(Default)]
struct Listener {
    /// Who dialled, and the connection.
    arrived: VecDeque<(usize, u64)>,
    waker: Option<Waker>,
}

/// A connection that was taken: who dialled, and this side of it.
pub struct Arrival {
    /// The machine that dialled.
    pub from: usize,
    /// This side.
    pub end: End,
}

struct Dial {
    from: usize,
    to: usize,
    at: Duration,
    outcome: Option<io::Result<u64>>,
    waker: Option<Waker>,
}

struct Connection {
    reset: bool,
    sides: [Side; 2],
}

/// What comes in at one side.
struct Side {
    machine: usize,
    under_way: VecDeque<Packet>,
    /// Nothing arrives before.
    not_before: Duration,
    arrived: VecDeque<Bytes>,
    ended: bool,
    dropped: bool,
    waker: Option<Waker>,
}

struct Packet {
    at: Duration,
    /// None: the other side says no more.
    data: Option<Bytes>,
}

impl Net {
    /// Nothing gets from one machine to another.
    pub fn cut(&mut self, cut: (usize, usize)) {
        self.cut.insert(cut);
    }

    /// Everything gets from one machine to another again, and what was held back once it is sent again.
    pub fn mend(&mut self, cut: (usize, usize), now: Duration, rng: &mut fastrand::Rng) {
        self.cut.remove(&cut);
        let resent = now + Duration::from_millis(rng.u64(0..=*RESENT_AFTER_MS.start()));
        for side in self.sides_between(cut.0, cut.1) {
            side.not_before = side.not_before.max(resent);
        }
    }

    fn sides_between(&mut self, from: usize, to: usize) -> impl Iterator<Item = &mut Side> {
        let between = move |connection: &&mut Connection| {
            let [first, second] = &connection.sides;
            (first.machine, second.machine) == (from, to) || (second.machine, first.machine) == (from, to)
        };
        let sides = self.connections.values_mut().filter(between).flat_map(|connection| &mut connection.sides);
        sides.filter(move |side| side.machine == to)
    }

    /// A process listens.
    pub fn listen(&mut self, machine: usize) {
        self.listeners.insert(machine, Listener::default());
        self.dark.remove(&machine);
        // Packets of before find a machine that knows nothing of them.
        self.reset(|connection| connection.sides.iter().any(|side| side.machine == machine));
    }

    /// A process ends, or its machine loses power.
    pub fn stop(&mut self, machine: usize, power: bool) {
        self.listeners.remove(&machine);
        if power {
            self.dark.insert(machine);
        } else {
            self.reset(|connection| connection.sides.iter().any(|side| side.machine == machine));
        }
    }

    /// Breaks every connection between two machines.
    pub fn break_between(&mut self, one: usize, other: usize) {
        self.reset(|connection| {
            let machines = [connection.sides[0].machine, connection.sides[1].machine];
            machines == [one, other] || machines == [other, one]
        });
    }

    fn reset(&mut self, which: impl Fn(&Connection) -> bool) {
        for connection in self.connections.values_mut().filter(|connection| which(connection)) {
            connection.reset = true;
        }
    }

    fn travel(&self, rng: &mut fastrand::Rng) -> Duration {
        let slow = u64::try_from(self.slow.as_millis()).unwrap_or(u64::MAX);
        let mut takes = rng.u64(PACKET_TAKES_MS) + rng.u64(0..=slow);
        if rng.u32(0..1_000) < self.lost_per_mille {
            takes += rng.u64(RESENT_AFTER_MS);
        }
        Duration::from_millis(takes)
    }

    fn is_open(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to)) && !self.dark.contains(&from) && !self.dark.contains(&to)
    }

    /// Moves everything that has arrived by now. Returns whom to wake.
    pub fn deliver(&mut self, now: Duration) -> Vec<Waker> {
        let mut wakers = Vec::new();
        self.connect(now, &mut wakers);
        let Self { connections, cut, dark, .. } = self;
        for connection in connections.values_mut() {
            let machines = [connection.sides[0].machine, connection.sides[1].machine];
            for (number, side) in connection.sides.iter_mut().enumerate() {
                let from = machines[1 - number];
                let open = !cut.contains(&(from, side.machine)) && !dark.contains(&side.machine);
                if connection.reset || (open && side.take(now)) {
                    wakers.extend(side.waker.take());
                }
            }
        }
        connections.retain(|_, connection| connection.sides.iter().any(|side| !side.dropped));
        wakers
    }

    fn connect(&mut self, now: Duration, wakers: &mut Vec<Waker>) {
        let due: Vec<u64> = self.dials.iter().filter(|(_, dial)| dial.is_due(now)).map(|(id, _)| *id).collect();
        for id in due {
            let Dial { from, to, .. } = self.dials[&id];
            if !self.is_open(from, to) || !self.is_open(to, from) {
                continue;
            }
            let outcome = match self.listeners.get_mut(&to) {
                None => Err(io::ErrorKind::ConnectionRefused.into()),
                Some(listener) => {
                    self.next += 1;
                    let connection = self.next;
                    self.connections.insert(connection, Connection::between(from, to));
                    listener.arrived.push_back((from, connection));
                    wakers.extend(listener.waker.take());
                    Ok(connection)
                }
            };
            if let Some(dial) = self.dials.get_mut(&id) {
                dial.outcome = Some(outcome);
                wakers.extend(dial.waker.take());
            }
        }
    }
}

impl Dial {
    fn is_due(&self, now: Duration) -> bool {
        self.outcome.is_none() && self.at <= now
    }
}

impl Connection {
    fn between(from: usize, to: usize) -> Self {
        let side = |machine| Side {
            machine,
            under_way: VecDeque::new(),
            not_before: Duration::ZERO,
            arrived: VecDeque::new(),
            ended: false,
            dropped: false,
            waker: None,
        };
        Self { reset: false, sides: [side(from), side(to)] }
    }
}

impl Side {
    /// Takes in what has arrived. Returns whether there was something.
    fn take(&mut self, now: Duration) -> bool {
        let mut some = false;
        while self.not_before <= now && self.under_way.front().is_some_and(|packet| packet.at <= now) {
            some = true;
            match self.under_way.pop_front().and_then(|packet| packet.data) {
                Some(data) => self.arrived.push_back(data),
                None => self.ended = true,
            }
        }
        some
    }
}

/// Dials a machine, from the one that runs.
pub async fn dial(to: usize) -> io::Result<Box<dyn towline_cluster::seams::Link>> {
    struct Forget(u64);
    impl Drop for Forget {
        fn drop(&mut self) {
            world::with(|world| world.net.forget_dial(self.0));
        }
    }
    let from = world::current().ok_or_else(|| io::Error::other("no machine dials"))?;
    let now = world::now();
    let id = world::with(|world| {
        let takes = world.net.travel(&mut world.rng) + world.net.travel(&mut world.rng);
        world.net.next += 1;
        let id = world.net.next;
        world.net.dials.insert(id, Dial { from, to, at: now + takes, outcome: None, waker: None });
        id
    });
    let forget = Forget(id);
    let outcome = poll_fn(|cx| {
        world::with(|world| {
            let dial = world.net.dials.get_mut(&id).expect("the dial is forgotten by its own future only");
            match dial.outcome.take() {
                Some(outcome) => Poll::Ready(outcome),
                None => {
                    dial.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
    })
    .await;
    drop(forget);
    Ok(Box::new(End { connection: outcome?, side: 0 }))
}

impl Net {
    /// A connection that nobody waited for breaks.
    fn forget_dial(&mut self, id: u64) {
        if let Some(Dial { outcome: Some(Ok(connection)), .. }) = self.dials.remove(&id) {
            self.reset_one(connection);
        }
    }

    fn reset_one(&mut self, connection: u64) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.reset = true;
            connection.sides[0].dropped = true;
        }
    }

    /// One side goes, and says so if its machine still can.
    fn close(&mut self, connection: u64, side: usize, at: Duration) {
        let Some(connection) = self.connections.get_mut(&connection) else { return };
        connection.sides[side].dropped = true;
        if !self.dark.contains(&connection.sides[side].machine) {
            connection.sides[1 - side].under_way.push_back(Packet { at, data: None });
        }
    }
}

/// The next connection to the machine that runs.
pub async fn accept() -> Arrival {
    let machine = world::current().expect("a node accepts");
    poll_fn(|cx| {
        world::with(|world| {
            let listener = world.net.listeners.entry(machine).or_default();
            match listener.arrived.pop_front() {
                Some((from, connection)) => Poll::Ready(Arrival { from, end: End { connection, side: 1 } }),
                None => {
                    listener.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
    })
    .await
}

/// One end of a connection.
pub struct End {
    connection: u64,
    side: usize,
}

impl End {
    fn send(&self, data: Option<Bytes>) -> io::Result<()> {
        let now = world::now();
        world::with(|world| {
            let takes = world.net.travel(&mut world.rng);
            let connection = world.net.connections.get_mut(&self.connection).ok_or_else(reset)?;
            if connection.reset {
                return Err(reset());
            }
            let other = &mut connection.sides[1 - self.side];
            let before = other.under_way.back().map_or(Duration::ZERO, |packet| packet.at);
            other.under_way.push_back(Packet { at: before.max(now + takes), data });
            Ok(())
        })
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl AsyncRead for End {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        world::with(|world| {
            let Some(connection) = world.net.connections.get_mut(&self.connection) else {
                return Poll::Ready(Err(reset()));
            };
            if connection.reset {
                return Poll::Ready(Err(reset()));
            }
            let side = &mut connection.sides[self.side];
            let Some(front) = side.arrived.front_mut() else {
                if side.ended {
                    return Poll::Ready(Ok(()));
                }
                side.waker = Some(cx.waker().clone());
                return Poll::Pending;
            };
            let length = front.len().min(buf.remaining());
            buf.put_slice(&front[..length]);
            front.advance(length);
            if front.is_empty() {
                side.arrived.pop_front();
            }
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.send(Some(Bytes::copy_from_slice(data))).map(|()| data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.send(None))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let now = world::now();
        world::with(|world| {
            let at = now + world.net.travel(&mut world.rng);
            world.net.close(self.connection, self.side, at);
        });
    }
}
