//! A bounded queue that serves its users in turn. A user who fills the queue loses only items of this user, never items
//! of other users.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A bounded queue that holds items of several users, and serves the users in turn.
pub struct Turns<T> {
    room: usize,
    len: usize,
    queues: BTreeMap<u32, VecDeque<T>>,
    /// Users with items, in the order in which they are served.
    order: VecDeque<u32>,
    /// Users with items, sorted by the number of their items.
    lengths: BTreeSet<(usize, u32)>,
}

impl<T> Turns<T> {
    /// Creates an empty queue with room for `room` items.
    pub const fn new(room: usize) -> Self {
        Self { room, len: 0, queues: BTreeMap::new(), order: VecDeque::new(), lengths: BTreeSet::new() }
    }

    /// Appends an item of `user`. If the queue is full, drops one item and returns it. If another user has more items
    /// than `user` would have with the new item, the dropped item is the latest item of the user with the most items.
    /// Otherwise it is the new item.
    pub fn push(&mut self, user: u32, item: T) -> Option<T> {
        let mut dropped = None;
        if self.len >= self.room {
            dropped = self.make_room(user);
            if dropped.is_none() {
                return Some(item);
            }
        }
        let queue = self.queues.entry(user).or_default();
        if queue.is_empty() {
            self.order.push_back(user);
        }
        self.lengths.remove(&(queue.len(), user));
        queue.push_back(item);
        self.lengths.insert((queue.len(), user));
        self.len += 1;
        dropped
    }

    /// Removes and returns the first item of the user who is next in turn.
    pub fn pop(&mut self) -> Option<T> {
        let user = self.order.pop_front()?;
        let item = self.take(user, VecDeque::pop_front);
        if self.queues.contains_key(&user) {
            self.order.push_back(user);
        }
        item
    }

    /// Removes and returns an item of a user who has more items than `user` would have with one more, if there is such
    /// a user.
    fn make_room(&mut self, user: u32) -> Option<T> {
        let own = self.queues.get(&user).map_or(0, VecDeque::len);
        match self.lengths.last() {
            Some((most, longest)) if *most > own + 1 => self.take(*longest, VecDeque::pop_back),
            _ => None,
        }
    }

    /// Takes an item out of a user's queue. The user stays in the order if items are left.
    fn take(&mut self, user: u32, which: impl FnOnce(&mut VecDeque<T>) -> Option<T>) -> Option<T> {
        let queue = self.queues.get_mut(&user)?;
        self.lengths.remove(&(queue.len(), user));
        let item = which(queue);
        match queue.len() {
            0 => drop(self.queues.remove(&user)),
            left => drop(self.lengths.insert((left, user))),
        }
        self.len -= usize::from(item.is_some());
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(turns: &mut Turns<(u32, u32)>) -> Vec<(u32, u32)> {
        std::iter::from_fn(|| turns.pop()).collect()
    }

    #[test]
    fn users_are_served_in_turn_and_each_in_order() {
        let mut turns = Turns::new(10);
        for (user, number) in [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (2, 2)] {
            turns.push(user, (user, number));
        }
        assert_eq!(drain(&mut turns), [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3)]);
        turns.push(7, (7, 1));
        assert_eq!(drain(&mut turns), [(7, 1)]);
        assert!(turns.queues.is_empty() && turns.lengths.is_empty() && turns.len == 0);
    }

    #[test]
    fn a_flood_takes_no_room_from_others() {
        let mut turns = Turns::new(8);
        for number in 0..1000 {
            turns.push(1, (1, number));
        }
        for number in 0..4 {
            turns.push(2, (2, number));
            turns.push(1, (1, 2000));
        }
        assert_eq!(turns.len, 8);
        let served = drain(&mut turns);
        assert_eq!(served.iter().filter(|(user, _)| *user == 2).count(), 4, "{served:?}");
        assert_eq!(served[..4], [(1, 0), (2, 0), (1, 1), (2, 1)]);
    }

    #[test]
    fn with_more_users_than_room_nobody_is_pushed_out() {
        let mut turns = Turns::new(2);
        for user in 1..9 {
            turns.push(user, (user, 0));
        }
        assert_eq!(drain(&mut turns), [(1, 0), (2, 0)]);
    }
}
