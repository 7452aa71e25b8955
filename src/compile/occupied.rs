//! What is occupied of an arena, when and where: a tree over storages by offset, whose branches tell enough of what
//! is in them that a search passes most of them by.

use std::ops::Range;

/// Storages that have their places.
#[derive(Clone, Debug, Default)]
pub(super) struct Occupied {
    root: Option<Node>,
}

impl Occupied {
    /// The lowest offset from `offset` on at which so many bytes meet nothing that is alive with them.
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
    /// The earliest and the latest start and end.
    starts: [u32; 2],
    ends: [u32; 2],
    /// From where the lowest begins to where the highest ends.
    place: Range<u64>,
    /// At least the longest stretch within that none covers.
    gap: u64,
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

impl Node {
    const MOST: usize = 24;

    fn new(below: Below) -> Node {
        let mut node = Node { below, starts: [0; 2], ends: [0; 2], place: 0..0, gap: 0 };
        node.measure();
        node
    }

    fn lowest_free(&self, alive: &Range<u32>, bytes: u64, mut offset: u64) -> u64 {
        let none_alive = self.starts[0] >= alive.end || alive.start >= self.ends[1];
        if none_alive || self.place.end <= offset || self.place.start >= offset + bytes {
            return offset;
        }
        let all_alive = self.starts[1] < alive.end && alive.start < self.ends[0];
        if all_alive && self.gap < bytes {
            return self.place.end;
        }
        match &self.below {
            Below::Nodes(nodes) => {
                for node in nodes {
                    if node.place.start >= offset + bytes {
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

    /// Returns the upper half if there has come to be too much in it.
    fn add(&mut self, alive: Range<u32>, place: Range<u64>) -> Option<Node> {
        let upper = match &mut self.below {
            Below::Nodes(nodes) => {
                let at = nodes.partition_point(|node| node.place.start <= place.start).saturating_sub(1);
                if let Some(upper) = nodes[at].add(alive, place) {
                    nodes.insert(at + 1, upper);
                }
                (nodes.len() > Node::MOST).then(|| Below::Nodes(nodes.split_off(Node::MOST / 2)))
            }
            Below::Storages { alive: others, places } => {
                let at = places.partition_point(|other| other.start <= place.start);
                others.insert(at, alive);
                places.insert(at, place);
                let half = Node::MOST / 2;
                (places.len() > Node::MOST).then(|| Below::Storages {
                    alive: others.split_off(half),
                    places: places.split_off(half),
                })
            }
        };
        self.measure();
        upper.map(Node::new)
    }

    /// Sets what it tells of what is below.
    fn measure(&mut self) {
        (self.starts, self.ends) = ([u32::MAX, 0], [u32::MAX, 0]);
        let mut place: Option<Range<u64>> = None;
        let mut gap = 0;
        let mut see = |starts: [u32; 2], ends: [u32; 2], other: &Range<u64>, gap_within: u64| {
            self.starts = [self.starts[0].min(starts[0]), self.starts[1].max(starts[1])];
            self.ends = [self.ends[0].min(ends[0]), self.ends[1].max(ends[1])];
            let so_far = place.get_or_insert(other.clone());
            gap = gap.max(gap_within).max(other.start.saturating_sub(so_far.end));
            so_far.end = so_far.end.max(other.end);
        };
        match &self.below {
            Below::Nodes(nodes) => {
                nodes.iter().for_each(|node| see(node.starts, node.ends, &node.place, node.gap));
            }
            Below::Storages { alive, places } => {
                for (alive, place) in alive.iter().zip(places) {
                    see([alive.start; 2], [alive.end; 2], place, 0);
                }
            }
        }
        (self.place, self.gap) = (place.unwrap_or(0..0), gap);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    /// By trying every offset at which anything ends.
    fn lowest_free(taken: &[(Range<u32>, Range<u64>)], alive: &Range<u32>, bytes: u64, from: u64) -> u64 {
        let meets = |a: &Range<u32>| a.start < alive.end && alive.start < a.end;
        let free = |offset: u64| {
            taken.iter().all(|(a, place)| !meets(a) || place.start >= offset + bytes || place.end <= offset)
        };
        let ends = taken.iter().map(|(_, place)| place.end).filter(|end| *end > from);
        ends.chain([from]).filter(|offset| free(*offset)).min().unwrap_or(from)
    }

    proptest! {
        /// Enough of them for a tree of three levels.
        #[test]
        fn it_finds_what_trying_everything_finds(
            lives in vec((0u32..400, 1u32..60, 1u64..12, 0u64..200), 0..1200),
        ) {
            let (mut occupied, mut taken) = (Occupied::default(), Vec::new());
            for (start, length, bytes, from) in lives {
                let alive = start..start + length;
                let found = occupied.lowest_free(&alive, bytes, from);
                prop_assert_eq!(found, lowest_free(&taken, &alive, bytes, from));
                occupied.add(alive.clone(), found..found + bytes);
                taken.push((alive, found..found + bytes));
            }
        }
    }
}
