//! Hostile applications, from a seed.

use sidecore_fuzz::sockets::Target;

#[test]
fn a_hostile_application_hurts_itself_alone() {
    let mut target = Target::new(1);
    for _ in 0..40_000 {
        target.input();
    }
    let (cut_off, done) = target.progress();
    assert!(cut_off > 50, "{cut_off} times cut off");
    assert!(done > 1_000, "{done} requests done");
    let across = target.across_bytes();
    assert!(
        across > 100_000,
        "{across} bytes went from one to the other"
    );
}
