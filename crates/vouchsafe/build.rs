//! Links the program at a fixed address, if it is not optimised.

use std::env::var;

fn main() {
    // An unoptimised program that can be loaded at any address contains 300 000 addresses, which each start has to
    // correct. This takes as long as all else that a short command does, and tests run many short commands.
    if var("OPT_LEVEL").as_deref() == Ok("0") && var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
