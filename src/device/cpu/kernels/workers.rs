//! The threads that one operation is spread over, and how they share memory.

use std::marker::PhantomData;
use std::ops::Range;

use super::simd::Level;
use super::team::ThreadPool;
use ops::DType;

/// The threads that one operation is spread over.
pub(in crate::cpu) struct Workers {
    team: ThreadPool,
    threads: usize,
    level: Level,
}

impl Workers {
    pub(in crate::cpu) fn new(threads: usize) -> Result<Workers, String> {
        Workers::with_level(threads, Level::best())
    }

    /// Workers that use no more than this instruction set.
    pub(super) fn with_level(threads: usize, level: Level) -> Result<Workers, String> {
        if threads == 0 {
            return Err("no compute threads were asked for".to_string());
        }
        let team = ThreadPool::new(threads)
            .map_err(|error| format!("cannot start {threads} compute threads: {error}"))?;
        Ok(Workers { team, threads, level })
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    pub(super) fn level(&self) -> Level {
        self.level
    }

    /// Whether products of this type are done without widening it first.
    pub(in crate::cpu) fn multiply(&self, dtype: DType) -> bool {
        self.level.multiplies(dtype)
    }

    /// Calls `work` for each task number once, on any thread and in any order.
    pub(super) fn each(&self, tasks: usize, work: impl Fn(usize) + Sync) {
        self.each_by(tasks, |_, task| work(task));
    }

    /// Calls `work` for each task number once, with the number of the worker that does it, who does one at a time.
    pub(super) fn each_by(&self, tasks: usize, work: impl Fn(usize, usize) + Sync) {
        if self.threads == 1 || tasks <= 1 {
            (0..tasks).for_each(|task| work(0, task));
        } else {
            self.team.run(tasks, &work);
        }
    }

    /// Calls `work` for each run of `len` elements, the last of which may be shorter.
    pub(super) fn chunks<'a>(&self, elements: usize, len: usize, work: impl Fn(Range<usize>) + Sync + 'a) {
        self.each(elements.div_ceil(len), |chunk| work(chunk * len..elements.min((chunk + 1) * len)));
    }
}

/// A slice that tasks write different parts of.
pub(super) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: parts that do not overlap, which `part` demands, may be written from different threads.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(super) fn new(whole: &'a mut [T]) -> Parts<'a, T> {
        Parts { start: whole.as_mut_ptr(), len: whole.len(), owner: PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The whole, for code that keeps its writes apart by itself.
    pub(super) fn as_ptr(&self) -> *mut T {
        self.start
    }

    /// # Safety
    ///
    /// No other part that is in use overlaps this one.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part lies within its whole");
        // SAFETY: in bounds by the check above, not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
