//! What the linker does for a release: it leaves the symbols out, since cargo does not strip a package whose profile is
//! overridden, and packs relative relocations, which are two megabytes otherwise. A linker that does not know how, warns. Where the
//! compiler brings its own linker, that one keeps functions with the same code once.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        if std::env::var("TARGET").is_ok_and(|target| target == "x86_64-unknown-linux-gnu") {
            println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        }
    }
}
