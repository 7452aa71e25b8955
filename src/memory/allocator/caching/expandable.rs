//! Segments that grow: addresses for more than there is memory, with memory behind the pages that are in use. Where a block
//! ends the next one can begin, whatever was there before, so that less is left in pieces.

use super::policy::{Class, page};
use super::pool::{BlockPool, Place};
use crate::system::System;
use device::{Buffer, DeviceError, Pool, Region};

/// Addresses of a segment, where nothing limits them.
const MOST: u64 = 1 << 40;

/// Free memory for a request: what must be asked of the system for it.
struct Growth {
    first: Place,
    /// Blocks without memory, and how much each needs from its beginning on.
    needs: Vec<(Place, u64)>,
}

/// Puts memory behind the lowest addresses at which a request finds room. Returns the free block there.
pub(super) fn grow(
    pool: &mut BlockPool,
    class: Class,
    bytes: u64,
    system: &mut System<'_>,
) -> Result<(Place, u64), DeviceError> {
    let page = page(class, system.target().page.0);
    let growth = match growth(pool, bytes, page) {
        Some(growth) => growth,
        None => {
            let most = system.target().available_at(Pool::Device).min(MOST);
            // A part of it may be taken by blocks with gaps between them.
            let addresses = (2 * most).max(bytes).next_multiple_of(page);
            pool.add_absent(system.reserve(addresses)?, addresses);
            self::growth(pool, bytes, page).expect("there are addresses enough")
        }
    };
    let buffer = pool.buffer(growth.first);
    let part = |&(place, bytes): &(Place, u64)| Region { buffer, offset: place.offset, bytes };
    system.commit(&growth.needs.iter().map(part).collect::<Vec<_>>())?;
    let grown = growth.needs.into_iter().map(|(place, bytes)| pool.commit(place, bytes)).last();
    Ok(grown.expect("no free block was large enough"))
}

/// Where a block without memory, what is free before it and what follows have room.
fn growth(pool: &BlockPool, bytes: u64, page: u64) -> Option<Growth> {
    pool.absent().find_map(|absent| {
        let free = pool.before(absent).filter(|(_, block)| block.is_free());
        let first = free.map_or(absent, |(place, _)| place);
        let (mut left, mut needs) = (bytes, Vec::new());
        for (place, block) in pool.from(first).take_while(|(_, block)| block.is_free() || block.is_absent()) {
            let taken =
                if block.is_absent() { block.bytes.min(left.next_multiple_of(page)) } else { block.bytes };
            if block.is_absent() {
                needs.push((place, taken));
            }
            left = left.saturating_sub(taken);
            if left == 0 {
                return Some(Growth { first, needs });
            }
        }
        None
    })
}

/// Gives back the whole pages of free blocks. Returns their bytes.
pub(super) fn shrink(
    pool: &mut BlockPool,
    class: Class,
    system: &mut System<'_>,
) -> Result<u64, DeviceError> {
    let page = page(class, system.target().page.0);
    let mut returned = 0;
    for (place, bytes) in pool.free() {
        let end = place.offset + bytes;
        let pages = place.offset.next_multiple_of(page)..end - end % page;
        if !pages.is_empty() {
            let buffer = pool.buffer(place);
            let bytes = pages.end - pages.start;
            system.decommit(Region { buffer, offset: pages.start, bytes })?;
            pool.decommit(place, pages);
            returned += bytes;
        }
    }
    Ok(returned)
}

/// Gives back the addresses that have no memory behind them.
pub(super) fn close(pool: &mut BlockPool, system: &mut System<'_>) -> Result<(), DeviceError> {
    let buffers: Vec<Buffer> = pool.drop_absent();
    buffers.into_iter().try_for_each(|buffer| system.give_up(buffer))
}
