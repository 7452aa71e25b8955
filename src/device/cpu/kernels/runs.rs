//! Buckets of many tensors, cut into runs of elements that threads share.

use std::ops::Range;

use ops::Member;

/// Runs of at most `len` elements, none of them over the end of a member.
pub(super) fn runs(members: &[Member], len: usize) -> impl Iterator<Item = (&Member, Range<usize>)> {
    members.iter().flat_map(move |member| {
        let end = member.offset + member.elements();
        (member.offset..end).step_by(len).map(move |start| (member, start..end.min(start + len)))
    })
}

/// Which of `shares` tasks takes each of many runs: in turn, so that no list of them is needed.
pub(super) fn in_turn<T>(
    runs: impl Iterator<Item = T>,
    index: usize,
    shares: usize,
) -> impl Iterator<Item = T> {
    runs.skip(index).step_by(shares)
}
