//! Programs that must not compile: the promises that the types make. Each case's message is kept in
//! a file next to it, as the compiler of the stable toolchain prints it. After a compiler update,
//! review the new messages and keep them with
//! `TRYBUILD=overwrite cargo test -p sidecore-engine --test promises`.
#![cfg(not(loom))]

#[test]
fn broken_promises_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/promises/kept.rs");
    cases.compile_fail("tests/promises/broken_*.rs");
}
