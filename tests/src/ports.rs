//! Ports for nodes, which must know them before they listen and keep them over a restart.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, TcpListener},
    sync::{LazyLock, Mutex},
};

/// Below the range from which the kernel takes the ports of outgoing connections, so that none of those gets in the way.
const FIRST: u16 = 17_000;
const LAST: u16 = 32_000;

static TAKEN: LazyLock<Mutex<BTreeSet<u16>>> = LazyLock::new(|| Mutex::new(BTreeSet::new()));

/// A loopback port that nothing listens on and that this process gives to no one else.
pub fn free_port() -> u16 {
    let mut taken = TAKEN.lock().unwrap();
    // Processes start at different places, so that two test runs on one machine rarely try the same ports.
    let start = FIRST + (std::process::id() % u32::from(LAST - FIRST)) as u16;
    let mut candidates = (start..LAST).chain(FIRST..start);
    let port = candidates
        .find(|port| !taken.contains(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("some port is free");
    taken.insert(port);
    port
}
