//! The experiment that tests change and add to.

/// Its sizes, of which a test says those that it depends on.
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
    /// The file's text with more at its end, which begins in the table `train`. The file's name is the experiment's.
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
