//! Chunks of the tensors of a bucket, and their distribution over threads.

use std::ops::Range;

use ops::Member;

/// Chunks of at most `len` elements, none of which crosses the end of a member.
pub(super) fn member_chunks(members: &[Member], len: usize) -> impl Iterator<Item = (&Member, Range<usize>)> {
    members.iter().flat_map(move |member| {
        let end = member.offset + member.elements();
        (member.offset..end).step_by(len).map(move |start| (member, start..end.min(start + len)))
    })
}

/// The chunks of task `index` of `tasks`, assigned round-robin, so that no list of chunks is needed.
pub(super) fn round_robin<T>(
    chunks: impl Iterator<Item = T>,
    index: usize,
    tasks: usize,
) -> impl Iterator<Item = T> {
    chunks.skip(index).step_by(tasks)
}
