//! Copies a byte stream from one descriptor to another. On Linux, the bytes do not pass through this process's memory.

use std::io;
use std::os::fd::BorrowedFd;

/// Maximum number of bytes that are moved at a time: the largest pipe that users without privileges may have.
const CHUNK: usize = 1024 * 1024;

/// Copies everything until `from` ends.
///
/// # Errors
///
/// Fails if reading or writing fails.
pub fn all(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if splice::all(from, to)? {
        return Ok(());
    }
    through_memory(from, to)
}

fn through_memory(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    let mut room = vec![0; 128 * 1024];
    loop {
        let size = match nix::unistd::read(from, &mut room) {
            Ok(0) => return Ok(()),
            Ok(size) => size,
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let mut rest = &room[..size];
        while !rest.is_empty() {
            match nix::unistd::write(to, rest) {
                Ok(written) => rest = &rest[written..],
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(target_os = "linux")]
mod splice {
    use super::CHUNK;
    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
    use std::ptr::null_mut;

    /// Copies everything until `from` ends. Returns `false`, and copies nothing, if `splice(2)` does not support these
    /// descriptors.
    ///
    /// # Errors
    ///
    /// Fails if reading or writing fails.
    pub fn all(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<bool> {
        let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        // If the user's share of memory for pipes is used up, the pipe keeps its default size.
        let _ = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(CHUNK as i32));
        let mut moved = false;
        loop {
            let mut left = match step(from, writer.as_fd(), CHUNK) {
                Ok(0) => return Ok(true),
                Ok(size) => size,
                Err(Errno::EINVAL) if !moved => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            while left > 0 {
                match step(reader.as_fd(), to, left) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(size) => left -= size,
                    // `to` does not support splice: it is a terminal, or a file in append mode.
                    Err(Errno::EINVAL) if !moved => {
                        drop(writer);
                        super::through_memory(reader.as_fd(), to)?;
                        return Ok(false);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            moved = true;
        }
    }

    fn step(from: BorrowedFd<'_>, to: BorrowedFd<'_>, length: usize) -> nix::Result<usize> {
        loop {
            let (from, to, nowhere) = (from.as_raw_fd(), to.as_raw_fd(), null_mut());
            // SAFETY: these are numbers; neither descriptor has a position to read or write.
            let moved = unsafe { libc::splice(from, nowhere, to, nowhere, length, libc::SPLICE_F_MOVE) };
            match Errno::result(moved) {
                Err(Errno::EINTR) => {}
                done => return done.map(|moved| moved as usize),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn everything_arrives_by_sockets_and_by_files() {
        let sent: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        let (mut in_end, from) = UnixStream::pair().expect("a pair");
        let (to, mut out_end) = UnixStream::pair().expect("a pair");
        let writer = std::thread::spawn({
            let sent = sent.clone();
            move || in_end.write_all(&sent)
        });
        let copier = std::thread::spawn(move || {
            all(from.as_fd(), to.as_fd()).expect("copied");
        });
        let mut came = Vec::new();
        out_end.read_to_end(&mut came).expect("read");
        writer.join().expect("no panic").expect("written");
        copier.join().expect("no panic");
        assert!(came == sent);

        // A file in append mode does not support splice.
        let path = std::env::temp_dir().join(format!("vouchsafe-copy-{}", std::process::id()));
        let mut file = std::fs::OpenOptions::new().create(true).append(true).read(true).open(&path).expect("a file");
        let (mut in_end, from) = UnixStream::pair().expect("a pair");
        in_end.write_all(b"some words").expect("written");
        drop(in_end);
        all(from.as_fd(), file.as_fd()).expect("copied");
        let mut text = String::new();
        file.rewind().expect("a file");
        file.read_to_string(&mut text).expect("read");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(text, "some words");
    }
}
