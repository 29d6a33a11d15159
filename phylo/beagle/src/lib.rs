#![doc = include_str!("../README.md")]
//!
//! Top-down: [`c`] has the functions that programs call, and finds an instance by its number;
//! `instance` keeps what is to be done, `data`, `operations`, `results` and `gradient` check what
//! clients give and ask; `steps` and `chunk` do it, pattern by pattern, `values` has partials in
//! either precision, `tally` sums of logarithms, `repeats` finds patterns that are alike;
//! `matrices` and `kernels` use the kernels of `sidecore-likelihood`; `engines` spreads chunks
//! over cores.
//!
//! Must stay true: nothing unwinds into the program and nothing is printed, except that a defect of
//! this library reports itself; no input of a client but a wrong pointer can end the program.

pub mod abi;
pub mod c;
mod chunk;
mod data;
mod engines;
mod gradient;
mod instance;
mod kernels;
mod matrices;
mod operations;
mod repeats;
mod resources;
mod results;
mod steps;
mod tally;
mod values;
