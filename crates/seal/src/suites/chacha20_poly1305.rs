//! AEAD_CHACHA20_POLY1305, RFC 8439: constant-time without special instructions, and the fastest on processors without
//! AES instructions.

use super::{Library, Row};
use aws_lc_rs::aead::CHACHA20_POLY1305;
use wire::seal::Suite;

pub(super) const ROW: Row = Row {
    suite: Suite::ChaCha20Poly1305,
    with_key: |key| Library::with_key(&CHACHA20_POLY1305, key),
    // ChaCha20 needs no special instructions.
    is_helped: || false,
};
