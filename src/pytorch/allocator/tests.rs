//! Traces worked out by hand from PyTorch's rules.

use std::fs;
use std::path::Path;

use super::*;
use crate::replay::replay;
use crate::sequence::{Event, Phase, Purpose, Sequence, Stream};

fn card(available: u64) -> CardMemory {
    CardMemory { available, total: available }
}

/// An allocator, and blocks in use by name.
struct Trace {
    allocator: Allocator,
    blocks: std::collections::HashMap<char, u32>,
}

impl Trace {
    fn new(limit: Option<u64>) -> Trace {
        let card = limit.map(card);
        Trace {
            allocator: Allocator::new(card, AllocConf::default()),
            blocks: std::collections::HashMap::new(),
        }
    }

    /// Requests memory, and expects these allocated and reserved bytes afterwards.
    #[track_caller]
    fn allocate(&mut self, name: char, bytes: u64, usage: (u64, u64)) {
        self.allocate_on(Stream::default(), name, bytes, usage);
    }

    #[track_caller]
    fn allocate_on(&mut self, stream: Stream, name: char, bytes: u64, usage: (u64, u64)) {
        let block = self.allocator.allocate(bytes, stream).unwrap();
        assert!(self.blocks.insert(name, block).is_none(), "{name} is in use");
        self.expect(usage);
    }

    #[track_caller]
    fn free(&mut self, name: char, usage: (u64, u64)) {
        self.allocator.free(self.blocks.remove(&name).unwrap());
        self.expect(usage);
    }

    #[track_caller]
    fn expect(&self, (allocated, reserved): (u64, u64)) {
        assert_eq!(self.allocator.usage, Usage { allocated, reserved });
    }

    /// The segment of a block, from 1 by age, and the offset there.
    fn place(&self, name: char) -> (u32, u64) {
        let block = &self.allocator.blocks[self.blocks[&name] as usize];
        (block.segment, block.offset)
    }
}

/// Blocks of another stream serve no request, even if the card has no other memory left: then they are returned first.
#[test]
fn streams_share_no_free_blocks() {
    let mut trace = Trace::new(Some(24 * MIB));
    trace.allocate('a', 512, (512, 2 * MIB));
    trace.allocate_on(Stream::AllGather, 'b', 512, (1024, 4 * MIB));
    trace.allocate('c', 12 * MIB, (12 * MIB + 1024, 16 * MIB));
    trace.free('c', (1024, 16 * MIB));
    trace.free('b', (512, 16 * MIB));
    trace.allocate('d', 512, (1024, 16 * MIB));
    assert_eq!((trace.place('a'), trace.place('d')), ((1, 0), (1, 512)));
    trace.allocate_on(Stream::AllGather, 'e', 1024, (2048, 16 * MIB));
    assert_eq!(trace.place('e'), (2, 0));
    trace.allocate_on(Stream::ReduceScatter, 'f', 12 * MIB, (2048 + 12 * MIB, 16 * MIB));
    assert_eq!(trace.allocator.retries, 1);
    trace.free('f', (2048, 16 * MIB));
    trace.allocate_on(Stream::ReduceScatter, 'g', 10 * MIB, (2048 + 10 * MIB, 16 * MIB));
    assert_eq!(trace.allocator.retries, 1);
}

#[test]
fn requests_up_to_one_mib_share_segments_of_two_mib() {
    let mut trace = Trace::new(None);
    trace.allocate('a', 1, (512, 2 * MIB));
    trace.allocate('b', 512, (1024, 2 * MIB));
    trace.allocate('c', 513, (2048, 2 * MIB));
    trace.allocate('d', MIB, (2048 + MIB, 2 * MIB));
    // 1 MiB - 2048 bytes are left.
    trace.allocate('e', MIB, (2048 + 2 * MIB, 4 * MIB));
    // The large pool does not take the second segment's free MiB.
    trace.allocate('f', MIB + 1, (2560 + 3 * MIB, 24 * MIB));
    assert_eq!(['a', 'b', 'c', 'd'].map(|name| trace.place(name)), [(1, 0), (1, 512), (1, 1024), (1, 2048)]);
    assert_eq!(['e', 'f'].map(|name| trace.place(name)), [(2, 0), (3, 0)]);
}

#[test]
fn no_bytes_take_a_block() {
    Trace::new(None).allocate('a', 0, (512, 2 * MIB));
}

#[test]
fn small_blocks_leave_remainders_from_512_bytes() {
    let mut trace = Trace::new(None);
    trace.allocate('a', MIB, (MIB, 2 * MIB));
    trace.allocate('b', MIB - 512, (2 * MIB - 512, 2 * MIB));
    trace.allocate('c', 512, (2 * MIB, 2 * MIB));
    trace.allocate('d', 512, (2 * MIB + 512, 4 * MIB));
}

/// A remainder of 1 MiB counts as allocated; one of 512 bytes more is a free block.
#[test]
fn large_blocks_leave_remainders_above_one_mib() {
    let mut trace = Trace::new(None);
    trace.allocate('a', 8 * MIB, (8 * MIB, 20 * MIB));
    trace.allocate('b', 8 * MIB, (16 * MIB, 20 * MIB));
    trace.allocate('c', 3 * MIB, (20 * MIB, 20 * MIB));
    trace.free('c', (16 * MIB, 20 * MIB));
    trace.allocate('d', 3 * MIB - 512, (19 * MIB - 512, 20 * MIB));
    trace.allocate('e', MIB + 512, (20 * MIB, 20 * MIB));
}

#[test]
fn segments_from_ten_mib_are_rounded_to_two_mib() {
    let mut trace = Trace::new(None);
    trace.allocate('a', 10 * MIB - 512, (10 * MIB - 512, 20 * MIB));
    trace.free('a', (0, 20 * MIB));
    trace.allocator.empty_cache();
    trace.allocate('b', 10 * MIB, (10 * MIB, 10 * MIB));
    // 2 MiB - 512 bytes become a free block of a segment of 12 MiB.
    trace.allocate('c', 10 * MIB + 1, (20 * MIB + 512, 22 * MIB));
    trace.allocate('d', 2 * MIB - 512, (22 * MIB, 22 * MIB));
    // 1 MiB of 12 is left, and counts as allocated.
    trace.allocate('e', 11 * MIB, (34 * MIB, 34 * MIB));
}

#[test]
fn freed_blocks_merge_with_free_neighbours() {
    let mut trace = Trace::new(None);
    for (name, allocated) in [('a', 4), ('b', 8), ('c', 12)] {
        trace.allocate(name, 4 * MIB, (allocated * MIB, 20 * MIB));
    }
    trace.free('a', (8 * MIB, 20 * MIB));
    // With the 8 MiB after it.
    trace.free('c', (4 * MIB, 20 * MIB));
    trace.allocate('d', 12 * MIB, (16 * MIB, 20 * MIB));
    assert_eq!(trace.place('d'), (1, 8 * MIB));
    trace.free('d', (4 * MIB, 20 * MIB));
    // Between two free blocks: all 20 MiB are one block again.
    trace.free('b', (0, 20 * MIB));
    trace.allocate('e', 18 * MIB, (18 * MIB, 20 * MIB));
    assert_eq!(trace.place('e'), (1, 0));
}

#[test]
fn blocks_of_different_segments_do_not_merge() {
    let mut trace = Trace::new(None);
    trace.allocate('a', 10 * MIB, (10 * MIB, 10 * MIB));
    trace.allocate('b', 10 * MIB, (20 * MIB, 20 * MIB));
    trace.free('a', (10 * MIB, 20 * MIB));
    trace.free('b', (0, 20 * MIB));
    trace.allocate('c', 20 * MIB, (20 * MIB, 40 * MIB));
}

#[test]
fn smallest_free_block_is_taken_before_an_older_one() {
    let mut trace = Trace::new(None);
    trace.allocate('a', 30 * MIB, (30 * MIB, 30 * MIB));
    trace.allocate('b', 20 * MIB, (50 * MIB, 50 * MIB));
    trace.free('a', (20 * MIB, 50 * MIB));
    trace.free('b', (0, 50 * MIB));
    trace.allocate('c', 10 * MIB, (10 * MIB, 50 * MIB));
    assert_eq!(trace.place('c'), (2, 0));
}

/// Not the one that was freed last or first.
#[test]
fn older_segment_is_taken_among_equal_sizes() {
    for order in [['a', 'b', 'c'], ['c', 'a', 'b'], ['b', 'c', 'a']] {
        let mut trace = Trace::new(None);
        for (name, bytes) in [('a', 12), ('b', 24), ('c', 36)] {
            trace.allocate(name, 12 * MIB, (bytes * MIB, bytes * MIB));
        }
        for (name, bytes) in order.into_iter().zip([24, 12, 0]) {
            trace.free(name, (bytes * MIB, 36 * MIB));
        }
        for (name, bytes) in [('d', 12), ('e', 24), ('f', 36)] {
            trace.allocate(name, 12 * MIB, (bytes * MIB, 36 * MIB));
        }
        assert_eq!(['d', 'e', 'f'].map(|name| trace.place(name).0), [1, 2, 3], "{order:?}");
    }
}

#[test]
fn lower_address_is_taken_among_equal_blocks_of_a_segment() {
    let mut trace = Trace::new(None);
    for (name, allocated) in [('a', 512), ('b', 1024), ('c', 1536), ('d', 2048)] {
        trace.allocate(name, 512, (allocated, 2 * MIB));
    }
    trace.free('c', (1536, 2 * MIB));
    trace.free('a', (1024, 2 * MIB));
    trace.allocate('e', 512, (1536, 2 * MIB));
    assert_eq!(trace.place('e'), (1, 0));
}

/// A segment with a block in use stays.
#[test]
fn empty_cache_returns_unused_segments() {
    let mut trace = Trace::new(None);
    trace.allocate('a', 512, (512, 2 * MIB));
    trace.allocate('b', 4 * MIB, (512 + 4 * MIB, 22 * MIB));
    trace.allocate('c', 4 * MIB, (512 + 8 * MIB, 22 * MIB));
    trace.allocate('d', 12 * MIB, (512 + 20 * MIB, 22 * MIB));
    trace.allocate('e', 30 * MIB, (512 + 50 * MIB, 52 * MIB));
    for (name, allocated) in [('c', 46), ('e', 16)] {
        trace.free(name, (512 + allocated * MIB, 52 * MIB));
    }
    trace.allocator.empty_cache();
    trace.expect((512 + 16 * MIB, 22 * MIB));
    // The hole of 4 MiB is still there.
    trace.allocate('f', 4 * MIB, (512 + 20 * MIB, 22 * MIB));
    assert_eq!(trace.place('f'), (2, 4 * MIB));
    for (name, allocated) in [('a', 20 * MIB), ('b', 16 * MIB), ('d', 4 * MIB), ('f', 0)] {
        trace.free(name, (allocated, 22 * MIB));
    }
    trace.allocator.empty_cache();
    trace.expect((0, 0));
}

#[test]
fn full_card_gets_cached_segments_back_and_retries() {
    let mut trace = Trace::new(Some(40 * MIB));
    trace.allocate('a', 20 * MIB, (20 * MIB, 20 * MIB));
    trace.allocate('b', 10 * MIB, (30 * MIB, 30 * MIB));
    trace.free('a', (10 * MIB, 30 * MIB));
    // A segment of 30 MiB fits beside `b` alone.
    trace.allocate('c', 30 * MIB, (40 * MIB, 40 * MIB));
    assert_eq!(trace.allocator.retries, 1);
    trace.free('b', (30 * MIB, 40 * MIB));
    trace.allocate('d', 10 * MIB, (40 * MIB, 40 * MIB));
    assert_eq!(trace.allocator.retries, 1, "a cached block needs no segment");
    let error = trace.allocator.allocate(3 * MIB, Stream::default()).unwrap_err();
    assert_eq!(error, OutOfMemory { request: 3 * MIB, short: 20 * MIB });
}

fn sequence(events: &[Event]) -> Sequence {
    let mut sequence = Sequence::default();
    for &event in events {
        match event {
            Event::Request(bytes) => {
                sequence.request(bytes, Purpose::Activation);
            }
            Event::Release(request) => sequence.release(request),
            other => sequence.mark(other),
        }
    }
    sequence
}

const TWO_STEPS: [Event; 12] = [
    Event::Phase(Phase::Start),
    Event::Request(10 * MIB),
    Event::Step,
    Event::Phase(Phase::Forward),
    Event::Request(20 * MIB),
    Event::Phase(Phase::Backward),
    Event::Release(1),
    Event::EmptyCache,
    Event::Step,
    Event::Phase(Phase::Forward),
    Event::Request(12 * MIB),
    Event::Release(2),
];

/// A step and a phase begin with what is in use.
#[test]
fn replay_reports_peaks_by_step_and_phase() {
    let usage =
        |allocated: u64, reserved: u64| Usage { allocated: allocated * MIB, reserved: reserved * MIB };
    let peaks = replay(&sequence(&TWO_STEPS), None, AllocConf::default()).unwrap();
    assert_eq!(peaks.whole, usage(30, 30));
    assert_eq!(peaks.at, 4);
    assert_eq!(peaks.steps, [usage(30, 30), usage(22, 22)]);
    let phases =
        [(Phase::Start, usage(10, 10)), (Phase::Forward, usage(30, 30)), (Phase::Backward, usage(30, 30))];
    assert_eq!(peaks.phases, phases);
    assert_eq!(peaks.retries, 0);
}

#[test]
fn repeated_steps_have_the_peaks_of_the_first() {
    let peaks = |last: u64| {
        let mut events = vec![Event::Request(10 * MIB)];
        for (step, bytes) in [20, 20, 20, last].into_iter().enumerate() {
            let first = 2 * step as u32 + 1;
            events.extend([Event::Step, Event::Phase(Phase::Forward)]);
            events.extend([Event::Request(bytes * MIB), Event::Request(4 * MIB)]);
            events.extend([Event::Release(first), Event::Release(first + 1)]);
        }
        replay(&sequence(&events), None, AllocConf::default()).unwrap().steps
    };
    let usage =
        |allocated: u64, reserved: u64| Usage { allocated: allocated * MIB, reserved: reserved * MIB };
    assert_eq!(peaks(20), [usage(34, 50); 4]);
    assert_eq!(peaks(24)[2..], [usage(34, 50), usage(38, 74)]);
}

#[test]
fn replay_reports_the_event_that_does_not_fit() {
    let error = replay(&sequence(&TWO_STEPS), Some(card(29 * MIB)), AllocConf::default()).unwrap_err();
    assert_eq!(error, (4, OutOfMemory { request: 20 * MIB, short: MIB }));
    assert!(replay(&sequence(&TWO_STEPS), Some(card(30 * MIB)), AllocConf::default()).is_ok());
}

/// Requests that PyTorch 2.15's allocator served under nullcuda with settings and limits: the peaks, the retries and the
/// first request that it refused.
#[test]
fn recorded_settings_give_equal_peaks() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/pytorch_memory/allocator.txt");
    let text = fs::read_to_string(path).unwrap();
    let mut wrong = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let fields: Vec<&str> = line.split('|').collect();
        let [conf, memory, allocated, reserved, retries, refused, events] = fields[..] else {
            panic!("{line}")
        };
        let memory = Some(memory.parse().unwrap()).filter(|bytes| *bytes > 0).map(card);
        let mut sequence = Sequence::default();
        for event in events.split(' ') {
            match event.split_at(1) {
                ("+", bytes) => drop(sequence.request(bytes.parse().unwrap(), Purpose::Activation)),
                ("-", request) => sequence.release(request.parse().unwrap()),
                _ => sequence.mark(Event::EmptyCache),
            }
        }
        let mut allocator = Allocator::new(memory, AllocConf::parse(conf).unwrap());
        let mut blocks = Vec::new();
        let mut peak = Usage::default();
        let mut refused_at = String::new();
        for (at, event) in sequence.events.iter().enumerate() {
            match *event {
                Event::Request(bytes) => match allocator.allocate(bytes, Stream::default()) {
                    Ok(block) => blocks.push(block),
                    Err(_) => {
                        refused_at = at.to_string();
                        break;
                    }
                },
                Event::Release(request) => allocator.free(blocks[request as usize]),
                _ => allocator.empty_cache(),
            }
            peak.raise(allocator.usage);
        }
        let found = [
            peak.allocated.to_string(),
            peak.reserved.to_string(),
            allocator.retries.to_string(),
            refused_at,
        ];
        let expected = [allocated, reserved, retries, refused];
        if found != expected {
            wrong.push(format!("{number} {line:.60}: {found:?} {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), text.lines().count(), wrong.join("\n"));
}
