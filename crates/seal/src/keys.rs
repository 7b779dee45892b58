//! Seals and opens records with the keys of one phase and direction (wire.md §9.3.4, §9.6.3).

use crate::suites::{Aead, NONCE_LEN, row};
use std::sync::OnceLock;
use wire::seal::record::{HEADER_LEN, OVERHEAD, TAG_LEN};
use wire::seal::schedule::nonce;
use wire::seal::{Direction, PhaseSecret, RecordHeader, Suite, Treatment};

const SLOTS: usize = Treatment::ALL.len() * Suite::ALL.len();

/// The keys of one phase and direction. There is one key for each treatment and suite. Each key is derived when it
/// is used for the first time.
pub struct Keys {
    secret: PhaseSecret,
    direction: Direction,
    ready: [OnceLock<Option<Box<Ready>>>; SLOTS],
}

struct Ready {
    aead: Box<dyn Aead>,
    iv: [u8; NONCE_LEN],
}

/// Returns the number of units that a record counts towards the limits of wire.md §9.10. `body` is the length of the
/// record's body in bytes.
pub const fn units(body: usize) -> u64 {
    1 + body.div_ceil(16) as u64
}

impl Keys {
    /// Creates the keys of the phase with this secret, for records in this direction.
    pub fn new(secret: PhaseSecret, direction: Direction) -> Self {
        Self { secret, direction, ready: Default::default() }
    }

    /// Drops the derived keys to save memory while the tunnel is idle. The keys are derived again when they are needed.
    pub fn rest(&mut self) {
        self.ready = Default::default();
    }

    /// Seals a record in place. `record` contains the body, with room for [`HEADER_LEN`] bytes in front and for
    /// [`TAG_LEN`] bytes behind it. The caller must never seal another record of this phase and direction with the same
    /// counter. Returns `None` if the record has no body, or if the cryptographic library fails. The record is then
    /// overwritten with zeros and must not be sent.
    pub fn seal(&self, header: &RecordHeader, record: &mut [u8]) -> Option<()> {
        let sealed = self.sealed(header, record);
        if sealed.is_none() {
            record.fill(0);
        }
        sealed
    }

    /// Does what [`Self::seal`] does, but takes the body from `body`. `record` must be longer than `body` by
    /// [`OVERHEAD`].
    pub fn seal_to(&self, header: &RecordHeader, body: &[u8], record: &mut [u8]) -> Option<()> {
        let sealed = self.sealed_to(header, body, record);
        if sealed.is_none() {
            record.fill(0);
        }
        sealed
    }

    fn sealed_to(&self, header: &RecordHeader, body: &[u8], record: &mut [u8]) -> Option<()> {
        if body.is_empty() || record.len() != body.len() + OVERHEAD {
            return None;
        }
        if header.content.treatment() == Treatment::Authenticate {
            record.get_mut(HEADER_LEN..HEADER_LEN + body.len())?.copy_from_slice(body);
            return self.sealed(header, record);
        }
        let Ready { aead, iv } = self.ready(header)?;
        let (head, rest) = record.split_first_chunk_mut::<HEADER_LEN>()?;
        *head = header.encode();
        let (text, tag) = rest.split_last_chunk_mut::<TAG_LEN>()?;
        *tag = aead.seal_to(nonce(iv, header.counter), head, body, text)?;
        Some(())
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

    /// Opens a record in place, and returns its body. `header` must be the result of [`RecordHeader::of`] for `record`.
    /// The caller must check first that the record's counter is new ([`crate::Windows`]). Returns `None` if the record
    /// was not sealed with the key of this phase, direction, treatment and suite. The content of `record` is then
    /// meaningless.
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
