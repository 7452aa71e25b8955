//! What lives long: a tree by offset, whose branches tell enough of what is in them that a search passes most of them
//! by.
//!
//! What is kept from forward to backward is one stack of all layers: neighbours by offset are alive together.

use std::ops::Range;

#[derive(Clone, Debug, Default)]
pub(super) struct Long {
    root: Option<Node>,
}

impl Long {
    pub(super) fn lowest_free(&self, alive: &Range<u32>, bytes: u64, offset: u64) -> u64 {
        self.root.as_ref().map_or(offset, |root| root.lowest_free(alive, bytes, offset))
    }

    pub(super) fn add(&mut self, alive: Range<u32>, place: Range<u64>) {
        let Some(root) = &mut self.root else {
            self.root = Some(Node::new(Below::Storages { alive: vec![alive], places: vec![place] }));
            return;
        };
        if let Some(upper) = root.add(alive, place)
            && let Some(lower) = self.root.take()
        {
            self.root = Some(Node::new(Below::Nodes(vec![lower, upper])));
        }
    }
}

/// Neighbours by offset; there is at least one.
#[derive(Clone, Debug)]
struct Node {
    below: Below,
    all: Group,
    /// Those that live longest, or some of them.
    core: Group,
    /// When the first comes and the last goes.
    span: Range<u32>,
}

#[derive(Clone, Debug)]
enum Below {
    Nodes(Vec<Node>),
    /// In the order of their offsets. A field to an array: a search looks at lifetimes first and seldom at the rest.
    Storages {
        alive: Vec<Range<u32>>,
        places: Vec<Range<u64>>,
    },
}

/// Storages as one.
#[derive(Clone, Debug)]
struct Group {
    /// When the last comes and the first goes: what begins before the end and ends after the start meets them all.
    start: u32,
    end: u32,
    /// From where the lowest begins to where the highest ends.
    place: Range<u64>,
    /// At least the longest stretch within that none covers.
    gap: u64,
}

impl Group {
    fn one(alive: &Range<u32>, place: &Range<u64>) -> Group {
        Group { start: alive.start, end: alive.end, place: place.clone(), gap: 0 }
    }

    fn join(self, other: Group) -> Group {
        let between =
            self.place.start.max(other.place.start).saturating_sub(self.place.end.min(other.place.end));
        Group {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
            place: self.place.start.min(other.place.start)..self.place.end.max(other.place.end),
            gap: self.gap.max(other.gap).max(between),
        }
    }

    /// For how long all of them are alive.
    fn together(&self) -> usize {
        (self.start..self.end).len()
    }

    /// Whether they leave no room among them, nor before them from `offset` on.
    fn fills(&self, alive: &Range<u32>, bytes: u64, offset: u64) -> bool {
        let all_alive = self.start < alive.end && alive.start < self.end;
        all_alive && self.gap < bytes && self.place.start < offset + bytes && offset < self.place.end
    }
}

impl Node {
    /// What is below a node at the most: nodes, or storages.
    const NODES: usize = 16;
    const STORAGES: usize = 64;

    fn new(below: Below) -> Node {
        let nothing = Group { start: 0, end: 0, place: 0..0, gap: 0 };
        let mut node = Node { below, all: nothing.clone(), core: nothing, span: 0..0 };
        node.measure();
        node
    }

    fn lowest_free(&self, alive: &Range<u32>, bytes: u64, mut offset: u64) -> u64 {
        let none_alive = self.span.start >= alive.end || alive.start >= self.span.end;
        if none_alive || self.all.place.end <= offset || self.all.place.start >= offset + bytes {
            return offset;
        }
        if self.all.fills(alive, bytes, offset) {
            return self.all.place.end;
        }
        if self.core.fills(alive, bytes, offset) {
            offset = self.core.place.end;
        }
        match &self.below {
            Below::Nodes(nodes) => {
                for node in nodes {
                    if node.all.place.start >= offset + bytes {
                        break;
                    }
                    offset = node.lowest_free(alive, bytes, offset);
                }
            }
            Below::Storages { alive: others, places } => {
                for (other, place) in others.iter().zip(places) {
                    if other.start >= alive.end || alive.start >= other.end {
                        continue;
                    }
                    if place.start >= offset + bytes {
                        break;
                    }
                    offset = offset.max(place.end);
                }
            }
        }
        offset
    }

    /// Returns the upper half if there has come to be too much below.
    fn add(&mut self, alive: Range<u32>, place: Range<u64>) -> Option<Node> {
        // The core stays: it need not have all that live long.
        self.all = self.all.clone().join(Group::one(&alive, &place));
        self.span = self.span.start.min(alive.start)..self.span.end.max(alive.end);
        let mut split = false;
        let upper = match &mut self.below {
            Below::Nodes(nodes) => {
                let at = nodes.partition_point(|node| node.all.place.start <= place.start).saturating_sub(1);
                if let Some(upper) = nodes[at].add(alive, place) {
                    nodes.insert(at + 1, upper);
                    split = true;
                }
                (nodes.len() > Node::NODES).then(|| Below::Nodes(nodes.split_off(Node::NODES / 2)))
            }
            Below::Storages { alive: others, places } => {
                let at = places.partition_point(|other| other.start <= place.start);
                others.insert(at, alive);
                places.insert(at, place);
                let half = Node::STORAGES / 2;
                (places.len() > Node::STORAGES).then(|| Below::Storages {
                    alive: others.split_off(half),
                    places: places.split_off(half),
                })
            }
        };
        if split || upper.is_some() {
            self.measure();
        }
        upper.map(Node::new)
    }

    /// Sets what it tells of what is below.
    fn measure(&mut self) {
        let (all, core, span) = match &self.below {
            Below::Nodes(nodes) => {
                let all = nodes.iter().map(|node| node.all.clone()).reduce(Group::join);
                let longest = nodes.iter().map(|node| node.core.together()).max().unwrap_or(0);
                let core = nodes.iter().map(|node| &node.core).filter(|core| 2 * core.together() >= longest);
                let core = core.cloned().reduce(Group::join);
                let spans = nodes.iter().map(|node| node.span.clone());
                (all, core, spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)))
            }
            Below::Storages { alive, places } => {
                let groups = || alive.iter().zip(places).map(|(alive, place)| Group::one(alive, place));
                let longest = alive.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
                let core = groups().filter(|one| 2 * one.together() >= longest);
                let spans = alive.iter().cloned();
                (
                    groups().reduce(Group::join),
                    core.reduce(Group::join),
                    spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)),
                )
            }
        };
        if let (Some(all), Some(core), Some(span)) = (all, core, span) {
            (self.all, self.core, self.span) = (all, core, span);
        }
    }
}
