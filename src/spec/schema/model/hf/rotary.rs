//! Rotary position embedding: one table since version 5 of the library, two fields before.

use serde_json::Value;

use super::fields::{ConfigError, ConfigFields};
use crate::schema::model::{Rotary, RotaryScaling};

pub(super) fn read(fields: &ConfigFields) -> Result<Rotary, ConfigError> {
    fields.require("partial_rotary_factor", &Value::from(1.0))?;
    fields.require("rope_interleaved", &Value::from(false))?;
    let base = fields.number("rope_theta")?;
    let newer = fields.table("rope_parameters")?;
    let older = fields.table("rope_scaling")?;
    let mut rotary = Rotary { base: base.unwrap_or(Rotary::default().base), scaling: None };
    for table in newer.iter().chain(&older) {
        table.require("partial_rotary_factor", &Value::from(1.0))?;
        rotary.base = table.number("rope_theta")?.unwrap_or(rotary.base);
        let kind = if table.string("rope_type")?.is_some() { "rope_type" } else { "type" };
        let is_scaled = table.one_of(kind, "default", &[("default", false), ("llama3", true)])?;
        if is_scaled {
            rotary.scaling = Some(scaling(table)?);
        }
        table.check_unknown("rotations")?;
    }
    Ok(rotary)
}

/// Llama 3's scaling.
fn scaling(table: &ConfigFields) -> Result<RotaryScaling, ConfigError> {
    let number = |field| table.number(field)?.ok_or_else(|| table.missing(field));
    Ok(RotaryScaling {
        factor: number("factor")?,
        low: number("low_freq_factor")?,
        high: number("high_freq_factor")?,
        original: table.size("original_max_position_embeddings")?,
    })
}
