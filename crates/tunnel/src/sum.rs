//! The Internet checksum (RFC 1071) of headers, and its incremental update.

/// Adds `bytes`, padded with zeros, to a sum that is not folded yet, 32 bits at a time. After [`fold`], the result is
/// the same as with 16-bit words.
pub fn add(mut sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_be_bytes(*word));
    }
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    sum + u64::from(u32::from_be_bytes(last))
}

/// Folds a sum into 16 bits.
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the sum of the pseudo-header (RFC 9293, RFC 8200) without the length. `addresses` are the two addresses, one
/// after the other.
pub fn pseudo(addresses: &[u8], protocol: u8) -> u64 {
    add(u64::from(protocol), addresses)
}

/// Returns the new value of a checksum field after the bytes `old`, which the checksum covers, have become `new`.
/// `partial` means that the field contains the sum of the pseudo-header. Otherwise, it contains the complement of the
/// sum over the whole packet.
pub fn update(field: u16, old: &[u8], new: &[u8], partial: bool) -> u16 {
    let removed = u64::from(!fold(add(0, old)));
    if partial {
        fold(u64::from(field) + removed + add(0, new))
    } else {
        !fold(u64::from(!field) + removed + add(0, new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_updated_checksum_is_that_of_the_new_bytes(
            mut bytes in prop::collection::vec(any::<u8>(), 20..60), new: [u8; 4], partial: bool,
        ) {
            // Something that isn't zero, as in every packet.
            bytes[0] = 0x45;
            let of = |bytes: &[u8]| if partial { fold(add(0, bytes)) } else { !fold(add(0, bytes)) };
            let before = of(&bytes);
            let old: [u8; 4] = bytes[12..16].try_into().unwrap();
            bytes[12..16].copy_from_slice(&new);
            prop_assert_eq!(update(before, &old, &new, partial), of(&bytes));
        }
    }
}
