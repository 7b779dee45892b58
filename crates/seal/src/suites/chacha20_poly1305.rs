//! AEAD_CHACHA20_POLY1305, RFC 8439: even in time, and the fastest where there are no instructions for AES.

use super::{Library, Row};
use aws_lc_rs::aead::CHACHA20_POLY1305;
use wire::seal::Suite;

pub(super) const ROW: Row = Row {
    suite: Suite::ChaCha20Poly1305,
    with_key: |key| Library::with_key(&CHACHA20_POLY1305, key),
    // It is made of what every processor has.
    is_helped: || false,
};
