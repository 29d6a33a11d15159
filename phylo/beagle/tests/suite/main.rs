//! The interface as programs call it: known values, misuse, and BEAGLE's own library as the oracle,
//! call by call, where Debian's is installed.
#![allow(unsafe_code, reason = "calls of a C surface")]

mod api;
mod known;
mod misuse;
mod session;
