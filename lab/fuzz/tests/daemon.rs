//! Clients of the daemon that write anywhere, from a seed.

use sidecore_fuzz::daemon::fuzz_daemon;
use sidecore_random::choices::Choices;

#[test]
fn a_scribbler_hurts_itself_alone() {
    let inputs = std::env::var("SIDECORE_SCRIBBLER_INPUTS");
    let inputs = inputs.map_or(500, |text| text.parse().unwrap());
    let mut random = Choices::seeded(1);
    let mut steps = 0;
    for _ in 0..inputs {
        let bytes = random.take(2000);
        steps += fuzz_daemon(&bytes);
    }
    eprintln!("{inputs} inputs, {steps} operations");
}
