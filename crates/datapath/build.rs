//! Compiles the kernel programs; they are embedded in the library.

use libbpf_cargo::SkeletonBuilder;
use std::env;
use std::path::PathBuf;

fn main() {
    let bpf = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../../bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    println!("cargo:rerun-if-changed={}", bpf.display());
    let include = format!("-I{}", bpf.join("include").display());
    // Where Debian keeps <asm/types.h> of the build machine's architecture.
    let multiarch = format!("-I/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo"));
    for program in [
        "verifier",
        "verifier_tc",
        "gateway",
        "agent",
        "transfer",
        "proofs",
        "svtep",
        "crossing",
        "probe",
        "bench",
        "proofs_bench",
    ] {
        SkeletonBuilder::new()
            .source(bpf.join(format!("{program}.bpf.c")))
            .obj(out.join(format!("{program}.bpf.o")))
            .clang_args([&include, &multiarch, "-mcpu=v3", "-Wall", "-Wextra", "-Wno-unused-parameter"])
            .build()
            .unwrap_or_else(|error| panic!("bpf/{program}.bpf.c does not compile (is clang installed?): {error:#}"));
    }
}
