//! Weights that a library stored in fewer bits. They are dequantized when they are read, in small pieces.
//!
//! Forms, for a layer `l`: bitsandbytes' nf4 and fp4 (`l.weight.quant_state.bitsandbytes__nf4` and others), with or
//! without quantized scales, and int8 (`l.SCB`); fp8 or int8 numbers with a scale for each block of 128 x 128
//! (`l.weight_scale_inv`), for each row or for the tensor (`l.weight_scale`).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::path::Path;

use safetensors::Dtype;
use serde::Deserialize;

use super::WeightsError;
use super::file::TensorFile;
use super::number;
use base::brief;

/// Elements to dequantize at a time; few, since resident memory is measured as the run's.
const AT_ONCE: usize = 4 << 10;

/// Elements of a quantization block of 4-bit numbers; fewer would need more scales than fit in a piece.
const BLOCKS: RangeInclusive<usize> = 16..=1 << 20;

/// Rows and columns that share a scale of fp8 numbers.
const SCALED_BLOCK: usize = 128;

/// The largest int8 number stands for a row's scale. The factor is the library's.
const PER_INT8: f32 = 0.007_874_016;

/// Tensors beside a weight that concern activations, or describe the only supported layout.
const IGNORED: [&str; 6] =
    ["weight_format", "input_scale", "output_scale", "activation_scale", "k_scale", "v_scale"];

/// Forms that are not read, by the end of a tensor's name in place of `weight`, and the other tensor that tells them apart.
const PACKED: [(&str, &str, &str); 6] = [
    ("qweight", "g_idx", "GPTQ"),
    ("qweight", "qzeros", "AWQ"),
    ("weight_packed", "weight_scale", "compressed-tensors (packed)"),
    ("W_q", "W_q", "HQQ"),
    ("weight_blocks", "weight_scales", "MXFP4"),
    ("codebooks", "codes", "AQLM"),
];

/// The tensors of a checkpoint, by name without prefix: the index of the file, and the full name.
pub(super) type Tensors = BTreeMap<String, (usize, String)>;

/// A quantized weight.
#[derive(Debug)]
pub(super) struct Quantized {
    /// `nf4`, for messages.
    form: String,
    pub(super) dims: Vec<usize>,
    /// Whether the library quantizes layers of transposed weights in the usual layout.
    pub(super) is_untransposed: bool,
    /// The names of the tensors beside it, without prefix.
    pub(super) beside: Vec<String>,
    numbers: (usize, String),
    scheme: Scheme,
}

#[derive(Debug)]
enum Scheme {
    FourBits(FourBits),
    Scaled(Scaled),
}

/// Blocks of 4-bit codes, each with a scale.
#[derive(Debug)]
struct FourBits {
    /// The number of each code.
    map: Vec<f32>,
    block: usize,
    scales: (usize, String),
    nested: Option<NestedScales>,
    /// The type that dequantized numbers are rounded to.
    dtype: Dtype,
}

/// Scales that are codes in blocks, each with a scale, plus an offset.
#[derive(Debug)]
struct NestedScales {
    map: Vec<f32>,
    block: usize,
    scales: (usize, String),
    offset: f32,
}

/// Numbers that share a scale with those of their block.
#[derive(Debug)]
struct Scaled {
    scales: (usize, String),
    /// Rows and columns of a block, and blocks per row of blocks.
    block: [usize; 2],
    blocks_per_row: usize,
    columns: usize,
    factor: f32,
}

/// The description that bitsandbytes stores, in JSON.
#[derive(Deserialize)]
struct QuantState {
    blocksize: usize,
    dtype: String,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f64>,
}

/// A problem of a tensor.
type Problem = String;

/// Looks up tensors.
struct Finder<'a> {
    files: &'a [TensorFile],
    tensors: &'a Tensors,
    weight: &'a str,
    /// The name without `weight`, with the dot before it.
    layer: &'a str,
}

impl fmt::Display for Quantized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.form, self.dims)
    }
}

impl Quantized {
    /// The form of a weight; `None` if it is stored as it is.
    ///
    /// # Errors
    /// A tensor beside it is missing or does not suit it, or the form is not read.
    pub(super) fn of(
        weight: &str,
        tensors: &Tensors,
        files: &[TensorFile],
        path: &Path,
    ) -> Result<Option<Quantized>, WeightsError> {
        let layer = weight.strip_suffix("weight").unwrap_or(weight);
        let finder = Finder { files, tensors, weight, layer };
        let Some(numbers) = tensors.get(weight) else {
            return match packed(tensors) {
                Some((tensor, format)) => Err(WeightsError::Packed { path: path.to_owned(), tensor, format }),
                None => Ok(None),
            };
        };
        let found = finder.form(numbers).map_err(|problem| WeightsError::Quantized {
            path: path.to_owned(),
            tensor: numbers.1.clone(),
            problem,
        })?;
        Ok(found.map(|found| {
            let ignored = IGNORED.map(|end| format!("{layer}{end}"));
            let ignored = ignored.into_iter().filter(|name| tensors.contains_key(name));
            Quantized { beside: found.beside.into_iter().chain(ignored).collect(), ..found }
        }))
    }

    /// Reads elements from index `first` on, as f32.
    ///
    /// # Errors
    /// A file has become unreadable or shorter.
    pub(super) fn read(
        &self,
        files: &[TensorFile],
        first: usize,
        numbers: &mut [[u8; 4]],
    ) -> Result<(), WeightsError> {
        for (index, numbers) in numbers.chunks_mut(AT_ONCE).enumerate() {
            let first = first + index * AT_ONCE;
            match &self.scheme {
                Scheme::FourBits(scheme) => scheme.read(files, &self.numbers, first, numbers)?,
                Scheme::Scaled(scheme) => scheme.read(files, &self.numbers, first, numbers)?,
            }
        }
        Ok(())
    }
}

impl FourBits {
    fn read(
        &self,
        files: &[TensorFile],
        (file, name): &(usize, String),
        first: usize,
        numbers: &mut [[u8; 4]],
    ) -> Result<(), WeightsError> {
        let end = first + numbers.len();
        let mut codes = [0; AT_ONCE / 2 + 1];
        let codes = &mut codes[..end.div_ceil(2) - first / 2];
        files[*file].read_bytes(name, first / 2, codes)?;
        let blocks = first / self.block..(end - 1) / self.block + 1;
        let scales = self.scales(files, blocks.clone())?;
        for (element, number) in (first..end).zip(numbers) {
            let codes = codes[element / 2 - first / 2];
            let code = if element % 2 == 0 { codes >> 4 } else { codes & 0xF };
            let found = self.map[usize::from(code)] * scales[element / self.block - blocks.start];
            *number = number::rounded(self.dtype, found).to_ne_bytes();
        }
        Ok(())
    }

    fn scales(&self, files: &[TensorFile], blocks: Range<usize>) -> Result<Vec<f32>, WeightsError> {
        let Some(nested) = &self.nested else { return floats(files, &self.scales, blocks) };
        let mut codes = vec![0; blocks.len()];
        files[self.scales.0].read_bytes(&self.scales.1, blocks.start, &mut codes)?;
        let outer = blocks.start / nested.block..(blocks.end - 1) / nested.block + 1;
        let scales = floats(files, &nested.scales, outer.clone())?;
        let scale = |(block, code): (usize, u8)| {
            nested.map[usize::from(code)] * scales[block / nested.block - outer.start] + nested.offset
        };
        Ok(blocks.zip(codes).map(scale).collect())
    }
}

impl Scaled {
    fn read(
        &self,
        files: &[TensorFile],
        (file, name): &(usize, String),
        first: usize,
        numbers: &mut [[u8; 4]],
    ) -> Result<(), WeightsError> {
        files[*file].read(name, first, numbers)?;
        let [rows, columns] = self.block;
        let row_of_blocks = |element: usize| element / self.columns / rows;
        let begin = row_of_blocks(first) * self.blocks_per_row;
        let end = (row_of_blocks(first + numbers.len() - 1) + 1) * self.blocks_per_row;
        let scales = floats(files, &self.scales, begin..end)?;
        for (element, number) in (first..).zip(numbers) {
            let block = row_of_blocks(element) * self.blocks_per_row + element % self.columns / columns;
            let scaled = f32::from_ne_bytes(*number) * scales[block - begin];
            *number = (scaled * self.factor).to_ne_bytes();
        }
        Ok(())
    }
}

/// A tensor in a form that is not read.
fn packed(tensors: &Tensors) -> Option<(String, &'static str)> {
    PACKED.iter().find_map(|(end, other, format)| {
        let is_packed = |name: &String| {
            name.strip_suffix(end).is_some_and(|layer| tensors.contains_key(&format!("{layer}{other}")))
        };
        let (_, (_, name)) = tensors.iter().find(|(name, _)| is_packed(name))?;
        Some((name.clone(), *format))
    })
}

/// Reads a range of a floating-point tensor.
fn floats(
    files: &[TensorFile],
    (file, name): &(usize, String),
    range: Range<usize>,
) -> Result<Vec<f32>, WeightsError> {
    let mut numbers = vec![[0; 4]; range.len()];
    files[*file].read(name, range.start, &mut numbers)?;
    Ok(numbers.into_iter().map(f32::from_ne_bytes).collect())
}

impl Finder<'_> {
    fn form(&self, numbers: &(usize, String)) -> Result<Option<Quantized>, Problem> {
        let state = |kind: &str| format!("{}.quant_state.bitsandbytes__{kind}", self.weight);
        let has = |name: &String| self.tensors.contains_key(name);
        if let Some(kind) = ["nf4", "fp4"].into_iter().find(|kind| has(&state(kind))) {
            return self.four_bits(kind, &state(kind), numbers).map(Some);
        }
        let row_scales = [format!("{}SCB", self.layer), format!("{}.SCB", self.weight)];
        let scales = [format!("{}_scale_inv", self.weight), format!("{}_scale", self.weight)];
        if let Some(name) = row_scales.into_iter().find(has) {
            return self.scaled(name, numbers, PER_INT8).map(Some);
        }
        match scales.into_iter().find(has) {
            Some(name) => self.scaled(name, numbers, 1.0).map(Some),
            None => Ok(None),
        }
    }

    fn four_bits(
        &self,
        kind: &'static str,
        state: &str,
        numbers: &(usize, String),
    ) -> Result<Quantized, Problem> {
        let unreadable = |error: WeightsError| error.to_string();
        let beside = |end: &str| format!("{}.{end}", self.weight);
        let mut names = vec![state.to_owned()];
        let (file, name) = &self.tensors[state];
        let mut text = vec![0; self.files[*file].bytes(name).min(1 << 16)];
        self.files[*file].read_bytes(name, 0, &mut text).map_err(unreadable)?;
        let state: QuantState =
            serde_json::from_slice(&text).map_err(|error| format!("its `{}`: {error}", brief::line(name)))?;
        let dtype = match state.dtype.as_str() {
            "float32" => Dtype::F32,
            "bfloat16" => Dtype::BF16,
            "float16" => Dtype::F16,
            other => {
                return Err(format!("it has dtype {}, not float32, bfloat16 or float16", brief::line(other)));
            }
        };
        let elements = state.shape.iter().try_fold(1usize, |all, dim| all.checked_mul(*dim));
        let elements = elements.filter(|elements| *elements > 0).ok_or("its shape is invalid")?;
        let stored = self.files[numbers.0].bytes(&numbers.1);
        if stored < elements.div_ceil(2) {
            return Err(format!("it has {stored} bytes for {elements} numbers of 4 bits"));
        }
        let check = |block: usize| match BLOCKS.contains(&block) {
            true => Ok(block),
            false => {
                Err(format!("it has blocks of {block} numbers, not {} to {}", BLOCKS.start(), BLOCKS.end()))
            }
        };
        let blocks = elements.div_ceil(check(state.blocksize)?);
        let mut find = |end: &str, count: usize, is_float: bool| {
            names.push(beside(end));
            self.tensor(&beside(end), count, is_float)
        };
        let map = |tensor: &(usize, String), count| floats(self.files, tensor, 0..count).map_err(unreadable);
        let nested = match state.nested_blocksize {
            None => None,
            Some(block) => Some(NestedScales {
                map: map(&find("nested_quant_map", 256, true)?, 256)?,
                block: check(block)?,
                scales: find("nested_absmax", blocks.div_ceil(block), true)?,
                offset: state.nested_offset.unwrap_or_default() as f32,
            }),
        };
        let scales = find("absmax", blocks, nested.is_none())?;
        let map = map(&find("quant_map", 16, true)?, 16)?;
        let scheme = Scheme::FourBits(FourBits { map, block: state.blocksize, scales, nested, dtype });
        let (dims, numbers) = (state.shape, numbers.clone());
        Ok(Quantized { form: kind.to_owned(), dims, is_untransposed: true, beside: names, numbers, scheme })
    }

    fn scaled(&self, scales: String, numbers: &(usize, String), factor: f32) -> Result<Quantized, Problem> {
        let weight = self.files[numbers.0].tensor(&numbers.1);
        let [rows, columns] = weight.dims[..] else {
            return Err(format!("it is {weight} with scales; a matrix is needed"));
        };
        if !(weight.is_float() || weight.dtype == Dtype::I8) || rows * columns == 0 {
            return Err(format!("it is {weight} with scales; f8 or i8 numbers are needed"));
        }
        let (file, name) = &self.tensors[&scales];
        let found = self.files[*file].tensor(name);
        let blocks = [rows.div_ceil(SCALED_BLOCK), columns.div_ceil(SCALED_BLOCK)];
        let (block, blocks_per_row) = match found.dims[..] {
            [] | [1] | [1, 1] => ([rows, columns], 1),
            [count] if count == rows => ([1, columns], 1),
            [count, 1] if count == rows => ([1, columns], 1),
            _ if found.dims == blocks => ([SCALED_BLOCK; 2], blocks[1]),
            _ => {
                let name = brief::line(name);
                let [high, wide] = blocks;
                return Err(format!(
                    "its `{name}` is {found}; it needs one scale, {rows} (one per row) or {high} x {wide} (one per block)"
                ));
            }
        };
        let count = found.dims.iter().product();
        let tensor = self.tensor(&scales, count, true)?;
        let form = match weight.dtype {
            Dtype::I8 => "int8".to_owned(),
            dtype => format!("{dtype:?}").to_lowercase(),
        };
        let is_untransposed = factor == PER_INT8;
        let scaled = Scaled { scales: tensor, block, blocks_per_row, columns, factor };
        let (beside, numbers, scheme) = (vec![scales], numbers.clone(), Scheme::Scaled(scaled));
        Ok(Quantized { form, dims: weight.dims, is_untransposed, beside, numbers, scheme })
    }

    /// A tensor with this number of elements, floating-point numbers or bytes.
    fn tensor(&self, name: &str, count: usize, is_float: bool) -> Result<(usize, String), Problem> {
        let needed = if is_float { "floating-point numbers" } else { "bytes" };
        let Some((file, full)) = self.tensors.get(name) else {
            return Err(format!("its `{}` is missing: {count} {needed}", brief::line(name)));
        };
        let found = self.files[*file].tensor(full);
        let has_type = if is_float { found.is_float() } else { found.dtype == Dtype::U8 };
        match has_type && found.dims.iter().product::<usize>() == count {
            true => Ok((*file, full.clone())),
            false => Err(format!("its `{}` is {found}; it needs {count} {needed}", brief::line(full))),
        }
    }
}
