//! Compiles the `.proto` files with a pure-Rust compiler, so that no system `protoc` is needed.

use std::error::Error;

const FILES: [&str; 5] = [
    "towline/v1/log.proto",
    "towline/v1/raft.proto",
    "towline/v1/peer.proto",
    "towline/v1/enrol.proto",
    "towline/v1/archive.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    // `bytes` fields share the buffer they were received in: entries are not copied on their way to the log.
    tonic_prost_build::configure().bytes(".").build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
