//! AEAD_AES_256_GCM, RFC 5116: for rules that require 256-bit keys.

use super::{Library, Row, has_aes};
use aws_lc_rs::aead::AES_256_GCM;
use wire::seal::Suite;

pub(super) const ROW: Row =
    Row { suite: Suite::Aes256Gcm, with_key: |key| Library::with_key(&AES_256_GCM, key), is_helped: has_aes };
