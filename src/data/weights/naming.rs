//! Tensor names in checkpoints.

use ops::Shape;

/// A naming scheme of checkpoint tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TensorNaming {
    /// The names of a dump.
    Own,
    /// Hugging Face's names for GPT-2.
    Gpt2,
    /// Hugging Face's names for Llama and its successors.
    Llama,
    /// Those of GPT-Neo, which are GPT-2's outside of blocks.
    GptNeo,
    /// Those of Phi-3: Llama's, with fused matrices.
    Phi3,
    /// Those of StarCoder2: Llama's, with GPT-2's in feed-forward layers.
    Starcoder2,
    /// Those of Phi-1 and Phi-2: Llama's, with others of output and feed-forward matrices.
    Phi,
    /// Those of Mixtral: Llama's, with others of experts.
    Mixtral,
    /// Hugging Face's names for GPT-NeoX.
    GptNeox,
    /// Hugging Face's names for Falcon.
    Falcon,
}

/// A parameter that a model needs.
#[derive(Clone, Debug)]
pub struct RequiredParameter {
    pub name: String,
    pub shape: Shape,
    /// The tensors that it consists of, by foreign naming scheme.
    pub elsewhere: Vec<(TensorNaming, Vec<CheckpointTensor>)>,
}

/// A checkpoint tensor with some or all rows of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointTensor {
    /// The name without the checkpoint's common prefix: `layers.0.mlp.up_proj.weight`.
    pub tensor: String,
    /// Number of the parameter's rows in this tensor.
    pub rows: usize,
    pub form: Form,
}

/// The layout of a parameter's rows in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    /// The parameter's rows are the tensor's columns.
    Transposed,
    /// The tensor may have further rows, which are ignored.
    FirstRows,
    /// The parameter's rows are the tensor's from row `first` on; the tensor has `of` rows.
    Slice {
        first: usize,
        of: usize,
    },
}

impl TensorNaming {
    /// Detects the scheme from the names of a checkpoint's tensors.
    pub(super) fn of<'a>(tensors: impl Iterator<Item = &'a str>) -> TensorNaming {
        let known = |name: &str| match name {
            "wte.weight" | "transformer.wte.weight" => Some(TensorNaming::Gpt2),
            "embed_tokens.weight" | "model.embed_tokens.weight" => Some(TensorNaming::Llama),
            // Of the first block.
            "h.0.attn.attention.out_proj.weight" | "transformer.h.0.attn.attention.out_proj.weight" => {
                Some(TensorNaming::GptNeo)
            }
            "layers.0.self_attn.qkv_proj.weight" | "model.layers.0.self_attn.qkv_proj.weight" => {
                Some(TensorNaming::Phi3)
            }
            "layers.0.self_attn.dense.weight" | "model.layers.0.self_attn.dense.weight" => {
                Some(TensorNaming::Phi)
            }
            "layers.0.block_sparse_moe.gate.weight" | "model.layers.0.block_sparse_moe.gate.weight" => {
                Some(TensorNaming::Mixtral)
            }
            "embed_in.weight" | "gpt_neox.embed_in.weight" => Some(TensorNaming::GptNeox),
            "word_embeddings.weight" | "transformer.word_embeddings.weight" => Some(TensorNaming::Falcon),
            "layers.0.mlp.c_fc.weight" | "model.layers.0.mlp.c_fc.weight" => Some(TensorNaming::Starcoder2),
            _ => None,
        };
        // Names in blocks are more specific than those of the embedding.
        tensors.filter_map(known).max().unwrap_or(TensorNaming::Own)
    }

    /// A name without the prefix that it has if the model is part of a larger one, for example with a head.
    pub(super) fn strip(self, name: &str) -> &str {
        let prefix = match self {
            TensorNaming::Own => None,
            TensorNaming::Gpt2 | TensorNaming::GptNeo | TensorNaming::Falcon => {
                name.strip_prefix("transformer.")
            }
            TensorNaming::GptNeox => name.strip_prefix("gpt_neox."),
            TensorNaming::Llama
            | TensorNaming::Phi3
            | TensorNaming::Starcoder2
            | TensorNaming::Phi
            | TensorNaming::Mixtral => name.strip_prefix("model."),
        };
        prefix.unwrap_or(name)
    }

    /// The name of a tensor in the library's own files, with the prefix of the model in its class with a head.
    pub fn with_prefix(self, tensor: &str) -> String {
        match (self, tensor) {
            (TensorNaming::Own, _) | (_, "lm_head.weight" | "lm_head.bias" | "embed_out.weight") => {
                tensor.to_owned()
            }
            (TensorNaming::Gpt2 | TensorNaming::GptNeo | TensorNaming::Falcon, _) => {
                format!("transformer.{tensor}")
            }
            (TensorNaming::GptNeox, _) => format!("gpt_neox.{tensor}"),
            (
                TensorNaming::Llama
                | TensorNaming::Phi3
                | TensorNaming::Starcoder2
                | TensorNaming::Phi
                | TensorNaming::Mixtral,
                _,
            ) => format!("model.{tensor}"),
        }
    }

    /// Whether a tensor can be ignored: a constant, or a copy of the token embedding for a tied head.
    pub(super) fn is_ignored(self, name: &str) -> bool {
        match self {
            TensorNaming::Own => false,
            TensorNaming::Gpt2 | TensorNaming::GptNeo => {
                name == "lm_head.weight"
                    || name.ends_with(".attn.bias")
                    || name.ends_with(".attn.masked_bias")
                    || name.ends_with(".attn.attention.bias")
                    || name.ends_with(".attn.attention.masked_bias")
            }
            TensorNaming::GptNeox => {
                name == "embed_out.weight"
                    || name.ends_with(".attention.bias")
                    || name.ends_with(".attention.masked_bias")
                    || name.ends_with("rotary_emb.inv_freq")
            }
            TensorNaming::Llama
            | TensorNaming::Phi3
            | TensorNaming::Starcoder2
            | TensorNaming::Phi
            | TensorNaming::Mixtral
            | TensorNaming::Falcon => name == "lm_head.weight" || name.ends_with("rotary_emb.inv_freq"),
        }
    }
}

impl RequiredParameter {
    /// A parameter without foreign names.
    pub fn own(name: String, shape: Shape) -> RequiredParameter {
        RequiredParameter { name, shape, elsewhere: Vec::new() }
    }

    /// The tensors that it consists of in checkpoints of another library.
    pub fn tensors(&self, naming: TensorNaming) -> Option<&[CheckpointTensor]> {
        self.elsewhere.iter().find(|(known, _)| *known == naming).map(|(_, tensors)| &tensors[..])
    }

    /// The tensors that it consists of under a naming scheme; by default, one tensor with its own name.
    pub(super) fn stored(&self, naming: TensorNaming) -> Vec<CheckpointTensor> {
        let own = || {
            vec![CheckpointTensor {
                tensor: self.name.clone(),
                rows: self.shape.dims()[0],
                form: Form::Plain,
            }]
        };
        self.tensors(naming).map_or_else(own, <[CheckpointTensor]>::to_vec)
    }
}
