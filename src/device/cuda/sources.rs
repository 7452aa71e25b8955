//! The kernels' sources, embedded in the program. Each is compiled into one module; kernel names are unique across all
//! modules.

/// A file of CUDA C++ under `kernels/`.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelSource {
    pub(super) file: &'static str,
    pub(super) text: &'static str,
}

/// Embeds a file under `kernels/`.
macro_rules! source {
    ($file:literal) => {
        KernelSource { file: $file, text: include_str!(concat!("kernels/", $file)) }
    };
}

/// The compiled sources.
pub(super) const SOURCES: &[KernelSource] = &[
    source!("activation.cu"),
    source!("adafactor.cu"),
    source!("attention_delta.cu"),
    source!("attention_forward_bf16.cu"),
    source!("attention_forward_f16.cu"),
    source!("attention_forward_f32.cu"),
    source!("attention_forward_masked_bf16.cu"),
    source!("attention_forward_masked_f16.cu"),
    source!("attention_forward_masked_f32.cu"),
    source!("attention_key_gradients_bf16.cu"),
    source!("attention_key_gradients_f16.cu"),
    source!("attention_key_gradients_f32.cu"),
    source!("attention_key_gradients_masked_bf16.cu"),
    source!("attention_key_gradients_masked_f16.cu"),
    source!("attention_key_gradients_masked_f32.cu"),
    source!("attention_query_gradients_bf16.cu"),
    source!("attention_query_gradients_f16.cu"),
    source!("attention_query_gradients_f32.cu"),
    source!("attention_query_gradients_masked_bf16.cu"),
    source!("attention_query_gradients_masked_f16.cu"),
    source!("attention_query_gradients_masked_f32.cu"),
    source!("batch_norm.cu"),
    source!("cast_pixels.cu"),
    source!("columns.cu"),
    source!("conv2d.cu"),
    source!("cross_entropy.cu"),
    source!("dropout.cu"),
    source!("elementwise.cu"),
    source!("elementwise_loss.cu"),
    source!("embedding.cu"),
    source!("gather_samples.cu"),
    source!("group_norm.cu"),
    source!("head_norm.cu"),
    source!("initialise.cu"),
    source!("layer_norm.cu"),
    source!("materialized_attention.cu"),
    source!("muon.cu"),
    source!("optimizer.cu"),
    source!("optimizer_quantized.cu"),
    source!("pooling.cu"),
    source!("reduction.cu"),
    source!("rms_norm.cu"),
    source!("rotary.cu"),
    source!("softmax.cu"),
    source!("storage.cu"),
    source!("stretch.cu"),
    source!("token_order.cu"),
    source!("wide_head_norm.cu"),
    source!("widen.cu"),
];

/// The headers that sources include.
pub(super) const HEADERS: &[KernelSource] = &[
    source!("activations.cuh"),
    source!("adam.cuh"),
    source!("attention_blocks.cuh"),
    source!("attention_f32.cuh"),
    source!("attention_forward.cuh"),
    source!("attention_forward_f32.cuh"),
    source!("attention_kept.cuh"),
    source!("attention_key_gradients.cuh"),
    source!("attention_key_gradients_f32.cuh"),
    source!("attention_query_gradients.cuh"),
    source!("attention_query_gradients_f32.cuh"),
    source!("attention_tiles.cuh"),
    source!("chance.cuh"),
    source!("channel_sums.cuh"),
    source!("compat.cuh"),
    source!("dynamic_map.cuh"),
    source!("elementwise.cuh"),
    source!("held_rows.cuh"),
    source!("lion.cuh"),
    source!("muon.cuh"),
    source!("optimizer.cuh"),
    source!("optimizers.cuh"),
    source!("philox.cuh"),
    source!("reductions.cuh"),
    source!("sgd.cuh"),
    source!("tables.cuh"),
    source!("vectors.cuh"),
    source!("weights.cuh"),
];

/// A source and all headers that it includes, directly or indirectly, each once.
pub(super) fn with_headers(source: &KernelSource) -> Vec<&KernelSource> {
    let mut parts = vec![source];
    let mut next = 0;
    while let Some(item) = parts.get(next) {
        for name in includes(item) {
            let header = HEADERS.iter().find(|header| header.file == name);
            // NVRTC does not compile the emulator's header.
            let Some(header) = header else { continue };
            if !parts.iter().any(|item| item.file == header.file) {
                parts.push(header);
            }
        }
        next += 1;
    }
    parts
}

/// The file names in a file's `#include "name"` lines.
fn includes(source: &KernelSource) -> impl Iterator<Item = &'static str> {
    source.text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_include_is_found() {
        for source in SOURCES.iter().chain(HEADERS) {
            let lines = source.text.lines().filter(|line| line.contains("#include")).count();
            assert_eq!(includes(source).count(), lines, "{}: an #include in another form", source.file);
            for name in includes(source) {
                let known = HEADERS.iter().any(|header| header.file == name);
                assert!(known || name == "emulator.h", "{} includes {name}", source.file);
            }
        }
    }

    #[test]
    fn indirect_headers_are_found() {
        let dropout = SOURCES.iter().find(|source| source.file == "dropout.cu").expect("a source");
        let files: Vec<&str> = with_headers(dropout).iter().map(|item| item.file).collect();
        assert!(files.starts_with(&["dropout.cu"]));
        assert!(["chance.cuh", "philox.cuh", "compat.cuh"].iter().all(|file| files.contains(file)));
        assert!(!files.contains(&"adam.cuh"));
    }
}
