//! Runs a loaded program on one packet without a network (BPF_PROG_TEST_RUN), for tests, benches and explanations.

use anyhow::{Context, Result};
use libbpf_rs::{ProgramInput, ProgramMut};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// The result of running a program on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The program's return code.
    pub code: u32,
    /// The packet after the run.
    pub frame: Vec<u8>,
    /// Mean duration of one run.
    pub duration: Duration,
}

/// A loaded program that several threads can run at the same time.
pub struct Runner(OwnedFd);

impl Runner {
    pub(crate) const fn new(program: OwnedFd) -> Self {
        Self(program)
    }

    /// Runs the program on a frame and returns the program's return code.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn on_frame(&self, frame: &[u8]) -> Result<u32> {
        self.run(libbpf_sys::bpf_test_run_opts {
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len().try_into().context("the frame is too long")?,
            repeat: 1,
            ..Default::default()
        })
    }

    /// Runs a program that receives a structure in place of a packet, and changes the structure in place. Returns the
    /// program's return code.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not run the program.
    pub fn on_structure(&self, structure: &mut [u8]) -> Result<u32> {
        self.run(libbpf_sys::bpf_test_run_opts {
            // The kernel writes the structure back in place.
            ctx_in: structure.as_mut_ptr().cast(),
            ctx_size_in: structure.len().try_into().context("the structure is too long")?,
            ..Default::default()
        })
    }

    fn run(&self, mut options: libbpf_sys::bpf_test_run_opts) -> Result<u32> {
        options.sz = size_of::<libbpf_sys::bpf_test_run_opts>() as _;
        // SAFETY: the descriptor is a program's, and the data that the options point to outlives the call.
        let failed = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.0.as_raw_fd(), &mut options) };
        if failed != 0 {
            return Err(io::Error::last_os_error()).context("cannot run the program");
        }
        Ok(options.retval)
    }
}

/// Maximum number of bytes by which a program may lengthen a packet: the headers of a tunnel.
const ROOM: usize = 320;

pub(crate) fn run(program: &ProgramMut<'_>, frame: &[u8], repeat: u32) -> Result<Ran> {
    run_in(program, frame, repeat, None)
}

/// Runs a tc program on a super-packet whose segments have `segment` bytes of payload.
pub(crate) fn run_segments(program: &ProgramMut<'_>, frame: &[u8], segment: u32) -> Result<Ran> {
    /// Offset of `gso_size` in `struct __sk_buff` of linux/bpf.h.
    const GSO_SIZE: usize = 176;
    let mut context = [0; GSO_SIZE + 4];
    context[GSO_SIZE..].copy_from_slice(&segment.to_ne_bytes());
    run_in(program, frame, 1, Some(&mut context))
}

/// Runs a tc program on a packet with this mark. Returns the resulting mark as well.
pub(crate) fn run_marked(program: &ProgramMut<'_>, frame: &[u8], mark: u32) -> Result<(Ran, u32)> {
    /// Offset of `mark` in `struct __sk_buff` of linux/bpf.h, and the structure's length.
    const MARK: usize = 8;
    const LENGTH: usize = 192;
    let mut context = [0; MARK + 4];
    context[MARK..].copy_from_slice(&mark.to_ne_bytes());
    let (mut out, mut context_out) = (vec![0; frame.len() + ROOM], [0; LENGTH]);
    let input = ProgramInput {
        data_in: Some(frame),
        data_out: Some(&mut out),
        context_in: Some(&mut context),
        context_out: Some(&mut context_out),
        repeat: 1,
        ..ProgramInput::default()
    };
    let output = program.test_run(input).context("cannot run the program on a packet")?;
    let marked = output.context.and_then(|context| context.get(MARK..MARK + 4)?.try_into().ok());
    let marked = marked.context("the kernel did not return the context")?;
    let frame = output.data.map(|data| data.to_vec()).unwrap_or_default();
    Ok((Ran { code: output.return_value, frame, duration: output.duration }, u32::from_ne_bytes(marked)))
}

/// Runs an XDP program `repeat` times on a frame as if the frame came from a network card, and carries out the verdict.
/// For benches.
pub(crate) fn run_live(program: &ProgramMut<'_>, frame: &[u8], repeat: u32) -> Result<()> {
    /// `BPF_F_TEST_XDP_LIVE_FRAMES` of linux/bpf.h.
    const LIVE_FRAMES: u32 = 1 << 1;
    let input = ProgramInput { data_in: Some(frame), flags: LIVE_FRAMES, repeat, ..ProgramInput::default() };
    program.test_run(input).context("cannot run the program on live packets")?;
    Ok(())
}

fn run_in(program: &ProgramMut<'_>, frame: &[u8], repeat: u32, context: Option<&mut [u8]>) -> Result<Ran> {
    let mut out = vec![0; frame.len() + ROOM];
    let input = ProgramInput {
        data_in: Some(frame),
        data_out: Some(&mut out),
        context_in: context,
        repeat,
        ..ProgramInput::default()
    };
    let output = program.test_run(input).context("cannot run the program on a packet")?;
    let (code, duration) = (output.return_value, output.duration);
    let frame = output.data.map(|data| data.to_vec()).unwrap_or_default();
    Ok(Ran { code, frame, duration })
}
