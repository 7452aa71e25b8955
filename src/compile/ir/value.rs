//! Values: each is written once. Versions and views share memory.

use device::{Pool, Role};
use graph::{Pass, ScopeId};
use ops::{Member, Members, RowSlice, Shape, StackedRows, TensorType, ValueId};
use std::ops::Range;

/// How a value relates to the model's value of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// The value of the model or the optimizer itself.
    Primal,
    /// The gradient of the loss with respect to it.
    Gradient,
    /// Recomputed in backward.
    Recomputed,
    /// Cast to the dtype of matmuls.
    Cast,
    /// The scales of its codes, by level: 0 for the codes' scales, 1 for the scales of these.
    Scales(usize),
}

/// The location of whole batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchBuffer {
    /// In host memory, where they are assembled.
    Host,
    /// On the device: the current batch and the next one.
    Staged,
    /// In host memory: an evaluation batch of another size than the step's.
    Evaluation,
}

/// The source of a value's shape. Runs of the same structure share a program: this gives each value its shape in
/// another run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeSource {
    /// The same shape in every run.
    Fixed,
    /// The graph value of this index in this forward pass.
    Graph(Pass, usize),
    /// A slice of the rows of that graph value.
    Rows(Pass, usize, RowSlice),
    /// The graph value of this index, in the buffer's pass, for whole batches, one after the other, each divided into
    /// micro-batches.
    Batch(BatchBuffer, usize),
    /// Two words per sample (its offset in the token row): of whole batches, or of a forward pass, whose graph value
    /// of this index has the same samples.
    BatchOffsets(BatchBuffer),
    SampleOffsets(Pass, usize),
    /// The bucket of this index.
    Bucket(usize),
    /// Bucket and state index.
    State(usize, usize),
    /// Bucket and level of the scales: of all members, and of one member.
    Scales(usize, usize),
    MemberScales(usize, usize, usize),
    /// The workspace request of the operation.
    Workspace,
}

/// A sub-range of another value. It shares its parent's dtype, role, pool and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    pub of: ValueId,
    pub range: SubRange,
}

/// One of several equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    pub index: usize,
    pub of: usize,
}

impl Share {
    /// Its range of this number of elements, a multiple of the number of parts.
    pub(crate) fn range(self, elements: usize) -> Range<usize> {
        let each = elements / self.of;
        self.index * each..(self.index + 1) * each
    }

    /// The parts of tensors in its range of a bucket of this type, with offsets from its start.
    pub(crate) fn part(self, members: &Members, bucket: TensorType) -> (Members, TensorType) {
        let range = self.range(bucket.elements());
        let part = |member: &Member| {
            let (begin, end) =
                (member.offset.max(range.start), (member.offset + member.elements()).min(range.end));
            let shape = Shape::new(&[end.checked_sub(begin).filter(|elements| *elements > 0)?]);
            Some(Member { offset: begin - range.start, shape, stacked: StackedRows::default(), ..*member })
        };
        (members.iter().filter_map(part).collect(), TensorType::new(bucket.dtype, &[range.len()]))
    }
}

/// The sub-range of a view in its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubRange {
    /// The tensor of this index in a bucket, in one of its states or in its scales.
    Member(usize),
    /// A rank's share of a bucket.
    Share(Share),
    Rows(RowSlice),
}

/// A value: written once. Overwriting it creates another value (a version) in the same storage.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub name: &'static str,
    pub variant: Variant,
    pub scope: ScopeId,
    pub ty: TensorType,
    pub shape_source: ShapeSource,
    pub role: Role,
    pub pool: Pool,
    /// Its parent and sub-range, if it is a view.
    pub view: Option<View>,
    /// The value that this one overwrites: its previous version, or a dead value.
    pub previous: Option<ValueId>,
    /// The value that owns the memory; itself, if it is neither a version nor a view. Derived from `view` and
    /// `previous`.
    pub storage: ValueId,
    /// Offset in the storage, in bytes. Derived as well.
    pub offset: u64,
}

impl BatchBuffer {
    /// The forward pass whose inputs are its parts.
    pub(crate) fn pass(self) -> Pass {
        match self {
            BatchBuffer::Host | BatchBuffer::Staged => Pass::FULL,
            BatchBuffer::Evaluation => Pass::EVALUATED,
        }
    }
}

impl ShapeSource {
    /// The buffer of whole batches that it describes, if any.
    pub fn batch_buffer(self) -> Option<BatchBuffer> {
        match self {
            ShapeSource::Batch(buffer, _) | ShapeSource::BatchOffsets(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The shape source of a slice of the rows. Only graph values have rows.
    pub(super) fn rows(self, slice: RowSlice) -> ShapeSource {
        match self {
            ShapeSource::Graph(pass, index) => ShapeSource::Rows(pass, index, slice),
            _ => unreachable!("only values of the graph are sliced"),
        }
    }
}
