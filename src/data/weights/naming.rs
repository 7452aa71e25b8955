//! How files call what they hold.

use ops::Shape;

/// A family of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Those of a dump.
    Own,
    /// Hugging Face's of GPT-2.
    Gpt2,
    /// Hugging Face's of Llama, and of models that came after it.
    Llama,
}

/// A parameter that a model needs.
#[derive(Clone, Debug)]
pub struct Needed {
    pub name: String,
    pub shape: Shape,
    /// What it is made of in files of others, where they have it.
    pub elsewhere: Vec<(Naming, Vec<CheckpointTensor>)>,
}

/// A tensor of a file that has some rows of a parameter, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointTensor {
    /// Without what all names of a file may begin with: `layers.0.mlp.up_proj.weight`.
    pub tensor: String,
    pub rows: usize,
    pub form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    /// Rows are the tensor's columns.
    Transposed,
    /// The tensor may have more, which are left out.
    FirstRows,
}

impl Naming {
    /// Of a file that has these tensors.
    pub(super) fn of<'a>(tensors: impl Iterator<Item = &'a str>) -> Naming {
        let known = |name: &str| match name {
            "wte.weight" | "transformer.wte.weight" => Some(Naming::Gpt2),
            "embed_tokens.weight" | "model.embed_tokens.weight" => Some(Naming::Llama),
            _ => None,
        };
        tensors.filter_map(known).next().unwrap_or(Naming::Own)
    }

    /// A name without what names begin with where the model is a part of a larger one: beside a head, for one.
    pub(super) fn strip(self, name: &str) -> &str {
        let prefix = match self {
            Naming::Own => None,
            Naming::Gpt2 => name.strip_prefix("transformer."),
            Naming::Llama => name.strip_prefix("model."),
        };
        prefix.unwrap_or(name)
    }

    /// Whether a tensor that a model does not need is none of its parameters either: a constant, or the token embedding once
    /// more where the head is tied to it.
    pub(super) fn is_no_parameter(self, name: &str) -> bool {
        match self {
            Naming::Own => false,
            Naming::Gpt2 => {
                name == "lm_head.weight"
                    || name.ends_with(".attn.bias")
                    || name.ends_with(".attn.masked_bias")
            }
            Naming::Llama => name == "lm_head.weight" || name.ends_with("rotary_emb.inv_freq"),
        }
    }
}

impl Needed {
    /// One that has a name of its own alone.
    pub fn own(name: String, shape: Shape) -> Needed {
        Needed { name, shape, elsewhere: Vec::new() }
    }

    /// What it is made of. What files of these names do not have, they would have by its own.
    pub(super) fn stored(&self, naming: Naming) -> Vec<CheckpointTensor> {
        let own = || {
            vec![CheckpointTensor {
                tensor: self.name.clone(),
                rows: self.shape.dims()[0],
                form: Form::Plain,
            }]
        };
        let known = self.elsewhere.iter().find(|(known, _)| *known == naming);
        known.map_or_else(own, |(_, stored)| stored.clone())
    }
}
