//! Optimizers: one file for each. To add one, add its file and its lines here.

mod adafactor;
mod adam;
mod adamw;
mod groups;
mod lion;
mod muon;
mod sgd;

pub use adafactor::Adafactor;
pub use adam::Adam;
pub use adamw::AdamW;
pub use groups::Group;
pub use lion::Lion;
pub use muon::{Adjust, Muon};
pub use sgd::Sgd;

use groups::GROUPS;

use super::rules::attach_span;
use crate::reader::declare::{choice, keywords};
use crate::reader::error::Problem;
use crate::reader::tree::Table;
use ops::{Rule, StateFormat};

choice! {
    pub enum Optimizer("train.optimizer"): UpdateRule {
        adamw: AdamW,
        adam: Adam,
        sgd: Sgd,
        lion: Lion,
        adafactor: Adafactor,
        muon: Muon,
    }
}

/// An optimizer.
trait UpdateRule {
    /// Its update rule, with this weight decay.
    fn rule(&self, weight_decay: f32) -> Rule;

    fn shared(&self) -> SharedKeys<'_>;

    /// The optimizer of all other parameters, if this one only updates hidden matrices (neither embeddings nor the
    /// head).
    fn other_parameters(&self) -> Option<&dyn UpdateRule> {
        None
    }

    /// Checks rules between its own keys.
    fn check(&self, _tree: &Table) -> Result<(), Problem> {
        Ok(())
    }
}

/// The keys that all optimizers have.
struct SharedKeys<'a> {
    lr: f64,
    weight_decay: f64,
    decay: Decay,
    groups: &'a [Group],
}

/// Parameters with the same update rule.
#[derive(Clone, Debug)]
pub struct UpdateGroup<'a> {
    /// The group of the experiment file; `None` for the remaining parameters.
    pub named: Option<&'a Group>,
    /// Whether it has hidden matrices only, or all other parameters only; `None`: both.
    pub(crate) of_matrices: Option<bool>,
    /// The base learning rate, which the schedule scales.
    pub lr: f64,
    pub rule: Rule,
    decay: Decay,
}

impl UpdateGroup<'_> {
    fn new<'a>(
        named: Option<&'a Group>,
        of_matrices: Option<bool>,
        update: &dyn UpdateRule,
    ) -> UpdateGroup<'a> {
        let SharedKeys { lr, weight_decay, decay, groups: _ } = update.shared();
        let own = named.and_then(|group| group.weight_decay);
        UpdateGroup {
            named,
            of_matrices,
            lr: named.and_then(|group| group.lr).unwrap_or(lr),
            rule: update.rule(own.unwrap_or(weight_decay) as f32),
            decay: if own.is_some() { Decay::All } else { decay },
        }
    }

    /// Whether weight decay applies to parameters of this many dimensions.
    pub fn decays(&self, dimensions: usize) -> bool {
        self.decay.applies_to(dimensions)
    }

    /// The names of its optimizer states and of its rule. Equal names have equal states if their storage formats are
    /// equal.
    pub(super) fn states(&self) -> Vec<&'static str> {
        self.rule.states(StateFormat::F32).iter().map(|state| state.name).chain([self.rule.name()]).collect()
    }
}

/// The index of the first group that contains a parameter, given its name and whether it is a hidden matrix.
pub fn group_of(groups: &[UpdateGroup], parameter: &str, is_matrix: bool) -> usize {
    let contains = |group: &UpdateGroup| {
        group.of_matrices.is_none_or(|of_matrices| of_matrices == is_matrix)
            && group.named.is_none_or(|named| named.matches(parameter))
    };
    groups.iter().position(contains).expect("the last groups contain all remaining parameters")
}

impl Optimizer {
    /// All update groups: the groups of the experiment file in order, then the remaining parameters.
    pub fn groups(&self) -> Vec<UpdateGroup<'_>> {
        let (own, other_parameters) = (self.each(), self.each().other_parameters());
        let rules: Vec<(Option<bool>, &dyn UpdateRule)> = match other_parameters {
            None => vec![(None, own)],
            Some(other_parameters) => vec![(Some(true), own), (Some(false), other_parameters)],
        };
        let named = own.shared().groups.iter().map(Some).chain([None]);
        named
            .flat_map(|named| rules.iter().map(move |&(of, rule)| UpdateGroup::new(named, of, rule)))
            .collect()
    }

    /// The learning rate of parameters whose group sets none.
    pub(super) fn learning_rate(&self) -> f64 {
        self.each().shared().lr
    }

    pub(super) fn check(&self, tree: &Table) -> Result<(), Problem> {
        let groups = self.each().shared().groups;
        if let Some(group) = groups.iter().find(|group| group.lr.is_none() && group.weight_decay.is_none()) {
            return Err(attach_span(
                format!("the group of `{}` sets neither `lr` nor `weight_decay`", group.parameters),
                &[&format!("train.optimizer.{}.groups", self.name())],
                tree,
                "set one of the two, or remove the group",
            ));
        }
        self.each().check(tree)
    }
}

keywords! {
    /// The parameters that weight decay applies to.
    pub enum Decay {
        /// Parameters with two dimensions: weights and embeddings, not biases and norms.
        Matrices = "matrices",
        All = "all",
    }
}

impl Decay {
    fn applies_to(self, dimensions: usize) -> bool {
        match self {
            Decay::Matrices => dimensions > 1,
            Decay::All => true,
        }
    }
}
