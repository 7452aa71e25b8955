//! Bytes that steps leak.

use device::{ByRole, Pool};

/// Leaked bytes by pool: live bytes, and the reserved bytes of leaks with memory of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaked([(ByRole, u64); Pool::ALL.len()]);

impl Leaked {
    /// Live and reserved bytes of a pool.
    pub(super) fn of(&self, pool: Pool) -> &(ByRole, u64) {
        &self.0[pool as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Pool, &(ByRole, u64))> {
        Pool::ALL.into_iter().zip(&self.0)
    }

    /// Live bytes of all pools.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(live, _)| live.total()).sum()
    }

    /// Reserved bytes of the pools of a device.
    pub(super) fn reserved_at(&self, device: Pool) -> u64 {
        let pools = self.iter().filter(|(pool, _)| pool.home() == device);
        pools.map(|(_, (_, reserved))| reserved).sum()
    }

    pub(super) fn add(&mut self, pool: Pool, live: &ByRole, reserved: u64) {
        let (own, own_reserved) = &mut self.0[pool as usize];
        live.iter().for_each(|(role, bytes)| own[role] += bytes);
        *own_reserved += reserved;
    }

    pub(super) fn since(&self, before: &Leaked) -> Leaked {
        let mut since = *self;
        for ((live, reserved), (live_before, reserved_before)) in since.0.iter_mut().zip(&before.0) {
            *live = subtract(live, live_before);
            *reserved -= reserved_before;
        }
        since
    }
}

pub(super) fn subtract(bytes: &ByRole, others: &ByRole) -> ByRole {
    let mut subtract = *bytes;
    others.iter().for_each(|(role, other)| subtract[role] -= other);
    subtract
}
