//! The supervisor, which answers the kernel's questions about the command's system calls.

use super::datagrams::Flows;
use super::front::{Report, code_of};
use super::notification::{Answer, Question, prefer_one_processor, receive};
use super::target::{self, Address, Kind};
use super::{Settings, child};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction, sigprocmask};
use nix::sys::wait::{WaitStatus, waitpid};
use reach::{Error, Session, Timeouts};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of threads that answer questions, and so of connections that the supervisor makes at a time.
const THREADS_MAX: usize = 256;
/// Size of the stack of such a thread, in bytes.
const STACK: usize = 512 * 1024;
/// Maximum time to connect a non-blocking socket. It is short because the program meanwhile has other things to do.
const WAIT_NONBLOCKING: Duration = Duration::from_secs(3);
/// Maximum number of messages of one `sendmmsg` that the supervisor examines.
const MESSAGES_MAX: u64 = 64;
/// Time for which the supervisor does not print the same error again.
const QUIET: Duration = Duration::from_secs(10);

struct Supervisor {
    session: Session,
    settings: Settings,
    listener: OwnedFd,
    idle: AtomicUsize,
    threads: AtomicUsize,
    flows: Flows,
    /// Identities of the sockets for which the program has set keys for signatures.
    signed: Mutex<BTreeSet<u64>>,
    /// The last error that was printed, and the time at which it was printed.
    said: Mutex<Option<(String, Instant)>>,
}

/// Starts the command, and supervises the command and its descendants. Never returns: ends this process when the last
/// of these processes has ended.
pub fn run(
    session: &Session,
    settings: Settings,
    mut command: Command,
    program: &OsStr,
    mask: &SigSet,
    mut reporter: PipeWriter,
) -> ! {
    let mut report = |report: Report| {
        let _ = reporter.write_all(&report.encode());
    };
    outlive_signals();
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(mask), None);
    // Descendants whose parents end become this process's children.
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        eprintln!("vouchsafe: descendants of the command can't be supervised after their parents have ended: {error}");
    }
    let started = match child::start(&mut command, settings.tcp_only) {
        Ok(Ok(started)) => started,
        Ok(Err(error)) => {
            let code = match error.raw_os_error() {
                Some(libc::EBUSY) => refuse("another supervisor watches this process already, as in some containers"),
                Some(libc::ENOSYS) => refuse("the kernel has no seccomp notification: Linux 5.5 or later is needed"),
                _ => {
                    eprintln!("vouchsafe: cannot run {}: {error}", program.to_string_lossy());
                    code_of(&error)
                }
            };
            report(Report::Ended(code));
            std::process::exit(code);
        }
        Err(error) => {
            eprintln!("vouchsafe: {error:#}");
            report(Report::Ended(2));
            std::process::exit(2);
        }
    };
    report(Report::Runs(started.pid));
    prefer_one_processor(started.listener.as_fd());
    let supervisor = Arc::new(Supervisor {
        session: session.clone(),
        settings,
        listener: started.listener,
        idle: AtomicUsize::new(0),
        threads: AtomicUsize::new(0),
        flows: Flows::default(),
        signed: Mutex::default(),
        said: Mutex::default(),
    });
    supervisor.spawn();
    if !settings.tcp_only {
        let flows = supervisor.clone();
        std::thread::spawn(move || flows.flows.look_after(&flows.session));
    }
    if let Err(error) = session.follow() {
        eprintln!("vouchsafe: {error}");
    }
    loop {
        let (ended, how) = match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, Report::Ended(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Report::Killed(signal as i32)),
            Ok(_) | Err(nix::errno::Errno::EINTR) => continue,
            // No descendant is left.
            Err(_) => std::process::exit(0),
        };
        if ended.as_raw() == started.pid {
            report(how);
            let_go_of_terminal();
        }
    }
}

fn refuse(why: &str) -> i32 {
    eprintln!(
        "vouchsafe: cannot supervise the command: {why}. Use `vouchsafe connect` or `vouchsafe proxy`, which supervise \
         nothing"
    );
    2
}

/// Installs handlers that do nothing, because the terminal's signals are for the command. Ignoring the signals instead
/// would not work, because the command would inherit this and ignore them, too.
fn outlive_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    for signal in super::front::signals().iter().chain([Signal::SIGTSTP]) {
        // SAFETY: the handler does nothing.
        let before = unsafe { sigaction(signal, &action) };
        // The command ignores the signals that the caller ignores, such as nohup(1)'s SIGHUP.
        if let Ok(before) = before
            && matches!(before.handler(), SigHandler::SigIgn)
        {
            // SAFETY: an ignored signal has no handler.
            let _ = unsafe { sigaction(signal, &before) };
        }
    }
}

/// Closes the caller's files. Otherwise a process that reads the command's output would not see the end of the output
/// while descendants live.
fn let_go_of_terminal() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdin(&null);
        let _ = nix::unistd::dup2_stdout(&null);
        let _ = nix::unistd::dup2_stderr(&null);
    }
}

impl Supervisor {
    /// Starts another thread that answers questions, unless there are enough.
    fn spawn(self: &Arc<Self>) {
        if self.threads.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
            self.threads.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let this = self.clone();
        self.idle.fetch_add(1, Ordering::Relaxed);
        if std::thread::Builder::new().stack_size(STACK).spawn(move || this.serve()).is_err() {
            self.idle.fetch_sub(1, Ordering::Relaxed);
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn serve(self: Arc<Self>) {
        loop {
            let question = match receive(self.listener.as_fd()) {
                Ok(Some(question)) => question,
                Ok(None) => continue,
                Err(error) => {
                    tracing::debug!("the kernel reports no more system calls of the command: {error}");
                    return;
                }
            };
            // One thread must always wait for the next question.
            if self.idle.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.spawn();
            }
            let answer = self.decide(&question);
            question.answer(self.listener.as_fd(), answer);
            self.idle.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn decide(&self, question: &Question) -> Answer {
        let decided = match question.number {
            libc::SYS_connect => self.connect(question),
            libc::SYS_sendto => self.send_to(question),
            libc::SYS_sendmsg => self.send_message(question, question.arguments[1]),
            libc::SYS_sendmmsg => self.send_messages(question),
            libc::SYS_setsockopt => self.set_key(question),
            _ => Ok(Answer::Continue),
        };
        decided.unwrap_or_else(|error| {
            // A process whose memory the supervisor may not read, such as one that holds keys, goes on without tokens.
            tracing::debug!(thread = question.thread, "cannot look into a process: {error}");
            Answer::Continue
        })
    }

    fn connect(&self, question: &Question) -> std::io::Result<Answer> {
        let [descriptor, at, length, ..] = question.arguments;
        let Some(address) = target::address(question.thread, at, length)? else { return Ok(Answer::Continue) };
        let socket = target::socket(question.thread, descriptor)?;
        if !question.is_valid(self.listener.as_fd()) {
            return Ok(Answer::Continue);
        }
        let (socket, thread) = (socket.as_fd(), question.thread);
        match target::kind(socket) {
            Kind::Tcp => self.connect_stream(socket, &address),
            Kind::Udp if !self.settings.tcp_only && self.session.is_protected(address.to, wire::packet::UDP) => {
                nix::sys::socket::connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &address.raw)?;
                Ok(match self.flows.open(&self.session, socket, (thread, descriptor), &address, true) {
                    Ok(()) => Answer::Done,
                    Err(error) => self.fails(&error),
                })
            }
            Kind::Udp | Kind::Other => Ok(Answer::Continue),
        }
    }

    fn connect_stream(&self, socket: std::os::fd::BorrowedFd<'_>, address: &Address) -> std::io::Result<Answer> {
        let nonblocking = reach::stream::is_nonblocking(socket);
        let mut wait = self.settings.wait.min(target::time_limit(socket).unwrap_or(Duration::MAX));
        if nonblocking {
            wait = wait.min(WAIT_NONBLOCKING);
        }
        let is_signed = || {
            let signed = self.signed.lock().unwrap_or_else(PoisonError::into_inner);
            target::identity(socket).is_ok_and(|own| signed.contains(&own))
        };
        if self.session.is_protected(address.to, wire::packet::TCP) && is_signed() {
            return Ok(self.fails(&Error::Signed("a TCP signature (MD5 or TCP-AO)", address.to)));
        }
        Ok(match self.session.connect_socket(socket, &address.raw, address.to, Timeouts { connect: wait }) {
            Ok(false) => Answer::Continue,
            // A program expects this result from a non-blocking socket. The socket is writable already.
            Ok(true) if nonblocking => Answer::Fails(libc::EINPROGRESS),
            Ok(true) => Answer::Done,
            // This is another call on the same socket, so the kernel has the answer.
            Err(Error::Io { source, .. }) if matches!(source.raw_os_error(), Some(libc::EISCONN | libc::EALREADY)) => {
                Answer::Continue
            }
            Err(error) => self.fails(&error),
        })
    }

    fn send_to(&self, question: &Question) -> std::io::Result<Answer> {
        let [descriptor, _, _, flags, at, length] = question.arguments;
        self.datagram(question, descriptor, (at, length), flags & libc::MSG_FASTOPEN as u64 != 0)
    }

    fn send_message(&self, question: &Question, at: u64) -> std::io::Result<Answer> {
        // struct msghdr: the name's address, and its length in 32 bits.
        let head: [u8; 16] = target::read(question.thread, at)?;
        let word = |at: usize| u64::from_ne_bytes(head[at..].first_chunk().copied().unwrap_or_default());
        let [descriptor, _, flags, ..] = question.arguments;
        let name = (word(0), word(8) & u64::from(u32::MAX));
        if name.0 == 0 {
            return Ok(Answer::Continue);
        }
        self.datagram(question, descriptor, name, flags & libc::MSG_FASTOPEN as u64 != 0)
    }

    fn send_messages(&self, question: &Question) -> std::io::Result<Answer> {
        let [_, at, count, ..] = question.arguments;
        for number in 0..count.min(MESSAGES_MAX) {
            let answer = self.send_message(question, at + number * size_of::<libc::mmsghdr>() as u64)?;
            if answer != Answer::Continue {
                return Ok(answer);
            }
        }
        Ok(Answer::Continue)
    }

    /// Opens the flow of a datagram that the program sends to an address, so that the datagram is admitted.
    fn datagram(
        &self,
        question: &Question,
        descriptor: u64,
        (at, length): (u64, u64),
        opens_stream: bool,
    ) -> std::io::Result<Answer> {
        let Some(address) = target::address(question.thread, at, length)? else { return Ok(Answer::Continue) };
        if opens_stream && self.session.is_protected(address.to, wire::packet::TCP) {
            // The program wants to put its own data into the SYN. With this error, it connects in the ordinary way.
            return Ok(Answer::Fails(libc::EOPNOTSUPP));
        }
        if !self.session.is_protected(address.to, wire::packet::UDP) {
            return Ok(Answer::Continue);
        }
        let socket = target::socket(question.thread, descriptor)?;
        if target::kind(socket.as_fd()) != Kind::Udp || !question.is_valid(self.listener.as_fd()) {
            return Ok(Answer::Continue);
        }
        let place = (question.thread, descriptor);
        Ok(match self.flows.open(&self.session, socket.as_fd(), place, &address, false) {
            Ok(()) => Answer::Continue,
            Err(error) => self.fails(&error),
        })
    }

    /// Records that a socket has keys for signatures, because no later call to the kernel reveals that.
    fn set_key(&self, question: &Question) -> std::io::Result<Answer> {
        let socket = target::socket(question.thread, question.arguments[0])?;
        let own = target::identity(socket.as_fd())?;
        self.signed.lock().unwrap_or_else(PoisonError::into_inner).insert(own);
        Ok(Answer::Continue)
    }

    fn fails(&self, error: &Error) -> Answer {
        let text = error.to_string();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = said.as_ref().is_none_or(|(before, at)| *before != text || at.elapsed() > QUIET);
        // A refused connection is the server's answer, which the program reports itself.
        if is_new && !matches!(error, Error::Io { .. }) {
            eprintln!("vouchsafe: {text}");
            *said = Some((text, Instant::now()));
        }
        Answer::Fails(error.errno())
    }
}
