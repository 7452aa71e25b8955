//! The sizes that a caching allocator goes by, which are those of PyTorch's.

const MIB: u64 = 1 << 20;

/// What requests are rounded to.
const UNIT: u64 = 512;

/// The largest request that gets its memory from the segments for small ones.
const SMALL: u64 = MIB;
const SMALL_SEGMENT: u64 = 2 * MIB;

/// The smallest request for which the system is asked for no more than that, rounded.
const ALONE: u64 = 10 * MIB;
/// Of others that are large.
const SHARED_SEGMENT: u64 = 20 * MIB;
const SEGMENT_UNIT: u64 = 2 * MIB;

/// What a request is rounded to where addresses are multiples of so much.
pub(super) fn unit(alignment: u64) -> u64 {
    UNIT.next_multiple_of(alignment)
}

/// Requests of which the segments are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Small,
    Large,
}

impl Class {
    pub(super) const ALL: [Class; 2] = [Class::Small, Class::Large];

    pub(super) fn of(bytes: u64) -> Class {
        if bytes <= SMALL { Class::Small } else { Class::Large }
    }
}

/// What the system is asked for where no block serves a request; the system has whole pages.
pub(super) fn segment(bytes: u64, page: u64) -> u64 {
    let segment = match Class::of(bytes) {
        Class::Small => SMALL_SEGMENT,
        Class::Large if bytes < ALONE => SHARED_SEGMENT,
        Class::Large => bytes.next_multiple_of(SEGMENT_UNIT),
    };
    segment.next_multiple_of(page)
}

/// What segments that grow have memory for at a time.
pub(super) fn page(class: Class, page: u64) -> u64 {
    let bytes = match class {
        Class::Small => SMALL_SEGMENT,
        Class::Large => SHARED_SEGMENT,
    };
    bytes.next_multiple_of(page)
}

/// What is chosen of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// Bytes.
    max_split_size: Option<u64>,
    pub(super) expandable: bool,
    pub(super) garbage_collection_threshold: Option<f64>,
}

impl Policy {
    pub(super) fn of(settings: spec::Caching) -> Policy {
        let spec::Caching { max_split_size_mb, expandable_segments, garbage_collection_threshold } = settings;
        let max_split_size = max_split_size_mb.map(|size| size * MIB);
        Policy { max_split_size, expandable: expandable_segments, garbage_collection_threshold }
    }

    /// The size from which blocks are never split, if there is one.
    pub(super) fn oversize(&self) -> Option<u64> {
        self.max_split_size
    }

    fn is_oversize(&self, bytes: u64) -> bool {
        self.max_split_size.is_some_and(|least| bytes >= least)
    }

    /// Whether a request may have a block that is large enough for it.
    pub(super) fn serves(&self, block: u64, request: u64) -> bool {
        match self.is_oversize(request) {
            true => block < request + SHARED_SEGMENT,
            false => !self.is_oversize(block),
        }
    }

    /// Whether what a request leaves of its block becomes a block of its own.
    pub(super) fn splits(&self, class: Class, block: u64, request: u64) -> bool {
        let rest = block - request;
        match class {
            _ if self.expandable => rest >= UNIT,
            Class::Small => rest >= UNIT,
            Class::Large => !self.is_oversize(request) && rest > SMALL,
        }
    }
}
