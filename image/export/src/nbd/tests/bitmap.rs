//! A dirty bitmap as libnbd reads it.

use super::live::Running;
use crate::nbd::Options;
use sidecore_format::source::{BlockSource, Deliver, Extent, MemorySource, ReadError, Written};
use std::process::Command;
use std::sync::Arc;

/// A device of which every second 64 KiB was written since its checkpoint.
struct Striped(MemorySource);

const STRIPE: u64 = 64 << 10;

impl BlockSource for Striped {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn preferred_bytes(&self) -> u32 {
        self.0.preferred_bytes()
    }

    fn read_with_max_bytes(&self) -> usize {
        self.0.read_with_max_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        self.0.read_into(offset, dst)
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        self.0.read_with(offset, len, deliver);
    }

    fn extent(&self, offset: u64) -> Extent {
        self.0.extent(offset)
    }

    fn written(&self, offset: u64) -> Option<Written> {
        // Shorter steps than the stripes: neighbours of one kind become one.
        Some(Written {
            len: (4096 - offset % 4096).min(self.size_bytes() - offset),
            since: offset / STRIPE % 2 == 1,
        })
    }
}

#[test]
fn what_was_written_since_is_what_libnbd_maps() {
    let source = Striped(MemorySource::new(vec![0; 300_000]));
    let options = Options {
        bitmap: Some("since".to_owned()),
        ..Options::default()
    };
    let running = Running::new(Arc::new(source), options);
    let uri = format!("nbd+unix:///?socket={}", running.socket().display());
    let map = |context: &str| {
        let mut command = Command::new("nbdinfo");
        command.arg(format!("--map={context}")).arg(&uri);
        let output = command.output().ok()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let lines = String::from_utf8(output.stdout).unwrap();
        let words = lines.lines().map(|line| line.split_whitespace());
        Some(
            words
                .map(|mut words| {
                    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
                    (number(), number(), number())
                })
                .collect::<Vec<_>>(),
        )
    };
    let Some(dirty) = map("qemu:dirty-bitmap:since") else {
        eprintln!("not checked: no nbdinfo; install libnbd-bin");
        return;
    };
    let stripe = |number: u64| (number * STRIPE, STRIPE, number % 2);
    let mut expected: Vec<_> = (0..4).map(stripe).collect();
    expected.push((4 * STRIPE, 300_000 - 4 * STRIPE, 0));
    assert_eq!(dirty, expected);
    // The other context is as it was: zeros, not stored.
    assert_eq!(map("base:allocation").unwrap(), [(0, 300_000, 3)]);
}
