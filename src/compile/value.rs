//! What a step works on: values, each written once, and how they share memory.

use super::program::Program;
use device::{Pool, Role};
use graph::{Pass, ScopeId};
use ops::{DType, Shape, Slice, TensorType, ValueId};

/// How a value relates to the model's own of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// The model's, or the optimizer's.
    Primal,
    /// The loss's derivative by it.
    Gradient,
    /// It, computed again.
    Recomputed,
    /// It, in the dtype of matrix work.
    Cast,
    /// The scales of its codes, or those of these scales.
    Scales(usize),
}

/// Where whole batches lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batches {
    /// In the host's memory, where they are assembled.
    HostBuffers,
    /// On the device: the one that is worked on, and the next one.
    Staged,
}

/// What a value is shaped like in every run of the same structure: what gives a program the sizes of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Like {
    /// Like nothing that has sizes: the shape is the same in every run.
    Fixed,
    /// The value of this number in the graph of this forward pass.
    Graph(Pass, usize),
    /// Some of the rows of that.
    Rows(Pass, usize, Slice),
    /// The graph's value of this number for whole batches: one after the other, of each its micro-batches.
    Batch(Batches, usize),
    /// Two words for each sample of whole batches, or of a forward pass, which has the graph's value of this number for them.
    PlacesOfBatch(Batches),
    PlacesOf(Pass, usize),
    /// The bucket of this number.
    Bucket(usize),
    /// The state of that number of such a bucket.
    State(usize, usize),
    /// Of the scales of a bucket's codes, those of that number; and of one member.
    Scales(usize, usize),
    ScalesOf(usize, usize, usize),
    /// What the operation whose scratch memory it is asks for.
    Workspace,
}

/// A value that is part of another: it has the dtype, the role and the pool of its parent, and memory within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    pub of: ValueId,
    pub part: Part,
}

/// A stretch of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Of a bucket, one of its states or of its scales, the tensor of this number.
    Member(usize),
    Rows(Slice),
}

/// A value: written once. What overwrites it is another value in the same storage.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub name: &'static str,
    pub form: Form,
    pub scope: ScopeId,
    pub ty: TensorType,
    pub like: Like,
    pub role: Role,
    pub pool: Pool,
    /// What it is part of, if it is.
    pub view: Option<View>,
    /// The value that this one takes the place of: its previous version, or one that nothing reads again.
    pub previous: Option<ValueId>,
    /// The value whose memory this one lies in; itself, if it has its own. Follows from the two before.
    pub storage: ValueId,
    /// Where in the storage, in bytes. Follows as well.
    pub offset: u64,
}

impl Like {
    /// Where the whole batches lie that it is a part of, if it is.
    pub fn batches(self) -> Option<Batches> {
        match self {
            Like::Batch(batches, _) | Like::PlacesOfBatch(batches) => Some(batches),
            _ => None,
        }
    }

    /// Like some rows of what is like this: the graph's values have rows.
    fn rows(self, slice: Slice) -> Like {
        match self {
            Like::Graph(micro_batch, index) => Like::Rows(micro_batch, index, slice),
            _ => unreachable!("only what the graph computes is sliced"),
        }
    }
}

impl Program {
    /// A value with memory of its own.
    pub fn add_value(
        &mut self,
        name: &'static str,
        scope: ScopeId,
        (like, ty): (Like, TensorType),
        role: Role,
        pool: Pool,
    ) -> ValueId {
        let (form, storage) = (Form::Primal, self.next());
        let (view, previous, offset) = (None, None, 0);
        self.add(Value { name, form, scope, ty, like, role, pool, view, previous, storage, offset })
    }

    /// A value with memory of its own that is made from a description of another: what is not said anew is as it
    /// is there, the shape in runs of other sizes among it.
    pub fn add_like(&mut self, value: Value) -> ValueId {
        self.add(Value { view: None, previous: None, ..value })
    }

    /// A part of another value, which says what is not said here.
    pub fn add_view(
        &mut self,
        name: &'static str,
        scope: ScopeId,
        (like, shape): (Like, Shape),
        view: View,
    ) -> ValueId {
        let parent = self.value(view.of).clone();
        let ty = TensorType { shape, ..parent.ty };
        self.add(Value { name, scope, ty, like, view: Some(view), previous: None, ..parent })
    }

    /// The same part of another value as this one is of its parent.
    pub fn add_view_like(&mut self, view: ValueId, part: Part, of: ValueId) -> ValueId {
        let Value { name, scope, ty, like, .. } = *self.value(view);
        self.add_view(name, scope, (like, ty.shape), View { of, part })
    }

    /// Some of the rows of a value.
    pub fn add_rows(&mut self, of: ValueId, rows: Slice) -> ValueId {
        let Value { name, scope, ty, like, .. } = *self.value(of);
        self.add_view(
            name,
            scope,
            (like.rows(rows), ty.shape.of_rows(rows)),
            View { of, part: Part::Rows(rows) },
        )
    }

    /// A value like some of the rows of another, with memory of its own.
    pub fn add_slice(&mut self, of: ValueId, rows: Slice) -> ValueId {
        let value = self.value(of).clone();
        let ty = TensorType { shape: value.ty.shape.of_rows(rows), ..value.ty };
        self.add_like(Value { ty, like: value.like.rows(rows), ..value })
    }

    /// Lets a value take the place of another from now on.
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

    /// Gives a value another dtype. Its parts take it on when they are read (`follow_parent`).
    pub fn set_dtype(&mut self, id: ValueId, dtype: DType) {
        self.values[id.index()].ty.dtype = dtype;
    }

    /// Gives a view the dtype that its parent has by now, and the place.
    pub fn follow_parent(&mut self, id: ValueId) {
        let Some(view) = self.value(id).view else { return };
        self.follow_parent(view.of);
        let (dtype, offset) = (self.ty(view.of).dtype, self.view_offset(view));
        let value = &mut self.values[id.index()];
        (value.ty.dtype, value.offset) = (dtype, offset);
    }

    /// Where in the storage of its parent a view lies, in bytes.
    pub(super) fn view_offset(&self, View { of, part }: View) -> u64 {
        let parent = self.value(of);
        let elements = match (part, parent.like) {
            (Part::Member(member), Like::Bucket(bucket)) => self.buckets[bucket].members[member].offset,
            (Part::Member(member), Like::State(bucket, state)) => {
                self.buckets[bucket].states[state].members[member].offset
            }
            (Part::Member(member), Like::Scales(bucket, index)) => {
                self.buckets[bucket].scales[index].members[member].offset
            }
            (Part::Member(_), _) => unreachable!("buckets and what goes with them alone have members"),
            (Part::Rows(slice), _) => slice.range(parent.ty.shape.rows()).start * parent.ty.shape.last(),
        };
        parent.offset + parent.ty.dtype.bytes_of(elements)
    }

    fn next(&self) -> ValueId {
        ValueId(self.values.len() as u32)
    }

    /// `blocks.3.attention.qkv`, `blocks.3.attention.d_qkv` for its gradient, `blocks.3.attention.qkv'` when it
    /// is computed again, `blocks.3.attention.qkv.weight:bf16` when it is cast.
    pub fn full_name(&self, id: ValueId) -> String {
        let Value { name, form, scope, .. } = *self.value(id);
        let path = &self.scope(scope).path;
        match form {
            Form::Primal => format!("{path}.{name}"),
            Form::Gradient => format!("{path}.d_{name}"),
            Form::Recomputed => format!("{path}.{name}'"),
            Form::Cast => format!("{path}.{name}:{}", self.ty(id).dtype),
            Form::Scales(of) => format!("{path}.{name}{}", ".scales".repeat(1 + of)),
        }
    }
}
