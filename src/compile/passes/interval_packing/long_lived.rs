//! Long-lived storages: a tree by offset, whose nodes summarise their contents so that a search skips most of them.
//!
//! Values that are kept from forward to backward form one stack over all layers: neighbours by offset are live
//! together.

use std::ops::Range;

#[derive(Clone, Debug, Default)]
pub(super) struct LongLived {
    root: Option<Node>,
}

impl LongLived {
    pub(super) fn lowest_free(&self, time: &Range<u32>, bytes: u64, offset: u64) -> u64 {
        self.root.as_ref().map_or(offset, |root| root.lowest_free(time, bytes, offset))
    }

    pub(super) fn add(&mut self, time: Range<u32>, offsets: Range<u64>) {
        let Some(root) = &mut self.root else {
            self.root = Some(Node::new(Children::Storages { time: vec![time], offsets: vec![offsets] }));
            return;
        };
        if let Some(upper) = root.add(time, offsets)
            && let Some(lower) = self.root.take()
        {
            self.root = Some(Node::new(Children::Nodes(vec![lower, upper])));
        }
    }
}

/// At least one storage or node, neighbours by offset.
#[derive(Clone, Debug)]
struct Node {
    children: Children,
    all: Summary,
    /// Summary of the longest-lived storages, or of some of them.
    core: Summary,
    /// From the earliest start to the latest end.
    span: Range<u32>,
}

#[derive(Clone, Debug)]
enum Children {
    Nodes(Vec<Node>),
    /// By offset. Struct of arrays: a search reads live ranges first and offsets seldom.
    Storages {
        time: Vec<Range<u32>>,
        offsets: Vec<Range<u64>>,
    },
}

/// Summary of several storages.
#[derive(Clone, Debug)]
struct Summary {
    /// Latest start and earliest end: a range that begins before `end` and ends after `start` overlaps all of them.
    start: u32,
    end: u32,
    /// From the lowest offset to the highest end.
    offsets: Range<u64>,
    /// Upper bound of the largest free gap within.
    gap: u64,
}

impl Summary {
    fn one(time: &Range<u32>, offsets: &Range<u64>) -> Summary {
        Summary { start: time.start, end: time.end, offsets: offsets.clone(), gap: 0 }
    }

    fn join(self, other: Summary) -> Summary {
        let between = self
            .offsets
            .start
            .max(other.offsets.start)
            .saturating_sub(self.offsets.end.min(other.offsets.end));
        Summary {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
            offsets: self.offsets.start.min(other.offsets.start)..self.offsets.end.max(other.offsets.end),
            gap: self.gap.max(other.gap).max(between),
        }
    }

    /// How long all of them are live together.
    fn together(&self) -> usize {
        (self.start..self.end).len()
    }

    /// Whether they leave no room for `bytes` among them, nor before them from `offset` on.
    fn fills(&self, time: &Range<u32>, bytes: u64, offset: u64) -> bool {
        let all_live = self.start < time.end && time.start < self.end;
        all_live && self.gap < bytes && self.offsets.start < offset + bytes && offset < self.offsets.end
    }
}

impl Node {
    /// Maximum number of children: nodes, or storages.
    const NODES: usize = 16;
    const STORAGES: usize = 64;

    fn new(children: Children) -> Node {
        let nothing = Summary { start: 0, end: 0, offsets: 0..0, gap: 0 };
        let mut node = Node { children, all: nothing.clone(), core: nothing, span: 0..0 };
        node.measure();
        node
    }

    fn lowest_free(&self, time: &Range<u32>, bytes: u64, mut offset: u64) -> u64 {
        let none_live = self.span.start >= time.end || time.start >= self.span.end;
        if none_live || self.all.offsets.end <= offset || self.all.offsets.start >= offset + bytes {
            return offset;
        }
        if self.all.fills(time, bytes, offset) {
            return self.all.offsets.end;
        }
        if self.core.fills(time, bytes, offset) {
            offset = self.core.offsets.end;
        }
        match &self.children {
            Children::Nodes(nodes) => {
                for node in nodes {
                    if node.all.offsets.start >= offset + bytes {
                        break;
                    }
                    offset = node.lowest_free(time, bytes, offset);
                }
            }
            Children::Storages { time: others, offsets } => {
                for (other, offsets) in others.iter().zip(offsets) {
                    if other.start >= time.end || time.start >= other.end {
                        continue;
                    }
                    if offsets.start >= offset + bytes {
                        break;
                    }
                    offset = offset.max(offsets.end);
                }
            }
        }
        offset
    }

    /// Adds a storage. Returns the upper half if the node overflows.
    fn add(&mut self, time: Range<u32>, offsets: Range<u64>) -> Option<Node> {
        // The core stays as it is: it need not include every long-lived storage.
        self.all = self.all.clone().join(Summary::one(&time, &offsets));
        self.span = self.span.start.min(time.start)..self.span.end.max(time.end);
        let mut split = false;
        let upper = match &mut self.children {
            Children::Nodes(nodes) => {
                let at =
                    nodes.partition_point(|node| node.all.offsets.start <= offsets.start).saturating_sub(1);
                if let Some(upper) = nodes[at].add(time, offsets) {
                    nodes.insert(at + 1, upper);
                    split = true;
                }
                (nodes.len() > Node::NODES).then(|| Children::Nodes(nodes.split_off(Node::NODES / 2)))
            }
            Children::Storages { time: others, offsets: placed } => {
                let at = placed.partition_point(|other| other.start <= offsets.start);
                others.insert(at, time);
                placed.insert(at, offsets);
                let half = Node::STORAGES / 2;
                (placed.len() > Node::STORAGES).then(|| Children::Storages {
                    time: others.split_off(half),
                    offsets: placed.split_off(half),
                })
            }
        };
        if split || upper.is_some() {
            self.measure();
        }
        upper.map(Node::new)
    }

    /// Recomputes the summaries.
    fn measure(&mut self) {
        let (all, core, span) = match &self.children {
            Children::Nodes(nodes) => {
                let all = nodes.iter().map(|node| node.all.clone()).reduce(Summary::join);
                let longest = nodes.iter().map(|node| node.core.together()).max().unwrap_or(0);
                let core = nodes.iter().map(|node| &node.core).filter(|core| 2 * core.together() >= longest);
                let core = core.cloned().reduce(Summary::join);
                let spans = nodes.iter().map(|node| node.span.clone());
                (all, core, spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)))
            }
            Children::Storages { time, offsets } => {
                let summaries =
                    || time.iter().zip(offsets).map(|(time, offsets)| Summary::one(time, offsets));
                let longest = time.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
                let core = summaries().filter(|one| 2 * one.together() >= longest);
                let spans = time.iter().cloned();
                (
                    summaries().reduce(Summary::join),
                    core.reduce(Summary::join),
                    spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)),
                )
            }
        };
        if let (Some(all), Some(core), Some(span)) = (all, core, span) {
            (self.all, self.core, self.span) = (all, core, span);
        }
    }
}
