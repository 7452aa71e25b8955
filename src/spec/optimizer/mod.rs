//! What applies gradients: a file for each optimizer. A new one is its file, and its lines here.

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

use groups::Groups;

use super::declare::{choice, words};
use super::error::Problem;
use super::rules::blame;
use super::tree::Table;
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
    later
}

/// What each optimizer says of itself.
trait UpdateRule {
    /// How a parameter moves, with that weight decay.
    fn rule(&self, weight_decay: f32) -> Rule;

    fn shared(&self) -> Shared<'_>;

    /// What updates all that it does not, if it updates but matrices between layers.
    fn beside(&self) -> Option<&dyn UpdateRule> {
        None
    }

    /// Rules between its own keys.
    fn check(&self, _tree: &Table) -> Result<(), Problem> {
        Ok(())
    }
}

/// The keys that all of them have.
struct Shared<'a> {
    lr: f64,
    weight_decay: f64,
    decay: Decay,
    groups: &'a [Group],
}

/// Parameters that are updated alike.
#[derive(Clone, Debug)]
pub struct UpdateGroup<'a> {
    /// What they are named by; of the rest, nothing.
    pub named: Option<&'a Group>,
    /// Whether it is of matrices between layers, or of all else; `None` if that makes no difference.
    pub of_matrices: Option<bool>,
    /// The learning rate that a schedule takes shares of.
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
        let Shared { lr, weight_decay, decay, groups: _ } = update.shared();
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

    /// What it keeps of each parameter, by name: of equal names, equal states, if they are stored alike.
    pub(super) fn states(&self) -> Vec<&'static str> {
        self.rule.states(StateFormat::F32).iter().map(|state| state.name).chain([self.rule.name()]).collect()
    }
}

/// The first group that a parameter of this name is of, which may be a matrix between layers.
pub fn group_of(groups: &[UpdateGroup], parameter: &str, is_matrix: bool) -> usize {
    let is_of = |group: &UpdateGroup| {
        group.of_matrices.is_none_or(|of_matrices| of_matrices == is_matrix)
            && group.named.is_none_or(|named| named.matches(parameter))
    };
    groups.iter().position(is_of).expect("the last groups are those of the rest")
}

impl Optimizer {
    /// All ways in which it updates: those of the groups, in order, and behind them those of the rest.
    pub fn groups(&self) -> Vec<UpdateGroup<'_>> {
        let (own, beside) = (self.each(), self.each().beside());
        let rules: Vec<(Option<bool>, &dyn UpdateRule)> = match beside {
            None => vec![(None, own)],
            Some(beside) => vec![(Some(true), own), (Some(false), beside)],
        };
        let named = own.shared().groups.iter().map(Some).chain([None]);
        named
            .flat_map(|named| rules.iter().map(move |&(of, rule)| UpdateGroup::new(named, of, rule)))
            .collect()
    }

    /// The learning rate of all that no group has another for.
    pub(super) fn learning_rate(&self) -> f64 {
        self.each().shared().lr
    }

    pub(super) fn check(&self, tree: &Table) -> Result<(), Problem> {
        let groups = self.each().shared().groups;
        if let Some(group) = groups.iter().find(|group| group.lr.is_none() && group.weight_decay.is_none()) {
            return Err(blame(
                format!(
                    "the group of `{}` is updated as the rest is: it says nothing else",
                    group.parameters
                ),
                &[&format!("train.optimizer.{}.groups", self.name())],
                tree,
                "give it `lr` or `weight_decay`, or leave it out",
            ));
        }
        self.each().check(tree)
    }
}

words! {
    /// Which parameters weight decay applies to.
    pub enum Decay {
        /// Those with two dimensions: weights and embeddings, not biases and norms.
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
