//! One decoder under libFuzzer: `TOWLINE_FUZZ_TARGET` names it.
#![no_main]

#[path = "../targets.rs"]
mod targets;

use std::sync::LazyLock;

use targets::{TARGETS, Target};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("TOWLINE_FUZZ_TARGET").expect("TOWLINE_FUZZ_TARGET names a decoder");
    TARGETS.iter().find(|target| target.name == name).expect("TOWLINE_FUZZ_TARGET is a name of targets.rs")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
