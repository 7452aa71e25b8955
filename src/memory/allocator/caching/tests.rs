//! Traces that were worked out by hand, and random traces against invariants.

use std::collections::BTreeMap;

use proptest::prelude::{Just, Strategy as Any, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::pool::Block;
use super::*;
use crate::system::{Backing, NoStorage};
use base::units::Bytes;
use device::{Buffer, Ledger, Region};
use testing::compile;
use testing::{small, target};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// An allocator whose requests have explicit sizes; the program's sizes do not matter.
struct Trace<'a> {
    caching: Caching<'a>,
    backing: NoStorage,
    ledger: Ledger,
    target: Target,
    /// By storage: its bytes and location.
    allocated: BTreeMap<u32, (u64, Location)>,
}

impl<'a> Trace<'a> {
    fn new(program: &'a Program, settings: spec::Caching, memory: u64) -> Trace<'a> {
        let target = Target { memory: Bytes(memory), ..target() };
        let (caching, ledger) = (Caching::new(program, settings), Ledger::default());
        Trace { caching, backing: NoStorage::default(), ledger, target, allocated: BTreeMap::new() }
    }

    fn split(&mut self) -> (&mut Caching<'a>, System<'_>) {
        let Trace { caching, backing, ledger, target, .. } = self;
        (caching, System { backing, ledger, target })
    }

    /// Allocates `bytes`, rounded. False if the limit refuses them.
    fn allocate(&mut self, name: u32, bytes: u64) -> bool {
        let bytes = bytes.next_multiple_of(unit(&self.target));
        let (caching, mut system) = self.split();
        match caching.allocate_block(ValueId(name), bytes, &mut system) {
            Ok(location) => {
                self.allocated.insert(name, (bytes, location));
                true
            }
            Err(DeviceError::BeyondLimit { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn free(&mut self, name: u32) {
        let (bytes, location) = self.allocated.remove(&name).unwrap();
        self.caching.free_block(bytes, location);
    }

    fn empty(&mut self) {
        let (caching, mut system) = self.split();
        caching.empty(&mut system).unwrap();
    }

    /// Allocated bytes beyond those of the requests.
    fn remainders(&self) -> u64 {
        let block = |(bytes, location): &(u64, Location)| {
            self.caching.pools[Class::of(*bytes) as usize].block_bytes(*location) - bytes
        };
        self.allocated.values().map(block).sum()
    }

    fn reserved(&self) -> u64 {
        self.ledger.usage(POOL).reserved
    }

    /// The segments of a class: size, and blocks as `512*3` for 512 bytes of storage 3, `512` for free ones, and `-`
    /// for uncommitted ones.
    fn blocks(&self, class: Class) -> Vec<(u64, String)> {
        let block = |(_, block): &(u64, Block)| match block.holder() {
            Some(storage) => format!("{}*{}", block.bytes, storage.0),
            None if block.is_uncommitted() => "-".to_owned(),
            None => block.bytes.to_string(),
        };
        let segments = self.caching.pools[class as usize].blocks();
        let text = |blocks: Vec<_>| blocks.iter().map(block).collect::<Vec<_>>().join(" ");
        segments.into_iter().map(|(bytes, blocks)| (bytes, text(blocks))).collect()
    }

    fn stats(&self) -> [u64; 4] {
        let CacheStats { allocations, hits, splits, returned_bytes } = self.caching.stats();
        [allocations, hits, splits, returned_bytes]
    }
}

fn program() -> Program {
    compile(&small(), &target()).unwrap()
}

/// The blocks of a class with one segment.
fn one(bytes: u64, blocks: &str) -> Vec<(u64, String)> {
    vec![(bytes, blocks.to_owned())]
}

/// Requests up to 1 MiB use segments of 2 MiB = 2097152 bytes.
#[test]
fn small_requests_share_segments_of_2_mib() {
    let program = program();
    let mut trace = Trace::new(&program, spec::Caching::default(), 1 << 40);
    // 1 byte is rounded to 512, and 513 to 1024: 2097152 - 512 - 1024 = 2095616 are left.
    assert!(trace.allocate(0, 1) && trace.allocate(1, 513));
    assert_eq!(trace.blocks(Class::Small), one(2 * MIB, "512*0 1024*1 2095616"));
    // 1 MiB is small: 2095616 - 1048576 = 1047040 are left, and do not serve another. A new segment leaves 1 MiB.
    assert!(trace.allocate(2, MIB) && trace.allocate(3, MIB));
    let two = |first: &str, second: &str| vec![(2 * MIB, first.to_owned()), (2 * MIB, second.to_owned())];
    assert_eq!(trace.blocks(Class::Small), two("512*0 1024*1 1048576*2 1047040", "1048576*3 1048576"));
    // The best fit for 1000 KiB = 1024000 bytes is the smaller rest, which comes to 23040; the larger one stays whole.
    assert!(trace.allocate(4, 1000 * KIB));
    assert_eq!(
        trace.blocks(Class::Small),
        two("512*0 1024*1 1048576*2 1024000*4 23040", "1048576*3 1048576")
    );
    // Five requests; three were served from existing blocks; each split one.
    assert_eq!((trace.reserved(), trace.stats()), (4 * MIB, [5, 3, 5, 0]));

    // Without free neighbours, a block stays as it is.
    trace.free(1);
    // A free neighbour on one side: 1024 + 1048576 = 1049600; the block after the last is in use.
    trace.free(2);
    assert_eq!(trace.blocks(Class::Small)[0].1, "512*0 1049600 1024000*4 23040");
    // Free neighbours on both sides: 1049600 + 1024000 + 23040 = 2096640.
    trace.free(4);
    assert_eq!(trace.blocks(Class::Small)[0].1, "512*0 2096640");
    // An entirely free segment is returned: that of 3, not that of 0.
    trace.free(3);
    trace.empty();
    assert_eq!(trace.blocks(Class::Small), one(2 * MIB, "512*0 2096640"));
    assert_eq!((trace.reserved(), trace.stats()), (2 * MIB, [5, 3, 5, 2 * MIB]));
    assert_eq!(trace.caching.fragments(), FreeMemory { bytes: 2096640, largest: 2096640 });
    trace.free(0);
    trace.empty();
    assert_eq!((trace.reserved(), trace.blocks(Class::Small)), (0, Vec::new()));
}

/// Requests of more than 1 MiB and less than 10 MiB use segments of 20 MiB; larger ones have their own, in steps of 2
/// MiB.
#[test]
fn large_blocks_are_split_if_more_than_1_mib_remains() {
    let program = program();
    let mut trace = Trace::new(&program, spec::Caching::default(), 1 << 40);
    // A byte above 1 MiB is large, and rounded to 1 MiB + 512.
    assert!(trace.allocate(0, MIB + 1));
    assert_eq!(trace.blocks(Class::Large), one(20 * MIB, &format!("{}*0 {}", MIB + 512, 19 * MIB - 512)));
    trace.free(0);
    trace.empty();

    // 10 MiB - 512 leave 10 MiB + 512, which serve 9 MiB - 512. The rest, 1 MiB + 1 KiB, becomes a block.
    assert!(trace.allocate(0, 10 * MIB - 512) && trace.allocate(1, 9 * MIB - 512));
    let rest = MIB + KIB;
    let blocks = format!("{}*0 {}*1 {rest}", 10 * MIB - 512, 9 * MIB - 512);
    assert_eq!(trace.blocks(Class::Large), one(20 * MIB, &blocks));
    assert_eq!(trace.remainders(), 0);
    // 9 MiB + 512 would leave exactly 1 MiB, which stays part of the block.
    trace.free(1);
    assert!(trace.allocate(1, 9 * MIB + 512));
    let blocks = format!("{}*0 {}*1", 10 * MIB - 512, 10 * MIB + 512);
    assert_eq!(trace.blocks(Class::Large), one(20 * MIB, &blocks));
    assert_eq!(trace.remainders(), MIB);

    // 10 MiB have their own segment; 10 MiB + 1 byte have one of 12 MiB, which leaves 2 MiB - 512.
    assert!(trace.allocate(2, 10 * MIB) && trace.allocate(3, 10 * MIB + 1));
    let own = [
        (10 * MIB, format!("{}*2", 10 * MIB)),
        (12 * MIB, format!("{}*3 {}", 10 * MIB + 512, 2 * MIB - 512)),
    ];
    assert_eq!(trace.blocks(Class::Large)[1..], own);
    assert_eq!(trace.reserved(), 42 * MIB);
    // Six requests; two were served from blocks. Split by: 1 MiB + 1, 10 MiB - 512, 9 MiB - 512, 10 MiB + 1.
    assert_eq!(trace.stats(), [6, 2, 4, 20 * MIB]);
}

/// Unusable free memory is returned before a request fails.
#[test]
fn free_segments_are_returned_before_a_request_fails() {
    let program = program();
    let mut trace = Trace::new(&program, spec::Caching::default(), 40 * MIB);
    // Segments of 12, 14 and 2 MiB.
    assert!(trace.allocate(0, 12 * MIB) && trace.allocate(1, 14 * MIB) && trace.allocate(2, 1));
    trace.free(0);
    // 16 MiB plus the 28 reserved exceed 40, but not without the free segment of 12.
    assert!(trace.allocate(3, 16 * MIB));
    assert_eq!((trace.reserved(), trace.stats()[3]), (32 * MIB, 12 * MIB));
    // 8 of the 16 MiB are reused: 8 MiB are left, besides 2 MiB - 512 of small blocks.
    trace.free(3);
    assert!(trace.allocate(4, 8 * MIB));
    // 10 MiB fit neither the free block of 8 nor the 8 below the limit.
    assert!(!trace.allocate(5, 10 * MIB));
    assert_eq!(trace.caching.fragments(), FreeMemory { bytes: 10 * MIB - 512, largest: 8 * MIB });
    assert_eq!(trace.reserved(), 32 * MIB);
    // 8 MiB fit.
    assert!(trace.allocate(5, 8 * MIB));
    assert_eq!(trace.caching.fragments(), FreeMemory { bytes: 2 * MIB - 512, largest: 2 * MIB - 512 });
}

/// Blocks from 32 MiB on are neither split nor used for smaller requests.
#[test]
fn oversize_blocks_serve_only_requests_of_similar_size() {
    let program = program();
    let settings = spec::Caching { max_split_size_mb: Some(32), ..spec::Caching::default() };
    let mut trace = Trace::new(&program, settings, 180 * MIB);
    assert!(trace.allocate(0, 64 * MIB));
    trace.free(0);
    // 8 MiB need a new segment, and so do 44 MiB: the block of 64 would waste 20 MiB.
    assert!(trace.allocate(1, 8 * MIB) && trace.allocate(2, 44 * MIB));
    assert_eq!(trace.reserved(), (64 + 20 + 44) * MIB);
    // 44 MiB + 512 would waste less: they take the whole block.
    assert!(trace.allocate(3, 44 * MIB + 512));
    assert_eq!(trace.blocks(Class::Large)[0], (64 * MIB, format!("{}*3", 64 * MIB)));
    assert_eq!(trace.remainders(), 20 * MIB - 512);
    // 32 MiB - 512 are an ordinary request.
    assert!(trace.allocate(4, 32 * MIB - 512));
    assert_eq!((trace.reserved(), trace.stats()), (160 * MIB, [5, 1, 1, 0]));

    // The free blocks of 64 and 44 MiB do not serve 31 MiB, and a new segment of 32 exceeds the limit. The smaller of
    // the two is large enough, and is returned.
    trace.free(2);
    trace.free(3);
    assert!(trace.allocate(5, 31 * MIB));
    assert_eq!((trace.reserved(), trace.stats()[3]), ((160 - 44 + 32) * MIB, 44 * MIB));
    // Neither 64 nor 32 MiB suffice for 96: both are returned.
    trace.free(5);
    assert!(trace.allocate(6, 96 * MIB));
    assert_eq!((trace.reserved(), trace.stats()[3]), ((148 - 96 + 96) * MIB, (44 + 96) * MIB));
}

/// Above half of 200 MiB, the segments that have been free longest are returned first.
#[test]
fn garbage_collection_returns_the_longest_free_segments() {
    let program = program();
    let settings = spec::Caching { garbage_collection_threshold: Some(0.5), ..spec::Caching::default() };
    let mut trace = Trace::new(&program, settings, 200 * MIB);
    // Three searches: segments of 20, 40 and 30 MiB.
    assert!(trace.allocate(0, 2 * MIB) && trace.allocate(1, 40 * MIB) && trace.allocate(2, 30 * MIB));
    trace.free(1);
    // A fourth search, served from the rest of 0's segment.
    assert!(trace.allocate(3, 2 * MIB));
    trace.free(2);
    // The fifth search finds no 50 MiB free. The 90 reserved are below half.
    assert!(trace.allocate(4, 50 * MIB));
    assert_eq!((trace.reserved(), trace.stats()[3]), (140 * MIB, 0));
    // At the sixth, the excess is 40. Segment 1 has been free for 3 searches, segment 2 for 2: the average is 2.5.
    assert!(trace.allocate(5, 60 * MIB));
    assert_eq!((trace.reserved(), trace.stats()[3]), (160 * MIB, 40 * MIB));
    // At the seventh, the excess is 60, and the average of 3 and 1 is 2: segment 2 is returned, which is not enough,
    // and then segment 4.
    trace.free(4);
    assert!(trace.allocate(6, 70 * MIB));
    assert_eq!((trace.reserved(), trace.stats()[3]), ((160 - 80 + 70) * MIB, 120 * MIB));
    assert_eq!(trace.stats(), [7, 1, 2, 120 * MIB]);
}

/// Memory is committed and decommitted in pages of 20 MiB, anywhere in the segment.
#[test]
fn expandable_segments_grow_at_the_end_and_in_emptied_pages() {
    let program = program();
    let settings = spec::Caching { expandable_segments: true, ..spec::Caching::default() };
    let mut trace = Trace::new(&program, settings, 100 * MIB);
    let mib = |blocks: &[(u64, &str)]| -> String {
        let text = blocks
            .iter()
            .map(|(size, of)| if *size == 0 { "-".to_owned() } else { format!("{}{of}", size * MIB) });
        text.collect::<Vec<_>>().join(" ")
    };
    let large = |trace: &Trace<'_>| trace.blocks(Class::Large).remove(0).1;
    // 30 MiB take two pages and leave 10 MiB, which serve a part of 12 MiB: one more page.
    assert!(trace.allocate(0, 30 * MIB) && trace.allocate(1, 12 * MIB));
    assert_eq!(large(&trace), mib(&[(30, "*0"), (12, "*1"), (18, ""), (0, "")]));
    // 17 of 18 leave exactly 1 MiB, a block of its own.
    assert!(trace.allocate(2, 17 * MIB));
    assert_eq!(large(&trace), mib(&[(30, "*0"), (12, "*1"), (17, "*2"), (1, ""), (0, "")]));
    assert_eq!((trace.reserved(), trace.stats()), (60 * MIB, [3, 1, 3, 0]));

    // 0 to 30 MiB is one whole page, and half of another, which stays.
    trace.free(0);
    trace.empty();
    assert_eq!(large(&trace), mib(&[(0, ""), (10, ""), (12, "*1"), (17, "*2"), (1, ""), (0, "")]));
    assert_eq!((trace.reserved(), trace.stats()[3]), (40 * MIB, 20 * MIB));
    // 10 and 1 are too small for 25: the first page is committed again, which suffices with the 10.
    assert!(trace.allocate(3, 25 * MIB));
    assert_eq!(large(&trace), mib(&[(25, "*3"), (5, ""), (12, "*1"), (17, "*2"), (1, ""), (0, "")]));
    // With 5 and 1 MiB free, 40 need new memory at the end: two pages, plus the 1 MiB.
    assert!(trace.allocate(4, 40 * MIB));
    let rest = [(25, "*3"), (5, ""), (12, "*1"), (17, "*2"), (40, "*4"), (1, ""), (0, "")];
    assert_eq!((large(&trace), trace.reserved()), (mib(&rest), 100 * MIB));

    // The limit has no page left. Blocks 1 and 3 coalesce with the 5 MiB between them, and serve 42.
    assert!(!trace.allocate(5, 42 * MIB));
    trace.free(1);
    trace.free(3);
    assert!(trace.allocate(5, 42 * MIB));
    assert_eq!(large(&trace), mib(&[(42, "*5"), (17, "*2"), (40, "*4"), (1, ""), (0, "")]));
    assert_eq!(trace.blocks(Class::Small), Vec::new());
}

/// Blocks that can grow are reserved for requests that need that, even if another free block is larger.
#[test]
fn blocks_that_can_grow_are_taken_last() {
    let program = program();
    let settings = spec::Caching { expandable_segments: true, ..spec::Caching::default() };
    let mut trace = Trace::new(&program, settings, 100 * MIB);
    // 30 and 10 fill two pages; 12 leave 8 of a third, followed by uncommitted addresses.
    assert!(trace.allocate(0, 30 * MIB) && trace.allocate(1, 10 * MIB) && trace.allocate(2, 12 * MIB));
    trace.free(0);
    let free = |trace: &Trace<'_>| -> Vec<u64> {
        let blocks = trace.caching.pools[Class::Large as usize].free_blocks();
        blocks.into_iter().map(|(_, bytes)| bytes / MIB).collect()
    };
    assert_eq!(free(&trace), [30, 8]);
    // 8 suffice for 5, but 30 are taken.
    assert!(trace.allocate(3, 5 * MIB));
    assert_eq!(free(&trace), [25, 8]);
    // Of two that cannot grow the smaller is taken; 30 - 5 - 19 = 6 are left.
    assert!(trace.allocate(4, 19 * MIB) && trace.allocate(5, 8 * MIB));
    assert_eq!(free(&trace), [6]);
    trace.free(1);
    assert_eq!(free(&trace), [16]);
    trace.free(3);
    assert_eq!(free(&trace), [5, 16]);
    assert!(trace.allocate(6, 4 * MIB));
    assert_eq!(free(&trace), [1, 16]);
}

/// A system with `left` bytes, independent of the limit.
struct Scarce {
    left: u64,
    granted: BTreeMap<u32, u64>,
}

impl Backing for Scarce {
    fn request(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        self.left = self.left.checked_sub(bytes).ok_or(DeviceError::OutOfMemory { pool, bytes })?;
        let next = self.granted.len() as u32;
        self.granted.insert(next, bytes);
        Ok(Buffer(next))
    }

    fn give_back(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.left += self.granted[&buffer.0];
        Ok(())
    }

    fn reserve(&mut self, _bytes: u64) -> Result<Buffer, DeviceError> {
        self.request(POOL, 0)
    }

    fn commit(&mut self, part: Region) -> Result<(), DeviceError> {
        let refused = DeviceError::OutOfMemory { pool: POOL, bytes: part.bytes };
        self.left = self.left.checked_sub(part.bytes).ok_or(refused)?;
        Ok(())
    }

    fn decommit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.left += part.bytes;
        Ok(())
    }

    fn copy(&mut self, _from: Region, _to: Region) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A GPU that other processes use can have less memory than the limit.
#[test]
fn cache_is_returned_before_the_request_fails_if_the_system_refuses() {
    let program = program();
    for expandable_segments in [false, true] {
        let settings = spec::Caching { expandable_segments, ..spec::Caching::default() };
        let mut caching = Caching::new(&program, settings);
        let (mut backing, mut ledger) =
            (Scarce { left: 60 * MIB, granted: BTreeMap::new() }, Ledger::default());
        let target = target();
        let mut system = System { backing: &mut backing, ledger: &mut ledger, target: &target };
        let first = caching.allocate_block(ValueId(0), 20 * MIB, &mut system).unwrap();
        let second = caching.allocate_block(ValueId(1), 20 * MIB, &mut system).unwrap();
        caching.free_block(20 * MIB, first);
        caching.allocate_block(ValueId(2), 40 * MIB, &mut system).unwrap();
        assert_eq!(caching.stats().returned_bytes, 20 * MIB, "{expandable_segments}");
        let refused = caching.allocate_block(ValueId(3), 20 * MIB, &mut system);
        assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
        // A request that failed leaves nothing behind.
        assert_eq!(system.reserved(POOL), 60 * MIB);
        caching.free_block(20 * MIB, second);
        caching.allocate_block(ValueId(3), 20 * MIB, &mut system).unwrap();
    }
}

/// An event of a random trace.
#[derive(Clone, Copy, Debug)]
enum Event {
    Allocate(u64),
    Free(usize),
    Empty,
}

fn any_event() -> impl Any<Value = Event> {
    let sizes = prop_oneof![1..4 * KIB, 1..2 * MIB, 1..32 * MIB];
    prop_oneof![
        6 => sizes.prop_map(Event::Allocate),
        5 => any::<usize>().prop_map(Event::Free),
        1 => Just(Event::Empty),
    ]
}

fn any_settings() -> impl Any<Value = spec::Caching> {
    let split = prop_oneof![Just(None), (21..32u64).prop_map(Some)];
    let threshold = prop_oneof![Just(None), (0.1..0.9f64).prop_map(Some)];
    let fixed = (split, threshold).prop_map(|(max_split_size_mb, garbage_collection_threshold)| {
        spec::Caching { max_split_size_mb, expandable_segments: false, garbage_collection_threshold }
    });
    prop_oneof![fixed, Just(spec::Caching { expandable_segments: true, ..spec::Caching::default() })]
}

proptest! {
    #![proptest_config(testing::random_cases(192))]

    #[test]
    fn blocks_tile_their_segments(
        events in proptest::collection::vec(any_event(), 1..120), settings in any_settings(), memory in 8..256u64,
        page in 9..=25u32,
    ) {
        let program = program();
        let mut trace = Trace::new(&program, settings, memory * MIB);
        trace.target.page = Bytes(1 << page);
        for (name, event) in (0..).zip(events) {
            match event {
                Event::Allocate(bytes) => drop(trace.allocate(name, bytes)),
                Event::Free(nth) => {
                    let names: Vec<u32> = trace.allocated.keys().copied().collect();
                    if !names.is_empty() {
                        trace.free(names[nth % names.len()]);
                    }
                }
                Event::Empty => trace.empty(),
            }
            check(&trace)?;
        }
        let names: Vec<u32> = trace.allocated.keys().copied().collect();
        names.into_iter().for_each(|name| trace.free(name));
        check(&trace)?;
        trace.empty();
        prop_assert_eq!(trace.reserved(), 0, "all segments are returned");
    }
}

fn check(trace: &Trace<'_>) -> Result<(), proptest::test_runner::TestCaseError> {
    let (mut reserved, mut used, mut free) = (0, BTreeMap::new(), 0);
    for class in Class::ALL {
        for (bytes, blocks) in trace.caching.pools[class as usize].blocks() {
            let mut end = 0;
            let mut before: Option<Block> = None;
            for (offset, block) in blocks {
                prop_assert_eq!(offset, end, "blocks are contiguous");
                prop_assert!(
                    !before.is_some_and(|before| before.coalesces_with(&block)),
                    "adjacent blocks in the same state are coalesced"
                );
                (end, before) = (offset + block.bytes, Some(block));
                if let Some(storage) = block.holder() {
                    used.insert(storage.0, (class, block.bytes, offset));
                }
                reserved += if block.is_uncommitted() { 0 } else { block.bytes };
                free += if block.is_free() { block.bytes } else { 0 };
                let page = policy::page(class, trace.target.page.0);
                prop_assert!(
                    !block.is_uncommitted() || block.bytes % page == 0 && offset % page == 0,
                    "whole pages"
                );
            }
            prop_assert_eq!(end, bytes);
        }
    }
    prop_assert_eq!(reserved, trace.reserved());
    prop_assert!(reserved <= trace.target.memory.0);
    prop_assert_eq!(free, trace.caching.fragments().bytes);
    prop_assert_eq!(used.len(), trace.allocated.len());
    for (name, &(bytes, (_, offset))) in &trace.allocated {
        let (class, size, address) = used[name];
        prop_assert_eq!((class, address), (Class::of(bytes), offset));
        prop_assert!(size >= bytes);
    }
    Ok(())
}
