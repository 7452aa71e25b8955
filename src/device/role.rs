//! What memory is for.

use std::ops::{Index, IndexMut};

/// What a value is for. Every byte of the ledger has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Parameter,
    MasterWeight,
    Gradient,
    Optimizer,
    Activation,
    Input,
    Workspace,
    Communication,
}

impl Role {
    pub const ALL: [Role; 8] = [
        Role::Parameter,
        Role::MasterWeight,
        Role::Gradient,
        Role::Optimizer,
        Role::Activation,
        Role::Input,
        Role::Workspace,
        Role::Communication,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Role::Parameter => "parameter",
            Role::MasterWeight => "master weight",
            Role::Gradient => "gradient",
            Role::Optimizer => "optimizer",
            Role::Activation => "activation",
            Role::Input => "input",
            Role::Workspace => "workspace",
            Role::Communication => "communication",
        }
    }
}

/// Bytes for each role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByRole([u64; Role::ALL.len()]);

impl ByRole {
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Role, u64)> + '_ {
        Role::ALL.into_iter().map(|role| (role, self[role]))
    }
}

impl Index<Role> for ByRole {
    type Output = u64;

    fn index(&self, role: Role) -> &u64 {
        &self.0[role as usize]
    }
}

impl IndexMut<Role> for ByRole {
    fn index_mut(&mut self, role: Role) -> &mut u64 {
        &mut self.0[role as usize]
    }
}
