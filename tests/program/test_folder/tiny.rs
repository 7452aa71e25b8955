//! The base experiment of the tests.

/// Sizes of the experiment. A test sets those that it depends on and takes the others from `default`.
pub struct Tiny {
    pub layers: usize,
    pub d_model: usize,
    pub heads: usize,
    pub context: usize,
    pub batch_size: usize,
    pub lr: f64,
}

impl Default for Tiny {
    fn default() -> Tiny {
        Tiny { layers: 1, d_model: 16, heads: 2, context: 16, batch_size: 4, lr: 1e-3 }
    }
}

impl Tiny {
    /// The experiment file with `more` appended, inside the table `train`. The file name is the experiment name.
    pub fn with(&self, more: &str) -> String {
        let Tiny { layers, d_model, heads, context, batch_size, lr } = self;
        format!(
            r#"
[model.transformer]
layers = {layers}
d_model = {d_model}
heads = {heads}
context = {context}

[data.text]
paths = ["text.txt"]
split = 0.9

[train]
batch_size = {batch_size}
optimizer.adamw.lr = {lr:e}
{more}"#
        )
    }
}
