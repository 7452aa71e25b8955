//! Adds values to a program and changes them.

use super::program::Program;
use super::value::{ShapeSource, SubRange, Value, Variant, View};
use device::{Pool, Role};
use graph::ScopeId;
use ops::{DType, RowSlice, Shape, TensorType, ValueId};

impl Program {
    /// A value with memory of its own.
    pub(crate) fn add_value(
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
    pub(crate) fn add_like(&mut self, value: Value) -> ValueId {
        self.add(Value { view: None, previous: None, ..value })
    }

    /// A view. Its other properties are the parent's.
    pub(crate) fn add_view(
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
    pub(crate) fn add_view_like(&mut self, view: ValueId, range: SubRange, of: ValueId) -> ValueId {
        let Value { name, scope, ty, shape_source, .. } = *self.value(view);
        self.add_view(name, scope, (shape_source, ty.shape), View { of, range })
    }

    /// A view of some rows of a value.
    pub(crate) fn add_rows(&mut self, of: ValueId, rows: RowSlice) -> ValueId {
        let Value { name, scope, ty, shape_source, .. } = *self.value(of);
        self.add_view(
            name,
            scope,
            (shape_source.rows(rows), ty.shape.of_rows(rows)),
            View { of, range: SubRange::Rows(rows) },
        )
    }

    /// A value with its own memory, of the shape of some rows of another.
    pub(crate) fn add_slice(&mut self, of: ValueId, rows: RowSlice) -> ValueId {
        let value = self.value(of).clone();
        let ty = TensorType { shape: value.ty.shape.of_rows(rows), ..value.ty };
        self.add_like(Value { ty, shape_source: value.shape_source.rows(rows), ..value })
    }

    /// Makes a value the next version of `previous`, if there is one.
    pub(crate) fn set_previous(&mut self, id: ValueId, previous: Option<ValueId>) {
        if let Some(previous) = previous {
            let Value { storage, offset, .. } = *self.value(previous);
            let value = &mut self.values[id.index()];
            (value.previous, value.storage, value.offset) = (Some(previous), storage, offset);
        }
    }

    /// The next version of a value.
    pub(crate) fn add_version(&mut self, previous: ValueId) -> ValueId {
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
    pub(crate) fn set_dtype(&mut self, id: ValueId, dtype: DType) {
        self.values[id.index()].ty.dtype = dtype;
    }

    /// Updates a view's dtype and offset from its parent.
    pub(crate) fn follow_parent(&mut self, id: ValueId) {
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
            (SubRange::Share(share), _) => share.range(parent.ty.elements()).start,
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
