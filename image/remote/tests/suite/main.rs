//! Images of remote stores, of servers that lie or break, and frames kept on disk.
//!
//! Apart from it are the tests that set variables which others would read: `logins`, `stores`.
#![allow(clippy::unwrap_used)] // A test's helpers may fail it too.

#[path = "../common/mod.rs"]
mod common;

mod cache;
mod hostile;
mod http;
