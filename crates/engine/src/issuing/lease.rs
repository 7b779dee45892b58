//! The handles of a grant that is recorded once and renewed without another record. Such a grant has one number, and a
//! different handle in each epoch. The lower half of a handle is an encryption of the grant's number and of the number
//! of epochs since the grant's first epoch. So the authority finds the grant of a handle without a record of the
//! handle, and nobody else can see that two handles belong to one grant.

use wire::{Epoch, Handle, Suite};

/// Number of bits of [`Turn::epochs`].
const EPOCH_BITS: u32 = 4;
/// Number of epochs in which a grant can be renewed. After these epochs, a new grant with another number is needed.
pub const EPOCHS_MAX: u32 = 1 << EPOCH_BITS;
/// Number of different grant numbers.
pub const NUMBERS: u32 = 1 << (u32::BITS - EPOCH_BITS);
/// Rounds of the Feistel network. Four are enough for a block of this form against an attacker who sees few blocks
/// (Luby and Rackoff); standards for small blocks use eight to ten.
const ROUNDS: u8 = 8;

/// A grant's number and an epoch, which together determine the lower half of the grant's handle in that epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The grant's number, less than [`NUMBERS`].
    pub number: u32,
    /// Number of epochs since the grant's first epoch, less than [`EPOCHS_MAX`].
    pub epochs: u32,
}

impl Turn {
    /// Returns the [`Turn`] that determines the handle of the grant `number` in the epoch `now`. `first` is the grant's
    /// first epoch. Returns `None` if `now` is before `first` or [`EPOCHS_MAX`] or more epochs after it, or if `number`
    /// is not less than [`NUMBERS`].
    pub fn at(number: u32, first: Epoch, now: Epoch) -> Option<Self> {
        let epochs = u32::try_from(now.0.checked_sub(first.0)?).ok()?;
        (epochs < EPOCHS_MAX && number < NUMBERS).then_some(Self { number, epochs })
    }
}

/// The key that encrypts turns. Has no `Debug`, because it is secret.
#[derive(Clone)]
pub struct HandleKey([u8; 16]);

impl HandleKey {
    /// Creates a key from random bytes.
    pub const fn new(key: [u8; 16]) -> Self {
        Self(key)
    }

    /// Returns the lower half of the grant's handle in this turn.
    pub fn encrypt(&self, turn: Turn) -> u32 {
        let block = (turn.number << EPOCH_BITS) | (turn.epochs % EPOCHS_MAX);
        let (mut left, mut right) = ((block >> 16) as u16, block as u16);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.mix(round, right));
        }
        (u32::from(left) << 16) | u32::from(right)
    }

    /// Returns the turn to which a handle belongs. If the handle was not made from a turn, the result is meaningless.
    pub fn decrypt(&self, handle: Handle) -> Turn {
        let block = handle.0 as u32;
        let (mut left, mut right) = ((block >> 16) as u16, block as u16);
        for round in (0..ROUNDS).rev() {
            (left, right) = (right ^ self.mix(round, left), left);
        }
        let block = (u32::from(left) << 16) | u32::from(right);
        Turn { number: block >> EPOCH_BITS, epochs: block % EPOCHS_MAX }
    }

    fn mix(&self, round: u8, half: u16) -> u16 {
        let [high, low] = half.to_be_bytes();
        let [first, second, ..] = Suite::Siphash.mac(&self.0, &[&[round, high, low]]);
        u16::from_be_bytes([first, second])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_turn_is_found_again_and_no_two_turns_share_a_handle() {
        let key = HandleKey::new([7; 16]);
        let mut seen = BTreeSet::new();
        for number in (0..2000).chain(NUMBERS - 10..NUMBERS) {
            for epochs in 0..EPOCHS_MAX {
                let turn = Turn { number, epochs };
                let half = key.encrypt(turn);
                assert_eq!(key.decrypt(Handle(0xabcd_0000_0000_0000 | u64::from(half))), turn);
                assert!(seen.insert(half));
            }
        }
    }

    /// Each bit of the difference between two handles is set about as often as chance would set it, whether the handles
    /// belong to one grant or to two that were issued one after the other.
    #[test]
    fn handles_of_one_grant_show_nothing_in_common() {
        let key = HandleKey::new([7; 16]);
        let half = |number, epochs| key.encrypt(Turn { number, epochs });
        for (numbers, epochs) in [(0, 1), (1, 0)] {
            let mut ones = [0_u32; 32];
            for number in 0..4000 {
                let difference = half(number, 0) ^ half(number + numbers, epochs);
                (0..32).for_each(|bit| ones[bit] += (difference >> bit) & 1);
            }
            assert!(ones.iter().all(|ones| (1800..2200).contains(ones)), "{ones:?}");
        }
    }

    #[test]
    fn a_grant_has_a_handle_in_sixteen_epochs() {
        let turn = |now| Turn::at(5, Epoch(100), Epoch(now)).map(|turn| turn.epochs);
        assert_eq!([99, 100, 115, 116].map(turn), [None, Some(0), Some(15), None]);
        assert_eq!(Turn::at(NUMBERS, Epoch(0), Epoch(0)), None);
    }
}
