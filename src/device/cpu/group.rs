//! The exchange between ranks on the processors of one machine: shared memory in which each rank puts its numbers, and in
//! which all wait for each other.
//!
//! The memory has no name: it ends with the last process that has it. Numbers are summed in the order of ranks, so that
//! no timing changes a bit.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::kernels;
use crate::{Collective, DeviceError, Rank};
use ops::DType;

/// Bytes of each rank's numbers that are exchanged at once.
const CHUNK: usize = 1 << 20;

/// One wait in the kernel. Its end is a chance to notice that a rank is overdue.
const NAP: Duration = Duration::from_millis(200);

/// A barrier, in the first page.
#[repr(C)]
struct Barrier {
    /// Ranks that have arrived.
    arrived: AtomicU32,
    /// How often all have arrived, modulo 2^32: what ranks wait for.
    passed: AtomicU32,
}

const PAGE: usize = 4096;

fn size(ranks: usize) -> usize {
    PAGE + (ranks + 1) * CHUNK
}

/// Shared memory for a number of ranks.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    ranks: usize,
}

impl SharedMemory {
    /// # Errors
    /// The system has no memory for it.
    pub fn new(ranks: usize) -> io::Result<SharedMemory> {
        // SAFETY: the name is a C string.
        let descriptor = unsafe { libc::memfd_create(c"ranks".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: the descriptor is open.
        if unsafe { libc::ftruncate(descriptor, size(ranks) as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedMemory { file, ranks })
    }

    /// Where other processes of this user find it while this process has it.
    pub fn file(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// Joins in this process.
    ///
    /// # Errors
    /// As [`RankGroup::join`].
    pub fn join(&self, index: usize, patience: Duration) -> io::Result<RankGroup> {
        RankGroup::join(&self.file(), Rank { index, of: self.ranks }, patience)
    }
}

/// An exchange of numbers in memory. Shares are equal, and in the order of ranks.
#[derive(Clone, Copy)]
pub(crate) struct Exchange {
    pub(crate) collective: Collective,
    /// A floating-point type in sums, for which the memory is aligned.
    pub(crate) dtype: DType,
    /// The numbers of this rank: the whole, or its share in an all-gather.
    pub(crate) from: *const u8,
    /// Those that it gets: the whole, or its share in a reduce-scatter.
    pub(crate) to: *mut u8,
    /// Size of the whole, a multiple of the number of ranks if it has shares.
    pub(crate) bytes: usize,
}

/// A rank's access to the memory that it shares with the others.
#[derive(Debug)]
pub struct RankGroup {
    base: NonNull<u8>,
    rank: Rank,
    /// How long it waits for the others.
    patience: Duration,
}

// SAFETY: other threads and processes access the memory as `meet` orders it; a rank's own accesses need `&mut self`.
unsafe impl Send for RankGroup {}

impl RankGroup {
    /// Maps the memory that [`SharedMemory::file`] names. All of it is resident from then on.
    ///
    /// # Errors
    /// There is no such memory for this number of ranks, or the system cannot map it.
    pub fn join(memory: &Path, rank: Rank, patience: Duration) -> io::Result<RankGroup> {
        if rank.index >= rank.of {
            return Err(io::Error::other(format!("of {} ranks, none is rank {}", rank.of, rank.index)));
        }
        let file = File::options().read(true).write(true).open(memory)?;
        if file.metadata()?.len() != size(rank.of) as u64 {
            return Err(io::Error::other("the memory of the ranks has another size"));
        }
        let descriptor = file.as_raw_fd();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: the system chooses unused addresses; the file has this size.
        let base = unsafe { libc::mmap(ptr::null_mut(), size(rank.of), protection, flags, descriptor, 0) };
        match NonNull::new(base.cast()).filter(|_| base != libc::MAP_FAILED) {
            Some(base) => Ok(RankGroup { base, rank, patience }),
            None => Err(io::Error::last_os_error()),
        }
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Replaces numbers by their sums over all ranks, each rank's f64s of this length.
    ///
    /// # Errors
    /// `Lost` if a rank does not arrive.
    pub fn sum(&mut self, numbers: &mut [f64]) -> Result<(), DeviceError> {
        assert!(size_of_val(numbers) <= CHUNK, "only a few numbers are summed on the host");
        let bytes = size_of_val(numbers);
        // SAFETY: the rank's slot is its own until all have arrived.
        unsafe { ptr::copy_nonoverlapping(numbers.as_ptr().cast(), self.slot(self.rank.index), bytes) };
        self.meet()?;
        numbers.fill(0.0);
        for index in 0..self.rank.of {
            let slot: *const f64 = self.slot(index).cast();
            for (place, sum) in numbers.iter_mut().enumerate() {
                // SAFETY: written before the barrier, and not changed before the next.
                *sum += unsafe { slot.add(place).read() };
            }
        }
        self.meet()
    }

    /// Replaces bytes by those of the first rank, each rank's of this length.
    ///
    /// # Errors
    /// `Lost` if a rank does not arrive.
    pub(crate) fn of_first(&mut self, bytes: &mut [u8]) -> Result<(), DeviceError> {
        assert!(bytes.len() <= CHUNK, "only a few bytes are passed on");
        let slot = self.slot(0);
        if self.rank.index == 0 {
            // SAFETY: the rank's slot is its own until all have arrived.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), slot, bytes.len()) };
        }
        self.meet()?;
        // SAFETY: written before the barrier, and not changed before the next.
        unsafe { ptr::copy_nonoverlapping(slot, bytes.as_mut_ptr(), bytes.len()) };
        self.meet()
    }

    /// How long it waits for the others.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Exchanges numbers in memory.
    ///
    /// # Safety
    /// The fields of [`Exchange`] describe valid memory that nothing else accesses.
    ///
    /// # Errors
    /// `Lost` if a rank does not arrive.
    pub(crate) unsafe fn exchange(&mut self, exchange: Exchange) -> Result<(), DeviceError> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match exchange.collective {
                Collective::AllReduce => self.all_reduce(exchange),
                Collective::ReduceScatter => self.reduce_scatter(exchange),
                Collective::AllGather => self.all_gather(exchange),
            }
        }
    }

    unsafe fn all_reduce(
        &mut self,
        Exchange { dtype, from, to, bytes, .. }: Exchange,
    ) -> Result<(), DeviceError> {
        for first in (0..bytes).step_by(CHUNK) {
            let len = CHUNK.min(bytes - first);
            // SAFETY: within the caller's memory, and within the slot.
            unsafe { ptr::copy_nonoverlapping(from.add(first), self.slot(self.rank.index), len) };
            self.meet()?;
            self.sum_part(dtype, len);
            self.meet()?;
            // The sums stay until the next chunk's first barrier, to which this rank comes after the copy.
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(self.slot(self.rank.of), to.add(first), len) };
        }
        Ok(())
    }

    unsafe fn reduce_scatter(
        &mut self,
        Exchange { dtype, from, to, bytes, .. }: Exchange,
    ) -> Result<(), DeviceError> {
        let share = bytes / self.rank.of;
        // Of each slot, every rank gets an equal part.
        let element = dtype.bytes() as usize;
        let part = CHUNK / self.rank.of / element * element;
        for first in (0..share).step_by(part) {
            let len = part.min(share - first);
            for index in 0..self.rank.of {
                let slot = self.slot(self.rank.index);
                // SAFETY: within the caller's memory, and within the slot.
                unsafe {
                    ptr::copy_nonoverlapping(from.add(index * share + first), slot.add(index * part), len)
                };
            }
            self.meet()?;
            // SAFETY: within the slots and the caller's memory. Slots are aligned to pages, parts to elements. Slots were
            // written before the barrier and are not changed before the next.
            unsafe {
                let parts =
                    (0..self.rank.of).map(|index| self.slot(index).add(self.rank.index * part).cast_const());
                kernels::sum(dtype, &parts.collect::<Vec<_>>(), to.add(first), len / element);
            }
            self.meet()?;
        }
        Ok(())
    }

    unsafe fn all_gather(&mut self, Exchange { from, to, bytes, .. }: Exchange) -> Result<(), DeviceError> {
        let share = bytes / self.rank.of;
        for first in (0..share).step_by(CHUNK) {
            let len = CHUNK.min(share - first);
            // SAFETY: within the caller's memory, and within the slot.
            unsafe { ptr::copy_nonoverlapping(from.add(first), self.slot(self.rank.index), len) };
            self.meet()?;
            for index in 0..self.rank.of {
                // SAFETY: as above; the slot was written before the barrier and is not changed before the next.
                unsafe { ptr::copy_nonoverlapping(self.slot(index), to.add(index * share + first), len) };
            }
            self.meet()?;
        }
        Ok(())
    }

    /// Sums this rank's part of a chunk over all slots into the slot behind them.
    fn sum_part(&mut self, dtype: DType, len: usize) {
        let element = dtype.bytes() as usize;
        let share = self.rank.samples(len / element);
        // SAFETY: within the slot.
        let share_of = |index: usize| unsafe { self.slot(index).add(share.start * element) };
        let from: Vec<*const u8> = (0..self.rank.of).map(|index| share_of(index).cast_const()).collect();
        // SAFETY: slots are aligned to pages. They were written before the barrier and are not changed before the next;
        // this rank's share of the sums is its own until then.
        unsafe { kernels::sum(dtype, &from, share_of(self.rank.of), share.len()) };
    }

    /// The memory of a rank's numbers; behind the last, that of sums.
    fn slot(&self, index: usize) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().add(PAGE + index * CHUNK) }
    }

    /// Returns once all ranks have arrived.
    fn meet(&self) -> Result<(), DeviceError> {
        // SAFETY: the first page is a barrier, which starts as zeros, and is accessed by atomic operations alone.
        let barrier = unsafe { self.base.cast::<Barrier>().as_ref() };
        let before = barrier.passed.load(Ordering::Acquire);
        if barrier.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.rank.of as u32 {
            barrier.arrived.store(0, Ordering::Relaxed);
            barrier.passed.fetch_add(1, Ordering::AcqRel);
            // SAFETY: the word is in the shared mapping.
            unsafe { libc::syscall(libc::SYS_futex, &barrier.passed, libc::FUTEX_WAKE, i32::MAX) };
            return Ok(());
        }
        let began = Instant::now();
        while barrier.passed.load(Ordering::Acquire) == before {
            if began.elapsed() > self.patience {
                let waited = self.patience;
                return Err(DeviceError::Lost(format!(
                    "another rank did not arrive within {waited:?} (--stall)"
                )));
            }
            let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as libc::c_long };
            // SAFETY: the word is in the shared mapping; it returns at once if the word has changed.
            unsafe { libc::syscall(libc::SYS_futex, &barrier.passed, libc::FUTEX_WAIT, before, &nap) };
        }
        Ok(())
    }
}

impl Drop for RankGroup {
    fn drop(&mut self) {
        // SAFETY: mapped once, unmapped once.
        unsafe { libc::munmap(self.base.as_ptr().cast(), size(self.rank.of)) };
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{from_f32, to_f32};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// What each rank gets.
    fn on_ranks<T: Send>(ranks: usize, run: impl Fn(RankGroup) -> T + Sync) -> Vec<T> {
        let memory = SharedMemory::new(ranks).unwrap();
        thread::scope(|scope| {
            let start = |index| {
                scope.spawn({
                    let (memory, run) = (&memory, &run);
                    move || run(memory.join(index, PATIENCE).unwrap())
                })
            };
            let running: Vec<_> = (0..ranks).map(start).collect();
            running.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    /// Exchanges a vector in place.
    fn exchange(group: &mut RankGroup, collective: Collective, dtype: DType, bytes: &mut [u8]) {
        let to = bytes.as_mut_ptr();
        let Rank { index, of } = group.rank();
        let first = if collective == Collective::AllGather { bytes.len() / of * index } else { 0 };
        let exchange = Exchange { collective, dtype, from: to.wrapping_add(first), to, bytes: bytes.len() };
        // SAFETY: the vector's own memory.
        unsafe { group.exchange(exchange).unwrap() };
    }

    /// The sums of numbers of ranks, rounded to a type.
    fn sums(dtype: DType, (ranks, count): (usize, usize), number: impl Fn(usize, usize) -> f32) -> Vec<f32> {
        let sum = |index| (0..ranks).map(|rank| number(rank, index)).sum::<f32>();
        let sums: Vec<f32> = (0..count).map(sum).collect();
        to_f32(dtype, &from_f32(dtype, &sums))
    }

    #[test]
    fn sums_are_equal_on_all_ranks() {
        for (ranks, count) in [(1, 3), (2, 1), (3, 7), (4, CHUNK / 4 + 5), (2, 3 * CHUNK / 4)] {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let number = |rank: usize, index: usize| (index % 13) as f32 + 100.0 * rank as f32;
                let found = on_ranks(ranks, |mut group| {
                    let numbers: Vec<f32> =
                        (0..count).map(|index| number(group.rank().index, index)).collect();
                    let mut bytes = from_f32(dtype, &numbers);
                    exchange(&mut group, Collective::AllReduce, dtype, &mut bytes);
                    to_f32(dtype, &bytes)
                });
                let expected = sums(dtype, (ranks, count), number);
                assert!(found.iter().all(|found| *found == expected), "{ranks} ranks, {count} of {dtype}");
            }
        }
    }

    #[test]
    fn each_rank_gets_its_share_of_the_sums() {
        for (ranks, share) in [(1, 3), (2, 1), (3, 7), (4, CHUNK / 4 + 5), (3, CHUNK / 3)] {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let number = |rank: usize, index: usize| (index % 13) as f32 + 100.0 * rank as f32;
                let found = on_ranks(ranks, |mut group| {
                    let index = group.rank().index;
                    let numbers: Vec<f32> = (0..ranks * share).map(|place| number(index, place)).collect();
                    let whole = from_f32(dtype, &numbers);
                    let mut own = vec![0xAA; whole.len() / ranks];
                    let (from, to) = (whole.as_ptr(), own.as_mut_ptr());
                    let collective = Collective::ReduceScatter;
                    let exchange = Exchange { collective, dtype, from, to, bytes: whole.len() };
                    // SAFETY: the vectors' own memory.
                    unsafe { group.exchange(exchange).unwrap() };
                    to_f32(dtype, &own)
                });
                let expected = sums(dtype, (ranks, ranks * share), number);
                assert!(found.concat() == expected, "{ranks} ranks, {share} of {dtype}");
            }
        }
    }

    #[test]
    fn shares_are_completed_on_all_ranks() {
        for (ranks, share) in [(1, 5), (2, 1), (3, 7), (4, CHUNK + 5)] {
            let found = on_ranks(ranks, |mut group| {
                let index = group.rank().index;
                let mut bytes = vec![0; ranks * share];
                bytes[index * share..][..share].fill(1 + index as u8);
                exchange(&mut group, Collective::AllGather, DType::U8, &mut bytes);
                bytes
            });
            let expected: Vec<u8> = (0..ranks).flat_map(|rank| vec![1 + rank as u8; share]).collect();
            assert!(found.iter().all(|found| *found == expected), "{ranks} ranks, {share} bytes");
        }
    }

    #[test]
    fn numbers_of_the_host_are_summed_in_f64() {
        let found = on_ranks(3, |mut group| {
            let mut numbers = [1.0, 1e-12 * (group.rank().index + 1) as f64];
            (0..100).for_each(|_| group.sum(&mut numbers).unwrap());
            numbers
        });
        assert!(found.iter().all(|numbers| *numbers == found[0]));
        let mut expected = [1.0, 1e-12 + 2e-12 + 3e-12];
        (0..100).for_each(|step| {
            expected[0] *= 3.0;
            if step > 0 {
                expected[1] = expected[1] + expected[1] + expected[1];
            }
        });
        assert_eq!(found[0], expected);
    }

    #[test]
    fn all_ranks_get_the_bytes_of_the_first() {
        let found = on_ranks(3, |mut group| {
            let mut bytes = [group.rank().index as u8 + 7; 128];
            group.of_first(&mut bytes).unwrap();
            bytes
        });
        assert_eq!(found, [[7; 128]; 3]);
    }

    #[test]
    fn a_rank_that_never_arrives_is_an_error() {
        let memory = SharedMemory::new(2).unwrap();
        let mut group = memory.join(0, Duration::from_millis(300)).unwrap();
        let error = group.sum(&mut [1.0]).unwrap_err();
        assert_eq!(error, DeviceError::Lost("another rank did not arrive within 300ms (--stall)".to_owned()));
    }

    #[test]
    fn other_files_are_no_shared_memory() {
        let memory = SharedMemory::new(2).unwrap();
        let join = |index, of| RankGroup::join(&memory.file(), Rank { index, of }, PATIENCE);
        assert_eq!(join(2, 3).unwrap_err().to_string(), "the memory of the ranks has another size");
        assert_eq!(join(2, 2).unwrap_err().to_string(), "of 2 ranks, none is rank 2");
        assert!(RankGroup::join(Path::new("/nowhere"), Rank::ALONE, PATIENCE).is_err());
    }
}
