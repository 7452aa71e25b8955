//! Token embedding, optionally scaled, optionally with learned positions.

use super::{
    Arithmetic, DType, Op, Operation, OutputRole, Processor, Shape, Sizes, Tape, TensorType, TypeError,
    WorkspaceLimits, expect_float, expect_inputs, expect_type,
};

/// `x[b,t,:] = scale * table[tokens[b,t],:] + positions[t,:]`
///
/// With `documents`, positions restart at the start of each document.
///
/// Inputs: tokens i32[B,T], table num[V,C]; with `positions` the position table num[P,C], P >= T; with `documents` the
/// start of each token's document in its sequence, i32[B,T]. Output: x num[B,T,C], summed in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// Factor of the token rows; positions are not scaled.
    pub scale: f32,
    pub positions: bool,
    /// Requires `positions`.
    pub documents: bool,
    /// The dtype of x.
    pub output: DType,
}

/// Gradients of the tables of [`Embedding`].
///
/// Inputs: tokens i32[B,T], dx num[B,T,C]; with `documents` the start of each token's document, i32[B,T]; then the
/// previous dtable num[V,C] and dpositions num[P,C], each if it is accumulated. Outputs: dtable num[V,C] and, with
/// `positions`, dpositions num[P,C]. A gradient that is not accumulated is overwritten completely: rows behind the
/// sequence are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingBackward {
    pub vocabulary: usize,
    pub scale: f32,
    /// The dtype of the gradients; they are summed in f32.
    pub gradients: DType,
    /// P, the rows of the position table, if there is one; at least T.
    pub positions: Option<usize>,
    pub documents: bool,
    pub accumulate_table: bool,
    /// Requires `positions`.
    pub accumulate_positions: bool,
}

impl EmbeddingBackward {
    /// Token occurrences, sorted by token id, per partial sum on a GPU.
    pub const TOKENS_PER_PARTIAL: usize = 32;

    /// The index of the first previous gradient among the inputs.
    fn previous(&self) -> usize {
        2 + usize::from(self.documents)
    }

    /// The two parts of the GPU workspace, in bytes: the indices of all tokens sorted by token id, 4 bytes each; then
    /// the larger of an equal buffer for sorting and the partial sums.
    pub fn workspace_parts(tokens: &TensorType, channels: usize) -> [u64; 2] {
        let order = tokens.bytes().next_multiple_of(256);
        let partials = tokens.elements().div_ceil(Self::TOKENS_PER_PARTIAL);
        [order, TensorType::f32(&[partials, channels]).bytes().max(order)]
    }
}

impl Operation for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2 + usize::from(self.positions) + usize::from(self.documents))?;
        let [batch, sequence] = matrix(self.name(), "tokens", &inputs[0])?;
        let [_, channels] = matrix(self.name(), "table", &inputs[1])?;
        expect_type(self.name(), "tokens", &inputs[0], TensorType::i32(&[batch, sequence]))?;
        let dtype = expect_float(self.name(), "table", &inputs[1])?;
        if let Some(positions) = inputs.get(2) {
            let [rows, _] = matrix(self.name(), "positions", positions)?;
            let expected = TensorType::new(dtype, &[rows.max(sequence), channels]);
            expect_type(self.name(), "positions", positions, expected)?;
        }
        if let Some(starts) = inputs.get(3) {
            expect_type(self.name(), "the document starts", starts, inputs[0])?;
        }
        Ok(vec![TensorType::new(self.output, &[batch, sequence, channels])])
    }

    /// The output starts the residual stream.
    fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        self.output = arithmetic.accumulators;
    }

    fn looks_up(&self, input: usize) -> bool {
        [1, 2].contains(&input)
    }

    /// Counts one table row per token, but at most the whole table.
    fn bytes(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        let [tokens, table] = [inputs[0], inputs[1]];
        let positions = inputs.get(2).map_or(0, |positions| first_rows(positions, &tokens).bytes());
        let starts = inputs.get(3).map_or(0, TensorType::bytes);
        tokens.bytes() + starts + touched_bytes(&tokens, &table) + positions + outputs[0].bytes()
    }

    fn backward(&self, tape: &mut dyn Tape) {
        if !tape.wants(1) {
            return;
        }
        let mut inputs = vec![tape.input(0), tape.output_gradient(0)];
        inputs.extend(self.documents.then(|| tape.input(3)));
        let table = tape.partial(1);
        let positions = if self.positions { tape.partial(2) } else { None };
        inputs.extend(table);
        inputs.extend(positions);
        let op = EmbeddingBackward {
            vocabulary: tape.input_type(1).shape.dims()[0],
            scale: self.scale,
            gradients: tape.parameter_gradients(),
            positions: self.positions.then(|| tape.input_type(2).shape.rows()),
            documents: self.documents,
            accumulate_table: table.is_some(),
            accumulate_positions: positions.is_some(),
        };
        let gradients = [1, 2].map(OutputRole::Gradient);
        tape.emit(Op::EmbeddingBackward(op), inputs, &gradients[..1 + usize::from(self.positions)]);
    }
}

impl Operation for EmbeddingBackward {
    fn name(&self) -> &'static str {
        "embedding-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let previous = usize::from(self.accumulate_table) + usize::from(self.accumulate_positions);
        expect_inputs(self.name(), inputs, self.previous() + previous)?;
        let [batch, sequence] = matrix(self.name(), "tokens", &inputs[0])?;
        let channels = inputs[1].shape.last();
        let dtype = expect_float(self.name(), "dx", &inputs[1])?;
        expect_type(self.name(), "dx", &inputs[1], TensorType::new(dtype, &[batch, sequence, channels]))?;
        let rows =
            [Some(self.vocabulary), self.positions.map(|rows| rows.max(sequence))].into_iter().flatten();
        let outputs: Vec<TensorType> =
            rows.map(|rows| TensorType::new(self.gradients, &[rows, channels])).collect();
        let accumulated = [self.accumulate_table, self.accumulate_positions];
        let expected = outputs.iter().zip(accumulated).filter(|(_, accumulate)| *accumulate);
        if self.documents {
            expect_type(self.name(), "the document starts", &inputs[2], inputs[0])?;
        }
        for (found, (wanted, _)) in inputs[self.previous()..].iter().zip(expected) {
            expect_type(self.name(), "a previous gradient", found, *wanted)?;
        }
        Ok(outputs)
    }

    /// On the CPU, the token indices sorted by token id, needed only if sums are rounded to 16 bits.
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        match limits.processor {
            Processor::Cpu if self.gradients == DType::F32 => 0,
            Processor::Cpu => inputs[0].bytes(),
            Processor::Cuda => Self::workspace_parts(&inputs[0], inputs[1].shape.last()).iter().sum(),
        }
    }

    /// An accumulated table is read and written only in the rows of the tokens; otherwise the whole table is written.
    fn bytes(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        let [tokens, dx, table] = [inputs[0], inputs[1], outputs[0]];
        let table = if self.accumulate_table { 2 * touched_bytes(&tokens, &table) } else { table.bytes() };
        let positions = outputs.get(1).map_or(0, |positions| match self.accumulate_positions {
            true => 2 * first_rows(positions, &tokens).bytes(),
            false => positions.bytes(),
        });
        let starts = if self.documents { tokens.bytes() } else { 0 };
        tokens.bytes() + starts + dx.bytes() + table + positions
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.vocabulary = sizes.outputs[0].shape.rows();
        self.positions = sizes.outputs.get(1).map(|positions| positions.shape.rows());
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        match (self.accumulate_table, self.accumulate_positions, self.documents) {
            (false, false, _) => &[],
            (true, false, false) => &[(0, 2)],
            (false, true, false) => &[(1, 2)],
            (true, true, false) => &[(0, 2), (1, 3)],
            (true, false, true) => &[(0, 3)],
            (false, true, true) => &[(1, 3)],
            (true, true, true) => &[(0, 3), (1, 4)],
        }
    }

    fn accumulating(&self) -> Option<Op> {
        Some(Op::EmbeddingBackward(EmbeddingBackward {
            accumulate_table: true,
            accumulate_positions: self.positions.is_some(),
            ..*self
        }))
    }

    fn accumulated(&self) -> &'static [usize] {
        if self.positions.is_some() { &[0, 1] } else { &[0] }
    }
}

/// Bytes of the table rows that tokens select, at most the whole table.
fn touched_bytes(tokens: &TensorType, table: &TensorType) -> u64 {
    let row = table.shape.last() as u64 * table.dtype.bytes();
    tokens.elements().min(table.shape.rows()) as u64 * row
}

/// The rows of a position table that a sequence reads.
fn first_rows(positions: &TensorType, tokens: &TensorType) -> TensorType {
    TensorType { shape: positions.shape.with_first(tokens.shape.last()), ..*positions }
}

fn matrix(operation: &'static str, operand: &str, found: &TensorType) -> Result<[usize; 2], TypeError> {
    let dims: &Shape = &found.shape;
    <[usize; 2]>::try_from(dims.dims())
        .map_err(|_| TypeError { operation, problem: format!("{operand} is {found}, not a matrix") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_only_selected_table_rows() {
        let (table, positions) = (TensorType::f32(&[256, 8]), TensorType::f32(&[4, 8]));
        let (tokens, x) = (TensorType::i32(&[2, 4]), TensorType::f32(&[2, 4, 8]));
        // 8 tokens of 4 bytes; 8 rows of 32 bytes of the table, 4 of positions, 8 of x.
        assert_eq!(
            Embedding { scale: 1.0, positions: true, documents: false, output: DType::F32 }
                .bytes(&[tokens, table, positions], &[x]),
            32 + 32 * (8 + 4 + 8)
        );
        // More tokens than rows: the whole table once.
        let (many, long) = (TensorType::i32(&[100, 4]), TensorType::f32(&[100, 4, 8]));
        assert_eq!(
            Embedding { scale: 1.0, positions: true, documents: false, output: DType::F32 }
                .bytes(&[many, table, positions], &[long]),
            1600 + 32 * (256 + 4 + 400)
        );

        let backward = |accumulate_table| EmbeddingBackward {
            scale: 1.0,
            vocabulary: 256,
            gradients: DType::F32,
            positions: Some(4),
            documents: false,
            accumulate_table,
            accumulate_positions: true,
        };
        let whole = backward(false).bytes(&[tokens, x, positions], &[table, positions]);
        assert_eq!(whole, 32 + 32 * (8 + 256 + 2 * 4));
        let added = backward(true).bytes(&[tokens, x, table, positions], &[table, positions]);
        assert_eq!(added, 32 + 32 * (8 + 2 * 8 + 2 * 4));
    }

    #[test]
    fn gpu_workspace_holds_sort_buffers_and_partial_sums() {
        let bytes = |processor, batch, channels| {
            let (tokens, dx) = (TensorType::i32(&[batch, 1024]), TensorType::f32(&[batch, 1024, channels]));
            let limits = WorkspaceLimits { processor, threads: 2, product_bytes_per_thread: 1 << 20 };
            let op = EmbeddingBackward {
                scale: 1.0,
                vocabulary: 50304,
                gradients: DType::F32,
                positions: Some(1024),
                documents: false,
                accumulate_table: true,
                accumulate_positions: false,
            };
            op.workspace(&[tokens, dx], &[], &limits)
        };
        assert_eq!(bytes(Processor::Cuda, 16, 768), 4 * 16 * 1024 + 512 * 768 * 4);
        // With short rows, the sort buffer is larger than the partial sums.
        assert_eq!(bytes(Processor::Cuda, 16, 8), 2 * 4 * 16 * 1024);
        assert_eq!(bytes(Processor::Cpu, 16, 768), 0);
    }

    /// A position table may have more rows than the sequence: only the first are read.
    #[test]
    fn short_sequences_read_the_first_positions() {
        let op = Embedding { scale: 1.0, positions: true, documents: false, output: DType::F32 };
        let (tokens, x) = (TensorType::i32(&[2, 3]), TensorType::f32(&[2, 3, 8]));
        let [table, positions] = [256, 5].map(|rows| TensorType::f32(&[rows, 8]));
        assert_eq!(op.outputs(&[tokens, table, positions]).unwrap(), [x]);
        assert_eq!(op.bytes(&[tokens, table, positions], &[x]), 24 + 32 * (6 + 3 + 6));
        let error = op.outputs(&[tokens, table, TensorType::f32(&[2, 8])]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "embedding: positions is f32[2, 8], the other operands require f32[3, 8]"
        );
    }

    #[test]
    fn tables_of_different_widths_are_refused() {
        let inputs = [TensorType::i32(&[2, 4]), TensorType::f32(&[256, 8]), TensorType::f32(&[4, 16])];
        let error = Embedding { scale: 1.0, positions: true, documents: false, output: DType::F32 }
            .outputs(&inputs)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "embedding: positions is f32[4, 16], the other operands require f32[4, 8]"
        );
    }
}
