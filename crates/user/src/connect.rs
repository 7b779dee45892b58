//! `vouchsafe connect`: makes one connection. It passes the connection to the caller as a file descriptor, or copies
//! bytes between the connection and standard input and output.

use crate::at::Using;
use crate::copy;
use anyhow::{Context, Result, bail};
use clap::Args;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use reach::{Error, Session, Timeouts};
use std::io::IoSlice;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;
use std::time::Duration;

/// Connect to a host
#[derive(Args, Debug)]
pub struct ConnectArguments {
    #[command(flatten)]
    using: Using,
    /// The host's name or address
    host: String,
    /// The TCP port
    port: u16,
    /// Pass the connection to the caller on standard output, which is a socket: for ssh's `ProxyUseFdpass yes`
    #[arg(short = 'F', long)]
    pass_fd: bool,
    /// Time to wait for a connection to each address, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
}

/// Runs the command `vouchsafe connect`. Returns exit code 1 if the user is not logged in, or if the policy denies the
/// grant.
///
/// # Errors
///
/// Fails if the session can't be opened, or if the connection can't be made or breaks.
pub fn run(arguments: &ConnectArguments) -> Result<ExitCode> {
    let connected = Session::open(&arguments.using.places()?).and_then(|session| {
        session.consent();
        let timeouts = Timeouts { connect: Duration::from_secs(arguments.wait) };
        session.connect(&arguments.host, arguments.port, timeouts)
    });
    let stream = match connected {
        Ok(stream) => stream,
        Err(error @ (Error::NotLoggedIn | Error::Denied { .. })) => {
            eprintln!("vouchsafe: {error}");
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => bail!(error),
    };
    if arguments.pass_fd {
        pass(&stream)?
    } else {
        pipe(&stream)?
    }
    Ok(ExitCode::SUCCESS)
}

/// Passes the connection over standard output, as ssh_config(5) expects it.
fn pass(stream: &TcpStream) -> Result<()> {
    let descriptors = [stream.as_raw_fd()];
    let (message, rights) = ([IoSlice::new(&[0])], [ControlMessage::ScmRights(&descriptors)]);
    let output = std::io::stdout();
    let sent = sendmsg::<()>(output.as_fd().as_raw_fd(), &message, &rights, MsgFlags::empty(), None);
    sent.map(drop).context(
        "cannot pass the connection on standard output: `--pass-fd` is for ssh with `ProxyUseFdpass yes`; without \
         `ProxyUseFdpass`, leave out `--pass-fd`",
    )
}

/// Copies between the connection and standard input and output. Ends when the connection ends, as `nc` does, and does
/// not wait for input that could no longer be sent.
fn pipe(stream: &TcpStream) -> Result<()> {
    let to_host = stream.try_clone()?;
    std::thread::spawn(move || {
        let _ = copy::all(std::io::stdin().as_fd(), to_host.as_fd());
        let _ = to_host.shutdown(Shutdown::Write);
    });
    copy::all(stream.as_fd(), std::io::stdout().as_fd()).context("the connection broke")
}
