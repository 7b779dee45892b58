//! AEAD_AES_128_GCM, RFC 5116: the fastest on processors with AES instructions.

use super::{Library, Row, has_aes};
use aws_lc_rs::aead::AES_128_GCM;
use wire::seal::Suite;

pub(super) const ROW: Row =
    Row { suite: Suite::Aes128Gcm, with_key: |key| Library::with_key(&AES_128_GCM, key), is_helped: has_aes };
