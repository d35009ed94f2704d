//! A value that is replaced while others use it, without a lock for those who look.
//!
//! Each one that there was stays, and knows the next. So whoever looks has a plain reference, to the last one: that is a step
//! for each time that it was replaced, and an operator does not do that often.

use std::{ops::Deref, sync::OnceLock};

#[derive(Debug)]
pub struct Live<T>(Node<T>);

#[derive(Debug)]
struct Node<T> {
    value: T,
    next: OnceLock<Box<Node<T>>>,
}

impl<T> Live<T> {
    pub fn new(value: T) -> Self {
        Self(Node::new(value))
    }

    /// Who looks from now on sees this one.
    pub fn replace(&self, value: T) {
        let mut node = Box::new(Node::new(value));
        // Somebody else may be as quick.
        while let Err(again) = self.last().next.set(node) {
            node = again;
        }
    }

    fn last(&self) -> &Node<T> {
        let mut last = &self.0;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }
}

impl<T> Node<T> {
    fn new(value: T) -> Self {
        Self { value, next: OnceLock::new() }
    }
}

impl<T> Deref for Live<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.last().value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_last_one_counts_and_those_who_hold_an_older_one_keep_it() {
        let live = Live::new(1);
        let first: &i32 = &live;
        live.replace(2);
        live.replace(3);
        assert_eq!((*first, *live), (1, 3));
    }

    #[test]
    fn of_those_who_replace_at_once_none_is_lost() {
        let live = Arc::new(Live::new(0));
        let threads = (1..=8).map(|thread| {
            let live = live.clone();
            std::thread::spawn(move || (0..50).for_each(|_| live.replace(thread)))
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        let mut count = 0;
        let mut node = &live.0;
        while let Some(next) = node.next.get() {
            (node, count) = (next, count + 1);
        }
        assert_eq!(count, 8 * 50);
    }
}
