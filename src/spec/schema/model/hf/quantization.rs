//! `quantization_config`: stored weights in fewer bits, which are trained only as the frozen base of adapters.

use super::fields::{ConfigError, ConfigFields};

/// The field's name.
pub(super) const FIELD: &str = "quantization_config";

/// The problem of a run without a quantized base, unless the weights are not quantized.
pub(super) fn read(fields: &ConfigFields) -> Option<ConfigError> {
    let table = fields.table(FIELD)?;
    let is_set = |field| table.flag(field).unwrap_or(false);
    let bits = match table.integer_or(&["bits", "w_bit", "nbits"]) {
        Some(bits) => Some(bits),
        None if is_set("load_in_4bit") => Some(4),
        None if is_set("load_in_8bit") => Some(8),
        None => None,
    };
    let method = table.word("quant_method").unwrap_or_else(|| "bitsandbytes".to_owned());
    // Formats of one byte, unless the name or the field declares fewer bits.
    let bits =
        bits.unwrap_or(if ["mxfp4", "awq", "gptq", "nvfp4"].contains(&method.as_str()) { 4 } else { 8 });
    let base = if bits <= 4 { "nf4" } else { "int8" };
    Some(ConfigError {
        field: Some(FIELD.to_owned()),
        message: format!(
            "`{FIELD}` ({}, {bits} bits): quantized weights are trained only as the frozen base of low-rank adapters",
            base::brief::line(&method)
        ),
        help: format!(
            "write lora = {{ rank = 16, alpha = 32, targets = [\"*\"], base = \"{base}\" }} in the strategy (QLoRA), or \
             ignore = [\"{FIELD}\"] in [model.hf] to train all parameters, not quantized"
        ),
    })
}
