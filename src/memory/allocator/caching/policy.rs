//! The size classes and thresholds of PyTorch's caching allocator.

const MIB: u64 = 1 << 20;

/// Requests are rounded to this (PyTorch: kMinBlockSize).
const UNIT: u64 = 512;

/// The largest request that is served from segments for small ones (kSmallSize).
const SMALL: u64 = MIB;
const SMALL_SEGMENT: u64 = 2 * MIB;

/// The smallest request that gets a segment of its own size, rounded (kMinLargeAlloc).
const MIN_OWN_SEGMENT: u64 = 10 * MIB;
/// Segments of other large requests (kLargeBuffer).
const SHARED_SEGMENT: u64 = 20 * MIB;
const SEGMENT_UNIT: u64 = 2 * MIB;

/// The rounding of requests, for an address alignment.
pub(super) fn unit(alignment: u64) -> u64 {
    UNIT.next_multiple_of(alignment)
}

/// Size class: requests that share segments.
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

/// The segment size that is requested if no block serves a request: whole system pages.
pub(super) fn segment(bytes: u64, page: u64) -> u64 {
    let segment = match Class::of(bytes) {
        Class::Small => SMALL_SEGMENT,
        Class::Large if bytes < MIN_OWN_SEGMENT => SHARED_SEGMENT,
        Class::Large => bytes.next_multiple_of(SEGMENT_UNIT),
    };
    segment.next_multiple_of(page)
}

/// The page size of expandable segments: the unit in which memory is committed.
pub(super) fn page(class: Class, page: u64) -> u64 {
    let bytes = match class {
        Class::Small => SMALL_SEGMENT,
        Class::Large => SHARED_SEGMENT,
    };
    bytes.next_multiple_of(page)
}

/// The settings of the allocator.
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

    /// Whether a block that is large enough may serve a request.
    pub(super) fn serves(&self, block: u64, request: u64) -> bool {
        match self.is_oversize(request) {
            true => block < request + SHARED_SEGMENT,
            false => !self.is_oversize(block),
        }
    }

    /// Whether the rest of a block becomes a block of its own.
    pub(super) fn splits(&self, class: Class, block: u64, request: u64) -> bool {
        let rest = block - request;
        match class {
            _ if self.expandable => rest >= UNIT,
            Class::Small => rest >= UNIT,
            Class::Large => !self.is_oversize(request) && rest > SMALL,
        }
    }
}
