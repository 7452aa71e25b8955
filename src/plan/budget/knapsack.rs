//! Which alternative each of many blocks takes, so that a step's peak is low and little is computed again.
//!
//! A block that is entered with so many bytes live takes some more at its peak, forward or backward, and leaves some to
//! wait for backward. What is live when a block is entered is what the blocks before it have left.

use super::unbeaten;

/// What a block may do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Item {
    /// What it is known by elsewhere.
    pub(super) alternative: usize,
    /// Bytes that it leaves until backward.
    pub(super) kept: i64,
    /// Bytes at its peak, beyond those that are live when it is entered.
    pub(super) peak: i64,
    pub(super) cost: f64,
}

/// Sums that lie closer than this share of their cost are one, where there are many.
const RESOLUTION: f64 = 0.002;
const MANY: usize = 128;

/// What the blocks so far keep and cost together.
#[derive(Clone, Copy)]
struct Sum {
    kept: i64,
    cost: f64,
    /// The sum without the last block, and which of its items that takes.
    before: usize,
    item: usize,
}

/// Assignments of an alternative to each block, so many at the most: the cheapest, and then the cheapest of a lower peak,
/// again and again. Behind the last block, its bytes at the peak beyond what is live then are `behind`.
pub(super) fn assignments(blocks: &[Vec<Item>], behind: i64, most: usize) -> Vec<Vec<usize>> {
    let blocks: Vec<Vec<Item>> = blocks.iter().map(|items| useful(items)).collect();
    let Some(first) = cheapest(&blocks, behind, i64::MAX) else { return Vec::new() };
    let highest = peak(&blocks, behind, &first);
    let step = 1 + highest / (4 * most as i64);
    let mut all = vec![first];
    let mut bound = highest;
    while all.len() < most {
        bound -= step;
        let Some(next) = cheapest(&blocks, behind, bound) else { break };
        bound = peak(&blocks, behind, &next);
        all.push(next);
    }
    let alternatives = |taken: Vec<usize>| -> Vec<usize> {
        taken.into_iter().zip(&blocks).map(|(item, items)| items[item].alternative).collect()
    };
    all.into_iter().map(alternatives).collect()
}

/// Those that no other is as good as in all.
fn useful(items: &[Item]) -> Vec<Item> {
    let is_as_good = |a: &Item, b: &Item| a.kept <= b.kept && a.peak <= b.peak && a.cost <= b.cost;
    let is_beaten = |(index, item): (usize, &Item)| {
        let beats = |(other, better): (usize, &Item)| {
            other != index && is_as_good(better, item) && (other < index || !is_as_good(item, better))
        };
        items.iter().enumerate().any(beats)
    };
    items
        .iter()
        .enumerate()
        .filter(|&(index, item)| !is_beaten((index, item)))
        .map(|(_, item)| *item)
        .collect()
}

/// Bytes beyond those that are live when the first block is entered.
fn peak(blocks: &[Vec<Item>], behind: i64, taken: &[usize]) -> i64 {
    let (mut kept, mut peak) = (0, i64::MIN);
    for (items, &item) in blocks.iter().zip(taken) {
        peak = peak.max(kept + items[item].peak);
        kept += items[item].kept;
    }
    peak.max(kept + behind)
}

/// The item of each block that costs the least together, of all that stay within a peak.
fn cheapest(blocks: &[Vec<Item>], behind: i64, bound: i64) -> Option<Vec<usize>> {
    let mut steps: Vec<Vec<Sum>> = Vec::with_capacity(blocks.len());
    let mut last = vec![Sum { kept: 0, cost: 0.0, before: 0, item: 0 }];
    for items in blocks {
        let mut sums: Vec<Sum> = Vec::with_capacity(last.len() * items.len());
        for (before, sum) in last.iter().enumerate() {
            for (item, Item { kept, peak, cost, .. }) in items.iter().enumerate() {
                if sum.kept + peak <= bound {
                    sums.push(Sum { kept: sum.kept + kept, cost: sum.cost + cost, before, item });
                }
            }
        }
        last = thinned(unbeaten(sums, |sum| sum.cost, |sum| sum.kept));
        steps.push(last.clone());
    }
    let mut at = last.iter().position(|sum| sum.kept + behind <= bound)?;
    let mut taken = vec![0; blocks.len()];
    for (block, sums) in steps.iter().enumerate().rev() {
        taken[block] = sums[at].item;
        at = sums[at].before;
    }
    Some(taken)
}

/// Few enough of them to go on with, by rising cost.
fn thinned(mut sums: Vec<Sum>) -> Vec<Sum> {
    let mut step = RESOLUTION;
    while sums.len() > MANY {
        sums = spaced(sums, 1.0 + step);
        step *= 1.25;
    }
    sums
}

/// So many that each left out is followed by one that costs more by this factor at the most. The first and the last are
/// among them.
fn spaced(sums: Vec<Sum>, factor: f64) -> Vec<Sum> {
    let mut kept: Vec<Sum> = Vec::with_capacity(sums.len());
    for (index, sum) in sums.iter().enumerate() {
        let is_needed = match (kept.last(), sums.get(index + 1)) {
            (Some(from), Some(next)) => next.cost > from.cost * factor,
            _ => true,
        };
        if is_needed {
            kept.push(*sum);
        }
    }
    kept
}
