//! The purpose of memory.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The purpose of allocated memory. Every byte of the ledger has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Parameter,
    /// A parameter in the dtype of matmuls: a 16-bit copy, or the dequantized values of a quantized parameter.
    Cast,
    MasterWeight,
    Gradient,
    Optimizer,
    Activation,
    Input,
    Workspace,
    Communication,
    /// Undivided remainders of a caching allocator's blocks: allocated, but part of no value.
    Rounding,
    /// Running statistics, which the forward pass updates.
    Buffer,
}

impl Role {
    /// In column order.
    pub const ALL: [Role; 11] = [
        Role::Parameter,
        Role::Cast,
        Role::MasterWeight,
        Role::Gradient,
        Role::Optimizer,
        Role::Activation,
        Role::Input,
        Role::Workspace,
        Role::Communication,
        Role::Rounding,
        Role::Buffer,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Role::Parameter => "parameter",
            Role::Cast => "cast",
            Role::MasterWeight => "master weight",
            Role::Buffer => "buffer",
            Role::Gradient => "gradient",
            Role::Optimizer => "optimizer",
            Role::Activation => "activation",
            Role::Input => "input",
            Role::Workspace => "workspace",
            Role::Communication => "communication",
            Role::Rounding => "rounding",
        }
    }

    /// A description of the role's bytes.
    pub fn what(self) -> &'static str {
        match self {
            Role::Parameter => "the model's parameters",
            Role::Cast => "copies of parameters in the dtype of matmuls",
            Role::MasterWeight => "fp32 copies of 16-bit parameters",
            Role::Buffer => "running statistics, which the forward pass updates",
            Role::Gradient => "gradients of parameters",
            Role::Optimizer => "optimizer states, such as moments",
            Role::Activation => "results of the forward pass, and their gradients",
            Role::Input => "batches",
            Role::Workspace => "scratch memory of operations",
            Role::Communication => "buffers of communication with other devices",
            Role::Rounding => "undivided remainders of a caching allocator's blocks",
        }
    }

    /// The column of its bytes, in every table that has one.
    pub fn column(self) -> String {
        format!("{}_bytes", self.name().replace(' ', "_"))
    }
}

/// One value per role, by default bytes. Serialized as a map with the keys [`Role::column`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByRole<T = u64>([T; Role::ALL.len()]);

impl ByRole {
    #[inline]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl<T: Copy> ByRole<T> {
    pub fn iter(&self) -> impl Iterator<Item = (Role, T)> + '_ {
        Role::ALL.into_iter().map(|role| (role, self[role]))
    }

    pub fn map<U>(&self, change: impl FnMut(T) -> U) -> ByRole<U> {
        ByRole(self.0.map(change))
    }
}

impl<T> Index<Role> for ByRole<T> {
    type Output = T;

    fn index(&self, role: Role) -> &T {
        &self.0[role as usize]
    }
}

impl<T> IndexMut<Role> for ByRole<T> {
    fn index_mut(&mut self, role: Role) -> &mut T {
        &mut self.0[role as usize]
    }
}

impl<T: Copy + Serialize> Serialize for ByRole<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(role, value)| (role.column(), value)))
    }
}

/// Missing roles get the default: a table may be older than a role.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByRole<T>
where
    ByRole<T>: Default,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByRole<T>, D::Error> {
        let mut by_role = ByRole::default();
        for (column, value) in BTreeMap::<String, T>::deserialize(deserializer)? {
            let role = Role::ALL.into_iter().find(|role| role.column() == column);
            let role = role.ok_or_else(|| D::Error::custom(format!("no role has the column `{column}`")))?;
            by_role[role] = value;
        }
        Ok(by_role)
    }
}
