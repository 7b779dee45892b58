//! Sealing and opening records with the keys of one phase and direction (wire.md §9.3.4, §9.6.3).

use crate::suites::{Aead, NONCE_LEN, row};
use std::sync::OnceLock;
use wire::seal::record::{HEADER_LEN, OVERHEAD, TAG_LEN};
use wire::seal::schedule::nonce;
use wire::seal::{Direction, PhaseSecret, RecordHeader, Suite, Treatment};

const SLOTS: usize = Treatment::ALL.len() * Suite::ALL.len();

/// The keys of one phase and direction. The key of a treatment and suite is derived on first use, by the thread that
/// uses it first.
pub struct Keys {
    secret: PhaseSecret,
    direction: Direction,
    ready: [OnceLock<Option<Box<Ready>>>; SLOTS],
}

struct Ready {
    aead: Box<dyn Aead>,
    iv: [u8; NONCE_LEN],
}

/// Returns the units that a record with a body of this length counts towards limits (wire.md §9.10).
pub const fn units(body: usize) -> u64 {
    1 + body.div_ceil(16) as u64
}

impl Keys {
    /// Creates the keys of the phase with this secret, for records in this direction.
    pub fn new(secret: PhaseSecret, direction: Direction) -> Self {
        Self { secret, direction, ready: Default::default() }
    }

    /// Drops the derived keys: an idle tunnel needs only the secret. The keys are derived again on use.
    pub fn rest(&mut self) {
        self.ready = Default::default();
    }

    /// Seals a record in place. Its body is between [`HEADER_LEN`] bytes in front and [`TAG_LEN`] behind. The caller
    /// must never seal another record of this phase and direction with the same counter. Returns `None` if the record
    /// has no body, or the library fails: the record is then zeroed and must not be sent.
    pub fn seal(&self, header: &RecordHeader, record: &mut [u8]) -> Option<()> {
        let sealed = self.sealed(header, record);
        if sealed.is_none() {
            record.fill(0);
        }
        sealed
    }

    fn sealed(&self, header: &RecordHeader, record: &mut [u8]) -> Option<()> {
        if record.len() <= OVERHEAD {
            return None;
        }
        let Ready { aead, iv } = self.ready(header)?;
        let nonce = nonce(iv, header.counter);
        let (head, rest) = record.split_first_chunk_mut::<HEADER_LEN>()?;
        *head = header.encode();
        match header.content.treatment() {
            Treatment::Encrypt => {
                let (body, tag) = rest.split_last_chunk_mut::<TAG_LEN>()?;
                *tag = aead.seal(nonce, head, body)?;
            }
            Treatment::Authenticate => {
                let (clear, tag) = record.split_last_chunk_mut::<TAG_LEN>()?;
                *tag = aead.seal(nonce, clear, &mut [])?;
            }
        }
        Some(())
    }

    /// Opens a record in place; `header` is the result of [`RecordHeader::of`] for it. Returns the body, or `None` if
    /// the record was not sealed with the key of this phase, direction, treatment and suite; the content of `record` is
    /// then meaningless. The caller must check first that the counter is new ([`crate::Windows`]).
    pub fn open<'r>(&self, header: &RecordHeader, record: &'r mut [u8]) -> Option<&'r mut [u8]> {
        let Ready { aead, iv } = self.ready(header)?;
        let nonce = nonce(iv, header.counter);
        let (clear, tag) = record.split_last_chunk_mut::<TAG_LEN>()?;
        let is_right = match header.content.treatment() {
            Treatment::Encrypt => {
                let (head, body) = clear.split_first_chunk_mut::<HEADER_LEN>()?;
                aead.open(nonce, head, body, tag)
            }
            Treatment::Authenticate => aead.open(nonce, clear, &mut [], tag),
        };
        if is_right { clear.get_mut(HEADER_LEN..) } else { None }
    }

    fn ready(&self, header: &RecordHeader) -> Option<&Ready> {
        let (treatment, suite) = (header.content.treatment(), header.suite);
        let slot = (treatment as usize - 1) * Suite::ALL.len() + suite as usize - 1;
        let derive = || {
            let key = self.secret.record_key(self.direction, treatment, suite)?;
            Some(Box::new(Ready { aead: (row(suite).with_key)(key.key())?, iv: key.iv() }))
        };
        self.ready.get(slot)?.get_or_init(derive).as_deref()
    }
}
