//! The threads that run one operation, and slices that they write disjoint ranges of.

use std::marker::PhantomData;
use std::ops::Range;

use super::simd::Level;
use super::thread_pool::ThreadPool;
use ops::DType;

/// The threads that run one operation.
pub(in crate::cpu) struct Workers {
    pool: ThreadPool,
    threads: usize,
    level: Level,
}

impl Workers {
    pub(in crate::cpu) fn new(threads: usize) -> Result<Workers, String> {
        Workers::with_level(threads, Level::best())
    }

    /// Workers whose kernels use this instruction set.
    pub(super) fn with_level(threads: usize, level: Level) -> Result<Workers, String> {
        if threads == 0 {
            return Err("at least one compute thread is required".to_string());
        }
        let pool = ThreadPool::new(threads)
            .map_err(|error| format!("cannot start {threads} compute threads: {error}"))?;
        Ok(Workers { pool, threads, level })
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    pub(super) fn level(&self) -> Level {
        self.level
    }

    /// Whether matmuls with operands of this type run without converting them to f32 first.
    pub(in crate::cpu) fn multiply(&self, dtype: DType) -> bool {
        self.level.multiplies(dtype)
    }

    /// Calls `work(task)` once for each task number, on any thread and in any order.
    pub(super) fn for_each(&self, tasks: usize, work: impl Fn(usize) + Sync) {
        self.for_each_with_worker(tasks, |_, task| work(task));
    }

    /// Calls `work(worker, task)` once for each task number. A worker runs one task at a time.
    pub(super) fn for_each_with_worker(&self, tasks: usize, work: impl Fn(usize, usize) + Sync) {
        if self.threads == 1 || tasks <= 1 {
            (0..tasks).for_each(|task| work(0, task));
        } else {
            self.pool.run(tasks, &work);
        }
    }

    /// Calls `work` for each chunk of `len` elements; the last chunk may be shorter.
    pub(super) fn for_each_chunk<'a>(
        &self,
        elements: usize,
        len: usize,
        work: impl Fn(Range<usize>) + Sync + 'a,
    ) {
        self.for_each(elements.div_ceil(len), |chunk| work(chunk * len..elements.min((chunk + 1) * len)));
    }
}

/// A slice of which different tasks write disjoint ranges.
pub(super) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: `range_mut` requires disjoint ranges, which different threads may write.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> SharedSlice<'a, T> {
        SharedSlice { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The start of the slice, for code that keeps its writes disjoint by itself.
    pub(super) fn as_ptr(&self) -> *mut T {
        self.start
    }

    /// # Safety
    ///
    /// No other range in use overlaps this one.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    pub(super) unsafe fn range_mut(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "the range lies within the slice");
        // SAFETY: in bounds by the check above; the caller guarantees that it is not aliased.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
