//! Parameters and their buckets: flat buffers, of which ranks can have shares.

use super::program::Program;
use super::value::ShapeSource;
use device::Role;
use graph::{Initial, ScopeId};
use ops::{DType, Member, Members, Storage, UpdateFormat, ValueId};

/// A parameter tensor of the model, trained or frozen.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub value: ValueId,
    pub initial: Initial,
    /// The site of the random draws for its initial value. Fixed before any pass.
    pub site: u32,
    /// Index of its bucket.
    pub bucket: usize,
    /// Whether it is an embedding table, whose rows are looked up by index.
    pub looked_up: bool,
    /// The scales of its codes, if it is quantized.
    pub scales: Vec<ValueId>,
    /// The first version of its gradient; set by differentiation, if it is trained.
    pub gradient: Option<ValueId>,
}

/// Flat parameter buffer: parameters of one layer with the same dtype and update rule (or frozen), with matching
/// buffers for their gradients and optimizer states.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    pub scope: ScopeId,
    /// Whether its parameters are trained. Frozen ones have no gradients, no states and no update.
    pub trainable: bool,
    /// The storage format of frozen parameters.
    pub storage: Storage,
    /// The storage format of the optimizer states.
    pub format: UpdateFormat,
    /// Index of the optimizer's parameter group, if its parameters are trained.
    pub update: usize,
    /// The dtype that shares of its parameters are cast to before they are gathered, if ranks divide them and all operations
    /// read them in a narrower dtype.
    pub cast_to: Option<DType>,
    pub members: Members,
    /// The parameters that this rank has: all members, or its share.
    pub parameters: ValueId,
    /// The value with all members: `parameters`; if ranks divide those, it is gathered for each use.
    pub whole: ValueId,
    /// The scales of quantized parameters.
    pub scales: Vec<BucketState>,
    pub gradients: Option<ValueId>,
    pub states: Vec<BucketState>,
}

impl Bucket {
    /// The storages of its parameters and their scales.
    pub(crate) fn parameter_storages(&self) -> impl Iterator<Item = ValueId> + '_ {
        std::iter::once(self.parameters).chain(self.scales.iter().map(|scales| scales.value))
    }

    /// Elements of its parameters.
    pub fn parameter_count(&self) -> u64 {
        self.members.iter().map(|member| member.elements() as u64).sum()
    }
}

/// An optimizer state of a bucket, or the scales of its codes.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketState {
    pub value: ValueId,
    /// The part of each of the bucket's members.
    pub members: Members,
}

impl Program {
    /// Indices of the trainable buckets.
    pub(crate) fn trained(&self) -> impl Iterator<Item = usize> + use<> {
        let trained = |(index, bucket): (usize, &Bucket)| bucket.trainable.then_some(index);
        self.buckets.iter().enumerate().filter_map(trained).collect::<Vec<_>>().into_iter()
    }

    /// Whether anything is trained.
    pub fn trains(&self) -> bool {
        self.buckets.iter().any(|bucket| bucket.trainable)
    }

    /// Elements of the parameters of the buckets that match. Buffers of the model are not parameters.
    pub fn parameter_count(&self, matches: impl Fn(&Bucket) -> bool) -> u64 {
        let of_parameters = |bucket: &&Bucket| self.value(bucket.parameters).role == Role::Parameter;
        let buckets = self.buckets.iter().filter(of_parameters);
        buckets.filter(|bucket| matches(bucket)).map(Bucket::parameter_count).sum()
    }

    /// Elements of the trained parameters that other ranks update.
    pub fn updated_by_others(&self) -> u64 {
        let Some(share) = self.share else { return 0 };
        let of_bucket = |index: usize| {
            let Bucket { ref members, whole, .. } = self.buckets[index];
            let (own, _) = share.part(members, self.ty(whole));
            let elements = |members: &Members| members.iter().map(Member::elements).sum::<usize>();
            (elements(members) - elements(&own)) as u64
        };
        self.trained().map(of_bucket).sum()
    }

    /// The parts of a bucket's members that this rank has.
    pub fn own_members(&self, bucket: &Bucket) -> Members {
        match self.share.filter(|_| bucket.parameters != bucket.whole) {
            Some(share) => share.part(&bucket.members, self.ty(bucket.whole)).0,
            None => bucket.members.clone(),
        }
    }

    /// Whether this rank has a share of the gradients of a trained bucket.
    pub(crate) fn divides_gradients(&self, bucket: usize) -> bool {
        let Bucket { whole, gradients, .. } = self.buckets[bucket];
        gradients.is_some_and(|gradients| self.ty(gradients).elements() < self.ty(whole).elements())
    }

    /// The index of the bucket that a value is gathered with, if ranks divide it: a bucket with all members, or one of them.
    pub(crate) fn gathered_with(&self, id: ValueId) -> Option<usize> {
        let whole = self.parent_or_self(id);
        let ShapeSource::Bucket(index) = self.value(whole).shape_source else { return None };
        let bucket = &self.buckets[index];
        (bucket.whole == whole && bucket.parameters != whole).then_some(index)
    }
}
