//! Links the program for tests without the form that can be loaded at any address.

fn main() {
    // Without optimisation, the linker would leave 300 000 addresses that each start of the program has to correct, which
    // takes as long as everything else that a short command does. Tests start the program some ten thousand times.
    if std::env::var("OPT_LEVEL").as_deref() == Ok("0") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
