//! Host programs in C with SPU programs, as users write them: each host program checks what
//! libspe2's documentation says of its calls.

mod common;

use common::{Bench, passes};

#[test]
fn words_and_data_go_both_ways() {
    let Some(bench) = Bench::new() else { return };
    passes(&mut bench.pair("echo"));
}
