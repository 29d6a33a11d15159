//! Start of a server: its first line reports that it is ready.
//!
//! Why here: every test of a server waits for that line, and shows the server's output instead if
//! it does not come.
#![allow(clippy::unwrap_used)] // A helper function of tests.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;

/// Waits for the first line of `child`, whose standard output is piped. If that line is not
/// `wanted`, waits for the child's end and panics with its output.
pub(crate) fn until_it_says(child: &mut Child, wanted: &str) {
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    if line != wanted {
        let mut said = String::new();
        if let Some(mut errors) = child.stderr.take() {
            let _ = errors.read_to_string(&mut said);
        }
        let _ = child.kill();
        let _ = child.wait();
        panic!("the server said `{line}` and {said}");
    }
}
