//! Operands as slices.
#![allow(unsafe_code)] // Turns addresses into slices; the contract of `run` guarantees that they are valid.

use super::float::Float;
use ops::{DType, TensorType};

/// An operand in memory, to which a launch resolves a `Tensor`.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Operand {
    pub(in crate::cpu) address: *mut u8,
    pub(in crate::cpu) ty: TensorType,
}

/// The tensor to which a result is added.
#[derive(Clone, Copy)]
pub(super) enum Addend<'a, T = f32> {
    Zero,
    /// The present contents of the output.
    Output,
    /// An input with its own memory.
    Input(&'a [T]),
}

/// The operands of one launch. Each output is taken at most once, and inputs that share its memory are not taken.
pub(super) struct Operands<'a> {
    inputs: &'a [Operand],
    outputs: &'a [Operand],
}

// SAFETY: through a shared reference, only shared slices of inputs are available.
unsafe impl Sync for Operands<'_> {}

impl<'a> Operands<'a> {
    /// # Safety
    ///
    /// The operands outlive the slices, and only outputs may share memory with inputs.
    pub(super) unsafe fn new(inputs: &'a [Operand], outputs: &'a [Operand]) -> Operands<'a> {
        Operands { inputs, outputs }
    }

    pub(super) fn input_type(&self, index: usize) -> &TensorType {
        &self.inputs[index].ty
    }

    pub(super) fn input_types(&self) -> Vec<TensorType> {
        self.inputs.iter().map(|input| input.ty).collect()
    }

    pub(super) fn output_type(&self, index: usize) -> &TensorType {
        &self.outputs[index].ty
    }

    pub(super) fn input<T: Float>(&self, index: usize) -> &'a [T] {
        let Operand { address, ty } = self.inputs[index];
        assert_eq!(ty.dtype, T::DTYPE, "a floating-point input");
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts(address.cast(), ty.elements()) }
    }

    pub(super) fn i32_input(&self, index: usize) -> &'a [i32] {
        let Operand { address, ty } = self.inputs[index];
        assert_eq!(ty.dtype, DType::I32, "an i32 input");
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts(address.cast(), ty.elements()) }
    }

    /// An input of quantized codes, as bytes.
    pub(super) fn input_codes(&self, index: usize) -> &'a [u8] {
        let Operand { address, ty } = self.inputs[index];
        assert!(matches!(ty.dtype, DType::U8 | DType::U4), "an input of codes");
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts(address, ty.bytes() as usize) }
    }

    /// An output of quantized codes, as bytes.
    pub(super) fn output_codes(&mut self, index: usize) -> &'a mut [u8] {
        assert!(matches!(self.outputs[index].ty.dtype, DType::U8 | DType::U4), "an output of codes");
        self.output_bytes(index)
    }

    /// An input of any type, as bytes.
    pub(super) fn input_bytes(&self, index: usize) -> &'a [u8] {
        let Operand { address, ty } = self.inputs[index];
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts(address, ty.bytes() as usize) }
    }

    pub(super) fn i32_output(&mut self, index: usize) -> &'a mut [i32] {
        let Operand { address, ty } = self.outputs[index];
        assert_eq!(ty.dtype, DType::I32, "an i32 output");
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts_mut(address.cast(), ty.elements()) }
    }

    /// An output of any type, as bytes.
    pub(super) fn output_bytes(&mut self, index: usize) -> &'a mut [u8] {
        let Operand { address, ty } = self.outputs[index];
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts_mut(address, ty.bytes() as usize) }
    }

    pub(super) fn output<T: Float>(&mut self, index: usize) -> &'a mut [T] {
        let Operand { address, ty } = self.outputs[index];
        assert_eq!(ty.dtype, T::DTYPE, "a floating-point output");
        // SAFETY: by the contract of `new`.
        unsafe { std::slice::from_raw_parts_mut(address.cast(), ty.elements()) }
    }

    /// The input, or `None` if it shares memory with the output.
    pub(super) fn input_unless_aliased<T: Float>(&self, output: usize, input: usize) -> Option<&'a [T]> {
        (self.outputs[output].address != self.inputs[input].address).then(|| self.input(input))
    }

    /// The tensor to which a result is added: the input with this index, if any.
    pub(super) fn addend<T: Float>(&self, output: usize, input: Option<usize>) -> Addend<'a, T> {
        match input {
            None => Addend::Zero,
            Some(input) => self.input_unless_aliased(output, input).map_or(Addend::Output, Addend::Input),
        }
    }
}
