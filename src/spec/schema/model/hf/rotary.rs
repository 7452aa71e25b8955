//! Rotary position embedding: one table since version 5 of the library, two fields before. Scaling follows version 5.

use std::f64::consts::TAU;

use serde_json::Value;

use super::fields::ConfigFields;
use crate::schema::model::{Rotary, RotaryScaling};

/// The sizes that scaling depends on.
pub(super) struct Sizes {
    /// Channels per head; below, the rotated ones.
    pub(super) head_dim: usize,
    /// `max_position_embeddings`.
    pub(super) positions: usize,
    /// The sequence length in training.
    pub(super) context: usize,
    /// The context that the model was trained on, if the family has a default of its own.
    pub(super) original: Option<usize>,
    /// The family's default of the base.
    pub(super) base: f64,
    /// The table within `rope_parameters`, if it has one for each kind of layer.
    pub(super) kind: Option<&'static str>,
    /// The family's default of the share of rotated channels; `None`: it rotates all.
    pub(super) partial: Option<f64>,
}

#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Linear,
    Dynamic,
    Yarn,
    LongRope,
    Llama3,
}

const KINDS: &[(&str, Kind)] = &[
    ("default", Kind::Plain),
    ("linear", Kind::Linear),
    ("dynamic", Kind::Dynamic),
    ("yarn", Kind::Yarn),
    ("longrope", Kind::LongRope),
    // Phi-3's first name of it.
    ("su", Kind::LongRope),
    ("llama3", Kind::Llama3),
];

/// Fields that the library ignores in some or all kinds of scaling.
const OF_OTHER_KINDS: &[&str] = &[
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "finetuned",
    "high_freq_factor",
    "long_factor",
    "long_mscale",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "short_factor",
    "short_mscale",
    "truncate",
    "type",
];

/// The frequencies, and the factor of attention scores: cosines and sines are scaled by its square root, in queries and in
/// keys.
pub(super) fn read(fields: &ConfigFields, sizes: &Sizes) -> (Rotary, f64) {
    let whole = Value::from(1.0);
    let mut is_whole = sizes.partial.is_some() || fields.require("partial_rotary_factor", &whole);
    fields.require("rope_interleaved", &Value::from(false));
    let base = fields.number("rope_theta").unwrap_or(sizes.base);
    let mut rotary = Rotary { base, ..Rotary::default() };
    let original = fields.optional_size("original_max_position_embeddings").or(sizes.original);
    let (newer, older) = (fields.table("rope_parameters"), fields.table("rope_scaling"));
    let newer = match sizes.kind {
        Some(kind) => newer.and_then(|table| table.table(kind)),
        None => newer,
    };
    if sizes.kind.is_some() && newer.is_some() && older.is_some() {
        fields.unsupported("rope_scaling", "one of `rope_scaling` and `rope_parameters`");
    }
    let table = older.or(newer);
    let rotated;
    let sizes = match sizes.partial {
        None => sizes,
        Some(share) => {
            rotated = rotated_channels(fields, table.as_ref(), sizes, share);
            rotary.channels = Some(rotated.head_dim).filter(|channels| *channels != sizes.head_dim);
            &rotated
        }
    };
    let Some(table) = table else { return (rotary, 1.0) };
    is_whole &= sizes.partial.is_some() || table.require("partial_rotary_factor", &whole);
    // Scaling of a part of the channels has other numbers.
    if !is_whole {
        return (rotary, 1.0);
    }
    rotary.base = table.number("rope_theta").unwrap_or(rotary.base);
    let field = if table.has("rope_type") { "rope_type" } else { "type" };
    let kind = table.one_of(field, "default", KINDS).unwrap_or(Kind::Plain);
    let original = original.or_else(|| table.optional_size("original_max_position_embeddings"));
    let original = original.unwrap_or(sizes.positions);
    let scaling = Scaling { table: &table, sizes, original, base: rotary.base };
    let mut score_factor = 1.0;
    match kind {
        Kind::Plain => {}
        Kind::Linear => rotary.divisors = vec![table.required_number("factor"); sizes.head_dim / 2],
        Kind::Dynamic => rotary.base = scaling.dynamic(),
        Kind::Yarn => (rotary.divisors, score_factor) = scaling.yarn(),
        Kind::LongRope => (rotary.divisors, score_factor) = scaling.longrope(),
        Kind::Llama3 => rotary.scaling = Some(scaling.llama3()),
    }
    if score_factor != 1.0 && rotary.channels.is_some() {
        // Only the rotated channels are scaled.
        table.unsupported(field, "scaling without an attention factor, if a part of the channels is rotated");
    }
    table.ignore(OF_OTHER_KINDS);
    table.check_unread("rotary scaling");
    (rotary, score_factor)
}

/// The sizes with the number of rotated channels, for a family that rotates a part of each head. `share`: its default.
fn rotated_channels(fields: &ConfigFields, table: Option<&ConfigFields>, sizes: &Sizes, share: f64) -> Sizes {
    const FIELD: &str = "partial_rotary_factor";
    let written = fields.number(FIELD);
    let share = table.and_then(|table| table.number(FIELD)).or(written).unwrap_or(share);
    let channels = (sizes.head_dim as f64 * share) as usize;
    // 0 channels per head are reported elsewhere.
    let fits = channels.is_multiple_of(2) && (1..=sizes.head_dim).contains(&channels) || sizes.head_dim == 0;
    if !fits {
        let message =
            format!("{share} of {} channels per head is {channels}, not a number of pairs", sizes.head_dim);
        fields.error(FIELD, message, "use a share of an even number of channels, of at most all".to_owned());
    }
    Sizes { head_dim: if fits { channels } else { sizes.head_dim }, ..*sizes }
}

struct Scaling<'a> {
    table: &'a ConfigFields<'a>,
    sizes: &'a Sizes,
    /// Context that the model was trained on.
    original: usize,
    base: f64,
}

impl Scaling<'_> {
    /// The base for sequences of the context's length: the configured one, unless they exceed the positions.
    fn dynamic(&self) -> f64 {
        let factor = self.table.required_number("factor");
        let (head_dim, ratio) =
            (self.sizes.head_dim as f64, self.sizes.context as f64 / self.sizes.positions as f64);
        // The frequency of a single pair does not depend on the base.
        if ratio <= 1.0 || head_dim <= 2.0 {
            return self.base;
        }
        self.base * (factor * ratio - (factor - 1.0)).powf(head_dim / (head_dim - 2.0))
    }

    /// The factor; by default the ratio of the positions and the original ones.
    fn factor(&self) -> f64 {
        self.table.number("factor").unwrap_or(self.sizes.positions as f64 / self.original as f64)
    }

    /// YaRN (Peng et al. 2023): pairs with few turns in the original context are slowed, and scores are sharpened.
    fn yarn(&self) -> (Vec<f64>, f64) {
        let factor = self.factor();
        if self.base <= 1.0 {
            self.table.unsupported("rope_theta", "a base above 1");
            return (Vec::new(), 1.0);
        }
        let dim = self.sizes.head_dim as f64;
        // The pair that makes this number of turns.
        let pair = |turns: f64| dim * (self.original as f64 / (turns * TAU)).ln() / (2.0 * self.base.ln());
        let fast = pair(self.table.number("beta_fast").unwrap_or(32.0));
        let slow = pair(self.table.number("beta_slow").unwrap_or(1.0));
        let truncates = self.table.flag("truncate").unwrap_or(true);
        let (fast, slow) = if truncates { (fast.floor(), slow.ceil()) } else { (fast, slow) };
        let (fast, slow) = (fast.max(0.0), slow.min(dim - 1.0));
        let width = if fast == slow { 0.001 } else { slow - fast };
        let divisor = |pair: usize| {
            let slowed = ((pair as f64 - fast) / width).clamp(0.0, 1.0);
            1.0 / (slowed / factor + 1.0 - slowed)
        };
        let own = self.table.number("attention_factor");
        let [mscale, of_all] = ["mscale", "mscale_all_dim"].map(|field| self.table.number(field));
        let sharpened = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
        let attention = own.unwrap_or(match (mscale, of_all) {
            (Some(mscale), Some(of_all)) => sharpened(mscale) / sharpened(of_all),
            _ => sharpened(1.0),
        });
        ((0..self.sizes.head_dim / 2).map(divisor).collect(), attention * attention)
    }

    /// LongRoPE (Ding et al. 2024): divisors for contexts up to the original one, and for longer ones.
    fn longrope(&self) -> (Vec<f64>, f64) {
        let factor = self.factor();
        let original = self.original as f64;
        let pairs = self.sizes.head_dim / 2;
        let [short, long] = ["short_factor", "long_factor"].map(|field| {
            if !self.table.has(field) {
                self.table.missing(field);
            }
            self.table.numbers(field, pairs).unwrap_or_default()
        });
        let own = self.table.number("attention_factor");
        let is_longer = factor > 1.0 && original > 1.0;
        let by_default = if is_longer { (1.0 + factor.ln() / original.ln()).sqrt() } else { 1.0 };
        let attention = own.unwrap_or(by_default);
        (if self.sizes.context > self.original { long } else { short }, attention * attention)
    }

    fn llama3(&self) -> RotaryScaling {
        let number = |field| self.table.required_number(field);
        if self.table.number("factor").is_some_and(|factor| factor < 1.0) {
            self.table.unsupported("factor", "numbers of at least 1");
        }
        RotaryScaling {
            factor: number("factor"),
            low: number("low_freq_factor"),
            high: number("high_freq_factor"),
            original: self.original,
        }
    }
}
