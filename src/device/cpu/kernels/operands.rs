//! Operands as slices.
#![allow(unsafe_code)] // Addresses become slices here; that they are valid is `run`'s contract.

use super::float::Float;
use ops::{DType, TensorType};

/// An operand in memory: what a launch resolves a `Tensor` to.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Operand {
    pub(in crate::cpu) address: *mut u8,
    pub(in crate::cpu) ty: TensorType,
}

/// What a result is added to.
#[derive(Clone, Copy)]
pub(super) enum Start<'a, T = f32> {
    Zero,
    /// What the output holds already.
    Output,
    Other(&'a [T]),
}

/// The operands of one launch. Each output is taken at most once, and no input that it shares memory with is.
pub(super) struct Operands<'a> {
    inputs: &'a [Operand],
    outputs: &'a [Operand],
}

// SAFETY: shared operands only give out shared slices of inputs.
unsafe impl Sync for Operands<'_> {}

impl<'a> Operands<'a> {
    /// # Safety
    ///
    /// The operands are valid for as long as the slices are, and only outputs may share memory with inputs.
    pub(super) unsafe fn new(inputs: &'a [Operand], outputs: &'a [Operand]) -> Operands<'a> {
        Operands { inputs, outputs }
    }

    pub(super) fn input_type(&self, index: usize) -> &TensorType {
        &self.inputs[index].ty
    }

    pub(super) fn output_type(&self, index: usize) -> &TensorType {
        &self.outputs[index].ty
    }

    pub(super) fn input<T: Float>(&self, index: usize) -> &'a [T] {
        let Operand { address, ty } = self.inputs[index];
        assert_eq!(ty.dtype, T::DTYPE, "an input of numbers");
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts(address.cast(), ty.elements()) }
    }

    pub(super) fn tokens(&self, index: usize) -> &'a [i32] {
        let Operand { address, ty } = self.inputs[index];
        assert_eq!(ty.dtype, DType::I32, "an input of tokens");
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts(address.cast(), ty.elements()) }
    }

    /// Codes, in bytes.
    pub(super) fn input_codes(&self, index: usize) -> &'a [u8] {
        let Operand { address, ty } = self.inputs[index];
        assert!(matches!(ty.dtype, DType::U8 | DType::U4), "an input of codes");
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts(address, ty.bytes() as usize) }
    }

    /// An output of codes, in bytes.
    pub(super) fn codes(&mut self, index: usize) -> &'a mut [u8] {
        assert!(matches!(self.outputs[index].ty.dtype, DType::U8 | DType::U4), "an output of codes");
        self.bytes(index)
    }

    /// An input of whole numbers of fewer than 32 bits.
    pub(super) fn input_bytes(&self, index: usize) -> &'a [u8] {
        let Operand { address, ty } = self.inputs[index];
        assert!(matches!(ty.dtype, DType::U8 | DType::U16), "an input of whole numbers");
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts(address, ty.bytes() as usize) }
    }

    /// An output of whole numbers.
    pub(super) fn whole_numbers(&mut self, index: usize) -> &'a mut [i32] {
        let Operand { address, ty } = self.outputs[index];
        assert_eq!(ty.dtype, DType::I32, "an output of whole numbers");
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts_mut(address.cast(), ty.elements()) }
    }

    /// An output of any type.
    pub(super) fn bytes(&mut self, index: usize) -> &'a mut [u8] {
        let Operand { address, ty } = self.outputs[index];
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts_mut(address, ty.bytes() as usize) }
    }

    pub(super) fn output<T: Float>(&mut self, index: usize) -> &'a mut [T] {
        let Operand { address, ty } = self.outputs[index];
        assert_eq!(ty.dtype, T::DTYPE, "an output of numbers");
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts_mut(address.cast(), ty.elements()) }
    }

    /// The input that an output begins as, or none where they are the same memory.
    pub(super) fn source<T: Float>(&self, output: usize, input: usize) -> Option<&'a [T]> {
        (self.outputs[output].address != self.inputs[input].address).then(|| self.input(input))
    }

    /// What an output is added to.
    pub(super) fn start<T: Float>(&self, output: usize, input: Option<usize>) -> Start<'a, T> {
        match input {
            None => Start::Zero,
            Some(input) => self.source(output, input).map_or(Start::Output, Start::Other),
        }
    }
}
