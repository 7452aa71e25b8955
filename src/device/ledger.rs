//! The count of live and reserved bytes, moved only by real requests and frees.

use std::iter;

use super::{ByRole, Pool, Role};

/// What a run is doing when memory is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Parameters and optimizer state come into being.
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

/// Where a program is: the section's number and the instruction's in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub section: u32,
    pub instruction: u32,
}

/// The most that was live at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    pub live: ByRole,
    /// The allocation that reached it.
    pub position: Position,
}

/// What a ledger saw of one pool, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Live now.
    pub live: ByRole,
    /// The peak of each phase, in the order of `Phase::ALL`. A phase begins with what the one before left live.
    pub phase_peaks: [Peak; Phase::ALL.len()],
    /// Asked of the system and not given back.
    pub reserved: u64,
    pub reserved_peak: u64,
}

impl Usage {
    pub fn phase_peak(&self, phase: Phase) -> &Peak {
        &self.phase_peaks[phase as usize]
    }

    /// The most bytes that were ever live.
    pub fn peak(&self) -> u64 {
        self.phase_peaks.iter().map(|peak| peak.live.total()).max().unwrap_or(0)
    }

    /// The most bytes that were live in an optimizer step so far.
    pub fn step_peak(&self) -> u64 {
        let steps = [Phase::Forward, Phase::Backward, Phase::Update];
        steps.iter().map(|phase| self.phase_peak(*phase).live.total()).max().unwrap_or(0)
    }

    /// The peak of training and evaluation, start-up left out; the earliest phase wins a draw.
    pub fn steady_peak(&self) -> &Peak {
        let steady = &self.phase_peaks[Phase::Forward as usize..];
        steady.iter().rev().max_by_key(|peak| peak.live.total()).expect("there are phases after start-up")
    }
}

/// Counts live bytes by pool and role, and reserved bytes by pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    pools: [Usage; Pool::ALL.len()],
    /// The host's pools together.
    host: Usage,
    /// Reserved of all pools together: now, and the most at one time.
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

    /// Of the pools of a home together.
    pub fn usage_at(&self, home: Pool) -> &Usage {
        match home {
            Pool::Device => self.usage(Pool::Device),
            Pool::Host | Pool::Pinned => &self.host,
        }
    }

    /// The most bytes that were reserved of all pools together: theirs may have come at different times.
    pub fn all_reserved_peak(&self) -> u64 {
        self.all_reserved_peak
    }

    /// Says where the program is, for the peaks that follow.
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

    /// So many bytes have come to stay, of which so many were asked of the system, without a peak that what follows does not pass.
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

    /// All that a pool's bytes count in.
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
    fn a_phase_begins_with_what_is_live() {
        let mut ledger = Ledger::default();
        ledger.allocated(Pool::Device, Role::Parameter, 100);
        ledger.advance(Phase::Forward, Position { section: 1, instruction: 0 });
        ledger.freed(Pool::Device, Role::Parameter, 40);
        ledger.allocated(Pool::Device, Role::Activation, 30);
        let usage = ledger.usage(Pool::Device);
        assert_eq!(usage.phase_peak(Phase::Start).live.total(), 100);
        assert_eq!(usage.phase_peak(Phase::Forward).live.total(), 100);
        assert_eq!(usage.step_peak(), 100, "start-up is no step");
        assert_eq!(usage.steady_peak().live[Role::Parameter], 100);
        assert_eq!(usage.live.total(), 90);
    }

    #[test]
    fn reserved_is_counted_apart() {
        let mut ledger = Ledger::default();
        ledger.reserved(Pool::Host, 4096);
        ledger.returned(Pool::Host, 4096);
        assert_eq!((ledger.usage(Pool::Host).reserved, ledger.usage(Pool::Host).reserved_peak), (0, 4096));
        assert_eq!(ledger.usage(Pool::Device).reserved_peak, 0);
    }

    /// What was the most in each of them need not have been there at the same time.
    #[test]
    fn the_host_s_pools_are_counted_together_as_well() {
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
