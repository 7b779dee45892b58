//! A short list stored inline, so that a decision that involves few senders and receivers allocates nothing.

use std::ops::{Deref, DerefMut};

/// Up to `N` items, stored inline. If there are more, all items are on the heap.
pub(super) struct Few<T, const N: usize> {
    room: [T; N],
    taken: usize,
    many: Vec<T>,
}

impl<T: Copy, const N: usize> Few<T, N> {
    /// Creates an empty list whose unused slots are set to `filling`.
    #[inline]
    pub(super) const fn new(filling: T) -> Self {
        Self { room: [filling; N], taken: 0, many: Vec::new() }
    }

    #[inline]
    pub(super) fn push(&mut self, item: T) {
        if let Some(room) = self.room.get_mut(self.taken) {
            *room = item;
            self.taken += 1;
        } else {
            if self.many.is_empty() {
                self.many.extend_from_slice(&self.room);
            }
            self.many.push(item);
        }
    }
}

impl<T, const N: usize> Few<T, N> {
    /// Empties the list.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.taken = 0;
        self.many.clear();
    }
}

impl<T, const N: usize> Deref for Few<T, N> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        if self.many.is_empty() { self.room.get(..self.taken).unwrap_or_default() } else { &self.many }
    }
}

impl<T, const N: usize> DerefMut for Few<T, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        if self.many.is_empty() { self.room.get_mut(..self.taken).unwrap_or_default() } else { &mut self.many }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stay_in_order_when_there_are_many() {
        let mut few: Few<u8, 3> = Few::new(0);
        for count in 1..=9 {
            few.push(count);
            assert_eq!(*few, (1..=count).collect::<Vec<_>>());
        }
    }
}
