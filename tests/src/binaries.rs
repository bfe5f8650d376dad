//! Where the programs under test are.

use std::{env, path::PathBuf, process::Command, sync::LazyLock};

/// Names a binary that was built before, to be tested as it is.
const BINARY: &str = "TEST_TOWLINE_BINARY";

/// The `towline` binary beside the tests: `cargo test --workspace` builds it with the same features. When only these tests
/// are built there may be none yet; then the first caller has it built.
pub fn towline() -> PathBuf {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(binary) = env::var_os(BINARY) {
            return binary.into();
        }
        let binary = target_folder().join("towline");
        if !binary.exists() {
            build();
        }
        binary
    });
    BUILT.clone()
}

fn build() {
    let folder = target_folder();
    let profile = folder.file_name().and_then(|name| name.to_str()).unwrap_or("debug");
    let profile = if profile == "debug" { "dev" } else { profile };
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "towline", "--bin", "towline", "--profile", profile])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo runs");
    assert!(built.success(), "cargo build of towline failed");
}

/// The MCP server that does what its caller asks for: answers, is slow, fails, crashes.
pub fn scripted_mcp() -> PathBuf {
    target_folder().join("towline-scripted-mcp")
}

/// The folder of this profile: programs lie in it, and test programs in its folder `deps`.
fn target_folder() -> PathBuf {
    let program = env::current_exe().expect("a running program has a path");
    let folder = program.parent().expect("a program lies in a folder");
    let profile = if folder.ends_with("deps") { folder.parent() } else { Some(folder) };
    profile.expect("deps lies in the folder of a profile").to_owned()
}
