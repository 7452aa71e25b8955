//! A predicted sequence of requests as a memory snapshot, as `torch.cuda.memory._snapshot()` of PyTorch 2.15 has it.
//!
//! Instead of Python's stack, a request has two frames with the number of the training step as their line: what it is for,
//! and the phase. Times are numbers of allocator calls. Addresses ascend.

use std::collections::HashMap;

use super::pickle_writer::{PickleWriter, Reference};
use crate::allocator::{ADDRESSES, Allocator, CurrentBlock, DriverCall, Place};
use crate::sequence::{Event, Phase, Purpose, Sequence, Stream};
use spec::AllocConf;

/// The address of the first segment.
const FIRST_ADDRESS: u64 = 1 << 40;

/// The category of entries other than requests. memory_viz fails without an entry of this category.
const NO_CATEGORY: &str = "unknown";

/// A place in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stack {
    purpose: Option<Purpose>,
    phase: Phase,
    step: usize,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Request,
    Release,
    Obtain,
    Return,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    action: Action,
    address: u64,
    bytes: u64,
    stream: Stream,
    stack: Stack,
}

/// A request that is not released.
#[derive(Clone, Copy, Debug)]
struct Live {
    bytes: u64,
    stream: Stream,
    stack: Stack,
}

/// Where a phase begins.
struct Section {
    name: String,
    entry: usize,
}

/// The replay of a sequence on a card without a limit.
struct Recorder {
    conf: AllocConf,
    allocator: Allocator,
    /// By number of the segment.
    addresses: Vec<u64>,
    next_address: u64,
    entries: Vec<Entry>,
    sections: Vec<Section>,
    /// By index of the block.
    live: HashMap<u32, Live>,
}

/// The pickled snapshot of a sequence, on a card without a limit.
pub fn predicted_snapshot(sequence: &Sequence, conf: AllocConf) -> Vec<u8> {
    let mut recorder = Recorder {
        conf,
        allocator: Allocator::new(None, conf),
        addresses: vec![FIRST_ADDRESS],
        next_address: FIRST_ADDRESS,
        entries: Vec::new(),
        sections: Vec::new(),
        live: HashMap::new(),
    };
    recorder.allocator.driver_calls = Some(Vec::new());
    recorder.replay(sequence);
    recorder.pickle()
}

impl Recorder {
    fn replay(&mut self, sequence: &Sequence) {
        let mut blocks = Vec::with_capacity(sequence.requests());
        let mut stack = Stack { purpose: None, phase: Phase::Start, step: 0 };
        let mut stream = Stream::default();
        for event in &sequence.events {
            match *event {
                Event::Request(bytes) => {
                    let Ok(index) = self.allocator.allocate(bytes, stream) else {
                        unreachable!("there is no limit")
                    };
                    self.driver_calls(stack);
                    let of = Stack { purpose: Some(sequence.purpose(blocks.len())), ..stack };
                    blocks.push(index);
                    self.live.insert(index, Live { bytes, stream, stack: of });
                    let address = self.address(self.allocator.place(index));
                    self.entries.push(Entry { action: Action::Request, address, bytes, stream, stack: of });
                }
                Event::Release(request) => {
                    let index = blocks[request as usize];
                    let address = self.address(self.allocator.place(index));
                    let live = self.live.remove(&index).expect("a request is released once");
                    self.allocator.free(index);
                    let Live { bytes, stream, .. } = live;
                    self.entries.push(Entry { action: Action::Release, address, bytes, stream, stack });
                }
                Event::EmptyCache => {
                    self.allocator.empty_cache();
                    self.driver_calls(stack);
                }
                Event::Stream(entered) => stream = entered,
                Event::Step => stack.step += 1,
                Event::Phase(phase) => {
                    stack.phase = phase;
                    let name = format!("{} of step {}", phase.name(), stack.step);
                    let name = if stack.step == 0 { phase.name().to_owned() } else { name };
                    self.sections.push(Section { name, entry: self.entries.len() });
                }
            }
        }
    }

    /// Records the calls of the driver since the last time.
    fn driver_calls(&mut self, stack: Stack) {
        let calls = self.allocator.driver_calls.replace(Vec::new());
        for DriverCall { place, stream, obtains } in calls.into_iter().flatten() {
            while self.addresses.len() <= place.segment as usize {
                self.addresses.push(self.next_address);
                self.next_address += if self.conf.expandable_segments { ADDRESSES } else { place.bytes };
            }
            let action = if obtains { Action::Obtain } else { Action::Return };
            let (address, bytes) = (self.address(place), place.bytes);
            self.entries.push(Entry { action, address, bytes, stream, stack });
        }
    }

    fn address(&self, place: Place) -> u64 {
        self.addresses[place.segment as usize] + place.offset
    }

    fn pickle(&self) -> Vec<u8> {
        let mut frames = Frames::default();
        let mut out = PickleWriter::new();
        out.dictionary(|out| {
            out.text("segments");
            out.list(self.segments(), |out, blocks| self.segment(out, &blocks, &mut frames));
            out.text("device_traces");
            out.list([&self.entries], |out, entries| {
                out.list(
                    entries.iter().enumerate().flat_map(|entry| self.actions(entry)),
                    |out, (time, action, entry)| {
                        self.entry(out, time, action, entry, &mut frames);
                    },
                );
            });
            out.text("allocator_settings");
            self.settings(out);
            out.text("external_annotations");
            let ends = self.sections.iter().skip(1).map(|next| next.entry).chain([self.entries.len()]);
            let sections = self.sections.iter().zip(ends);
            let sections = sections.flat_map(|(section, end)| {
                [("START", section.entry), ("END", end)].map(|(stage, time)| (stage, &section.name, time))
            });
            out.list(sections, |out, (stage, name, time)| {
                out.dictionary(|out| {
                    out.text_entry("stage", stage);
                    out.text_entry("name", name);
                    out.integer_entry("device", 0);
                    out.integer_entry("time_us", time as i64);
                });
            });
            for key in ["host_segments", "host_traces"] {
                out.text(key);
                out.list([], |_, ()| {});
            }
        });
        out.finish()
    }

    fn entry(&self, out: &mut PickleWriter, time: usize, action: &str, entry: &Entry, frames: &mut Frames) {
        out.dictionary(|out| {
            out.text_entry("action", action);
            out.integer_entry("addr", entry.address as i64);
            out.integer_entry("size", entry.bytes as i64);
            out.integer_entry("stream", entry.stream as i64);
            out.integer_entry("time_us", time as i64);
            out.text_entry("category", entry.stack.purpose.map_or(NO_CATEGORY, Purpose::name));
            out.text_entry("compile_context", "N/A");
            out.text_entry("user_metadata", "");
            out.text("pool_id");
            out.pair([0, 0]);
            out.text("frames");
            frames.write(out, entry.stack);
        });
    }

    /// PyTorch's actions for an entry, with their time.
    fn actions<'a>(
        &self,
        (time, entry): (usize, &'a Entry),
    ) -> impl Iterator<Item = (usize, &'static str, &'a Entry)> + use<'a> {
        let actions: &[&str] = match (entry.action, self.conf.expandable_segments) {
            (Action::Request, _) => &["alloc"],
            (Action::Release, _) => &["free_requested", "free_completed"],
            (Action::Obtain, false) => &["segment_alloc"],
            (Action::Obtain, true) => &["segment_map"],
            (Action::Return, false) => &["segment_free"],
            (Action::Return, true) => &["segment_unmap"],
        };
        actions.iter().map(move |action| (time, *action, entry))
    }

    /// The blocks of each segment: successive ones with memory.
    fn segments(&self) -> Vec<Vec<CurrentBlock>> {
        let blocks = self.allocator.current_blocks();
        let follows = |before: &CurrentBlock, block: &CurrentBlock| {
            let end = before.place.offset + before.place.bytes;
            (before.place.segment, end) == (block.place.segment, block.place.offset)
        };
        blocks.chunk_by(follows).map(<[CurrentBlock]>::to_vec).collect()
    }

    fn segment(&self, out: &mut PickleWriter, blocks: &[CurrentBlock], frames: &mut Frames) {
        let total = |holds: &dyn Fn(&CurrentBlock) -> bool| {
            blocks.iter().filter(|block| holds(block)).map(|block| block.place.bytes as i64).sum::<i64>()
        };
        let live = |block: &CurrentBlock| self.live.get(&block.index).filter(|_| block.is_used);
        let allocated = total(&|block| block.is_used);
        let requested = blocks.iter().filter_map(live).map(|live| live.bytes as i64).sum();
        out.dictionary(|out| {
            out.integer_entry("device", 0);
            out.integer_entry("address", self.address(blocks[0].place) as i64);
            out.integer_entry("total_size", total(&|_| true));
            out.integer_entry("allocated_size", allocated);
            out.integer_entry("active_size", allocated);
            out.integer_entry("requested_size", requested);
            out.integer_entry("stream", blocks[0].stream as i64);
            out.text_entry("segment_type", if blocks[0].is_small { "small" } else { "large" });
            out.text("segment_pool_id");
            out.pair([0, 0]);
            out.boolean_entry("is_expandable", self.conf.expandable_segments);
            out.text("frames");
            out.list([], |_, ()| {});
            out.text("blocks");
            out.list(blocks, |out, block| {
                let live = live(block);
                out.dictionary(|out| {
                    out.integer_entry("address", self.address(block.place) as i64);
                    out.integer_entry("size", block.place.bytes as i64);
                    out.integer_entry("requested_size", live.map_or(0, |live| live.bytes as i64));
                    out.text_entry("state", if block.is_used { "active_allocated" } else { "inactive" });
                    out.text("frames");
                    match live {
                        Some(live) => frames.write(out, live.stack),
                        None => out.list([], |_, ()| {}),
                    }
                });
            });
        });
    }

    fn settings(&self, out: &mut PickleWriter) {
        let conf = self.conf;
        out.dictionary(|out| {
            out.text_entry("PYTORCH_CUDA_ALLOC_CONF", &conf.to_string());
            out.integer_entry("max_split_size", conf.max_split_size.map_or(-1, |bytes| bytes as i64));
            out.integer_entry("garbage_collection_threshold", 0);
            out.boolean_entry("expandable_segments", conf.expandable_segments);
            out.text("roundup_power2_divisions");
            out.dictionary(|out| {
                for interval in 0..16 {
                    let divisions = conf.divisions(1 << (20 + interval));
                    out.integer_entry(&(1u64 << interval).to_string(), divisions as i64);
                }
            });
        });
    }
}

/// The frames of each stack, written once.
#[derive(Default)]
struct Frames(HashMap<Stack, Reference>);

impl Frames {
    fn write(&mut self, out: &mut PickleWriter, stack: Stack) {
        if let Some(&reference) = self.0.get(&stack) {
            return out.repeat(reference);
        }
        let names = stack.purpose.map(Purpose::name).into_iter().chain([stack.phase.name()]);
        out.list(names, |out, name| {
            out.dictionary(|out| {
                out.text_entry("name", name);
                out.text_entry("filename", "step");
                out.integer_entry("line", stack.step as i64);
            });
        });
        self.0.insert(stack, out.remember());
    }
}
