//! The authority's end of a TLS connection. While no record is under way, a connection has no buffers here: an
//! authority has a connection to every agent and every verifier, and nearly all of them are silent nearly all the time.
//!
//! rustls does the whole protocol, and this module uses the unbuffered API of rustls: the module passes received bytes
//! to rustls, and sends the records that rustls produces.

use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus};
use std::error::Error;
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::{self, MaybeUninit};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Maximum number of bytes that one read takes from the socket.
const READ: usize = 4096;
/// Maximum number of received bytes that wait for the rest of a record: the longest record of TLS 1.2.
const MOST_RECEIVED: usize = 5 + (1 << 14) + 2048;
/// Maximum number of received bytes that wait during the handshake, in which a message may consist of several records.
const MOST_OF_HANDSHAKE: usize = 0xffff;
/// Maximum number of bytes of plaintext in one record.
const MOST_PLAIN: usize = 1 << 14;
/// Maximum number of bytes by which a record, with a key update message before it, is longer than its plaintext.
const OVERHEAD: usize = 128;

/// A TLS connection that a client has opened.
pub struct TlsStream {
    tcp: TcpStream,
    tls: UnbufferedServerConnection,
    /// Received bytes that TLS has not used yet, such as a part of a record.
    received: Vec<u8>,
    /// Decrypted bytes, and the number of those that the reader has taken.
    decrypted: Vec<u8>,
    taken: usize,
    /// Records for the client, and the number of their bytes that the socket has taken.
    outgoing: Vec<u8>,
    sent: usize,
    /// Whether the client has ended its direction of the connection.
    has_ended: bool,
    is_closing: bool,
    has_failed: bool,
}

/// Work for TLS, in addition to the bytes that have arrived.
enum Work<'a> {
    Nothing,
    Encrypt(&'a [u8]),
    Close,
}

impl TlsStream {
    /// Does the handshake on a connection that was accepted. The caller limits the time.
    ///
    /// # Errors
    /// Fails if the connection breaks, or the client violates the protocol or supports no version or algorithm in
    /// `config`.
    pub async fn accept(tcp: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let mut stream = Self {
            tcp,
            tls: UnbufferedServerConnection::new(config).map_err(io::Error::other)?,
            received: Vec::new(),
            decrypted: Vec::new(),
            taken: 0,
            outgoing: Vec::new(),
            sent: 0,
            has_ended: false,
            is_closing: false,
            has_failed: false,
        };
        poll_fn(|context| stream.poll_handshake(context)).await?;
        Ok(stream)
    }

    /// Returns the application protocol (ALPN) on which client and server have agreed, or `None` if they agreed on
    /// none.
    pub fn alpn_protocol(&self) -> Option<&[u8]> {
        self.tls.alpn_protocol()
    }

    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let sends = self.poll_send(context)?;
            if !self.tls.is_handshaking() {
                return sends.map(Ok);
            }
            if !ready!(self.poll_receive(context))? {
                return Poll::Ready(Err(ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Receives some bytes, and lets TLS use them. Returns false if the connection has ended.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.has_failed {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        let most = if self.tls.is_handshaking() { MOST_OF_HANDSHAKE } else { MOST_RECEIVED };
        if self.received.len() >= most {
            return Poll::Ready(Err(io::Error::new(ErrorKind::InvalidData, "a message of TLS is too long")));
        }
        let mut space = [MaybeUninit::uninit(); READ];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.tcp).poll_read(context, &mut read))?;
        if read.filled().is_empty() {
            return Poll::Ready(Ok(false));
        }
        self.received.extend_from_slice(read.filled());
        let advanced = self.advance(Work::Nothing);
        if self.received.is_empty() {
            self.received = Vec::new();
        }
        if let Err(error) = advanced {
            // An alert tells the client why. The connection ends in any case.
            let _ = self.poll_send(context);
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(true))
    }

    /// Sends the records that wait. Frees the buffer when all of them are sent.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.outgoing.len() {
            match ready!(Pin::new(&mut self.tcp).poll_write(context, &self.outgoing[self.sent..]))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        (self.outgoing, self.sent) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Lets TLS use everything that has arrived, and do `work`. The records that TLS produces are then in `outgoing`.
    ///
    /// # Errors
    /// Fails if the client has violated the protocol, or the connection is in no state for `work`.
    fn advance(&mut self, mut work: Work<'_>) -> io::Result<()> {
        let Self { tls, received, decrypted, outgoing, has_ended, has_failed, .. } = self;
        if *has_failed {
            return Err(ErrorKind::BrokenPipe.into());
        }
        loop {
            let UnbufferedStatus { mut discard, state } = tls.process_tls_records(received);
            let (mut is_done, mut failure) = (false, None);
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(violation)?;
                        discard += record.discard;
                        decrypted.extend_from_slice(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => append(outgoing, 0, |space| data.encode(space))?,
                // Later data goes behind these records.
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::WriteTraffic(mut traffic)) => match mem::replace(&mut work, Work::Nothing) {
                    Work::Nothing => is_done = true,
                    Work::Encrypt(plain) => {
                        append(outgoing, plain.len() + OVERHEAD, |space| traffic.encrypt(plain, space))?;
                    }
                    Work::Close => append(outgoing, OVERHEAD, |space| traffic.queue_close_notify(space))?,
                },
                Ok(ConnectionState::PeerClosed) => *has_ended = true,
                Ok(ConnectionState::BlockedHandshake | ConnectionState::Closed) => is_done = true,
                // Early data is not accepted, and there are no other states.
                Ok(_) => failure = Some(io::Error::other("TLS is in a state that this server does not know")),
                Err(error) => failure = Some(violation(error)),
            }
            received.drain(..discard.min(received.len()));
            if let Some(failure) = failure {
                *has_failed = true;
                // The alert for the client, if there is one. TLS must not see the bytes again after it.
                if let Ok(ConnectionState::EncodeTlsData(mut alert)) = tls.process_tls_records(received).state {
                    append(outgoing, 0, |space| alert.encode(space))?;
                }
                return Err(failure);
            }
            if is_done {
                return match work {
                    Work::Nothing => Ok(()),
                    Work::Encrypt(_) | Work::Close => Err(ErrorKind::BrokenPipe.into()),
                };
            }
        }
    }
}

fn violation(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// An error of a function that writes into a buffer. One possible cause is that the buffer was too small.
trait SpaceError: Error + Send + Sync + 'static {
    /// Returns the size that the buffer needs, or `None` if the error has another cause.
    fn wanted(&self) -> Option<usize>;
}

impl SpaceError for EncodeError {
    fn wanted(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::AlreadyEncoded => None,
        }
    }
}

impl SpaceError for EncryptError {
    fn wanted(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::EncryptExhausted => None,
        }
    }
}

/// Appends the bytes that `write` produces to `outgoing`. Gives `write` a buffer of `size` bytes, or a larger one if
/// `write` needs it.
fn append<E: SpaceError>(
    outgoing: &mut Vec<u8>,
    mut size: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> io::Result<()> {
    let begin = outgoing.len();
    loop {
        outgoing.resize(begin + size, 0);
        let error = match write(&mut outgoing[begin..]) {
            Ok(written) => {
                outgoing.truncate(begin + written);
                return Ok(());
            }
            Err(error) => error,
        };
        match error.wanted() {
            Some(wanted) if wanted > size => size = wanted,
            _ => {
                outgoing.truncate(begin);
                return Err(io::Error::other(error));
            }
        }
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        loop {
            let waiting = &stream.decrypted[stream.taken..];
            if !waiting.is_empty() {
                let count = waiting.len().min(space.remaining());
                space.put_slice(&waiting[..count]);
                stream.taken += count;
                if stream.taken == stream.decrypted.len() {
                    (stream.decrypted, stream.taken) = (Vec::new(), 0);
                }
                return Poll::Ready(Ok(()));
            }
            if stream.has_ended {
                return Poll::Ready(Ok(()));
            }
            if !ready!(stream.poll_receive(context))? {
                // Without the end of TLS, somebody on the path may have ended the connection.
                return Poll::Ready(Err(ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        if stream.is_closing {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        // So at most one record waits for the socket.
        ready!(stream.poll_send(context))?;
        let plain = &bytes[..bytes.len().min(MOST_PLAIN)];
        if plain.is_empty() {
            return Poll::Ready(Ok(0));
        }
        stream.advance(Work::Encrypt(plain))?;
        match stream.poll_send(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(plain.len())),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut filled = slices.iter().filter(|slice| !slice.is_empty());
        let (first, second) = (filled.next(), filled.next());
        match (first, second) {
            (None, _) => Poll::Ready(Ok(0)),
            (Some(only), None) => self.poll_write(context, only),
            // The slices become one record.
            (Some(_), Some(_)) => {
                let mut plain = Vec::new();
                for slice in slices {
                    let room = MOST_PLAIN - plain.len();
                    plain.extend_from_slice(&slice[..slice.len().min(room)]);
                }
                self.poll_write(context, &plain)
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        ready!(stream.poll_send(context))?;
        Pin::new(&mut stream.tcp).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if !mem::replace(&mut stream.is_closing, true) {
            // A connection that has failed has no end of TLS to send.
            let _ = stream.advance(Work::Close);
        }
        ready!(stream.poll_send(context))?;
        Pin::new(&mut stream.tcp).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
