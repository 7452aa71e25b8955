//! The allocator's memory as a snapshot lists it: segments, their blocks, and the calls of the driver.

use super::{Allocator, Pool, Size, State};
use crate::sequence::Stream;

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Memory obtained from the driver, or returned to it: a segment, or pages of an expandable one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriverCall {
    pub(crate) place: Place,
    pub(crate) stream: Stream,
    pub(crate) obtains: bool,
}

/// A block with memory, in use or cached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CurrentBlock {
    pub(crate) index: u32,
    pub(crate) place: Place,
    pub(crate) is_used: bool,
    /// Of the small pool.
    pub(crate) is_small: bool,
    pub(crate) stream: Stream,
}

impl Allocator {
    pub(super) fn record_driver_call(&mut self, place: Place, pool: Pool, obtains: bool) {
        if let Some(calls) = &mut self.driver_calls {
            calls.push(DriverCall { place, stream: pool.stream, obtains });
        }
    }

    /// All blocks, by segment and offset.
    pub(crate) fn current_blocks(&self) -> Vec<CurrentBlock> {
        let mut exists = vec![true; self.blocks.len()];
        self.unused.iter().for_each(|&index| exists[index as usize] = false);
        let block = |index: u32| {
            let block = &self.blocks[index as usize];
            let (is_used, is_small) = (block.state == State::Used, block.pool.size == Size::Small);
            (exists[index as usize] && block.state != State::Unmapped).then(|| CurrentBlock {
                index,
                place: self.place(index),
                is_used,
                is_small,
                stream: block.pool.stream,
            })
        };
        let mut blocks: Vec<CurrentBlock> = (0..self.blocks.len() as u32).filter_map(block).collect();
        blocks.sort_by_key(|block| (block.place.segment, block.place.offset));
        blocks
    }
}
