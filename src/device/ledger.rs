//! Counts live and reserved bytes. Only actual requests and frees change the counts.

use std::iter;

use super::{ByRole, Pool, Role};

/// The phase of a run, for memory counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Initialises parameters and optimizer states.
    Start,
    Forward,
    Backward,
    Update,
    Evaluation,
}

impl Phase {
    pub const ALL: [Phase; 5] =
        [Phase::Start, Phase::Forward, Phase::Backward, Phase::Update, Phase::Evaluation];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Start => "start-up",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Update => "update",
            Phase::Evaluation => "evaluation",
        }
    }
}

/// A position in a program: the section's index and the instruction's index within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub section: u32,
    pub instruction: u32,
}

/// The maximum of live bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    pub live: ByRole,
    /// The allocation that reached the peak.
    pub position: Position,
}

/// Byte counts of one pool, or of several pools together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Live now.
    pub live: ByRole,
    /// The peak of each phase, in the order of `Phase::ALL`. A phase starts with the bytes live at the end of the
    /// previous one.
    pub phase_peaks: [Peak; Phase::ALL.len()],
    /// Obtained from the system and not returned.
    pub reserved: u64,
    pub reserved_peak: u64,
}

impl Usage {
    pub fn phase_peak(&self, phase: Phase) -> &Peak {
        &self.phase_peaks[phase as usize]
    }

    /// The maximum of live bytes over all phases.
    pub fn peak(&self) -> u64 {
        self.phase_peaks.iter().map(|peak| peak.live.total()).max().unwrap_or(0)
    }

    /// The maximum of live bytes in optimizer steps so far.
    pub fn step_peak(&self) -> u64 {
        let steps = [Phase::Forward, Phase::Backward, Phase::Update];
        steps.iter().map(|phase| self.phase_peak(*phase).live.total()).max().unwrap_or(0)
    }

    /// The peak of training and evaluation, without start-up. On a tie, that of the earliest phase.
    pub fn steady_peak(&self) -> &Peak {
        let steady = &self.phase_peaks[Phase::Forward as usize..];
        steady.iter().rev().max_by_key(|peak| peak.live.total()).expect("there are phases after start-up")
    }
}

/// Counts live bytes by pool and role, and reserved bytes by pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    pools: [Usage; Pool::ALL.len()],
    /// All host pools together.
    host: Usage,
    /// Reserved bytes of all pools together: now, and their peak.
    all_reserved: u64,
    all_reserved_peak: u64,
    phase: Phase,
    position: Position,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            pools: Default::default(),
            host: Usage::default(),
            all_reserved: 0,
            all_reserved_peak: 0,
            phase: Phase::Start,
            position: Position::default(),
        }
    }
}

impl Ledger {
    #[inline]
    pub fn usage(&self, pool: Pool) -> &Usage {
        &self.pools[pool as usize]
    }

    /// The usage of a home's pools together.
    pub fn usage_at(&self, home: Pool) -> &Usage {
        match home {
            Pool::Device => self.usage(Pool::Device),
            Pool::Host | Pool::Pinned => &self.host,
        }
    }

    /// The peak of reserved bytes of all pools together. The pools' own peaks may occur at different times.
    pub fn all_reserved_peak(&self) -> u64 {
        self.all_reserved_peak
    }

    /// Sets the position and phase for later peaks.
    #[inline]
    pub fn advance(&mut self, phase: Phase, position: Position) {
        self.position = position;
        if phase != self.phase {
            self.phase = phase;
            for usage in self.pools.iter_mut().chain([&mut self.host]) {
                usage.observe(phase, position);
            }
        }
    }

    #[inline]
    pub fn allocated(&mut self, pool: Pool, role: Role, bytes: u64) {
        let (phase, position) = (self.phase, self.position);
        for usage in self.usages(pool) {
            usage.live[role] += bytes;
            usage.observe(phase, position);
        }
    }

    #[inline]
    pub fn freed(&mut self, pool: Pool, role: Role, bytes: u64) {
        self.usages(pool).for_each(|usage| usage.live[role] -= bytes);
    }

    /// Adds permanent bytes: live bytes by role, and bytes obtained from the system. Peaks stay unchanged, because
    /// later allocations exceed them.
    pub fn grown(&mut self, pool: Pool, live: &ByRole, reserved: u64) {
        for usage in self.usages(pool) {
            live.iter().for_each(|(role, bytes)| usage.live[role] += bytes);
            usage.reserved += reserved;
        }
        self.all_reserved += reserved;
    }

    pub fn reserved(&mut self, pool: Pool, bytes: u64) {
        for usage in self.usages(pool) {
            usage.reserved += bytes;
            usage.reserved_peak = usage.reserved_peak.max(usage.reserved);
        }
        self.all_reserved += bytes;
        self.all_reserved_peak = self.all_reserved_peak.max(self.all_reserved);
    }

    pub fn returned(&mut self, pool: Pool, bytes: u64) {
        self.usages(pool).for_each(|usage| usage.reserved -= bytes);
        self.all_reserved -= bytes;
    }

    /// All counts that include a pool's bytes.
    #[inline]
    fn usages(&mut self, pool: Pool) -> impl Iterator<Item = &mut Usage> {
        let of_host = (pool.home() == Pool::Host).then_some(&mut self.host);
        iter::once(&mut self.pools[pool as usize]).chain(of_host)
    }
}

impl Usage {
    #[inline]
    fn observe(&mut self, phase: Phase, position: Position) {
        let peak = &mut self.phase_peaks[phase as usize];
        if self.live.total() > peak.live.total() {
            *peak = Peak { live: self.live, position };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_starts_with_the_live_bytes_of_the_previous_one() {
        let mut ledger = Ledger::default();
        ledger.allocated(Pool::Device, Role::Parameter, 100);
        ledger.advance(Phase::Forward, Position { section: 1, instruction: 0 });
        ledger.freed(Pool::Device, Role::Parameter, 40);
        ledger.allocated(Pool::Device, Role::Activation, 30);
        let usage = ledger.usage(Pool::Device);
        assert_eq!(usage.phase_peak(Phase::Start).live.total(), 100);
        assert_eq!(usage.phase_peak(Phase::Forward).live.total(), 100);
        assert_eq!(usage.step_peak(), 100, "start-up is not a step");
        assert_eq!(usage.steady_peak().live[Role::Parameter], 100);
        assert_eq!(usage.live.total(), 90);
    }

    #[test]
    fn reserved_bytes_are_counted_separately() {
        let mut ledger = Ledger::default();
        ledger.reserved(Pool::Host, 4096);
        ledger.returned(Pool::Host, 4096);
        assert_eq!((ledger.usage(Pool::Host).reserved, ledger.usage(Pool::Host).reserved_peak), (0, 4096));
        assert_eq!(ledger.usage(Pool::Device).reserved_peak, 0);
    }

    /// The pools' peaks need not coincide.
    #[test]
    fn host_pools_are_also_counted_together() {
        let mut ledger = Ledger::default();
        for (pool, bytes) in [(Pool::Device, 1000), (Pool::Host, 40), (Pool::Pinned, 3)] {
            ledger.reserved(pool, bytes);
            ledger.allocated(pool, Role::Gradient, bytes);
        }
        ledger.freed(Pool::Host, Role::Gradient, 40);
        ledger.returned(Pool::Host, 40);
        ledger.reserved(Pool::Pinned, 20);
        ledger.allocated(Pool::Pinned, Role::Optimizer, 20);
        let start = |usage: &Usage| usage.phase_peak(Phase::Start).live.total();
        let [host, pinned] = [Pool::Host, Pool::Pinned].map(|pool| *ledger.usage(pool));
        let both = ledger.usage_at(Pool::Host);
        assert_eq!((start(&host), start(&pinned), start(both)), (40, 23, 43));
        assert_eq!((host.reserved_peak, pinned.reserved_peak, both.reserved_peak), (40, 23, 43));
        assert_eq!((both.live.total(), both.reserved), (23, 23));
        assert_eq!(ledger.all_reserved_peak(), 1043);
        assert_eq!(ledger.usage_at(Pool::Device), ledger.usage(Pool::Device));
    }
}
