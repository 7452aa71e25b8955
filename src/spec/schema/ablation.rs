//! The keys of `[sweep.ablate]`.

use crate::reader::declare::{key_table, keywords};
use crate::reader::list::List;
use crate::reader::parsers::{Keyword, NonEmptyText, keyword};

keywords! {
    /// A kind of rows of an ablation.
    pub enum AblationRows {
        /// One key is added to none.
        Alone = "alone",
        /// Two keys are added to none, and each of them.
        Pairs = "pairs",
        /// One key is removed from all.
        LeaveOneOut = "leave_one_out",
    }
}

key_table! {
    /// Rows with some of the keys of one strategy: none, all, and those of `rows`.
    pub struct Ablation {
        /// The strategy whose keys are added and removed, inherited keys included. The keys of its own `sweep` stay in
        /// all rows.
        pub strategy: String = NonEmptyText;
        /// "alone": each key without the others. "pairs": each pair of keys, and each key alone. "leave_one_out": all keys but one.
        pub rows: Vec<AblationRows> = ROWS, default vec![AblationRows::Alone, AblationRows::LeaveOneOut];
        /// Keys that are added and removed together, such as a loss scale and its precision; each list is named by its
        /// first key. By default, the keys of one table (`lora`, `offload`) are together.
        pub together: Vec<Vec<String>> = TOGETHER, default Vec::new();
    }
}

const ROWS: List<Keyword<AblationRows>> = List {
    of: "kinds of rows",
    example: "[\"alone\", \"leave_one_out\"]",
    may_be_empty: false,
    may_repeat: false,
    element: keyword(),
};

const TOGETHER: List<List<NonEmptyText>> = List {
    of: "lists of keys",
    example: "[[\"precision\", \"loss_scale\"]]",
    may_be_empty: true,
    may_repeat: false,
    element: List {
        of: "keys of the strategy",
        example: "[\"precision\", \"loss_scale\"]",
        may_be_empty: false,
        may_repeat: false,
        element: NonEmptyText,
    },
};
