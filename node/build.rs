//! Has the linker leave the symbols out of a release: cargo does not strip a package whose profile is overridden, and this one
//! is built for size.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
}
