//! Self-attention.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{
    Attention, AttentionBackward, AttentionConfig, DType, DropoutMask, Heads, Operation, TensorType,
    TypeError,
};

use super::dropout::chance;
use super::sizes::{BLOCK, blocks, by_dtype, pointer, size};

/// The head dimensions that kernels are compiled for; others are padded to the next.
const PADDED_HEADS: [usize; 5] = [32, 64, 96, 128, 256];
/// Rows (one query of one head) per block of `attention_delta`: eight lanes per row.
const DELTA_ROWS: usize = BLOCK as usize / 8;
/// Blocks per group of heads: about twice the number that a large card runs at once. The keys and values of these heads
/// take about 16 MiB in 16 bits with 64 channels, and stay in its cache.
const GROUP_BLOCKS: usize = 512;

/// Kernel names for each padded head dimension, for f32, bf16 and f16.
type Names = [[&'static str; 3]; PADDED_HEADS.len()];

/// Builds `Names` from a kernel's base name.
macro_rules! names {
    ($kernel:literal) => {
        [
            [concat!($kernel, "_f32_32"), concat!($kernel, "_bf16_32"), concat!($kernel, "_f16_32")],
            [concat!($kernel, "_f32_64"), concat!($kernel, "_bf16_64"), concat!($kernel, "_f16_64")],
            [concat!($kernel, "_f32_96"), concat!($kernel, "_bf16_96"), concat!($kernel, "_f16_96")],
            [concat!($kernel, "_f32_128"), concat!($kernel, "_bf16_128"), concat!($kernel, "_f16_128")],
            [concat!($kernel, "_f32_256"), concat!($kernel, "_bf16_256"), concat!($kernel, "_f16_256")],
        ]
    };
}

/// A block's tile configuration; must match the kernels.
#[derive(Clone, Copy, Debug)]
struct Tiles {
    /// Rows of the resident tile; the other operands are streamed.
    resident: usize,
    threads: u32,
    /// Blocks per tile, each computing part of the result's columns.
    blocks_per_tile: u32,
    shared_bytes: usize,
}

/// Queries are resident, keys and values streamed.
fn forward_tiles(dtype: DType, head: usize) -> Tiles {
    if dtype == DType::F32 {
        let (resident, streamed) = if head <= 128 { (64, 64) } else { (32, 32) };
        let shared_bytes = 4 * ((resident + streamed) * f32_row(head) + resident * f32_row(streamed));
        return Tiles { resident, threads: BLOCK, blocks_per_tile: 1, shared_bytes };
    }
    let (resident, streamed) = match head {
        ..=96 => (128, 64),
        97..=128 => (128, 32),
        _ => (64, 32),
    };
    Tiles { resident, threads: 128, blocks_per_tile: 1, shared_bytes: 2 * (resident + 4 * streamed) * head }
}

/// Queries and dout are resident, keys and values streamed.
fn query_gradient_tiles(dtype: DType, head: usize) -> Tiles {
    if dtype == DType::F32 {
        return f32_backward_tiles(head, 1);
    }
    let (resident, streamed) = if head <= 128 { (128, 32) } else { (64, 16) };
    let threads = if head == 128 { 256 } else { 128 };
    Tiles { resident, threads, blocks_per_tile: 1, shared_bytes: 4 * (resident + 2 * streamed) * head }
}

/// Keys and values are resident, queries and dout streamed, with two numbers per query.
fn key_gradient_tiles(dtype: DType, head: usize) -> Tiles {
    if dtype == DType::F32 {
        return f32_backward_tiles(head, 2);
    }
    let (resident, streamed) = if head <= 128 { (128, 32) } else { (64, 16) };
    let threads = if head == 96 || head == 128 { 256 } else { 128 };
    let shared_bytes = 4 * (resident + 2 * streamed) * head + 16 * streamed;
    Tiles { resident, threads, blocks_per_tile: if head <= 128 { 1 } else { 2 }, shared_bytes }
}

/// `scores` is the number of score tiles.
fn f32_backward_tiles(head: usize, scores: usize) -> Tiles {
    let (resident, streamed) = match head {
        ..=64 => (64, 32),
        65..=128 => (32, 32),
        _ => (16, 16),
    };
    let shared_bytes =
        4 * (2 * (resident + streamed) * f32_row(head) + scores * resident * f32_row(streamed));
    Tiles { resident, threads: BLOCK, blocks_per_tile: 1, shared_bytes }
}

/// Row stride of a tile in elements.
fn f32_row(columns: usize) -> usize {
    columns + 4
}

pub(super) fn forward(
    op: &Attention,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [qkv, out, lse] = [&inputs[0], &outputs[0], &outputs[1]];
    let sizes = Sizes::new(op.name(), &op.attending, &qkv.ty)?.with_mask_inputs(inputs, 1);
    let arguments = [out, lse, qkv].map(pointer).to_vec();
    let names = [names!("attention_forward"), names!("attention_forward_masked")];
    sizes.launch(names, forward_tiles, sizes.heads.queries, arguments, launcher)
}

/// The workspace holds one number per query and head.
pub(super) fn backward(
    op: &AttentionBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    (delta, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [dout, qkv, out, lse] = [0, 1, 2, 3].map(|index| &inputs[index]);
    let sizes = Sizes::new(op.name(), &op.attending, &qkv.ty)?.with_mask_inputs(inputs, 4);
    let delta = Argument::Pointer(delta);
    launcher.kernel(
        by_dtype(sizes.dtype, ["attention_delta_f32", "attention_delta_bf16", "attention_delta_f16"])?,
        [blocks(sizes.heads.batch * sizes.heads.queries * sizes.heads.sequence, DELTA_ROWS)?, 1, 1],
        BLOCK,
        0,
        &[delta.clone(), pointer(dout), pointer(out), Argument::Words(sizes.words(1)?)],
    )?;
    let mut arguments = [&outputs[0], dout, qkv, lse].map(pointer).to_vec();
    arguments.push(delta);
    let keys = sizes.heads.keys;
    let names = [names!("attention_key_gradients"), names!("attention_key_gradients_masked")];
    sizes.launch(names, key_gradient_tiles, keys, arguments.clone(), launcher)?;
    let names = [names!("attention_query_gradients"), names!("attention_query_gradients_masked")];
    sizes.launch(names, query_gradient_tiles, sizes.heads.queries, arguments, launcher)
}

/// The attention range of a query, as kernel arguments: positions after its own, and positions up to its own.
pub(super) fn attention_range(attending: &AttentionConfig, sequence: usize) -> [usize; 2] {
    let ahead = if attending.causal { 0 } else { sequence };
    [ahead, attending.window.map_or(sequence, |window| window.min(sequence))]
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    dtype: DType,
    attending: AttentionConfig,
    heads: Heads,
    /// Index of the padded head dimension in `PADDED_HEADS`.
    padded: usize,
    /// Address of document starts, if documents are masked.
    starts: Option<u64>,
    /// Dropout and the address of its seeds, if any.
    dropped: Option<(DropoutMask, u64)>,
}

impl Sizes {
    /// # Errors
    /// Heads are wider than all kernels support.
    fn new(
        operation: &'static str,
        attending: &AttentionConfig,
        qkv: &TensorType,
    ) -> Result<Sizes, DeviceError> {
        let heads = attending.heads(operation, qkv)?;
        let Some(padded) = PADDED_HEADS.iter().position(|padded| heads.head <= *padded) else {
            let (most, head) = (PADDED_HEADS[PADDED_HEADS.len() - 1], heads.head);
            let problem = format!("CUDA devices support heads of at most {most} channels, not {head}");
            return Err(TypeError { operation, problem }.into());
        };
        let attending = *attending;
        Ok(Sizes { dtype: qkv.dtype, attending, heads, padded, starts: None, dropped: None })
    }

    /// Adds the mask operands, which follow the first `before` inputs.
    fn with_mask_inputs(self, inputs: &[Operand], before: usize) -> Sizes {
        let [starts, seeds] = self.attending.places(before).map(|place| Some(inputs[place?].address));
        Sizes { starts, dropped: self.attending.dropped.zip(seeds), ..self }
    }

    /// Enqueues a kernel over the tiles of `heads` heads: the masked one for document masks and dropout, otherwise the
    /// plain one. Its last parameter is the sizes.
    fn launch(
        &self,
        [plain, masked]: [Names; 2],
        tiles: fn(DType, usize) -> Tiles,
        heads: usize,
        mut arguments: Vec<Argument>,
        launcher: &mut Launcher,
    ) -> Result<(), DeviceError> {
        let tiles = tiles(self.dtype, PADDED_HEADS[self.padded]);
        let head_blocks = self.heads.sequence.div_ceil(tiles.resident);
        let batch_heads = self.heads.batch * heads;
        let mut words = self.words((GROUP_BLOCKS / head_blocks).clamp(1, batch_heads))?;
        let names = if self.starts.is_some() || self.dropped.is_some() {
            words.extend(self.mask_words());
            masked
        } else {
            plain
        };
        arguments.push(Argument::Words(words));
        launcher.kernel(
            by_dtype(self.dtype, names[self.padded])?,
            [size(batch_heads * head_blocks)?, tiles.blocks_per_tile, 1],
            tiles.threads,
            tiles.shared_bytes as u32,
            &arguments,
        )
    }

    /// The additional fields of `MaskedSizes` in `attention_blocks.cuh`.
    fn mask_words(&self) -> impl Iterator<Item = u64> {
        let factor = self.dropped.map_or(1.0, |(dropped, _)| dropped.factor());
        let [seeds, numbers] = chance(self.dropped);
        [self.starts.unwrap_or(0), seeds, numbers, u64::from(factor.to_bits())].into_iter()
    }

    /// `AttentionSizes` of `attention_blocks.cuh`; `group` is the number of heads per group.
    fn words(&self, group: usize) -> Result<Vec<u64>, DeviceError> {
        let Heads { batch, sequence, queries, keys, head } = self.heads;
        let [ahead, window] = attention_range(&self.attending, sequence);
        let scale = self.attending.scale.map_or_else(|| 1.0 / (head as f64).sqrt(), f64::from);
        let cap = self.attending.cap.map_or(0.0, |cap| f64::from(cap) / scale);
        let fields = [
            size(batch)?,
            size(queries)?,
            size(queries / keys)?,
            size(sequence)?,
            size(head)?,
            size(self.heads.channels())?,
            size((queries + 2 * keys) * head)?,
            size(group)?,
            size(ahead)?,
            size(window)?,
            (scale as f32).to_bits(),
            ((scale * std::f64::consts::LOG2_E) as f32).to_bits(),
            (cap as f32).to_bits(),
            0,
        ];
        let words = fields.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32);
        Ok(words.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_the_shared_memory_of_every_card() {
        // The smallest limit, of compute capabilities 8.6, 8.9 and 12.0.
        const LEAST: usize = 99 << 10;
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for head in PADDED_HEADS {
                for tiles in [forward_tiles, key_gradient_tiles, query_gradient_tiles] {
                    let tiles = tiles(dtype, head);
                    assert!(tiles.shared_bytes <= LEAST, "{dtype} {head}: {tiles:?}");
                }
            }
        }
    }

    #[test]
    fn sizes_have_the_layout_of_the_kernel_struct() {
        let attending =
            AttentionConfig { kv_heads: 2, window: Some(5), cap: Some(30.0), ..AttentionConfig::causal(6) };
        let qkv = TensorType::new(DType::BF16, &[2, 7, (6 + 2 * 2) * 20]);
        let sizes = Sizes::new("attention", &attending, &qkv).unwrap();
        let words = sizes.words(5).unwrap();
        let ints: Vec<u64> = words.iter().flat_map(|word| [word & 0xffff_ffff, word >> 32]).collect();
        assert_eq!(ints[..10], [2, 6, 3, 7, 20, 120, 200, 5, 0, 5]);
        let floats = [ints[10], ints[11], ints[12]].map(|bits| f32::from_bits(bits as u32));
        assert!((floats[0] - 0.223_606_8).abs() < 1e-7, "{floats:?}");
        assert!((floats[1] - 0.322_596_4).abs() < 1e-7, "{floats:?}");
        assert!((floats[2] - 30.0 / 0.223_606_8).abs() < 1e-4, "{floats:?}");

        let whole = sizes.mask_words().collect::<Vec<_>>();
        assert_eq!(whole, [0, 0, 65536 << 32, u64::from(1.0_f32.to_bits())]);
        let dropped = Some((DropoutMask { site: 3, kept: 32768 }, 512));
        let masked = Sizes { starts: Some(256), dropped, ..sizes }.mask_words().collect::<Vec<_>>();
        assert_eq!(masked, [256, 512, 3 | 32768 << 32, u64::from(2.0_f32.to_bits())]);
    }

    #[test]
    fn heads_wider_than_the_kernels_are_rejected() {
        let qkv = TensorType::f32(&[1, 4, 3 * 2 * 257]);
        let error = Sizes::new("attention", &AttentionConfig::causal(2), &qkv).unwrap_err();
        let expected = "attention: CUDA devices support heads of at most 256 channels, not 257";
        assert_eq!(error.to_string(), expected);
    }
}
