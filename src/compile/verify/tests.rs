use super::*;
use crate::compile::compile;
use crate::testing;

#[test]
fn strategies_compile() {
    for config in testing::strategies() {
        let program = compile(&config, &testing::target()).unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(program.stage, Stage::Placed);
    }
}
