//! Checks of operands.

use super::{DType, TensorType};

/// Operands do not fit the operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {problem}")]
pub struct TypeError {
    pub operation: &'static str,
    pub problem: String,
}

/// Checks the number of inputs.
pub(crate) fn expect_inputs(
    operation: &'static str,
    inputs: &[TensorType],
    count: usize,
) -> Result<(), TypeError> {
    if inputs.len() == count {
        return Ok(());
    }
    Err(TypeError { operation, problem: format!("expected {count} inputs, got {}", inputs.len()) })
}

/// Checks that an operand has the type that the other operands determine.
pub(crate) fn expect_type(
    operation: &'static str,
    operand: &str,
    found: &TensorType,
    wanted: TensorType,
) -> Result<(), TypeError> {
    if *found == wanted {
        return Ok(());
    }
    Err(TypeError {
        operation,
        problem: format!("{operand} is {found}, the other operands require {wanted}"),
    })
}

/// Checks that an operand's dtype is f32 or `other`, and returns it.
pub(crate) fn expect_f32_or(
    other: DType,
    operation: &'static str,
    operand: &str,
    found: &TensorType,
) -> Result<DType, TypeError> {
    if [DType::F32, other].contains(&found.dtype) {
        return Ok(found.dtype);
    }
    let wanted = if other == DType::F32 { String::new() } else { format!(" or {other}") };
    Err(TypeError { operation, problem: format!("{operand} is {found}, expected {}{wanted}", DType::F32) })
}

/// Checks that an operand has a matmul dtype, and returns it.
pub(crate) fn expect_float(
    operation: &'static str,
    operand: &str,
    found: &TensorType,
) -> Result<DType, TypeError> {
    if found.dtype.is_float() {
        return Ok(found.dtype);
    }
    Err(TypeError { operation, problem: format!("{operand} is {found}, expected a floating-point type") })
}
