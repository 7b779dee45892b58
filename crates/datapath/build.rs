//! Compiles the kernel programs, which are embedded in the library.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_rs::Linker;

const PROGRAMS: [&str; 14] = [
    "verifier",
    "verifier_tc",
    "verifier_tunnel",
    "gateway",
    "agent",
    "key_transfer",
    "tcp_in_udp",
    "proofs",
    "svtep",
    "crossing",
    "probe",
    "bench",
    "proofs_bench",
    "forger",
];

fn main() {
    let bpf = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../../bpf");
    let out = PathBuf::from(variable("OUT_DIR"));
    println!("cargo:rerun-if-changed={}", bpf.display());
    for program in PROGRAMS {
        let source = bpf.join(format!("{program}.bpf.c"));
        if let Err(error) = compile(&source, &bpf.join("include"), &out.join(format!("{program}.bpf.o"))) {
            panic!("{} does not compile: {error}", source.display());
        }
    }
}

/// Compiles `source` with type information (BTF) but without DWARF, which is unused and would make the binary larger.
fn compile(source: &Path, include: &Path, object: &Path) -> Result<(), Box<dyn Error>> {
    let architecture = variable("CARGO_CFG_TARGET_ARCH");
    let libbpf_arch = match architecture.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => other,
    };
    let with_dwarf = object.with_extension("dwarf.o");
    let status = Command::new("clang")
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-fno-stack-protector"])
        .args(["-Wall", "-Wextra", "-Wno-unused-parameter"])
        .arg(format!("-D__TARGET_ARCH_{libbpf_arch}"))
        .arg("-I")
        .arg(include)
        // <bpf/…> of the version that libbpf-sys builds.
        .arg("-I")
        .arg(variable("DEP_BPF_INCLUDE"))
        // Debian's directory of <asm/types.h> for the build machine's architecture. The types are those of any other.
        .arg(format!("-I/usr/include/{}-linux-gnu", variable("HOST").split('-').next().unwrap_or_default()))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&with_dwarf)
        .status()
        .map_err(|error| format!("clang can't be started (`sh xtask/setup.sh build` installs it): {error}"))?;
    if !status.success() {
        return Err(format!("clang failed: {status}").into());
    }
    // libbpf's linker copies everything but DWARF.
    let mut linker = Linker::new(object)?;
    linker.add_file(&with_dwarf)?;
    linker.link()?;
    fs::remove_file(with_dwarf)?;
    Ok(())
}

/// Returns a variable that cargo sets.
fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo did not set {name}"))
}
