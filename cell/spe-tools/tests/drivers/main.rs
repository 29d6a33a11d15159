//! The drivers as a Makefile calls them: small programs are compiled, linked, and run by a host of
//! the test's own, which stands for libspe2.
//!
//! Without an x32 ABI of the compiler's, each test reports that and passes.

mod common;
mod hosts;
mod operations;
mod refusals;
