//! Expandable segments: more addresses reserved than memory exists, with memory committed to the pages in use. A
//! block can grow into the addresses after it, which reduces fragmentation.

use super::policy::{Class, page};
use super::pool::{Address, BlockPool};
use crate::system::System;
use device::{Buffer, DeviceError, Pool, Region};

/// Maximum bytes of addresses per segment, without a memory limit.
const MAX_ADDRESSES: u64 = 1 << 40;

/// Room for a request: the memory to commit for it.
struct Growth {
    first: Address,
    /// Uncommitted blocks, and how many bytes to commit from the start of each.
    needs: Vec<(Address, u64)>,
}

/// Commits memory at the lowest addresses with room for a request. Returns the free block there.
pub(super) fn grow(
    pool: &mut BlockPool,
    class: Class,
    bytes: u64,
    system: &mut System<'_>,
) -> Result<(Address, u64), DeviceError> {
    let page = page(class, system.target().page.0);
    let growth = match growth(pool, bytes, page) {
        Some(growth) => growth,
        None => {
            let most = system.target().available_at(Pool::Device).min(MAX_ADDRESSES);
            // Blocks with gaps between them may take a part of it.
            let addresses = (2 * most).max(bytes).next_multiple_of(page);
            pool.add_uncommitted(system.reserve(addresses)?, addresses);
            self::growth(pool, bytes, page).expect("the new segment has room for the request")
        }
    };
    let buffer = pool.buffer(growth.first);
    let part = |&(address, bytes): &(Address, u64)| Region { buffer, offset: address.offset, bytes };
    system.commit(&growth.needs.iter().map(part).collect::<Vec<_>>())?;
    let grown = growth.needs.into_iter().map(|(address, bytes)| pool.commit(address, bytes)).last();
    Ok(grown.expect("a request that finds no free block needs new memory"))
}

/// The first uncommitted block that has room together with the free block before it and the blocks after it.
fn growth(pool: &BlockPool, bytes: u64, page: u64) -> Option<Growth> {
    pool.uncommitted().find_map(|uncommitted| {
        let free = pool.before(uncommitted).filter(|(_, block)| block.is_free());
        let first = free.map_or(uncommitted, |(address, _)| address);
        let (mut left, mut needs) = (bytes, Vec::new());
        for (address, block) in
            pool.from(first).take_while(|(_, block)| block.is_free() || block.is_uncommitted())
        {
            let taken = if block.is_uncommitted() {
                block.bytes.min(left.next_multiple_of(page))
            } else {
                block.bytes
            };
            if block.is_uncommitted() {
                needs.push((address, taken));
            }
            left = left.saturating_sub(taken);
            if left == 0 {
                return Some(Growth { first, needs });
            }
        }
        None
    })
}

/// Decommits the whole pages of free blocks. Returns their bytes.
pub(super) fn shrink(
    pool: &mut BlockPool,
    class: Class,
    system: &mut System<'_>,
) -> Result<u64, DeviceError> {
    let page = page(class, system.target().page.0);
    let mut returned = 0;
    for (address, bytes) in pool.free_blocks() {
        let end = address.offset + bytes;
        let pages = address.offset.next_multiple_of(page)..end - end % page;
        if !pages.is_empty() {
            let buffer = pool.buffer(address);
            let bytes = pages.end - pages.start;
            system.decommit(Region { buffer, offset: pages.start, bytes })?;
            pool.decommit(address, pages);
            returned += bytes;
        }
    }
    Ok(returned)
}

/// Releases address ranges without memory.
pub(super) fn close(pool: &mut BlockPool, system: &mut System<'_>) -> Result<(), DeviceError> {
    let buffers: Vec<Buffer> = pool.drop_uncommitted();
    buffers.into_iter().try_for_each(|buffer| system.unreserve(buffer))
}
