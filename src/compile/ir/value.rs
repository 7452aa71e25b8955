//! Values: each is written once. Versions and views share memory.

use super::program::Program;
use device::{Pool, Role};
use graph::{Pass, ScopeId};
use ops::{DType, RowSlice, Shape, TensorType, ValueId};

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
    /// The graph value of this index for whole batches, one after the other, each divided into micro-batches.
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

/// The sub-range of a view in its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubRange {
    /// The tensor of this index in a bucket, in one of its states or in its scales.
    Member(usize),
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

impl ShapeSource {
    /// The buffer of whole batches that it describes, if any.
    pub fn batch_buffer(self) -> Option<BatchBuffer> {
        match self {
            ShapeSource::Batch(buffer, _) | ShapeSource::BatchOffsets(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The shape source of a slice of the rows. Only graph values have rows.
    fn rows(self, slice: RowSlice) -> ShapeSource {
        match self {
            ShapeSource::Graph(pass, index) => ShapeSource::Rows(pass, index, slice),
            _ => unreachable!("only values of the graph are sliced"),
        }
    }
}

impl Program {
    /// A value with memory of its own.
    pub fn add_value(
        &mut self,
        name: &'static str,
        scope: ScopeId,
        (shape_source, ty): (ShapeSource, TensorType),
        role: Role,
        pool: Pool,
    ) -> ValueId {
        let (variant, storage) = (Variant::Primal, self.next());
        let (view, previous, offset) = (None, None, 0);
        self.add(Value {
            name,
            variant,
            scope,
            ty,
            shape_source,
            role,
            pool,
            view,
            previous,
            storage,
            offset,
        })
    }

    /// A value with its own memory, described by another value: fields that are not changed are copied, the shape
    /// source included.
    pub fn add_like(&mut self, value: Value) -> ValueId {
        self.add(Value { view: None, previous: None, ..value })
    }

    /// A view. Its other properties are the parent's.
    pub fn add_view(
        &mut self,
        name: &'static str,
        scope: ScopeId,
        (shape_source, shape): (ShapeSource, Shape),
        view: View,
    ) -> ValueId {
        let parent = self.value(view.of).clone();
        let ty = TensorType { shape, ..parent.ty };
        self.add(Value { name, scope, ty, shape_source, view: Some(view), previous: None, ..parent })
    }

    /// A view of `of` with the name, type and shape source of an existing view.
    pub fn add_view_like(&mut self, view: ValueId, range: SubRange, of: ValueId) -> ValueId {
        let Value { name, scope, ty, shape_source, .. } = *self.value(view);
        self.add_view(name, scope, (shape_source, ty.shape), View { of, range })
    }

    /// A view of some rows of a value.
    pub fn add_rows(&mut self, of: ValueId, rows: RowSlice) -> ValueId {
        let Value { name, scope, ty, shape_source, .. } = *self.value(of);
        self.add_view(
            name,
            scope,
            (shape_source.rows(rows), ty.shape.of_rows(rows)),
            View { of, range: SubRange::Rows(rows) },
        )
    }

    /// A value with its own memory, of the shape of some rows of another.
    pub fn add_slice(&mut self, of: ValueId, rows: RowSlice) -> ValueId {
        let value = self.value(of).clone();
        let ty = TensorType { shape: value.ty.shape.of_rows(rows), ..value.ty };
        self.add_like(Value { ty, shape_source: value.shape_source.rows(rows), ..value })
    }

    /// Makes a value the next version of `previous`, if there is one.
    pub fn set_previous(&mut self, id: ValueId, previous: Option<ValueId>) {
        if let Some(previous) = previous {
            let Value { storage, offset, .. } = *self.value(previous);
            let value = &mut self.values[id.index()];
            (value.previous, value.storage, value.offset) = (Some(previous), storage, offset);
        }
    }

    /// The next version of a value.
    pub fn add_version(&mut self, previous: ValueId) -> ValueId {
        self.add(Value { previous: Some(previous), ..self.value(previous).clone() })
    }

    fn add(&mut self, value: Value) -> ValueId {
        let id = self.next();
        let (storage, offset) = match value {
            Value { previous: Some(previous), .. } => (self.storage(previous), self.value(previous).offset),
            Value { view: Some(view), .. } => (self.storage(view.of), self.view_offset(view)),
            _ => (id, 0),
        };
        self.values.push(Value { storage, offset, ..value });
        id
    }

    /// Sets a value's dtype. Views adopt it through `follow_parent`.
    pub fn set_dtype(&mut self, id: ValueId, dtype: DType) {
        self.values[id.index()].ty.dtype = dtype;
    }

    /// Updates a view's dtype and offset from its parent.
    pub fn follow_parent(&mut self, id: ValueId) {
        let Some(view) = self.value(id).view else { return };
        self.follow_parent(view.of);
        let (dtype, offset) = (self.ty(view.of).dtype, self.view_offset(view));
        let value = &mut self.values[id.index()];
        (value.ty.dtype, value.offset) = (dtype, offset);
    }

    /// Offset of a view in its parent's storage, in bytes.
    pub(crate) fn view_offset(&self, View { of, range }: View) -> u64 {
        let parent = self.value(of);
        let elements = match (range, parent.shape_source) {
            (SubRange::Member(member), ShapeSource::Bucket(bucket)) => {
                self.buckets[bucket].members[member].offset
            }
            (SubRange::Member(member), ShapeSource::State(bucket, state)) => {
                self.buckets[bucket].states[state].members[member].offset
            }
            (SubRange::Member(member), ShapeSource::Scales(bucket, index)) => {
                self.buckets[bucket].scales[index].members[member].offset
            }
            (SubRange::Member(_), _) => {
                unreachable!("only buckets, their states and their scales have members")
            }
            (SubRange::Rows(slice), _) => slice.range(parent.ty.shape.rows()).start * parent.ty.shape.last(),
        };
        parent.offset + parent.ty.dtype.bytes_of(elements)
    }

    fn next(&self) -> ValueId {
        ValueId(self.values.len() as u32)
    }

    /// `blocks.3.attention.qkv`, `blocks.3.attention.d_qkv` for its gradient, `blocks.3.attention.qkv'` if it is
    /// recomputed, `blocks.3.attention.qkv.weight:bf16` if it is cast.
    pub fn full_name(&self, id: ValueId) -> String {
        let Value { name, variant, scope, .. } = *self.value(id);
        let path = &self.scope(scope).path;
        match variant {
            Variant::Primal => format!("{path}.{name}"),
            Variant::Gradient => format!("{path}.d_{name}"),
            Variant::Recomputed => format!("{path}.{name}'"),
            Variant::Cast => format!("{path}.{name}:{}", self.ty(id).dtype),
            Variant::Scales(of) => format!("{path}.{name}{}", ".scales".repeat(1 + of)),
        }
    }
}
