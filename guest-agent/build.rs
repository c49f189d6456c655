//! Tells the program that it is being built to be small (the profile `agent`), see `src/agent/slim.rs`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(small)");
    if std::env::var("OPT_LEVEL").is_ok_and(|level| level == "z") {
        println!("cargo::rustc-cfg=small");
    }
}
