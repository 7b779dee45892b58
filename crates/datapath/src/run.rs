//! Runs a loaded program on one packet without a network (BPF_PROG_TEST_RUN): for tests, benches and explanations.

use anyhow::{Context, Result};
use libbpf_rs::{ProgramInput, ProgramMut};
use std::time::Duration;

/// What a program did with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The program's return code.
    pub code: u32,
    /// The packet afterwards.
    pub frame: Vec<u8>,
    /// Mean duration of one run.
    pub duration: Duration,
}

/// A packet grows by a token at most.
const ROOM: usize = 64;

pub(crate) fn run(program: &ProgramMut<'_>, frame: &[u8], repeat: u32) -> Result<Ran> {
    let mut out = vec![0; frame.len() + ROOM];
    let input = ProgramInput { data_in: Some(frame), data_out: Some(&mut out), repeat, ..ProgramInput::default() };
    let output = program.test_run(input).context("cannot run the program on a packet")?;
    let (code, duration) = (output.return_value, output.duration);
    let frame = output.data.map(|data| data.to_vec()).unwrap_or_default();
    Ok(Ran { code, frame, duration })
}
