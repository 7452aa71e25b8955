//! Traces worked out by hand, and random ones against what must hold of any.

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

/// An allocator of a program whose sizes do not matter: requests say what they ask for.
struct Trial<'a> {
    caching: Caching<'a>,
    backing: NoStorage,
    ledger: Ledger,
    target: Target,
    /// By storage: what it was given, and where.
    taken: BTreeMap<u32, (u64, Location)>,
}

impl<'a> Trial<'a> {
    fn new(program: &'a Program, settings: spec::Caching, memory: u64) -> Trial<'a> {
        let target = Target { memory: Bytes(memory), ..target() };
        let (caching, ledger) = (Caching::new(program, settings), Ledger::default());
        Trial { caching, backing: NoStorage::default(), ledger, target, taken: BTreeMap::new() }
    }

    fn parts(&mut self) -> (&mut Caching<'a>, System<'_>) {
        let Trial { caching, backing, ledger, target, .. } = self;
        (caching, System { backing, ledger, target })
    }

    /// Bytes as they are asked for. False where the limit refuses them.
    fn take(&mut self, name: u32, bytes: u64) -> bool {
        let bytes = bytes.next_multiple_of(unit(&self.target));
        let (caching, mut system) = self.parts();
        match caching.take(ValueId(name), bytes, &mut system) {
            Ok(location) => {
                self.taken.insert(name, (bytes, location));
                true
            }
            Err(DeviceError::BeyondLimit { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn put_back(&mut self, name: u32) {
        let (bytes, location) = self.taken.remove(&name).unwrap();
        self.caching.put_back(bytes, location);
    }

    fn empty(&mut self) {
        let (caching, mut system) = self.parts();
        caching.empty(&mut system).unwrap();
    }

    fn reserved(&self) -> u64 {
        self.ledger.usage(POOL).reserved
    }

    /// Of a class, by segment: its size, and its blocks as `512*3` for 512 bytes of storage 3, `512` for free ones, and `-` for
    /// what has no memory.
    fn blocks(&self, class: Class) -> Vec<(u64, String)> {
        let block = |(_, block): &(u64, Block)| match block.holder() {
            Some(storage) => format!("{}*{}", block.bytes, storage.0),
            None if block.is_absent() => "-".to_owned(),
            None => block.bytes.to_string(),
        };
        let segments = self.caching.pools[class as usize].blocks();
        let text = |blocks: Vec<_>| blocks.iter().map(block).collect::<Vec<_>>().join(" ");
        segments.into_iter().map(|(bytes, blocks)| (bytes, text(blocks))).collect()
    }

    fn work(&self) -> [u64; 4] {
        let CacheWork { allocations, hits, splits, returned_bytes } = self.caching.work();
        [allocations, hits, splits, returned_bytes]
    }
}

fn program() -> Program {
    compile(&small(), &target()).unwrap()
}

/// Of a class with one segment: its size and blocks.
fn one(bytes: u64, blocks: &str) -> Vec<(u64, String)> {
    vec![(bytes, blocks.to_owned())]
}

/// Up to 1 MiB, from segments of 2 MiB = 2097152 bytes.
#[test]
fn small_requests_share_segments_of_2_mib() {
    let program = program();
    let mut trial = Trial::new(&program, spec::Caching::default(), 1 << 40);
    // 1 byte is rounded to 512, and 513 to 1024: 2097152 - 512 - 1024 = 2095616 are left.
    assert!(trial.take(0, 1) && trial.take(1, 513));
    assert_eq!(trial.blocks(Class::Small), one(2 * MIB, "512*0 1024*1 2095616"));
    // 1 MiB is small: 2095616 - 1048576 = 1047040 are left, and do not serve another. A new segment leaves 1 MiB.
    assert!(trial.take(2, MIB) && trial.take(3, MIB));
    let two = |first: &str, second: &str| vec![(2 * MIB, first.to_owned()), (2 * MIB, second.to_owned())];
    assert_eq!(trial.blocks(Class::Small), two("512*0 1024*1 1048576*2 1047040", "1048576*3 1048576"));
    // The best fit for 1000 KiB = 1024000 bytes is the smaller rest, which comes to 23040; the larger one stays whole.
    assert!(trial.take(4, 1000 * KIB));
    assert_eq!(
        trial.blocks(Class::Small),
        two("512*0 1024*1 1048576*2 1024000*4 23040", "1048576*3 1048576")
    );
    // Five requests, three of them served from a block that was there, and each split one.
    assert_eq!((trial.reserved(), trial.work()), (4 * MIB, [5, 3, 5, 0]));

    // With nobody beside it that is free, a block stays what it is.
    trial.put_back(1);
    // With one on either side: 1024 + 1048576 = 1049600; the rest behind the last is another's.
    trial.put_back(2);
    assert_eq!(trial.blocks(Class::Small)[0].1, "512*0 1049600 1024000*4 23040");
    // On both sides: 1049600 + 1024000 + 23040 = 2096640.
    trial.put_back(4);
    assert_eq!(trial.blocks(Class::Small)[0].1, "512*0 2096640");
    // A segment goes back if all of it is free: 3's does, 0's does not.
    trial.put_back(3);
    trial.empty();
    assert_eq!(trial.blocks(Class::Small), one(2 * MIB, "512*0 2096640"));
    assert_eq!((trial.reserved(), trial.work()), (2 * MIB, [5, 3, 5, 2 * MIB]));
    assert_eq!(trial.caching.pieces(), Pieces { bytes: 2096640, largest: 2096640 });
    trial.put_back(0);
    trial.empty();
    assert_eq!((trial.reserved(), trial.blocks(Class::Small)), (0, Vec::new()));
}

/// From more than 1 MiB to less than 10 MiB from segments of 20 MiB; larger ones have their own, in steps of 2 MiB.
#[test]
fn large_requests_leave_what_is_larger_than_1_mib() {
    let program = program();
    let mut trial = Trial::new(&program, spec::Caching::default(), 1 << 40);
    // A byte above 1 MiB is large, and rounded to 1 MiB + 512.
    assert!(trial.take(0, MIB + 1));
    assert_eq!(trial.blocks(Class::Large), one(20 * MIB, &format!("{}*0 {}", MIB + 512, 19 * MIB - 512)));
    trial.put_back(0);
    trial.empty();

    // 512 less than 10 MiB leave 10 MiB + 512, which serve 9 MiB - 512. That would leave 1 MiB + 1 KiB: a block.
    assert!(trial.take(0, 10 * MIB - 512) && trial.take(1, 9 * MIB - 512));
    let rest = MIB + KIB;
    let blocks = format!("{}*0 {}*1 {rest}", 10 * MIB - 512, 9 * MIB - 512);
    assert_eq!(trial.blocks(Class::Large), one(20 * MIB, &blocks));
    // Of 9 MiB + 512, exactly 1 MiB would be left: it stays with the block.
    trial.put_back(1);
    assert!(trial.take(1, 9 * MIB + 512));
    let blocks = format!("{}*0 {}*1", 10 * MIB - 512, 10 * MIB + 512);
    assert_eq!(trial.blocks(Class::Large), one(20 * MIB, &blocks));

    // 10 MiB have a segment of their own, and 10 MiB + 1 byte one of 12 MiB, of which 2 MiB - 512 are left.
    assert!(trial.take(2, 10 * MIB) && trial.take(3, 10 * MIB + 1));
    let own = [
        (10 * MIB, format!("{}*2", 10 * MIB)),
        (12 * MIB, format!("{}*3 {}", 10 * MIB + 512, 2 * MIB - 512)),
    ];
    assert_eq!(trial.blocks(Class::Large)[1..], own);
    assert_eq!(trial.reserved(), 42 * MIB);
    // Six requests, of which two were served from blocks. Split: 1 MiB + 1, 10 MiB - 512, 9 MiB - 512, 10 MiB + 1.
    assert_eq!(trial.work(), [6, 2, 4, 20 * MIB]);
}

/// What is free and cannot be used is given back before a request fails.
#[test]
fn a_request_fails_once_nothing_is_left_to_give_back() {
    let program = program();
    let mut trial = Trial::new(&program, spec::Caching::default(), 40 * MIB);
    // Segments of 12, 14 and 2 MiB.
    assert!(trial.take(0, 12 * MIB) && trial.take(1, 14 * MIB) && trial.take(2, 1));
    trial.put_back(0);
    // 16 MiB with the 28 that are reserved pass 40, but not without the 12 that nothing is in.
    assert!(trial.take(3, 16 * MIB));
    assert_eq!((trial.reserved(), trial.work()[3]), (32 * MIB, 12 * MIB));
    // Half of what 3 had is taken again: 8 MiB are left, beside 2 MiB - 512 of small blocks.
    trial.put_back(3);
    assert!(trial.take(4, 8 * MIB));
    // 10 MiB do not fit: neither 8 in pieces nor the 8 that the limit leaves are enough.
    assert!(!trial.take(5, 10 * MIB));
    assert_eq!(trial.caching.pieces(), Pieces { bytes: 10 * MIB - 512, largest: 8 * MIB });
    assert_eq!(trial.reserved(), 32 * MIB);
    // 8 MiB are there.
    assert!(trial.take(5, 8 * MIB));
    assert_eq!(trial.caching.pieces(), Pieces { bytes: 2 * MIB - 512, largest: 2 * MIB - 512 });
}

/// From 32 MiB on: neither divided, nor given to what is smaller.
#[test]
fn oversize_blocks_serve_nearly_their_size_alone() {
    let program = program();
    let settings = spec::Caching { max_split_size_mb: Some(32), ..spec::Caching::default() };
    let mut trial = Trial::new(&program, settings, 180 * MIB);
    assert!(trial.take(0, 64 * MIB));
    trial.put_back(0);
    // 8 MiB ask the system; 44 MiB, too, since 20 MiB would be idle.
    assert!(trial.take(1, 8 * MIB) && trial.take(2, 44 * MIB));
    assert_eq!(trial.reserved(), (64 + 20 + 44) * MIB);
    // 44 MiB + 512 leave less: they take the block as a whole.
    assert!(trial.take(3, 44 * MIB + 512));
    assert_eq!(trial.blocks(Class::Large)[0], (64 * MIB, format!("{}*3", 64 * MIB)));
    // 512 below 32 MiB are no more than a request like others.
    assert!(trial.take(4, 32 * MIB - 512));
    assert_eq!((trial.reserved(), trial.work()), (160 * MIB, [5, 1, 1, 0]));

    // 64 and 44 MiB are free and serve no 31 MiB, for which 32 are more than the limit leaves. Of the two the smaller is
    // large enough, and goes back.
    trial.put_back(2);
    trial.put_back(3);
    assert!(trial.take(5, 31 * MIB));
    assert_eq!((trial.reserved(), trial.work()[3]), ((160 - 44 + 32) * MIB, 44 * MIB));
    // Neither of 64 and 32 MiB is large enough for 96: both go.
    trial.put_back(5);
    assert!(trial.take(6, 96 * MIB));
    assert_eq!((trial.reserved(), trial.work()[3]), ((148 - 96 + 96) * MIB, (44 + 96) * MIB));
}

/// Above half of 200 MiB, what has been free for longest goes first.
#[test]
fn garbage_is_what_has_been_free_for_long() {
    let program = program();
    let settings = spec::Caching { garbage_collection_threshold: Some(0.5), ..spec::Caching::default() };
    let mut trial = Trial::new(&program, settings, 200 * MIB);
    // Three searches: segments of 20, 40 and 30 MiB.
    assert!(trial.take(0, 2 * MIB) && trial.take(1, 40 * MIB) && trial.take(2, 30 * MIB));
    trial.put_back(1);
    // A fourth one, for a part of what 0 left.
    assert!(trial.take(3, 2 * MIB));
    trial.put_back(2);
    // The fifth finds no 50 MiB free. 90 are no more than half.
    assert!(trial.take(4, 50 * MIB));
    assert_eq!((trial.reserved(), trial.work()[3]), (140 * MIB, 0));
    // At the sixth there are 40 too many. 1's have been free for 3 searches, 2's for 2: the average is 2.5.
    assert!(trial.take(5, 60 * MIB));
    assert_eq!((trial.reserved(), trial.work()[3]), (160 * MIB, 40 * MIB));
    // At the seventh 60 are too many, and the average of 3 and 1 is 2: 2's go, which is not enough, and so do 4's.
    trial.put_back(4);
    assert!(trial.take(6, 70 * MIB));
    assert_eq!((trial.reserved(), trial.work()[3]), ((160 - 80 + 70) * MIB, 120 * MIB));
    assert_eq!(trial.work(), [7, 1, 2, 120 * MIB]);
}

/// Memory comes in pages of 20 MiB, and goes in them, wherever they lie in the segment.
#[test]
fn a_segment_grows_at_its_end_and_where_it_was_emptied() {
    let program = program();
    let settings = spec::Caching { expandable_segments: true, ..spec::Caching::default() };
    let mut trial = Trial::new(&program, settings, 100 * MIB);
    let mib = |blocks: &[(u64, &str)]| -> String {
        let text = blocks
            .iter()
            .map(|(size, of)| if *size == 0 { "-".to_owned() } else { format!("{}{of}", size * MIB) });
        text.collect::<Vec<_>>().join(" ")
    };
    let large = |trial: &Trial<'_>| trial.blocks(Class::Large).remove(0).1;
    // 30 MiB take two pages, of which 10 MiB are left, and serve a part of 12 MiB: one more page.
    assert!(trial.take(0, 30 * MIB) && trial.take(1, 12 * MIB));
    assert_eq!(large(&trial), mib(&[(30, "*0"), (12, "*1"), (18, ""), (0, "")]));
    // Exactly 1 MiB is left of 18, and is a block of its own.
    assert!(trial.take(2, 17 * MIB));
    assert_eq!(large(&trial), mib(&[(30, "*0"), (12, "*1"), (17, "*2"), (1, ""), (0, "")]));
    assert_eq!((trial.reserved(), trial.work()), (60 * MIB, [3, 1, 3, 0]));

    // From 0 to 30 MiB is one whole page, and half of another, which stays.
    trial.put_back(0);
    trial.empty();
    assert_eq!(large(&trial), mib(&[(0, ""), (10, ""), (12, "*1"), (17, "*2"), (1, ""), (0, "")]));
    assert_eq!((trial.reserved(), trial.work()[3]), (40 * MIB, 20 * MIB));
    // 10 and 1 are too small for 25: the page at the beginning comes back, and with 10 that is enough.
    assert!(trial.take(3, 25 * MIB));
    assert_eq!(large(&trial), mib(&[(25, "*3"), (5, ""), (12, "*1"), (17, "*2"), (1, ""), (0, "")]));
    // With 5 and 1 MiB free, 40 need what is behind the end: two pages and 1 MiB that was left.
    assert!(trial.take(4, 40 * MIB));
    let rest = [(25, "*3"), (5, ""), (12, "*1"), (17, "*2"), (40, "*4"), (1, ""), (0, "")];
    assert_eq!((large(&trial), trial.reserved()), (mib(&rest), 100 * MIB));

    // No page more is there. What 1 and 3 had is one piece but for 5 that lay between them, and serves 42.
    assert!(!trial.take(5, 42 * MIB));
    trial.put_back(1);
    trial.put_back(3);
    assert!(trial.take(5, 42 * MIB));
    assert_eq!(large(&trial), mib(&[(42, "*5"), (17, "*2"), (40, "*4"), (1, ""), (0, "")]));
    assert_eq!(trial.blocks(Class::Small), Vec::new());
}

/// A block that could grow is left to who needs that, also where another one is larger.
#[test]
fn what_could_grow_is_taken_last() {
    let program = program();
    let settings = spec::Caching { expandable_segments: true, ..spec::Caching::default() };
    let mut trial = Trial::new(&program, settings, 100 * MIB);
    // 30 and 10 fill two pages; 12 leave 8 of a third, before the end of what is there.
    assert!(trial.take(0, 30 * MIB) && trial.take(1, 10 * MIB) && trial.take(2, 12 * MIB));
    trial.put_back(0);
    let free = |trial: &Trial<'_>| -> Vec<u64> {
        let blocks = trial.caching.pools[Class::Large as usize].free();
        blocks.into_iter().map(|(_, bytes)| bytes / MIB).collect()
    };
    assert_eq!(free(&trial), [30, 8]);
    // 8 would do for 5, and 30 does.
    assert!(trial.take(3, 5 * MIB));
    assert_eq!(free(&trial), [25, 8]);
    // Of two that cannot grow the smaller does: of 30 that are free, 6 leave 24.
    assert!(trial.take(4, 19 * MIB) && trial.take(5, 8 * MIB));
    assert_eq!(free(&trial), [6]);
    trial.put_back(1);
    assert_eq!(free(&trial), [16]);
    trial.put_back(3);
    assert_eq!(free(&trial), [5, 16]);
    assert!(trial.take(6, 4 * MIB));
    assert_eq!(free(&trial), [1, 16]);
}

/// A system that has so many bytes, whatever the limit says.
struct Scarce {
    left: u64,
    given: BTreeMap<u32, u64>,
}

impl Backing for Scarce {
    fn request(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        self.left = self.left.checked_sub(bytes).ok_or(DeviceError::OutOfMemory { pool, bytes })?;
        let next = self.given.len() as u32;
        self.given.insert(next, bytes);
        Ok(Buffer(next))
    }

    fn give_back(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.left += self.given[&buffer.0];
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
}

/// A card that others use as well may have less than the limit says.
#[test]
fn what_is_cached_goes_back_before_the_system_s_refusal_counts() {
    let program = program();
    for expandable_segments in [false, true] {
        let settings = spec::Caching { expandable_segments, ..spec::Caching::default() };
        let mut caching = Caching::new(&program, settings);
        let (mut backing, mut ledger) =
            (Scarce { left: 60 * MIB, given: BTreeMap::new() }, Ledger::default());
        let target = target();
        let mut system = System { backing: &mut backing, ledger: &mut ledger, target: &target };
        let first = caching.take(ValueId(0), 20 * MIB, &mut system).unwrap();
        let second = caching.take(ValueId(1), 20 * MIB, &mut system).unwrap();
        caching.put_back(20 * MIB, first);
        caching.take(ValueId(2), 40 * MIB, &mut system).unwrap();
        assert_eq!(caching.work().returned_bytes, 20 * MIB, "{expandable_segments}");
        let refused = caching.take(ValueId(3), 20 * MIB, &mut system);
        assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
        // What could not be had in whole is not there in part.
        assert_eq!(system.reserved(POOL), 60 * MIB);
        caching.put_back(20 * MIB, second);
        caching.take(ValueId(3), 20 * MIB, &mut system).unwrap();
    }
}

/// What a random trace does next, with names and sizes by chance.
#[derive(Clone, Copy, Debug)]
enum Event {
    Take(u64),
    PutBack(usize),
    Empty,
}

fn any_event() -> impl Any<Value = Event> {
    let sizes = prop_oneof![1..4 * KIB, 1..2 * MIB, 1..32 * MIB];
    prop_oneof![
        6 => sizes.prop_map(Event::Take),
        5 => any::<usize>().prop_map(Event::PutBack),
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
    fn blocks_fill_their_segments_and_meet_no_other(
        events in proptest::collection::vec(any_event(), 1..120), settings in any_settings(), memory in 8..256u64,
        page in 9..=25u32,
    ) {
        let program = program();
        let mut trial = Trial::new(&program, settings, memory * MIB);
        trial.target.page = Bytes(1 << page);
        for (name, event) in (0..).zip(events) {
            match event {
                Event::Take(bytes) => drop(trial.take(name, bytes)),
                Event::PutBack(nth) => {
                    let names: Vec<u32> = trial.taken.keys().copied().collect();
                    if !names.is_empty() {
                        trial.put_back(names[nth % names.len()]);
                    }
                }
                Event::Empty => trial.empty(),
            }
            check(&trial)?;
        }
        let names: Vec<u32> = trial.taken.keys().copied().collect();
        names.into_iter().for_each(|name| trial.put_back(name));
        check(&trial)?;
        trial.empty();
        prop_assert_eq!(trial.reserved(), 0, "all that is free is whole again");
    }
}

fn check(trial: &Trial<'_>) -> Result<(), proptest::test_runner::TestCaseError> {
    let (mut reserved, mut held, mut free) = (0, BTreeMap::new(), 0);
    for class in Class::ALL {
        for (bytes, blocks) in trial.caching.pools[class as usize].blocks() {
            let mut end = 0;
            let mut before: Option<Block> = None;
            for (offset, block) in blocks {
                prop_assert_eq!(offset, end, "no gap, and nothing twice");
                prop_assert!(
                    !before.is_some_and(|before| before.joins(&block)),
                    "neighbours that are alike are one"
                );
                (end, before) = (offset + block.bytes, Some(block));
                if let Some(storage) = block.holder() {
                    held.insert(storage.0, (class, block.bytes, offset));
                }
                reserved += if block.is_absent() { 0 } else { block.bytes };
                free += if block.is_free() { block.bytes } else { 0 };
                let page = policy::page(class, trial.target.page.0);
                prop_assert!(
                    !block.is_absent() || block.bytes % page == 0 && offset % page == 0,
                    "whole pages"
                );
            }
            prop_assert_eq!(end, bytes);
        }
    }
    prop_assert_eq!(reserved, trial.reserved());
    prop_assert!(reserved <= trial.target.memory.0);
    prop_assert_eq!(free, trial.caching.pieces().bytes);
    prop_assert_eq!(held.len(), trial.taken.len());
    for (name, &(bytes, (_, offset))) in &trial.taken {
        let (class, size, place) = held[name];
        prop_assert_eq!((class, place), (Class::of(bytes), offset));
        prop_assert!(size >= bytes);
    }
    Ok(())
}
