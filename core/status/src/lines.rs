//! The protocol of a published server: one line of JSON in, one line of JSON out.
//!
//! Must stay true: any bytes have an answer or an end; no I/O.

use crate::Status;
use crate::service::{Dialect, Step};
use serde_json::{Value, json};
use std::sync::Arc;

/// Answers for one status.
pub(crate) struct Lines(pub(crate) Arc<Status>);

impl Dialect for Lines {
    fn step(&self, input: &[u8]) -> Step {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
            // A client that never ends its line must not fill the memory.
            return match input.len() > LINE_BYTES_MAX {
                true => Step::Close,
                false => Step::More,
            };
        };
        // Text that is no JSON becomes null, which has no `op`.
        let request = serde_json::from_slice::<Value>(&input[..end]).unwrap_or_default();
        let answer = match request["op"].as_str() {
            Some("status") => self.0.value(),
            Some("metrics") => {
                // Many lines: the end of the connection is the end of the text.
                let bytes = self.0.metrics().into_bytes();
                let (used, last) = (end + 1, true);
                return Step::Answer { used, bytes, last };
            }
            Some("act") => self.0.act(&request),
            _ => json!({"error": "unknown request; ask {\"op\":\"status\"}"}),
        };
        let mut bytes = answer.to_string().into_bytes();
        bytes.push(b'\n');
        Step::Answer {
            used: end + 1,
            bytes,
            last: false,
        }
    }
}

/// The longest line of a client.
const LINE_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use proptest::prelude::*;

    fn step(input: &[u8]) -> Step {
        Lines(Status::new(
            Kind::Daemon,
            "a\nb",
            || json!({"jobs_total": 2}),
        ))
        .step(input)
    }

    #[test]
    fn a_line_gets_a_line() {
        let Step::Answer { used, bytes, last } = step(b"{\"op\":\"status\"}\nmore") else {
            panic!("no answer");
        };
        assert_eq!((used, last), (16, false));
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["jobs_total"], &value["name"]),
            (&json!(2), &json!("a\nb"))
        );
        assert!(matches!(step(b"{\"op\":"), Step::More));
        assert!(matches!(step(&[b'x'; LINE_BYTES_MAX + 1]), Step::Close));
    }

    proptest! {
        #[test]
        fn any_line_has_an_answer(mut line in prop::collection::vec(any::<u8>(), 0..200)) {
            line.retain(|&byte| byte != b'\n');
            line.push(b'\n');
            let Step::Answer { used, bytes, .. } = step(&line) else {
                panic!("no answer")
            };
            prop_assert_eq!(used, line.len());
            prop_assert_eq!(bytes.last(), Some(&b'\n'));
        }
    }
}
