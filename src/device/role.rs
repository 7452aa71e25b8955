//! What memory is for.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a value is for. Every byte of the ledger has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Parameter,
    /// A parameter in the dtype of the work: a 16-bit copy, or what one that is stored otherwise stands for.
    Cast,
    MasterWeight,
    Gradient,
    Optimizer,
    Activation,
    Input,
    Workspace,
    Communication,
}

impl Role {
    /// In the order of columns.
    pub const ALL: [Role; 9] = [
        Role::Parameter,
        Role::Cast,
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
            Role::Cast => "cast",
            Role::MasterWeight => "master weight",
            Role::Gradient => "gradient",
            Role::Optimizer => "optimizer",
            Role::Activation => "activation",
            Role::Input => "input",
            Role::Workspace => "workspace",
            Role::Communication => "communication",
        }
    }

    /// What there is of it, in a sentence.
    pub fn what(self) -> &'static str {
        match self {
            Role::Parameter => "what the model computes with and training changes",
            Role::Cast => "copies of parameters in the precision of products",
            Role::MasterWeight => "fp32 copies of parameters that are stored in 16 bits",
            Role::Gradient => "gradients of parameters",
            Role::Optimizer => "the optimizer's states, such as moments",
            Role::Activation => "what forward passes compute, and its gradients",
            Role::Input => "batches",
            Role::Workspace => "what operations take while they compute",
            Role::Communication => "what is exchanged with other devices",
        }
    }

    /// The column of its bytes, in every table that has one.
    pub fn column(self) -> String {
        format!("{}_bytes", self.name().replace(' ', "_"))
    }
}

/// Something for each role: bytes, if nothing else is said. Written down, it is a map by [`Role::column`].
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

/// Roles that are not there keep their default: a table may be older than a role.
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
