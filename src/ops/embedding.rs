//! Token embedding, scaled or not, with learned positions or without.

use super::{
    Arithmetic, DType, Emitted, Op, Operation, Processor, Shape, Sizes, Tape, TensorType, TypeError,
    WorkspaceLimits, expect_float, expect_inputs, expect_type,
};

/// `x[b,t,:] = scale * table[tokens[b,t],:] + positions[t,:]`
///
/// Positions are counted from where a token's document begins, if that is told.
///
/// Inputs: tokens i32[B,T], table num[V,C] and, with `positions`, these num[T,C], then, with `documents`, where each token's
/// begins in its sequence, i32[B,T]. Output: x num[B,T,C], added in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// Of the tokens' rows; positions stay as they are.
    pub scale: f32,
    pub positions: bool,
    /// Only with positions.
    pub documents: bool,
    /// What x is rounded to.
    pub output: DType,
}

/// Gradients of the tables.
///
/// Inputs: tokens i32[B,T], dx num[B,T,C], with `documents` where each token's begins, i32[B,T], then the previous dtable num[V,C] and dpositions num[T,C] where
/// they are accumulated. Outputs: dtable num[V,C] and, with `positions`, dpositions num[T,C]. A gradient that is not
/// accumulated is overwritten whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingBackward {
    pub vocabulary: usize,
    pub scale: f32,
    /// What the gradients are stored as; they are summed in f32.
    pub gradients: DType,
    pub positions: bool,
    pub documents: bool,
    pub accumulate_table: bool,
    /// Of positions, where there are any.
    pub accumulate_positions: bool,
}

impl EmbeddingBackward {
    /// Places in the order of their tokens that one partial sum on a card covers.
    pub const TOKENS_PER_PARTIAL: usize = 32;

    /// Which input the first previous gradient is.
    fn previous(&self) -> usize {
        2 + usize::from(self.documents)
    }

    /// What a card keeps of a batch while it works: the places of all tokens in the order of the tokens, 4 bytes each, and
    /// then either as much again, to sort them, or the partial sums. In bytes, of the first part and of the second.
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
            expect_type(self.name(), "positions", positions, TensorType::new(dtype, &[sequence, channels]))?;
        }
        if let Some(starts) = inputs.get(3) {
            expect_type(self.name(), "the starts", starts, inputs[0])?;
        }
        Ok(vec![TensorType::new(self.output, &[batch, sequence, channels])])
    }

    /// It begins the residual stream.
    fn set_arithmetic(&mut self, arithmetic: Arithmetic) {
        self.output = arithmetic.accumulators;
    }

    fn looks_up(&self, input: usize) -> bool {
        [1, 2].contains(&input)
    }

    /// Of the table, one row for each token, or each row once where there are more tokens than rows.
    fn bytes(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        let [tokens, table] = [inputs[0], inputs[1]];
        let positions = inputs.get(2).map_or(0, TensorType::bytes);
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
            positions: self.positions,
            documents: self.documents,
            accumulate_table: table.is_some(),
            accumulate_positions: positions.is_some(),
        };
        let gradients = [1, 2].map(Emitted::Gradient);
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
        let outputs =
            [self.vocabulary, sequence].map(|rows| TensorType::new(self.gradients, &[rows, channels]));
        let accumulated = [self.accumulate_table, self.accumulate_positions];
        let expected = outputs.iter().zip(accumulated).filter(|(_, accumulate)| *accumulate);
        if self.documents {
            expect_type(self.name(), "the starts", &inputs[2], inputs[0])?;
        }
        for (found, (wanted, _)) in inputs[self.previous()..].iter().zip(expected) {
            expect_type(self.name(), "a previous gradient", found, *wanted)?;
        }
        Ok(outputs[..1 + usize::from(self.positions)].to_vec())
    }

    /// On a processor, the places of a batch in the order of their tokens, where sums of rows have to be rounded.
    fn workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        match limits.processor {
            Processor::Cpu if self.gradients == DType::F32 => 0,
            Processor::Cpu => inputs[0].bytes(),
            Processor::Cuda => Self::workspace_parts(&inputs[0], inputs[1].shape.last()).iter().sum(),
        }
    }

    /// A table that is added to is read and written where there are tokens, another one is written whole.
    fn bytes(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        let [tokens, dx, table] = [inputs[0], inputs[1], outputs[0]];
        let table = if self.accumulate_table { 2 * touched_bytes(&tokens, &table) } else { table.bytes() };
        let positions = outputs.get(1).map_or(0, TensorType::bytes);
        let positions = positions * if self.accumulate_positions { 2 } else { 1 };
        let starts = if self.documents { tokens.bytes() } else { 0 };
        tokens.bytes() + starts + dx.bytes() + table + positions
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.vocabulary = sizes.outputs[0].shape.rows();
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
            accumulate_positions: self.positions,
            ..*self
        }))
    }

    fn accumulated(&self) -> &'static [usize] {
        if self.positions { &[0, 1] } else { &[0] }
    }
}

/// Bytes of the rows of a table that tokens choose, if they choose as many as they can.
fn touched_bytes(tokens: &TensorType, table: &TensorType) -> u64 {
    let row = table.shape.last() as u64 * table.dtype.bytes();
    tokens.elements().min(table.shape.rows()) as u64 * row
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
    fn only_rows_that_tokens_choose_are_moved() {
        let (table, positions) = (TensorType::f32(&[256, 8]), TensorType::f32(&[4, 8]));
        let (tokens, x) = (TensorType::i32(&[2, 4]), TensorType::f32(&[2, 4, 8]));
        // 8 tokens of 4 bytes; 8 rows of 32 bytes of the table, 4 of positions, 8 of x.
        assert_eq!(
            Embedding { scale: 1.0, positions: true, documents: false, output: DType::F32 }
                .bytes(&[tokens, table, positions], &[x]),
            32 + 32 * (8 + 4 + 8)
        );
        // More tokens than rows: the table once.
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
            positions: true,
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
    fn a_card_sorts_tokens_and_keeps_a_partial_sum_for_each_32() {
        let bytes = |processor, batch, channels| {
            let (tokens, dx) = (TensorType::i32(&[batch, 1024]), TensorType::f32(&[batch, 1024, channels]));
            let limits = WorkspaceLimits { processor, threads: 2, product_bytes_per_thread: 1 << 20 };
            let op = EmbeddingBackward {
                scale: 1.0,
                vocabulary: 50304,
                gradients: DType::F32,
                positions: true,
                documents: false,
                accumulate_table: true,
                accumulate_positions: false,
            };
            op.workspace(&[tokens, dx], &[], &limits)
        };
        assert_eq!(bytes(Processor::Cuda, 16, 768), 4 * 16 * 1024 + 512 * 768 * 4);
        // Where rows are short, sorting takes more.
        assert_eq!(bytes(Processor::Cuda, 16, 8), 2 * 4 * 16 * 1024);
        assert_eq!(bytes(Processor::Cpu, 16, 768), 0);
    }

    #[test]
    fn a_table_of_other_width_is_refused() {
        let inputs = [TensorType::i32(&[2, 4]), TensorType::f32(&[256, 8]), TensorType::f32(&[4, 16])];
        let error = Embedding { scale: 1.0, positions: true, documents: false, output: DType::F32 }
            .outputs(&inputs)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "embedding: positions is f32[4, 16], the other operands call for f32[4, 8]"
        );
    }
}
