//! Self-attention.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{Attending, Attention, AttentionBackward, DType, Dropped, Heads, Operation, TensorType, TypeError};

use super::dropout::chance;
use super::sizes::{BLOCK, blocks, by_dtype, pointer, size};

/// The head dimensions that kernels are compiled for; others are padded to the next.
const PADDED_HEADS: [usize; 5] = [32, 64, 96, 128, 256];
/// Queries or keys of all heads that one block of `attention_delta` takes: eight lanes share one.
const DELTA_ROWS: usize = BLOCK as usize / 8;
/// Blocks of a group of heads: about what a large card runs at once, twice. Keys and values of as many heads are some
/// 16 MiB in 16 bits at 64 channels, which stays in its cache.
const GROUP_BLOCKS: usize = 512;

/// Of a kernel for each padded head dimension, for f32, bf16 and f16.
type Names = [[&'static str; 3]; PADDED_HEADS.len()];

/// The names of a kernel for each padded head dimension, for f32, bf16 and f16.
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

/// What a block works on, as the kernels say it.
#[derive(Clone, Copy, Debug)]
struct Tiles {
    /// Rows of the tile that it keeps; others pass.
    kept: usize,
    threads: u32,
    /// Blocks that share a tile, each with some of the results' columns.
    parts: u32,
    shared_bytes: usize,
}

/// Queries are kept, keys and values pass.
fn forward_tiles(dtype: DType, head: usize) -> Tiles {
    if dtype == DType::F32 {
        let (kept, passing) = if head <= 128 { (64, 64) } else { (32, 32) };
        let shared_bytes = 4 * ((kept + passing) * f32_row(head) + kept * f32_row(passing));
        return Tiles { kept, threads: BLOCK, parts: 1, shared_bytes };
    }
    let (kept, passing) = match head {
        ..=96 => (128, 64),
        97..=128 => (128, 32),
        _ => (64, 32),
    };
    Tiles { kept, threads: 128, parts: 1, shared_bytes: 2 * (kept + 4 * passing) * head }
}

/// Queries and dout are kept, keys and values pass.
fn query_gradient_tiles(dtype: DType, head: usize) -> Tiles {
    if dtype == DType::F32 {
        return f32_backward_tiles(head, 1);
    }
    let (kept, passing) = if head <= 128 { (128, 32) } else { (64, 16) };
    let threads = if head == 128 { 256 } else { 128 };
    Tiles { kept, threads, parts: 1, shared_bytes: 4 * (kept + 2 * passing) * head }
}

/// Keys and values are kept, queries and dout pass, with two numbers for each query.
fn key_gradient_tiles(dtype: DType, head: usize) -> Tiles {
    if dtype == DType::F32 {
        return f32_backward_tiles(head, 2);
    }
    let (kept, passing) = if head <= 128 { (128, 32) } else { (64, 16) };
    let threads = if head == 96 || head == 128 { 256 } else { 128 };
    let shared_bytes = 4 * (kept + 2 * passing) * head + 16 * passing;
    Tiles { kept, threads, parts: if head <= 128 { 1 } else { 2 }, shared_bytes }
}

/// With as many tiles of scores.
fn f32_backward_tiles(head: usize, scores: usize) -> Tiles {
    let (kept, passing) = match head {
        ..=64 => (64, 32),
        65..=128 => (32, 32),
        _ => (16, 16),
    };
    let shared_bytes = 4 * (2 * (kept + passing) * f32_row(head) + scores * kept * f32_row(passing));
    Tiles { kept, threads: BLOCK, parts: 1, shared_bytes }
}

/// Elements from one row of a tile to the next.
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
    let sizes = Sizes::new(op.name(), &op.attending, &qkv.ty)?.with_others(inputs, 1);
    let arguments = [out, lse, qkv].map(pointer).to_vec();
    let names = [names!("attention_forward"), names!("attention_forward_masked")];
    sizes.launch(names, forward_tiles, sizes.heads.queries, arguments, launcher)
}

/// The workspace takes one number for each query and head.
pub(super) fn backward(
    op: &AttentionBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    (delta, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [dout, qkv, out, lse] = [0, 1, 2, 3].map(|index| &inputs[index]);
    let sizes = Sizes::new(op.name(), &op.attending, &qkv.ty)?.with_others(inputs, 4);
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

/// How far a query sees, as kernels say it: so many positions after its own, and so many up to it.
pub(super) fn seen(attending: &Attending, sequence: usize) -> [usize; 2] {
    let ahead = if attending.causal { 0 } else { sequence };
    [ahead, attending.window.map_or(sequence, |window| window.min(sequence))]
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    dtype: DType,
    attending: Attending,
    heads: Heads,
    /// Of the padded head dimension in `PADDED_HEADS`.
    padded: usize,
    /// Where the starts of documents lie, if they are told apart.
    starts: Option<u64>,
    /// And what is dropped with seeds that lie there, if anything is.
    dropped: Option<(Dropped, u64)>,
}

impl Sizes {
    /// # Errors
    /// Heads wider than any kernel takes.
    fn new(operation: &'static str, attending: &Attending, qkv: &TensorType) -> Result<Sizes, DeviceError> {
        let heads = attending.heads(operation, qkv)?;
        let Some(padded) = PADDED_HEADS.iter().position(|padded| heads.head <= *padded) else {
            let (most, head) = (PADDED_HEADS[PADDED_HEADS.len() - 1], heads.head);
            let problem = format!("on a CUDA device a head has at most {most} channels, not {head}");
            return Err(TypeError { operation, problem }.into());
        };
        let attending = *attending;
        Ok(Sizes { dtype: qkv.dtype, attending, heads, padded, starts: None, dropped: None })
    }

    /// With what lies behind so many inputs.
    fn with_others(self, inputs: &[Operand], before: usize) -> Sizes {
        let [starts, seeds] = self.attending.places(before).map(|place| Some(inputs[place?].address));
        Sizes { starts, dropped: self.attending.dropped.zip(seeds), ..self }
    }

    /// Enqueues a kernel whose blocks take tiles of so many heads: the first, or the second for documents that are told apart and
    /// weights that are dropped. Its last parameter is the sizes.
    fn launch(
        &self,
        [plain, masked]: [Names; 2],
        tiles: fn(DType, usize) -> Tiles,
        heads: usize,
        mut arguments: Vec<Argument>,
        launcher: &mut Launcher,
    ) -> Result<(), DeviceError> {
        let tiles = tiles(self.dtype, PADDED_HEADS[self.padded]);
        let head_blocks = self.heads.sequence.div_ceil(tiles.kept);
        let batch_heads = self.heads.batch * heads;
        let mut words = self.words((GROUP_BLOCKS / head_blocks).clamp(1, batch_heads))?;
        let names = if self.starts.is_some() || self.dropped.is_some() {
            words.extend(self.masks());
            masked
        } else {
            plain
        };
        arguments.push(Argument::Words(words));
        launcher.kernel(
            by_dtype(self.dtype, names[self.padded])?,
            [size(batch_heads * head_blocks)?, tiles.parts, 1],
            tiles.threads,
            tiles.shared_bytes as u32,
            &arguments,
        )
    }

    /// What `MaskedSizes` of `attention_blocks.cuh` has more.
    fn masks(&self) -> impl Iterator<Item = u64> {
        let factor = self.dropped.map_or(1.0, |(dropped, _)| dropped.factor());
        let [seeds, numbers] = chance(self.dropped);
        [self.starts.unwrap_or(0), seeds, numbers, u64::from(factor.to_bits())].into_iter()
    }

    /// `AttentionSizes` of `attention_blocks.cuh`, with the heads of a group.
    fn words(&self, group: usize) -> Result<Vec<u64>, DeviceError> {
        let Heads { batch, sequence, queries, keys, head } = self.heads;
        let [ahead, window] = seen(&self.attending, sequence);
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
        // Compute capability 8.6, 8.9 and 12.0 give a block the least.
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
    fn sizes_are_laid_out_as_the_kernels_read_them() {
        let attending = Attending { kv_heads: 2, window: Some(5), cap: Some(30.0), ..Attending::causal(6) };
        let qkv = TensorType::new(DType::BF16, &[2, 7, (6 + 2 * 2) * 20]);
        let sizes = Sizes::new("attention", &attending, &qkv).unwrap();
        let words = sizes.words(5).unwrap();
        let ints: Vec<u64> = words.iter().flat_map(|word| [word & 0xffff_ffff, word >> 32]).collect();
        assert_eq!(ints[..10], [2, 6, 3, 7, 20, 120, 200, 5, 0, 5]);
        let floats = [ints[10], ints[11], ints[12]].map(|bits| f32::from_bits(bits as u32));
        assert!((floats[0] - 0.223_606_8).abs() < 1e-7, "{floats:?}");
        assert!((floats[1] - 0.322_596_4).abs() < 1e-7, "{floats:?}");
        assert!((floats[2] - 30.0 / 0.223_606_8).abs() < 1e-4, "{floats:?}");

        let whole = sizes.masks().collect::<Vec<_>>();
        assert_eq!(whole, [0, 0, 65536 << 32, u64::from(1.0_f32.to_bits())]);
        let dropped = Some((Dropped { site: 3, kept: 32768 }, 512));
        let masks = Sizes { starts: Some(256), dropped, ..sizes }.masks().collect::<Vec<_>>();
        assert_eq!(masks, [256, 512, 3 | 32768 << 32, u64::from(2.0_f32.to_bits())]);
    }

    #[test]
    fn wider_heads_than_kernels_take_are_an_error_that_says_so() {
        let qkv = TensorType::f32(&[1, 4, 3 * 2 * 257]);
        let error = Sizes::new("attention", &Attending::causal(2), &qkv).unwrap_err();
        let expected = "attention: on a CUDA device a head has at most 256 channels, not 257";
        assert_eq!(error.to_string(), expected);
    }
}
