//! A knapsack over blocks: selects an alternative for each block, with a low peak and low recompute cost.
//!
//! Each alternative of a block has a peak beyond the live bytes at its entry, forward or backward, and keeps bytes
//! until backward. The live bytes at the entry of a block are the bytes kept by the blocks before it.

use super::pareto_optimal;

/// An alternative of a block, with its memory and cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BlockOption {
    /// The number of the alternative.
    pub(super) alternative: usize,
    /// Bytes kept until backward.
    pub(super) kept: i64,
    /// Bytes at its peak beyond those live at its entry.
    pub(super) peak: i64,
    pub(super) cost: f64,
}

/// If there are more than `MAX_SUMS` sums, those whose costs differ by less than this share are merged.
const RESOLUTION: f64 = 0.002;
const MAX_SUMS: usize = 128;

/// Total kept bytes and cost of the blocks so far.
#[derive(Clone, Copy)]
struct PartialSum {
    kept: i64,
    cost: f64,
    /// Index of the sum without the last block, and the item of the last block.
    before: usize,
    item: usize,
}

/// At most `most` assignments of an alternative to each block: the cheapest, then repeatedly the cheapest with a lower
/// peak. `after_last` are the peak bytes after the last block, beyond those live there.
pub(super) fn assignments(blocks: &[Vec<BlockOption>], after_last: i64, most: usize) -> Vec<Vec<usize>> {
    let blocks: Vec<Vec<BlockOption>> = blocks.iter().map(|items| undominated(items)).collect();
    let Some(first) = cheapest(&blocks, after_last, i64::MAX) else { return Vec::new() };
    let highest = peak(&blocks, after_last, &first);
    let step = 1 + highest / (4 * most as i64);
    let mut all = vec![first];
    let mut bound = highest;
    while all.len() < most {
        bound -= step;
        let Some(next) = cheapest(&blocks, after_last, bound) else { break };
        bound = peak(&blocks, after_last, &next);
        all.push(next);
    }
    let alternatives = |taken: Vec<usize>| -> Vec<usize> {
        taken.into_iter().zip(&blocks).map(|(item, items)| items[item].alternative).collect()
    };
    all.into_iter().map(alternatives).collect()
}

/// The items that no other item dominates.
fn undominated(items: &[BlockOption]) -> Vec<BlockOption> {
    let is_as_good =
        |a: &BlockOption, b: &BlockOption| a.kept <= b.kept && a.peak <= b.peak && a.cost <= b.cost;
    let is_dominated = |(index, item): (usize, &BlockOption)| {
        let dominates = |(other, better): (usize, &BlockOption)| {
            other != index && is_as_good(better, item) && (other < index || !is_as_good(item, better))
        };
        items.iter().enumerate().any(dominates)
    };
    items
        .iter()
        .enumerate()
        .filter(|&(index, item)| !is_dominated((index, item)))
        .map(|(_, item)| *item)
        .collect()
}

/// Peak bytes beyond those live at the entry of the first block.
fn peak(blocks: &[Vec<BlockOption>], after_last: i64, taken: &[usize]) -> i64 {
    let (mut kept, mut peak) = (0, i64::MIN);
    for (items, &item) in blocks.iter().zip(taken) {
        peak = peak.max(kept + items[item].peak);
        kept += items[item].kept;
    }
    peak.max(kept + after_last)
}

/// The cheapest combination of items whose peak is within the bound.
fn cheapest(blocks: &[Vec<BlockOption>], after_last: i64, bound: i64) -> Option<Vec<usize>> {
    let mut steps: Vec<Vec<PartialSum>> = Vec::with_capacity(blocks.len());
    let mut last = vec![PartialSum { kept: 0, cost: 0.0, before: 0, item: 0 }];
    for items in blocks {
        let mut sums: Vec<PartialSum> = Vec::with_capacity(last.len() * items.len());
        for (before, sum) in last.iter().enumerate() {
            for (item, BlockOption { kept, peak, cost, .. }) in items.iter().enumerate() {
                if sum.kept + peak <= bound {
                    sums.push(PartialSum { kept: sum.kept + kept, cost: sum.cost + cost, before, item });
                }
            }
        }
        last = thinned(pareto_optimal(sums, |sum| sum.cost, |sum| sum.kept));
        steps.push(last.clone());
    }
    let mut at = last.iter().position(|sum| sum.kept + after_last <= bound)?;
    let mut taken = vec![0; blocks.len()];
    for (block, sums) in steps.iter().enumerate().rev() {
        taken[block] = sums[at].item;
        at = sums[at].before;
    }
    Some(taken)
}

/// Thins sums, sorted by rising cost, to at most `MAX_SUMS`.
fn thinned(mut sums: Vec<PartialSum>) -> Vec<PartialSum> {
    let mut step = RESOLUTION;
    while sums.len() > MAX_SUMS {
        sums = spaced(sums, 1.0 + step);
        step *= 1.25;
    }
    sums
}

/// Drops sums such that the costs of consecutive remaining ones differ by about this factor at most. Keeps the first
/// and the last.
fn spaced(sums: Vec<PartialSum>, factor: f64) -> Vec<PartialSum> {
    let mut kept: Vec<PartialSum> = Vec::with_capacity(sums.len());
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
