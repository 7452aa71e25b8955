//! How queries and keys are rotated: in a table of its own as of version 5 of the library, and before that in two fields.

use serde_json::Value;

use super::fields::{Fields, Mistake};
use crate::model::{Rotary, RotaryScaling};

pub(super) fn read(fields: &Fields) -> Result<Rotary, Mistake> {
    fields.is_just("partial_rotary_factor", &Value::from(1.0))?;
    fields.is_just("rope_interleaved", &Value::from(false))?;
    let base = fields.number("rope_theta")?;
    let newer = fields.table("rope_parameters")?;
    let older = fields.table("rope_scaling")?;
    let mut rotary = Rotary { base: base.unwrap_or(Rotary::default().base), scaling: None };
    for table in newer.iter().chain(&older) {
        table.is_just("partial_rotary_factor", &Value::from(1.0))?;
        rotary.base = table.number("rope_theta")?.unwrap_or(rotary.base);
        let kind = if table.word("rope_type")?.is_some() { "rope_type" } else { "type" };
        let is_scaled = table.one_of(kind, "default", &[("default", false), ("llama3", true)])?;
        if is_scaled {
            rotary.scaling = Some(scaling(table)?);
        }
        table.are_all_known("rotations")?;
    }
    Ok(rotary)
}

/// Llama 3's.
fn scaling(table: &Fields) -> Result<RotaryScaling, Mistake> {
    let number = |field| table.number(field)?.ok_or_else(|| table.missing(field));
    Ok(RotaryScaling {
        factor: number("factor")?,
        low: number("low_freq_factor")?,
        high: number("high_freq_factor")?,
        original: table.size("original_max_position_embeddings")?,
    })
}
